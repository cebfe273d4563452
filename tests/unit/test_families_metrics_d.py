"""D1, D2 and D3 on curves built by hand: positives, rivals that must not be found, counterfactuals and blind cases.

``Cluster.judge`` asks every citation again, so each case checks them, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tools.cases import SCENARIOS, simulated

from tests.unit.grids import START, Cluster, event, job, keys, points, worded
from trackside import diagnose
from trackside.facts.pace.lagging import Limits, outliers
from trackside.families import find_family
from trackside.finding import Certainty, Finding, Outcome
from trackside.logs.scan import scan_text
from trackside.model import Event

FOUND, ABSENT, UNKNOWN = Outcome.FOUND, Outcome.ABSENT, Outcome.UNKNOWN
ESTABLISHED, SUPPORTED, POSSIBLE = Certainty.ESTABLISHED, Certainty.SUPPORTED, Certainty.POSSIBLE
COMPLETED = job("COMPLETED", exit_code=0)
SLOW = "n2:3"
TRACER = "trackside_"


def cluster(engine: float, sm: float | None = None, **shape: Any) -> Cluster:
    """GPUs that all do the same all the time."""
    made = Cluster(**shape)
    made.per_gpu("gpu_engine_active_ratio", made.noisy(engine))
    return made if sm is None else made.per_gpu("gpu_sm_active_ratio", made.noisy(sm))


def steps(seconds: float, count: int = 40, **fields: Any) -> list[Event]:
    """Points of a model that learns, each printing how long a step takes."""
    return [
        event(
            "progress",
            10 + i,
            step=10 * (i + 1),
            loss=4 - i / 20,
            time=START + 60 + 90 * i,
            step_time_s=seconds,
            **fields,
        )
        for i in range(count)
    ]


def counted(made: Cluster, rate: float = 100.0, but: dict[str, float] | None = None) -> Cluster:
    """Kernel launches and collectives of every GPU, at so many launches a second."""
    rates = {name: made.growing(each) for name, each in (but or {}).items()}
    made.per_gpu(f"{TRACER}cuda_kernel_launches_total", made.growing(rate), rates)
    return made.per_gpu(f"{TRACER}nccl_collectives_completed_total", made.growing(2.0), op="AllReduce")


def figure(finding: Finding, key: str, name: str) -> float:
    """A figure of one of its sentences."""
    return next(each for each in (*finding.shows, *finding.because) if each.key == key).values[name].number


def outcome(finding: Finding) -> tuple[Outcome, Certainty | None, bool]:
    return finding.outcome, finding.certainty, finding.latent


@pytest.mark.parametrize("code", ["D1", "D2", "D3"])
def test_no_digits_in_sentences(code: str) -> None:
    family = find_family(code)
    assert family is not None
    assert not any(any(char.isdigit() for char in text) for text in family.says.values())


# -- D1


def bursts(made: Cluster, duty: float) -> Cluster:
    """Utilisation of GPUs that work and rest for seconds each: every reading finds the one or the other."""
    random = np.random.default_rng(3)
    for name in made.gpus:
        node, _, gpu = name.partition(":")
        made.put("gpu_utilization_ratio", (random.random(len(made.times)) < duty).astype(float), node=node, gpu=gpu)
    return made


def test_near_idle_gpus_that_launch_and_learn_are_starved() -> None:
    finding = counted(cluster(0.15, 0.1)).judge("D1", points(), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert (finding.culprit, finding.gpus) == ("job", ())
    assert {"duty", "sm", "advancing_collectives", "learned"} <= set(keys(finding))
    assert "cause" in [each.key for each in finding.cannot_decide]


def test_what_the_job_prints_of_its_waits_makes_it_sure() -> None:
    finding = cluster(0.15, 0.1).judge("D1", steps(10.0, data_time_s=8.0), COMPLETED)
    assert outcome(finding) == (FOUND, ESTABLISHED, False)
    assert "cause" not in [each.key for each in finding.cannot_decide]
    fed = cluster(0.95, 0.7).judge("D1", steps(10.0, data_time_s=0.2), COMPLETED)
    assert (fed.outcome, keys(fed)) == (ABSENT, ["busy", "fed"])


def test_low_duty_alone_is_a_suspicion() -> None:
    assert outcome(cluster(0.45, 0.3).judge("D1", points(), COMPLETED)) == (FOUND, POSSIBLE, True)


@pytest.mark.parametrize("interval", [10.0, 60.0])
def test_stalls_of_seconds_in_every_step_are_no_small_model(interval: float) -> None:
    finding = bursts(cluster(0.45, 0.3, interval=interval), 0.45).judge("D1", steps(12.0), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert {"at_rest", "idle_steps"} <= set(keys(finding))
    assert figure(finding, "idle_steps", "idle") == pytest.approx(6.6, abs=0.2)


def test_gaps_between_kernels_are_no_stalls() -> None:
    """The same mean, but every reading lies in between; or steps too short to stall for seconds."""
    small = cluster(0.45, 0.3).per_gpu("gpu_utilization_ratio", 0.45).judge("D1", steps(12.0), COMPLETED)
    assert outcome(small) == (FOUND, POSSIBLE, True)
    assert "at_rest" not in keys(small)
    assert outcome(bursts(cluster(0.45, 0.3), 0.45).judge("D1", steps(0.8), COMPLETED)) == (FOUND, POSSIBLE, True)


def test_one_long_pause_is_no_stall_of_every_step() -> None:
    made = Cluster()
    level = made.between(2000, 3700, 0.0, 0.95)
    made.per_gpu("gpu_engine_active_ratio", level).per_gpu("gpu_sm_active_ratio", 0.7 * level)
    finding = made.per_gpu("gpu_utilization_ratio", level).judge("D1", steps(12.0), COMPLETED)
    assert finding.certainty in (None, POSSIBLE)


def test_pressure_on_the_host_corroborates() -> None:
    made = cluster(0.5, 0.3)
    made.per_node("host_pressure_seconds_total", made.growing(0.6), resource="io", level="some")
    finding = made.judge("D1", points(), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert "io_pressure" in keys(finding)


def fed_by(made: Cluster, wait: Any, rate: Any) -> Cluster:
    """What the job exports of its waits for data and its throughput."""
    made.put("training_data_loading_ratio", wait, rank="0")
    return made.put("training_samples_per_second", rate, rank="0")


def test_waiting_for_data_that_grew_while_throughput_fell_is_starvation_however_busy_the_gpus_look() -> None:
    """The demonstration of three layers: utilisation 0.92, data wait from 0.05 to 0.38, throughput from 128 to 74."""
    made = Cluster(nodes=1, gpus=1)
    made.per_gpu("gpu_utilization_ratio", made.noisy(0.92)).per_gpu("gpu_sm_active_ratio", made.noisy(0.47))
    finding = fed_by(made, made.noisy(made.after(2000, 0.38, 0.05)), made.noisy(made.after(2000, 74, 128))).judge(
        "D1", COMPLETED
    )
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert (finding.culprit, keys(finding)[:2]) == ("job", ["wait_grew", "slower_throughput"])
    assert "from 5% to 38% of the step" in worded(finding)
    assert finding.since == pytest.approx(2000, abs=60)


@pytest.mark.parametrize(
    ("wait", "rate"), [((0.05, 0.38), (128, 126)), ((0.38, 0.05), (74, 128)), ((0.05, 0.09), (128, 74))]
)
def test_a_gauge_of_data_wait_says_little_where_throughput_does_not_follow(wait: Any, rate: Any) -> None:
    """It held; or both got better; or it fell by far more than the wait can make it."""
    made = Cluster(nodes=1, gpus=1)
    made.per_gpu("gpu_engine_active_ratio", 0.97).per_gpu("gpu_sm_active_ratio", 0.7)
    curves = (made.noisy(made.after(2000, late, early), 0.01) for early, late in (wait, rate))
    assert fed_by(made, *curves).judge("D1", COMPLETED).outcome is ABSENT


def test_utilisation_is_no_counter_evidence_to_a_measured_wait() -> None:
    made = Cluster(nodes=1, gpus=1).put("training_data_loading_ratio", 0.4, rank="0")
    assert outcome(made.per_gpu("gpu_utilization_ratio", 0.95).judge("D1", COMPLETED)) == (FOUND, POSSIBLE, True)
    made.per_gpu("gpu_engine_active_ratio", 0.97).per_gpu("gpu_sm_active_ratio", 0.7)
    assert made.judge("D1", COMPLETED).outcome is ABSENT


def saves(count: int, **fields: Any) -> list[Event]:
    return [event("checkpoint_saved", 500 + i, text="saving checkpoint to out", **fields) for i in range(count)]


def test_idle_gpus_with_another_cause_are_not_starved() -> None:
    low = cluster(0.2, 0.1)
    finding = low.judge("D1", points(20), [event("checkpoint_saved", 30 + i, step=i + 1) for i in range(20)], COMPLETED)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["saving"])
    flag = event("env_flag", 1, name="CUDA_LAUNCH_BLOCKING", value="1", text="CUDA_LAUNCH_BLOCKING=1")
    assert keys(low.judge("D1", points(), flag, COMPLETED)) == ["blocking"]
    assert keys(cluster(0.99, 0.1).judge("D1", points(), COMPLETED)) == ["busy"]  # they spin: that is the interconnect


def test_a_hang_after_work_makes_it_a_warning_and_an_end_does_not() -> None:
    made = Cluster()
    level = made.until(3000, 0.2)
    made.per_gpu("gpu_engine_active_ratio", np.where(np.isnan(level), 0.0, level))
    made.per_gpu("gpu_sm_active_ratio", np.where(np.isnan(level), 0.0, 0.1))
    assert made.judge("D1", points(), job("FAILED", exit_code=1)).latent
    assert not made.judge("D1", points(), COMPLETED).latent


def test_work_too_little_to_tell_from_rest_is_known_by_the_steps() -> None:
    finding = cluster(0.04, 0.02).judge("D1", points(), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert figure(finding, "duty", "busy") == pytest.approx(0.04, abs=0.002)


@pytest.mark.parametrize("code", ["D1", "D2"])
def test_a_handful_of_steps_is_mostly_start_up(code: str) -> None:
    low = cluster(0.15, 0.1) if code == "D1" else cluster(0.99, 0.1)
    assert low.judge(code, points(4), COMPLETED).outcome is UNKNOWN
    assert low.judge(code, points(8), COMPLETED).outcome is FOUND


def test_underutilised_blind() -> None:
    assert cluster(0.1, 0.1, end=START + 100).judge("D1", COMPLETED).outcome is UNKNOWN
    only_sm = Cluster()
    only_sm.per_gpu("gpu_sm_active_ratio", 0.1)
    finding = only_sm.judge("D1", points(), COMPLETED)
    assert (finding.outcome, bool(finding.collect)) == (UNKNOWN, True)


# -- D2: interconnect


def calls(made: Cluster, times: float, launch_s: float = 1e-5) -> Cluster:
    """CUDA calls that take so many times as long as a launch on average."""
    made.per_gpu(f"{TRACER}cuda_api_calls_total", made.growing(100.0), api="cudaLaunchKernel")
    made.per_gpu(f"{TRACER}cuda_api_seconds_total", made.growing(100.0 * launch_s), api="cudaLaunchKernel")
    waits = (2 * times - 1) * 100 * launch_s
    made.per_gpu(f"{TRACER}cuda_api_calls_total", made.growing(100.0), api="cudaStreamSynchronize")
    return made.per_gpu(f"{TRACER}cuda_api_seconds_total", made.growing(waits), api="cudaStreamSynchronize")


def test_gpus_that_spin_in_slow_collectives() -> None:
    """The catalogue's figures: engine near 1.0, SM near 0.1, API time forty times its floor, collectives advance."""
    finding = calls(counted(cluster(0.995, 0.1)), 40).judge("D2", points(), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert (finding.variant, finding.culprit) == ("interconnect", "infrastructure")
    assert {"pinned", "advancing_collectives", "calls_times", "alike", "learned", "completed"} <= set(keys(finding))
    assert figure(finding, "calls_times", "times") == pytest.approx(40, abs=0.1)


def test_compilation_is_no_part_of_the_work() -> None:
    """Kernels are launched and tried out for a third of the run, on GPUs that hardly are busy with it."""
    made = Cluster()
    made.per_gpu("gpu_engine_active_ratio", made.after(2300, 0.99, 0.12))
    made.per_gpu("gpu_sm_active_ratio", made.after(2300, 0.1, 0.05))
    untimed = [event("progress", 10 + i, step=i + 1, loss=4 - i / 10) for i in range(10)]
    finding = counted(made).judge("D2", untimed, COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert figure(finding, "pinned", "busy") == pytest.approx(0.99, abs=0.01)


def waiting(made: Cluster, share: float, but: dict[str, float] | None = None) -> Cluster:
    """Time that every rank spends in collectives, as a share."""
    rates = {name: made.growing(each) for name, each in (but or {}).items()}
    return made.per_gpu(f"{TRACER}nccl_collective_seconds_total", made.growing(share), rates, op="AllReduce")


def test_traced_waits_make_it_sure() -> None:
    finding = waiting(counted(cluster(0.99, 0.15)), 0.9).judge("D2", points(), COMPLETED)
    assert outcome(finding) == (FOUND, ESTABLISHED, False)
    assert figure(finding, "in_collectives", "share") == pytest.approx(0.9, abs=0.01)


def test_a_model_that_fills_few_sms_is_a_suspicion_until_something_says_it_waits() -> None:
    made = cluster(0.97, 0.3)
    doubtful = made.judge("D2", points(), COMPLETED)
    assert outcome(doubtful) == (FOUND, POSSIBLE, True)
    assert "few_sms" in [each.key for each in doubtful.cannot_decide]
    assert outcome(made.judge("D2", steps(10.0, comm_time_s=7.0), COMPLETED)) == (FOUND, SUPPORTED, False)
    worked = cluster(0.97, 0.6).judge("D2", steps(10.0, comm_time_s=7.0), COMPLETED)
    assert (worked.outcome, keys(worked)) == (ABSENT, ["works"])
    assert figure(worked, "works", "sm") == pytest.approx(0.6, abs=0.01)


def unprofiled(watts: float) -> Cluster:
    made = Cluster()
    made.per_gpu("gpu_utilization_ratio", 0.99).per_gpu("gpu_power_watts", made.noisy(watts))
    return made.per_gpu("gpu_power_limit_watts", 700.0)


def test_power_stands_in_for_sm_activity() -> None:
    sockets = event("nccl_transport", 3, transport="socket", nnodes=2, nranks=16, text="NET/Socket : Using [0]eth0")
    assert outcome(unprofiled(200).judge("D2", points(), sockets, COMPLETED)) == (FOUND, SUPPORTED, False)
    assert outcome(unprofiled(200).judge("D2", points(), COMPLETED)) == (FOUND, POSSIBLE, True)
    assert unprofiled(550).judge("D2", points(), COMPLETED).outcome is ABSENT
    assert outcome(unprofiled(550).judge("D2", points(), sockets, COMPLETED)) == (FOUND, POSSIBLE, True)


def by_default(watts: float, tensor: float = 0.05, dram: float = 0.05, **labels: str) -> Cluster:
    """What exporters give by default: no SM activity and no power limit."""
    made = Cluster()
    for name, level in (("engine", 0.99), ("tensor", tensor), ("dram", dram)):
        made.per_gpu(f"gpu_{name}_active_ratio", level)
    return made.per_gpu("gpu_power_watts", made.noisy(watts), **labels)


def test_pipes_at_rest_stand_in_for_sm_activity() -> None:
    sockets = event("nccl_transport", 3, transport="socket", nnodes=2, nranks=16, text="NET/Socket : Using [0]eth0")
    model = {"gpu_model": "NVIDIA A100-SXM4-80GB"}
    spins = by_default(129, **model).judge("D2", points(), sockets, COMPLETED)
    assert outcome(spins) == (FOUND, SUPPORTED, False)
    assert {"pipes_tensor", "pipes_dram", "power_of", "sockets"} <= set(keys(spins))
    assert figure(spins, "power_of", "limit") == 400
    unrated = by_default(129).judge("D2", points(), sockets, COMPLETED)
    assert outcome(unrated) == (FOUND, SUPPORTED, False)
    for works in (by_default(129, dram=0.3, **model), by_default(129, tensor=0.3, **model), by_default(230, **model)):
        assert outcome(works.judge("D2", points(), sockets, COMPLETED)) == (FOUND, POSSIBLE, True), "sockets alone"
        assert works.judge("D2", points(), COMPLETED).outcome is ABSENT


def test_one_gpu_waits_for_nobody() -> None:
    assert cluster(0.99, 0.1, nodes=1, gpus=1).judge("D2", points(), COMPLETED).outcome is ABSENT


def test_spinning_at_the_end_is_a_hang() -> None:
    made = Cluster()
    made.per_gpu("gpu_engine_active_ratio", 0.99).per_gpu("gpu_sm_active_ratio", made.after(2000, 0.02, 0.3))
    made.per_gpu(f"{TRACER}cuda_kernel_launches_total", np.minimum(made.growing(100.0), 1e5))
    finding = made.judge("D2", points(8), job("TIMEOUT"))
    assert finding.outcome is ABSENT or finding.latent


# -- D2: save storm and launch blocking


def test_saves_at_every_step_collapse_the_sms() -> None:
    told = [event("checkpoint_saved", 100 + i, step=i + 1) for i in range(40)]
    finding = cluster(0.3, 0.2).judge("D2", points(40), told, COMPLETED)
    assert outcome(finding) == (FOUND, ESTABLISHED, False)
    assert (finding.variant, finding.culprit) == ("save-storm", "job")
    assert "40 saved checkpoints in 40 steps" in worded(finding)
    assert cluster(0.95, 0.7).judge("D2", points(40), told, COMPLETED).certainty is SUPPORTED
    assert cluster(0.3, 0.2).judge("D2", points(40), told[::10], COMPLETED).outcome is ABSENT


def between(count: int, each: int, **fields: Any) -> list[Event]:
    """Ten points, and so many saves without a step after each."""
    rows: list[Event] = []
    for i in range(count):
        rows.append(event("progress", 100 * i, step=10 * (i + 1), loss=4 - i / 10))
        rows += [event("checkpoint_saved", 100 * i + n + 1, path="out", **fields) for n in range(each)]
    return rows


def test_saves_without_a_step_are_counted_by_writer() -> None:
    made = cluster(0.3, 0.2)
    assert made.judge("D2", between(10, 9), run=made.run(n_ranks=4)).variant == "save-storm"
    copies = made.judge("D2", between(10, 8), run=made.run(n_ranks=8))
    assert copies.outcome is ABSENT, "eight ranks may have said so, once each"
    named = [row for n in range(8) for row in between(10, 1, rank=n)]
    assert made.judge("D2", named, run=made.run(n_ranks=8)).outcome is ABSENT
    assert made.judge("D2", between(10, 9, rank=0), run=made.run(n_ranks=9)).variant == "save-storm"


REPEATED = "iter 10: loss 4.0, time 900ms\n" + "saving checkpoint to out\n" * 10 + "iter 20: loss 3.9, time 900ms\n"


def saved(text: str) -> int:
    return sum(each.kind == "checkpoint_saved" for each in scan_text(text))


def test_a_writer_that_says_the_same_again_has_saved_again() -> None:
    assert saved(REPEATED) == 10
    assert saved("saving checkpoint to out/last.pt\nsaved checkpoint out/last.pt\n" * 3) == 3
    assert saved("[rank0]: saving checkpoint to out/last.pt\n[rank1]: saving checkpoint to out/last.pt\n") == 1
    at_once = "2026-03-02 08:00:00,100 saving checkpoint to out/last.pt\n"
    assert saved(at_once * 8) == 1
    assert saved(at_once + at_once.replace(":00,", ":20,")) == 2
    assert saved("Saving model checkpoint to out/checkpoint-40\nSaved checkpoint out/checkpoint-40\n") == 1


def test_launches_that_take_as_long_as_kernels() -> None:
    made = counted(cluster(0.58, 0.4), 500.0)
    made.per_gpu(f"{TRACER}cuda_api_calls_total", made.growing(500.0), api="cudaLaunchKernel")
    made.per_gpu(f"{TRACER}cuda_api_seconds_total", made.growing(0.55), api="cudaLaunchKernel")
    finding = made.judge("D2", points(), COMPLETED)
    assert (finding.variant, finding.certainty) == ("launch-blocking", SUPPORTED)
    assert {"launches_wait", "launches_share"} <= set(keys(finding))
    flag = event("env_flag", 1, name="CUDA_LAUNCH_BLOCKING", value="1", text="CUDA_LAUNCH_BLOCKING=1")
    assert made.judge("D2", points(), flag, COMPLETED).certainty is ESTABLISHED
    quick = counted(cluster(0.58, 0.4), 500.0)
    quick.per_gpu(f"{TRACER}cuda_api_calls_total", quick.growing(500.0), api="cudaLaunchKernel")
    quick.per_gpu(f"{TRACER}cuda_api_seconds_total", quick.growing(0.005), api="cudaLaunchKernel")
    assert quick.judge("D2", points(), COMPLETED).outcome is ABSENT


def test_throughput_blind() -> None:
    finding = Cluster().per_node("scrape_up", 1).judge("D2", points(3), COMPLETED)
    assert (finding.outcome, bool(finding.collect)) == (UNKNOWN, True)


# -- D3


def straggler(slow: float = 0.55, others: float = 0.16, late: tuple[str, ...] = (SLOW,), **shape: Any) -> Cluster:
    """GPUs that spin, but for some that compute for most of each step."""
    made = Cluster(**shape)
    made.per_gpu("gpu_engine_active_ratio", made.noisy(0.99, 0.005))
    own = {name: made.noisy(slow) for name in late}
    return made.per_gpu("gpu_sm_active_ratio", made.noisy(others), own)


def test_the_gpu_that_computes_while_the_others_spin() -> None:
    """The catalogue's figures: 0.55 against 0.16, counts equal."""
    made = counted(straggler())
    finding = made.judge("D3", points(30), COMPLETED, run=made.run(n_ranks=16))
    assert outcome(finding) == (FOUND, ESTABLISHED, False)
    assert (finding.gpus, finding.nodes, finding.ranks, finding.culprit) == ((SLOW,), ("n2",), (11,), "unknown")
    assert {"slow_sm", "peers_busy", "equal_launches", "equal_collectives"} <= set(keys(finding))
    assert figure(finding, "slow_sm", "mine") == pytest.approx(0.55, abs=0.01)
    assert figure(finding, "slow_sm", "theirs") == pytest.approx(0.16, abs=0.01)
    assert figure(finding, "slow_sm", "ratio") == pytest.approx(3.4, abs=0.1)
    measured = made.judge("D2", points(30), COMPLETED)
    assert (measured.outcome, keys(measured)) == (ABSENT, ["one_slow"])


def test_a_slow_clock_blames_the_gpu() -> None:
    made = counted(straggler())
    made.per_gpu("gpu_sm_clock_hertz", 1.9e9, {SLOW: 0.7e9})
    finding = made.judge("D3", points(30), COMPLETED)
    assert (finding.outcome, finding.culprit) == (FOUND, "infrastructure")
    assert "how_much" in [each.key for each in finding.cannot_decide]


@pytest.mark.parametrize("interval", [15.0, 60.0])
def test_the_gpu_whose_host_keeps_it_waiting(interval: float) -> None:
    made = Cluster(interval=interval)
    made.per_gpu("gpu_engine_active_ratio", made.noisy(0.98, 0.005), {SLOW: made.noisy(0.3)})
    made.per_gpu("gpu_sm_active_ratio", made.noisy(0.25), {SLOW: made.noisy(0.22)})
    alone = made.judge("D3", points(30), COMPLETED)
    assert (alone.outcome, alone.certainty, alone.gpus) == (FOUND, SUPPORTED, (SLOW,))
    assert figure(alone, "slow_busy", "mine") == pytest.approx(0.3, abs=0.01)
    traced = waiting(counted(made), 0.75, {SLOW: 0.05}).judge("D3", points(30), COMPLETED)
    assert (traced.certainty, traced.gpus) == (ESTABLISHED, (SLOW,))
    assert "slow_wait" in keys(traced)


def test_pressure_on_its_host_alone_points_to_the_cpus() -> None:
    made = Cluster(nodes=4)
    made.per_gpu("gpu_engine_active_ratio", made.noisy(0.98, 0.005), {SLOW: made.noisy(0.3)})
    made.per_node(
        "host_pressure_seconds_total", made.growing(0.02), {"n2": made.growing(0.7)}, resource="cpu", level="some"
    )
    finding = made.judge("D3", points(30), COMPLETED)
    assert figure(finding, "cpus_beside", "share") == pytest.approx(0.7, abs=0.02)
    assert "whose_cpus" in [each.key for each in finding.cannot_decide]
    everywhere = Cluster(nodes=4)
    everywhere.per_gpu("gpu_engine_active_ratio", everywhere.noisy(0.98, 0.005), {SLOW: everywhere.noisy(0.3)})
    everywhere.per_node("host_pressure_seconds_total", everywhere.growing(0.7), resource="cpu", level="some")
    assert "host_side" in [each.key for each in everywhere.judge("D3", points(30), COMPLETED).cannot_decide]


@pytest.mark.parametrize("duty", [0.35, 0.62])
def test_utilisation_alone_tells_by_many_readings(duty: float) -> None:
    """Readings of a second find the slow GPU at rest or at work, the others always at work."""
    made = Cluster(end=START + 2000)
    random = np.random.default_rng(5)
    rests = (random.random(len(made.times)) < duty).astype(float)
    made.per_gpu("gpu_utilization_ratio", 1.0, {SLOW: rests})
    finding = made.judge("D3", points(30), COMPLETED)
    assert (finding.outcome, finding.gpus, finding.latent) == (FOUND, (SLOW,), False)
    assert figure(finding, "slow_busy", "seconds") > 1200
    even = Cluster(end=START + 2000)
    for name in even.gpus:
        node, _, gpu = name.partition(":")
        even.put("gpu_utilization_ratio", (random.random(len(even.times)) < 0.9).astype(float), node=node, gpu=gpu)
    assert even.judge("D3", points(30), COMPLETED).outcome is ABSENT


def test_least_wait_alone_names_it() -> None:
    """Without profiling: only the tracer's time in collectives differs."""
    made = waiting(counted(Cluster()), 0.7, {SLOW: 0.1})
    finding = made.per_gpu("gpu_utilization_ratio", 0.99).judge("D3", points(30), COMPLETED)
    assert (finding.outcome, finding.gpus) == (FOUND, (SLOW,))


def test_a_pair_and_a_whole_node_are_held_against_the_others() -> None:
    pair = straggler(0.6, 0.15, ("n1:1",), nodes=1, gpus=2).judge("D3", points(30), COMPLETED)
    assert pair.gpus == ("n1:1",)
    assert figure(pair, "slow_sm", "ratio") == pytest.approx(4, abs=0.1)  # to the other, not to the middle of both
    node = tuple(f"n2:{i}" for i in range(8))
    whole = waiting(straggler(0.6, 0.15, node), 0.7).judge("D3", points(30), COMPLETED)
    assert whole.certainty is POSSIBLE, "it may be a stage of its own"
    assert whole.latent


def test_gpus_that_are_alike_are_told_with_figures() -> None:
    finding = cluster(0.99, 0.2).judge("D3", points(30), COMPLETED)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["alike"])
    assert figure(finding, "alike", "low") == pytest.approx(0.2, abs=0.01)


def test_stages_of_a_pipeline_are_uneven_by_design() -> None:
    """The same place of every node works more: the first stage; and more than a few do."""
    first = straggler(0.8, 0.4, ("n1:0", "n2:0"), nodes=2, gpus=4)
    assert first.judge("D3", points(30), COMPLETED).outcome is ABSENT
    many = straggler(0.8, 0.4, ("n1:0", "n1:1", "n2:2", "n2:3"), nodes=2, gpus=4)
    assert many.judge("D3", points(30), COMPLETED).outcome is ABSENT


def test_other_work_is_a_suspicion_only() -> None:
    made = counted(straggler(), but={SLOW: 300.0})
    assert outcome(made.judge("D3", points(30), COMPLETED)) == (FOUND, POSSIBLE, True)


def test_an_episode_is_a_warning() -> None:
    made = Cluster()
    made.per_gpu("gpu_engine_active_ratio", 0.99)
    busy = made.between(2000, 2500, 0.55, 0.5)
    others = made.between(2000, 2500, 0.15, 0.5)
    made.per_gpu("gpu_sm_active_ratio", others, {SLOW: busy})
    finding = made.judge("D3", points(30), COMPLETED)
    assert (finding.outcome, finding.latent, finding.gpus) == (FOUND, True, (SLOW,))
    assert finding.since is not None
    assert 1950 <= finding.since <= 2100


FIRST = "n1:0"


def idling(level: Any, made: Cluster, gpu: str = FIRST) -> Cluster:
    """GPUs that are pinned, but for one."""
    return made.per_gpu("gpu_engine_active_ratio", made.noisy(0.98, 0.005), {gpu: level})


def writes(count: int, every: int) -> list[Event]:
    """Steps whose times are not told, and a checkpoint after each so many."""
    rows = [event("progress", 10 * i, step=i + 1, loss=4 - i / (2 * count)) for i in range(count)]
    kept = range(every, count + 1, every)
    return [*rows, *(event("checkpoint_saved", 10 * step - 5, step=step) for step in kept)]


def test_a_rank_that_saves_at_every_step_is_no_straggler() -> None:
    made = Cluster()
    idling(made.noisy(0.12), made).per_gpu("gpu_sm_active_ratio", 0.23)
    straggles, storms = (made.judge(code, writes(200, 1), COMPLETED) for code in ("D3", "D2"))
    assert (straggles.outcome, keys(straggles)) == (ABSENT, ["saver_late"])
    assert (storms.outcome, storms.variant, storms.latent) == (FOUND, "save-storm", False)
    other = idling(made.noisy(0.12), Cluster(), SLOW).judge("D3", writes(200, 1), COMPLETED)
    assert (other.outcome, other.gpus) == (FOUND, (SLOW,)), "a rank that writes nothing"


def test_long_saves_now_and_then_are_found_by_the_rank_that_writes_them() -> None:
    """Four thousand seconds, a hundred saves: three quarters of the first rank's time, in every window."""
    made = Cluster(interval=30.0)
    idling(made.noisy(0.25), made)
    straggles, storms = (made.judge(code, writes(500, 5), COMPLETED) for code in ("D3", "D2"))
    assert (straggles.outcome, keys(straggles)) == (ABSENT, ["saver_idles"])
    assert (outcome(storms), storms.variant) == ((FOUND, SUPPORTED, False), "save-storm")
    assert figure(storms, "saver_idles", "idle") == pytest.approx(30, abs=2)
    mild = Cluster(interval=30.0)
    assert outcome(idling(mild.noisy(0.6), mild).judge("D2", writes(500, 5), COMPLETED)) == (FOUND, POSSIBLE, True)


def test_a_first_rank_that_lags_between_its_saves_is_a_straggler() -> None:
    made = Cluster()
    idling(made.noisy(0.5), made)
    finding = made.judge("D3", writes(200, 50), COMPLETED)
    assert (finding.outcome, finding.gpus, finding.latent) == (FOUND, (FIRST,), False)
    saving = Cluster()
    paused = np.where((saving.times - START) % 1000 < 750, 0.15, 0.98)
    assert keys(idling(paused, saving).judge("D3", writes(200, 50), COMPLETED)) == ["saver_idles"]


def test_a_first_rank_that_computes_while_the_others_wait_is_a_straggler_whatever_it_saves() -> None:
    """All engines are pinned; the tracer alone tells who waits, and who does not."""
    made = waiting(counted(Cluster(nodes=1, gpus=4)), 0.6, {FIRST: 0.05}).per_gpu("gpu_engine_active_ratio", 0.98)
    for every in (1, 50):
        finding = made.judge("D3", writes(200, every), COMPLETED)
        assert (finding.outcome, finding.gpus) == (FOUND, (FIRST,))


def test_no_step_is_done_while_one_rank_evaluates() -> None:
    """An episode in which the first GPU works and the others spin: a pause where the log's steps stop for it."""

    def alone(gpu: str) -> Cluster:
        made = Cluster().per_gpu("gpu_engine_active_ratio", 0.99)
        busy, others = (made.between(2000, 2500, level, 0.5) for level in (0.4, 0.15))
        return made.per_gpu("gpu_sm_active_ratio", others, {gpu: busy})

    every = points(60, every=30)
    pausing = [row for row in every if row.time is not None and not 2000 < row.time < 2500]
    assert keys(alone(SLOW).judge("D3", pausing, COMPLETED)) == ["no_step"]
    assert alone(SLOW).judge("D3", every, COMPLETED).certainty is SUPPORTED
    ended = [row for row in every if row.time is not None and row.time < 1800]
    assert alone(SLOW).judge("D3", ended, COMPLETED).outcome is FOUND, "a log that had ended says nothing of it"
    first = alone(FIRST).judge("D3", every, COMPLETED)
    assert outcome(first) == (FOUND, POSSIBLE, True)
    assert "own_work" in [each.key for each in first.cannot_decide]


def test_a_tracer_alone_names_the_rank_that_waits_least() -> None:
    made = waiting(counted(Cluster(nodes=1, gpus=4)), 0.55, {"n1:2": 0.06})
    finding = made.judge("D3", COMPLETED)
    assert (finding.outcome, finding.gpus, finding.certainty) == (FOUND, ("n1:2",), SUPPORTED)


def test_noise_and_scrapes_out_of_step_name_nobody() -> None:
    """Steps longer than a window: each node's scrapes find other parts of them."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        made = Cluster(nodes=4, gpus=4)
        for number, node in enumerate(made.nodes):
            phase = 2 * np.pi * (made.times / 83 + number / 4)
            for gpu in range(4):
                curve = 0.5 + 0.4 * np.sin(phase) + 0.03 * random.standard_normal(len(made.times))
                made.put("gpu_sm_active_ratio", curve, node=node, gpu=str(gpu))
                made.put("gpu_engine_active_ratio", np.clip(curve + 0.3, 0, 1), node=node, gpu=str(gpu))
        assert made.judge("D3", points(30), COMPLETED).outcome is ABSENT, seed


def test_straggler_blind() -> None:
    assert Cluster().per_gpu("gpu_utilization_ratio", 0.9).judge("D3", points(5), COMPLETED).outcome is UNKNOWN
    finding = Cluster(nodes=1, gpus=1).per_gpu("gpu_sm_active_ratio", 0.5).judge("D3", points(30), COMPLETED)
    assert (finding.outcome, bool(finding.collect)) == (UNKNOWN, True)


def ranks(field: str, slow: float, late: range = range(60), count: int = 8) -> list[Event]:
    """Sixty steps of every rank; rank 2 takes ``slow`` times as long in some."""
    random = np.random.default_rng(1)
    return [
        event("rank_progress", 10 * step + rank, rank=rank, step=step, **{
            field: float(700 * (slow if rank == 2 and step in late else 1) * (1 + 0.05 * random.standard_normal()))
        })
        for step in range(60) for rank in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("field", ["compute_time_s", "relative_time", "step_time_s"])
def test_times_that_every_rank_prints(field: str) -> None:
    made = Cluster(nodes=1)
    run = made.run(n_ranks=8)
    finding = made.judge("D3", ranks(field, 1.8), run=run)
    assert (finding.outcome, finding.certainty, finding.ranks) == (FOUND, SUPPORTED, (2,))
    assert figure(finding, "lags", "ratio") == pytest.approx(1.8, abs=0.06)
    even = made.judge("D3", ranks(field, 1.1), run=run)
    assert (even.outcome, keys(even)) == (ABSENT, ["even"])
    assert figure(even, "even", "rank") == 2
    brief = made.judge("D3", ranks(field, 2.0, range(20, 31)), run=run)
    assert (brief.outcome, brief.latent, brief.ranks) == (FOUND, True, (2,))
    assert made.judge("D3", ranks(field, 2.0, count=2), run=run).outcome is UNKNOWN


def test_figures_and_prints_that_agree_are_sure() -> None:
    made = Cluster(nodes=1)
    made.per_gpu("gpu_engine_active_ratio", 0.99).per_gpu("gpu_sm_active_ratio", 0.2, {"n1:2": 0.3})
    shown = made.judge("D3", points(30), run=made.run(n_ranks=8))
    assert shown.certainty is SUPPORTED
    both = made.judge("D3", points(30), ranks("compute_time_s", 1.6), run=made.run(n_ranks=8))
    assert (both.certainty, both.gpus, both.ranks) == (ESTABLISHED, ("n1:2",), (2,))


def test_step_times_that_every_rank_exports() -> None:
    made = Cluster(nodes=1)
    for rank in range(8):
        made.put("training_step_seconds", made.noisy(2.0 if rank == 5 else 1.0), rank=str(rank), node="n1")
    finding = made.judge("D3", points(30), run=made.run(n_ranks=8))
    assert (finding.outcome, finding.ranks) == (FOUND, (5,))


# -- the statistics


def test_outliers_are_few_sustained_and_apart_from_their_mates() -> None:
    random = np.random.default_rng(0)
    names = [f"n{node}:{gpu}" for node in range(4) for gpu in range(4)]
    level = 1 + 0.05 * random.standard_normal((16, 60))
    assert outliers(level, names, Limits()) == []
    one = level.copy()
    one[6, 20:50] *= 2
    found = outliers(one, names, Limits())
    assert [each.row for each in found] == [6]
    assert abs(found[0].start - 20) <= 1
    assert abs(found[0].stop - 50) <= 1
    short = level.copy()
    short[6, 20:26] *= 2
    assert outliers(short, names, Limits()) == []
    node = level.copy()
    node[4:8] *= 2
    assert outliers(node, names, Limits()) == []
    gaps = one.copy()
    gaps[:, 30:35] = np.nan
    assert [each.row for each in outliers(gaps, names, Limits())] == [6]
    assert outliers(np.full((16, 60), np.nan), names, Limits()) == []


# -- the catalogue's example verdicts, from simulated runs


def example(code: str) -> Finding:
    """The primary finding."""
    return diagnose(simulated(SCENARIOS / code / "sim-example-of-the-catalogue" / "scenario.toml")).primary


def test_the_example_of_a_straggler() -> None:
    finding = example("d3")
    assert (finding.family, finding.certainty, finding.gpus) == ("D3", ESTABLISHED, ("gpu002:5",))
    assert {"equal_launches", "equal_collectives", "clean_ecc"} <= set(keys(finding))
    assert figure(finding, "slow_sm", "mine") == pytest.approx(0.55, abs=0.03)
    assert figure(finding, "slow_sm", "theirs") == pytest.approx(0.16, abs=0.03)
    assert figure(finding, "slow_sm", "ratio") == pytest.approx(3.6, abs=0.5)


def test_the_example_of_a_slow_interconnect() -> None:
    finding = example("d2")
    assert (finding.family, finding.variant, finding.certainty) == ("D2", "interconnect", ESTABLISHED)
    assert {"advancing_collectives", "alike", "learned", "completed"} <= set(keys(finding))
    assert figure(finding, "pinned", "busy") == pytest.approx(1.0, abs=0.03)
    assert figure(finding, "pinned", "sm") == pytest.approx(0.1, abs=0.03)
    assert figure(finding, "calls_times", "times") == pytest.approx(40, abs=5)
