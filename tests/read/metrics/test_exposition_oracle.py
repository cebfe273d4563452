"""The fast reader against ``prometheus_client``'s parser, which reads the same text a hundred times slower."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from tests.read.metrics.reading import T0, curves, read
from trackside.catalog.dialect import Translation
from trackside.catalog.exposition import line_of, number_of, series_of
from trackside.catalog.settling import is_blank
from trackside.read import blocks
from trackside.read.decimals import decimals

NAMES = st.sampled_from(["up", "a:b_c", "DCGM_FI_DEV_GPU_UTIL", "x", "_y9"])
LABEL_NAMES = st.sampled_from(["gpu", "Hostname", "le", "_a", "UUID"])
LABEL_VALUES = st.text(st.sampled_from('ab0 \\"\n{}#,=é,\t'), max_size=8)
NUMBERS = st.one_of(
    st.integers(-(10**6), 10**18).map(str),
    st.floats(allow_nan=False).map(repr),
    st.floats(0, 1).map(lambda number: f"{number:.6f}"),
    st.floats(1e-30, 1e30).map(lambda number: f"{number:g}"),
    st.floats(1e-30, 1e30).map(lambda number: f"{number:e}"),
    st.sampled_from(["NaN", "+Inf", "-Inf", "0", "1", "-0", "2147483632", "9007199254740993", "0.1", "1e5", "1e+22", "1e-22"]),
)  # fmt: skip
TIMES = st.one_of(st.none(), st.integers(T0, T0 + 10**7))
GAPS = st.sampled_from([" ", " ", " ", "  ", "\t", " \t "])


def quoted(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A line of text exposition."""
    labels = draw(st.dictionaries(LABEL_NAMES, LABEL_VALUES, max_size=3))
    inside = ",".join(f'{name}="{quoted(value)}"' for name, value in sorted(labels.items()))
    if labels:  # one spelling per series; otherwise the last value of each spelling is kept
        inside += ("", ",", " ", ", ")[len(inside) % 4]
    series = draw(NAMES) + ("{" + inside + "}" if labels else "")
    time = draw(TIMES)
    tail = "" if time is None else f"{draw(GAPS)}{time}"
    return f"{series}{draw(GAPS)}{draw(NUMBERS)}{tail}{draw(st.sampled_from(['', '', ' ']))}"


COMMENTS = st.sampled_from(["# HELP up A \\n thing 5 {", "# TYPE x gauge", "", "#", "# up 5"])
FILES = st.lists(st.one_of(lines(), lines(), lines(), COMMENTS), min_size=1, max_size=40)
Curve = list[tuple[int, float]]


def known_translation(name: str, labels: Mapping[str, str]) -> Translation:
    """Translate every series to a metric that may have any value, with all its labels."""
    return Translation("training_perplexity", tuple(sorted({**labels, "__name__": name}.items())), 1.0)


@pytest.fixture
def all_names_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("measurements", "formats.prometheus_text"):
        monkeypatch.setattr(f"trackside.read.{module}.translate", known_translation)


def expected_curves(families: Iterable[object], file_ms: int) -> dict[tuple[tuple[str, str], ...], Curve]:
    """The expected curves: a series without times has only its last value, at the time of the file."""
    timed: dict[tuple[tuple[str, str], ...], Curve] = {}
    untimed: dict[tuple[tuple[str, str], ...], float] = {}
    for family in families:
        for sample in family.samples:  # type: ignore[attr-defined]
            key = tuple(sorted({**sample.labels, "__name__": sample.name}.items()))
            if sample.timestamp is None:
                untimed[key] = float(sample.value)
            else:
                timed.setdefault(key, []).append((round(float(sample.timestamp) * 1000), float(sample.value)))
    latest = max((time for curve in timed.values() for time, _ in curve), default=file_ms)
    for key, value in untimed.items():
        timed.setdefault(key, []).append((latest, value))
    without_blanks = {
        key: sorted(pair for pair in curve if not is_blank(np.array([pair[1]]))[0]) for key, curve in timed.items()
    }
    return {key: curve for key, curve in without_blanks.items() if curve}


@pytest.mark.usefixtures("all_names_known")
@settings(max_examples=300)
@given(text=FILES, size=st.sampled_from([40, 200, 1 << 20]), end=st.sampled_from(["\n", "\n", "\r\n"]))
@example(['up{gpu="}"} 5', 'up{gpu="} 5"} 7 1763729760000', 'up{gpu="a b"} 9'], 1 << 20, "\n")
def test_text_exposition_is_read_like_the_oracle(text: list[str], size: int, end: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", size)
        row, sink = read(end.join(["first 1", *text, ""]))
    expected = expected_curves(text_families("\n".join(["first 1", *text, ""])), T0)
    actual = {labels: curve for (_, labels), curve in curves(sink).items()}
    assert row.format == "prometheus-text"
    assert "malformed" not in row.note
    assert actual == expected


@pytest.mark.usefixtures("all_names_known")
@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 10**7)),
             min_size=1, max_size=30, unique_by=lambda sample: (sample[0], sample[2]))
)  # fmt: skip
def test_openmetrics_is_read_like_the_oracle(rows: list[tuple[str, float, int]]) -> None:
    rows.sort(key=lambda row: (row[0], row[2]))
    text = "# TYPE up gauge\n# HELP up It's up.\n"
    text += "".join(f'up{{gpu="{gpu}"}} {value!r} {(T0 + time) / 1000:.3f}\n' for gpu, value, time in rows) + "# EOF\n"
    row, sink = read(text)
    assert "malformed" not in row.note
    assert {key: curve for (_, key), curve in curves(sink).items()} == expected_curves(openmetrics_families(text), T0)


@settings(max_examples=500)
@given(st.text(st.sampled_from('ab{}"=,\\ 1.5#n\t'), max_size=30))
@example("a{} 1")
@example('a{b="c"}1')
@example('a{b="\\x"} 1')
def test_a_line_that_both_accept_has_the_same_meaning(text: str) -> None:
    try:
        (family,) = text_families(text)
        (sample,) = family.samples
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        line_of(text.encode())  # it may be rejected, but without an error
        return
    line = line_of(text.encode())
    if line is None:  # the oracle accepts much that the format does not allow
        return
    assert (line.value, line.time) == (sample.value, sample.timestamp and float(sample.timestamp) * 1000) or (
        math.isnan(line.value) and math.isnan(sample.value)
    )
    assert series_of(line.series.decode()) == (sample.name, dict(sample.labels))


@settings(max_examples=300)
@given(
    st.lists(st.one_of(NUMBERS, st.text(st.sampled_from("0123456789.-+eE_x/:"), max_size=18)), min_size=1, max_size=50)
)
def test_bulk_parsed_numbers_equal_float(texts: list[str]) -> None:
    data = ("#" * 16 + "#".join(["", *texts, ""])).encode()
    starts, position = [], 17
    for text in texts:
        starts.append(position)
        position += len(text) + 1
    offsets = np.array(starts)
    values, parsed = decimals(data, offsets, offsets + np.array([len(text) for text in texts]))
    for text, value, is_read in zip(texts, values.tolist(), parsed.tolist(), strict=True):
        expected = number_of(text.encode())
        if is_read:
            assert value == expected, text
        must_read = (
            expected is not None and len(text.strip("+-")) <= 15 and "e" not in text.lower() and math.isfinite(expected)
        )
        assert is_read or not must_read, text
