"""What logs, schedulers and metrics say happened at a moment: sorted into lanes, those of one place as one."""

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
from trackside.facts.gpu.activity import spells
from trackside.facts.gpus import name_of
from trackside.model import Event, Role
from trackside.query import Query, events, metric
from trackside.show.charts.phases import events_of, sampled
from trackside.show.charts.time_axis import Span
from trackside.show.sanitize import shown
from trackside.show.wording import moment, word

LANES: Mapping[str, tuple[str, ...]] = {
    "training": ("training_start", "training_end", "launcher_restart", "requeue_requested", "resume_requested"),
    "checkpoints": ("checkpoint_saved", "checkpoint_loaded", "checkpoint_missing", "checkpoint_skipped"),
    "evaluations": ("evaluation",),
    "ranks meet": ("distributed_init", "distributed_ready", "rendezvous_failure"),
    "loss scale cut": ("loss_scale_cut",),
    "exceptions": ("exception", "python_fatal"),
    "out of memory": ("cuda_oom", "oom_kill"),
    "CUDA errors": ("cuda_error",),
    "collectives": (
        "collective_timeout", "collective_mismatch", "heartbeat_lost", "peer_lost", "nccl_error", "nccl_warn",
    ),
    "processes end": ("process_exit", "launcher_failure", "signal_received", "user_interrupt", "dataloader_death"),
    "storage": ("storage_fault",),
    "scheduler says": ("scheduler_notice", "job_state"),
    "GPU faults": ("xid", "sxid", "gpu_lost"),
    "host faults": ("machine_check", "link_down", "hung_task"),
    "nodes": ("node_state", "boot"),
}  # fmt: skip
"""Lane -> kinds of events."""
HARDWARE = ("GPU faults", "host faults", "nodes")
"""Lanes at the bottom: what the machines say."""
_STEADY = (
    "progress", "parent_progress", "rank_progress", "training_plan", "log_activity", "kernel_log", "host", "env_flag",
    "advice", "collective_state", "stack", "process_state", "nccl_init", "nccl_transport", "source_unanswered",
)  # fmt: skip
"""Kinds that tell of a state or are drawn otherwise, and happen at no moment."""
_LANE = {kind: lane for lane, kinds in LANES.items() for kind in kinds} | {
    kind: "others" for kind in EVENTS if kind not in _STEADY and not any(kind in kinds for kinds in LANES.values())
}
_CALM = ("training", "checkpoints", "evaluations", "ranks meet", "scheduler says")
_CALMED = ("checkpoint_missing", "rendezvous_failure")
"""Kinds in calm lanes that are none."""
XID = metric("gpu_xid_last").over("run", "onset")
ERRORS: Mapping[str, Query] = {
    "uncorrectable ECC errors": metric("gpu_ecc_uncorrectable_total").over("run", "increase"),
    "rows remapped for uncorrectable errors": metric("gpu_rows_remapped_uncorrectable_total").over("run", "increase"),
}
FLAGS = metric("gpu_throttle_reasons").over("run", "last")
EVENT_ASKS = (*(events(kind) for kind in _LANE), XID, *ERRORS.values(), FLAGS)
PLACES = 110
"""Places that the window is divided into: what one lane holds in one of them is drawn as one."""
TOLD, LONGEST = 4, 160
"""Events of one place that are told one by one, and characters of each."""
MOST, FEWEST = 400, 10
"""Marks of all lanes together, as far as this many places allow."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened: an event, or what a metric shows, as ``text``."""

    lane: str
    time: float
    event: Event | None = None
    text: str = ""
    until: float | None = None
    """Of an event that bears no time: it lies between ``time`` and this, by what is timed around it in its file."""

    @property
    def stamp(self) -> str:
        """When it was."""
        return moment(self.time) if self.until is None else f"between {moment(self.time)} and {moment(self.until)}"

    @property
    def colour(self) -> str:
        """By how grave it is, and whether it is somebody else's failure seen from here."""
        if self.lane in _CALM and (self.event is None or self.event.kind not in _CALMED):
            return "good" if self.lane in ("checkpoints", "evaluations") else "ink"
        return "bad" if self.event is None or self.event.role in (Role.ROOT, Role.FACT) else "warn"

    @property
    def root(self) -> bool:
        """Whether it can name a cause by itself."""
        return self.event is not None and self.event.role is Role.ROOT and self.colour == "bad"

    @property
    def words(self) -> str:
        """What it says, in one line."""
        text = self.text if self.event is None else self.event.text or self.event.kind.replace("_", " ")
        line = " ".join(shown(text[: 4 * LONGEST]).split())
        return line if len(line) <= LONGEST else line[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"

    @property
    def where(self) -> str:
        """Who says so."""
        if self.event is None:
            return "as metrics show"
        rank = f"rank {self.event.rank}" if self.event.rank is not None else ""
        return shown(", ".join(filter(None, (rank, self.event.node, str(self.event.at)))))


@dataclass(frozen=True, slots=True)
class Happening:
    """One or several moments of a lane in one place. ``root``: whether one of them can name a cause by itself.
    ``between``: whether they bear no time, and lie somewhere from ``time`` to ``end``."""

    lane: str
    time: float
    end: float
    first: str
    tip: str
    colour: str
    root: bool
    count: int
    between: bool = False


def said(facts: Facts, span: Span, end: float) -> tuple[list[Moment], list[Moment]]:
    """The events in the span, and those of which nothing tells when they were. An event that bears no time lies between
    the last one before it in its file that does and the next, or the run's end."""
    rows = [row for kind in (*_LANE, "progress") for row in events_of(facts, events(kind))]
    files = {row.at.path for row in rows if row.time is None}
    timed = sorted(
        (row.at.path, row.at.line, row.time) for row in rows if row.time is not None and row.at.path in files
    )
    found, untold = [], []
    for row in rows:
        lane = _LANE.get(row.kind)
        if lane is None:
            continue
        if row.time is not None:
            if span[0] <= row.time <= span[1]:
                found.append(Moment(lane, row.time, row))
            continue
        place = bisect(timed, (row.at.path, row.at.line, inf))
        before, after = timed[place - 1 : place], timed[place : place + 1]
        if before and before[0][0] == row.at.path and span[0] <= before[0][2] <= span[1]:
            until = after[0][2] if after and after[0][0] == row.at.path else end
            found.append(Moment(lane, before[0][2], row, until=max(before[0][2], min(until, end))))
        else:
            untold.append(Moment(lane, span[0], row))
    return found, untold


def counted(facts: Facts, span: Span) -> Iterator[Moment]:
    """The faults that metrics counted: of one window and sort as one."""
    if (xids := sampled(facts, XID)) is not None:
        every = np.nan_to_num(xids.values).astype(np.int64)
        for column in np.flatnonzero((every > 0).any(axis=0)).tolist():
            values = every[:, column]
            for number in np.unique(values[values > 0]).tolist():
                known = XIDS.get(number)
                name = f"Xid {number}{f' ({known.mnemonic})' if known else ''}"
                yield _at(xids, column, name, np.flatnonzero(values == number), span)
    for name, query in ERRORS.items():
        if (errors := sampled(facts, query)) is not None:
            counts = np.nan_to_num(errors.values)
            for column in np.flatnonzero((counts > 0).any(axis=0)).tolist():
                told = f"{counts[:, column].sum():,.0f} {name}"
                yield _at(errors, column, told, np.flatnonzero(counts[:, column] > 0), span)


def _at(grid: Grid, column: int, text: str, rows: NDArray[np.intp], span: Span) -> Moment:
    gpus = tuple(name_of(grid.series[row]) for row in rows.tolist())
    time = min(max(float(grid.times[column]), span[0]), span[1])
    return Moment("GPU faults", time, text=f"{text} on {word(gpus)}")


def held_down(facts: Facts) -> Iterator[tuple[float, float, str, str]]:
    """The stretches (from, to, name, what it tells) over which clocks were held down for two windows or longer: NVML
    sets hardware slowdown for a moment at every change of performance state."""
    flags = sampled(facts, FLAGS)
    if flags is None:
        return
    values = np.nan_to_num(flags.values).astype(np.int64) & mask("hard", "thermal")
    lasting = _lasting(values != 0)
    some: NDArray[np.bool_] = np.logical_or.reduce(lasting, axis=0)
    for start, stop in spells(some):
        rows = lasting[:, start:stop].any(axis=1)
        bits = int(np.bitwise_or.reduce(values[:, start:stop][rows], axis=None))
        gpus = [name_of(flags.series[row]) for row in np.flatnonzero(rows)]
        why = "; ".join(REASONS[name].title for name in reasons_in(bits))
        name = f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"
        begin, end = float(flags.times[start]) - flags.step, float(flags.times[stop - 1])
        yield begin, end, name, f"{name}: {shown(word(tuple(gpus)))}\n{why}\n{moment(begin)} to {moment(end)}"


def _lasting(held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Only where the window beside it is set as well."""
    beside = np.pad(held, ((0, 0), (1, 1)))
    return held & (beside[:, :-2] | beside[:, 2:])


def merged(found: Sequence[Moment], span: Span) -> list[Happening]:
    """Those of one lane in one place as one, in order of time, those that bear no time by themselves; where many are
    left, in wider places."""
    found = sorted(found, key=lambda each: each.time)
    places = PLACES
    while True:
        width = (span[1] - span[0]) / places
        groups: dict[tuple[str, bool], list[list[Moment]]] = {}
        for each in found:
            lane = groups.setdefault((each.lane, each.until is None), [])
            if lane and each.time - lane[-1][0].time < width:
                lane[-1].append(each)
            else:
                lane.append([each])
        if places <= FEWEST or sum(map(len, groups.values())) <= MOST:
            break
        places //= 2
    return sorted((_one(group) for lane in groups.values() for group in lane), key=lambda each: each.time)


def by_lane(found: Sequence[Moment]) -> list[Happening]:
    """Those of one lane as one, wherever they are."""
    lanes: dict[str, list[Moment]] = {}
    for each in found:
        lanes.setdefault(each.lane, []).append(each)
    return [_one(group) for group in lanes.values()]


def _one(group: Sequence[Moment]) -> Happening:
    chief = next((each for each in group if each.root), None) or max(group, key=lambda each: _GRAVE[each.colour])
    if len(group) == 1:
        tip = f"{chief.stamp}  {chief.where}\n{chief.words}"
    else:
        lines = [f"{each.stamp}  {each.where}  {each.words}" for each in group[:TOLD]]
        if len(group) > TOLD:
            lines.append(f"and {len(group) - TOLD:,} more until {moment(group[-1].time)}")
        tip = "\n".join(lines)
    words = chief.words if len(group) == 1 else f"{chief.words}, and others"
    end = max(each.time if each.until is None else each.until for each in group)
    return Happening(
        chief.lane, group[0].time, end, words, tip, chief.colour, chief.root, len(group), chief.until is not None
    )


_GRAVE = {"bad": 3, "warn": 2, "ink": 1, "good": 0}
