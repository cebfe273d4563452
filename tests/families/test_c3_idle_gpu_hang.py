"""C3 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from typing import Any

from tests.families.grids import (
    DISTRIBUTED_INIT,
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
    unhandled_exception,
)
from trackside.finding import Certainty

LIMIT = root("scheduler_notice", 1, reason="time_limit", time=5000.0)


def test_idle_hang_is_only_possible_without_metrics() -> None:
    finding = judge("C3", LIMIT, activity(1, last_time=5000.0, first_time=5000.0), job("TIMEOUT"))
    assert (finding.outcome, finding.certainty, keys(finding)[0]) == (FOUND, Certainty.POSSIBLE, "log_empty")
    quiet = judge("C3", activity(9, first_time=1000.0, last_time=1100.0), job("TIMEOUT"))
    assert keys(quiet)[0] == "nothing_printed"


def test_a_short_cancelled_run_is_no_idle_hang() -> None:
    one_line = activity(1, last_time=1007.0, first_time=1007.0)
    ended = root("scheduler_notice", 1, reason="cancelled", time=1007.0)
    for seconds, keys_ in (
        (7.0, ["ran_briefly"]),
        (500.0, ["ran_briefly"]),
        (900.0, ["log_empty", "ended_from_outside"]),
    ):
        finding = judge("C3", one_line, ended, job("CANCELLED", end=1000.0 + seconds, elapsed_s=seconds))
        assert keys(finding) == keys_
    assert keys(judge("C3", one_line, LIMIT, job("TIMEOUT", end=1020.0, elapsed_s=20.0))) == ["ran_briefly"]
    assert judge("C3", one_line, LIMIT, job("TIMEOUT", end=1060.0, elapsed_s=60.0)).outcome is FOUND


def test_progress_or_several_ranks_rule_out_an_idle_hang() -> None:
    late = log_points(time=4900.0)
    assert keys(judge("C3", late, activity(30, last_time=4940.0), job("TIMEOUT"))) == ["worked_to_end"]
    world = event("host", 2, world_size=8)
    assert keys(judge("C3", world, log_points(), activity(30, last_time=1050.0), job("TIMEOUT"))) == ["ranks_connected"]
    assert keys(judge("C3", activity(9), job("FAILED", exit_code=1))) == ["not_ended_from_outside"]


def test_c3_is_unknown_without_times() -> None:
    assert judge("C3", log_points(time=None), activity(30), job("TIMEOUT")).outcome is UNKNOWN


def test_the_wording_of_the_idle_hang_example() -> None:
    cluster = cold(nodes=1, gpus=1).per_gpu("trackside_gpu_process_attached", 0)
    empty = event("log_activity", lines=0, path="slurm-7.out")
    finding = judged(cluster, "C3", empty, TIMEOUT)
    assert decision(finding) == (FOUND, ESTABLISHED)
    assert {"no_work_done", "never_above_sm", "never_above_engine", "no_launch", "no_process", "log_empty"} <= set(
        keys(finding)
    )
    assert (finding.gpus, finding.ranks) == (("n1:0",), (0,))


def test_an_idle_gpu_after_work_is_established() -> None:
    cluster = hung(sm=0.0, nodes=1, gpus=1, away="n1:0")
    finding = judged(cluster, "C3", until_stop(), TIMEOUT)
    assert decision(finding) == (FOUND, ESTABLISHED)
    assert "memory_held" in keys(finding)


def test_rivals_are_no_idle_hang() -> None:
    single: dict[str, Any] = {"nodes": 1, "gpus": 1}
    assert keys(judged(cold(), "C3", DISTRIBUTED_INIT, TIMEOUT)) == ["rendezvous_failed"]
    assert keys(judged(hung(**single, since=9e9, away=None), "C3", points(65), TIMEOUT)) == ["gpu_work_sm"]
    assert keys(judged(cold(**single), "C3", TIMEOUT, event("checkpoint_saved", time=4900.0))) == ["worked_on_host"]
    idle = hung(**single, sm=0.0, away="n1:0")
    assert judged(idle, "C3", points(65), TIMEOUT).outcome is not FOUND  # steps continue without the GPU
    assert keys(judged(cold(**single), "C3", FAILED)) == ["not_ended_from_outside"]
    assert keys(judged(hung(), "C3", until_stop(), TIMEOUT)) == ["stopped_together"]


def test_a_tracer_without_events_does_not_show_idleness() -> None:
    busy = Cluster(nodes=1, gpus=1).per_gpu("gpu_utilization_ratio", 0.9).per_gpu("gpu_sm_active_ratio", 0.15)
    busy.per_gpu("trackside_cuda_kernel_launches_total", 0)
    assert judged(busy, "C3", TIMEOUT, planes=NO_LOG).outcome is ABSENT
    unseen = Cluster(nodes=1, gpus=1).per_gpu("trackside_cuda_kernel_launches_total", 0)
    unseen.per_gpu("trackside_tracer_attached", 0)
    assert judged(unseen, "C3", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN


def test_context_power_is_not_counted_as_work() -> None:
    """A CUDA context raises an idle H100 from 70 to 118 W; its utilization stays 0."""

    def idle(**shape: Any) -> Cluster:
        cluster = Cluster(**shape).per_gpu("gpu_utilization_ratio", 0.0).per_gpu("gpu_memory_used_bytes", 6.0 * GIB)
        return cluster.per_gpu("gpu_power_watts", cluster.after(1060, 118.0, 73.0))

    cluster = idle(nodes=1, gpus=1)
    silent = event("log_activity", lines=3, path="slurm-7.out")
    assert decision(judged(cluster, "C3", silent, TIMEOUT)) == (FOUND, ESTABLISHED)
    assert judged(cluster, "F3", silent, TIMEOUT).variant == "silent"
    assert judged(cluster, "D1", silent, TIMEOUT).outcome is not FOUND
    assert decision(judged(idle(), "C1", DISTRIBUTED_INIT, TIMEOUT)) == (FOUND, ESTABLISHED)
    assert "worked_to_end_power" not in keys(judged(idle(), "C1", DISTRIBUTED_INIT, TIMEOUT))
    power = Cluster(nodes=1, gpus=1)
    power.per_gpu("gpu_power_watts", power.after(1060, 118.0, 70.0))
    assert judged(power, "C3", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN


def test_an_endless_kernel_on_a_single_gpu_is_an_idle_hang() -> None:
    """The only GPU of a run cannot wait in a collective."""
    finding = judged(hung(sm=0.0076, nodes=1, gpus=1, away=None), "C3", until_stop(), TIMEOUT)
    assert (finding.outcome, finding.gpus) == (FOUND, ("n1:0",))
    assert "1 GPU only waited in a spinning kernel, without computing: engine activity 100% (median)" in text_of(
        finding
    )


def test_a_silent_log_of_several_gpus_is_a_collective_hang() -> None:
    eight_gpus = Cluster(nodes=1).run(n_gpus=8)
    one_gpu = Cluster(nodes=1).run(n_gpus=1)
    blind = Cluster(nodes=1, gpus=1).per_gpu("gpu_temperature_celsius", 50)
    assert blind.judge("C3", until_stop(), TIMEOUT, run=eight_gpus).outcome is ABSENT
    assert blind.judge("C2", until_stop(), TIMEOUT, run=eight_gpus).outcome is FOUND
    assert blind.judge("C3", until_stop(), TIMEOUT, run=one_gpu).outcome is FOUND
    assert blind.judge("C2", until_stop(), TIMEOUT, run=one_gpu).outcome is not FOUND


def test_an_error_that_training_survived_is_not_called_the_end() -> None:
    handled = judge("C3", unhandled_exception("MaxLengthError", 5), log_points(), LIMIT)
    assert keys(handled) == ["worked_after_error"]
    assert keys(judge("C3", unhandled_exception("ValueError", 90), log_points(), LIMIT)) == ["error_before_end"]
