"""A GPU carries old damage that does nothing to this run."""

from __future__ import annotations

from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Stage
from trackside.sim.truth import Injected


@fault("latent-remap")
class LatentRemap(Fault):
    """Rows remapped and errors counted before the job began; the counters stay flat."""

    at: str = "0%"
    rows: int = 3
    ecc: int = 0
    """Uncorrectable errors since the driver was loaded."""
    pending: bool = False
    failed: bool = False
    xid: int = 0
    """What the exporter's sticky gauge still shows."""

    def strike(self, stage: Stage) -> None:
        place = self.place(stage)
        long_ago = stage.start - 86400.0
        for metric, amount in (("rows_uncorrectable", self.rows), ("ecc_uncorrectable", self.ecc)):
            if amount:
                stage.change(place.node, place.gpu, long_ago, metric, float(amount))
        stage.change(place.node, place.gpu, long_ago, "ecc_uncorrectable_before", float(self.rows))
        for metric, value in (("remap_pending", self.pending), ("remap_failure", self.failed), ("xid", self.xid)):
            if value:
                stage.change(place.node, place.gpu, long_ago, metric, to=float(value))
        stage.injected.append(
            Injected(
                self.kind, "B2", "infrastructure", "latent", nodes=(place.node,), gpus=(place.key,),
                ranks=(place.rank,), enough=(("gpu",),), latent=True,
            )
        )  # fmt: skip
