"""The events of the timeline, from logs, schedulers and metrics: sorted into lanes, close events merged."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.events import EVENTS
from trackside.catalog.throttle import REASONS, mask, reasons_in
from trackside.catalog.xid import XIDS
from trackside.evidence import Grid
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import window_ranges
from trackside.facts.gpus import gpu_name
from trackside.model import Event, EventRole, TimeRange
from trackside.query import Query, events, metric
from trackside.show.charts.phases import events_of, samples_of
from trackside.show.sanitize import replace_unsafe
from trackside.wording import moment, word
from trackside.wording import span as time_span

LANES: Mapping[str, tuple[str, ...]] = {
    "training": ("training_start", "training_end", "launcher_restart", "requeue_requested", "resume_requested"),
    "checkpoints": ("checkpoint_saved", "checkpoint_loaded", "checkpoint_missing", "checkpoint_skipped"),
    "evaluations": ("evaluation",),
    "rendezvous": ("distributed_init", "distributed_ready", "rendezvous_failure"),
    "loss scale": ("loss_scale_cut",),
    "exceptions": ("exception", "python_fatal"),
    "out of memory": ("cuda_oom", "oom_kill"),
    "CUDA errors": ("cuda_error",),
    "collectives": (
        "collective_timeout", "collective_mismatch", "heartbeat_lost", "peer_lost", "nccl_error", "nccl_warn",
    ),
    "process exits": ("process_exit", "launcher_failure", "signal_received", "user_interrupt", "dataloader_death"),
    "storage": ("storage_fault",),
    "notices": ("scheduler_notice", "job_state"),
    "GPU faults": ("xid", "sxid", "gpu_lost"),
    "host faults": ("machine_check", "link_down", "hung_task"),
    "nodes": ("node_state", "boot"),
}  # fmt: skip
"""Lane -> kinds of events."""
HARDWARE = ("GPU faults", "host faults", "nodes")
"""Lanes at the bottom: hardware and node events."""
_STATE_KINDS = (
    "progress", "earlier_progress", "parent_progress", "rank_progress", "training_plan", "program_start",
    "log_activity", "kernel_log", "host", "env_flag",
    "advice", "collective_state", "stack", "process_state", "nccl_init", "nccl_transport", "source_unanswered",
)  # fmt: skip
"""Kinds that describe a state or are drawn in other charts; not shown as events."""
_LANE_BY_KIND = {kind: lane for lane, kinds in LANES.items() for kind in kinds} | {
    kind: "other" for kind in EVENTS if kind not in _STATE_KINDS and not any(kind in kinds for kinds in LANES.values())
}
_NEUTRAL_LANES = ("training", "checkpoints", "evaluations", "rendezvous", "notices")
_FAULTS_IN_NEUTRAL_LANES = ("checkpoint_missing", "rendezvous_failure")
"""Kinds in calm lanes that are faults nevertheless."""
XID = metric("gpu_xid_last").over("run", "onset")
ERRORS: Mapping[str, Query] = {
    "uncorrectable ECC errors": metric("gpu_ecc_uncorrectable_total").over("run", "increase"),
    "rows remapped for uncorrectable errors": metric("gpu_rows_remapped_uncorrectable_total").over("run", "increase"),
}
THROTTLE_FLAGS = metric("gpu_throttle_reasons").over("run", "last")
EVENT_QUERIES = (*(events(kind) for kind in _LANE_BY_KIND), XID, *ERRORS.values(), THROTTLE_FLAGS)
MAX_SLOTS = 110
"""Number of time slots of the window: the events of a lane within one slot are drawn as one mark."""
MAX_TIP_EVENTS, MAX_TIP_CHARS = 4, 160
"""Maximum events listed in a tooltip, and maximum characters of each."""
MAX_MARKS, MIN_SLOTS = 400, 10
"""Maximum marks of all lanes together; slots are widened to stay below it, down to ``MIN_SLOTS`` slots."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One event: from a log or record (``event``), or derived from a metric (``text``)."""

    lane: str
    time: float
    event: Event | None = None
    text: str = ""
    until: float | None = None
    """For an event without a timestamp: it lies between ``time`` and this, by the lines around it in its file."""
    zoned: bool = True
    """Whether the time zone is known."""

    @property
    def stamp(self) -> str:
        """The time as text."""
        text = time_span((self.time, self.time if self.until is None else self.until), self.zoned)
        return f"between {text.replace(' to ', ' and ')}" if " to " in text else text

    @property
    def color(self) -> str:
        """The color signal: by severity, and whether the event is a symptom of a failure elsewhere."""
        if self.lane in _NEUTRAL_LANES and (self.event is None or self.event.kind not in _FAULTS_IN_NEUTRAL_LANES):
            return "good" if self.lane in ("checkpoints", "evaluations") else "ink"
        return "bad" if self.event is None or self.event.role in (EventRole.ROOT, EventRole.OBSERVATION) else "warn"

    @property
    def root(self) -> bool:
        """Whether the event can be a root cause."""
        return self.event is not None and self.event.role is EventRole.ROOT and self.color == "bad"

    @property
    def description(self) -> str:
        """The text of the event, in one line."""
        text = self.text if self.event is None else self.event.text or self.event.kind.replace("_", " ")
        line = " ".join(replace_unsafe(text[: 4 * MAX_TIP_CHARS]).split())
        return line if len(line) <= MAX_TIP_CHARS else line[: MAX_TIP_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"

    @property
    def where(self) -> str:
        """The source: rank, node and log position."""
        if self.event is None:
            return "from metrics"
        rank = f"rank {self.event.rank}" if self.event.rank is not None else ""
        return replace_unsafe(", ".join(filter(None, (rank, self.event.node, str(self.event.at)))))


@dataclass(frozen=True, slots=True)
class EventGroup:
    """One or more events of a lane within one time slot. ``root``: whether one of them can be a root cause.
    ``between``: whether they have no timestamp, and lie somewhere from ``time`` to ``end``."""

    lane: str
    time: float
    end: float
    first: str
    tip: str
    color: str
    root: bool
    count: int
    between: bool = False


def logged_events(facts: Facts, span: TimeRange, end: float) -> tuple[list[TimelineEvent], list[TimelineEvent]]:
    """(events in the span, events of unknown time). An event without a timestamp lies between the nearest earlier and
    later events of its file that have one; without a later one, before the end of the run."""
    rows = [row for kind in (*_LANE_BY_KIND, "progress") for row in events_of(facts, events(kind))]
    files = {row.at.path for row in rows if row.time is None}
    timed = sorted(
        (row.at.path, row.at.line, row.time) for row in rows if row.time is not None and row.at.path in files
    )
    zoned = facts.run.has_time_zone
    placed_events, unplaced_events = [], []
    for row in rows:
        lane = _LANE_BY_KIND.get(row.kind)
        if lane is None:
            continue
        if row.time is not None:
            if span[0] <= row.time <= span[1]:
                placed_events.append(TimelineEvent(lane, row.time, row, zoned=zoned))
            continue
        index = bisect(timed, (row.at.path, row.at.line, inf))
        before, after = timed[index - 1 : index], timed[index : index + 1]
        if before and before[0][0] == row.at.path and span[0] <= before[0][2] <= span[1]:
            until = after[0][2] if after and after[0][0] == row.at.path else end
            until = max(before[0][2], min(until, end))
            placed_events.append(TimelineEvent(lane, before[0][2], row, until=until, zoned=zoned))
        else:
            unplaced_events.append(TimelineEvent(lane, span[0], row, zoned=zoned))
    return placed_events, unplaced_events


def metric_events(facts: Facts, span: TimeRange) -> Iterator[TimelineEvent]:
    """Yield the faults that metrics count, those of one kind and window as one event."""
    if (xids := samples_of(facts, XID)) is not None:
        codes = np.nan_to_num(xids.values).astype(np.int64)
        for column in np.flatnonzero((codes > 0).any(axis=0)).tolist():
            values = codes[:, column]
            for number in np.unique(values[values > 0]).tolist():
                xid = XIDS.get(number)
                name = f"Xid {number}{f' ({xid.mnemonic})' if xid else ''}"
                yield _metric_event(xids, column, name, np.flatnonzero(values == number), span)
    for name, query in ERRORS.items():
        if (errors := samples_of(facts, query)) is not None:
            counts = np.nan_to_num(errors.values)
            for column in np.flatnonzero((counts > 0).any(axis=0)).tolist():
                text = f"{counts[:, column].sum():,.0f} {name}"
                yield _metric_event(errors, column, text, np.flatnonzero(counts[:, column] > 0), span)


def _metric_event(grid: Grid, column: int, text: str, rows: NDArray[np.intp], span: TimeRange) -> TimelineEvent:
    gpus = tuple(gpu_name(grid.series[row]) for row in rows.tolist())
    time = min(max(float(grid.times[column]), span[0]), span[1])
    return TimelineEvent("GPU faults", time, text=f"{text} on {word(gpus)}")


def throttled_spans(facts: Facts) -> Iterator[tuple[float, float, str, str]]:
    """Yield the spans (from, to, name, tooltip) of at least two windows in which clocks were throttled. Shorter ones
    are ignored: NVML reports hardware slowdown briefly at every change of performance state."""
    flags = samples_of(facts, THROTTLE_FLAGS)
    if flags is None:
        return
    values = np.nan_to_num(flags.values).astype(np.int64) & mask("hard", "thermal")
    lasting = _lasting_flags(values != 0)
    any_gpu: NDArray[np.bool_] = np.logical_or.reduce(lasting, axis=0)
    for start, stop in window_ranges(any_gpu):
        rows = lasting[:, start:stop].any(axis=1)
        bits = int(np.bitwise_or.reduce(values[:, start:stop][rows], axis=None))
        gpus = [gpu_name(flags.series[row]) for row in np.flatnonzero(rows)]
        reasons = "; ".join(REASONS[name].title for name in reasons_in(bits))
        name = f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"
        start_s, end_s = float(flags.times[start]) - flags.step, float(flags.times[stop - 1])
        yield (
            start_s,
            end_s,
            name,
            f"{name}: {replace_unsafe(word(tuple(gpus)))}\n{reasons}\n"
            f"{time_span((start_s, end_s), facts.run.has_time_zone)}",
        )


def _lasting_flags(throttled: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The windows that are set and have a neighbor that is set as well."""
    padded = np.pad(throttled, ((0, 0), (1, 1)))
    return throttled & (padded[:, :-2] | padded[:, 2:])


def merge_close(timeline_events: Sequence[TimelineEvent], span: TimeRange) -> list[EventGroup]:
    """The events of one lane and slot as one group, in order of time; events without a timestamp form groups of their
    own. If too many marks remain, the slots are made wider."""
    ordered = sorted(timeline_events, key=lambda event: event.time)
    n_slots = MAX_SLOTS
    while True:
        width = (span[1] - span[0]) / n_slots
        groups: dict[tuple[str, bool], list[list[TimelineEvent]]] = {}
        for event in ordered:
            lane = groups.setdefault((event.lane, event.until is None), [])
            if lane and event.time - lane[-1][0].time < width:
                lane[-1].append(event)
            else:
                lane.append([event])
        if n_slots <= MIN_SLOTS or sum(map(len, groups.values())) <= MAX_MARKS:
            break
        n_slots //= 2
    return sorted((_group(group) for lane in groups.values() for group in lane), key=lambda group: group.time)


def by_lane(timeline_events: Sequence[TimelineEvent]) -> list[EventGroup]:
    """All events of a lane as one group."""
    lanes: dict[str, list[TimelineEvent]] = {}
    for event in timeline_events:
        lanes.setdefault(event.lane, []).append(event)
    return [_group(group) for group in lanes.values()]


def _group(group: Sequence[TimelineEvent]) -> EventGroup:
    leading = next((event for event in group if event.root), None) or max(
        group, key=lambda event: _SEVERITY[event.color]
    )
    if len(group) == 1:
        tip = f"{leading.stamp}  {leading.where}\n{leading.description}"
    else:
        lines = [f"{event.stamp}  {event.where}  {event.description}" for event in group[:MAX_TIP_EVENTS]]
        if len(group) > MAX_TIP_EVENTS:
            lines.append(f"and {len(group) - MAX_TIP_EVENTS:,} more until {moment(group[-1].time, group[-1].zoned)}")
        tip = "\n".join(lines)
    words = leading.description if len(group) == 1 else f"{leading.description}, and others"
    end = max(event.time if event.until is None else event.until for event in group)
    return EventGroup(
        leading.lane, group[0].time, end, words, tip, leading.color, leading.root, len(group), leading.until is not None
    )


_SEVERITY = {"bad": 3, "warn": 2, "ink": 1, "good": 0}
