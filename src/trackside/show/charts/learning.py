"""What the run learned: loss, gradient norm, learning rate and throughput, one below the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from trackside.evidence import Frame, Missing
from trackside.facts.fact import Facts
from trackside.facts.training.learning import Curve, curve, number
from trackside.facts.training.loss_curve import LossCurve
from trackside.finding import Verdict
from trackside.model import Event
from trackside.query import events, metric
from trackside.show.charts import reduce
from trackside.show.charts.chart import Chart, Drawn
from trackside.show.charts.phases import finding, run_window, sampled
from trackside.show.charts.time_axis import (
    Json,
    Span,
    at_ends,
    at_x,
    figure,
    heading,
    line,
    mark,
    named_moment,
    panel,
    readout,
    signal,
    table,
)
from trackside.show.sanitize import shown
from trackside.show.wording import word

PARENT = events("parent_progress")
RATES = {
    "tokens/s": metric("training_tokens_per_second").over("run", "avg"),
    "samples/s": metric("training_samples_per_second").over("run", "avg"),
}
TALL, LOW, BETWEEN = 150, 74, 44
"""Pixels of the loss, of each of the others, and between two."""
LOGARITHMIC = 12.0
"""Highest over lowest from which a logarithmic scale shows more."""
ROWS = 40
Axis = Literal["time", "step"]
Place = Callable[[Event], float | None]
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity over time or steps: finite points, and where it was no finite number."""

    key: str
    title: str
    points: Points = ()
    wild: tuple[float, ...] = ()
    count: int = 0
    """How often it was no finite number, where ``wild`` holds but some of these."""
    parent: Points = ()
    tests: Points = ()
    """Of the loss: on held-out data."""

    @property
    def values(self) -> list[float]:
        """All that stands in its panel."""
        return [y for _, y in (*self.points, *self.parent, *self.tests)]

    @property
    def logarithmic(self) -> bool:
        """Whether it spans so much that steps of its scale should be factors."""
        known = self.values or [0.0]
        return self.key in ("loss", "norm") and min(known) > 0 and max(known) / min(known) >= LOGARITHMIC

    @property
    def bounds(self) -> Span:
        """Lowest and highest, with what stands beside it; from 0 where it is an amount."""
        known = self.values or [0.0, 1.0]
        low, high = min(known), max(known)
        if self.logarithmic:
            return low / 1.1, high * 1.1
        if self.key != "loss" and low >= 0:
            low = 0.0
        room = (high - low) * 0.06 or abs(high) / 2 or 1.0
        return low - (room if low else 0.0), high + room


def draw(verdict: Verdict, facts: Facts) -> Drawn | None:
    """None where neither a log nor a gauge tells of at least two points."""
    loss = facts.get(LossCurve)
    if isinstance(loss, Missing) or len(loss.curve.points) < 2:
        return None
    frame, own = loss.points, loss.curve
    answer = facts.answer(PARENT)
    parent = curve(answer) if isinstance(answer, Frame) and answer else None
    ground = _ground(own, parent)
    axis = ground.axis
    tail = _tail(parent, own) if parent is not None and len(parent.points) > 1 and axis == "step" else []
    lines = [each for each in _lines(own, tail, frame, ground, facts) if each.points or each.wild]
    if not lines:
        return None
    xs = [x for each in lines for x in (*each.wild, *(x for x, _ in (*each.points, *each.parent)))]
    span = (min(xs), max(xs))
    window = run_window(facts)
    if axis == "time" and window is not None:
        span = min(window[0], span[0]), max(window[1], span[1])
    elif axis == "step":
        span = span[0] - (span[1] - span[0]) / 100, span[1] + (span[1] - span[0]) / 100
    if span[1] <= span[0]:
        return None
    moments = _moments(verdict, own, tail, ground)
    return Drawn(
        _spec(lines, span, ground, moments),
        _caption(lines, own, tail, axis, moments),
        ("time" if axis == "time" else "step", *(each.title for each in lines)),
        _rows(lines, axis),
        axis=axis,
    )


@dataclass(frozen=True, slots=True)
class Ground:
    """What lies along the horizontal axis, and where on it a point of this run or of its parent stands."""

    axis: Axis
    own: Place
    parent: Place
    title: str = ""


def _ground(own: Curve, parent: Curve | None) -> Ground:
    """Time, where the points have one and there is no parent to join; else steps, else the order of the points.

    The steps of a run that counts them anew stand behind those of its parent.
    """
    stepped = _all_stepped(own)
    if parent is not None and parent.points and stepped and _all_stepped(parent):
        last, first = _step(parent.points[-1]), _step(own.points[0])
        if first > last / 2:
            return Ground("step", _step, _step)
        return Ground(
            "step", lambda row: last + _step(row), _step, f"steps of both runs; this one counts from {first:g}"
        )
    if all(row.time is not None for row in own.points):
        return Ground("time", lambda row: row.time, lambda row: None)
    if stepped:
        return Ground("step", _step, lambda row: None)
    order = {id(row): float(place + 1) for place, row in enumerate(own.points)}
    return Ground("step", lambda row: order.get(id(row)), lambda row: None, "training points in their order")


def _all_stepped(told: Curve) -> bool:
    return all((step := number(row, "step")) is not None and math.isfinite(step) for row in told.points)


def _step(row: Event) -> float:
    return number(row, "step") or 0.0


def _tail(parent: Curve, own: Curve) -> list[Event]:
    """The parent's points, as far back as this run reaches ahead."""
    reach = max(_step(own.points[-1]) - _step(own.points[0]), 1.0)
    return [row for row in parent.points if _step(row) >= _step(parent.points[-1]) - reach]


def _lines(own: Curve, tail: Sequence[Event], frame: Frame, ground: Ground, facts: Facts) -> list[Line]:
    losses = [(x, loss) for row, loss in zip(own.rows, own.losses, strict=True) if (x := ground.own(row)) is not None]
    tests = _told([row for row in frame.events if row.get("split") == "eval"], "loss", ground.own)
    found = [_line("loss", "loss", losses, _told(tail, "loss", ground.parent), tests)]
    for key, title, field in (("norm", "gradient norm", "grad_norm"), ("rate", "learning rate", "lr")):
        found.append(_line(key, title, _told(own.points, field, ground.own), _told(tail, field, ground.parent)))
    return [*found, _throughput(own, ground, facts)]


def _told(rows: Sequence[Event], field: str, place: Place) -> Sequence[tuple[float, float]]:
    """The points that tell a field."""
    return [(x, y) for row in rows if (x := place(row)) is not None and (y := number(row, field)) is not None]


def _line(
    key: str,
    title: str,
    told: Sequence[tuple[float, float]],
    parent: Sequence[tuple[float, float]] = (),
    tests: Sequence[tuple[float, float]] = (),
) -> Line:
    wild = sorted(x for x, y in told if not math.isfinite(y))
    some = tuple(wild[:: max(1, len(wild) // 200)])
    return Line(key, title, _fewer(told), some, len(wild), _fewer(parent), _fewer(tests))


def _finite(told: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [pair for pair in told if math.isfinite(pair[1])]


def _fewer(told: Sequence[tuple[float, float]]) -> Points:
    """The finite ones, in their order, as many as can be seen."""
    finite = sorted(_finite(told), key=lambda pair: pair[0])
    return tuple(finite[place] for place in reduce.points([x for x, _ in finite], [y for _, y in finite]))


def _throughput(own: Curve, ground: Ground, facts: Facts) -> Line:
    """As printed; else the steps in a second that a printed duration of a step makes; else as sampled."""
    if printed := _finite(_told(own.points, "throughput", ground.own)):
        units = {str(row.get("throughput_unit")) for row in own.points if row.get("throughput_unit")}
        return _line("throughput", "throughput" + (f", {shown(units.pop())}" if len(units) == 1 else ""), printed)
    if seconds := _finite(_told(own.points, "step_time_s", ground.own)):
        return _line("throughput", "throughput, steps/s", [(x, 1 / y) for x, y in seconds if y > 0])
    for unit, query in RATES.items() if ground.axis == "time" else ():
        if (grid := sampled(facts, query)) is not None:
            values = reduce.across(grid.values).middle
            told = [(t, v) for t, v in zip(grid.times.tolist(), values.tolist(), strict=True) if not math.isnan(v)]
            return _line("throughput", f"throughput, {unit}", told)
    return Line("throughput", "throughput")


def _moments(verdict: Verdict, own: Curve, tail: Sequence[Event], ground: Ground) -> list[tuple[float, str, str]]:
    """(where, what, colour) to be marked: the onset of a divergence, and where the parent ended."""
    found = finding(verdict, lambda family: family.loses == "result")
    moments = []
    if found is not None:
        row = next((each for each in own.points if found.at is not None and each.at == found.at), None)
        if row is None and found.since is not None:
            row = next((each for each in own.points if each.time is not None and each.time >= found.since), None)
        if row is not None and (x := ground.own(row)) is not None:
            moments.append((x, "divergence begins", "bad"))
    if tail and (x := ground.parent(tail[-1])) is not None:
        moments.append((x, "the parent ended", "second"))
    return moments


# -- in words


def _caption(
    lines: Sequence[Line],
    own: Curve,
    tail: Sequence[Event],
    axis: Axis,
    moments: Sequence[tuple[float, str, str]],
) -> str:
    told = []
    for each in lines[:2]:
        if each.points and each.key in ("loss", "norm"):
            last = "the last that was finite" if each.wild else "at last"
            told.append(f"{each.title} {word(each.points[0][1])} at first, {word(each.points[-1][1])} {last}")
        if each.wild:
            many = "one point" if each.count == 1 else f"{each.count:,} points"
            told.append(f"{each.title} not finite from {_where(each.wild[0], axis)} on ({many})")
    text = f"{len(own.points):,} training points" + (f": {'; '.join(told)}" if told else "") + "."
    for x, what, _ in moments:
        text += f" {what[0].upper()}{what[1:]} at {_where(x, axis)}."
    ended = [loss for row in tail if (loss := number(row, "loss")) is not None]
    if ended:
        text += f" The dashed line is the parent run; its last loss was {word(ended[-1])}."
    return text


def _where(x: float, axis: Axis) -> str:
    return word(x, "time") if axis == "time" else f"step {x:,.6g}"


def _rows(lines: Sequence[Line], axis: Axis) -> list[tuple[str, ...]]:
    """Evenly picked points, the first and the last among them."""
    told = [dict(each.points) | dict.fromkeys(each.wild, math.nan) for each in lines]
    places = sorted({x for each in told for x in each})
    if len(places) > ROWS:
        places = [places[round(i * (len(places) - 1) / (ROWS - 1))] for i in range(ROWS)]
    return [(_where(x, axis), *(word(each[x]) if x in each else "" for each in told)) for x in places]


# -- as a picture


def _spec(lines: Sequence[Line], span: Span, ground: Ground, moments: Sequence[tuple[float, str, str]]) -> Json:
    marks: list[Json] = []
    data: list[Json] = []
    y = 0
    for each in lines:
        height = TALL if each.key == "loss" else LOW
        marks += _panel(each, y, height, span)
        data += _data(each, ground.axis)
        y += height + BETWEEN
    height = y - BETWEEN
    for x, text, colour in moments:
        marks += named_moment(x, text, height, colour, axis=ground.axis)
    return figure(height, span, marks, data=data, axis=ground.axis, title=ground.title)


def _data(each: Line, axis: Axis) -> list[Json]:
    scale = 1000.0 if axis == "time" else 1.0
    nearest = [
        {"type": "formula", "as": "away", "expr": "abs(datum.t - moment)"},
        {"type": "aggregate", "ops": ["argmin"], "fields": ["away"], "as": ["point"]},
    ]
    sets = [
        table(f"{each.key}{name}", {"t": [x * scale for x, _ in points], "y": [y for _, y in points]}, 6)
        for name, points in (("", each.points), ("_parent", each.parent), ("_tests", each.tests))
        if points or not name
    ]
    sets.append({"name": f"{each.key}_near", "source": each.key, "transform": nearest})
    if each.wild:
        sets.append(table(f"{each.key}_wild", {"t": [x * scale for x in each.wild]}))
    return sets


def _panel(each: Line, y: int, height: int, span: Span) -> list[Json]:
    marks = [line(each.key, "y", "accent", wide=1.8)]
    if len(each.points) <= 60:
        dot = {"size": 14, "fill": signal("accent"), "x": at_x("t"), "y": {"scale": "y", "field": "y"}}
        marks.append(mark("symbol", dot, each.key))
    if each.parent:
        marks.insert(0, line(f"{each.key}_parent", "y", "second", dash=(5, 3)))
    if each.tests:
        ring = {"size": 30, "stroke": signal("third"), "strokeWidth": 1.5, "fillOpacity": 0}
        marks.append(mark("symbol", {**ring, "x": at_x("t"), "y": {"scale": "y", "field": "y"}}, f"{each.key}_tests"))
    if each.wild:
        cross = {"shape": "cross", "angle": 45, "size": 40, "fill": signal("bad"), "x": at_x("t"), "y": 7}
        marks.append(mark("symbol", cross, f"{each.key}_wild"))
    title = f"{each.title}, logarithmic" if each.logarithmic else each.title
    near = f"length(data('{each.key}_near')) && data('{each.key}_near')[0].point"
    value = f"format(data('{each.key}_near')[0].point.y, '.4~g')"
    return [
        heading(title, y - (22 if y == 0 else 10)),
        panel(y, height, marks, each.bounds, log=each.logarithmic, ticks=4 if height == TALL else 3),
        *at_ends(_ends(each, height, span), height, y),
        readout(f"{near} ? {value} : ''", y - (22 if y == 0 else 10)),
    ]


def _ends(each: Line, height: int, span: Span) -> list[tuple[str, float, str]]:
    """What the lines are, where there are several, and the last value."""
    low, high = each.bounds

    def place(value: float) -> float:
        if each.logarithmic:
            low_, high_, value = math.log(low), math.log(high), math.log(value)
            return height * (1 - (value - low_) / (high_ - low_))
        return height * (1 - (value - low) / (high - low))

    stops = bool(each.points) and each.points[-1][0] < span[1] - 0.04 * (span[1] - span[0])
    own = "this run " if each.parent else "last " if stops else ""
    lines = ((own, each.points, "accent"), ("parent ", each.parent, "second"), ("held-out ", each.tests, "third"))
    ends = [(f"{name}{word(points[-1][1])}", place(points[-1][1]), colour) for name, points, colour in lines if points]
    if each.wild:
        ends.append(("not finite", 7.0, "bad"))
    return ends


CHART = Chart("learning", "What it learned", 50, draw, (PARENT, *RATES.values()))
