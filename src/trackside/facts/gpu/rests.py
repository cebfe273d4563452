"""Transitional: :mod:`trackside.facts.gpu.pauses`, for H5 as long as it asks by itself."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Value
from trackside.facts.gpu.activity import GpuActivity
from trackside.facts.gpu.pauses import GpuPauses, PauseWork
from trackside.facts.gpu.pauses import Limits as OwnLimits
from trackside.facts.gpu.signals import stall_of
from trackside.facts.pace.stalls import Limits, Stall, meanwhile
from trackside.finding import Claim
from trackside.model import Run


@dataclass(frozen=True)
class Pause:
    """The longest rest between two times of work."""

    stall: Stall
    shows: tuple[Claim, ...]
    gpus: tuple[str, ...]


def _pauses(evidence: Evidence, run: Run, seen: GpuActivity) -> GpuPauses:
    return GpuPauses(seen, stall_of(evidence, run, seen), OwnLimits())


def during(evidence: Evidence, run: Run, seen: GpuActivity, since: float, until: float) -> PauseWork | None:
    """:meth:`GpuPauses.during`."""
    return _pauses(evidence, run, seen).during(since, until)


def longest(evidence: Evidence, run: Run, seen: GpuActivity, limits: Limits) -> Pause | None:
    """The longest rest, where it is a stall: long, longer than any other by far, and after as much work."""
    rest = _pauses(evidence, run, seen).longest
    if rest is None:
        return None
    storage, blocked = (meanwhile(evidence, run, name, rest.since, rest.until, limits) for name in ("storage", "tasks"))
    length = rest.length.number
    least = limits.caused_s if storage else limits.least_s
    if length < least or length < limits.again * rest.next_s or rest.worked_s < min(length, limits.least_s):
        return None
    return Pause(Stall(rest.since, rest.until, rest.length, storage, blocked), rest.claims, rest.gpus)


def most(evidence: Evidence, run: Run, seen: GpuActivity) -> Value | None:
    """:attr:`GpuPauses.longest_s`."""
    return _pauses(evidence, run, seen).longest_s
