"""Cases are parsed, and malformed ones refused with their line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.contract.case import T0, Ask, Table, answer_lines, difference, read, same
from tests.contract.stores import StoreContents, openmetrics
from trackside.model import Run
from trackside.query import Query

CASE = """# Two GPUs.
run 4242 on n1,n2 from 0 to 60.5 gpus 2
match cluster="a"
relabel gpu to accelerator, which is gpu

load a.prom
  up{gpu="0",path="}\\" 1"} every 15 from -15: 1 2x2 _ 5-1.5x2 NaN
  up 0.5:7 30:1e-3

unrelated
  up{gpu="9"} 0:1

ask metric(scrape_up).during(0, 30).rollup(15, 'last')
expect
  gpu node |  15 30
  0   -    | 0.5  -

ask metric(scrape_up).during(0, 30).rollup(15, 'last').max()
expect nothing
"""


def case_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some.txt"
    path.write_text(text, "utf-8")
    return path


def test_a_case_is_parsed(tmp_path: Path) -> None:
    case = read(case_of(tmp_path, CASE))
    ms = T0 * 1000
    assert case.run == Run(id="4242", nodes=("n1", "n2"), start=T0, end=T0 + 60.5, n_gpus=2)
    assert case.files["a.prom"] == {
        'up{gpu="0",path="}\\" 1"}': [
            (ms - 15_000, "1"), (ms, "2"), (ms + 15_000, "2"), (ms + 45_000, "5.0"), (ms + 60_000, "3.5"),
            (ms + 75_000, "2.0"), (ms + 90_000, "NaN"),
        ],
        "up": [(ms + 500, "7"), (ms + 30_000, "1e-3")],
    }  # fmt: skip
    assert list(case.unrelated) == ['up{gpu="9"}']
    assert (case.match, case.relabel) == ('cluster="a"', {"gpu": ("accelerator", "gpu")})
    grid, value = case.asks
    assert grid.query.window == (float(T0), T0 + 30.0)
    assert isinstance(grid.expected, Table)
    assert list(grid.expected.times) == [15, 30]
    assert grid.expected.rows[0][0] == (("gpu", "0"),)
    assert answer_lines(value.expected) == ["expect nothing"]
    again = case.expecting([Table((15.0,), (((("gpu", "0"), ("node", "n1")), (0.25,)),)), 2.5]).splitlines()
    assert again[-6:] == [
        "expect",
        "  gpu node |   15",
        "  0   n1   | 0.25",
        "",
        "ask metric(scrape_up).during(0, 30).rollup(15, 'last').max()",
        "expect 2.5",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("walk 1\n", "line 1: 'walk 1': expected run, load"),
        ("load a\n  {x} 1:2\n", "line 1: .* no series"),
        ("load a\n  up every 15 from x: 1\n", "line 1"),
        ("run from nowhere\n", "expected run ID on NODES"),
        ("ask metric(no_such)\nexpect 1\n", "unknown metric 'no_such'"),
        ("ask metric(scrape_up)\n", "comes expect or missing"),
        ("# nothing\n", "asks nothing"),
    ],
)
def test_a_malformed_case_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(case_of(tmp_path, text))


def test_difference_is_readable() -> None:
    expected = Table((60.0, 120.0), (((("gpu", "0"),), (0.5, math.nan)),))
    actual = Table((60.0, 120.0), (((("gpu", "0"),), (0.5, 0.25)),))
    ask = Ask(Query.parse("metric(gpu_utilization_ratio)"), expected, 0, 0)
    assert not same(expected, actual)
    assert difference("victoria-metrics", ask, actual).splitlines()[1:] == [
        "    expect",
        "  -   gpu |  60 120",
        "  +   gpu |  60  120",
        "  -   0   | 0.5   -",
        "  +   0   | 0.5 0.25",
        "  gpu=0 at 120: wanted -, got 0.25",
    ]


@pytest.mark.parametrize(
    ("expected", "actual", "alike"),
    [
        (1.0, 1.0 + 5e-10, True),
        (1.0, 1.0 + 5e-9, False),
        (0.0, 1e-13, True),
        (0.0, 1e-11, False),
        (math.inf, math.inf, True),
        (math.inf, 1e308, False),
        (None, 0.0, False),
        ("was not measured", "x was not measured; collect it", True),
        ("was not measured", 1.0, False),
        (Table((60.0,), ()), Table((60.0,), ()), True),
        (Table((60.0,), ()), Table((120.0,), ()), False),
        (Table((60.0,), (((), (1.0,)),)), Table((60.0,), ()), False),
        (Table((60.0,), (((("gpu", "0"),), (1.0,)),)), Table((60.0,), (((("gpu", "1"),), (1.0,)),)), False),
    ],
)
def test_answers_agree_within_the_tolerance(expected: object, actual: object, alike: bool) -> None:
    assert same(expected, actual) == alike  # type: ignore[arg-type]


def test_answers_are_read_as_they_are_shown(tmp_path: Path) -> None:
    table = Table(
        (60.0, 60.5), (((("gpu", "0"), ("node", "n1")), (1 / 3, math.nan)), ((("gpu", "1"),), (math.inf, -2.5e-9)))
    )
    text = "\n".join(["ask metric(scrape_up)", *answer_lines(table)])
    (ask,) = read(case_of(tmp_path, text)).asks
    assert same(table, ask.expected)


def test_text_for_servers(tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    path.write_text('# TYPE up gauge\nup{gpu="0",a_gpu="gpu=1"} 1 1772438400015\nup 2 1772438400000\n')
    contents = StoreContents(
        [path], unrelated='up{x="",gpu="9"} 3 1772438400000\n', relabel={"gpu": ("accelerator", "gpu")}
    )
    assert openmetrics(contents.text) == (
        'up{accelerator="0",a_gpu="gpu=1"} 1 1772438400.015\nup 2 1772438400.000\n'
        'up{x="",accelerator="9"} 3 1772438400.000\n# EOF\n'
    )
