"""Collectives crawl: over TCP sockets, or over a fabric that lost most of its bandwidth."""

from __future__ import annotations

from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Regime, Stage


@fault("slow-interconnect")
class SlowInterconnect(Fault):
    """Communication takes ``factor`` times as long, on all ranks alike: GPUs spin while they wait for bytes."""

    at: str = "0%"
    factor: float = 80.0
    socket: bool = True
    """NCCL goes over NET/Socket; else the fabric itself is slow."""

    def shape(self, stage: Stage) -> None:
        stage.regimes.append(Regime(self.begin(stage), communication=self.factor))
        if self.socket:
            stage.transport = "Socket"

    def strike(self, stage: Stage) -> None:
        begin = max(self.begin(stage), stage.act.phases["train"][0])
        enough: list[tuple[str, ...]] = [("gpu", "profiling", "tracer")]
        if self.socket and stage.scenario.job.nccl_debug:
            enough.append(("gpu", "profiling", "logs", "progress"))
        self.inject(stage, "D2", "infrastructure", "interconnect", since=begin, enough=tuple(enough))
