"""A checkpoint after nearly every step."""

from __future__ import annotations

from trackside.sim.act import Mark
from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Regime, Stage


@fault("save-storm")
class SaveStorm(Fault):
    """Saving takes most of the wall time."""

    at: str = "0%"
    save_s: float = 9.0

    def shape(self, stage: Stage) -> None:
        stage.regimes.append(Regime(self.begin(stage), save_s=self.save_s))

    def strike(self, stage: Stage) -> None:
        act, begin = stage.act, self.begin(stage)
        for number, end in enumerate(act.step_ends.tolist(), act.first_step + 1):
            if end > begin:
                act.marks.append(Mark("checkpoint", number, end - self.save_s + 0.01, end))
        act.marks.sort(key=lambda mark: mark.start)
        self.inject(
            stage, "D2", "job", "save-storm", since=max(begin, act.phases["train"][0]),
            enough=(("logs", "progress"),),
        )  # fmt: skip
