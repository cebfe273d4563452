"""A GPU has old damage that does not affect this run."""

from __future__ import annotations

from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation
from trackside.sim.truth import InjectedFault


@fault("latent-remap")
class LatentRemap(SimulatedFault):
    """Rows remapped and errors counted before the job began; the counters stay constant."""

    at: str = "0%"
    """Without effect: the damage is older than the job."""
    rows: int = 3
    """Rows remapped for uncorrectable errors."""
    ecc: int = 0
    """Uncorrectable errors since the driver was loaded."""
    pending: bool = False
    """Whether a row waits to be remapped."""
    failed: bool = False
    """Whether a remapping failed."""
    xid: int = 0
    """The Xid that the exporter's gauge still shows."""

    def apply(self, sim: Simulation) -> None:
        placement = self.placement(sim)
        long_ago = sim.start - 86400.0
        for metric, amount in (("rows_uncorrectable", self.rows), ("ecc_uncorrectable", self.ecc)):
            if amount:
                sim.change(placement.node, placement.gpu, long_ago, metric, float(amount))
        sim.change(placement.node, placement.gpu, long_ago, "ecc_uncorrectable_before", float(self.rows))
        for metric, value in (("remap_pending", self.pending), ("remap_failure", self.failed), ("xid", self.xid)):
            if value:
                sim.change(placement.node, placement.gpu, long_ago, metric, to=float(value))
        sim.injected.append(
            InjectedFault(
                self.kind, "B2", "infrastructure", "latent", nodes=(placement.node,), gpus=(placement.key,),
                ranks=(placement.rank,), sufficient_planes=(("gpu",),), latent=True,
            )
        )  # fmt: skip
