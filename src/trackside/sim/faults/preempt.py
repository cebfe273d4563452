"""The scheduler takes the nodes away and starts the job again later."""

from __future__ import annotations

from trackside.sim.act import Act
from trackside.sim.endings import cancelled
from trackside.sim.faults import Fault, fault
from trackside.sim.schedule import play
from trackside.sim.stage import Stage


@fault("preempt")
class Preempt(Fault):
    """PREEMPTED or REQUEUED, back to the queue, and a second start that resumes from the last checkpoint, or doesn't."""

    requeue: bool = False
    """An operator's requeue in place of a preemption."""
    wait_s: float = 240.0
    """In the queue, until it starts again."""
    returns: bool = True
    """Whether it does start again."""
    resumes: bool = True
    """Whether the second start loads the last checkpoint; if not, it begins again at step 0."""

    def strike(self, stage: Stage) -> None:
        act, at, job = stage.act, self.begin(stage), stage.scenario.job
        why, state = ("DUE TO JOB REQUEUE", "REQUEUED") if self.requeue else ("DUE TO PREEMPTION", "PREEMPTED")
        cancelled(stage, at, why, state)
        self.inject(
            stage, "F2", "scheduler", since=at, cascade=() if self.resumes or not self.returns else ("E2",),
            enough=(("scheduler",), ("logs",)), halts=True,
        )  # fmt: skip
        if not self.returns:
            return
        saved = act.steps_done // job.checkpoint_every * job.checkpoint_every if job.checkpoint_every else 0
        first = saved if self.resumes else 0
        again = Act(
            act.job,
            act.places,
            act.end,
            act.end + self.wait_s,
            act.restarts + 1,
            first,
            act.last_step,
            curve=act.curve,
            loads=f"output/checkpoint-{saved}" if first else "",
        )
        play(again, stage)
        stage.acts.append(again)
