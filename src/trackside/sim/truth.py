"""The truth about a simulated run: written next to the run, never into it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault as it happened. Codes are those of the failure families."""

    kind: str
    family: str
    culprit: str
    variant: str | None = None
    fault_class: str | None = None
    since: float | None = None
    until: float | None = None
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    """As ``node:index``."""
    ranks: tuple[int, ...] = ()
    cascade: tuple[str, ...] = ()
    """Families that it causes."""
    sufficient_planes: tuple[tuple[str, ...], ...] = ()
    """Sets of planes, each of which is sufficient to show the fault. For the gpu plane, ``full`` and ``profiling``
    mean fields that exporters do not serve by default; for logs, ``progress`` means a training loop that prints."""
    latent: bool = False
    """Whether it is present, but not a cause of how this run went."""
    halts: bool = False
    """Whether it ended the run."""
    primary: bool = False
    """Whether the scenario marks it as the cause, among several faults."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth about one simulated run: what a verdict should say."""

    scenario: str
    seed: int
    job: str
    family: str
    variant: str | None
    fault_class: str | None
    culprit: str
    disposition: str
    start: float
    end: float
    since: float | None
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    ranks: tuple[int, ...]
    cascade: tuple[str, ...]
    latent: tuple[InjectedFault, ...]
    injected: tuple[InjectedFault, ...]
    planes: tuple[str, ...]
    sufficient_planes: tuple[tuple[str, ...], ...]
    enough_evidence: bool
    """Whether the planes that were written contain one of ``sufficient_planes``."""
    steps: int
    n_ranks: int

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(_plain(dataclasses.asdict(self)), indent=1).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value


def primary_of(injected: list[InjectedFault]) -> InjectedFault | None:
    """The cause among the injected faults: the one marked as such, else the one that ended the run, else the first
    that is not latent."""
    active = [fault for fault in injected if not fault.latent]
    for attribute in ("primary", "halts"):
        for fault in active:
            if getattr(fault, attribute):
                return fault
    return active[0] if active else None
