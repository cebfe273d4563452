"""Restarts by the launcher: whether a run continued after a failure because its workers were restarted."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Frame, Missing
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.order import follows, last_after
from trackside.facts.training.learning import Trajectory
from trackside.finding import Claim, Sentence
from trackside.model import Event
from trackside.query import events

WORKERS_RESTARTED = Sentence("the launcher restarted its workers: {line}")
MAY_RECUR = Sentence("training continued after the restart; the same failure may come back")
TRAINING_CONTINUED = Sentence("training continued after that: {point}")


@dataclass(frozen=True, eq=False)
class LauncherRestarts:
    """The launcher's restarts of its workers."""

    frame: Frame
    trajectory: Maybe[Trajectory]
    ended_badly: bool

    def restart_claims(self, failure: Event) -> tuple[Claim, ...]:
        """The claims that the workers were restarted after a failure and logged steps followed; empty if not."""
        if isinstance(self.trajectory, Missing):
            return ()
        restart = next((row for row in self.frame.events if follows(row, failure)), None)
        point = last_after(restart, self.trajectory.points) if restart is not None else None
        if restart is None or point is None:
            return ()
        line = self.frame.value(restart, "text")
        return WORKERS_RESTARTED(line=line), TRAINING_CONTINUED(point=self.trajectory.progress.value(point, "text"))

    def has_recovered(self, failure: Event) -> bool:
        """Whether training continued after a failure. In a log with several writers, points may be written late: if the
        run ended badly they count only with their own time, or after a restart."""
        if isinstance(self.trajectory, Missing):
            return False
        after = [point for point in self.trajectory.points if follows(point, failure)]
        if any(failure.time is not None and point.time is not None and point.time > failure.time for point in after):
            return True
        return bool(after) and (bool(self.frame) or not self.ended_badly)


@fact({"restarts": events("launcher_restart")})
def launcher_restarts(evidence: Evidence, trajectory: Maybe[Trajectory], ending: Ending) -> LauncherRestarts:
    """Needs no particular input; empty if no line of the launcher reports a restart."""
    return LauncherRestarts(evidence["restarts"], trajectory, ending.abnormal is not None)
