"""Clock throttling: heat or power makes a GPU lower its clocks under load.

Meaning
-------
A GPU reached a thermal or power limit and lowered its clocks, and the work slowed down with it. It is a matter
of cooling and power delivery, not of code or data.

What it looks like
------------------
A grave reason (hardware slowdown, hardware or software thermal slowdown, power brake), or a counter of time throttled
for one, that goes on while the GPU works; its SM clock under its own earlier level, or under that of the other GPUs;
steps that take longer. The loss goes on falling. Without reasons: a hot GPU whose clock falls under load; or that is
far below what its model can reach all along, and far from its power limit, which is a suspicion.

Not this when
-------------
The reason is the software power cap or idleness at a low temperature: both are normal, and so are GPUs that all run
below their highest clock at their power limit. A grave reason shows in single samples only. The clock stays where it
was. Low clocks of an idle GPU are no throttling. A run that failed, or stood still later on, was slowed by it, not
ended: then it is a warning, and so is throttling for a small part of the run.

Impact
------
The slowest GPU sets the pace of all ranks.

Do next
-------
Check cooling, fans, dust, power supplies and power caps of the node, and rerun elsewhere meanwhile.

What it cannot tell
-------------------
What in the environment causes it. Without GPU metrics it cannot be judged at all; without step times or throughput,
by how much it slowed the run.

References
----------
NVML documentation, clocks event reasons; NVIDIA DCGM, field identifiers.
"""

from __future__ import annotations

from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpus import of_gpu, ranks_at
from trackside.facts.hardware.throttling import CLOCKS, Clocks, Held, Limits
from trackside.facts.logs.ending import ENDING, abnormal_end, disposition
from trackside.facts.pace.pace import PACE, Pace, pace
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Run

COLLECT = (
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS (older name: CLOCK_THROTTLE_REASONS) of dcgm-exporter over the run",
    "DCGM_FI_DEV_SM_CLOCK, DCGM_FI_DEV_GPU_TEMP, DCGM_FI_DEV_POWER_USAGE and DCGM_FI_PROF_SM_ACTIVE over the run",
)
SLOW_ENDS = frozenset(("TIMEOUT", "DEADLINE", "CANCELLED"))
"""States in which slowness may be why the run was ended."""
SHOWN = 2
"""GPUs that are told one by one; the others by name only."""


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """GPUs whose clocks were held down for a grave reason, and whether the work slowed with them."""
    from trackside.facts.hardware.clocks import clocks

    told = clocks(evidence, run, limits)
    if told is None:
        return unknown(["clocks and throttle reasons of the run's GPUs, or clocks and temperatures"], COLLECT)
    held = [each for each in told.held if _lowered(each, limits)]
    if not held and not (evidence.has("reasons") or evidence.has("held") or _at_height(evidence, run, limits)):
        return unknown(["throttle reasons or counters: clocks that are not at their height may be held down"], COLLECT)
    if not held and told.readings < limits.readings:
        return unknown(["enough readings of clocks and throttle reasons: the run was too short for them"], COLLECT)
    if not held:
        return _absent(evidence, told)
    return _found(evidence, run, limits, told, held)


def _at_height(evidence: Evidence, run: Run, limits: Limits) -> bool:
    """Whether every GPU's clock stayed near the highest that it can reach while it worked: then nothing held it."""
    import numpy as np

    from trackside.facts.gpu.activity import activity
    from trackside.facts.gpus import aligned

    grid, most, seen = evidence.grid("clocks"), evidence.grid("most"), activity(evidence, run)
    if grid is None or most is None or seen is None:
        return False
    clock, top = aligned(grid, seen.gpus, seen.times), aligned(most, seen.gpus, seen.times)
    busy = seen.working & ~np.isnan(clock) & ~np.isnan(top)
    low = busy & (np.nan_to_num(clock) < (1 - limits.drop_from_most) * np.nan_to_num(top))
    return bool(busy.any() and np.all(low.sum(axis=1) < limits.windows))


def _lowered(held: Held, limits: Limits) -> bool:
    """Whether the clock was down by more than usual; what no clock tells stays open."""
    if held.drop is None:
        return True
    return held.drop >= (limits.drop_from_most if held.against == "most" else limits.drop)


def _found(evidence: Evidence, run: Run, limits: Limits, told: Clocks, held: list[Held]) -> Finding:
    worst = held[0]
    shows = [claim_ for each in held[:SHOWN] for claim_ in _told(evidence, each)]
    if len(held) > SHOWN:
        names = tuple(each.gpu for each in held[SHOWN:])
        shows.append(claim("others", gpus=derived(names, *(each.seconds for each in held[SHOWN : 2 * SHOWN]))))
    speed = pace(evidence, worst.before, (worst.start, worst.end)) if worst.before is not None else None
    slower = None if speed is None else speed.slowdown >= limits.slower
    if speed is not None:
        shows.append(_speed(speed))
    bad, state = abnormal_end(evidence), disposition(evidence)
    crashed = bad is not None and (state is None or state.value not in SLOW_ENDS)
    set_so = told.told_by == "heat" and worst.against == "most"  # all alike and all along: clocks may be set so
    aside = crashed or slower is False or worst.share < limits.worth or not told.still_at_work or set_so
    if bad is not None:
        shows.append(claim("ended", state=bad))
    nodes = tuple(dict.fromkeys(each.gpu.rpartition(":")[0] for each in held))
    causes = {name for each in held for name in each.names}
    power = any("power" in name for name in causes)
    return found(
        _certainty(told, worst, slower),
        "infrastructure",
        shows,
        implies=[claim("aside" if aside else "slowed")],
        cannot_decide=[claim("set_so" if set_so else "environment")] + ([claim("how_much")] if speed is None else []),
        actions=[action("power" if power else "cooling")],
        since=worst.start,
        at=None,
        variant="power" if power else "thermal" if told.told_by == "heat" or _hot(causes) else "slowdown",
        ranks=ranks_at(run, (each.gpu for each in held)),
        nodes=tuple(node for node in nodes if node),
        gpus=tuple(each.gpu for each in held),
        latent=aside,
    )


def _hot(causes: set[str]) -> bool:
    return any("therm" in name or name == "processor_hot" for name in causes)


def _certainty(told: Clocks, worst: Held, slower: bool | None) -> Certainty:
    """Established where a reason, the clock and the pace agree; possible where only one of them is told."""
    if told.told_by == "heat":
        return Certainty.POSSIBLE
    if worst.drop is None:
        return Certainty.SUPPORTED if slower or told.hot else Certainty.POSSIBLE
    return Certainty.ESTABLISHED if slower else Certainty.SUPPORTED


def _told(evidence: Evidence, held: Held) -> list[Claim]:
    gpu = derived(held.gpu, held.seconds)
    shows = []
    if held.why is not None:
        shows.append(claim("reason", gpu=gpu, why=held.why, seconds=held.seconds))
    if held.clock is not None and held.usual is not None:
        key = {"own": "dropped", "peers": "under_peers", "most": "under_most"}[held.against]
        shows.append(claim(key, gpu=gpu, clock=held.clock, usual=held.usual))
    heat = evidence.grid("temperature")
    if heat is not None:
        most = of_gpu(heat, held.gpu).during(held.start, held.end).value("max")
        if most.value is not None:
            shows.append(claim("heat", gpu=gpu, heat=most))
    return shows


def _speed(speed: Pace) -> Claim:
    return claim(f"pace_{speed.kind}", before=speed.before, during=speed.during)


def _absent(evidence: Evidence, told: Clocks) -> Finding:
    """The figures that rule it out."""
    from trackside.facts.hardware.clocks import reasons_set

    because: list[Claim] = []
    for each in told.held[:1]:
        if each.clock is not None and each.usual is not None and each.why is not None:
            values = {"gpu": derived(each.gpu, each.clock), "why": each.why, "clock": each.clock, "usual": each.usual}
            because.append(claim("kept", **values))
    flags, counted = evidence.grid("reasons"), evidence.grid("held")
    if flags is not None:
        names, value = reasons_set(flags)
        count = derived(len(flags), value, unit="GPU" if len(flags) == 1 else "GPUs")
        if told.brief is not None:
            flag = of_gpu(flags, told.brief).value("max")
            because.append(claim("brief", gpu=derived(told.brief, flag)))
        elif not told.held:
            because.append(claim("benign", count=count, why=names))
    elif counted is not None and not told.held:
        because.append(claim("counted", seconds=counted.value("max")))
    clock, heat = evidence.grid("clocks"), evidence.grid("temperature")
    if clock is not None and flags is None:
        low, high = clock.value("median"), clock.value("max")
        because.append(claim("clocks", middle=_mhz(low), most=_mhz(high)))
    if heat is not None:
        because.append(claim("hottest", heat=heat.value("max")))
    return absent(*because)


def _mhz(value: Value) -> Value:
    return derived(value.number / 1e6, value, unit="MHz")


FAMILY = Family(
    code="B3",
    id="clock-throttle",
    title="Clock throttling by heat or power",
    pictured=("thermal-throttle", "ranks"),
    asks={
        **ENDING,
        **CLOCKS,
        **PACE,
    },
    needs=(("reasons", "held", "clocks"),),
    limits=Limits(),
    says={
        "reason": "the clocks of GPU {gpu} were held down for {seconds}: {why}",
        "dropped": "the SM clock of GPU {gpu} went from {usual} to {clock}",
        "under_peers": "the SM clock of GPU {gpu} was {clock}, while the median of all GPUs was {usual}",
        "under_most": "the SM clock of GPU {gpu} was {clock} of the {usual} that it can reach",
        "heat": "GPU {gpu} reached {heat}",
        "others": "the same happened to GPU {gpus}",
        "pace_step": "a step took {during} meanwhile, and {before} without it",
        "pace_throughput": "throughput was {during} meanwhile, and {before} without it",
        "pace_work": "the median SM activity of all GPUs was {during} meanwhile, and {before} without it",
        "pace_launches": "a GPU was given {during:plain} kernel launches a window meanwhile, and {before:plain} "
        "without it",
        "ended": "the run ended badly: {state}",
        "slowed": "the slowdown is a hardware condition of heat or power, not of code or data; the work itself is fine",
        "aside": "clocks were held down by heat or power, which did not end this run",
        "set_so": "whether heat holds the clocks so low or somebody set them so: throttle reasons tell",
        "environment": "what in the environment causes it: cooling, air flow or power delivery",
        "how_much": "by how much it slowed the run: no step times or throughput on both sides of it were given",
        "cooling": "check fans, dust, air flow and inlet temperature of the node, and rerun elsewhere meanwhile",
        "power": "check power supplies, power feeds and power caps of the node, and rerun elsewhere meanwhile",
        "kept": "on GPU {gpu} a grave reason was set ({why}), but its clock was {clock}, and {usual} otherwise",
        "brief": "a grave reason was set on GPU {gpu} in single samples only",
        "benign": "no grave reason held on under load on {count}; reasons that were set at some time: {why}",
        "counted": "the counters of throttled time grew by at most {seconds} between samples",
        "clocks": "no hot GPU's clock fell under load: the median was {middle}, the highest {most}",
        "hottest": "the hottest GPU reached {heat}",
    },
    going={"aside": "clocks are held down by heat or power, and the run goes on"},
    judge=judge,
    loses="pace",
    explains=("D3", "F3"),
    rivals=("D1", "D2"),
    collect=COLLECT,
)
