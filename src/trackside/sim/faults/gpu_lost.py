"""A GPU falls off the bus."""

from __future__ import annotations

from trackside.sim.endings import CODE, Death, crash, hang, traceback
from trackside.sim.faults import Fault, fault
from trackside.sim.faults.ecc import ADVICE
from trackside.sim.kernel_lines import xid
from trackside.sim.stage import NodeChange, Stage


@fault("gpu-lost")
class GpuLost(Fault):
    """Xid 79: no more samples of that GPU, its process fails or never comes back from the driver."""

    hangs: bool = False
    """The process is stuck in the driver; its peers wait."""
    drain: bool = True

    def strike(self, stage: Stage) -> None:
        place, at, act = self.place(stage), self.begin(stage), stage.act
        if self.hangs and len(stage.places) > 1:
            hang(stage, at + 0.5, [place.rank])
        else:
            text = traceback(
                stage,
                place.rank,
                f"RuntimeError: CUDA error: unspecified launch failure\n{ADVICE}",
                ((CODE, 194, "main", "optimizer.step()"),),
            )
            crash(stage, at + 0.5, [Death(place.rank, 0.4, 1, text)])
        xid(stage, act, place, at, 79)
        pci = stage.pci(place.gpu)[4:-2].lower()
        stage.log_kernel(at + 0.001, place.node, f"NVRM: GPU {pci}.0: GPU has fallen off the bus.")
        stage.gone[place.node, place.gpu] = at
        if self.drain:
            stage.node_changes.append(NodeChange(act.end + 20, place.node, "IDLE+DRAIN", f"gpu{place.gpu} lost"))
        self.inject(
            stage, "B2", "infrastructure", "active", since=at, nodes=(place.node,), gpus=(place.key,),
            ranks=(place.rank,), cascade=("C2",) if self.hangs else ("H2",), enough=(("kernel",),), halts=True,
        )  # fmt: skip
