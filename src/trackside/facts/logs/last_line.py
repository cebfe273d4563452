"""The last line of the log, whatever it says."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Value
from trackside.facts.fact import fact
from trackside.query import events


@dataclass(frozen=True)
class LastLine:
    """The last line of the log that was read last; None if none was."""

    line: Value | None


@fact({"logs": events("log_activity")})
def last_line(evidence: Evidence) -> LastLine:
    """Of the logs that were read; nothing is needed."""
    logs = evidence["logs"]
    return LastLine(logs.value(logs.events[-1], "last_line") if logs.events else None)
