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


def test_d3_one_slow_rank() -> None:
    assert judge_store("D3", store(rank_steps(0.25))).ranks == (2,)
    assert judge_store("D3", store(rank_steps(0.104))).outcome is ABSENT
    assert judge_store("D3", store(rank_steps(0.25, steps=5))).outcome is UNKNOWN


SLOW = "n2:3"


def straggler(slow: float = 0.55, others: float = 0.16, late: tuple[str, ...] = (SLOW,), **shape: Any) -> Cluster:
    """GPUs that spin, but for some that compute for most of each step."""
    made = Cluster(**shape)
    made.per_gpu("gpu_engine_active_ratio", made.noisy(0.99, 0.005))
    own = {name: made.noisy(slow) for name in late}
    return made.per_gpu("gpu_sm_active_ratio", made.noisy(others), own)


def test_the_gpu_that_computes_while_the_others_spin() -> None:
    """The catalog's figures: 0.55 against 0.16, counts equal."""
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
    assert "how_much" in [sentence_name(each) for each in finding.cannot_decide]


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
    assert "whose_cpus" in [sentence_name(each) for each in finding.cannot_decide]
    everywhere = Cluster(nodes=4)
    everywhere.per_gpu("gpu_engine_active_ratio", everywhere.noisy(0.98, 0.005), {SLOW: everywhere.noisy(0.3)})
    everywhere.per_node("host_pressure_seconds_total", everywhere.growing(0.7), resource="cpu", level="some")
    assert "host_side" in [sentence_name(each) for each in everywhere.judge("D3", points(30), COMPLETED).cannot_decide]


@pytest.mark.parametrize("duty", [0.35, 0.62])
def test_utilization_alone_tells_by_many_readings(duty: float) -> None:
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
    finding = uniform(0.99, 0.2).judge("D3", points(30), COMPLETED)
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
    assert "own_work" in [sentence_name(each) for each in first.cannot_decide]


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


def test_the_example_of_a_straggler() -> None:
    finding = example("d3")
    assert (finding.family, finding.certainty, finding.gpus) == ("D3", ESTABLISHED, ("gpu002:5",))
    assert {"equal_launches", "equal_collectives", "clean"} <= set(keys(finding))
    assert figure(finding, "slow_sm", "mine") == pytest.approx(0.55, abs=0.03)
    assert figure(finding, "slow_sm", "theirs") == pytest.approx(0.16, abs=0.03)
    assert figure(finding, "slow_sm", "ratio") == pytest.approx(3.6, abs=0.5)
