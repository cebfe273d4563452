"""A file server stops answering: for a while, or for good."""

from __future__ import annotations

from trackside.sim.endings import hang
from trackside.sim.faults import Fault, fault
from trackside.sim.kernel_lines import blocked, nfs_back, nfs_lost
from trackside.sim.stage import HostEffect, Pause, Stage


@fault("storage-stall")
class StorageStall(Fault):
    """A rank is caught in a read; the others wait for it. If the server comes back in time, the run goes on."""

    resumes_after_s: float = 180.0
    """0: never."""
    whole_node: bool = False
    watchdog: bool = True

    def shape(self, stage: Stage) -> None:
        if self.resumes_after_s:
            stage.pauses.append(Pause(self.begin(stage), self.resumes_after_s, frozenset(self._ranks(stage))))

    def strike(self, stage: Stage) -> None:
        act, at = stage.act, self.begin(stage)
        ranks = self._ranks(stage)
        nodes = tuple(dict.fromkeys(stage.places[rank].node for rank in ranks))
        if not self.resumes_after_s:
            over = hang(stage, at, ranks, watchdog_s=None if self.watchdog else 0.0)
        else:
            over = at + self.resumes_after_s
        for node in nodes:
            nfs_lost(stage, node, at + 4)
            stage.host_effects.append(HostEffect(node, at, over, blocked_tasks=2.0 + len(ranks), stalled_io=0.9))
            if self.resumes_after_s:
                nfs_back(stage, node, over - 1)
        for place in (stage.places[rank] for rank in ranks[:2]):
            if over - at > 125:
                blocked(stage, act, place, at + 124)
        if not self.resumes_after_s:
            self.inject(
                stage, "H4", "infrastructure", since=at, nodes=nodes, ranks=tuple(ranks), cascade=("C2",),
                enough=(("kernel",),), halts=True,
            )  # fmt: skip

    def _ranks(self, stage: Stage) -> list[int]:
        return self.node_ranks(stage) if self.whole_node else [self.place(stage).rank]
