"""D1 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.families.grids import (
    Cluster,
    counted,
    figure,
    steps,
    uniform,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    DONE,
    ESTABLISHED,
    FOUND,
    POSSIBLE,
    START,
    SUPPORTED,
    UNKNOWN,
    Row,
    curve,
    event,
    job,
    judge_store,
    keys,
    outcome,
    points,
    primary,
    sentence_name,
    short_job,
    store,
    text_of,
)
from trackside.finding import Certainty


def timed(data: float, compute: float = 0.05, count: int = 12) -> list[Row]:
    return curve([4 - 0.1 * i for i in range(count)], data_time_s=data, compute_time_s=compute, comm_time_s=0.02)


def test_d1_finds_a_step_that_waits_for_data() -> None:
    assert judge_store("D1", store(timed(1.04), short_job("COMPLETED"))).certainty is Certainty.SUPPORTED
    assert judge_store("D1", store(timed(0.004), short_job("COMPLETED"))).outcome is ABSENT
    assert judge_store("D1", store(timed(1.04, count=6))).outcome is UNKNOWN
    assert primary(store(timed(1.04), DONE, short_job("COMPLETED"))).family == "D1"
    assert judge_store("D1", store(timed(1.04), short_job("FAILED"))).latent


def bursts(cluster: Cluster, duty: float) -> Cluster:
    """Utilization of GPUs that alternate between work and rest for seconds: each sample is 0 or 1."""
    random = np.random.default_rng(3)
    for name in cluster.gpus:
        node, _, gpu = name.partition(":")
        cluster.put(
            "gpu_utilization_ratio", (random.random(len(cluster.times)) < duty).astype(float), node=node, gpu=gpu
        )
    return cluster


def test_nearly_idle_gpus_that_launch_and_learn_are_starved() -> None:
    finding = counted(uniform(0.15, 0.1)).judge("D1", points(), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert (finding.culprit, finding.gpus) == ("job", ())
    assert {"busy_during", "sm_activity", "advancing_collectives", "loss_fell"} <= set(keys(finding))
    assert "cause_unknown" in [sentence_name(claim) for claim in finding.cannot_decide]


def test_printed_data_waits_establish_starvation() -> None:
    finding = uniform(0.15, 0.1).judge("D1", steps(10.0, data_time_s=8.0), COMPLETED)
    assert outcome(finding) == (FOUND, ESTABLISHED, False)
    assert "cause_unknown" not in [sentence_name(claim) for claim in finding.cannot_decide]
    fed = uniform(0.95, 0.7).judge("D1", steps(10.0, data_time_s=0.2), COMPLETED)
    assert (fed.outcome, keys(fed)) == (ABSENT, ["busy_during", "little_wait"])


def test_low_duty_alone_is_only_possible() -> None:
    assert outcome(uniform(0.45, 0.3).judge("D1", points(), COMPLETED)) == (FOUND, POSSIBLE, True)


def two_groups(lower: float, upper: float) -> Cluster:
    """The GPUs of node n1 are less busy than those of n2."""
    cluster = Cluster(gpus=4)
    own = {f"n1:{gpu}": cluster.noisy(lower) for gpu in range(4)}
    cluster.per_gpu("gpu_engine_active_ratio", cluster.noisy(upper), own)
    return cluster.per_gpu("gpu_sm_active_ratio", cluster.noisy(0.3))


def test_idle_gpus_that_the_others_wait_for_are_stragglers() -> None:
    finding = two_groups(0.46, 0.98).judge("D1", points(), COMPLETED)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["slow_busy"])


def test_a_figure_of_two_groups_of_gpus_names_them() -> None:
    finding = two_groups(0.2, 0.55).judge("D1", points(), COMPLETED)
    assert finding.outcome is FOUND
    assert "busy_during" not in keys(finding)
    assert re.search(r"n1:0.* were busy 20% of the time, the other GPUs 55%", text_of(finding))


@pytest.mark.parametrize("interval", [10.0, 60.0])
def test_stalls_of_seconds_in_every_step_show_starvation(interval: float) -> None:
    finding = bursts(uniform(0.45, 0.3, interval=interval), 0.45).judge("D1", steps(12.0), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert {"idle_readings", "idle_steps"} <= set(keys(finding))
    assert figure(finding, "idle_steps", "idle") == pytest.approx(6.6, abs=0.2)


def test_short_gaps_between_kernels_are_no_stalls() -> None:
    """The same mean, but every sample lies between 0 and 1; or steps too short for stalls of seconds."""
    small = uniform(0.45, 0.3).per_gpu("gpu_utilization_ratio", 0.45).judge("D1", steps(12.0), COMPLETED)
    assert outcome(small) == (FOUND, POSSIBLE, True)
    assert "idle_readings" not in keys(small)
    assert outcome(bursts(uniform(0.45, 0.3), 0.45).judge("D1", steps(0.8), COMPLETED)) == (FOUND, POSSIBLE, True)


def test_one_long_pause_is_no_stall_in_every_step() -> None:
    cluster = Cluster()
    level = cluster.between(2000, 3700, 0.0, 0.95)
    cluster.per_gpu("gpu_engine_active_ratio", level).per_gpu("gpu_sm_active_ratio", 0.7 * level)
    finding = cluster.per_gpu("gpu_utilization_ratio", level).judge("D1", steps(12.0), COMPLETED)
    assert finding.certainty in (None, POSSIBLE)


def test_io_pressure_on_the_host_supports_starvation() -> None:
    cluster = uniform(0.5, 0.3)
    cluster.per_node("host_pressure_seconds_total", cluster.growing(0.6), resource="io", level="some")
    finding = cluster.judge("D1", points(), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert "tasks_waited_io" in keys(finding)


def fed_by(cluster: Cluster, wait: Any, rate: Any) -> Cluster:
    """The job's exported data wait and throughput."""
    cluster.put("training_data_loading_ratio", wait, rank="0")
    return cluster.put("training_samples_per_second", rate, rank="0")


def test_growing_data_wait_with_falling_throughput_is_starvation() -> None:
    """Utilization stays 0.92; data wait grows from 0.05 to 0.38, throughput falls from 128 to 74."""
    cluster = Cluster(nodes=1, gpus=1)
    cluster.per_gpu("gpu_utilization_ratio", cluster.noisy(0.92)).per_gpu("gpu_sm_active_ratio", cluster.noisy(0.47))
    finding = fed_by(
        cluster, cluster.noisy(cluster.after(2000, 0.38, 0.05)), cluster.noisy(cluster.after(2000, 74, 128))
    ).judge("D1", COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert (finding.culprit, keys(finding)[:2]) == ("job", ["wait_grew", "slower_throughput"])
    assert "from 5% to 38% of each step" in text_of(finding)
    assert finding.since == pytest.approx(2000, abs=60)


@pytest.mark.parametrize(
    ("wait", "rate"), [((0.05, 0.38), (128, 126)), ((0.38, 0.05), (74, 128)), ((0.05, 0.09), (128, 74))]
)
def test_growing_data_wait_alone_is_no_starvation(wait: Any, rate: Any) -> None:
    """Throughput is unchanged; or both improve; or it falls by far more than the wait explains."""
    cluster = Cluster(nodes=1, gpus=1)
    cluster.per_gpu("gpu_engine_active_ratio", 0.97).per_gpu("gpu_sm_active_ratio", 0.7)
    curves = (cluster.noisy(cluster.after(2000, late, early), 0.01) for early, late in (wait, rate))
    assert fed_by(cluster, *curves).judge("D1", COMPLETED).outcome is ABSENT


def test_high_utilization_does_not_rule_out_a_measured_wait() -> None:
    cluster = Cluster(nodes=1, gpus=1).put("training_data_loading_ratio", 0.4, rank="0")
    assert outcome(cluster.per_gpu("gpu_utilization_ratio", 0.95).judge("D1", COMPLETED)) == (FOUND, POSSIBLE, True)
    cluster.per_gpu("gpu_engine_active_ratio", 0.97).per_gpu("gpu_sm_active_ratio", 0.7)
    assert cluster.judge("D1", COMPLETED).outcome is ABSENT


def test_idle_gpus_with_another_cause_are_not_starved() -> None:
    low = uniform(0.2, 0.1)
    finding = low.judge("D1", points(20), [event("checkpoint_saved", 30 + i, step=i + 1) for i in range(20)], COMPLETED)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["idle_while_saving"])
    flag = event("env_flag", 1, name="CUDA_LAUNCH_BLOCKING", value="1", text="CUDA_LAUNCH_BLOCKING=1")
    assert keys(low.judge("D1", points(), flag, COMPLETED)) == ["launches_block"]
    assert keys(uniform(0.99, 0.1).judge("D1", points(), COMPLETED)) == [
        "busy_during"
    ]  # they spin: a slow interconnect


def test_starvation_before_a_hang_is_a_warning() -> None:
    cluster = Cluster()
    level = cluster.until(3000, 0.2)
    cluster.per_gpu("gpu_engine_active_ratio", np.where(np.isnan(level), 0.0, level))
    cluster.per_gpu("gpu_sm_active_ratio", np.where(np.isnan(level), 0.0, 0.1))
    assert cluster.judge("D1", points(), job("FAILED", exit_code=1)).latent
    assert not cluster.judge("D1", points(), COMPLETED).latent


def test_very_low_duty_counts_as_work_if_steps_advance() -> None:
    finding = uniform(0.04, 0.02).judge("D1", points(), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert figure(finding, "busy_during", "busy") == pytest.approx(0.04, abs=0.002)


@pytest.mark.parametrize("code", ["D1", "D2"])
def test_a_few_steps_are_not_judged(code: str) -> None:
    low = uniform(0.15, 0.1) if code == "D1" else uniform(0.99, 0.1)
    assert low.judge(code, points(4), COMPLETED).outcome is UNKNOWN
    assert low.judge(code, points(8), COMPLETED).outcome is FOUND


def test_d1_is_unknown_without_enough_metrics() -> None:
    assert uniform(0.1, 0.1, end=START + 100).judge("D1", COMPLETED).outcome is UNKNOWN
    only_sm = Cluster()
    only_sm.per_gpu("gpu_sm_active_ratio", 0.1)
    finding = only_sm.judge("D1", points(), COMPLETED)
    assert (finding.outcome, bool(finding.collect)) == (UNKNOWN, True)
    idle = Cluster().per_gpu("gpu_engine_active_ratio", 0.0).judge("D1", job("FAILED"))
    assert "never worked" in str(idle.missing)
