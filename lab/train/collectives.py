"""Writes the process' Flight Recorder when it ends badly (TORCH_FR_BUFFER_SIZE turns it on)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType, TracebackType

from torch._C import _distributed_c10d


def dump_at_failure(folder: str, rank: int) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    before = sys.excepthook

    def dump() -> None:
        trace = _distributed_c10d._dump_fr_trace()
        (Path(folder) / f"fr_trace_{rank}").write_bytes(trace)

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        dump()
        before(kind, error, trace)

    def on_term(number: int, frame: FrameType | None) -> None:
        dump()
        sys.exit(128 + number)

    sys.excepthook = on_exception
    signal.signal(signal.SIGTERM, on_term)
