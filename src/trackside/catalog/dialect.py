"""What a dialect declares, and how a foreign series becomes one of ours."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

Guess = Literal["", "ratio", "bytes"]
"""A unit that differs between versions of a source and that no name tells. ratio: 0..1 or percent. bytes: MiB or bytes."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """One foreign metric: ours, the factor to our unit, and labels that its name implies."""

    metric: str
    scale: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    guess: Guess = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names of one source. ``labels``: foreign label -> ours; labels not listed are dropped."""

    id: str
    title: str
    names: Mapping[str, Foreign]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Translated:
    """A foreign series in our terms: multiply its values by ``scale``; where ``guess`` is set, see :func:`scale_of`."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    scale: float
    guess: Guess = ""


@cache
def dialects() -> tuple[Dialect, ...]:
    """All dialects, by id."""
    import trackside.catalog.dialects as room

    found = [
        importlib.import_module(f"{room.__name__}.{each.name}").DIALECT for each in pkgutil.iter_modules(room.__path__)
    ]
    return tuple(sorted(found, key=lambda dialect: dialect.id))


@cache
def _index() -> Mapping[str, tuple[Dialect, Foreign]]:
    return {name.lower(): (dialect, known) for dialect in dialects() for name, known in dialect.names.items()}


def translate(name: str, labels: Mapping[str, str]) -> Translated | None:
    """Our metric and labels of a foreign series, or None for one that nothing here asks for."""
    known = _index().get(name.lower())
    if known is None:
        return None
    dialect, foreign = known
    ours = {dialect.labels[label]: value for label, value in labels.items() if label in dialect.labels and value}
    ours.update(foreign.labels)
    return Translated(foreign.metric, tuple(sorted(ours.items())), foreign.scale, foreign.guess)


def scale_of(guess: Guess, peak: float) -> float:
    """The factor for a unit that is told by size only: the largest value that a source gives for a metric."""
    if guess == "ratio":
        return 0.01 if peak > 1.5 else 1.0
    if guess == "bytes":
        return 1.0 if peak > 1e7 else float(1 << 20)
    return 1.0
