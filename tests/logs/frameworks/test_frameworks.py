"""Small logs of each framework, written for this test: their distinct points and life-cycle events."""

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
FRAMEWORK_PARSERS = {parser.id for parser in parsers() if parser.kind == "framework"}


def read(path: Path, engine: str | None = None) -> tuple[list[Event], list[Event]]:
    """(distinct points, other events of framework parsers)."""
    trajectories, other_events = Trajectories(), []

    def sink(event: Event) -> None:
        if event.kind == "progress":
            trajectories.add(event)
        elif event.parser in FRAMEWORK_PARSERS and event.kind != "full_bar":
            other_events.append(event)

    scan(io.BytesIO(path.read_bytes()), sink, FileContext(path.name), engine=engine)
    return trajectories.points(), sorted(other_events, key=lambda event: event.at.offset)


def is_same(actual: Any, expected: Any) -> bool:
    """Equality in which nan (written as text in the case) is equal to itself."""
    if expected == "nan":
        return isinstance(actual, float) and math.isnan(actual)
    return bool(actual == (float(expected) if expected in ("inf", "-inf") else expected))


def has_fields(event: Event, expected: dict[str, Any]) -> bool:
    return all(is_same(event.fields.get(name), value) for name, value in expected.items())


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
@pytest.mark.parametrize("engine", ["hyperscan", "re2"])
def test_points_and_events_of_a_framework(case: Path, engine: str) -> None:
    expected = json.loads(case.read_text())
    points, other_events = read(case.with_suffix(".log"), engine)
    pairs = [[point.fields.get("step"), point.fields.get("loss")] for point in points]
    if "points" in expected:
        assert len(pairs) == len(expected["points"]), pairs
        for pair, expected_pair in zip(pairs, expected["points"], strict=True):
            assert is_same(pair[0], expected_pair[0]), pairs
            assert is_same(pair[1], expected_pair[1]), pairs
    else:
        assert [len(pairs), pairs[0], pairs[-1]] == [
            expected["count"],
            expected["points_first"],
            expected["points_last"],
        ]
    if points:
        assert points[-1].fields.get("framework") == expected["framework"]
        assert has_fields(points[-1], expected.get("last", {})), points[-1].fields
    if "events" in expected:
        assert [event.kind for event in other_events] == [kind for kind, _ in expected["events"]], other_events
        for event, (_, fields) in zip(other_events, expected["events"], strict=True):
            assert has_fields(event, fields), (event.fields, fields)


def test_a_log_cut_anywhere_is_scanned_without_errors() -> None:
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
