"""Failures of ranks to find each other at start-up, after which no process group came up.

Of several, the one whose reason says most is told: a final one, or a retried one if the final ones only say that the
time was over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame
from trackside.facts.fact import fact
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.order import followed_by
from trackside.facts.logs.silence import Silence
from trackside.model import Event, Role
from trackside.query import events

REASONS = (
    "duplicate_rank",
    "duplicate_gpu",
    "interface",
    "port_in_use",
    "dns",
    "refused",
    "unreachable",
    "bootstrap",
    "timeout",
    "closed",
)
"""The most telling first."""
VAGUE = ("timeout", "closed", "bootstrap", "unreachable")
"""Reasons that say little by themselves."""
LIBRARY = re.compile(r"NCCL error|HCCL error|function error: Hccl")
"""The library giving up: before any group was formed that is its start-up, too."""


@dataclass(frozen=True, eq=False)
class RendezvousFailures:
    """What failed while the ranks were to meet."""

    frame: Frame
    rows: tuple[Event, ...]
    """Those that can be a cause, and after which no group was formed."""
    raised: tuple[Event, ...]
    """Exceptions of the start-up, likewise."""

    @property
    def final(self) -> tuple[Event, ...]:
        """Those that were not tried again."""
        return tuple(row for row in self.rows if row.get("retry") is not True)

    @cached_property
    def telling(self) -> Event:
        """The row whose reason says most."""
        best = min(self.final or self.rows, key=_rank)
        if not self.final or str(best.get("reason")) in VAGUE:
            host = str(best.get("address") or "").rsplit(":", 1)[0]
            same = [row for row in self.rows if not host or host in str(row.get("address") or host)]
            best = min([*same, best], key=_rank)
        return best


@fact({"failures": events("rendezvous_failure")}, needs=("failures",))
def rendezvous_failures(evidence: Evidence, exceptions: Exceptions, silence: Silence) -> RendezvousFailures:
    """Of the log's lines; missing if no log was given."""
    frame, up = evidence["failures"], silence.formed
    rows = [row for row in frame.events if row.role is Role.ROOT and followed_by(row, up) is None]
    own = [row for row in exceptions.frame.events if _of_startup(row) and followed_by(row, up) is None]
    return RendezvousFailures(frame, tuple(rows), tuple(own))


def _rank(row: Event) -> int:
    reason = str(row.get("reason"))
    return REASONS.index(reason) if reason in REASONS else len(REASONS)


def _of_startup(row: Event) -> bool:
    """A rendezvous that failed, or the library giving up."""
    library = row.get("about") == "collective" and LIBRARY.search(str(row.get("message") or "")) is not None
    return row.role is Role.ROOT and (row.get("about") == "rendezvous" or library)
