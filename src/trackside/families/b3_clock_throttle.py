"""GPU clock throttling.

Meaning
-------
A GPU reached a thermal or power limit and lowered its clocks, and the work slowed down. Cooling or power
delivery is the cause, not code or data.

What it looks like
------------------
A severe throttle reason (hardware slowdown, hardware or software thermal slowdown, power brake), or a counter of
time throttled for one, that lasts while the GPU works; its SM clock below its own earlier level, or below that of
the other GPUs; longer steps. The loss keeps falling. If throttle reasons were not sampled: a hot GPU whose clock
falls under load. A clock far below the model's maximum throughout, far from the power limit, is only a suspicion.

Not this family when
--------------------
- The throttle reason is the software power cap or idleness at a low temperature: both are normal, as are GPUs that
  all run below their maximum clock at their power limit.
- A severe throttle reason appears in single samples only, or the clock does not change.
- The GPU is idle: its low clock is not throttling.
- The run failed or stalled later, or throttling took only a small part of it: then throttling is a warning.

Impact
------
The slowest GPU sets the pace of all ranks.

Do next
-------
Check the cooling or the power supply of the node, drain it until it is repaired, and rerun on another node.

What it cannot decide
---------------------
Why the node gets hot or lacks power. Without GPU metrics, whether clocks were throttled at all; without step times or
throughput, how much they slowed the run.

References
----------
- [NVML: clocks event reasons](https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html)
- [NVIDIA DCGM: field identifiers](https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trackside.evidence import Missing, derived
from trackside.facts.gpus import nodes_of, ranks_of_gpus
from trackside.facts.hardware.throttling import ThrottledGpu, Throttling
from trackside.facts.logs.ending import Ending
from trackside.facts.pace.pace import StepPace
from trackside.family import Family
from trackside.finding import Certainty, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Run
from trackside.remedies import DRAIN, RESUBMIT_ELSEWHERE

SLOW_END_STATES = frozenset(("TIMEOUT", "DEADLINE", "CANCELLED"))
"""States in which slowness may be the reason for the end."""
PACE_CLAIMS: Mapping[str, Sentence] = {
    "step": Sentence(
        "a step took {during} while the clocks of {throttled} were lowered and {before} during {normal} with normal "
        "clocks (medians)"
    ),
    "throughput": Sentence(
        "throughput was {during} while the clocks of {throttled} were lowered and {before} during {normal} with normal "
        "clocks (medians)"
    ),
    "work": Sentence(
        "SM activity of all GPUs was {during} while the clocks of {throttled} were lowered and {before} during "
        "{normal} with normal clocks (medians)"
    ),
    "launches": Sentence(
        "each GPU of the run got {during:plain} kernel launches per {window} while the clocks of {throttled} were "
        "lowered and {before:plain} per {window} during {normal} with normal clocks (medians)"
    ),
}
HEADLINES = {
    "power": Sentence("GPU clocks throttled by a power limit"),
    "brake": Sentence("GPU clocks throttled by the power brake"),
    "thermal": Sentence("GPU clocks throttled by heat"),
    "slowdown": Sentence("GPU clocks throttled by the hardware"),
}
MEANINGS = {
    "power": Sentence("a power limit slows the GPUs down; code and data are not the cause"),
    "brake": Sentence("the power brake slows the GPUs down; code and data are not the cause"),
    "thermal": Sentence("heat slows the GPUs down; code and data are not the cause"),
    "slowdown": Sentence("the hardware slows the GPUs down; code and data are not the cause"),
}
DID_NOT_END_RUN = Sentence(
    "the GPU clocks were lowered, but that did not end this run",
    running="the GPU clocks are lowered, and the run continues",
)
DRAIN_REASONS = {
    "power": "GPU clocks throttled by a power limit",
    "brake": "GPU power brake",
    "thermal": "GPU clocks throttled by heat",
    "slowdown": "GPU clocks throttled",
}
HEAT_OR_SETTING = Sentence("whether heat lowers the clocks or somebody set them: throttle reasons would show it")
CAUSES_UNKNOWN = {
    "power": Sentence("what limits the power: a power cap, the power supply or the power distribution"),
    "brake": Sentence("what asserted the power brake: a power supply, the power distribution or the node's BMC"),
    "thermal": Sentence("the cause of the heat on {throttled}: heat sink, fans, air flow or inlet temperature"),
    "slowdown": Sentence("whether heat or power is the reason"),
}
SLOWDOWN_UNKNOWN = Sentence(
    "how much it slowed the run: no step times or throughput with and without throttling were given"
)
CHECK_COOLING = Sentence("check the cooling of {node}: dust, failed fans, air flow and inlet temperature")
CHECK_POWER = Sentence("check power supplies, power feeds and power caps of {node}")
READ_HEAT = ShellCommand("{node_shell} 'sudo ipmitool sel elist | tail; nvidia-smi -q -d TEMPERATURE'")
READ_POWER = ShellCommand("{node_shell} 'sudo ipmitool sel elist | tail; nvidia-smi -q -d PERFORMANCE,POWER'")
DRAIN_NODE = Sentence("drain {node} until it is repaired (needs a Slurm administrator)")
RUN_ELSEWHERE = Sentence("until the node is repaired, run on other nodes with the same options")


@dataclass(frozen=True)
class Limits:
    """When throttling matters."""

    min_readings: int = 6
    """Minimum readings per GPU for normal clocks to be conclusive: a run of a minute or two has fewer."""
    min_slowdown_ratio: float = 1.05
    """Minimum step time, as a multiple of that before, that counts as slower work."""
    min_share: float = 0.05
    """Throttling for less than this share of the GPU's working time is only a warning."""


def judge(throttling: Throttling, pace: StepPace, ending: Ending, run: Run, limits: Limits) -> Finding | Missing:
    """GPUs whose clocks were lowered for a severe reason, and whether the work slowed down."""
    clocks = throttling.clocks
    if throttling.lowered:
        return _finding(throttling, pace, ending, run, limits)
    if not (clocks.has_reasons or clocks.at_height):
        return Missing("no throttle reasons or counters were given: low clocks may be throttled or set on purpose")
    if clocks.readings < limits.min_readings:
        return Missing("too few readings of clocks and throttle reasons: the run was too short")
    return absent(*throttling.counter_evidence)


def _finding(throttling: Throttling, pace: StepPace, ending: Ending, run: Run, limits: Limits) -> Finding:
    worst, shows = throttling.lowered[0], throttling.claims
    gpus = tuple(gpu.gpu for gpu in throttling.lowered)
    throttled = derived(_in_short(gpus), *shows[0].values.values())
    speed = pace.compare(worst.before, (worst.start, worst.end)) if worst.before is not None else None
    slower = None if speed is None else speed.slowdown >= limits.min_slowdown_ratio
    if speed is not None:
        assert worst.before is not None
        spans = {
            "normal": derived(worst.before[1] - worst.before[0], speed.before, unit="s"),
            "throttled": throttled,
        }
        spans |= {} if speed.window is None else {"window": speed.window}
        effect = PACE_CLAIMS[speed.kind](before=speed.before, during=speed.during, **spans)
        shows.insert(min(2, len(worst.claims)), effect)  # before temperatures and other GPUs
    crashed = ending.abnormal is not None and (ending.state is None or ending.state.value not in SLOW_END_STATES)
    by_heat = throttling.clocks.basis == "heat"
    set_so = by_heat and worst.baseline == "highest"  # all alike and all along: clocks may be set so
    unharmed = crashed or slower is False or worst.share < limits.min_share
    latent = unharmed or not throttling.worked_to_the_end or set_so
    if ending.bad_end is not None:
        shows.append(ending.bad_end)
    reasons = {reason for gpu in throttling.lowered for reason in gpu.reasons}
    power = any("power" in reason for reason in reasons)
    hot = by_heat or any("therm" in reason or reason == "processor_hot" for reason in reasons)
    variant = "power" if power else "thermal" if hot else "slowdown"
    cause = "brake" if any("brake" in reason for reason in reasons) else variant
    certainty = _certainty(throttling, worst, slower)
    sources, nodes = shows[0].values.values(), nodes_of(gpus)
    reason, node = (derived(text, *sources) for text in (DRAIN_REASONS[cause], ", ".join(nodes) or "the node"))
    drain = nodes and certainty is not Certainty.POSSIBLE and not latent
    return present(
        certainty,
        "infrastructure",
        shows,
        headline=HEADLINES[cause](),
        implies=[DID_NOT_END_RUN() if latent else MEANINGS[cause]()],
        cannot_decide=[
            HEAT_OR_SETTING()
            if set_so
            else CAUSES_UNKNOWN["slowdown" if power and hot else cause](throttled=throttled),
            *([SLOWDOWN_UNKNOWN()] if speed is None else []),
        ],
        actions=[
            action(*((CHECK_POWER, READ_POWER) if power else (CHECK_COOLING, READ_HEAT)), node=node),
            *([action(DRAIN_NODE, DRAIN, reason=reason, node=node)] if drain else []),
            action(RUN_ELSEWHERE, *RESUBMIT_ELSEWHERE),
        ],
        since=worst.start,
        variant=variant,
        ranks=ranks_of_gpus(run, gpus),
        nodes=nodes,
        gpus=gpus,
        latent=latent,
    )


def _in_short(gpus: tuple[str, ...]) -> str:
    """The GPU, or how many of which node."""
    if len(gpus) == 1:
        return f"GPU {gpus[0].removeprefix(':')}"
    nodes = nodes_of(gpus)
    return f"{len(gpus)} GPUs" + (f" of {nodes[0]}" if len(nodes) == 1 else "")


def _certainty(throttling: Throttling, worst: ThrottledGpu, slower: bool | None) -> Certainty:
    """Established if reason, clock and pace agree; possible if only one of them shows it."""
    if throttling.clocks.basis == "heat":
        return Certainty.POSSIBLE
    if worst.drop is None:
        return Certainty.SUPPORTED if slower or throttling.hot else Certainty.POSSIBLE
    return Certainty.ESTABLISHED if slower else Certainty.SUPPORTED


FAMILY = Family(
    code="B3",
    id="clock-throttle",
    title="GPU clock throttling",
    example=("thermal-throttle", "ranks"),
    judge=judge,
    limits=Limits(),
    cost_kind="slow",
    explains=("D3", "F3"),
    rivals=("D1", "D2"),
    collect=(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS (older name: CLOCK_THROTTLE_REASONS) of dcgm-exporter over the run",
        "DCGM_FI_DEV_SM_CLOCK, DCGM_FI_DEV_GPU_TEMP, DCGM_FI_DEV_POWER_USAGE and DCGM_FI_PROF_SM_ACTIVE over the run",
    ),
)
