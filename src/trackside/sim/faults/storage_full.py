"""A checkpoint does not fit on the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trackside.sim.endings import CODE, SITE, Death, crash, traceback
from trackside.sim.fault import Fault
from trackside.sim.stage import Stage
from trackside.sim.truth import Injected


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFull(Fault):
    """Saving raises: no space left, or the quota is used up."""

    kind: ClassVar[str] = "storage-full"
    quota: bool = False

    def strike(self, stage: Stage) -> None:
        act, at = stage.act, self.begin(stage)
        mark = next((mark for mark in act.marks if mark.kind == "checkpoint" and mark.start >= at), None)
        when = mark.start + 0.5 * (mark.end - mark.start) if mark else at
        error = (
            "OSError: [Errno 122] Disk quota exceeded" if self.quota else "OSError: [Errno 28] No space left on device"
        )
        frames = (
            (CODE, 207, "main", "save(model, path)"),
            (f"{SITE}/torch/serialization.py", 850, "save", "_save(obj, opened_zipfile)"),
        )
        crash(stage, when, [Death(0, 0.1, 1, traceback(stage, 0, error, frames))])
        stage.inject(
            Injected(
                self.kind, "H4", "job", since=when, ranks=(0,), enough=(("logs",),),
                halts=True, primary=self.primary,
            )
        )  # fmt: skip


FAULT = StorageFull
