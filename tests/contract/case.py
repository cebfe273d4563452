"""The text format of a case: data to load, queries, expected answers; reading it, and writing answers in it.

    # What the case is about.
    run 4242 on n1,n2 from 0 to 600

    load dcgm.prom
      DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n1"} every 15 from 15: 10 20 30x3 _x2 40+5x3 NaN
      DCGM_FI_DEV_GPU_UTIL{gpu="1",Hostname="n1"} 15:10 30.5:20

    ask metric(gpu_utilization_ratio).during(0, 60).rollup(60, 'avg')
    expect
      gpu node |  60
      0   n1   | 0.2

    ask metric(gpu_utilization_ratio).during(0, 60).rollup(60, 'avg').max()
    expect 0.2

    ask metric(gpu_power_watts).over('run', 'avg')
    missing was not measured

Times are seconds after 2026-03-02T08:00:00Z. ``run`` gives the scheduler's record; without it there are only metrics.
A value is a number, ``_`` for a failed scrape, or as in promtool ``AxN`` for N times A, ``A+BxN`` and ``A-BxN`` for A
and N further steps of B. A table has the labels of each series left of the bar (``-``: no label) and the windows by
their ends right of it (``-``: no samples).

For stores that several clusters share:

    match cluster="a"                             added to every query
    relabel Hostname to machine, which is node    the site's name of a label, and what its configuration maps it to
    unrelated                                     other samples in the store, which no answer may include
    except victoria-metrics: it keeps no NaN      a store that cannot hold such samples and gives another answer
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trackside.evidence import Grid, MissingAnswer
from trackside.model import Run, Scalar
from trackside.query import Query

T0 = 1_772_438_400
"""2026-03-02T08:00:00Z"""
TOLERANCE = 1e-9
"""Relative. Engines sum in different orders."""
NEAR_ZERO = 1e-12
_SERIES = re.compile(r"""[\w:]+(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?""")
_REGULAR = re.compile(r"\s+every ([\d.]+) from (-?[\d.]+):\s*(.*)")
_RUN = re.compile(r"run(?: (\S+))?(?: on (\S+))?(?: from (-?[\d.]+))?(?: to (-?[\d.]+))?(?: gpus (\d+))?")
_RELABEL = re.compile(r"relabel (\w+) to (\w+), which is (\w+)")
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_STEPS = re.compile(rf"(_|-?(?:{_NUMBER}|NaN|Inf))([+-]{_NUMBER})?x(\d+)")

Samples = Mapping[str, Sequence[tuple[int, str]]]
"""Series as text -> (milliseconds since 1970, value as text)"""
Row = tuple[tuple[tuple[str, str], ...], tuple[float, ...]]
"""Labels of one series, and its values."""


@dataclass(frozen=True, slots=True)
class Table:
    """A grid as written in a case. ``times``: ends of the windows."""

    times: tuple[float, ...]
    rows: tuple[Row, ...]


Answer = Table | Scalar | str
"""A grid, a value, or the reason why there is none."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One query with its answer, which is in lines ``begin`` to ``end`` of the case."""

    query: Query
    expected: Answer
    begin: int
    end: int


@dataclass(slots=True)
class Case:
    """One file of ``cases``."""

    path: Path
    lines: list[str]
    run: Run = field(default_factory=Run)
    files: dict[str, dict[str, list[tuple[int, str]]]] = field(default_factory=dict)
    """File name -> samples."""
    unrelated: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    match: str = ""
    relabel: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The exporter's name of a label -> (the site's name, Trackside's name)."""
    excepted: dict[str, str] = field(default_factory=dict)
    """Store -> why it gives another answer."""
    asks: list[Ask] = field(default_factory=list)

    def expecting(self, answers: Sequence[Answer]) -> str:
        """The text of the case with other answers."""
        lines = list(self.lines)
        for ask, answer in reversed(list(zip(self.asks, answers, strict=True))):
            if not (isinstance(answer, str) and same(ask.expected, answer)):  # a case gives a part of a reason
                separator = [""] if ask.end < len(lines) and lines[ask.end] else []
                lines[ask.begin : ask.end] = [*answer_lines(answer), *separator]
        return "\n".join(lines) + "\n"


def read(path: Path) -> Case:
    """Read a case; ValueError with the line if it is malformed."""
    case = Case(path, path.read_text("utf-8").splitlines())
    index = 0
    while index < len(case.lines):
        try:
            index = _read_at(case, index)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path.name}, line {index + 1}: {case.lines[index]!r}: {error}") from error
    if not case.asks:
        raise ValueError(f"{path.name} asks nothing")
    return case


def _read_at(case: Case, index: int) -> int:
    """Read the statement at a line; returns the index of the line after it."""
    line = case.lines[index]
    end = next((n for n in range(index + 1, len(case.lines)) if not case.lines[n].startswith(" ")), len(case.lines))
    body = case.lines[index + 1 : end]
    keyword, _, argument = line.partition(" ")
    if not line.strip() or line.startswith("#"):
        return index + 1
    if keyword == "run":
        case.run = _run(line)
    elif keyword == "load":
        _load(case.files.setdefault(argument, {}), body)
    elif keyword == "unrelated":
        _load(case.unrelated, body)
    elif keyword == "match":
        case.match = argument
    elif keyword == "except":
        store, _, reason = argument.partition(": ")
        case.excepted[store] = reason
    elif keyword == "relabel" and (match := _RELABEL.fullmatch(line)):
        case.relabel[match[1]] = match[2], match[3]
    elif keyword == "ask":
        begin = index + 1
        end = next((n for n in range(begin + 1, len(case.lines)) if not case.lines[n].startswith(" ")), len(case.lines))
        expected = _expected("".join(case.lines[begin : begin + 1]), case.lines[begin + 1 : end])
        case.asks.append(Ask(_shifted(Query.parse(argument)), expected, begin, end))
    else:
        raise ValueError("expected run, load, unrelated, match, relabel, except or ask")
    return end


def _run(line: str) -> Run:
    match = _RUN.fullmatch(line)
    if match is None:
        raise ValueError("expected run ID on NODES from TIME to TIME gpus COUNT")
    id_, nodes, start, end, gpus = match.groups()
    return Run(
        id=id_,
        nodes=tuple(nodes.split(",")) if nodes else (),
        start=T0 + float(start) if start else None,
        end=T0 + float(end) if end else None,
        n_gpus=int(gpus) if gpus else None,
    )


def _load(into: dict[str, list[tuple[int, str]]], body: Sequence[str]) -> None:
    for line in body:
        match = _SERIES.match(line.strip())
        if match is None:
            raise ValueError(f"no series in {line!r}")
        into.setdefault(match[0], []).extend(_points(line.strip()[match.end() :]))


def _points(text: str) -> Iterator[tuple[int, str]]:
    regular = _REGULAR.fullmatch(text)
    if regular is None:
        for word in text.split():
            time_text, _, value = word.partition(":")
            yield _milliseconds(float(time_text)), value
        return
    step, time = float(regular[1]), float(regular[2])
    for value in (value for word in regular[3].split() for value in _values(word)):
        if value != "_":
            yield _milliseconds(time), value
        time += step


def _milliseconds(time: float) -> int:
    return T0 * 1000 + round(time * 1000)


def _values(word: str) -> list[str]:
    match = _STEPS.fullmatch(word)
    if match is None:
        return [word]
    first, step, count = match[1], match[2], int(match[3])
    if step is None:
        return [first] * count
    return [repr(round(float(first) + n * float(step), 9)) for n in range(count + 1)]


def _shifted(query: Query) -> Query:
    """The query with its times converted from seconds after T0."""
    if query.window is None:
        return query
    return replace(query, window=(T0 + query.window[0], T0 + query.window[1]))


# -- answers


def _expected(line: str, body: Sequence[str]) -> Answer:
    keyword, _, argument = line.partition(" ")
    if keyword == "missing":
        return argument
    if keyword != "expect":
        raise ValueError("after ask comes expect or missing")
    if not body:
        return _scalar(argument)
    (names, times), *rows = [
        (left.split(), right.split()) for left, _, right in (row_text.partition("|") for row_text in body)
    ]
    return Table(
        tuple(float(time) for time in times),
        tuple(
            (tuple((name, label) for name, label in zip(names, labels, strict=True) if label != "-"),
             tuple(math.nan if value == "-" else float(value) for value in values))
            for labels, values in rows
        ),
    )  # fmt: skip


def _scalar(text: str) -> Scalar:
    if text == "nothing":
        return None
    try:
        return int(text)
    except ValueError:
        return float(text)


def to_answer(answer: Grid | MissingAnswer) -> Answer:
    """The answer of a store in the form of a case."""
    if isinstance(answer, MissingAnswer):
        return answer.reason
    rows = (
        (series.labels, tuple(values.tolist())) for series, values in zip(answer.series, answer.values, strict=True)
    )
    return Table(tuple(round(time - T0, 3) for time in answer.times.tolist()), tuple(rows))


def answer_lines(answer: Answer) -> list[str]:
    """The lines of a case for an answer."""
    if isinstance(answer, str):
        return [f"missing {answer}"]
    if not isinstance(answer, Table):
        return [f"expect {'nothing' if answer is None else _number(answer)}"]
    names = sorted({name for labels, _ in answer.rows for name, _ in labels})
    cells = [[*names, "|", *(f"{time:.12g}" for time in answer.times)]]
    for labels, values in answer.rows:
        label_values = dict(labels)
        cells.append([*(label_values.get(name) or "-" for name in names), "|", *map(_number, values)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = len(names) + 1
    return ["expect"] + [
        "  " + " ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]  # fmt: skip


def _number(value: Scalar) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.15g}"
    return str(value)


def same(expected: Answer, actual: Answer) -> bool:
    """Whether two answers agree: numbers within the tolerance; a reason if it contains the text of the case."""
    if isinstance(expected, str) or isinstance(actual, str):
        return isinstance(expected, str) and isinstance(actual, str) and expected in actual
    if isinstance(expected, Table) and isinstance(actual, Table):
        return (
            expected.times == actual.times
            and len(expected.rows) == len(actual.rows)
            and all(map(_same_row, expected.rows, actual.rows))
        )
    return not isinstance(expected, Table) and not isinstance(actual, Table) and _close(expected, actual)


def _same_row(expected: Row, actual: Row) -> bool:
    return expected[0] == actual[0] and all(map(_close, expected[1], actual[1]))


def _close(expected: Scalar, actual: Scalar) -> bool:
    if expected is None or actual is None or isinstance(expected, str) or isinstance(actual, str):
        return expected == actual
    if math.isnan(expected) or math.isnan(actual):
        return math.isnan(expected) and math.isnan(actual)
    return math.isclose(expected, actual, rel_tol=TOLERANCE, abs_tol=NEAR_ZERO)


def difference(store: str, ask: Ask, actual: Answer) -> str:
    """The message if a store gives another answer: a diff of lines and of cells."""
    expected_lines, actual_lines = answer_lines(ask.expected), answer_lines(actual)
    lines = [f"the {store} store answers {ask.query} (times from {T0}):"]
    if len(expected_lines) != len(actual_lines):
        return "\n".join(
            [*lines, *(f"  - {line}" for line in expected_lines), *(f"  + {line}" for line in actual_lines)]
        )
    for expected_line, actual_line in zip(expected_lines, actual_lines, strict=True):
        lines += (
            [f"    {expected_line}"] if expected_line == actual_line else [f"  - {expected_line}", f"  + {actual_line}"]
        )
    if isinstance(ask.expected, Table) and isinstance(actual, Table) and ask.expected.times == actual.times:
        lines += _off(ask.expected, actual)
    return "\n".join(lines)


def _off(expected: Table, actual: Table) -> Iterator[str]:
    """One line for each cell that differs, with its series and time."""
    for (labels, before), (_, now) in zip(expected.rows, actual.rows, strict=False):
        name = " ".join(f"{key}={value}" for key, value in labels)
        for time, a, b in zip(expected.times, before, now, strict=False):
            if not _close(a, b):
                yield f"  {name} at {time:g}: wanted {_number(a)}, got {_number(b)}"
