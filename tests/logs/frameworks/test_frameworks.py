"""Small logs of each framework, written for this test: the distinct points and the life-cycle events they must give."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from trackside.logs.line import FileContext
from trackside.logs.pattern import parsers
from trackside.logs.scan import scan
from trackside.logs.trajectory import Trajectories
from trackside.model import Event

CASES = sorted(Path(__file__).parent.glob("cases/*.json"))
OURS = {parser.id for parser in parsers() if parser.kind == "framework"}


def read(path: Path, engine: str | None = None) -> tuple[list[Event], list[Event]]:
    """(distinct points, other events of framework parsers)."""
    trajectories, others = Trajectories(), []

    def sink(event: Event) -> None:
        if event.kind == "progress":
            trajectories.add(event)
        elif event.parser in OURS:
            others.append(event)

    scan(io.BytesIO(path.read_bytes()), sink, FileContext(path.name), engine=engine)
    return trajectories.points(), others


def same(got: Any, expected: Any) -> bool:
    """Equality in which nan (written as text in the case) is equal to itself."""
    if expected == "nan":
        return isinstance(got, float) and math.isnan(got)
    return bool(got == (float(expected) if expected in ("inf", "-inf") else expected))


def holds(event: Event, expected: dict[str, Any]) -> bool:
    return all(same(event.fields.get(name), value) for name, value in expected.items())


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
@pytest.mark.parametrize("engine", ["hyperscan", "re2"])
def test_case(case: Path, engine: str) -> None:
    expected = json.loads(case.read_text())
    points, others = read(case.with_suffix(".log"), engine)
    pairs = [[point.fields.get("step"), point.fields.get("loss")] for point in points]
    if "points" in expected:
        assert len(pairs) == len(expected["points"]), pairs
        for got, want in zip(pairs, expected["points"], strict=True):
            assert same(got[0], want[0]), pairs
            assert same(got[1], want[1]), pairs
    else:
        assert [len(pairs), pairs[0], pairs[-1]] == [
            expected["count"],
            expected["points_first"],
            expected["points_last"],
        ]
    if points:
        assert points[-1].fields.get("framework") == expected["framework"]
        assert holds(points[-1], expected.get("last", {})), points[-1].fields
    if "events" in expected:
        assert [event.kind for event in others] == [kind for kind, _ in expected["events"]], others
        for event, (_, fields) in zip(others, expected["events"], strict=True):
            assert holds(event, fields), (event.fields, fields)


def test_cut_anywhere_nothing_escapes() -> None:
    for case in CASES:
        data = case.with_suffix(".log").read_bytes()
        for cut in range(0, len(data), max(1, len(data) // 12)):
            trajectories = Trajectories()
            scan(
                io.BytesIO(data[:cut] + b"\xff\xfe\x00" + data[cut:]),
                lambda e, t=trajectories: t.add(e) if e.kind == "progress" else None,
                FileContext("cut"),
            )
            assert all(point.at.offset < len(data) + 3 for point in trajectories.points())
