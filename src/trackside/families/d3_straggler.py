"""Straggler: a slow rank holds back the others.

Meaning
-------
Synchronous training waits for the slowest rank at every step. One rank that consistently computes longer than
the others slows the whole allocation to its pace; nothing crashes or hangs.

What it looks like
------------------
The same steps and collectives on every rank, and on one rank its own compute time is far above the cross-rank
median, sustained. In metrics: its time in collectives is far below the others', which spin in the all-reduce. A
slow GPU shows a higher SM activity than theirs; the GPUs of a slow host show a lower engine activity, and the
host shows pressure on its CPUs.

Not this family when
--------------------
- All ranks are slow: that is slow data loading, saving or communication.
- Only a single step was slow.
- The first rank writes checkpoints while the others wait, or works alone in a pause without any step.
- The ranks hold different pipeline stages or experts, which are uneven by design: compare within one parallel
  position.
- Fewer than twenty steps were completed.
- Only the wall time of steps is known: it is the same on every rank by construction; a rank's own compute time, or
  the metrics of its GPU, are needed.

Impact
------
The share by which the slow rank exceeds the median, times the whole allocation.

Do next
-------
Check that rank's GPU (clocks, throttling, ECC), its data shard, and its CPU and NUMA binding; swap the node and
compare.

What it cannot decide
---------------------
Why the rank is slow. Without GPU metrics, and without per-rank compute times printed or exported by every rank,
whether a rank is slow at all: a step's wall time is the same everywhere.

References
----------
- [NVIDIA DCGM: profiling metrics](https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html#profiling-metrics)
- [NCCL: troubleshooting](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe, all_missing, or_none
from trackside.facts.gpu.activity import NEVER_WORKED, GpuActivity, missing_activity, never_worked
from trackside.facts.gpu.last_part import LastPart
from trackside.facts.gpus import nodes_of, ranks_of_gpus
from trackside.facts.hardware.health import HardwareHealth
from trackside.facts.pace.host_load import HostLoad
from trackside.facts.pace.leader_work import LeaderWork
from trackside.facts.pace.rank_lag import LaggingRanks, RankLag
from trackside.facts.pace.slow_gpus import COMPUTE_ALIKE, SlowGpus, SlowGroup
from trackside.facts.training.learning import Trajectory
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Event, Run
from trackside.remedies import RESUBMIT_ELSEWHERE
from trackside.witness import raise_certainty


@dataclass(frozen=True)
class Limits:
    """Thresholds for a lag."""

    min_steps: int = 20
    """Minimum number of completed steps: fewer do not show a lasting lag."""
    plain_ratio: float = 1.5
    """SM activity that is this many times the cross-rank median: equal work does not explain it."""
    spinning_activity: float = 0.7
    """Engine activity of ranks that wait in a collective most of their time."""
    lasting_share: float = 0.2
    """A lag for less than this share of the time of work was an episode, worth a warning."""


ONE_SLOW = Sentence("one slow rank holds back all others")
SOME_SLOW = Sentence("{count} slow ranks hold back the others")
ONE_SLOW_CLOCK = Sentence("a GPU with low clocks holds back all others")
SOME_SLOW_CLOCKS = Sentence("{count} GPUs with low clocks hold back the others")
ONE_SLOW_HOST = Sentence("one slow rank on {hosts}, whose CPUs are overloaded, holds back all others")
SOME_SLOW_HOST = Sentence("{count} slow ranks on {hosts}, whose CPUs are overloaded, hold back the others")
ALL_WAIT_FOR_SLOWEST = Sentence(
    "every synchronous step waits for the slowest rank, so the whole allocation runs at its speed"
)
REASONS = "data, CPU contention, NUMA placement, or a GPU that is slow without reporting an error"
SLOWNESS_UNEXPLAINED = Sentence(f"why the rank is slow: its {REASONS}")
SLOW_RANKS_UNEXPLAINED = Sentence(f"why these ranks are slow: their {REASONS}")
LOAD_UNEXPLAINED = Sentence(
    "whether the job's own workers or other processes loaded the CPUs of {hosts}",
    running="whether the job's own workers or other processes load the CPUs of {hosts}",
)
MAY_BE_EXTRA_WORK = Sentence("whether the first rank did extra work for all, such as an evaluation or a save")
COST_UNKNOWN = Sentence(
    "how much throughput it costs: a comparison with a known-good run would show it (trackside compare)"
)
CHECK_CLOCKS = Sentence("find out why the clocks of {gpus} are low: heat, power or a setting")
SHOW_PERFORMANCE = (
    ShellCommand("{on_node} nvidia-smi -q -i {gpu_id} -d PERFORMANCE,TEMPERATURE,POWER,CLOCK"),
    ShellCommand("{on_node} nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK"),
)
TRAINING_WORKED = Sentence("training itself worked: the loss fell from {first} to {last}")
FIND_CPU_LOAD = Sentence(
    "find out what loaded the CPUs of {hosts}: other jobs, services, or more data-loader workers than CPUs; the start "
    "times show whether a process was already running during the job",
    running="find out what loads the CPUs of {hosts}: other jobs, services, or more data-loader workers than CPUs",
)
SHOW_CPU_LOAD = ShellCommand("{node_shell} 'ps -eo pcpu,lstart,user,args --sort=-pcpu | head -n 20'")
TEST_GPUS = Sentence(
    "test {gpus} before the next job: a GPU can be slow without reporting an error",
    running="check the load, NUMA placement and storage of the host of {gpus}",
)
_SHOW_HOST = "{node_shell} 'uptime; numactl --hardware; nvidia-smi topo -m'"
DIAGNOSTICS = (
    ShellCommand("{on_node} dcgmi diag -r 3 -i {gpu_index}", running=_SHOW_HOST),
    ShellCommand("{on_node} dcgmi diag -r 3", running=_SHOW_HOST),
)
RERUN_ELSEWHERE = Sentence("rerun without the node, with the same options, and compare the step times")


NOT_COMPARABLE = Missing("too few compute times per rank, and too few readings of several GPUs at work")


@dataclass(frozen=True)
class _LagWitness:
    """Ranks that lag by one kind of evidence, and its certainty."""

    certainty: Certainty
    lag: LaggingRanks
    slow_clock: bool = False
    own_work: bool = False
    """Whether it may be a leader rank with work of its own."""

    def names_same(self, other: _LagWitness) -> bool:
        """Whether both name the same rank or GPU."""
        own, others = self.lag, other.lag
        return bool(set(own.ranks) & set(others.ranks) or set(own.gpus) & set(others.gpus))


def judge(
    slow: Maybe[SlowGpus], leader: Maybe[LeaderWork], ranks: RankLag, hosts: HostLoad, health: HardwareHealth,
    trajectory: Maybe[Trajectory], activity: Maybe[GpuActivity], last: LastPart, run: Run, limits: Limits,
) -> Finding | Missing:  # fmt: skip
    """GPUs that the others wait for, by GPU signals; ranks that lag, by exported or printed times."""
    if (missing := all_missing(ranks.missing, missing_activity(activity))) is not None:
        return missing
    training = or_none(trajectory)
    if training is not None and training.done is not None and training.done.number < limits.min_steps:
        return Missing("too few steps to compare the ranks", by_data=False)
    gpu_witness = _by_gpus(slow, leader, run, limits)
    results = (gpu_witness, *(_LagWitness(Certainty.SUPPORTED, answer) if isinstance(answer, LaggingRanks) else answer
                      for answer in (ranks.exported, ranks.printed)))  # fmt: skip
    witnesses = [answer for answer in results if isinstance(answer, _LagWitness)]
    if witnesses:
        loss_claims = (
            () if training is None else [TRAINING_WORKED(**claim.values) for claim in training.loss_fell_claims]
        )
        return _finding(witnesses, hosts, loss_claims, health.unchanged, last, limits)
    even_claims = [answer for answer in results if isinstance(answer, Claim)]
    if even_claims:
        return absent(*even_claims)
    return NEVER_WORKED if never_worked(activity) else NOT_COMPARABLE


def _by_gpus(slow: Maybe[SlowGpus], leader: Maybe[LeaderWork], run: Run, limits: Limits) -> _LagWitness | Claim | None:
    """The evidence of the GPUs: a group that the others wait for, or why there is none; None if inconclusive."""
    if isinstance(slow, Missing) or isinstance(leader, Missing):
        return None
    group = slow.group
    if group is None:
        return next(iter(slow.range_claims(COMPUTE_ALIKE)), None)
    if leader.saver is not None:
        return leader.saver.claims[0]
    if leader.pause is not None:
        return leader.pause
    share = (group.end - group.start) / slow.duty.seconds
    own_work = share < limits.lasting_share and leader.leads  # rank 0 may do the work of all
    certainty = Certainty.POSSIBLE if own_work else _certainty(group, limits)
    lag = LaggingRanks(
        ranks_of_gpus(run, group.gpus), group.gpus, group.claims, group.start + slow.activity.step, None, share
    )
    return _LagWitness(certainty, lag, group.slow_clock, own_work)


def _certainty(group: SlowGroup, limits: Limits) -> Certainty:
    """Established if only waiting explains it: the others are pinned, and the work was equal or the waits differ."""
    by_sm, waits_least = group.signal == "sm", bool(group.waits_least)
    whole_node = len(nodes_of(group.gpus)) == 1 and len(group.gpus) > 1
    if group.equal is False or (whole_node and by_sm and not group.slow_clock and not waits_least):
        return Certainty.POSSIBLE  # other work, or a stage of its own
    pinned = group.peers_busy is not None and group.peers_busy >= limits.spinning_activity
    if by_sm and not pinned and not waits_least:
        return Certainty.POSSIBLE  # the others idle: nothing shows that they wait for it
    plain = by_sm and group.ratio >= limits.plain_ratio and (group.equal or waits_least)
    return Certainty.ESTABLISHED if plain or (group.signal == "busy" and waits_least) else Certainty.SUPPORTED


def _finding(
    witnesses: Sequence[_LagWitness],
    hosts: HostLoad,
    loss_claims: Sequence[Claim],
    hardware_claims: Sequence[Claim],
    last: LastPart,
    limits: Limits,
) -> Finding:
    """The most certain witness names the ranks; each other that agrees makes it more certain. ``hardware_claims``: that
    the hardware reports no fault."""
    best = max(witnesses, key=lambda witness: witness.certainty.strength)
    agree = [witness for witness in witnesses if witness is best or witness.names_same(best)]
    certainty = raise_certainty(best.certainty, len(agree) - 1)
    ranks = next((witness.lag.ranks for witness in agree if witness.lag.ranks), ())
    gpus = next((witness.lag.gpus for witness in agree if witness.lag.gpus), ())
    nodes = nodes_of(gpus)
    clock = any(witness.slow_clock for witness in agree)  # then it is the GPU itself
    cpus = () if clock else hosts.contended(nodes)
    source = next(iter(agree[0].lag.claims[0].values.values()))
    count = max(len(ranks), len(gpus), 1)
    hosts_value = derived(", ".join(nodes) or "the rank's host", source)
    gpus_value = derived(gpus or ("the rank's GPU" if count == 1 else "the GPUs of these ranks"), source)
    unexplained = LOAD_UNEXPLAINED(hosts=hosts_value) if cpus else _slowness(count)
    unknown_reasons = [] if clock else [unexplained]
    row: Event | None = best.lag.row
    episode = best.lag.share < limits.lasting_share
    next_step = (
        action(CHECK_CLOCKS, *SHOW_PERFORMANCE, gpus=gpus_value)
        if clock
        else action(FIND_CPU_LOAD, SHOW_CPU_LOAD, hosts=hosts_value)
        if cpus
        else action(TEST_GPUS, *DIAGNOSTICS, gpus=gpus_value)
    )
    return present(
        certainty,
        "infrastructure" if clock else "unknown",
        [
            *agree[0].lag.claims[:2],
            *cpus,
            *agree[0].lag.claims[2:],
            *(claim for witness in agree[1:] for claim in witness.lag.claims),
            *loss_claims,
            *hardware_claims,
        ],
        headline=_headline(clock, derived(count, source), hosts_value if cpus else None),
        implies=[ALL_WAIT_FOR_SLOWEST()],
        cannot_decide=[*unknown_reasons, *([MAY_BE_EXTRA_WORK()] if best.own_work else []), COST_UNKNOWN()],
        actions=[next_step, action(RERUN_ELSEWHERE, *RESUBMIT_ELSEWHERE)],
        since=best.lag.since,
        at=None if row is None else row.at,
        ranks=ranks,
        gpus=gpus,
        nodes=nodes,
        latent=last.not_by_pace or episode or certainty is Certainty.POSSIBLE,
    )


def _headline(clock: bool, count: Value, overloaded: Value | None) -> Claim:
    """Who holds back the others; ``overloaded``: the host of these ranks, if its CPUs are overloaded."""
    if overloaded is not None:
        return (ONE_SLOW_HOST if count.value == 1 else SOME_SLOW_HOST)(count=count, hosts=overloaded)
    if count.value == 1:
        return (ONE_SLOW_CLOCK if clock else ONE_SLOW)()
    return (SOME_SLOW_CLOCKS if clock else SOME_SLOW)(count=count)


def _slowness(count: int) -> Claim:
    return (SLOWNESS_UNEXPLAINED if count == 1 else SLOW_RANKS_UNEXPLAINED)()


FAMILY = Family(
    code="D3",
    id="straggler",
    title="Straggler: a slow rank holds back the others",
    example=("straggler", "ranks"),
    judge=judge,
    cost_kind="slow",
    often_from_start=True,
    limits=Limits(),
    explains=("F3",),
    rivals=("D1", "D2", "B3"),
    collect=(
        "step or compute times printed by every rank, at the same steps",
        "per-GPU SM activity (DCGM PROF_SM_ACTIVE) and clock-throttle reasons over the run",
    ),
)
