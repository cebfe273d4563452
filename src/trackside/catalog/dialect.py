"""What a dialect declares, and how a foreign series becomes one of ours.

:func:`translate` is asked once for each foreign series; :mod:`trackside.catalog.settling` takes its values.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from trackside.catalog.labels import Label, written
from trackside.catalog.metrics import labels_of

Guess = Literal["", "ratio", "bytes"]
"""A unit that differs between versions of a source and that no name tells. ratio: 0..1 or percent. bytes: MiB or bytes."""

Case = tuple[Mapping[str, str], str]
"""Foreign labels with the values that they must have, and the metric of ours that it is then."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """One foreign metric: ours, the factor to our unit, and labels that its name implies.

    ``cases``: where a label tells which metric it is; ``metric`` is for all other values.
    """

    metric: str
    scale: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    guess: Guess = ""
    cases: tuple[Case, ...] = ()


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names of one source. ``labels``: foreign label, in lower case and with ``_`` for ``.``, -> ours.

    Labels not listed are dropped, and those that our metric can't have. Where several foreign labels give the same of
    ours, the one listed first holds.
    """

    id: str
    title: str
    names: Mapping[str, Foreign]
    labels: Mapping[str, Label]
    unneeded: tuple[str, ...] = ()
    """Names that say nothing of a run, or that all say so begin with, ending in ``_``: left out without a word."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A foreign series in our terms: multiply its values by ``scale``; where ``guess`` is set, see
    :class:`trackside.catalog.settling.UnitBySize`."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    scale: float
    guess: Guess = ""


Rules = Mapping[str, tuple[int, Label]]
"""Foreign label -> its place in the dialect's order, and what it is."""


@cache
def dialects() -> tuple[Dialect, ...]:
    """All dialects, by id."""
    import trackside.catalog.dialects as room

    found = [
        importlib.import_module(f"{room.__name__}.{each.name}").DIALECT for each in pkgutil.iter_modules(room.__path__)
    ]
    return tuple(sorted(found, key=lambda dialect: dialect.id))


@cache
def _index() -> Mapping[str, tuple[Foreign, Rules]]:
    known: dict[str, tuple[Foreign, Rules]] = {}
    for dialect in dialects():
        rules = {theirs: (place, label) for place, (theirs, label) in enumerate(dialect.labels.items())}
        known.update({name.lower(): (foreign, rules) for name, foreign in dialect.names.items()})
    return known


def translate(name: str, labels: Mapping[str, str]) -> Translated | None:
    """Our metric and labels of a foreign series, or None for a name that nothing here asks for, whatever its labels."""
    known = _index().get(name.lower())
    if known is None:
        return None
    foreign, rules = known
    given = {label.lower().replace(".", "_"): value for label, value in labels.items()}
    metric = next((ours for wanted, ours in foreign.cases if wanted.items() <= given.items()), foreign.metric)
    allowed = labels_of(metric)
    ours = dict(foreign.labels)
    places = dict.fromkeys(ours, -1)
    for theirs, value in given.items():
        place, label = rules.get(theirs, (0, None))
        if label is None or label.name not in allowed or place > places.get(label.name, place):
            continue
        if text := written(value, label):
            ours[label.name], places[label.name] = text, place
    return Translated(metric, tuple(sorted(ours.items())), foreign.scale, foreign.guess)


def relabeled(known: Translated, labels: Mapping[str, str], rules: Mapping[str, Label], override: bool) -> Translated:
    """The same with foreign labels that ``rules`` know beside the dialect. ``override``: they hold where both give one
    of ours."""
    allowed = labels_of(known.metric)
    more = {
        rule.name: text
        for label, rule in rules.items()
        if label in labels and rule.name in allowed and (text := written(labels[label], rule))
    }
    ours = dict(known.labels) | more if override else more | dict(known.labels)
    return replace(known, labels=tuple(sorted(ours.items())))


def unneeded(name: str) -> bool:
    """Whether a name that :func:`translate` doesn't know is one that says nothing of a run."""
    exact, beginnings = _unneeded()
    asked = name.lower()
    return asked in exact or asked.startswith(beginnings)


@cache
def _unneeded() -> tuple[frozenset[str], tuple[str, ...]]:
    known = [each.lower() for dialect in dialects() for each in dialect.unneeded]
    return frozenset(known), tuple(each for each in known if each.endswith("_"))


EARLIEST_MS, LATEST_MS = 946_684_800_000, 4_102_444_800_000
"""2000 to 2100: in seconds and in milliseconds these are far apart, and no other unit comes near either."""
BLANK = float(0x7FFFFFF0)
"""What a reader puts where an input holds no value, and NaN would be one: see ``diverges`` of the catalogue."""
BLANK_RANGES = (
    (BLANK, BLANK + 3),
    (float(0xFFFFFFFF), float(0xFFFFFFFF)),
    (140737488355328.0, 140737488355331.0),
)
"""From and to which values are blank among others that are larger and smaller, in rising order: DCGM's of 32 bits,
NVML's, and DCGM's of floating point. See :func:`trackside.catalog.settling.is_blank`."""
