"""A checkpoint does not fit on the disk."""

from __future__ import annotations

from trackside.sim.endings import CODE, SITE, RankDeath, crash, traceback
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation


@fault("storage-full")
class StorageFull(SimulatedFault):
    """Saving raises: no space is left, or the quota is used up."""

    quota: bool = False
    """Whether the error is that the quota is used up; else that no space is left."""

    def apply(self, sim: Simulation) -> None:
        attempt, time = sim.attempt, self.start_time(sim)
        interruption = next(
            (
                interruption
                for interruption in attempt.interruptions
                if interruption.kind == "checkpoint" and interruption.start >= time
            ),
            None,
        )
        fails_at = interruption.start + 0.5 * (interruption.end - interruption.start) if interruption else time
        error = (
            "OSError: [Errno 122] Disk quota exceeded" if self.quota else "OSError: [Errno 28] No space left on device"
        )
        frames = (
            (CODE, 207, "main", "save(model, path)"),
            (f"{SITE}/torch/serialization.py", 850, "save", "_save(obj, opened_zipfile)"),
        )
        crash(sim, fails_at, [RankDeath(0, 0.1, 1, traceback(sim, 0, error, frames))])
        owner = "job" if self.quota else "unknown"  # nothing shows whose data fills the disk
        self.record_truth(sim, "H4", owner, since=fails_at, ranks=(0,), sufficient_planes=(("logs",),), halts=True)
