"""The interface of dialects, and the translation of foreign series into Trackside's.

:func:`translate` is called once per foreign series; :mod:`trackside.catalog.settling` converts its values.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from trackside.catalog.labels import Label, normalize
from trackside.catalog.metrics import labels_of

Guess = Literal["", "ratio", "bytes"]
"""A unit that differs between versions of a source under the same name. ratio: 0..1 or percent. bytes: MiB or bytes."""

Case = tuple[Mapping[str, str], str]
"""Foreign labels with required values, and the metric that the series then maps to."""


@dataclass(frozen=True, slots=True)
class ForeignMetric:
    """What a foreign metric maps to: Trackside's metric, the factor to its unit, and labels that the foreign name implies.

    ``cases``: for metrics that depend on a label's value; ``metric`` is used for all other values.
    """

    metric: str
    scale: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    guess: Guess = ""
    cases: tuple[Case, ...] = ()


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names of one source. ``labels``: foreign label (lower case, ``_`` for ``.``) -> Trackside's label.

    Other labels are dropped, as are labels that the metric cannot have. If several foreign labels map to the same label,
    the one listed first is used.
    """

    id: str
    title: str
    names: Mapping[str, ForeignMetric]
    labels: Mapping[str, Label]
    unneeded: tuple[str, ...] = ()
    """Names, or prefixes ending in ``_``, of metrics irrelevant to a run; dropped without a note."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A foreign series translated: multiply its values by ``scale``. If ``guess`` is set, see
    :class:`trackside.catalog.settling.UnitBySize`."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    scale: float
    guess: Guess = ""


Rules = Mapping[str, tuple[int, Label]]
"""Foreign label -> (priority in the dialect's order, label)."""


@cache
def dialects() -> tuple[Dialect, ...]:
    """All dialects, sorted by id."""
    import trackside.catalog.dialects as package

    loaded = [
        importlib.import_module(f"{package.__name__}.{module.name}").DIALECT
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return tuple(sorted(loaded, key=lambda dialect: dialect.id))


@cache
def _index() -> Mapping[str, tuple[ForeignMetric, Rules]]:
    by_name: dict[str, tuple[ForeignMetric, Rules]] = {}
    for dialect in dialects():
        rules = {
            foreign_label: (priority, label) for priority, (foreign_label, label) in enumerate(dialect.labels.items())
        }
        by_name.update({name.lower(): (foreign, rules) for name, foreign in dialect.names.items()})
    return by_name


def translate(name: str, labels: Mapping[str, str]) -> Translation | None:
    """The metric and labels of a foreign series; None for an unknown name."""
    entry = _index().get(name.lower())
    if entry is None:
        return None
    foreign, rules = entry
    foreign_labels = {label.lower().replace(".", "_"): value for label, value in labels.items()}
    metric = next(
        (translated for required, translated in foreign.cases if required.items() <= foreign_labels.items()),
        foreign.metric,
    )
    allowed = labels_of(metric)
    translated = dict(foreign.labels)
    priorities = dict.fromkeys(translated, -1)
    for foreign_label, value in foreign_labels.items():
        priority, label = rules.get(foreign_label, (0, None))
        if label is None or label.name not in allowed or priority > priorities.get(label.name, priority):
            continue
        if text := normalize(value, label):
            translated[label.name], priorities[label.name] = text, priority
    return Translation(metric, tuple(sorted(translated.items())), foreign.scale, foreign.guess)


def with_further_labels(
    translation: Translation, labels: Mapping[str, str], rules: Mapping[str, Label], override: bool
) -> Translation:
    """The translation with further foreign labels, by ``rules``. ``override``: these replace labels that are set."""
    allowed = labels_of(translation.metric)
    extra = {
        rule.name: text
        for label, rule in rules.items()
        if label in labels and rule.name in allowed and (text := normalize(labels[label], rule))
    }
    merged = dict(translation.labels) | extra if override else extra | dict(translation.labels)
    return replace(translation, labels=tuple(sorted(merged.items())))


def is_unneeded(name: str) -> bool:
    """Whether a name that :func:`translate` doesn't know is irrelevant to a run."""
    exact, prefixes = _unneeded_names()
    lower_name = name.lower()
    return lower_name in exact or lower_name.startswith(prefixes)


@cache
def _unneeded_names() -> tuple[frozenset[str], tuple[str, ...]]:
    names = [name.lower() for dialect in dialects() for name in dialect.unneeded]
    return frozenset(names), tuple(name for name in names if name.endswith("_"))


EARLIEST_MS, LATEST_MS = 946_684_800_000, 4_102_444_800_000
"""2000 to 2100. The ranges in seconds and milliseconds are far apart, and no other unit is near either."""
BLANK = float(0x7FFFFFF0)
"""Marks a missing value where NaN would be a measurement: see ``diverges`` in the catalog of metrics."""
BLANK_RANGES = (
    (BLANK, BLANK + 3),
    (float(0xFFFFFFFF), float(0xFFFFFFFF)),
    (140737488355328.0, 140737488355331.0),
)
"""Ranges (first, last) of values that mean blank, in ascending order: DCGM's 32-bit, NVML's, and DCGM's floating-point
blanks. See :func:`trackside.catalog.settling.is_blank`."""
