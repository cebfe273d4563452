"""A job that should continue an earlier one."""

from __future__ import annotations

from trackside.sim.attempt import JobAttempt
from trackside.sim.endings import CODE, SITE, RankDeath, crash, finish, slurm_notice, traceback
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.schedule import learning_curve, simulate_attempt
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import RankState

CRASHES = {
    "size-mismatch": "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for "
    "model.embed_tokens.weight: copying a param with shape torch.Size([32000, 4096]) from checkpoint, the shape in current "
    "model is torch.Size([128256, 4096]).",
    "corrupt": "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    "empty": "ValueError: No valid checkpoint found in output directory (output)",
}


@fault("silent-resume")
class SilentResume(SimulatedFault):
    """A parent job runs first; the job depends on it and starts from scratch, or cannot load its checkpoint."""

    at: str = "0%"
    how: str = "silent"
    """silent; proper (it resumes as it should: no fault); size-mismatch, corrupt or empty: it crashes at the load."""
    parent_state: str = "COMPLETED"
    """COMPLETED or TIMEOUT."""
    between_s: float = 60.0
    """Seconds between the end of the parent and the start of the job."""

    def apply(self, sim: Simulation) -> None:
        self.check("how", ("silent", "proper", *CRASHES))
        child, steps = sim.attempt, sim.attempt.last_step
        length = child.end - child.start
        start = child.start - self.between_s - length
        parent = JobAttempt(
            str(int(child.job) - 1),
            child.placements,
            start - 30,
            start,
            last_step=steps,
            curve=learning_curve(sim, steps),
        )
        simulate_attempt(parent, sim)
        sim.attempts = [parent, child]
        if self.parent_state == "TIMEOUT":
            parent.truncate(parent.end - 40)
            parent.release(None, parent.end - 39)
            parent.outcome.time -= 38
            parent.outcome.state = "TIMEOUT"
            slurm_notice(sim, parent, parent.end, "DUE TO TIME LIMIT")
        child.parent, child.submit = parent.job, parent.submit + 5
        if self.how == "proper":
            child.first_step, child.last_step = parent.steps_done, parent.steps_done + steps
            child.loaded_checkpoint = f"output/checkpoint-{parent.steps_done}"
            child.curve = learning_curve(sim, child.last_step)
            simulate_attempt(child, sim)
        elif self.how in CRASHES:
            self._crash(sim)
        if self.how != "proper":
            self.record_truth(
                sim, "E2", "job", "silent" if self.how == "silent" else "crash", since=child.start,
                sufficient_planes=(("logs", "progress", "scheduler"),) if self.how == "silent" else (("logs",),),
                halts=self.how in CRASHES,
            )  # fmt: skip

    def _crash(self, sim: Simulation) -> None:
        attempt = sim.attempt
        begin, end = attempt.phases["load"]
        time = begin + 0.6 * (end - begin)
        attempt.phases.pop("train", None)
        rng = sim.rng("resume-crash")
        frames = (
            (CODE, 176, "main", "load_checkpoint(model, path)"),
            (f"{SITE}/torch/nn/modules/module.py", 2584, "load_state_dict", "raise RuntimeError("),
        )
        outputs = [
            traceback(sim, rank, CRASHES[self.how], frames if self.how != "empty" else frames[:1]) for rank in sim.ranks
        ]
        crash(sim, time, [RankDeath(rank, float(rng.random()), 1, outputs[rank]) for rank in sim.ranks], RankState.IDLE)
        finish(sim, attempt.end, "FAILED", 1)
