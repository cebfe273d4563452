"""D2 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tests.families.grids import (
    TRACER,
    Cluster,
    counted,
    figure,
    steps,
    uniform,
    waiting,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    DONE,
    ESTABLISHED,
    FALLING,
    FOUND,
    POSSIBLE,
    STEPS,
    SUPPORTED,
    UNKNOWN,
    Row,
    curve,
    event,
    example,
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
from trackside.logs.scan import scan_text
from trackside.model import Event


def saves_at(steps: Iterable[int]) -> list[Row]:
    return [event("checkpoint_saved", 600 + s, step=s, path=f"out/checkpoint-{s}") for s in steps]


def test_d2_finds_a_save_storm() -> None:
    points = curve(FALLING, **STEPS)
    assert primary(store(points, saves_at(range(1, 31)), DONE, short_job("COMPLETED"))).variant == "save-storm"
    assert judge_store("D2", store(points, saves_at([10, 20, 30]), DONE)).outcome is ABSENT
    assert judge_store("D2", store(curve([5.0, 4.0], **STEPS), saves_at([1, 2]), DONE)).outcome is UNKNOWN


def test_d2_finds_a_blocking_flag_and_socket_transport() -> None:
    flag = event("env_flag", 3, name="CUDA_LAUNCH_BLOCKING", value="1")
    assert judge_store("D2", store(curve(FALLING), flag, DONE)).variant == "launch-blocking"
    off = event("env_flag", 3, name="CUDA_LAUNCH_BLOCKING", value="0")
    assert judge_store("D2", store(curve(FALLING), off, DONE)).outcome is ABSENT
    socket = event("nccl_transport", 3, transport="socket", nnodes=2, nranks=16)
    finding = judge_store("D2", store(curve(FALLING), socket, DONE, short_job("COMPLETED")))
    assert (finding.variant, finding.latent) == ("interconnect", True)
    no_device = event("nccl_transport", 2, transport="no_ib", nnodes=2, nranks=16)
    finding = judge_store("D2", store(curve(FALLING), no_device, socket, DONE))
    assert keys(finding)[:2] == ["uses_sockets", "no_infiniband"]
    assert judge_store("D2", store(curve(FALLING), no_device, DONE)).outcome is ABSENT
    assert primary(store(curve(FALLING), socket, DONE, short_job("COMPLETED"))).family == "G1"
    alone = event("nccl_transport", 3, transport="socket", nnodes=1, nranks=8)
    assert judge_store("D2", store(curve(FALLING), alone, DONE)).outcome is ABSENT


def calls(cluster: Cluster, times: float, launch_s: float = 1e-5) -> Cluster:
    """CUDA calls that take ``times`` as long as a kernel launch on average."""
    cluster.per_gpu(f"{TRACER}cuda_api_calls_total", cluster.growing(100.0), api="cudaLaunchKernel")
    cluster.per_gpu(f"{TRACER}cuda_api_seconds_total", cluster.growing(100.0 * launch_s), api="cudaLaunchKernel")
    waits = (2 * times - 1) * 100 * launch_s
    cluster.per_gpu(f"{TRACER}cuda_api_calls_total", cluster.growing(100.0), api="cudaStreamSynchronize")
    return cluster.per_gpu(f"{TRACER}cuda_api_seconds_total", cluster.growing(waits), api="cudaStreamSynchronize")


def test_gpus_that_spin_in_slow_collectives() -> None:
    """The catalog's figures: engine near 1.0, SM near 0.1, API time forty times its floor, collectives advance."""
    finding = calls(counted(uniform(0.995, 0.1)), 40).judge("D2", points(), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert (finding.variant, finding.culprit) == ("interconnect", "infrastructure")
    assert {
        "busy_without_work",
        "advancing_collectives",
        "calls_block_longer",
        "affected_alike",
        "loss_fell",
        "ended_well",
    } <= set(keys(finding))
    call_s, launch_s = (figure(finding, "calls_block_longer", name) for name in ("mean", "floor"))
    assert call_s / launch_s == pytest.approx(40, abs=0.1)


def test_compilation_is_not_counted_as_work() -> None:
    """Kernels are compiled and tuned for a third of the run, on nearly idle GPUs."""
    cluster = Cluster()
    cluster.per_gpu("gpu_engine_active_ratio", cluster.after(2300, 0.99, 0.12))
    cluster.per_gpu("gpu_sm_active_ratio", cluster.after(2300, 0.1, 0.05))
    untimed = [event("progress", 10 + i, step=i + 1, loss=4 - i / 10) for i in range(10)]
    finding = counted(cluster).judge("D2", untimed, COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert figure(finding, "busy_without_work", "busy") == pytest.approx(0.99, abs=0.01)


def test_traced_waits_establish_a_slow_interconnect() -> None:
    finding = waiting(counted(uniform(0.99, 0.15)), 0.9).judge("D2", points(), COMPLETED)
    assert outcome(finding) == (FOUND, ESTABLISHED, False)
    assert figure(finding, "in_collectives", "share") == pytest.approx(0.9, abs=0.01)


def test_low_sm_activity_alone_is_only_possible() -> None:
    cluster = uniform(0.97, 0.3)
    doubtful = cluster.judge("D2", points(), COMPLETED)
    assert outcome(doubtful) == (FOUND, POSSIBLE, True)
    assert "wait_or_few_sms" in [sentence_name(claim) for claim in doubtful.cannot_decide]
    assert outcome(cluster.judge("D2", steps(10.0, comm_time_s=7.0), COMPLETED)) == (FOUND, SUPPORTED, False)
    finding = uniform(0.97, 0.6).judge("D2", steps(10.0, comm_time_s=7.0), COMPLETED)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["gpus_worked"])
    assert figure(finding, "gpus_worked", "sm") == pytest.approx(0.6, abs=0.01)


def unprofiled(watts: float) -> Cluster:
    cluster = Cluster()
    cluster.per_gpu("gpu_utilization_ratio", 0.99).per_gpu("gpu_power_watts", cluster.noisy(watts))
    return cluster.per_gpu("gpu_power_limit_watts", 700.0)


def test_power_replaces_missing_sm_activity() -> None:
    sockets = event("nccl_transport", 3, transport="socket", nnodes=2, nranks=16, text="NET/Socket : Using [0]eth0")
    assert outcome(unprofiled(200).judge("D2", points(), sockets, COMPLETED)) == (FOUND, SUPPORTED, False)
    assert outcome(unprofiled(200).judge("D2", points(), COMPLETED)) == (FOUND, POSSIBLE, True)
    assert unprofiled(550).judge("D2", points(), COMPLETED).outcome is ABSENT
    assert outcome(unprofiled(550).judge("D2", points(), sockets, COMPLETED)) == (FOUND, POSSIBLE, True)


def by_default(watts: float, tensor: float = 0.05, dram: float = 0.05, **labels: str) -> Cluster:
    """The default metrics of exporters: no SM activity and no power limit."""
    cluster = Cluster()
    for name, level in (("engine", 0.99), ("tensor", tensor), ("dram", dram)):
        cluster.per_gpu(f"gpu_{name}_active_ratio", level)
    return cluster.per_gpu("gpu_power_watts", cluster.noisy(watts), **labels)


def test_idle_pipes_replace_missing_sm_activity() -> None:
    sockets = event("nccl_transport", 3, transport="socket", nnodes=2, nranks=16, text="NET/Socket : Using [0]eth0")
    model = {"gpu_model": "NVIDIA A100-SXM4-80GB"}
    spins = by_default(129, **model).judge("D2", points(), sockets, COMPLETED)
    assert outcome(spins) == (FOUND, SUPPORTED, False)
    assert {"tensor_pipes", "traffic_claims_copy", "power_of_limit", "uses_sockets"} <= set(keys(spins))
    assert figure(spins, "power_of_limit", "limit") == 400
    unrated = by_default(129).judge("D2", points(), sockets, COMPLETED)
    assert outcome(unrated) == (FOUND, SUPPORTED, False)
    for works in (by_default(129, dram=0.3, **model), by_default(129, tensor=0.3, **model), by_default(230, **model)):
        assert outcome(works.judge("D2", points(), sockets, COMPLETED)) == (FOUND, POSSIBLE, True), "sockets alone"
        assert works.judge("D2", points(), COMPLETED).outcome is ABSENT


def test_a_single_gpu_has_no_slow_interconnect() -> None:
    assert uniform(0.99, 0.1, nodes=1, gpus=1).judge("D2", points(), COMPLETED).outcome is ABSENT


def test_spinning_at_the_end_is_no_slow_interconnect() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_engine_active_ratio", 0.99).per_gpu("gpu_sm_active_ratio", cluster.after(2000, 0.02, 0.3))
    cluster.per_gpu(f"{TRACER}cuda_kernel_launches_total", np.minimum(cluster.growing(100.0), 1e5))
    finding = cluster.judge("D2", points(8), job("TIMEOUT"))
    assert finding.outcome is ABSENT or finding.latent


def test_saves_at_every_step_are_a_save_storm() -> None:
    saves = [event("checkpoint_saved", 100 + i, step=i + 1) for i in range(40)]
    finding = uniform(0.3, 0.2).judge("D2", points(40), saves, COMPLETED)
    assert outcome(finding) == (FOUND, ESTABLISHED, False)
    assert (finding.variant, finding.culprit) == ("save-storm", "job")
    assert "40 saved checkpoints in 40 steps" in text_of(finding)
    assert uniform(0.95, 0.7).judge("D2", points(40), saves, COMPLETED).certainty is SUPPORTED
    assert uniform(0.3, 0.2).judge("D2", points(40), saves[::10], COMPLETED).outcome is ABSENT


def between(count: int, saves: int, **fields: Any) -> list[Event]:
    """``count`` points, each followed by ``saves`` checkpoints without a step."""
    rows: list[Event] = []
    for i in range(count):
        rows.append(event("progress", 100 * i, step=10 * (i + 1), loss=4 - i / 10))
        rows += [event("checkpoint_saved", 100 * i + n + 1, path="out", **fields) for n in range(saves)]
    return rows


def test_saves_without_a_step_are_counted_per_writer() -> None:
    cluster = uniform(0.3, 0.2)
    assert cluster.judge("D2", between(10, 9), run=cluster.run(n_ranks=4)).variant == "save-storm"
    copies = cluster.judge("D2", between(10, 8), run=cluster.run(n_ranks=8))
    assert copies.outcome is ABSENT, "eight ranks may each have reported one save"
    named = [row for n in range(8) for row in between(10, 1, rank=n)]
    assert cluster.judge("D2", named, run=cluster.run(n_ranks=8)).outcome is ABSENT
    assert cluster.judge("D2", between(10, 9, rank=0), run=cluster.run(n_ranks=9)).variant == "save-storm"


REPEATED = "iter 10: loss 4.0, time 900ms\n" + "saving checkpoint to out\n" * 10 + "iter 20: loss 3.9, time 900ms\n"


def saved(text: str) -> int:
    return sum(row.kind == "checkpoint_saved" for row in scan_text(text))


def test_repeated_messages_of_one_writer_are_separate_saves() -> None:
    assert saved(REPEATED) == 10
    assert saved("saving checkpoint to out/last.pt\nsaved checkpoint out/last.pt\n" * 3) == 3
    assert saved("[rank0]: saving checkpoint to out/last.pt\n[rank1]: saving checkpoint to out/last.pt\n") == 1
    at_once = "2026-03-02 08:00:00,100 saving checkpoint to out/last.pt\n"
    assert saved(at_once * 8) == 1
    assert saved(at_once + at_once.replace(":00,", ":20,")) == 2
    assert saved("Saving model checkpoint to out/checkpoint-40\nSaved checkpoint out/checkpoint-40\n") == 1


def test_slow_kernel_launches_show_launch_blocking() -> None:
    cluster = counted(uniform(0.58, 0.4), 500.0)
    cluster.per_gpu(f"{TRACER}cuda_api_calls_total", cluster.growing(500.0), api="cudaLaunchKernel")
    cluster.per_gpu(f"{TRACER}cuda_api_seconds_total", cluster.growing(0.55), api="cudaLaunchKernel")
    finding = cluster.judge("D2", points(), COMPLETED)
    assert (finding.variant, finding.certainty) == ("launch-blocking", SUPPORTED)
    assert {"launches_wait", "launch_time_share"} <= set(keys(finding))
    flag = event("env_flag", 1, name="CUDA_LAUNCH_BLOCKING", value="1", text="CUDA_LAUNCH_BLOCKING=1")
    assert cluster.judge("D2", points(), flag, COMPLETED).certainty is ESTABLISHED
    quick = counted(uniform(0.58, 0.4), 500.0)
    quick.per_gpu(f"{TRACER}cuda_api_calls_total", quick.growing(500.0), api="cudaLaunchKernel")
    quick.per_gpu(f"{TRACER}cuda_api_seconds_total", quick.growing(0.005), api="cudaLaunchKernel")
    assert quick.judge("D2", points(), COMPLETED).outcome is ABSENT


@pytest.mark.parametrize(("steps", "collects"), [(3, False), (8, True)])
def test_d2_is_unknown_without_metrics_and_asks_for_them_if_they_would_decide_it(steps: int, collects: bool) -> None:
    finding = Cluster().per_node("scrape_up", 1).judge("D2", points(steps), COMPLETED)
    assert (finding.outcome, bool(finding.collect)) == (UNKNOWN, collects)


def test_the_example_of_a_slow_interconnect() -> None:
    finding = example("d2")
    assert (finding.family, finding.variant, finding.certainty) == ("D2", "interconnect", ESTABLISHED)
    assert {"advancing_collectives", "affected_alike", "loss_fell", "ended_well"} <= set(keys(finding))
    assert figure(finding, "busy_without_work", "busy") == pytest.approx(1.0, abs=0.03)
    assert figure(finding, "busy_without_work", "sm") == pytest.approx(0.1, abs=0.03)
    call_s, launch_s = (figure(finding, "calls_block_longer", name) for name in ("mean", "floor"))
    assert call_s / launch_s == pytest.approx(40, abs=5)
