"""A reading as text, for the goldens of the agent's sources.

Give a test the fixture ``rewrite`` (``pytest --rewrite`` renews the goldens) and call::

    assert_golden(folder / "expected.txt", exposition(reading), rewrite)
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trackside.agent.node import LocalNode
from trackside.agent.owners import Owners
from trackside.agent.source import AgentSource, Collector, Context, LogLine, Reading, Sample
from trackside.catalog.metrics import METRICS, labels_of

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposition(reading: Reading) -> str:
    """Samples in Prometheus' text format, sorted by metric and labels; then the reading's lines, losses and warnings.

    Lines look like ``# line 2026-03-02T08:00:00.000000000Z {unit="kernel"} text``, losses like ``# lost lines 3`` and
    warnings like ``# warning text``.
    """
    parts = [
        _sample(sample) for sample in sorted(reading.samples, key=lambda sample: (sample.metric, _sortable(sample)))
    ]
    parts += [_line(line) for line in reading.lines]
    parts += [f"# lost {kind} {count}" for kind, count in sorted(reading.lost.items())]
    parts += [f"# warning {text}" for text in reading.warnings]
    return "".join(f"{part}\n" for part in parts)


def assert_golden(golden: Path, text: str, rewrite: bool) -> None:
    """Compare a text with a golden file. With ``rewrite``, write the file first: then read the diff."""
    if rewrite:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, "utf-8")
    assert golden.is_file(), f"{golden} is missing: pytest --rewrite writes it"
    assert text == golden.read_text("utf-8"), f"differs from {golden}: pytest --rewrite renews it"


def assert_conforms(reading: Reading, source: AgentSource, bounds: bool = True) -> None:
    """Fail if the source does not declare a sample's metric, or if a sample has a label that its metric may not have,
    a value beyond the catalog's bounds, or the labels of another sample."""
    series_keys: set[tuple[str, object]] = set()
    for sample in reading.samples:
        metric = METRICS[sample.metric]
        assert sample.metric in source.metrics, f"{source.id} does not declare {sample.metric}"
        names = [name for name, _ in sample.labels]
        assert names == sorted(names), f"labels of {sample} are not sorted"
        assert set(names) <= labels_of(sample.metric), f"{sample} has labels that its metric may not have"
        assert all(value for _, value in sample.labels), f"{sample} has an empty label"
        plausible = metric.low <= sample.value <= metric.high or metric.diverges
        assert plausible or not bounds, f"{sample} is beyond its metric's bounds"
        assert (sample.metric, sample.labels) not in series_keys, f"{sample} occurs twice"
        series_keys.add((sample.metric, sample.labels))


def open_source(
    source: AgentSource,
    node: LocalNode | None = None,
    owners: Owners | None = None,
    options: object = None,
    say: Callable[[str], object] = lambda text: None,
    newest: Callable[[], Mapping[str, Sequence[Sample]]] = dict,
) -> Collector:
    """A collector of a source, opened as by the runner, with default options unless others are given."""
    if options is None and source.options is not None:
        options = source.options()
    return source.open(Context(node or LocalNode("n1"), owners or Owners(), options, say, newest=newest))


def _sample(sample: Sample) -> str:
    return f"{sample.metric}{_labels(sample.labels)} {_number(sample.value)}"


def _line(line: LogLine) -> str:
    return f"# line {_stamp(line.time_ns)} {_labels(line.labels)} {line.text}"


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)


def _stamp(time_ns: int) -> str:
    seconds, ns = divmod(time_ns, 1_000_000_000)
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%S}.{ns:09}Z"


def _sortable(sample: Sample) -> list[tuple[str, list[tuple[int, str]]]]:
    """A sort key of labels that puts cpu 10 after cpu 9."""
    return [
        (name, [(int(digits or -1), text) for digits, text in _PARTS.findall(value)]) for name, value in sample.labels
    ]


_PARTS = re.compile(r"(\d{1,18})|(\D+)")
