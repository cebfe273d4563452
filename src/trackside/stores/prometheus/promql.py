"""PromQL that every Prometheus-compatible server understands: selectors, and rollups over exact windows.

Windows are ``(t - step, t]``. If a server's windows include their start (Prometheus 2 and its derivatives), they are
requested one millisecond shorter. ``rate`` and ``increase`` are never used, because engines extrapolate differently;
nor is a selector without a window, which would look back five minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from trackside.catalog.streams import host_of
from trackside.stores.batches import batches
from trackside.stores.metric_backend import EngineRollup

MAX_REGEX_CHARS = 6_000
"""Longest regular expression in characters: VictoriaMetrics accepts queries of 16 KiB."""
PROBE = "count_over_time(vector(1)[1m:1m])"
"""At any whole minute this is 2 if windows include their start, else 1. It needs no data, and no knowledge of
versions."""
PROBE_METRICSQL = "count_le_over_time(vector(1)[1m:1m], 1)"
"""Succeeds only on servers that speak MetricsQL, such as VictoriaMetrics: others do not know the function."""
_FUNCTIONS: dict[EngineRollup, str] = {
    "avg": "avg_over_time(",
    "min": "min_over_time(",
    "max": "max_over_time(",
    "sum": "sum_over_time(",
    "count": "count_over_time(",
    "last": "last_over_time(",
}
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def matcher(label: str, operator: str, value: str, metricsql: bool = False) -> str:
    """One condition of a selector; ``operator`` is ``=``, ``!=``, ``=~`` or ``!~``.

    Labels with other characters than letters, digits and ``_`` are quoted, as in Prometheus 3; with ``metricsql`` these
    characters are escaped by backslashes.
    """
    if _LABEL.fullmatch(label):
        written = label
    elif metricsql:
        written = re.sub(r"^[0-9]|[^a-zA-Z0-9_]", lambda match: "\\" + match[0], label)
    else:
        written = _quoted(label)
    return f"{written}{operator}{_quoted(value)}"


def selector(name: str, matchers: Iterable[str] = ()) -> str:
    """A selector for the series of one name, or of any name if it is empty."""
    plain = _NAME.fullmatch(name) is not None
    conditions = [*([] if plain or not name else [matcher("__name__", "=", name)]), *matchers]
    return f"{name if plain else ''}{{{','.join(conditions)}}}" if conditions or not plain else name


def one_of(values: Iterable[str]) -> Iterator[str]:
    """Regular expressions that together match exactly these values, each of bounded length."""
    return _alternatives([_literal(value) for value in sorted(set(values))])


def hosts(nodes: Iterable[str]) -> Iterator[str]:
    """Regular expressions for these hosts in all notations of exporters: with a domain, a port, a scheme."""
    short = {host_of(node) for node in nodes if node}
    for names in _alternatives([_literal(name) for name in sorted(short)]):
        yield rf"(?i:([a-z]+://)?({names})([.:/].*)?)"


def jobs(ids: Iterable[str]) -> Iterator[str]:
    """Regular expressions for these jobs, with or without a step's number."""
    for names in _alternatives([_literal(id_) for id_ in sorted(set(filter(None, ids)))]):
        yield rf"({names})([.].*)?"


def duration(length_ms: int) -> str:
    """A length in PromQL notation."""
    return f"{length_ms}ms" if length_ms % 1000 else f"{length_ms // 1000}s"


def window(selector: str, length_ms: int, is_closed: bool) -> str:
    """The samples in ``(t - length, t]``; ``is_closed``: whether the server's windows include their start."""
    return f"{selector}[{duration(max(1, length_ms - is_closed))}]"


def rollup(rollup: EngineRollup, selector: str, step_ms: int, is_closed: bool) -> str:
    """One value for each series that a selector matches, and each window."""
    return f"{_FUNCTIONS[rollup]}{window(selector, step_ms, is_closed)})"


def extremes(rollups: Iterable[str], selector: str, length_ms: int) -> str:
    """Several rollups of each series at once, distinguished by the label ``rollup``. VictoriaMetrics only."""
    names = ", ".join(f'"{rollup}_over_time"' for rollup in rollups)
    return f"aggr_over_time(({names}), {window(selector, length_ms, is_closed=False)})"


def between(samples: str, first: float, last: float) -> str:
    """How many samples of a window are whole numbers from first to last. VictoriaMetrics only."""
    return f"count_le_over_time({samples}, {last + 0.5:.1f}) - count_le_over_time({samples}, {first - 0.5:.1f})"


def _alternatives(words: Sequence[str]) -> Iterator[str]:
    return map("|".join, batches(words, lambda word: len(word) + 1, MAX_REGEX_CHARS))


def _literal(text: str) -> str:
    """A regular expression that matches only this text."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
