"""The timeline of the run, from submission to end: scheduler, log and hardware events, and the onset of the fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trackside.catalog.job_states import ACTIVE_STATES
from trackside.evidence import Frame
from trackside.facts.fact import Facts
from trackside.finding import Verdict
from trackside.model import Record, TimeRange
from trackside.query import record
from trackside.show.charts.chart import NARROW_LEFT, NARROW_RIGHT, RIGHT, Chart, Drawing
from trackside.show.charts.event_lanes import (
    EVENT_QUERIES,
    HARDWARE,
    EventGroup,
    by_lane,
    logged_events,
    merge_close,
    metric_events,
    throttled_spans,
)
from trackside.show.charts.phases import finding_onset, phases, run_window
from trackside.show.charts.time_axis import (
    Json,
    clock,
    figure,
    label,
    mark,
    moment_marks,
    readout,
    signal,
)
from trackside.show.sanitize import replace_unsafe
from trackside.wording import duration, moment, word
from trackside.wording import span as time_span

JOBS = record("job")
LANE, BAR = 24, 15
"""Pixels of a lane, and of a bar in it."""
MAX_QUEUE_RATIO = 0.07
"""Maximum queue time shown, as a share of the run's time."""
MAX_ROWS = 50
THROTTLE_LANE, WHOLE_RUN = "clocks throttled", "the run"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a lane. ``tip``: its tooltip."""

    lane: str
    start: float
    end: float
    text: str
    tip: str
    color: str


def draw(verdict: Verdict, facts: Facts) -> Drawing | None:
    """The chart; None if fewer than two times are known, or if nothing is known between them."""
    window = run_window(facts)
    if window is None:
        return None
    bars = [*_attempt_bars(verdict, facts, window), *_phase_bars(facts)]
    span = _span(bars, window)
    bars += [Bar(THROTTLE_LANE, *throttled, "warn") for throttled in throttled_spans(facts)]
    moments, without = logged_events(facts, span, window[1])
    groups, untimed = merge_close([*moments, *metric_events(facts, span)], span), by_lane(without)
    if not bars and not groups:
        return None
    lanes = _lanes(bars, groups)
    if lanes == [WHOLE_RUN]:
        return None
    onset = finding_onset(verdict, facts)
    return Drawing(
        _spec(span, bars, groups, lanes, onset, verdict.run.has_time_zone),
        _caption(verdict, window, groups, untimed, onset),
        ("from", "to", "event", "count", "text"),
        _rows(bars, groups, untimed, onset, verdict.run.has_time_zone),
    )


# -- bars and lanes


def _attempt_bars(verdict: Verdict, facts: Facts, window: TimeRange) -> Iterator[Bar]:
    """Yield a bar for each attempt and for its time in the queue."""
    run, zoned = verdict.run, verdict.run.has_time_zone
    answer = facts.answer(JOBS)
    waited: set[tuple[float, float]] = set()
    for row in answer.records if isinstance(answer, Frame) else ():
        submit, eligible, start = (_time(row, name) for name in ("submit", "eligible", "start"))
        if submit is None or start is None or start <= submit or (submit, start) in waited:
            continue
        waited.add((submit, start))
        tip = f"waited {duration(start - submit)}: submitted {moment(submit, zoned)}"
        tip += f", eligible {moment(eligible, zoned)}" if eligible is not None else ""
        yield Bar("scheduler", submit, start, f"queued {duration(start - submit)}", tip, "faint")
    attempts = [attempt for attempt in run.attempts if attempt.start is not None]
    for attempt in attempts:
        end = attempt.end if attempt.end is not None else window[1]
        state = replace_unsafe(attempt.state or "state not known")
        name = f"attempt {attempt.number}: {state}" if len(attempts) > 1 else state
        tip = f"{name}\n{_span_text((attempt.start or 0.0, end), zoned)}"
        tip += f"\nexit code {attempt.exit_code}" if attempt.exit_code is not None else ""
        tip += f"\non {replace_unsafe(word(attempt.nodes))}" if attempt.nodes else ""
        yield Bar("scheduler", attempt.start or 0.0, end, name, tip, _color(attempt.state))
    if not attempts:
        name = replace_unsafe(run.disposition or "")
        tip = f"{name or WHOLE_RUN}\n{_span_text(window, zoned)}"
        yield Bar("scheduler" if run.start is not None else WHOLE_RUN, *window, name, tip, _color(run.disposition))


def _span_text(window: TimeRange, zoned: bool) -> str:
    """A time span and its length."""
    return f"{time_span(window, zoned)}, {duration(window[1] - window[0])}"


def _time(row: Record, name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _color(state: str | None) -> str:
    if state == "COMPLETED":
        return "good"
    return "accent" if state is None or state in ACTIVE_STATES else "bad"


def _phase_bars(facts: Facts) -> Iterator[Bar]:
    for phase in phases(facts):
        span = time_span((phase.start, phase.end), facts.run.has_time_zone)
        tip = f"{phase.name}: {duration(phase.end - phase.start)}\n{span}"
        yield Bar("phases", phase.start, phase.end, phase.name, tip, "accent" if phase.name == "training" else "faint")


def _span(bars: Sequence[Bar], window: TimeRange) -> TimeRange:
    """The time span of the chart: from shortly before the first attempt to the end."""
    starts = [bar.start for bar in bars if bar.color != "faint"] or [window[0]]
    start, end = min(*starts, window[0]), max(*(bar.end for bar in bars), window[1])
    queued = min((bar.start for bar in bars), default=start)
    max_queue = MAX_QUEUE_RATIO * (end - start)
    margin = 0.008 * (end - start)
    return max(queued, start - max_queue) - margin, end + margin


def _lanes(bars: Sequence[Bar], groups: Sequence[EventGroup]) -> list[str]:
    """The lanes in use: attempts and phases first, then by the time of their first event, hardware last."""
    bar_lanes = list(dict.fromkeys(bar.lane for bar in bars if bar.lane != THROTTLE_LANE))
    event_lanes = list(dict.fromkeys(group.lane for group in groups))
    throttled = [THROTTLE_LANE] if any(bar.lane == THROTTLE_LANE for bar in bars) else []
    software = [lane for lane in event_lanes if lane not in HARDWARE]
    return [*bar_lanes, *software, *(lane for lane in event_lanes if lane in HARDWARE), *throttled]


# -- in words


def _caption(
    verdict: Verdict,
    window: TimeRange,
    groups: Sequence[EventGroup],
    untimed: Sequence[EventGroup],
    onset: tuple[float, str] | None,
) -> str:
    run = verdict.run
    state = f", {replace_unsafe(run.disposition)}" if run.disposition else ""
    attempt = f"Attempt {run.attempts[-1].number}: " if len(run.attempts) > 1 else ""
    text = f"{attempt}{time_span(window, run.has_time_zone)} ({duration(window[1] - window[0])}){state}."
    if onset is not None:
        text += f" Verdict: {onset[1]}, since {moment(onset[0], run.has_time_zone)}."
    n_drawn, n_untimed = (sum(group.count for group in part) for part in (groups, untimed))
    if n_drawn:
        text += f" {word(n_drawn, 'events')}"
        if n_between := sum(group.count for group in groups if group.between):
            text += (
                f", {n_between:,} of them without a time of their own: dotted, and marked at the latest possible time"
            )
        text += "."
    if n_untimed:
        other = "other " if n_drawn else ""
        events = "event without a time is" if n_untimed == 1 else "events without a time are"
        text += f" {n_untimed:,} {other}{events} only in the table."
    return text


def _rows(
    bars: Sequence[Bar],
    groups: Sequence[EventGroup],
    untimed: Sequence[EventGroup],
    onset: tuple[float, str] | None,
    zoned: bool,
) -> list[tuple[str, ...]]:
    """All bars and events in order of time; if there are too many, a row per lane."""
    rows = [(bar.start, bar.end, bar.lane, "", bar.tip.split("\n")[0]) for bar in bars]
    if onset is not None:
        rows.append((onset[0], onset[0], "verdict", "", onset[1]))
    if len(rows) + len(groups) > MAX_ROWS:
        groups_by_lane: dict[str, list[EventGroup]] = {}
        for group in groups:
            groups_by_lane.setdefault(group.lane, []).append(group)
        groups = [
            replace(
                lane_groups[0],
                end=max(group.end for group in lane_groups),
                count=sum(group.count for group in lane_groups),
                between=all(group.between for group in lane_groups),
            )
            for lane_groups in groups_by_lane.values()
        ]
    rows += [
        (group.time, group.end, group.lane, f"{group.count:,}", f"{'between: ' if group.between else ''}{group.first}")
        for group in groups
    ]
    rows.sort(key=lambda row: row[0])
    table_rows = [
        (moment(start, zoned), moment(end, zoned) if end > start else "", *rest) for start, end, *rest in rows
    ]
    return [*table_rows, *(("unknown", "", group.lane, f"{group.count:,}", group.first) for group in untimed)][
        :MAX_ROWS
    ]


# -- as a picture


def _spec(
    span: TimeRange,
    bars: Sequence[Bar],
    groups: Sequence[EventGroup],
    lanes: Sequence[str],
    onset: tuple[float, str] | None,
    zoned: bool,
) -> Json:
    height = LANE * len(lanes)
    y_by_lane = {lane: LANE * (index + 0.5) for index, lane in enumerate(lanes)}
    marks: list[Json] = []
    for lane, y in y_by_lane.items():
        max_width, size = signal(f"narrow ? {NARROW_LEFT - 8} : 104"), 12
        marks.append(
            label(
                lane, signal("narrow ? -4 : -12"), y, align="right", baseline="middle", limit=max_width, fontSize=size
            )
        )
        if not any(bar.lane == lane for bar in bars):
            marks.append(mark("rule", {"x": 0, "x2": signal("width"), "y": y, "stroke": signal("faint")}))
    inside = {"type": "group", "clip": True, "marks": [*_bars(onset), *_events()]}
    inside["encode"] = {"update": {"width": signal("width"), "height": {"value": height}}}
    bar_rows = [
        {"y": y_by_lane[bar.lane], "from": round(max(bar.start, span[0]) * 1000), "to": round(bar.end * 1000),
         "text": bar.text, "tip": bar.tip, "color": bar.color}
        for bar in bars
    ]  # fmt: skip
    event_rows = [
        {"y": y_by_lane[group.lane], "t": round(group.time * 1000), "to": round(group.end * 1000), "tip": group.tip,
         "count": f"\N{MULTIPLICATION SIGN}{group.count}" if group.count > 1 else "", "color": group.color,
         "root": group.root, "between": group.between}
        for group in groups
    ]  # fmt: skip
    return figure(
        height,
        span,
        [
            *marks,
            inside,
            _counts(),
            *(moment_marks(onset[0], onset[1], height, "bad") if onset else []),
            readout(clock("moment")),
        ],
        data=[{"name": "bars", "values": bar_rows}, {"name": "events", "values": event_rows, "transform": [_NEXT]}],
        zoned=zoned,
    )


_NEXT = {"type": "window", "groupby": ["y"], "ops": ["lead"], "fields": ["t"], "as": ["next"]}
"""Gives each event the time of the next in its lane."""
_PAINT = "{faint: faint, accent: accent, bad: bad, warn: warn, good: good, ink: ink}[datum.color]"
"""Expression: the color that a row names."""


def _bars(onset: tuple[float, str] | None) -> list[Json]:
    """Each bar with its text, which starts behind the line of the onset if that would cross it."""
    left, right = "clamp(scale('x', datum.from), 0, width)", "clamp(scale('x', datum.to), 0, width)"
    box = {
        "x": signal(left),
        "x2": signal(f"max({right}, {left} + 1)"),
        "y": signal(f"datum.y - {BAR / 2}"),
        "height": BAR,
        "fill": signal(_PAINT),
        "fillOpacity": signal("datum.color === 'faint' ? 0.35 : 0.22"),
        "stroke": signal(_PAINT),
        "tooltip": {"field": "tip"},
    }
    start, text_px = left, "6.6 * length(datum.text) + 6"
    if onset is not None:
        line_x = f"scale('x', {onset[0] * 1000!r})"
        start = f"(inrange({line_x}, [{left}, {left} + {text_px}]) ? {line_x} : {left})"
    words = {
        "text": signal(f"{right} - {start} > {text_px} ? datum.text : ''"),
        "x": signal(f"{start} + 5"),
        "y": {"field": "y"},
        "baseline": "middle",
        "fontSize": 11,
        "fill": signal("ink"),
    }
    return [{**mark("rect", box, "bars"), "interactive": True}, mark("text", words, "bars")]


def _events() -> list[Json]:
    """A line over the time of merged events, dotted if they have no timestamp; and the events themselves, filled if one
    can be a root cause, and without a timestamp at the latest time: most are about the end."""
    reach = {"x": {"scale": "x", "field": "t"}, "x2": {"scale": "x", "field": "to"}, "y": {"field": "y"}}
    shape = signal("datum.root ? 'diamond' : datum.color === 'good' ? 'stroke' : 'circle'")
    point = {
        "x": {"scale": "x", "signal": "datum.between ? datum.to : datum.t"},
        "y": {"field": "y"},
        "shape": shape,
        "angle": signal("datum.color === 'good' ? 90 : 0"),
        "size": signal("datum.root ? 110 : 60"),
        "fill": signal(_PAINT),
        "fillOpacity": signal("datum.between ? 0 : datum.root ? 1 : 0.35"),
        "stroke": signal(_PAINT),
        "strokeWidth": 1.5,
        "tooltip": {"field": "tip"},
    }
    dash = signal("datum.between ? [2, 3] : []")
    return [
        mark("rule", {**reach, "stroke": signal(_PAINT), "strokeWidth": 2, "strokeDash": dash}, "events"),
        {**mark("symbol", point, "events"), "interactive": True},
    ]


def _counts() -> Json:
    """The number of events of a mark, at its upper right if there is room; not cut off at the edge."""
    edge = f"width + (narrow ? {NARROW_RIGHT} : {RIGHT})"
    until = f"(isValid(datum.next) ? min(scale('x', datum.next), {edge}) : {edge})"
    fits = f"{until} - scale('x', datum.t) > 14 + 6.6 * length(datum.count)"
    count = {
        "text": signal(f"datum.t >= shown[0] && datum.t <= shown[1] && {fits} ? datum.count : ''"),
        "x": {"scale": "x", "field": "t", "offset": 6},
        "y": {"field": "y", "offset": -5},
        "baseline": "middle",
        "fontSize": 10,
        "fill": signal("ink"),
    }
    return mark("text", count, "events")


CHART = Chart("timeline", "Timeline", 10, draw, (JOBS, *EVENT_QUERIES))
