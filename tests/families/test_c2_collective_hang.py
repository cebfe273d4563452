"""C2 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.families.grids import (
    AWAY,
    NO_LOG,
    RANK,
    STOP,
    Cluster,
    hung,
    judged,
    traced,
    until_stop,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    END,
    ESTABLISHED,
    FAILED,
    FOUND,
    POSSIBLE,
    START,
    SUPPORTED,
    TIMEOUT,
    UNKNOWN,
    Row,
    decision,
    event,
    job,
    judge,
    keys,
    log_points,
    points,
    sentence_name,
    text_of,
)
from trackside.families.c2_collective_hang import CLOSURE_UNEXPLAINED, FIND_LOST_RANK
from trackside.finding import Certainty, clause
from trackside.model import Event, EventRole, Position, Record, Run


def timed_out(rank: int, seq: int | None = 40, **fields: Any) -> Event:
    return event("collective_timeout", 60 + rank, EventRole.CASCADE, rank=rank, seq=seq, **{"time": 2000.0, **fields})


def test_collective_hang_names_the_silent_rank() -> None:
    ready = event("distributed_ready", 3, world_size=4)
    finding = judge("C2", ready, log_points(), [timed_out(rank) for rank in (0, 1, 3)], job("FAILED", exit_code=1))
    assert (finding.outcome, finding.certainty, finding.ranks) == (FOUND, Certainty.ESTABLISHED, (2,))
    pair = judge("C2", log_points(), timed_out(0), run=Run(n_ranks=2))
    assert pair.headline is not None
    assert clause(pair.headline) == "hung in a collective: one rank waits for the other"
    named = judge("C2", log_points(), timed_out(0, missing_ranks="1,6"))
    assert named.ranks == (1, 6)


def test_collective_hang_names_the_rank_with_the_least_enqueued_work() -> None:
    rows = [timed_out(r, last_enqueued=40, last_completed=39) for r in (0, 1, 2)]
    state = event("collective_state", 70, EventRole.CASCADE, rank=3, last_enqueued=39, last_completed=39)
    assert judge("C2", log_points(), rows, state, run=Run(n_ranks=4)).ranks == (3,)
    behind = timed_out(3, seq=39, last_enqueued=38, last_completed=38)
    assert "ranks_behind" in keys(judge("C2", log_points(), rows, behind))


def test_a_blocked_kernel_task_blames_infrastructure_for_a_collective_hang() -> None:
    task = event("hung_task", 4, EventRole.CONFIRMATION, plane="kernel", path="dmesg.txt", comm="python3", seconds=120)
    assert judge("C2", log_points(), timed_out(0), task).culprit == "infrastructure"


def test_a_blocked_task_is_quoted_with_the_storage_that_it_waits_for() -> None:
    silent = event(
        "storage_fault", 3, plane="kernel", path="dmesg.txt", node="a1", reason="unreachable", text="nfs: server"
    )
    task = event(
        "hung_task", 4, EventRole.CONFIRMATION, plane="kernel", path="dmesg.txt", node="a1", comm="python3", pid=7
    )
    text = text_of(judge("C2", log_points(), timed_out(0), silent, task))
    assert "A file server did not answer a1" in text
    assert "python3 (pid 7) on a1 was blocked in the kernel" in text
    elsewhere = event(
        "hung_task", 4, EventRole.CONFIRMATION, plane="kernel", path="dmesg.txt", node="a2", comm="python3", pid=7
    )
    assert "was blocked" not in text_of(judge("C2", log_points(), timed_out(0), silent, elsewhere))


@pytest.mark.parametrize(
    ("signal", "reason", "remedy"),
    [
        (9, "killed", "worker_remedies_killed"),
        (7, "bus_error", "worker_remedies_bus_error"),
        (None, "exited", "worker_remedies_exited"),
    ],
)
def test_the_remedy_of_a_dead_loader_worker_depends_on_what_ended_it(
    signal: int | None, reason: str, remedy: str
) -> None:
    died = event("dataloader_death", 900, rank=1, role=EventRole.ROOT, signal=signal, reason=reason, text="a worker")
    finding = judge("C2", log_points(), timed_out(0), died)
    assert [sentence_name(action) for action in finding.actions] == [remedy]


def test_a_timeout_at_startup_or_teardown_is_no_collective_hang() -> None:
    assert keys(judge("C2", [timed_out(r, seq=1) for r in (0, 1)])) == ["is_rendezvous_failure"]
    assert judge("C2", timed_out(0, time=1000.0), log_points(line=200)).outcome is ABSENT
    end = event("training_end", 50, status="success")
    assert judge("C2", log_points(), end, event("peer_lost", 60, EventRole.CASCADE, rank=0)).outcome is ABSENT


def test_silence_to_the_time_limit_is_a_collective_hang_without_a_watchdog() -> None:
    world = event("host", 2, world_size=8)
    finding = judge("C2", world, log_points(), job("TIMEOUT"))
    assert (finding.outcome, finding.certainty) == (FOUND, Certainty.SUPPORTED)
    assert judge("C2", world, log_points(time=4900.0), job("TIMEOUT")).outcome is ABSENT
    assert judge("C2", log_points(), job("TIMEOUT")).outcome is ABSENT  # one process has no peers


def test_flight_recorder_dumps_alone_show_a_collective_hang() -> None:
    def dump(rank: int, enqueued: int, pending: int | None) -> Record:
        fields: dict[str, Any] = {"rank": rank, "group": "0", "ranks": (0, 1), "last_enqueued": enqueued}
        if pending is not None:
            fields |= {"pending_seq": pending, "pending_op": "all_reduce"}
        return Record("flight_recorder_group", Position(f"dump_{rank}", 1), "collective", fields)

    finding = judge("C2", dump(0, 41, 41), dump(1, 40, None), planes=("collective",))
    assert (finding.outcome, finding.ranks) == (FOUND, (1,))


def test_a_stall_is_compared_with_work_and_not_with_startup() -> None:
    """Most of the time before the stall is imports and data loading."""
    cluster = hung(give=("engine", "memory"))
    working = np.where(cluster.times < 2400, 0.0, np.where(cluster.times < STOP, 0.7, 0.03))
    cluster.per_gpu("gpu_sm_active_ratio", working, {AWAY: np.where(cluster.times < STOP, working, 0.0)})
    finding = judged(cluster, "C2", until_stop(), TIMEOUT)
    [rest] = [show for show in finding.shows if sentence_name(show) == "work_before_and_now_sm"]
    assert rest.values["before"].number == pytest.approx(0.7)


HANGS: dict[str, Callable[[], Cluster]] = {
    "spinning hardly": hung,
    "sampled every minute": lambda: hung(interval=60.0),
    "spinning on a third of the SMs": lambda: hung(sm=0.19, was=0.5),
    "spinning on most of what it worked on": lambda: hung(sm=0.18, was=0.27),
    "launches traced": lambda: traced(hung()),
    "power alone": lambda: hung(give=("utilization", "power", "memory")),
    "two GPUs": lambda: hung(nodes=2, gpus=1, away="n2:0"),
}


@pytest.mark.parametrize("case", HANGS)
def test_collective_hang_is_established_from_gpu_metrics(case: str) -> None:
    cluster = HANGS[case]()
    finding = judged(cluster, "C2", until_stop(), TIMEOUT)
    assert decision(finding) == (FOUND, ESTABLISHED)
    away = AWAY if len(cluster.gpus) > 2 else "n2:0"
    assert (finding.gpus, finding.nodes, finding.ranks) == ((away,), ("n2",), (cluster.gpus.index(away),))
    assert {"outlier_claims_cold", "memory_held", "run_ended"} <= set(keys(finding))
    assert finding.since == pytest.approx(STOP, abs=130)


def test_the_wording_of_the_collective_hang_example() -> None:
    """Fifteen ranks spin, one is idle, and its log reports the killed loader worker."""
    died = event(
        "dataloader_death",
        900,
        rank=RANK,
        role=EventRole.ROOT,
        signal=9,
        reason="killed",
        text="worker is killed by signal: Killed.",
    )
    finding = judged(traced(hung()), "C2", until_stop(), died, TIMEOUT)
    text = text_of(finding)
    assert "0 kernel launches in the last 33 min, 158,400,000 in the 34 min of work before that" in text
    assert "15 GPUs only waited in a spinning kernel, without computing: engine activity 100% (the lowest of" in text
    assert f"GPU {AWAY} went idle (engine activity 0%)" in text
    assert f"ata-loader worker of rank {RANK} died" in text
    assert (finding.culprit, finding.cannot_decide) == ("job", ())
    assert [sentence_name(action) for action in finding.actions] == ["worker_remedies_killed"]  # the rank is known


def test_the_cause_of_a_missing_rank_is_open_without_its_own_log_line() -> None:
    other = event("dataloader_death", 900, rank=2, role=EventRole.ROOT, signal=9)
    finding = judged(hung(), "C2", until_stop(), other, TIMEOUT)
    assert "worker_died" not in keys(finding)
    assert [sentence_name(claim) for claim in finding.cannot_decide] == ["absence_unexplained"]


def test_a_collective_hang_is_found_without_a_log() -> None:
    assert decision(judged(hung(), "C2", TIMEOUT, planes=NO_LOG)) == (FOUND, ESTABLISHED)
    assert decision(judged(hung(), "C2", planes=())) == (FOUND, SUPPORTED)
    third = hung(sm=0.19, was=0.5)
    assert decision(judged(third, "C2", TIMEOUT, planes=NO_LOG)) == (FOUND, ESTABLISHED)
    short = hung(since=4600)
    assert decision(judged(short, "C2", FAILED, planes=NO_LOG))[0] is not FOUND
    shorter = hung(start=4000, since=4600)
    assert decision(judged(shorter, "C2", job("FAILED", start=4000.0), planes=NO_LOG)) == (FOUND, POSSIBLE)


def test_a_pause_as_long_as_an_earlier_one_is_no_stall() -> None:
    assert judged(hung(since=4200), "C2", TIMEOUT, planes=NO_LOG).outcome is FOUND
    again = Cluster()
    twice = again.between(2000, 2700, 0.03, again.between(4200, 9e9, 0.03, 0.7))
    pinned = again.between(2000, 2700, 1.0, again.between(4200, 9e9, 1.0, 0.97))
    again.per_gpu("gpu_sm_active_ratio", twice).per_gpu("gpu_engine_active_ratio", pinned)
    assert judged(again, "C2", TIMEOUT, planes=NO_LOG).outcome is not FOUND


def test_a_gpu_whose_samples_stop_is_named() -> None:
    cluster = hung(away=None, give=("engine", "memory"))
    spin = cluster.between(STOP, 9e9, 0.03, 0.7)
    fresh = Cluster().per_gpu("gpu_sm_active_ratio", spin, {AWAY: cluster.until(STOP, 0.7)})
    fresh.per_gpu("gpu_engine_active_ratio", cluster.between(STOP, 9e9, 1.0, 0.97), {AWAY: cluster.until(STOP, 0.97)})
    finding = judged(fresh, "C2", until_stop(), TIMEOUT)
    assert (finding.outcome, finding.gpus) == (FOUND, (AWAY,))
    assert "outlier_claims_gone" in keys(finding)


def test_the_rank_that_entered_fewer_collectives_is_named() -> None:
    """Its GPU spins too, in an earlier collective."""
    cluster = hung(away=None)
    done = np.minimum(cluster.growing(20), 20 * (STOP - START))
    cluster.per_gpu("trackside_nccl_collectives_completed_total", done)
    cluster.per_gpu("trackside_nccl_collectives_started_total", done + 1, {AWAY: done})
    finding = judged(cluster, "C2", until_stop(), TIMEOUT)
    assert (finding.outcome, finding.gpus) == (FOUND, (AWAY,))
    assert "outlier_claims_behind" in keys(finding)


def test_utilization_alone_needs_the_others_pinned() -> None:
    only = ("utilization", "memory")
    assert judged(hung(give=only), "C2", until_stop(), TIMEOUT).gpus == (AWAY,)
    assert judged(hung(give=only), "C2", TIMEOUT, planes=NO_LOG).gpus == (AWAY,)
    loose = hung(give=("memory",))
    loose.per_gpu("gpu_utilization_ratio", 0.7, {AWAY: loose.after(STOP, 0.0, 0.7)})
    assert judged(loose, "C2", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN


RIVALS: dict[str, tuple[Callable[[], Cluster], list[Row | list[Any]], str]] = {
    "an evaluation that ends": (lambda: hung(until=STOP + 900), [points(65), TIMEOUT], "worked_to_end_sm"),
    "storage that comes back": (
        lambda: traced(hung(sm=0.0, until=STOP + 300)).per_gpu("gpu_power_watts", 300), [points(65), COMPLETED],
        "ended_well",
    ),
    "work to the end": (lambda: hung(since=9e9), [points(65), TIMEOUT], "worked_to_end_sm"),
    "work until shortly before the end": (lambda: hung(since=END - 90), [points(65), TIMEOUT], "worked_until_sm"),
    "completed with a cold tail": (hung, [until_stop(), COMPLETED], "ended_well"),
}  # fmt: skip


@pytest.mark.parametrize("case", RIVALS)
def test_rivals_are_no_collective_hang(case: str) -> None:
    make, rows, why = RIVALS[case]
    finding = judged(make(), "C2", *rows)
    assert finding.outcome is ABSENT
    assert why in keys(finding)


def test_gpus_that_all_spin_alike_are_not_established_as_hung() -> None:
    """Without a log a lighter phase looks like a wait on a third of the SMs: no idle GPU, no verdict."""
    assert judged(hung(sm=0.19, was=0.5, away=None), "C2", FAILED, planes=NO_LOG).outcome is not FOUND
    stages = hung(sm=0.5, was=0.5)  # the others keep working: nobody waits for the idle one
    assert judged(stages, "C2", FAILED, planes=NO_LOG).outcome is ABSENT


def test_continuing_steps_are_no_hang() -> None:
    assert judged(hung(), "C2", points(65), TIMEOUT).outcome is not FOUND


def test_falling_clocks_are_no_stall() -> None:
    cluster = hung(away=None, give=("power", "utilization"))
    cluster.per_gpu("gpu_sm_clock_hertz", cluster.after(STOP, 6e8, 1.7e9))
    assert judged(cluster, "C2", FAILED, planes=NO_LOG).outcome is not FOUND


def test_collective_hang_is_unknown_without_activity_metrics() -> None:
    blind = Cluster().per_gpu("gpu_temperature_celsius", 50)
    assert judged(blind, "C2", FAILED, planes=NO_LOG).outcome is UNKNOWN
    gap = Cluster().per_gpu("gpu_sm_active_ratio", Cluster().until(1500, 0.7))
    assert judged(gap, "C2", FAILED, planes=NO_LOG).outcome is UNKNOWN


def test_the_culprit_is_unknown_without_a_trigger() -> None:
    """The missing rank is known; code, data, storage or network may have blocked it."""
    finding = judged(hung(), "C2", until_stop(), TIMEOUT)
    assert (finding.gpus, finding.culprit) == ((AWAY,), "unknown")
    goes_on = judged(hung(), "C2", until_stop(), job("RUNNING", end=None))
    assert "listed_as" in keys(goes_on)
    assert "run_ended" not in keys(goes_on)


def test_a_rank_that_evaluates_past_the_timeout_of_the_others_is_named() -> None:
    """Seven of eight ranks time out; the GPU of the eighth keeps working, so its own code is the cause."""
    cluster = hung(nodes=1, away=None, sm=0.18, give=("engine", "memory"))
    waits = cluster.between(STOP, 9e9, 0.18, 0.7)
    cluster.per_gpu("gpu_sm_active_ratio", waits, {"n1:0": cluster.between(STOP, 9e9, 0.4, 0.7)})
    timed_out = [
        event(
            "collective_timeout", 900 + rank, rank=rank, time=4800.0, role=EventRole.CASCADE, seq=6120, timeout_s=1800.0
        )
        for rank in range(1, 8)
    ]
    finding = cluster.judge("C2", until_stop(), timed_out, FAILED, run=cluster.run())
    assert (finding.outcome, finding.ranks, finding.gpus, finding.culprit) == (FOUND, (0,), ("n1:0",), "job")
    assert {"outlier_claims_computing", "ranks_silent"} <= set(keys(finding))
    few = cluster.judge("C2", until_stop(), timed_out[:5], FAILED, run=cluster.run())  # several ranks are missing
    assert "ranks_silent" not in keys(few)


NCCL_INIT = event("nccl_init", time=1010.0, nranks=16, complete=True, text="comm rank 0 nranks 16 - Init COMPLETE")


def spun(**moves: float) -> Cluster:
    """GPUs busy from the start at the power of waiting; ``moves`` are more metrics and their levels."""
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
def test_a_run_stuck_in_its_first_collective(moves: dict[str, float]) -> None:
    """No step and no memory traffic: neither training nor a slow network."""
    cluster = spun(**moves)
    finding = judged(cluster, "C2", NCCL_INIT, TIMEOUT)
    assert (decision(finding), finding.culprit) == ((FOUND, SUPPORTED), "unknown")
    assert {"no_step", "looked_busy", "traffic_claims_copy"} <= set(keys(finding))
    assert judged(cluster, "F3", NCCL_INIT, TIMEOUT).variant == "silent"
    assert judged(cluster, "D2", NCCL_INIT, TIMEOUT).outcome is not FOUND


def test_spinning_alone_proves_neither_work_nor_a_hang() -> None:
    assert decision(judged(spun(), "C2", NCCL_INIT, TIMEOUT)) == (FOUND, POSSIBLE)
    assert judged(spun(), "F3", TIMEOUT, planes=NO_LOG).variant == "no-progress"
    assert judged(spun(), "C2", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN


def test_work_that_prints_nothing_is_no_hang() -> None:
    computes = spun(sm_active_ratio=0.14, dram_active_ratio=0.3)
    assert keys(judged(computes, "C2", NCCL_INIT, TIMEOUT)) == ["traffic_claims_dram"]
    assert judged(computes, "F3", NCCL_INIT, TIMEOUT).variant == "slow"
    assert judged(computes, "D2", NCCL_INIT, TIMEOUT).outcome is FOUND
    light = spun(memory_utilization_ratio=0.2)
    assert judged(light, "F3", TIMEOUT, planes=NO_LOG).variant == "slow"
    brief = Cluster(start=END - 400).per_gpu("gpu_utilization_ratio", 1.0).per_gpu("gpu_power_watts", 180.0)
    assert judged(brief.per_gpu("gpu_memory_utilization_ratio", 0.0), "C2", NCCL_INIT, TIMEOUT).outcome is not FOUND


def test_missing_samples_before_the_end_leave_a_hang_unknown() -> None:
    """Samples end during the run, or are missing before an idle end."""
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
    assert judged(gap, "C2", TIMEOUT, planes=NO_LOG).outcome is not FOUND  # only five minutes were sampled


def test_a_lost_connection_alone_is_no_hang() -> None:
    ready = event("distributed_ready", 3, world_size=2)
    lost = event("peer_lost", 60, EventRole.CASCADE, rank=0, time=2000.0, text="Connection reset by peer")
    finding = judge("C2", ready, log_points(), lost, job("FAILED", exit_code=1), run=Run(n_ranks=2))
    assert finding.headline is not None
    assert clause(finding.headline) == "a rank lost its connection to another"
    assert [sentence_name(claim) for claim in finding.implies] == ["failure_ended_run"]
    assert [claim.sentence for claim in finding.cannot_decide] == [CLOSURE_UNEXPLAINED]
    assert [step.sentence for step in finding.actions][:1] == [FIND_LOST_RANK]
    timeout = judge("C2", ready, log_points(), lost, timed_out(0), job("FAILED", exit_code=1), run=Run(n_ranks=2))
    assert timeout.headline is not None
    assert clause(timeout.headline).startswith("hung in a collective")
