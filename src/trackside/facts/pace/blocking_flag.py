"""Whether the log shows CUDA_LAUNCH_BLOCKING in force, the flag by which every kernel launch waits for its kernel.

Advice about the flag in an error text is not the flag.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Value
from trackside.facts.fact import fact
from trackside.model import Event
from trackside.query import events


@dataclass(frozen=True)
class BlockingFlag:
    """The line that shows it; None if there is none."""

    row: Event | None
    line: Value | None


@fact({"flags": events("env_flag")})
def blocking_flag(evidence: Evidence) -> BlockingFlag:
    """Of flags that were printed; nothing is needed."""
    flags = evidence["flags"]
    for row in flags.events:
        if row.get("name") == "CUDA_LAUNCH_BLOCKING" and str(row.get("value")).strip("'\" ") == "1":
            return BlockingFlag(row, flags.value(row, "text"))
    return BlockingFlag(None, None)
