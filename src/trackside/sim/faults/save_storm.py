"""A checkpoint after nearly every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trackside.sim.act import Mark
from trackside.sim.fault import Fault
from trackside.sim.stage import Regime, Stage
from trackside.sim.truth import Injected


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveStorm(Fault):
    """Saving takes most of the wall time."""

    kind: ClassVar[str] = "save-storm"
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
        stage.inject(
            Injected(
                self.kind, "D2", "job", "save-storm", since=max(begin, act.phases["train"][0]),
                enough=(("logs", "progress"),), primary=self.primary,
            )
        )  # fmt: skip


FAULT = SaveStorm
