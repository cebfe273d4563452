"""D3 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.families.grids import (
    Cluster,
    counted,
    figure,
    uniform,
    waiting,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    ESTABLISHED,
    FOUND,
    POSSIBLE,
    START,
    SUPPORTED,
    UNKNOWN,
    Row,
    event,
    example,
    judge_store,
    keys,
    outcome,
    points,
    sentence_name,
    store,
)
from trackside.model import Event


def rank_steps(slow: float, steps: int = 25) -> list[Row]:
    return [
        event("rank_progress", 10 * s + r, rank=r, step=s, compute_time_s=slow if r == 2 else 0.1)
        for s in range(1, steps + 1)
        for r in range(4)
    ]


def test_d3_finds_one_slow_rank() -> None:
    assert judge_store("D3", store(rank_steps(0.25))).ranks == (2,)
    assert judge_store("D3", store(rank_steps(0.104))).outcome is ABSENT
    assert judge_store("D3", store(rank_steps(0.25, steps=5))).outcome is UNKNOWN


SLOW = "n2:3"


def straggler(slow: float = 0.55, others: float = 0.16, late: tuple[str, ...] = (SLOW,), **shape: Any) -> Cluster:
    """Spinning GPUs, except some (``late``) that compute for most of each step."""
    cluster = Cluster(**shape)
    cluster.per_gpu("gpu_engine_active_ratio", cluster.noisy(0.99, 0.005))
    own = {name: cluster.noisy(slow) for name in late}
    return cluster.per_gpu("gpu_sm_active_ratio", cluster.noisy(others), own)


def test_the_gpu_that_computes_while_the_others_spin_is_the_straggler() -> None:
    """The catalog's figures: 0.55 versus 0.16, equal counts."""
    cluster = counted(straggler())
    finding = cluster.judge("D3", points(30), COMPLETED, run=cluster.run(n_ranks=16))
    assert outcome(finding) == (FOUND, ESTABLISHED, False)
    assert (finding.gpus, finding.nodes, finding.ranks, finding.culprit) == ((SLOW,), ("n2",), (11,), "unknown")
    assert {"slow_sm", "peers_busy", "equal_work_launches", "equal_work_collectives"} <= set(keys(finding))
    assert figure(finding, "slow_sm", "own") == pytest.approx(0.55, abs=0.01)
    assert figure(finding, "slow_sm", "others") == pytest.approx(0.16, abs=0.01)
    assert figure(finding, "slow_sm", "ratio") == pytest.approx(3.4, abs=0.1)
    measured = cluster.judge("D2", points(30), COMPLETED)
    assert (measured.outcome, keys(measured)) == (ABSENT, ["is_straggler"])


def test_a_slow_clock_blames_the_gpu() -> None:
    cluster = counted(straggler())
    cluster.per_gpu("gpu_sm_clock_hertz", 1.9e9, {SLOW: 0.7e9})
    finding = cluster.judge("D3", points(30), COMPLETED)
    assert (finding.outcome, finding.culprit) == (FOUND, "infrastructure")
    assert "cost_unknown" in [sentence_name(claim) for claim in finding.cannot_decide]


@pytest.mark.parametrize("interval", [15.0, 60.0])
def test_the_gpu_that_waits_for_its_host_is_the_straggler(interval: float) -> None:
    cluster = Cluster(interval=interval)
    cluster.per_gpu("gpu_engine_active_ratio", cluster.noisy(0.98, 0.005), {SLOW: cluster.noisy(0.3)})
    cluster.per_gpu("gpu_sm_active_ratio", cluster.noisy(0.25), {SLOW: cluster.noisy(0.22)})
    alone = cluster.judge("D3", points(30), COMPLETED)
    assert (alone.outcome, alone.certainty, alone.gpus) == (FOUND, SUPPORTED, (SLOW,))
    assert figure(alone, "slow_busy", "own") == pytest.approx(0.3, abs=0.01)
    traced = waiting(counted(cluster), 0.75, {SLOW: 0.05}).judge("D3", points(30), COMPLETED)
    assert (traced.certainty, traced.gpus) == (ESTABLISHED, (SLOW,))
    assert "slow_wait" in keys(traced)


def test_cpu_pressure_on_one_host_only_points_to_its_cpus() -> None:
    cluster = Cluster(nodes=4)
    cluster.per_gpu("gpu_engine_active_ratio", cluster.noisy(0.98, 0.005), {SLOW: cluster.noisy(0.3)})
    cluster.per_node(
        "host_pressure_seconds_total", cluster.growing(0.02), {"n2": cluster.growing(0.7)}, resource="cpu", level="some"
    )
    finding = cluster.judge("D3", points(30), COMPLETED)
    assert figure(finding, "node_tasks_waited_more", "share") == pytest.approx(0.7, abs=0.02)
    assert "load_unexplained" in [sentence_name(claim) for claim in finding.cannot_decide]
    everywhere = Cluster(nodes=4)
    everywhere.per_gpu("gpu_engine_active_ratio", everywhere.noisy(0.98, 0.005), {SLOW: everywhere.noisy(0.3)})
    everywhere.per_node("host_pressure_seconds_total", everywhere.growing(0.7), resource="cpu", level="some")
    assert "slowness_unexplained" in [
        sentence_name(claim) for claim in everywhere.judge("D3", points(30), COMPLETED).cannot_decide
    ]


@pytest.mark.parametrize("duty", [0.35, 0.62])
def test_utilization_alone_suffices_with_many_samples(duty: float) -> None:
    """One-second samples show the slow GPU idle or busy, the others always busy."""
    cluster = Cluster(end=START + 2000)
    random = np.random.default_rng(5)
    utilization = (random.random(len(cluster.times)) < duty).astype(float)
    cluster.per_gpu("gpu_utilization_ratio", 1.0, {SLOW: utilization})
    finding = cluster.judge("D3", points(30), COMPLETED)
    assert (finding.outcome, finding.gpus, finding.latent) == (FOUND, (SLOW,), False)
    assert figure(finding, "slow_busy", "seconds") > 1200
    even = Cluster(end=START + 2000)
    for name in even.gpus:
        node, _, gpu = name.partition(":")
        even.put("gpu_utilization_ratio", (random.random(len(even.times)) < 0.9).astype(float), node=node, gpu=gpu)
    assert even.judge("D3", points(30), COMPLETED).outcome is ABSENT


def test_the_shortest_wait_alone_names_the_straggler() -> None:
    """Without profiling: only the tracer's time in collectives differs."""
    cluster = waiting(counted(Cluster()), 0.7, {SLOW: 0.1})
    finding = cluster.per_gpu("gpu_utilization_ratio", 0.99).judge("D3", points(30), COMPLETED)
    assert (finding.outcome, finding.gpus) == (FOUND, (SLOW,))


def test_a_pair_and_a_whole_node_are_compared_with_the_others() -> None:
    pair = straggler(0.6, 0.15, ("n1:1",), nodes=1, gpus=2).judge("D3", points(30), COMPLETED)
    assert pair.gpus == ("n1:1",)
    assert figure(pair, "slow_sm", "ratio") == pytest.approx(4, abs=0.1), "relative to the other GPU, not to the median"
    node = tuple(f"n2:{i}" for i in range(8))
    whole = waiting(straggler(0.6, 0.15, node), 0.7).judge("D3", points(30), COMPLETED)
    assert whole.certainty is POSSIBLE, "it may be a stage of its own"
    assert whole.latent


def test_even_gpus_rule_out_a_straggler_with_figures() -> None:
    finding = uniform(0.99, 0.2).judge("D3", points(30), COMPLETED)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["compute_alike"])
    assert figure(finding, "compute_alike", "low") == pytest.approx(0.2, abs=0.01)


def test_uneven_pipeline_stages_are_no_stragglers() -> None:
    """The same GPU index of every node works more (the first stage); or more than a few GPUs do."""
    first = straggler(0.8, 0.4, ("n1:0", "n2:0"), nodes=2, gpus=4)
    assert first.judge("D3", points(30), COMPLETED).outcome is ABSENT
    many = straggler(0.8, 0.4, ("n1:0", "n1:1", "n2:2", "n2:3"), nodes=2, gpus=4)
    assert many.judge("D3", points(30), COMPLETED).outcome is ABSENT


def test_unequal_work_is_only_a_possible_straggler() -> None:
    cluster = counted(straggler(), but={SLOW: 300.0})
    assert outcome(cluster.judge("D3", points(30), COMPLETED)) == (FOUND, POSSIBLE, True)


def test_a_short_episode_is_a_warning() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_engine_active_ratio", 0.99)
    busy = cluster.between(2000, 2500, 0.55, 0.5)
    others = cluster.between(2000, 2500, 0.15, 0.5)
    cluster.per_gpu("gpu_sm_active_ratio", others, {SLOW: busy})
    finding = cluster.judge("D3", points(30), COMPLETED)
    assert (finding.outcome, finding.latent, finding.gpus) == (FOUND, True, (SLOW,))
    assert finding.since is not None
    assert 1950 <= finding.since <= 2100


FIRST = "n1:0"


def idling(level: Any, cluster: Cluster, gpu: str = FIRST) -> Cluster:
    """All GPUs are at full engine activity, except one."""
    return cluster.per_gpu("gpu_engine_active_ratio", cluster.noisy(0.98, 0.005), {gpu: level})


def writes(count: int, every: int) -> list[Event]:
    """``count`` unstamped steps, and a checkpoint after every ``every`` of them."""
    rows = [event("progress", 10 * i, step=i + 1, loss=4 - i / (2 * count)) for i in range(count)]
    saved_steps = range(every, count + 1, every)
    return [*rows, *(event("checkpoint_saved", 10 * step - 5, step=step) for step in saved_steps)]


def test_a_rank_that_saves_at_every_step_is_no_straggler() -> None:
    cluster = Cluster()
    idling(cluster.noisy(0.12), cluster).per_gpu("gpu_sm_active_ratio", 0.23)
    straggler_finding, storm_finding = (cluster.judge(code, writes(200, 1), COMPLETED) for code in ("D3", "D2"))
    assert (straggler_finding.outcome, keys(straggler_finding)) == (ABSENT, ["saver_late"])
    assert (storm_finding.outcome, storm_finding.variant, storm_finding.latent) == (FOUND, "save-storm", False)
    other = idling(cluster.noisy(0.12), Cluster(), SLOW).judge("D3", writes(200, 1), COMPLETED)
    assert (other.outcome, other.gpus) == (FOUND, (SLOW,)), "a rank that writes nothing"


def test_occasional_long_saves_are_found_by_their_idle_writer() -> None:
    """A hundred saves in 4,000 s take three quarters of the first rank's time in every window."""
    cluster = Cluster(interval=30.0)
    idling(cluster.noisy(0.25), cluster)
    straggler_finding, storm_finding = (cluster.judge(code, writes(500, 5), COMPLETED) for code in ("D3", "D2"))
    assert (straggler_finding.outcome, keys(straggler_finding)) == (ABSENT, ["saver_idles"])
    assert (outcome(storm_finding), storm_finding.variant) == ((FOUND, SUPPORTED, False), "save-storm")
    assert figure(storm_finding, "saver_idles", "idle") == pytest.approx(30, abs=2)
    mild = Cluster(interval=30.0)
    assert outcome(idling(mild.noisy(0.6), mild).judge("D2", writes(500, 5), COMPLETED)) == (FOUND, POSSIBLE, True)


def test_a_first_rank_that_lags_between_its_saves_is_a_straggler() -> None:
    cluster = Cluster()
    idling(cluster.noisy(0.5), cluster)
    finding = cluster.judge("D3", writes(200, 50), COMPLETED)
    assert (finding.outcome, finding.gpus, finding.latent) == (FOUND, (FIRST,), False)
    saving = Cluster()
    paused = np.where((saving.times - START) % 1000 < 750, 0.15, 0.98)
    assert keys(idling(paused, saving).judge("D3", writes(200, 50), COMPLETED)) == ["saver_idles"]


def test_a_first_rank_that_computes_while_the_others_wait_is_a_straggler() -> None:
    """All engines are fully busy; only the tracer shows which ranks wait."""
    cluster = waiting(counted(Cluster(nodes=1, gpus=4)), 0.6, {FIRST: 0.05}).per_gpu("gpu_engine_active_ratio", 0.98)
    for every in (1, 50):
        finding = cluster.judge("D3", writes(200, every), COMPLETED)
        assert (finding.outcome, finding.gpus) == (FOUND, (FIRST,))


def test_an_episode_without_steps_is_an_evaluation_and_no_straggler() -> None:
    """One GPU works while the others spin: an evaluation if no step is logged meanwhile."""

    def alone(gpu: str) -> Cluster:
        cluster = Cluster().per_gpu("gpu_engine_active_ratio", 0.99)
        busy, others = (cluster.between(2000, 2500, level, 0.5) for level in (0.4, 0.15))
        return cluster.per_gpu("gpu_sm_active_ratio", others, {gpu: busy})

    every = points(60, every=30)
    pausing = [row for row in every if row.time is not None and not 2000 < row.time < 2500]
    assert keys(alone(SLOW).judge("D3", pausing, COMPLETED)) == ["no_step"]
    assert alone(SLOW).judge("D3", every, COMPLETED).certainty is SUPPORTED
    ended = [row for row in every if row.time is not None and row.time < 1800]
    assert alone(SLOW).judge("D3", ended, COMPLETED).outcome is FOUND, "the log ends before the episode"
    first = alone(FIRST).judge("D3", every, COMPLETED)
    assert outcome(first) == (FOUND, POSSIBLE, True)
    assert "may_be_extra_work" in [sentence_name(claim) for claim in first.cannot_decide]


def test_a_tracer_alone_names_the_rank_that_waits_least() -> None:
    cluster = waiting(counted(Cluster(nodes=1, gpus=4)), 0.55, {"n1:2": 0.06})
    finding = cluster.judge("D3", COMPLETED)
    assert (finding.outcome, finding.gpus, finding.certainty) == (FOUND, ("n1:2",), SUPPORTED)


def test_noise_and_unaligned_scrapes_name_no_straggler() -> None:
    """Steps are longer than a window: each node's scrapes sample other parts of them."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        cluster = Cluster(nodes=4, gpus=4)
        for number, node in enumerate(cluster.nodes):
            phase = 2 * np.pi * (cluster.times / 83 + number / 4)
            for gpu in range(4):
                curve = 0.5 + 0.4 * np.sin(phase) + 0.03 * random.standard_normal(len(cluster.times))
                cluster.put("gpu_sm_active_ratio", curve, node=node, gpu=str(gpu))
                cluster.put("gpu_engine_active_ratio", np.clip(curve + 0.3, 0, 1), node=node, gpu=str(gpu))
        assert cluster.judge("D3", points(30), COMPLETED).outcome is ABSENT, seed


def test_d3_is_unknown_without_enough_metrics() -> None:
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
def test_printed_step_times_name_the_straggler(field: str) -> None:
    cluster = Cluster(nodes=1)
    run = cluster.run(n_ranks=8)
    finding = cluster.judge("D3", ranks(field, 1.8), run=run)
    assert (finding.outcome, finding.certainty, finding.ranks) == (FOUND, SUPPORTED, (2,))
    assert figure(finding, "rank_lags", "ratio") == pytest.approx(1.8, abs=0.06)
    even = cluster.judge("D3", ranks(field, 1.1), run=run)
    assert (even.outcome, keys(even)) == (ABSENT, ["ranks_even"])
    assert figure(even, "ranks_even", "rank") == 2
    brief = cluster.judge("D3", ranks(field, 2.0, range(20, 31)), run=run)
    assert (brief.outcome, brief.latent, brief.ranks) == (FOUND, True, (2,))
    assert cluster.judge("D3", ranks(field, 2.0, count=2), run=run).outcome is UNKNOWN


def test_metrics_and_printed_times_that_agree_establish_a_straggler() -> None:
    cluster = Cluster(nodes=1)
    cluster.per_gpu("gpu_engine_active_ratio", 0.99).per_gpu("gpu_sm_active_ratio", 0.2, {"n1:2": 0.3})
    shown = cluster.judge("D3", points(30), run=cluster.run(n_ranks=8))
    assert shown.certainty is SUPPORTED
    both = cluster.judge("D3", points(30), ranks("compute_time_s", 1.6), run=cluster.run(n_ranks=8))
    assert (both.certainty, both.gpus, both.ranks) == (ESTABLISHED, ("n1:2",), (2,))


def test_exported_step_times_name_the_straggler() -> None:
    cluster = Cluster(nodes=1)
    for rank in range(8):
        cluster.put("training_step_seconds", cluster.noisy(2.0 if rank == 5 else 1.0), rank=str(rank), node="n1")
    finding = cluster.judge("D3", points(30), run=cluster.run(n_ranks=8))
    assert (finding.outcome, finding.ranks) == (FOUND, (5,))


def test_the_example_of_a_straggler() -> None:
    finding = example("d3")
    assert (finding.family, finding.certainty, finding.gpus) == ("D3", ESTABLISHED, ("gpu002:5",))
    assert {"equal_work_launches", "equal_work_collectives", "no_memory_errors"} <= set(keys(finding))
    assert figure(finding, "slow_sm", "own") == pytest.approx(0.55, abs=0.03)
    assert figure(finding, "slow_sm", "others") == pytest.approx(0.16, abs=0.03)
    assert figure(finding, "slow_sm", "ratio") == pytest.approx(3.6, abs=0.5)
