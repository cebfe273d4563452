"""PromQL as every Prometheus-compatible server understands it: selectors, and rollups over exact windows.

Windows are ``(t - step, t]``. Where a server's windows hold their beginning as well (Prometheus 2 and what is built on
it), they are asked for a millisecond shorter. ``rate`` and ``increase`` are never sent, as engines extrapolate
differently; nor is a selector without a window, which would look back by five minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from trackside.stores.bunches import bunches
from trackside.stores.curves import Engine

MOST_REGEX = 6_000
"""Characters of one regular expression: VictoriaMetrics takes queries of 16 KiB."""
PROBE = "count_over_time(vector(1)[1m:1m])"
"""What tells at any whole minute whether windows hold their beginning: it is 2 where they do, else 1. It needs no data,
and no knowledge of versions."""
PROBE_METRICSQL = "count_le_over_time(vector(1)[1m:1m], 1)"
"""What tells whether a server speaks MetricsQL, as VictoriaMetrics does: others know no such function."""
_FUNCTIONS: dict[Engine, str] = {
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

    Labels with other characters than letters, digits and ``_`` stand in quotes, as in Prometheus 3; ``metricsql``:
    behind backslashes.
    """
    if _LABEL.fullmatch(label):
        written = label
    elif metricsql:
        written = re.sub(r"^[0-9]|[^a-zA-Z0-9_]", lambda found: "\\" + found[0], label)
    else:
        written = _quoted(label)
    return f"{written}{operator}{_quoted(value)}"


def selector(name: str, matchers: Iterable[str] = ()) -> str:
    """The series of one name, or of any where it is empty."""
    plain = _NAME.fullmatch(name) is not None
    inside = [*([] if plain or not name else [matcher("__name__", "=", name)]), *matchers]
    return f"{name if plain else ''}{{{','.join(inside)}}}" if inside or not plain else name


def one_of(values: Iterable[str]) -> Iterator[str]:
    """Regular expressions that together match these values and no others, each of bounded length."""
    return _alternatives([_literal(value) for value in sorted(set(values))])


def hosts(nodes: Iterable[str]) -> Iterator[str]:
    """Regular expressions for these machines however exporters write them: with a domain, a port, a scheme."""
    short = {node if re.fullmatch(r"[0-9.]+", node) else node.partition(".")[0].lower() for node in nodes if node}
    for names in _alternatives([_literal(name) for name in sorted(short)]):
        yield rf"(?i:([a-z]+://)?({names})([.:/].*)?)"


def jobs(ids: Iterable[str]) -> Iterator[str]:
    """Regular expressions for these jobs, a step's number behind them or not."""
    for names in _alternatives([_literal(id_) for id_ in sorted(set(filter(None, ids)))]):
        yield rf"({names})([.].*)?"


def duration(length_ms: int) -> str:
    """A length as PromQL writes it."""
    return f"{length_ms}ms" if length_ms % 1000 else f"{length_ms // 1000}s"


def window(chosen: str, length_ms: int, closed: bool) -> str:
    """The samples in ``(t - length, t]``; ``closed``: whether the server's windows hold their beginning."""
    return f"{chosen}[{duration(max(1, length_ms - closed))}]"


def rollup(how: Engine, chosen: str, step_ms: int, closed: bool) -> str:
    """One value for each series that a selector chooses and each window."""
    return f"{_FUNCTIONS[how]}{window(chosen, step_ms, closed)})"


def extremes(hows: Iterable[str], chosen: str, length_ms: int) -> str:
    """Several rollups of each series at once, told apart by the label ``rollup``. VictoriaMetrics only."""
    names = ", ".join(f'"{how}_over_time"' for how in hows)
    return f"aggr_over_time(({names}), {window(chosen, length_ms, closed=False)})"


def between(samples: str, first: float, last: float) -> str:
    """How many samples of a window are whole numbers from first to last. VictoriaMetrics only."""
    return f"count_le_over_time({samples}, {last + 0.5:.1f}) - count_le_over_time({samples}, {first - 0.5:.1f})"


def _alternatives(words: Sequence[str]) -> Iterator[str]:
    return map("|".join, bunches(words, lambda word: len(word) + 1, MOST_REGEX))


def _literal(text: str) -> str:
    """A text as a regular expression that matches it alone."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
