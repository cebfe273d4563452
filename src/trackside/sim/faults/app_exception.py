"""The job's own code raises an exception after some steps were completed."""

from __future__ import annotations

from trackside.sim.endings import CODE, RankDeath, crash, traceback
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.faults.ecc import ADVICE
from trackside.sim.kernel_lines import log_xid
from trackside.sim.simulation import Simulation

TEXTS = {
    "data": "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 40822: invalid continuation byte",
    "code": "KeyError: 'labels'",
    "config": "ValueError: Sequence length 8448 is larger than the maximum of 8192 (max_position_embeddings)",
}


@fault("app-exception")
class AppException(SimulatedFault):
    """A rank raises an exception during training; ``illegal_access``: a CUDA kernel of the job accesses memory that it must not access."""

    fault_class: str = "code"
    """data, code or config."""
    illegal_access: bool = False
    """Whether it is an illegal memory access: the driver logs Xid 31, which points to the application."""

    def apply(self, sim: Simulation) -> None:
        self.check("fault_class", TEXTS)
        placement, time = self.placement(sim), self.start_time(sim)
        error = TEXTS[self.fault_class]
        if self.illegal_access:
            error = f"RuntimeError: CUDA error: an illegal memory access was encountered\n{ADVICE}"
        text = traceback(sim, placement.rank, error, ((CODE, 191, "main", "loss = step(model, next(batches))"),))
        crash(sim, time, [RankDeath(placement.rank, 0.1, 1, text)])
        if self.illegal_access:
            log_xid(sim, sim.attempt, placement, time, 31)
            log_xid(sim, sim.attempt, placement, time + 0.4, 43)
        self.record_truth(
            sim, "H2", "job", fault_class="code" if self.illegal_access else self.fault_class, since=time,
            nodes=(placement.node,), ranks=(placement.rank,), sufficient_planes=(("logs",),), halts=True,
        )  # fmt: skip
