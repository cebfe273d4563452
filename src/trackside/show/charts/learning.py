"""Training curves: loss, gradient norm, learning rate and throughput, one panel below the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from trackside.evidence import Frame, Missing
from trackside.facts.fact import Facts
from trackside.facts.training.learning import TrainingCurve, numeric_field, training_curve
from trackside.facts.training.loss_curve import LossCurve
from trackside.finding import Verdict
from trackside.model import Event
from trackside.query import events, metric
from trackside.show.charts import reduce
from trackside.show.charts.chart import NARROW_AXIS_LEFT, Chart, Drawing
from trackside.show.charts.phases import finding, run_window, samples_of
from trackside.show.charts.time_axis import (
    AxisRange,
    Json,
    at_ends,
    at_x,
    figure,
    line,
    mark,
    moment_marks,
    panel,
    readout,
    signal,
    table,
    title_mark,
)
from trackside.show.sanitize import replace_unsafe
from trackside.wording import moment, word

PARENT = events("parent_progress")
RATES = {
    "tokens/s": metric("training_tokens_per_second").over("run", "avg"),
    "samples/s": metric("training_samples_per_second").over("run", "avg"),
}
LOSS_HEIGHT, PANEL_HEIGHT, PANEL_GAP = 150, 74, 44
"""Pixels: height of the loss panel, height of the other panels, gap between panels."""
MIN_LOG_RATIO = 12.0
"""Minimum ratio of highest to lowest value for a logarithmic scale."""
MAX_ROWS = 40
Axis = Literal["time", "step"]
PositionOf = Callable[[Event], float | None]
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity over time or steps: its finite points, and the positions of non-finite ones (``non_finite``)."""

    key: str
    title: str
    points: Points = ()
    non_finite: tuple[float, ...] = ()
    count: int = 0
    """The number of non-finite values; ``non_finite`` may hold only a sample of their positions."""
    parent: Points = ()
    held_out: Points = ()
    """Losses on held-out data."""

    @property
    def values(self) -> list[float]:
        """All values in the panel."""
        return [y for _, y in (*self.points, *self.parent, *self.held_out)]

    @property
    def logarithmic(self) -> bool:
        """Whether its range calls for a logarithmic scale."""
        low, high = min(self.values, default=0.0), max(self.values, default=0.0)
        return self.key in ("loss", "norm") and low > 0 and high / low >= MIN_LOG_RATIO

    @property
    def bounds(self) -> AxisRange:
        """The range of the vertical axis, with a margin; from 0 for everything but the loss."""
        low, high = min(self.values, default=0.0), max(self.values, default=1.0)
        if self.logarithmic:
            return low / 1.1, high * 1.1
        if self.key != "loss" and low >= 0:
            low = 0.0
        margin = (high - low) * 0.06 or abs(high) / 2 or 1.0
        return low - (margin if low else 0.0), high + margin


def draw(verdict: Verdict, facts: Facts) -> Drawing | None:
    """The chart; None if the log has fewer than two logged steps."""
    loss = facts.get(LossCurve)
    if isinstance(loss, Missing) or len(loss.curve.points) < 2:
        return None
    frame, run_curve = loss.curve.frame, loss.curve
    answer = facts.answer(PARENT)
    parent = training_curve(answer) if isinstance(answer, Frame) and answer else None
    x_axis = _horizontal_axis(run_curve, parent, facts.run.has_time_zone)
    axis = x_axis.axis
    tail = _tail(parent, run_curve) if parent is not None and len(parent.points) > 1 and axis == "step" else []
    lines = [
        panel_data
        for panel_data in _lines(run_curve, tail, frame, x_axis, facts)
        if panel_data.points or panel_data.non_finite
    ]
    if not lines:
        return None
    xs = [
        x
        for panel_data in lines
        for x in (*panel_data.non_finite, *(x for x, _ in (*panel_data.points, *panel_data.parent)))
    ]
    span = (min(xs), max(xs))
    window = run_window(facts)
    if axis == "time" and window is not None:
        span = min(window[0], span[0]), max(window[1], span[1])
    elif axis == "step":
        span = span[0] - (span[1] - span[0]) / 100, span[1] + (span[1] - span[0]) / 100
    if span[1] <= span[0]:
        return None
    moments = _moments(verdict, run_curve, tail, x_axis)
    return Drawing(
        _spec(lines, span, x_axis, moments),
        _caption(lines, run_curve, tail, x_axis, moments),
        ("time" if axis == "time" else x_axis.unit, *(panel_data.title for panel_data in lines)),
        _rows(lines, x_axis),
        axis=axis,
        unit=x_axis.unit,
        narrow_left=NARROW_AXIS_LEFT,
    )


@dataclass(frozen=True, slots=True)
class HorizontalAxis:
    """The horizontal axis, and the positions on it of the logged steps of this run and of its parent run."""

    axis: Axis
    position: PositionOf
    parent_position: PositionOf
    title: str = ""
    zoned: bool = True
    """Whether the time zone is known."""
    unit: str = "step"
    """What a position counts, if it is no time."""

    def text(self, x: float) -> str:
        """A position in words."""
        return moment(x, self.zoned) if self.axis == "time" else f"{self.unit} {x:,.6g}"


def _horizontal_axis(run_curve: TrainingCurve, parent: TrainingCurve | None, zoned: bool) -> HorizontalAxis:
    """Time if all points have one and there is no parent run; otherwise steps; otherwise epochs, if each point is one;
    otherwise the order of the points.

    If a run counts its steps from 0 again, they are shown after those of its parent.
    """
    stepped = _have_steps(run_curve)
    if parent is not None and parent.points and stepped and _have_steps(parent):
        last, first = _step(parent.points[-1]), _step(run_curve.points[0])
        if first > last / 2:
            return HorizontalAxis("step", _step, _step)
        return HorizontalAxis(
            "step", lambda row: last + _step(row), _step, f"steps of both runs; this one counts from {first:g}"
        )
    if all(row.time is not None for row in run_curve.points):
        return HorizontalAxis("time", lambda row: row.time, lambda row: None, zoned=zoned)
    if stepped:
        return HorizontalAxis("step", _step, lambda row: None)
    if run_curve.counts_epochs:
        return HorizontalAxis("step", lambda row: numeric_field(row, "epoch"), lambda row: None, "epoch", unit="epoch")
    ordinals = [numeric_field(row, "ordinal") for row in run_curve.points]  # set only if the series was thinned
    order = {
        id(row): float(index if ordinal is None else ordinal) + 1
        for index, (row, ordinal) in enumerate(zip(run_curve.points, ordinals, strict=True))
    }
    return HorizontalAxis(
        "step", lambda row: order.get(id(row)), lambda row: None, "logged lines in order", unit="logged line"
    )


def _have_steps(run_curve: TrainingCurve) -> bool:
    return all((step := numeric_field(row, "step")) is not None and math.isfinite(step) for row in run_curve.points)


def _step(row: Event) -> float:
    return numeric_field(row, "step") or 0.0


def _tail(parent: TrainingCurve, run_curve: TrainingCurve) -> list[Event]:
    """The last points of the parent run, as many steps as this run has."""
    reach = max(_step(run_curve.points[-1]) - _step(run_curve.points[0]), 1.0)
    return [row for row in parent.points if _step(row) >= _step(parent.points[-1]) - reach]


def _lines(
    run_curve: TrainingCurve, tail: Sequence[Event], frame: Frame, x_axis: HorizontalAxis, facts: Facts
) -> list[Panel]:
    losses = [
        (x, loss)
        for row, loss in zip(run_curve.rows, run_curve.losses, strict=True)
        if (x := x_axis.position(row)) is not None
    ]
    held_out = _field_points([row for row in frame.events if row.get("split") == "eval"], "loss", x_axis.position)
    panels = [_line("loss", "loss", losses, _field_points(tail, "loss", x_axis.parent_position), held_out)]
    for key, title, field in (("norm", "gradient norm", "grad_norm"), ("rate", "learning rate", "lr")):
        panels.append(
            _line(
                key,
                title,
                _field_points(run_curve.points, field, x_axis.position),
                _field_points(tail, field, x_axis.parent_position),
            )
        )
    return [*panels, _throughput(run_curve, x_axis, facts)]


def _field_points(rows: Sequence[Event], field: str, position: PositionOf) -> Sequence[tuple[float, float]]:
    """(position, value) of the points that have a field."""
    return [(x, y) for row in rows if (x := position(row)) is not None and (y := numeric_field(row, field)) is not None]


def _line(
    key: str,
    title: str,
    points: Sequence[tuple[float, float]],
    parent: Sequence[tuple[float, float]] = (),
    held_out: Sequence[tuple[float, float]] = (),
) -> Panel:
    non_finite = sorted(x for x, y in points if not math.isfinite(y))
    sample = tuple(non_finite[:: max(1, len(non_finite) // 200)])
    return Panel(key, title, _downsample(points), sample, len(non_finite), _downsample(parent), _downsample(held_out))


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [pair for pair in points if math.isfinite(pair[1])]


def _downsample(points: Sequence[tuple[float, float]]) -> Points:
    """The finite points in order, downsampled for drawing."""
    finite = sorted(_finite(points), key=lambda pair: pair[0])
    return tuple(finite[index] for index in reduce.points([x for x, _ in finite], [y for _, y in finite]))


def _throughput(run_curve: TrainingCurve, x_axis: HorizontalAxis, facts: Facts) -> Panel:
    """Throughput as printed, otherwise steps per second from printed step times, otherwise as sampled."""
    if printed := _finite(_field_points(run_curve.points, "throughput", x_axis.position)):
        units = {str(row.get("throughput_unit")) for row in run_curve.points if row.get("throughput_unit")}
        return _line(
            "throughput", "throughput" + (f", {replace_unsafe(units.pop())}" if len(units) == 1 else ""), printed
        )
    if seconds := _finite(_field_points(run_curve.points, "step_time_s", x_axis.position)):
        return _line("throughput", "throughput, steps/s", [(x, 1 / y) for x, y in seconds if y > 0])
    for unit, query in RATES.items() if x_axis.axis == "time" else ():
        if (grid := samples_of(facts, query)) is not None:
            values = reduce.band_of(grid.values).median
            points = [(t, v) for t, v in zip(grid.times.tolist(), values.tolist(), strict=True) if not math.isnan(v)]
            return _line("throughput", f"throughput, {unit}", points)
    return Panel("throughput", "throughput")


def _moments(
    verdict: Verdict, run_curve: TrainingCurve, tail: Sequence[Event], x_axis: HorizontalAxis
) -> list[tuple[float, str, str]]:
    """Positions to mark, (position, label, color): the onset of a divergence, and the end of the parent run."""
    divergence = finding(verdict, lambda family: family.cost_kind == "spoilt")
    moments = []
    if divergence is not None and divergence.variant != "flat":  # a flat curve has no onset
        row = next(
            (point for point in run_curve.points if divergence.at is not None and point.at == divergence.at), None
        )
        if row is None and divergence.since is not None:
            row = next(
                (point for point in run_curve.points if point.time is not None and point.time >= divergence.since), None
            )
        if row is not None and (x := x_axis.position(row)) is not None:
            moments.append((x, "plateau reached" if divergence.variant == "plateau" else "divergence begins", "bad"))
    if tail and (x := x_axis.parent_position(tail[-1])) is not None:
        moments.append((x, "parent run ended", "second"))
    return moments


# -- in words


def _caption(
    lines: Sequence[Panel],
    run_curve: TrainingCurve,
    tail: Sequence[Event],
    x_axis: HorizontalAxis,
    moments: Sequence[tuple[float, str, str]],
) -> str:
    parts = []
    for panel_data in lines[:2]:
        if panel_data.points and panel_data.key in ("loss", "norm"):
            last = "last finite value" if panel_data.non_finite else "last"
            parts.append(
                f"{panel_data.title} first {word(panel_data.points[0][1])}, {last} {word(panel_data.points[-1][1])}"
            )
        if panel_data.non_finite:
            unit = "step" if x_axis.axis == "time" else x_axis.unit
            count = f"one {unit}" if panel_data.count == 1 else f"{panel_data.count:,} {unit}s"
            parts.append(f"{panel_data.title} not finite from {x_axis.text(panel_data.non_finite[0])} on ({count})")
    text = (
        f"{len(run_curve.points):,} logged {'epochs' if run_curve.counts_epochs else 'steps'}"
        + (f": {'; '.join(parts)}" if parts else "")
        + "."
    )
    for x, label, _ in moments:
        text += f" {label[0].upper()}{label[1:]} at {x_axis.text(x)}."
    ended = [loss for row in tail if (loss := numeric_field(row, "loss")) is not None]
    if ended:
        text += f" The dashed line is the parent run; its last loss was {word(ended[-1])}."
    return text


def _rows(lines: Sequence[Panel], x_axis: HorizontalAxis) -> list[tuple[str, ...]]:
    """Evenly spaced points, including the first and the last."""
    values_by_panel = [dict(panel_data.points) | dict.fromkeys(panel_data.non_finite, math.nan) for panel_data in lines]
    positions = sorted({x for panel_data in values_by_panel for x in panel_data})
    if len(positions) > MAX_ROWS:
        positions = [positions[round(i * (len(positions) - 1) / (MAX_ROWS - 1))] for i in range(MAX_ROWS)]
    return [
        (x_axis.text(x), *(word(panel_data[x]) if x in panel_data else "" for panel_data in values_by_panel))
        for x in positions
    ]


# -- as a picture


def _spec(
    lines: Sequence[Panel], span: AxisRange, x_axis: HorizontalAxis, moments: Sequence[tuple[float, str, str]]
) -> Json:
    marks: list[Json] = []
    data: list[Json] = []
    y = 0
    for panel_data in lines:
        height = LOSS_HEIGHT if panel_data.key == "loss" else PANEL_HEIGHT
        marks += _panel(panel_data, y, height, span)
        data += _data(panel_data, x_axis.axis)
        y += height + PANEL_GAP
    height = y - PANEL_GAP
    for x, text, color in moments:
        marks += moment_marks(x, text, height, color, axis=x_axis.axis)
    return figure(height, span, marks, data=data, axis=x_axis.axis, title=x_axis.title, zoned=x_axis.zoned)


def _data(panel_data: Panel, axis: Axis) -> list[Json]:
    scale = 1000.0 if axis == "time" else 1.0
    nearest = [
        {"type": "formula", "as": "away", "expr": "abs(datum.t - moment)"},
        {"type": "aggregate", "ops": ["argmin"], "fields": ["away"], "as": ["point"]},
    ]
    sets = [
        table(f"{panel_data.key}{name}", {"t": [x * scale for x, _ in points], "y": [y for _, y in points]}, 6)
        for name, points in (
            ("", panel_data.points),
            ("_parent", panel_data.parent),
            ("_held_out", panel_data.held_out),
        )
        if points or not name
    ]
    sets.append({"name": f"{panel_data.key}_near", "source": panel_data.key, "transform": nearest})
    if panel_data.non_finite:
        sets.append(table(f"{panel_data.key}_non_finite", {"t": [x * scale for x in panel_data.non_finite]}))
    return sets


def _panel(panel_data: Panel, y: int, height: int, span: AxisRange) -> list[Json]:
    marks = [line(panel_data.key, "y", "accent", wide=1.8)]
    if len(panel_data.points) <= 60:
        dot = {"size": 14, "fill": signal("accent"), "x": at_x("t"), "y": {"scale": "y", "field": "y"}}
        marks.append(mark("symbol", dot, panel_data.key))
    if panel_data.parent:
        marks.insert(0, line(f"{panel_data.key}_parent", "y", "second", dash=(5, 3)))
    if panel_data.held_out:
        ring = {"size": 30, "stroke": signal("third"), "strokeWidth": 1.5, "fillOpacity": 0}
        marks.append(
            mark("symbol", {**ring, "x": at_x("t"), "y": {"scale": "y", "field": "y"}}, f"{panel_data.key}_held_out")
        )
    if panel_data.non_finite:
        cross = {"shape": "cross", "angle": 45, "size": 40, "fill": signal("bad"), "x": at_x("t"), "y": 7}
        marks.append(mark("symbol", cross, f"{panel_data.key}_non_finite"))
    title = f"{panel_data.title}, logarithmic" if panel_data.logarithmic else panel_data.title
    near = f"length(data('{panel_data.key}_near')) && data('{panel_data.key}_near')[0].point"
    value = f"format(data('{panel_data.key}_near')[0].point.y, '.4~g')"
    return [
        title_mark(title, y - (22 if y == 0 else 10)),
        panel(y, height, marks, panel_data.bounds, log=panel_data.logarithmic, ticks=4 if height == LOSS_HEIGHT else 3),
        *at_ends(_ends(panel_data, height, span), height, y),
        readout(f"{near} ? {value} : ''", y - (22 if y == 0 else 10)),
    ]


def _ends(panel_data: Panel, height: int, span: AxisRange) -> list[tuple[str, float, str]]:
    """The labels at the right edge, (text, y, color): the last value of each line, named if there are several lines."""
    low, high = panel_data.bounds

    def y_of(value: float) -> float:
        if panel_data.logarithmic:
            return height * (1 - (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)))
        return height * (1 - (value - low) / (high - low))

    stops = bool(panel_data.points) and panel_data.points[-1][0] < span[1] - 0.04 * (span[1] - span[0])
    run_label = "this run " if panel_data.parent else "last " if stops else ""
    lines = (
        (run_label, panel_data.points, "accent"),
        ("parent ", panel_data.parent, "second"),
        ("held-out ", panel_data.held_out, "third"),
    )
    ends = [(f"{name}{word(points[-1][1])}", y_of(points[-1][1]), color) for name, points, color in lines if points]
    if panel_data.non_finite:
        ends.append(("not finite", 7.0, "bad"))
    return ends


CHART = Chart("learning", "Training curves", 50, draw, (PARENT, *RATES.values()))
