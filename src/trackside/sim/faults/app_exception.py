"""The job's own code raises after steps were completed."""

from __future__ import annotations

from trackside.sim.endings import CODE, Death, crash, traceback
from trackside.sim.faults import Fault, fault
from trackside.sim.faults.ecc import ADVICE
from trackside.sim.kernel_lines import xid
from trackside.sim.stage import Stage

TEXTS = {
    "data": "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 40822: invalid continuation byte",
    "code": "KeyError: 'labels'",
    "config": "ValueError: Sequence length 8448 is larger than the maximum of 8192 (max_position_embeddings)",
}


@fault("app-exception")
class AppException(Fault):
    """A rank raises in mid-training; with ``illegal_access`` it is a kernel of the job's own that does."""

    fault_class: str = "code"
    """data, code or config."""
    illegal_access: bool = False
    """An illegal memory access: the driver logs Xid 31, which blames the application."""

    def strike(self, stage: Stage) -> None:
        self.check("fault_class", TEXTS)
        place, at = self.place(stage), self.begin(stage)
        error = TEXTS[self.fault_class]
        if self.illegal_access:
            error = f"RuntimeError: CUDA error: an illegal memory access was encountered\n{ADVICE}"
        text = traceback(stage, place.rank, error, ((CODE, 191, "main", "loss = step(model, next(batches))"),))
        crash(stage, at, [Death(place.rank, 0.1, 1, text)])
        if self.illegal_access:
            xid(stage, stage.act, place, at, 31)
            xid(stage, stage.act, place, at + 0.4, 43)
        self.inject(
            stage, "H2", "job", fault_class="code" if self.illegal_access else self.fault_class, since=at,
            nodes=(place.node,), ranks=(place.rank,), enough=(("logs",),), halts=True,
        )  # fmt: skip
