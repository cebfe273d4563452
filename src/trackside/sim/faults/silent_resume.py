"""A job that should go on where another left off."""

from __future__ import annotations

from trackside.sim.act import Act
from trackside.sim.endings import CODE, SITE, Death, crash, finish, notice, traceback
from trackside.sim.faults import Fault, fault
from trackside.sim.schedule import curve_of, play
from trackside.sim.stage import Stage
from trackside.sim.timeline import State

CRASHES = {
    "size-mismatch": "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for "
    "model.embed_tokens.weight: copying a param with shape torch.Size([32000, 4096]) from checkpoint, the shape in current "
    "model is torch.Size([128256, 4096]).",
    "corrupt": "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    "empty": "ValueError: No valid checkpoint found in output directory (output)",
}


@fault("silent-resume")
class SilentResume(Fault):
    """A parent job runs first; the job depends on it and starts from scratch, or can't load what it left."""

    at: str = "0%"
    how: str = "silent"
    """silent; proper (it resumes as it should: no fault); size-mismatch, corrupt or empty: it crashes at the load."""
    parent_state: str = "COMPLETED"
    """COMPLETED or TIMEOUT."""
    between_s: float = 60.0

    def strike(self, stage: Stage) -> None:
        self.check("how", ("silent", "proper", *CRASHES))
        child, steps = stage.act, stage.act.last_step
        length = child.end - child.start
        start = child.start - self.between_s - length
        parent = Act(
            str(int(child.job) - 1), child.places, start - 30, start, last_step=steps, curve=curve_of(stage, steps)
        )
        play(parent, stage)
        stage.acts = [parent, child]
        if self.parent_state == "TIMEOUT":
            parent.cut(parent.end - 40)
            parent.release(None, parent.end - 39)
            parent.ending.time -= 38
            parent.ending.state = "TIMEOUT"
            notice(stage, parent, parent.end, "DUE TO TIME LIMIT")
        child.parent, child.submit = parent.job, parent.submit + 5
        if self.how == "proper":
            child.first_step, child.last_step = parent.steps_done, parent.steps_done + steps
            child.loads = f"output/checkpoint-{parent.steps_done}"
            child.curve = curve_of(stage, child.last_step)
            play(child, stage)
        elif self.how in CRASHES:
            self._crash(stage)
        if self.how != "proper":
            self.inject(
                stage, "E2", "job", "silent" if self.how == "silent" else "crash", since=child.start,
                enough=(("logs", "progress", "scheduler"),) if self.how == "silent" else (("logs",),),
                halts=self.how in CRASHES,
            )  # fmt: skip

    def _crash(self, stage: Stage) -> None:
        act = stage.act
        begin, end = act.phases["load"]
        at = begin + 0.6 * (end - begin)
        act.phases.pop("train", None)
        rng = stage.rng("resume-crash")
        frames = (
            (CODE, 176, "main", "load_checkpoint(model, path)"),
            (f"{SITE}/torch/nn/modules/module.py", 2584, "load_state_dict", "raise RuntimeError("),
        )
        said = [
            traceback(stage, rank, CRASHES[self.how], frames if self.how != "empty" else frames[:1])
            for rank in stage.ranks
        ]
        crash(stage, at, [Death(rank, float(rng.random()), 1, said[rank]) for rank in stage.ranks], State.IDLE)
        finish(stage, act.end, "FAILED", 1)
