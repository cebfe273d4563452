"""Do the GPUs of a run that advances wait for each other, or for each launch, rather than work? Pure, on arrays.

Engine activity counts a kernel that only spins in a collective; SM activity hardly does. The difference is the wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts import maths
from trackside.facts.gpu.activity import GpuActivity
from trackside.facts.gpu.duty import TITLES, Duty
from trackside.facts.gpu.pipes import draws_little, pipes, power_limit
from trackside.facts.gpu.traffic import traffic
from trackside.facts.pace.work import advancing
from trackside.facts.training.learning import number, training_points
from trackside.finding import Claim, claim


@dataclass(frozen=True)
class Limits:
    """What counts as waiting."""

    pinned: float = 0.85
    """Engine activity (or utilisation) of GPUs that always have a kernel resident."""
    low_sm: float = 0.2
    """SM activity of GPUs that mostly spin. Between idle and this lie 2 to 9 % of all samples of two clusters of
    language-model training (AcmeTrace), so that little other work looks like it."""
    doubtful_sm: float = 0.35
    """SM activity up to which it is waiting if something else says so, too, and may be if nothing does."""
    wait_share: float = 0.5
    """Share of the time spent in collectives from which they set the pace."""
    idle_fabric: float = 0.1
    """Traffic of the fast fabric over that of the other network, under which collectives go over the other."""
    network: float = 2e7
    """Bytes a second of a node on its network, below which nothing much goes over it."""
    long_launch_s: float = 5e-5
    """A launch returns in two to ten microseconds; one that waits for its kernel takes as long as that."""
    launch_match: tuple[float, float] = (0.7, 1.4)
    """Time in launches over the time that kernels run, where each launch waits for its kernel."""
    gaps: float = 0.95
    """Engine activity over which kernels follow one another without a gap, so that launches wait for a full queue."""


@dataclass(frozen=True)
class Spin:
    """GPUs that are pinned and hardly work."""

    shows: tuple[Claim, ...]
    corroborated: tuple[Claim, ...]
    """What else says that they wait in collectives."""
    plain: bool
    """Whether the SMs work so little that nothing else is needed; if not, and nothing else says so, it may be a model
    that fills few of them."""


def spinning(evidence: Evidence, seen: GpuActivity, duty: Duty, limits: Limits, told: list[Claim]) -> Spin | None:
    """Several GPUs that always have a kernel resident and hardly work; None where that is not so or not measured.

    ``told``: what the log says of slow collectives. Without SM activity, time in collectives tells, or
    little power, of GPUs whose pipes are at rest as far as they were sampled.
    """
    if int(duty.rows.sum()) < 2 or duty.busy is None or duty.busy.number < limits.pinned:
        return None
    if duty.sm is not None and duty.sm.number > limits.doubtful_sm:
        return None
    if not _advances(evidence, seen, duty, limits):
        return None
    drawn, most = _over(evidence.grid("power"), duty), power_limit(evidence, duty)
    values = {"busy": duty.busy, "signal": derived(TITLES[seen.busy_by or "engine"], duty.busy)}
    shows = [claim("pinned", sm=duty.sm, **values) if duty.sm is not None else claim("pinned_unseen", **values)]
    shows += [*advancing(evidence, duty.start, duty.end), *_calls(evidence, duty)]
    moved = pipes(evidence, duty)
    shows += moved.shows if duty.sm is None else ()
    if drawn is not None:
        shows.append(claim("power", power=drawn) if most is None else claim("power_of", power=drawn, limit=most))
    waiting = _in_collectives(evidence, duty, limits)
    told = [
        *waiting,
        *told,
        *_printed(evidence, limits),
        *_gauged(evidence, duty, limits),
        *_network(evidence, duty, limits),
    ]
    if duty.sm is None:
        little = draws_little(drawn, most) or (most is None and moved.quiet and bool(told))
        return Spin(tuple(shows), tuple(told), False) if waiting or (little and not moved.busy) else None
    return Spin(tuple(shows), tuple(told), duty.sm.number <= limits.low_sm)


def _advances(evidence: Evidence, seen: GpuActivity, duty: Duty, limits: Limits) -> bool:
    """Whether the run advances: steps, collectives or launches, or data that moves. One that only spins hangs."""
    steps, sent = evidence.grid("steps"), _over(evidence.grid("network"), duty)
    if len(training_points(evidence["progress"])) > 1 or advancing(evidence, duty.start, duty.end):
        return True
    if steps is not None and steps.value("max").number > steps.value("min").number:
        return True
    if sent is not None and sent.number >= limits.network * seen.step:
        return True
    return bool(traffic(evidence, seen, duty.start, duty.end).moving)


def _in_collectives(evidence: Evidence, duty: Duty, limits: Limits) -> list[Claim]:
    grid = evidence.grid("waits")
    if grid is None:
        return []
    spent = grid.during(duty.start, duty.end).value("median")
    if spent.value is None or spent.number < limits.wait_share * grid.step:
        return []
    return [claim("in_collectives", share=derived(round(spent.number / grid.step, 3), spent, unit="share"))]


def _printed(evidence: Evidence, limits: Limits) -> list[Claim]:
    """Share of communication in the step, as the log prints it."""
    frame = evidence["progress"]
    told = []
    for row in training_points(frame):
        spent, step = number(row, "comm_time_s"), number(row, "step_time_s")
        if spent is not None and step is not None and step > 0:
            told.append((spent / step, row))
    share = maths.median([part for part, _ in told])
    if len(told) < 5 or share < limits.wait_share:
        return []
    row = min(told, key=lambda pair: abs(pair[0] - share))[1]
    sources = frame.value(row, "comm_time_s", "s"), frame.value(row, "step_time_s", "s")
    return [
        claim(
            "communication", spent=sources[0], step=sources[1], share=derived(round(share, 3), *sources, unit="share")
        )
    ]


def _gauged(evidence: Evidence, duty: Duty, limits: Limits) -> list[Claim]:
    spent, step = _over(evidence.grid("all_reduce"), duty), _over(evidence.grid("step_seconds"), duty)
    if spent is None or step is None or not step.number > 0 or spent.number < limits.wait_share * step.number:
        return []
    return [
        claim(
            "communication",
            spent=spent,
            step=step,
            share=derived(round(spent.number / step.number, 3), spent, step, unit="share"),
        )
    ]


def _network(evidence: Evidence, duty: Duty, limits: Limits) -> list[Claim]:
    """Traffic on the plain network while the fast fabric is there and carries next to none."""
    plain, fast = evidence.grid("network"), evidence.grid("fabric")
    sent, carried = _over(plain, duty), _over(fast, duty)
    if plain is None or sent is None or carried is None or sent.number < limits.network * plain.step:
        return []
    if carried.number > limits.idle_fabric * sent.number:
        return []
    rates = (derived(value.number / plain.step, value, unit="B/s") for value in (sent, carried))
    return [claim("fabric_idle", **dict(zip(("sent", "carried"), rates, strict=True)))]


def _calls(evidence: Evidence, duty: Duty) -> list[Claim]:
    """How long a CUDA call takes on average; and how many times a launch, which waits for nothing."""
    seconds, calls = evidence.grid("api_seconds"), evidence.grid("api_calls")
    each = _mean(seconds, calls, duty)
    if each is None or seconds is None or calls is None:
        return []
    name = _launch_call(seconds)
    floor = _mean(seconds.where(api=name), calls.where(api=name), duty) if name else None
    if floor is None or not each.number > CALL_RATIO * floor.number > 0:
        return [claim("calls", each=each)]
    times = derived(round(each.number / floor.number, 1), each, floor)
    return [claim("calls_times", each=each, floor=floor, times=times)]


CALL_RATIO = 2.0
"""Mean time of all calls over that of a launch, from which they wait."""


def _launch_call(seconds: Grid) -> str | None:
    """The call that launches kernels, the one most time was spent in."""
    names = [name for (name,) in seconds.labels("api") if "launch" in name.lower()]
    return max(names, key=lambda each: float(np.nansum(seconds.where(api=each).values))) if names else None


def _mean(seconds: Grid | None, calls: Grid | None, duty: Duty) -> Value | None:
    """Seconds a call."""
    spent, made = _over(seconds, duty, "sum"), _over(calls, duty, "sum")
    if spent is None or made is None or not made.number > 0:
        return None
    return derived(spent.number / made.number, spent, made, unit="s")


def _over(grid: Grid | None, duty: Duty, how: str = "median") -> Value | None:
    if grid is None:
        return None
    part = grid.during(duty.start, duty.end)
    value = part.value("sum", unit="" if grid.unit != "s" else None) if how == "sum" else part.value("median")
    return None if value.value is None else value


def blocking(evidence: Evidence, seen: GpuActivity, duty: Duty, limits: Limits) -> list[Claim] | None:
    """Launches that take as long as their kernels, with gaps between these; None where that is not so."""
    seconds, calls = evidence.grid("api_seconds"), evidence.grid("api_calls")
    if seconds is None or calls is None or duty.busy is None or duty.busy.number > limits.gaps:
        return None
    name = _launch_call(seconds)
    if name is None:
        return None
    spent = seconds.where(api=name).during(duty.start, duty.end).value("sum")
    made = calls.where(api=name).during(duty.start, duty.end).value("sum", unit="")
    if spent.value is None or not made.value:
        return None
    traced = (
        int(duty.rows.sum()) if seen.launches is None else int((np.nan_to_num(seen.launches).sum(axis=1) > 0).sum())
    )
    each, share = spent.number / made.number, spent.number / (duty.seconds * max(traced, 1))
    low, high = limits.launch_match
    if each < limits.long_launch_s or not low <= share / duty.busy.number <= high:
        return None
    return [
        claim("launches_wait", each=derived(each, spent, made, unit="s"), count=made),
        claim("launches_share", share=derived(round(share, 3), spent, made, unit="share"), busy=duty.busy),
    ]
