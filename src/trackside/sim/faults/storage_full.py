"""A checkpoint does not fit on the disk."""

from __future__ import annotations

from trackside.sim.endings import CODE, SITE, Death, crash, traceback
from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Stage


@fault("storage-full")
class StorageFull(Fault):
    """Saving raises: no space left, or the quota is used up."""

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
        self.inject(stage, "H4", "job", since=when, ranks=(0,), enough=(("logs",),), halts=True)
