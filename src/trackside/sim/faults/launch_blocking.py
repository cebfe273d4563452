"""A debug flag makes every kernel launch wait for its kernel."""

from __future__ import annotations

from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Regime, Stage


@fault("launch-blocking")
class LaunchBlocking(Fault):
    """CUDA_LAUNCH_BLOCKING=1: nothing overlaps, the GPU idles between kernels, launches take as long as kernels."""

    at: str = "0%"
    gap_share: float = 0.8
    """Idle time between kernels for each second of kernels."""
    printed: bool = True
    """The batch script prints its environment."""

    def shape(self, stage: Stage) -> None:
        job = stage.scenario.job
        gap = self.gap_share * job.compute_share * job.step_s
        stage.regimes.append(Regime(stage.start, gap_s=gap, blocking=1.0, communication=1.8))
        if self.printed:
            stage.environment["CUDA_LAUNCH_BLOCKING"] = "1"

    def strike(self, stage: Stage) -> None:
        enough = (("tracer",), ("logs",)) if self.printed else (("tracer",),)
        self.inject(stage, "D2", "job", "launch-blocking", since=stage.act.phases["train"][0], enough=enough)
