"""What was put in: written beside the run, never into it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Injected:
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
    """Families that it brings about."""
    enough: tuple[tuple[str, ...], ...] = ()
    """Sets of planes, each of which shows it by itself. Of the gpu plane, ``full`` and ``profiling`` stand for fields
    that exporters don't serve by default; of logs, ``progress`` for a training loop that prints."""
    latent: bool = False
    """There, but no cause of how this run went."""
    halts: bool = False
    """It ended the run."""
    primary: bool = False
    """The scenario says that this is the cause, among several."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The answer sheet of one simulated run."""

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
    latent: tuple[Injected, ...]
    injected: tuple[Injected, ...]
    planes: tuple[str, ...]
    enough: tuple[tuple[str, ...], ...]
    enough_evidence: bool
    """Whether the planes that were written hold one of ``enough``."""
    steps: int
    n_ranks: int

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(_plain(dataclasses.asdict(self)), indent=1).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


def primary_of(injected: list[Injected]) -> Injected | None:
    """The cause among what was put in: as marked, else what ended the run, else the first that isn't latent."""
    real = [one for one in injected if not one.latent]
    for wanted in ("primary", "halts"):
        for one in real:
            if getattr(one, wanted):
                return one
    return real[0] if real else None
