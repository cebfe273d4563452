"""The run from its submission to its end: what the scheduler, the logs and the hardware say happened, and when it began
to go wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trackside.catalog.job_states import ALIVE
from trackside.evidence import Frame
from trackside.facts.fact import Facts
from trackside.finding import Verdict
from trackside.model import Record
from trackside.query import record
from trackside.show.charts.chart import NARROW_LEFT, NARROW_RIGHT, RIGHT, Chart, Drawn
from trackside.show.charts.event_lanes import EVENT_ASKS, HARDWARE, Happening, by_lane, counted, held_down, merged, said
from trackside.show.charts.phases import first_cause, phases, run_window
from trackside.show.charts.time_axis import (
    Json,
    Span,
    clock,
    figure,
    label,
    mark,
    named_moment,
    readout,
    signal,
)
from trackside.show.sanitize import shown
from trackside.show.wording import duration, moment, word

JOBS = record("job")
LANE, BAR = 24, 15
"""Pixels of a lane, and of a bar in it."""
BEFORE = 0.07
"""Of the run's time, the most that is shown of the time it waited in the queue."""
ROWS = 50


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch in a lane. ``tip``: what it tells."""

    lane: str
    start: float
    end: float
    text: str
    tip: str
    colour: str


def draw(verdict: Verdict, facts: Facts) -> Drawn | None:
    """None where nothing tells two moments."""
    window = run_window(facts)
    if window is None:
        return None
    bars = [*_life(verdict, facts, window), *_phase_bars(facts)]
    span = _span(bars, window)
    bars += [Bar("clocks held down", *each, "warn") for each in held_down(facts)]
    moments, without = said(facts, span, window[1])
    happened, untimed = merged([*moments, *counted(facts, span)], span), by_lane(without)
    if not bars and not happened:
        return None
    lanes = _lanes(bars, happened)
    cause = first_cause(verdict, facts)
    return Drawn(
        _spec(span, bars, happened, lanes, cause),
        _caption(verdict, window, happened, untimed, cause),
        ("from", "to", "what", "how many", "what it says"),
        _rows(bars, happened, untimed, cause),
    )


# -- what there is


def _life(verdict: Verdict, facts: Facts, window: Span) -> Iterator[Bar]:
    """The attempts, and what each waited for."""
    run = verdict.run
    answer = facts.answer(JOBS)
    waited: set[tuple[float, float]] = set()
    for row in answer.records if isinstance(answer, Frame) else ():
        submit, eligible, start = (_time(row, name) for name in ("submit", "eligible", "start"))
        if submit is None or start is None or start <= submit or (submit, start) in waited:
            continue
        waited.add((submit, start))
        told = f"waited {duration(start - submit)}: submitted {moment(submit)}"
        told += f", eligible {moment(eligible)}" if eligible is not None else ""
        yield Bar("scheduler", submit, start, f"queued {duration(start - submit)}", told, "faint")
    attempts = [each for each in run.attempts if each.start is not None]
    for each in attempts:
        end = each.end if each.end is not None else window[1]
        state = shown(each.state or "state not known")
        name = f"attempt {each.number}: {state}" if len(attempts) > 1 else state
        told = f"{name}\n{moment(each.start or 0.0)} to {moment(end)}, {duration(end - (each.start or 0.0))}"
        told += f"\nexit code {each.exit_code}" if each.exit_code is not None else ""
        told += f"\non {shown(word(each.nodes))}" if each.nodes else ""
        yield Bar("scheduler", each.start or 0.0, end, name, told, _colour(each.state))
    if not attempts:
        name = shown(run.disposition or "the run")
        told = f"{name}\n{moment(window[0])} to {moment(window[1])}, {duration(window[1] - window[0])}"
        yield Bar("scheduler" if run.start is not None else "the run", *window, name, told, _colour(run.disposition))


def _time(row: Record, name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _colour(state: str | None) -> str:
    if state == "COMPLETED":
        return "good"
    return "accent" if state is None or state in ALIVE else "bad"


def _phase_bars(facts: Facts) -> Iterator[Bar]:
    for each in phases(facts):
        told = f"{each.name}: {duration(each.end - each.start)}\n{moment(each.start)} to {moment(each.end)}"
        yield Bar("phases", each.start, each.end, each.name, told, "accent" if each.training else "faint")


def _span(bars: Sequence[Bar], window: Span) -> Span:
    """From the first attempt, and a little of what it waited, to the end."""
    starts = [bar.start for bar in bars if bar.colour != "faint"] or [window[0]]
    start, end = min(*starts, window[0]), max(*(bar.end for bar in bars), window[1])
    queued = min((bar.start for bar in bars), default=start)
    room = BEFORE * (end - start)
    edge = 0.008 * (end - start)
    return max(queued, start - room) - edge, end + edge


def _lanes(bars: Sequence[Bar], happened: Sequence[Happening]) -> list[str]:
    """Those that hold anything: life first, then by what came first, the hardware's last."""
    life = list(dict.fromkeys(bar.lane for bar in bars if bar.lane != "clocks held down"))
    others = list(dict.fromkeys(each.lane for each in happened))
    held = ["clocks held down"] if any(bar.lane == "clocks held down" for bar in bars) else []
    soft = [lane for lane in others if lane not in HARDWARE]
    return [*life, *soft, *(lane for lane in others if lane in HARDWARE), *held]


# -- in words


def _caption(
    verdict: Verdict,
    window: Span,
    happened: Sequence[Happening],
    untimed: Sequence[Happening],
    cause: tuple[float, str] | None,
) -> str:
    run = verdict.run
    state = f", {shown(run.disposition)}" if run.disposition else ""
    told = f"{moment(window[0])} to {moment(window[1])} ({duration(window[1] - window[0])}){state}."
    if cause is not None:
        told += f" It began at {moment(cause[0])}: {cause[1]}."
    count = sum(each.count for each in happened)
    sorts = len({each.lane for each in happened})
    if count:
        told += f" {word(count, 'events')} of {word(sorts, 'sorts')}."
    if between := sum(each.count for each in happened if each.between):
        bear, lines = ("bears", "a dashed line shows") if between == 1 else ("bear", "dashed lines show")
        told += f" {between:,} of them {bear} no time: {lines} between which times in the same file."
    if untimed:
        count = sum(each.count for each in untimed)
        told += f" Nothing tells when {word(count, 'events')} happened: listed only."
    return told


def _rows(
    bars: Sequence[Bar], happened: Sequence[Happening], untimed: Sequence[Happening], cause: tuple[float, str] | None
) -> list[tuple[str, ...]]:
    """All in order of time; where that is too much, a row for each sort of event."""
    rows = [(bar.start, bar.end, bar.lane, "", bar.tip.split("\n")[0]) for bar in bars]
    if cause is not None:
        rows.append((cause[0], cause[0], "first cause", "", cause[1]))
    if len(rows) + len(happened) > ROWS:
        sorts: dict[str, list[Happening]] = {}
        for each in happened:
            sorts.setdefault(each.lane, []).append(each)
        happened = [
            replace(
                told[0],
                end=max(each.end for each in told),
                count=sum(each.count for each in told),
                between=all(each.between for each in told),
            )
            for told in sorts.values()
        ]
    rows += [
        (each.time, each.end, each.lane, f"{each.count:,}", f"{'in between: ' if each.between else ''}{each.first}")
        for each in happened
    ]
    rows.sort(key=lambda row: row[0])
    told = [(moment(start), moment(end) if end > start else "", *rest) for start, end, *rest in rows]
    return [*told, *(("not told", "", each.lane, f"{each.count:,}", each.first) for each in untimed)][:ROWS]


# -- as a picture


def _spec(
    span: Span,
    bars: Sequence[Bar],
    happened: Sequence[Happening],
    lanes: Sequence[str],
    cause: tuple[float, str] | None,
) -> Json:
    height = LANE * len(lanes)
    places = {lane: LANE * (place + 0.5) for place, lane in enumerate(lanes)}
    marks: list[Json] = []
    for lane, y in places.items():
        room, size = signal(f"narrow ? {NARROW_LEFT - 6} : 104"), signal("narrow ? 10 : 11")
        marks.append(
            label(lane, signal("narrow ? -4 : -12"), y, align="right", baseline="middle", limit=room, fontSize=size)
        )
        if not any(bar.lane == lane for bar in bars):
            marks.append(mark("rule", {"x": 0, "x2": signal("width"), "y": y, "stroke": signal("faint")}))
    inside = {"type": "group", "clip": True, "marks": [*_bars(), *_events()]}
    inside["encode"] = {"update": {"width": signal("width"), "height": {"value": height}}}
    stretches = [
        {"y": places[bar.lane], "from": round(max(bar.start, span[0]) * 1000), "to": round(bar.end * 1000),
         "text": bar.text, "tip": bar.tip, "colour": bar.colour}
        for bar in bars
    ]  # fmt: skip
    points = [
        {"y": places[each.lane], "t": round(each.time * 1000), "to": round(each.end * 1000), "tip": each.tip,
         "count": f"\N{MULTIPLICATION SIGN}{each.count}" if each.count > 1 else "", "colour": each.colour,
         "root": each.root, "between": each.between}
        for each in happened
    ]  # fmt: skip
    return figure(
        height,
        span,
        [
            *marks,
            inside,
            _counts(),
            *(named_moment(cause[0], f"first cause: {cause[1]}", height, "bad") if cause else []),
            readout(clock("moment")),
        ],
        data=[{"name": "bars", "values": stretches}, {"name": "events", "values": points, "transform": [_NEXT]}],
    )


_NEXT = {"type": "window", "groupby": ["y"], "ops": ["lead"], "fields": ["t"], "as": ["next"]}
"""Gives each event the time of the next in its lane."""
_PAINT = "{faint: faint, accent: accent, bad: bad, warn: warn, good: good, ink: ink}[datum.colour]"
"""Expression: the colour that a row names."""


def _bars() -> list[Json]:
    left, right = "clamp(scale('x', datum.from), 0, width)", "clamp(scale('x', datum.to), 0, width)"
    box = {
        "x": signal(left),
        "x2": signal(f"max({right}, {left} + 1)"),
        "y": signal(f"datum.y - {BAR / 2}"),
        "height": BAR,
        "fill": signal(_PAINT),
        "fillOpacity": signal("datum.colour === 'faint' ? 0.35 : 0.22"),
        "stroke": signal(_PAINT),
        "tooltip": {"field": "tip"},
    }
    words = {
        "text": signal(f"{right} - {left} > 6 * length(datum.text) + 6 ? datum.text : ''"),
        "x": signal(f"{left} + 5"),
        "y": {"field": "y"},
        "baseline": "middle",
        "fontSize": 10,
        "fill": signal("ink"),
    }
    return [{**mark("rect", box, "bars"), "interactive": True}, mark("text", words, "bars")]


def _events() -> list[Json]:
    """A stretch over which events were merged, dashed where they bear no time; and the events themselves, filled where
    one can name a cause."""
    reach = {"x": {"scale": "x", "field": "t"}, "x2": {"scale": "x", "field": "to"}, "y": {"field": "y"}}
    shape = signal("datum.root ? 'diamond' : datum.colour === 'good' ? 'stroke' : 'circle'")
    point = {
        "x": {"scale": "x", "field": "t"},
        "y": {"field": "y"},
        "shape": shape,
        "angle": signal("datum.colour === 'good' ? 90 : 0"),
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
    """How many events a mark stands for, above its right where there is room; not cut off at the edge."""
    edge = f"width + (narrow ? {NARROW_RIGHT} : {RIGHT})"
    until = f"(isValid(datum.next) ? min(scale('x', datum.next), {edge}) : {edge})"
    room = f"{until} - scale('x', datum.t) > 14 + 6 * length(datum.count)"
    count = {
        "text": signal(f"datum.t >= shown[0] && datum.t <= shown[1] && {room} ? datum.count : ''"),
        "x": {"scale": "x", "field": "t", "offset": 6},
        "y": {"field": "y", "offset": -5},
        "baseline": "middle",
        "fontSize": 9,
        "fill": signal("ink"),
    }
    return mark("text", count, "events")


CHART = Chart("timeline", "Timeline", 10, draw, (JOBS, *EVENT_ASKS))
