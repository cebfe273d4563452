"""Whether something other than its pace ended a run: a failure, or a standstill that lasts to its end.

A run that reached its time limit may well have needed more time because it was slow.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.stall import GpuStall
from trackside.facts.logs.ending import Ending

AT_LIMIT = ("TIMEOUT", "DEADLINE")
"""States of runs that reached their time limit."""


@dataclass(frozen=True)
class OtherEnd:
    """What ended the run, if not its pace."""

    failed: bool
    """It ended badly, and not at its time limit."""
    hung: bool
    """Its GPUs stood still to the end, and it did not complete."""


@fact()
def other_end(ending: Ending, stall: Maybe[GpuStall]) -> OtherEnd:
    """Of the scheduler's and the launcher's word, and of the GPUs."""
    limited = ending.state is not None and ending.state.value in AT_LIMIT
    still = stall.at_end() if isinstance(stall, GpuStall) else None
    hung = still is not None and still.sure and ending.completed is None
    return OtherEnd(ending.abnormal is not None and not limited, hung)
