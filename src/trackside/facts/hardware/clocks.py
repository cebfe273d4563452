"""GPUs whose clocks were held down while they worked: for how long, how far, and for which reasons. Pure.

Each GPU is compared with its own level at other times of the run, else with the run's other GPUs in the same windows:
how high a clock is normal depends on the model, the power limit and the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.gpu_models import rating_of
from trackside.catalog.throttle import REASONS, mask, reasons_in
from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.gpu.activity import GpuActivity, activity
from trackside.facts.gpu.power_limits import rated_clock, rated_power
from trackside.facts.gpus import aligned, all_names, name_of, of_gpu
from trackside.facts.hardware.throttling import Against, Clocks, Held, Limits, Span
from trackside.model import Run

Matrix = NDArray[np.float64]
Flags = NDArray[np.bool_]
GRAVE = mask("hard", "thermal")


def clocks(evidence: Evidence, run: Run, limits: Limits) -> Clocks | None:
    """None where neither reasons nor counters nor clocks with temperatures were measured."""
    grids = {name: evidence.grid(name) for name in ("reasons", "held", "clocks", "temperature", "most")}
    main = next((grids[name] for name in ("reasons", "held", "clocks") if grids[name] is not None), None)
    if main is None:
        return None
    times, step = main.times, main.step
    shown = all_names(grids["reasons"], grids["held"], grids["clocks"])
    gpus = tuple(dict.fromkeys([*(name for name in run.gpus if name in shown), *shown]))
    done = activity(evidence, run)
    clock = aligned(grids["clocks"], gpus, times)
    busy = _busy(evidence, done, gpus, times, clock, limits)
    flags = aligned(grids["reasons"], gpus, times)
    counted = _counted(grids["held"], gpus, times, step)
    if grids["reasons"] is not None or not np.isnan(counted).all():
        grave = (np.nan_to_num(flags).astype(np.int64) & GRAVE != 0) | (np.nan_to_num(counted) >= limits.counted_share)
        if grids["reasons"] is None and grids["clocks"] is not None and grids["temperature"] is not None:
            # DCGM's violation times are said to be in microseconds and come in nanoseconds: that they grow is sure.
            grave |= (np.nan_to_num(counted) > 0) & _hot_and_low(evidence, gpus, times, clock, busy, limits)
        known, told_by = (
            ~np.isnan(flags) | ~np.isnan(counted),
            "reasons" if grids["reasons"] is not None else "counters",
        )
    elif grids["clocks"] is not None and grids["temperature"] is not None:
        grave = _hot_and_low(evidence, gpus, times, clock, busy, limits)
        known, told_by = ~np.isnan(clock), "heat"
    else:
        return None
    stretches: dict[int, NDArray[np.intp]] = {}
    brief = None
    at_work = [np.flatnonzero(row) for row in known & busy]
    for row in np.flatnonzero((grave & busy & known).any(axis=1)):
        on = _sustained(grave[row], at_work[row], step, limits)
        if on is None:
            brief = gpus[row]
        else:
            stretches[int(row)] = on
    free = [gpu for row, gpu in enumerate(gpus) if row not in stretches and len(at_work[row])]
    found = [
        _held(evidence, gpus[row], on, at_work[row][~grave[row, at_work[row]]], times, step, free)
        for row, on in stretches.items()
    ]
    found.sort(key=lambda each: -each.seconds.number)  # stable: equal ones stay in the order of GPUs
    heat = aligned(grids["temperature"], gpus, times)
    hot = any(np.nanmax(heat[row, on], initial=0.0) >= limits.hot_c for row, on in stretches.items())
    return Clocks(
        tuple(found),
        told_by,
        len(gpus),
        main.samples / max(1, len(main)),
        brief,
        hot,
        _to_the_end(evidence, done, limits),
    )


def _busy(
    evidence: Evidence, done: GpuActivity | None, gpus: tuple[str, ...], times: Matrix, clock: Matrix, limits: Limits
) -> Flags:
    """(GPUs, windows) Whether each was at work, or looked like it: only idle clocks are to be left out."""
    busy = aligned(evidence.grid("engine") or evidence.grid("utilisation"), gpus, times)
    sure, idle = np.zeros(busy.shape, dtype=bool), np.zeros(busy.shape, dtype=bool)
    with np.errstate(invalid="ignore"):
        sure |= busy >= limits.busy
        idle |= busy < limits.busy
    if done is not None and len(done.times) == len(times):
        place = {name: row for row, name in enumerate(done.gpus)}
        rows = [place.get(name, -1) for name in gpus]
        told = np.array([row >= 0 for row in rows])[:, None]
        sure |= told & done.working[rows]
        idle |= told & done.known[rows] & ~done.working[rows] & np.isnan(busy)
    flags = np.nan_to_num(aligned(evidence.grid("reasons"), gpus, times)).astype(np.int64)
    idle |= flags & REASONS["gpu_idle"].bit != 0
    with np.errstate(invalid="ignore"):
        awake = ~(clock < 0.5 * np.fmax.reduce(clock, axis=1, initial=-np.inf)[:, None])
    at_work: Flags = sure | (~idle & (awake | (flags & GRAVE != 0)))
    return at_work


def _counted(grid: Grid | None, gpus: tuple[str, ...], times: Matrix, step: float) -> Matrix:
    """(GPUs, windows) The largest share of a window that counters of grave reasons give; NaN where there are none."""
    out = np.full((len(gpus), len(times)), np.nan)
    if grid is None or len(grid.times) != len(times):
        return out
    place = {name: row for row, name in enumerate(gpus)}
    for row, series in enumerate(grid.series):
        reason = REASONS.get(series.get("reason") or "")
        if reason is not None and reason.severity != "benign":
            here = place[name_of(series)]
            out[here] = np.fmax(out[here], grid.values[row] / step)
    return out


def _hot_and_low(
    evidence: Evidence, gpus: tuple[str, ...], times: Matrix, clock: Matrix, busy: Flags, limits: Limits
) -> Flags:
    """(GPUs, windows) Hot, with a clock below its own best level or the others', or far below the highest that it can
    reach, and not at the power limit."""
    working = np.where(busy, clock, np.nan)
    held = ~np.isnan(working)
    best = np.full((len(gpus), 1), np.nan)
    rows = held.any(axis=1)
    best[rows, 0] = np.nanquantile(working[rows], 0.9, axis=1) if rows.any() else np.nan
    others = np.full((1, len(times)), np.nan)
    columns = held.any(axis=0)
    if len(gpus) > 1 and columns.any():
        others[0, columns] = np.nanmedian(working[:, columns], axis=0)
    power = aligned(evidence.grid("power"), gpus, times)
    limit = rated_power(evidence.grid("power_limit"), evidence.grid("power"), gpus, times)
    top = rated_clock(evidence.grid("most"), evidence.grid("clocks"), gpus, times)
    with np.errstate(invalid="ignore"):
        low = working < (1 - limits.drop) * np.fmax(best, others)
        low |= (working < (1 - limits.drop_from_most) * top) & (power < limits.far_from_limit * limit)
        hot = aligned(evidence.grid("temperature"), gpus, times) >= limits.hot_c
        capped = power >= limits.at_limit * limit
    grave: Flags = low & hot & ~capped
    return grave


def _sustained(grave: Flags, at: NDArray[np.intp], step: float, limits: Limits) -> NDArray[np.intp] | None:
    """Of the windows ``at``, those in which a reason held on, single samples smoothed away; None where it did not."""
    flags = grave[at].astype(np.int64)
    if flags.sum() < limits.windows:
        return None
    width = min(5, len(flags) | 1)
    padded = np.pad(flags, width // 2, mode="edge")
    on: NDArray[np.intp] = at[np.convolve(padded, np.ones(width, dtype=np.int64), "valid")[: len(flags)] * 2 > width]
    gap = float(np.median(np.diff(at))) if len(at) > 1 else 1.0
    return on if len(on) >= limits.windows and len(on) * gap * step >= limits.least_s else None


def _held(
    evidence: Evidence,
    gpu: str,
    on: NDArray[np.intp],
    free: NDArray[np.intp],
    times: Matrix,
    step: float,
    peers: Sequence[str],
) -> Held:
    """What is told of one GPU's throttling: ``on`` are its windows, ``free`` those of work with free clocks, ``peers``
    the GPUs at work whose clocks were free."""
    first, last = _stretch(on)
    start, end = float(times[first]) - step, float(times[last])
    before = _free((free[free < first], free[free > last]), times, step)
    grid = evidence.grid("clocks")
    own = of_gpu(grid, gpu) if grid is not None and gpu in {name_of(each) for each in grid.series} else None
    clock = None if own is None else _megahertz(own.during(start, end))
    usual, against = _usual(evidence, gpu, own, before, (start, end), peers)
    drop = 1 - clock.number / usual.number if clock is not None and usual is not None and usual.number > 0 else None
    why, names = _why(evidence, gpu, start, end)
    sources = [value for value in (why, clock) if value is not None]
    seconds = derived(len(on) * step, *sources, unit="s")
    share = len(on) / (len(on) + len(free))
    return Held(gpu, start, end, before, seconds, min(share, 1.0), why, names, clock, usual, against, drop)


def _usual(
    evidence: Evidence, gpu: str, own: Grid | None, before: Span | None, during: Span, peers: Sequence[str]
) -> tuple[Value | None, Against]:
    """What the clock should have been: its own with free clocks, else the other GPUs', else the highest there is."""
    grid, most = evidence.grid("clocks"), evidence.grid("most")
    if own is not None and before is not None and (value := _megahertz(own.during(*before))) is not None:
        return value, "own"
    if grid is not None and len(grid) > 2 and 2 * len(peers) >= len(grid):  # then the median is that of free ones
        return _megahertz(grid.during(*during)), "peers"
    if most is not None and gpu in {name_of(each) for each in most.series}:
        return _megahertz(of_gpu(most, gpu)), "most"
    rating = rating_of(own.series[0].get("gpu_model")) if own is not None else None
    if own is not None and rating is not None:
        return derived(rating.sm_clock_hertz / 1e6, own.value("count"), unit="MHz"), "most"
    return None, "most"


def _free(parts: Sequence[NDArray[np.intp]], times: Matrix, step: float) -> Span | None:
    """A stretch of free clocks: that before the throttling where it holds three windows, else that after it."""
    part = next((each for each in parts if len(each) >= 3), None)
    return None if part is None else (float(times[part[0]]) - step, float(times[part[-1]]))


def _stretch(on: NDArray[np.intp]) -> tuple[int, int]:
    """First and last window of the whole where it is mostly held, else of the longest part."""
    if len(on) >= 0.5 * (on[-1] - on[0] + 1):
        return int(on[0]), int(on[-1])
    parts = np.split(on, np.flatnonzero(np.diff(on) > 2) + 1)
    longest = max(parts, key=len)
    return int(longest[0]), int(longest[-1])


def _megahertz(grid: Grid) -> Value | None:
    value = grid.value("median")
    return None if value.value is None else derived(value.number / 1e6, value, unit="MHz")


def _why(evidence: Evidence, gpu: str, start: float, end: float) -> tuple[Value | None, tuple[str, ...]]:
    """The grave reasons that were set meanwhile: their titles, cited, and their names."""
    names: dict[str, Value] = {}
    flags, counted = evidence.grid("reasons"), evidence.grid("held")
    if flags is not None:
        part = of_gpu(flags, gpu).during(start, end)
        bits = part.values[~np.isnan(part.values)].astype(np.int64)
        for name, reason in REASONS.items():
            if reason.bit & GRAVE and len(bits) and 4 * (bits & reason.bit != 0).sum() >= len(bits):
                names[name] = part.value("max")
    for series in counted.series if counted is not None and not names else ():
        name = series.get("reason") or ""
        if name_of(series) == gpu and name in REASONS and REASONS[name].severity != "benign" and counted is not None:
            total = of_gpu(counted, gpu).where(reason=name).during(start, end).value("sum")
            if total.value:
                names[name] = total
    if not names:
        return None, ()
    if len(names) > 1:
        names.pop("hw_slowdown", None)  # only says that it is one of the others
    titles = tuple(REASONS[name].title for name in names)
    return derived(titles, *names.values()), tuple(names)


def reasons_set(grid: Grid) -> tuple[Value, Value]:
    """(the titles of all reasons that were ever set, the largest flags seen)."""
    most = grid.value("max", unit="")
    flags = int(np.bitwise_or.reduce(grid.values[~np.isnan(grid.values)].astype(np.int64), initial=0))
    titles = tuple(REASONS[name].title for name in reasons_in(flags))
    return derived(titles or ("none",), most), most


def _to_the_end(evidence: Evidence, done: GpuActivity | None, limits: Limits) -> bool:
    """Whether the GPUs worked until shortly before they were let go of, as far as that is told."""
    if done is None or done.basis in (None, "utilisation") or not done.active.any():
        return True
    active = done.active
    if done.basis == "power" and done.busy is not None:  # low clocks draw little, whatever they do
        with np.errstate(invalid="ignore"):
            active = active | ((done.busy[done.users] >= limits.busy).sum(axis=0) > 0.5 * done.users.sum())
    last = float(done.times[np.flatnonzero(active)[-1]])
    return _let_go(evidence, done) - last <= max(limits.quiet_s, 3 * done.step)


def _let_go(evidence: Evidence, done: GpuActivity) -> float:
    """Until when the GPUs in use held memory: where no record tells of the run's end, samples go on after it."""
    end = float(done.times[-1])
    memory = aligned(evidence.grid("memory"), [gpu for gpu, used in zip(done.gpus, done.users, strict=True) if used],
                     done.times)  # fmt: skip
    if np.isnan(memory).all():
        return end
    with np.errstate(invalid="ignore"):
        held = memory > 0.5 * np.fmax.reduce(memory, axis=1)[:, None]
    return float(done.times[np.flatnonzero(held.any(axis=0))[-1]]) if held.any() else end
