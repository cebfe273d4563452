"""C3 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from typing import Any

from tests.families.grids import (
    BEGAN,
    NO_LOG,
    Cluster,
    cold,
    hung,
    judged,
    until_stop,
)
from tests.families.rows import (
    ABSENT,
    ESTABLISHED,
    FAILED,
    FOUND,
    GIB,
    TIMEOUT,
    UNKNOWN,
    activity,
    decision,
    event,
    job,
    judge,
    keys,
    log_points,
    points,
    root,
    text_of,
)
from trackside.finding import Certainty

LIMIT = root("scheduler_notice", 1, reason="time_limit", time=5000.0)


def test_idle_hang_is_only_possible_without_metrics() -> None:
    finding = judge("C3", LIMIT, activity(1, last_time=5000.0, first_time=5000.0), job("TIMEOUT"))
    assert (finding.outcome, finding.certainty, keys(finding)[0]) == (FOUND, Certainty.POSSIBLE, "empty")
    quiet = judge("C3", activity(9, first_time=1000.0, last_time=1100.0), job("TIMEOUT"))
    assert keys(quiet)[0] == "silent"


def test_a_run_of_seconds_that_somebody_cancelled_is_no_idle_hang() -> None:
    one_line = activity(1, last_time=1007.0, first_time=1007.0)
    ended = root("scheduler_notice", 1, reason="cancelled", time=1007.0)
    for seconds, keys_ in ((7.0, ["brief"]), (500.0, ["brief"]), (900.0, ["empty", "reaped_by"])):
        finding = judge("C3", one_line, ended, job("CANCELLED", end=1000.0 + seconds, elapsed_s=seconds))
        assert keys(finding) == keys_
    assert keys(judge("C3", one_line, LIMIT, job("TIMEOUT", end=1020.0, elapsed_s=20.0))) == ["brief"]
    assert judge("C3", one_line, LIMIT, job("TIMEOUT", end=1060.0, elapsed_s=60.0)).outcome is FOUND


def test_idle_hang_is_not_progress_nor_an_affair_between_ranks() -> None:
    late = log_points(time=4900.0)
    assert keys(judge("C3", late, activity(30, last_time=4940.0), job("TIMEOUT"))) == ["worked"]
    world = event("host", 2, world_size=8)
    assert keys(judge("C3", world, log_points(), activity(30, last_time=1050.0), job("TIMEOUT"))) == ["several"]
    assert keys(judge("C3", activity(9), job("FAILED", exit_code=1))) == ["not_reaped"]


def test_idle_hang_without_times_is_unknown() -> None:
    assert judge("C3", log_points(time=None), activity(30), job("TIMEOUT")).outcome is UNKNOWN


def test_idle_gpu_hang_in_the_words_of_the_example() -> None:
    cluster = cold(nodes=1, gpus=1).per_gpu("trackside_gpu_process_attached", 0)
    empty = event("log_activity", lines=0, path="slurm-7.out")
    finding = judged(cluster, "C3", empty, TIMEOUT)
    assert decision(finding) == (FOUND, ESTABLISHED)
    assert {"all_cold", "cold_sm", "cold_engine", "no_launch", "no_process", "empty"} <= set(keys(finding))
    assert (finding.gpus, finding.ranks) == (("n1:0",), (0,))


def test_idle_after_work() -> None:
    cluster = hung(sm=0.0, nodes=1, gpus=1, away="n1:0")
    finding = judged(cluster, "C3", until_stop(), TIMEOUT)
    assert decision(finding) == (FOUND, ESTABLISHED)
    assert "memory_held" in keys(finding)


def test_no_idle_gpu_hang() -> None:
    one: dict[str, Any] = {"nodes": 1, "gpus": 1}
    assert keys(judged(cold(), "C3", BEGAN, TIMEOUT)) == ["formed"]
    assert keys(judged(hung(**one, since=9e9, away=None), "C3", points(65), TIMEOUT)) == ["worked_gpus_sm"]
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
    """A context lifts an idle H100 from 70 to 118 W and leaves its utilization at 0."""

    def idle(**shape: Any) -> Cluster:
        cluster = Cluster(**shape).per_gpu("gpu_utilization_ratio", 0.0).per_gpu("gpu_memory_used_bytes", 6.0 * GIB)
        return cluster.per_gpu("gpu_power_watts", cluster.after(1060, 118.0, 73.0))

    one = idle(nodes=1, gpus=1)
    silent = event("log_activity", lines=3, path="slurm-7.out")
    assert decision(judged(one, "C3", silent, TIMEOUT)) == (FOUND, ESTABLISHED)
    assert judged(one, "F3", silent, TIMEOUT).variant == "silent"
    assert judged(one, "D1", silent, TIMEOUT).outcome is not FOUND
    assert decision(judged(idle(), "C1", BEGAN, TIMEOUT)) == (FOUND, ESTABLISHED)
    assert "worked_power" not in keys(judged(idle(), "C1", BEGAN, TIMEOUT))
    power = Cluster(nodes=1, gpus=1)
    power.per_gpu("gpu_power_watts", power.after(1060, 118.0, 70.0))
    assert judged(power, "C3", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN


def test_kernel_without_end_on_a_single_gpu() -> None:
    """No collective keeps the only GPU of a run busy."""
    finding = judged(hung(sm=0.0076, nodes=1, gpus=1, away=None), "C3", until_stop(), TIMEOUT)
    assert (finding.outcome, finding.gpus) == (FOUND, ("n1:0",))
    assert "spin" in keys(finding)
    assert "1 GPU spun at 100%" in text_of(finding)


def test_silent_log_of_several_gpus_is_an_affair_between_ranks() -> None:
    eight = Cluster(nodes=1).run(n_gpus=8)
    one = Cluster(nodes=1).run(n_gpus=1)
    blind = Cluster(nodes=1, gpus=1).per_gpu("gpu_temperature_celsius", 50)
    assert blind.judge("C3", until_stop(), TIMEOUT, run=eight).outcome is ABSENT
    assert blind.judge("C2", until_stop(), TIMEOUT, run=eight).outcome is FOUND
    assert blind.judge("C3", until_stop(), TIMEOUT, run=one).outcome is FOUND
    assert blind.judge("C2", until_stop(), TIMEOUT, run=one).outcome is not FOUND
