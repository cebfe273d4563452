"""C1, C2, C3, F3 and G1 on curves built by hand: positives, rivals that must not be found, and blind cases.

``Cluster.judge`` asks every citation again, so each case checks them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.grids import END, START, Cluster, Row, event, job, keys, points, worded
from trackside.finding import Certainty, Finding, Outcome
from trackside.model import Plane, Role

FOUND, ABSENT, UNKNOWN = Outcome.FOUND, Outcome.ABSENT, Outcome.UNKNOWN
ESTABLISHED, SUPPORTED, POSSIBLE = Certainty.ESTABLISHED, Certainty.SUPPORTED, Certainty.POSSIBLE
GIB = 1 << 30
AWAY, RANK = "n2:3", 11
"""The GPU that the others wait for, and its rank of sixteen."""
STOP = 3000.0
FAILED, COMPLETED, TIMEOUT = job("FAILED", exit_code=1), job("COMPLETED", exit_code=0), job("TIMEOUT")
NO_LOG: tuple[Plane, ...] = ("scheduler",)
BEGAN = event("distributed_init", time=1010.0, text="Initializing distributed process group")


def until_stop(count: int = 30) -> list[Any]:
    """Points up to the standstill."""
    return points(count, START + 60, (STOP - START - 100) / count)


def hung(
    sm: float = 0.03, was: float = 0.7, away: str | None = AWAY, since: float = STOP, until: float = 9e9,
    give: tuple[str, ...] = ("sm", "engine", "memory"), **shape: Any,
) -> Cluster:  # fmt: skip
    """All GPUs work until ``since``; then they spin at ``sm``, and ``away`` does nothing. Work goes on at ``until``."""
    cluster = Cluster(**shape)
    for name, metric, usual, then, cold in (
        ("sm", "gpu_sm_active_ratio", was, sm, 0.0),
        ("engine", "gpu_engine_active_ratio", 0.97, 1.0, 0.0),
        ("utilisation", "gpu_utilization_ratio", 0.97, 1.0, 0.0),
        ("power", "gpu_power_watts", 520.0, 190.0, 75.0),
        ("memory", "gpu_memory_used_bytes", 60.0 * GIB, 60.0 * GIB, 60.0 * GIB),
    ):
        if name in give:
            spin = cluster.between(since, until, then, usual)
            rest = cluster.between(since, until, cold, usual)
            cluster.per_gpu(metric, spin, {away: rest} if away else {})
    return cluster


def traced(cluster: Cluster, launches: float = 0.0, but: dict[str, Any] | None = None) -> Cluster:
    """Launches of every GPU: 5000 a second until the standstill, then so many."""
    return cluster.per_gpu("trackside_cuda_kernel_launches_total", cluster.growing(cluster.after(STOP, launches, 5000)),
                           but)  # fmt: skip


def judged(cluster: Cluster, code: str, *rows: Row | list[Any], planes: tuple[Plane, ...] = ("log", "scheduler")) -> Finding:  # fmt: skip
    return cluster.judge(code, *rows, run=cluster.run(n_ranks=len(cluster.gpus)), planes=planes)


def outcome(finding: Finding) -> tuple[Outcome, Certainty | None]:
    return finding.outcome, finding.certainty


# -- C2


def test_a_standstill_is_compared_with_work_not_with_the_start_up() -> None:
    """Most of the time before it was imports and data."""
    cluster = hung(give=("engine", "memory"))
    working = np.where(cluster.times < 2400, 0.0, np.where(cluster.times < STOP, 0.7, 0.03))
    cluster.per_gpu("gpu_sm_active_ratio", working, {AWAY: np.where(cluster.times < STOP, working, 0.0)})
    finding = judged(cluster, "C2", until_stop(), TIMEOUT)
    [rest] = [each for each in finding.shows if each.key == "rest_sm"]
    assert rest.values["before"].number == pytest.approx(0.7)


HANGS: dict[str, Callable[[], Cluster]] = {
    "spinning hardly": hung,
    "sampled every minute": lambda: hung(interval=60.0),
    "spinning on a third of the SMs": lambda: hung(sm=0.19, was=0.5),
    "spinning on most of what it worked on": lambda: hung(sm=0.18, was=0.27),
    "launches traced": lambda: traced(hung()),
    "power alone": lambda: hung(give=("utilisation", "power", "memory")),
    "two GPUs": lambda: hung(nodes=2, gpus=1, away="n2:0"),
}


@pytest.mark.parametrize("case", HANGS)
def test_collective_hang(case: str) -> None:
    cluster = HANGS[case]()
    finding = judged(cluster, "C2", until_stop(), TIMEOUT)
    assert outcome(finding) == (FOUND, ESTABLISHED)
    away = AWAY if len(cluster.gpus) > 2 else "n2:0"
    assert (finding.gpus, finding.nodes, finding.ranks) == ((away,), ("n2",), (cluster.gpus.index(away),))
    assert {"odd_cold", "memory_held", "ended"} <= set(keys(finding))
    assert finding.since == pytest.approx(STOP, abs=130)


def test_collective_hang_in_the_words_of_the_example() -> None:
    """Fifteen ranks spin, one went cold, and its log tells of the loader worker that was killed."""
    died = event(
        "dataloader_death", 900, rank=RANK, role=Role.ROOT, signal=9, text="worker is killed by signal: Killed."
    )
    finding = judged(traced(hung()), "C2", until_stop(), died, TIMEOUT)
    told = worded(finding)
    assert "0 kernel launches were made in the last 34 min" in told
    assert "usy without work: 15 GPUs, engine activity 100%" in told
    assert f"GPU {AWAY} went cold: engine 0" in told
    assert f"ata-loader worker of rank {RANK} died" in told
    assert (finding.culprit, finding.cannot_decide) == ("job", ())


def test_what_kept_the_rank_away_stays_open_without_its_word() -> None:
    other = event("dataloader_death", 900, rank=2, role=Role.ROOT, signal=9)
    finding = judged(hung(), "C2", until_stop(), other, TIMEOUT)
    assert "worker_died" not in keys(finding)
    assert [each.key for each in finding.cannot_decide] == ["why"]


def test_collective_hang_without_a_log() -> None:
    assert outcome(judged(hung(), "C2", TIMEOUT, planes=NO_LOG)) == (FOUND, ESTABLISHED)
    assert outcome(judged(hung(), "C2", planes=())) == (FOUND, SUPPORTED)
    third = hung(sm=0.19, was=0.5)
    assert outcome(judged(third, "C2", TIMEOUT, planes=NO_LOG)) == (FOUND, ESTABLISHED)
    short = hung(since=4600)
    assert outcome(judged(short, "C2", FAILED, planes=NO_LOG))[0] is not FOUND
    shorter = hung(start=4000, since=4600)
    assert outcome(judged(shorter, "C2", job("FAILED", start=4000.0), planes=NO_LOG)) == (FOUND, POSSIBLE)


def test_a_pause_as_long_as_one_before_it_is_no_standstill() -> None:
    assert judged(hung(since=4200), "C2", TIMEOUT, planes=NO_LOG).outcome is FOUND
    again = Cluster()
    twice = again.between(2000, 2700, 0.03, again.between(4200, 9e9, 0.03, 0.7))
    pinned = again.between(2000, 2700, 1.0, again.between(4200, 9e9, 1.0, 0.97))
    again.per_gpu("gpu_sm_active_ratio", twice).per_gpu("gpu_engine_active_ratio", pinned)
    assert judged(again, "C2", TIMEOUT, planes=NO_LOG).outcome is not FOUND


def test_gpu_that_is_no_longer_sampled() -> None:
    cluster = hung(away=None, give=("engine", "memory"))
    spin = cluster.between(STOP, 9e9, 0.03, 0.7)
    fresh = Cluster().per_gpu("gpu_sm_active_ratio", spin, {AWAY: cluster.until(STOP, 0.7)})
    fresh.per_gpu("gpu_engine_active_ratio", cluster.between(STOP, 9e9, 1.0, 0.97), {AWAY: cluster.until(STOP, 0.97)})
    finding = judged(fresh, "C2", until_stop(), TIMEOUT)
    assert (finding.outcome, finding.gpus) == (FOUND, (AWAY,))
    assert "odd_gone" in keys(finding)


def test_rank_that_entered_fewer_collectives() -> None:
    """Its GPU spins as well, in an earlier collective."""
    cluster = hung(away=None)
    done = np.minimum(cluster.growing(20), 20 * (STOP - START))
    cluster.per_gpu("trackside_nccl_collectives_completed_total", done)
    cluster.per_gpu("trackside_nccl_collectives_started_total", done + 1, {AWAY: done})
    finding = judged(cluster, "C2", until_stop(), TIMEOUT)
    assert (finding.outcome, finding.gpus) == (FOUND, (AWAY,))
    assert "odd_behind" in keys(finding)


def test_utilisation_alone_needs_the_others_pinned() -> None:
    only = ("utilisation", "memory")
    assert judged(hung(give=only), "C2", until_stop(), TIMEOUT).gpus == (AWAY,)
    assert judged(hung(give=only), "C2", TIMEOUT, planes=NO_LOG).gpus == (AWAY,)
    loose = hung(give=("memory",))
    loose.per_gpu("gpu_utilization_ratio", 0.7, {AWAY: loose.after(STOP, 0.0, 0.7)})
    assert judged(loose, "C2", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN


RIVALS: dict[str, tuple[Callable[[], Cluster], list[Row | list[Any]], str]] = {
    "an evaluation that ends": (lambda: hung(until=STOP + 900), [points(65), TIMEOUT], "to_the_end_sm"),
    "storage that comes back": (
        lambda: traced(hung(sm=0.0, until=STOP + 300)).per_gpu("gpu_power_watts", 300), [points(65), COMPLETED],
        "completed",
    ),
    "work to the end": (lambda: hung(since=9e9), [points(65), TIMEOUT], "to_the_end_sm"),
    "completed with a cold tail": (hung, [until_stop(), COMPLETED], "completed"),
}  # fmt: skip


@pytest.mark.parametrize("case", RIVALS)
def test_no_collective_hang(case: str) -> None:
    make, rows, why = RIVALS[case]
    finding = judged(make(), "C2", *rows)
    assert finding.outcome is ABSENT
    assert why in keys(finding)


def test_all_that_spin_alike_may_work_on_less() -> None:
    """Without a log nothing tells a lighter phase from a wait that keeps a third of the SMs: no cold GPU, no verdict."""
    assert judged(hung(sm=0.19, was=0.5, away=None), "C2", FAILED, planes=NO_LOG).outcome is not FOUND
    stages = hung(sm=0.5, was=0.5)  # the others work on as before: one that is done was not waited for
    assert judged(stages, "C2", FAILED, planes=NO_LOG).outcome is ABSENT


def test_steps_that_go_on_are_no_hang() -> None:
    assert judged(hung(), "C2", points(65), TIMEOUT).outcome is not FOUND


def test_clocks_that_fall_are_no_standstill() -> None:
    cluster = hung(away=None, give=("power", "utilisation"))
    cluster.per_gpu("gpu_sm_clock_hertz", cluster.after(STOP, 6e8, 1.7e9))
    assert judged(cluster, "C2", FAILED, planes=NO_LOG).outcome is not FOUND


def test_collective_hang_blind() -> None:
    blind = Cluster().per_gpu("gpu_temperature_celsius", 50)
    assert judged(blind, "C2", FAILED, planes=NO_LOG).outcome is UNKNOWN
    gap = Cluster().per_gpu("gpu_sm_active_ratio", Cluster().until(1500, 0.7))
    assert judged(gap, "C2", FAILED, planes=NO_LOG).outcome is UNKNOWN


def test_nobody_is_blamed_without_a_trigger() -> None:
    """Who stayed away is seen; code, data, storage and network may all have kept that rank."""
    finding = judged(hung(), "C2", until_stop(), TIMEOUT)
    assert (finding.gpus, finding.culprit) == ((AWAY,), "unknown")
    goes_on = judged(hung(), "C2", until_stop(), job("RUNNING", end=None))
    assert "running" in keys(goes_on)
    assert "ended" not in keys(goes_on)


def test_rank_that_evaluates_past_the_time_out_of_the_others() -> None:
    """Seven of eight complain; the GPU of the eighth works on, so that its own code kept it."""
    cluster = hung(nodes=1, away=None, sm=0.18, give=("engine", "memory"))
    waits = cluster.between(STOP, 9e9, 0.18, 0.7)
    cluster.per_gpu("gpu_sm_active_ratio", waits, {"n1:0": cluster.between(STOP, 9e9, 0.4, 0.7)})
    timed_out = [
        event("collective_timeout", 900 + rank, rank=rank, time=4800.0, role=Role.CASCADE, seq=6120, timeout_s=1800.0)
        for rank in range(1, 8)
    ]
    finding = cluster.judge("C2", until_stop(), timed_out, FAILED, run=cluster.run())
    assert (finding.outcome, finding.ranks, finding.gpus, finding.culprit) == (FOUND, (0,), ("n1:0",), "job")
    assert {"odd_computing", "quiet"} <= set(keys(finding))
    few = cluster.judge("C2", until_stop(), timed_out[:5], FAILED, run=cluster.run())  # who is the last is not known
    assert "quiet" not in keys(few)


MET = event("nccl_init", time=1010.0, nranks=16, complete=True, text="comm rank 0 nranks 16 - Init COMPLETE")


def spun(**moves: float) -> Cluster:
    """GPUs that are busy from the start on, at the power of waiting; and what else was sampled of them."""
    cluster = Cluster().per_gpu("gpu_utilization_ratio", 1.0)
    cluster.per_gpu("gpu_power_watts", cluster.after(1060, 180.0, 70.0))
    for name, level in moves.items():
        cluster.per_gpu(f"gpu_{name}", level)
    return cluster


@pytest.mark.parametrize("moves", [
    {"memory_utilization_ratio": 0.0},
    {"memory_utilization_ratio": 0.0, "sm_active_ratio": 0.14, "dram_active_ratio": 0.004, "tensor_active_ratio": 0.0,
     "nvlink_tx_bytes_per_second": 1e5},
])  # fmt: skip
def test_stuck_in_the_first_collective(moves: dict[str, float]) -> None:
    """Never a step, and nothing moves: neither training nor a slow network."""
    cluster = spun(**moves)
    finding = judged(cluster, "C2", MET, TIMEOUT)
    assert (outcome(finding), finding.culprit) == ((FOUND, SUPPORTED), "unknown")
    assert {"no_step", "pinned_on", "rests_copy"} <= set(keys(finding))
    assert judged(cluster, "F3", MET, TIMEOUT).variant == "silent"
    assert judged(cluster, "D2", MET, TIMEOUT).outcome is not FOUND


def test_spinning_alone_proves_neither_work_nor_a_hang() -> None:
    assert outcome(judged(spun(), "C2", MET, TIMEOUT)) == (FOUND, POSSIBLE)
    assert judged(spun(), "F3", TIMEOUT, planes=NO_LOG).variant == "no-progress"
    assert judged(spun(), "C2", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN


def test_work_that_prints_nothing_is_no_hang() -> None:
    computes = spun(sm_active_ratio=0.14, dram_active_ratio=0.3)
    assert keys(judged(computes, "C2", MET, TIMEOUT)) == ["moves_dram"]
    assert judged(computes, "F3", MET, TIMEOUT).variant == "slow"
    assert judged(computes, "D2", MET, TIMEOUT).outcome is FOUND
    light = spun(memory_utilization_ratio=0.2)
    assert judged(light, "F3", TIMEOUT, planes=NO_LOG).variant == "slow"
    brief = Cluster(start=END - 400).per_gpu("gpu_utilization_ratio", 1.0).per_gpu("gpu_power_watts", 180.0)
    assert judged(brief.per_gpu("gpu_memory_utilization_ratio", 0.0), "C2", MET, TIMEOUT).outcome is not FOUND


def test_nothing_is_said_of_what_was_not_watched() -> None:
    """Samples that end while the run goes on, or that leave out what lies before a cold end."""
    half = hung(since=9e9, away=None, give=())
    half.per_gpu("gpu_sm_active_ratio", half.until(STOP, 0.7)).per_gpu(
        "gpu_engine_active_ratio", half.until(STOP, 0.97)
    )
    assert judged(half, "C2", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN
    assert judged(half, "F3", TIMEOUT, planes=NO_LOG).variant == "no-progress"
    alone = Cluster(nodes=1, gpus=1)
    alone.per_gpu("gpu_sm_active_ratio", alone.until(STOP, 0.7))
    assert judged(alone, "C3", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN
    gap = Cluster()
    gap.per_gpu("gpu_sm_active_ratio", gap.between(STOP, 4700, np.nan, gap.after(4700, 0.03, 0.7)))
    gap.per_gpu("gpu_engine_active_ratio", gap.between(STOP, 4700, np.nan, gap.after(4700, 1.0, 0.97)))
    assert judged(gap, "C2", TIMEOUT, planes=NO_LOG).outcome is not FOUND  # five minutes of it were seen


# -- C1


def cold(**shape: Any) -> Cluster:
    cluster = Cluster(**shape).per_gpu("gpu_sm_active_ratio", 0.0).per_gpu("gpu_engine_active_ratio", 0.0)
    cluster.per_gpu("gpu_memory_used_bytes", 0.5 * GIB).per_gpu("gpu_memory_total_bytes", 80.0 * GIB)
    return cluster.per_gpu("trackside_tracer_attached", 1)


def test_rendezvous_hang_in_the_words_of_the_example() -> None:
    finding = judged(cold(), "C1", BEGAN, TIMEOUT)
    assert outcome(finding) == (FOUND, ESTABLISHED)
    told = worded(finding)
    assert "16 GPUs on 2 nodes did no work in 67 min" in told
    assert "o kernel launch and no collective of the run was ever seen" in told
    assert (finding.nodes, finding.ranks, finding.culprit) == (("n1", "n2"), tuple(range(16)), "unknown")


def test_a_run_that_goes_on_has_not_ended() -> None:
    finding = judged(cold(), "C1", BEGAN, job("RUNNING", end=None))
    assert finding.outcome is FOUND
    assert ("running" in keys(finding), "ended" in keys(finding)) == (True, False)


def test_rendezvous_hang_without_a_log() -> None:
    """Several nodes that stay cold: possible; with contexts that hold memory, and so a job that had begun, supported."""
    assert outcome(judged(cold(), "C1", TIMEOUT, planes=NO_LOG)) == (FOUND, POSSIBLE)
    loaded = Cluster().per_gpu("gpu_sm_active_ratio", 0.0).per_gpu("gpu_engine_active_ratio", 0.0)
    loaded.per_gpu("gpu_memory_used_bytes", 9.0 * GIB).per_gpu("gpu_memory_total_bytes", 80.0 * GIB)
    assert outcome(judged(loaded, "C1", TIMEOUT, planes=NO_LOG)) == (FOUND, SUPPORTED)


def test_no_rendezvous_hang() -> None:
    assert keys(judged(hung(), "C1", TIMEOUT, planes=NO_LOG)) == ["worked_sm"]
    assert judged(cold(nodes=1, gpus=1), "C1", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN
    assert "trained" in keys(judged(cold(), "C1", points(), TIMEOUT))
    assert "completed" in keys(judged(cold(), "C1", COMPLETED))


def test_short_cold_spell_is_no_hang() -> None:
    brief = cold(start=END - 400)
    assert judged(brief, "C1", TIMEOUT, planes=NO_LOG).outcome is not FOUND


# -- C3


def test_idle_gpu_hang_in_the_words_of_the_example() -> None:
    cluster = cold(nodes=1, gpus=1).per_gpu("trackside_gpu_process_attached", 0)
    empty = event("log_activity", lines=0, path="slurm-7.out")
    finding = judged(cluster, "C3", empty, TIMEOUT)
    assert outcome(finding) == (FOUND, ESTABLISHED)
    assert {"all_cold", "cold_sm", "cold_engine", "no_launch", "no_process", "empty"} <= set(keys(finding))
    assert (finding.gpus, finding.ranks) == (("n1:0",), (0,))


def test_idle_after_work() -> None:
    cluster = hung(sm=0.0, nodes=1, gpus=1, away="n1:0")
    finding = judged(cluster, "C3", until_stop(), TIMEOUT)
    assert outcome(finding) == (FOUND, ESTABLISHED)
    assert "memory_held" in keys(finding)


def test_no_idle_gpu_hang() -> None:
    one: dict[str, Any] = {"nodes": 1, "gpus": 1}
    assert keys(judged(cold(), "C3", BEGAN, TIMEOUT)) == ["formed"]
    assert keys(judged(hung(**one, since=9e9, away=None), "C3", points(65), TIMEOUT)) == ["worked_sm"]
    assert keys(judged(cold(**one), "C3", TIMEOUT, event("checkpoint_saved", time=4900.0))) == ["on_the_host"]
    rests = hung(**one, sm=0.0, away="n1:0")
    assert judged(rests, "C3", points(65), TIMEOUT).outcome is not FOUND  # the steps go on, without the GPU
    assert keys(judged(cold(**one), "C3", FAILED)) == ["not_reaped"]
    assert keys(judged(hung(), "C3", until_stop(), TIMEOUT)) == ["waiting"]


def test_a_tracer_that_saw_nothing_is_no_idleness() -> None:
    busy = Cluster(nodes=1, gpus=1).per_gpu("gpu_utilization_ratio", 0.9).per_gpu("gpu_sm_active_ratio", 0.15)
    busy.per_gpu("trackside_cuda_kernel_launches_total", 0)
    assert judged(busy, "C3", TIMEOUT, planes=NO_LOG).outcome is ABSENT
    unseen = Cluster(nodes=1, gpus=1).per_gpu("trackside_cuda_kernel_launches_total", 0)
    unseen.per_gpu("trackside_tracer_attached", 0)
    assert judged(unseen, "C3", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN


def test_power_is_no_work_where_no_kernel_ran() -> None:
    """A context lifts an idle H100 from 70 to 118 W and leaves its utilisation at 0."""

    def idle(**shape: Any) -> Cluster:
        cluster = Cluster(**shape).per_gpu("gpu_utilization_ratio", 0.0).per_gpu("gpu_memory_used_bytes", 6.0 * GIB)
        return cluster.per_gpu("gpu_power_watts", cluster.after(1060, 118.0, 73.0))

    one = idle(nodes=1, gpus=1)
    silent = event("log_activity", lines=3, path="slurm-7.out")
    assert outcome(judged(one, "C3", silent, TIMEOUT)) == (FOUND, ESTABLISHED)
    assert judged(one, "F3", silent, TIMEOUT).variant == "silent"
    assert judged(one, "D1", silent, TIMEOUT).outcome is not FOUND
    assert outcome(judged(idle(), "C1", BEGAN, TIMEOUT)) == (FOUND, ESTABLISHED)
    assert "worked_power" not in keys(judged(idle(), "C1", BEGAN, TIMEOUT))
    power = Cluster(nodes=1, gpus=1)
    power.per_gpu("gpu_power_watts", power.after(1060, 118.0, 70.0))
    assert judged(power, "C3", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN


def test_kernel_without_end_on_a_single_gpu() -> None:
    """No collective keeps the only GPU of a run busy."""
    finding = judged(hung(sm=0.0076, nodes=1, gpus=1, away=None), "C3", until_stop(), TIMEOUT)
    assert (finding.outcome, finding.gpus) == (FOUND, ("n1:0",))
    assert "spin" in keys(finding)
    assert "1 GPU, engine activity 100%" in worded(finding)


def test_silent_log_of_several_gpus_is_an_affair_between_ranks() -> None:
    eight = Cluster(nodes=1).run(n_gpus=8)
    one = Cluster(nodes=1).run(n_gpus=1)
    blind = Cluster(nodes=1, gpus=1).per_gpu("gpu_temperature_celsius", 50)
    assert blind.judge("C3", until_stop(), TIMEOUT, run=eight).outcome is ABSENT
    assert blind.judge("C2", until_stop(), TIMEOUT, run=eight).outcome is FOUND
    assert blind.judge("C3", until_stop(), TIMEOUT, run=one).outcome is FOUND
    assert blind.judge("C2", until_stop(), TIMEOUT, run=one).outcome is not FOUND


# -- F3


def test_timeout_while_it_worked() -> None:
    finding = judged(hung(since=9e9), "F3", points(65), TIMEOUT)
    assert (outcome(finding), finding.variant) == ((FOUND, ESTABLISHED), "slow")
    assert "to_the_end_sm" in keys(finding)
    unlogged = judged(hung(since=9e9), "F3", TIMEOUT, planes=NO_LOG)
    assert (unlogged.outcome, unlogged.variant) == (FOUND, "slow")


@pytest.mark.parametrize(("elapsed", "variant"), [(600.0, "silent"), (3700.0, "slow")])
def test_steps_without_times_of_their_own(elapsed: float, variant: str) -> None:
    """The bar around them tells how long the loop had run; stamped lines of the start-up say nothing of its end."""
    steps = [event("progress", 20 + i, step=i, loss=4 - i / 100, elapsed_s=elapsed * i / 80) for i in range(81)]
    cluster = Cluster()
    finding = judged(cluster, "F3", BEGAN, steps, TIMEOUT)
    assert (outcome(finding), finding.variant) == ((FOUND, SUPPORTED), variant)
    assert ("unaccounted" in keys(finding)) is (variant == "silent")
    hang = judged(cluster, "C2", BEGAN, steps, TIMEOUT)
    assert outcome(hang) == ((FOUND, POSSIBLE) if variant == "silent" else (ABSENT, None))


def test_time_that_the_steps_leave_open_is_not_called_training() -> None:
    """Steps without times, and half of the run that they don't account for: slow or stuck is not told."""
    steps = [event("progress", 20 + i, step=i, loss=4 - i / 100, elapsed_s=2000.0 * i / 80) for i in range(81)]
    blind = Cluster().per_gpu("gpu_temperature_celsius", 50)
    finding = judged(blind, "F3", BEGAN, steps, TIMEOUT)
    assert (outcome(finding), finding.variant) == ((FOUND, POSSIBLE), "undecided")
    assert [each.key for each in finding.implies] == ["was_undecided"]
    assert judged(blind, "C2", BEGAN, steps, TIMEOUT).outcome is UNKNOWN


@pytest.mark.parametrize("make", [hung, lambda: hung(sm=0.19, was=0.5), cold])
def test_timeout_never_hides_a_hang(make: Callable[[], Cluster]) -> None:
    assert judged(make(), "F3", TIMEOUT, planes=NO_LOG).variant == "silent"


def test_one_reading_is_no_work_to_the_end() -> None:
    brief = Cluster(start=END - 30, nodes=1).per_gpu("gpu_sm_active_ratio", 0.7)
    assert judged(brief, "F3", TIMEOUT, planes=NO_LOG).variant == "no-progress"


# -- G1


def healthy(**shape: Any) -> Cluster:
    cluster = traced(hung(since=9e9, away=None, **shape), 5000)
    return cluster.per_gpu("gpu_ecc_uncorrectable_total", 3).per_gpu("gpu_rows_remapped_uncorrectable_total", 1)


def test_healthy_on_positive_evidence() -> None:
    finding = judged(healthy(), "G1", points(65), COMPLETED)
    assert (outcome(finding), finding.variant) == ((FOUND, ESTABLISHED), "healthy")
    assert {"completed", "worked", "launched", "fell", "clean_ecc", "clean_remaps"} <= set(keys(finding))
    assert [each.key for each in finding.implies] == ["healthy"]


PARTS: dict[str, tuple[Callable[[], Cluster], list[str]]] = {
    "no metrics": (lambda: Cluster().per_node("host_load1", 1), ["hardware"]),
    "no counters": (lambda: hung(since=9e9), ["no_counters"]),
    "counters alone": (lambda: Cluster().per_gpu("gpu_ecc_uncorrectable_total", 0), ["no_activity"]),
    "utilisation alone": (
        lambda: Cluster().per_gpu("gpu_utilization_ratio", 1.0).per_gpu("gpu_ecc_uncorrectable_total", 0),
        ["no_activity", "only_busy"],
    ),
}


@pytest.mark.parametrize("case", PARTS)
def test_healthy_is_supported_at_most_without_all_of_it(case: str) -> None:
    make, open_ = PARTS[case]
    finding = judged(make(), "G1", points(65), COMPLETED)
    assert (outcome(finding), finding.variant) == ((FOUND, SUPPORTED), "healthy")
    assert [each.key for each in finding.cannot_decide] == open_
    assert [each.key for each in finding.implies] == ["unmeasured"]


def test_healthy_is_supported_at_most_where_half_of_it_was_seen() -> None:
    whole = healthy()
    missing = whole.judge("G1", points(65), COMPLETED, run=whole.run(n_gpus=32))
    assert (missing.certainty, [each.key for each in missing.cannot_decide]) == (SUPPORTED, ["part"])
    dead = Cluster()
    gone = dict.fromkeys(dead.gpus[8:], dead.until(3500, 0.7))
    dead.per_gpu("gpu_sm_active_ratio", 0.7, gone)
    dead.per_gpu("gpu_ecc_uncorrectable_total", 0, dict.fromkeys(dead.gpus[8:], dead.until(3500, 0)))
    finding = judged(traced(dead, 5000), "G1", points(65), COMPLETED)
    assert finding.certainty is SUPPORTED
    assert "part" in [each.key for each in finding.cannot_decide]


def test_not_healthy_without_work() -> None:
    assert judged(cold(), "G1", points(65), COMPLETED).outcome is ABSENT
    assert judged(hung(), "G1", until_stop()).outcome is ABSENT
    assert judged(healthy(), "G1", points(65), FAILED).outcome is ABSENT


def test_healthy_variants() -> None:
    slow = Cluster().per_gpu("gpu_sm_active_ratio", 0.12).per_gpu("gpu_engine_active_ratio", 0.4)
    assert judged(slow, "G1", points(65), COMPLETED).variant == "slow"
    finding = judged(healthy(), "G1", COMPLETED, planes=NO_LOG)
    assert (outcome(finding), finding.variant) == ((FOUND, SUPPORTED), "unverifiable")
    level = [event("progress", 10 + i, step=i, loss=2.0, time=1060.0 + 60 * i) for i in range(60)]
    flat = judged(healthy(), "G1", level, COMPLETED)
    assert (flat.certainty, [each.key for each in flat.implies]) == (SUPPORTED, ["no_fault"])


def test_a_loss_that_is_exported_counts_as_one_that_is_printed() -> None:
    cluster = healthy()
    falls = np.linspace(4.0, 2.0, len(cluster.times))
    cluster.put("training_loss", falls, rank="0").put("training_step", np.arange(len(falls)), rank="0")
    finding = judged(cluster, "G1", COMPLETED, planes=NO_LOG)
    assert (outcome(finding), finding.variant) == ((FOUND, ESTABLISHED), "healthy")


def test_power_of_work_is_that_of_the_gpus_at_work() -> None:
    cluster = Cluster(nodes=1)
    rows = dict.fromkeys(cluster.gpus[4:], 60.0)
    cluster.per_gpu("gpu_power_watts", cluster.between(1300, 4700, 500, 90), rows)
    assert "500 W" in worded(judged(cluster, "G1", points(60), COMPLETED))


# -- H4


def test_storage_that_came_back_is_no_fault() -> None:
    late = event("storage_fault", 40, time=STOP, role=Role.ROOT, reason="unreachable", plane="kernel",
                 text="nfs: server not responding")  # fmt: skip
    rows = (points(65), late)
    planes: tuple[Plane, ...] = ("log", "scheduler", "kernel")
    stalled = traced(hung(sm=0.0, until=STOP + 300), 5000)
    assert judged(stalled, "H4", *rows, COMPLETED, planes=planes).outcome is ABSENT
    assert judged(stalled, "H4", until_stop(), late, FAILED, planes=planes).outcome is FOUND
