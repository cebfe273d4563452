"""The time limit is shorter than the run needs."""

from __future__ import annotations

from trackside.sim.faults import Fault, fault
from trackside.sim.scenario import ScenarioError
from trackside.sim.stage import Stage


@fault("timeout")
class Timeout(Fault):
    """A healthy run is ended at its wall-clock limit: ``share`` of what it would take."""

    at: str = "0%"
    share: float = 0.6

    def shape(self, stage: Stage) -> None:
        if not 0 < self.share < 1:
            raise ScenarioError(f"fault {self.kind}: share: {self.share} is out of range; between 0 and 1 will do")
        length = stage.reference.end - stage.reference.start
        stage.time_limit = max(60.0, 60.0 * int(self.share * length / 60))

    def strike(self, stage: Stage) -> None:
        since = stage.act.start + stage.time_limit
        self.inject(stage, "F3", "job", since=since, enough=(("scheduler",), ("logs",)))
