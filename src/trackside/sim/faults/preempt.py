"""The scheduler takes the nodes away and starts the job again later."""

from __future__ import annotations

from trackside.sim.attempt import JobAttempt
from trackside.sim.endings import cancel_job
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.schedule import simulate_attempt
from trackside.sim.simulation import Simulation


@fault("preempt")
class Preempt(SimulatedFault):
    """The job is preempted or requeued, and starts a second time, from the last checkpoint or from scratch."""

    requeue: bool = False
    """Whether it is an operator's requeue instead of a preemption."""
    wait_s: float = 240.0
    """Seconds in the queue until it starts again."""
    returns: bool = True
    """Whether it starts again."""
    resumes: bool = True
    """Whether the second start loads the last checkpoint; if not, it begins again at step 0."""

    def apply(self, sim: Simulation) -> None:
        attempt, time, job = sim.attempt, self.start_time(sim), sim.scenario.job
        notice_text, state = ("DUE TO JOB REQUEUE", "REQUEUED") if self.requeue else ("DUE TO PREEMPTION", "PREEMPTED")
        cancel_job(sim, time, notice_text, state)
        culprit = "unknown" if self.requeue else "scheduler"  # no record names who requeued it
        self.record_truth(
            sim, "F2", culprit, since=time, cascade=() if self.resumes or not self.returns else ("E2",),
            sufficient_planes=(("scheduler",), ("logs",)), halts=True,
        )  # fmt: skip
        if not self.returns:
            return
        saved = attempt.steps_done // job.checkpoint_every * job.checkpoint_every if job.checkpoint_every else 0
        first_step = saved if self.resumes else 0
        second = JobAttempt(
            attempt.job,
            attempt.placements,
            attempt.end,
            attempt.end + self.wait_s,
            attempt.restarts + 1,
            first_step,
            attempt.last_step,
            curve=attempt.curve,
            loaded_checkpoint=f"output/checkpoint-{saved}" if first_step else "",
        )
        simulate_attempt(second, sim)
        sim.attempts.append(second)
