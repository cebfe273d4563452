"""PromQL texts: exact windows, escaping, and expressions of bounded length."""

from __future__ import annotations

import re

import pytest

from trackside.stores.prometheus import promql


@pytest.mark.parametrize(("name", "matchers", "expected"), [
    ("up", (), "up"),
    ("up", ('a="b"', 'c=~"d"'), 'up{a="b",c=~"d"}'),
    ("a.b", (), '{__name__="a.b"}'),
    ("", ('a="b"',), '{a="b"}'),
])  # fmt: skip
def test_selectors(name: str, matchers: tuple[str, ...], expected: str) -> None:
    assert promql.selector(name, matchers) == expected


def test_values_are_escaped() -> None:
    assert promql.matcher("job", "=", 'a"b\\c\nd') == r'job="a\"b\\c\nd"'
    assert promql.matcher("host.name", "=", "x") == '"host.name"="x"'
    assert promql.matcher("a:b", "=", "x") == '"a:b"="x"'
    assert promql.matcher("host.name", "=", "x", metricsql=True) == r'host\.name="x"'
    assert promql.matcher("4th-host_1", "=", "x", metricsql=True) == r'\4th\-host_1="x"'
    assert promql.matcher("host", "=", "x", metricsql=True) == 'host="x"'


@pytest.mark.parametrize(("step_ms", "closed", "expected"), [
    (60_000, False, "avg_over_time(x[60s])"),
    (60_000, True, "avg_over_time(x[59999ms])"),
    (1_500, False, "avg_over_time(x[1500ms])"),
])  # fmt: skip
def test_windows_exclude_their_start(step_ms: int, closed: bool, expected: str) -> None:
    assert promql.rollup("avg", "x", step_ms, closed) == expected


def test_rollups() -> None:
    assert promql.rollup("last", "x", 1000, is_closed=False) == "last_over_time(x[1s])"


@pytest.mark.parametrize(
    "written", ["gpu-3", "GPU-3", "gpu-3.cluster.example", "gpu-3:9400", "http://gpu-3.cluster:9400/metrics"]
)
def test_a_node_matches_in_every_spelling(written: str) -> None:
    (regex,) = promql.hosts(["gpu-3.cluster.example", "gpu-4"])
    assert re.fullmatch(regex, written)
    assert not re.fullmatch(regex, written.replace("3", "33"))


def test_an_address_is_not_shortened_to_its_first_part() -> None:
    (regex,) = promql.hosts(["10.1.2.3"])
    assert re.fullmatch(regex, "10.1.2.3:9400")
    assert not re.fullmatch(regex, "10.9.2.3:9400")


def test_a_job_matches_with_its_step() -> None:
    (regex,) = promql.jobs(["4242", "77_3"])
    assert [bool(re.fullmatch(regex, text)) for text in ("4242", "4242.batch", "77_3", "42421", "14242")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_many_values_give_several_expressions() -> None:
    names = [f"node{number:05d}.x" for number in range(2000)]
    pieces = list(promql.one_of(names))
    assert max(map(len, pieces)) <= promql.MAX_REGEX_CHARS
    assert all(sum(re.fullmatch(piece, name) is not None for piece in pieces) == 1 for name in names[::97])
    assert not any(re.fullmatch(piece, "node00000-x") for piece in pieces)


def test_no_values_give_no_expressions() -> None:
    assert list(promql.hosts([])) == list(promql.jobs([""])) == list(promql.one_of([])) == []
