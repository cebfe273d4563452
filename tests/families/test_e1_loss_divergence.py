"""E1 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.families.grids import (
    NO_LOG,
    Cluster,
    working,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    DONE,
    END,
    ESTABLISHED,
    FALLING,
    FOUND,
    NAN,
    START,
    UNKNOWN,
    Row,
    curve,
    event,
    exception,
    judge_store,
    keys,
    primary,
    sentence_name,
    short_job,
    store,
)
from trackside.finding import Finding, clause
from trackside.model import EventRole, Run
from trackside.verdict import engine


@pytest.mark.parametrize(
    ("rows", "variant"),
    [
        (curve([5.0, 4.0, 3.0, NAN, NAN, NAN]), "non-finite"),
        (curve([5.6, 5.3, NAN, 5.7, 5.6, NAN, 5.1, NAN, 5.9, 6.1, NAN]), "non-finite"),
        (curve([900.0, 1200.0, 0.0, 0.0, 0.0, 0.0], grad_norm=lambda i: 80.0 if i < 3 else NAN), "non-finite"),
        (curve([2.1, 1.9, 1.8, 0.0, 0.0, 0.0]), "non-finite"),
        (curve([None] * 3 + [None] * 6, nan_iterations=lambda i: None if i < 3 else 1), "non-finite"),
        (curve([None] * 6, skipped=lambda i: 10 * i), "non-finite"),
        (curve([48810226.31, NAN, NAN, NAN]), "non-finite"),
        (curve([2.0, 1.9, 2.1, 5.0, 9.0, 11.0, 11.5, 11.9, 11.8, 11.9, 11.9, 11.8]), "diverging"),
        (curve([144.2, 252.1, 267.8, 270.9, 246.6, 222.7, 206.6, 191.9, 126.5, 243.5, 143.5, 145.4]), "diverging"),
        (curve([21.05, 50.59, 43.7, 29.8, 26.1, 18.2, 13.4, 10.9, 9.4, 11.5, 9.4, 10.4]), "diverging"),
        (curve([579000.0] + [5.198] * 19, grad_norm=0.0), "plateau"),
        (curve([11.0 - 0.3 * i for i in range(25)] + [7.9, 7.8, 8.0, 7.9, 7.8, 7.9, 7.9, 7.8] * 3), "plateau"),
        (curve([8.0, 5.0, 2.0] + [1.15, 1.16, 1.14] * 9, grad_norm=lambda i: 2.0 if i < 6 else 3e-4), "plateau"),
        (curve([11.0 - 0.3 * i for i in range(20)] + [7.9, 10.4] + [11.9, 11.88, 11.92, 11.9] * 8), "plateau"),
        (curve([11.0 - 0.3 * i for i in range(20)] + [8.0 + 0.2 * i for i in range(14)]), "diverging"),
        (curve([4.3 + 0.1 * (i * 7 % 11) / 11 for i in range(20)], lr=0.0), "flat"),
        (curve([4.3, 4.5, 4.33, 4.31, 4.29, 4.35] * 3, grad_norm=0.0), "flat"),
        (curve([4.3053, 4.4975, 4.3301, 4.3419, 4.2965, 4.3775] * 5, framework="nanogpt"), "flat"),
        (curve([2.3026 + 0.002 * (i * 7 % 11 - 5) for i in range(30)], framework="generic"), "flat"),
    ],
)
def test_e1_finds_each_shape(rows: list[Row], variant: str) -> None:
    finding = judge_store("E1", store(rows, DONE))
    assert (finding.outcome, finding.variant, finding.culprit) == (FOUND, variant, "job")


@pytest.mark.parametrize(
    "rows",
    [
        curve(FALLING),
        curve([3.0, 2.5, 2.2, 15.0, 2.3, 2.1, 2.0, 1.9, 1.8, 1.8, 1.7, 1.7]),  # a spike that recovers
        curve([*FALLING, NAN, *(1.0 - 0.01 * i for i in range(40))]),  # one overflow
        curve([0.0, 0.01, 0.0, 0.02, 0.03, 0.05, 0.06, 0.08], objective="grpo", reward=lambda i: 0.1 * i),
        curve([-0.1, -0.2, -0.9, -0.3, -0.5, -0.2, 0.4, 0.9]),  # no distance from the truth
        curve([0.693, 0.65, 0.5, 0.31, 0.2, 0.1, 0.05, 0.0, 0.0, 0.0]),  # converged to a printed zero
        curve([2.5, 1.0, 0.5] + [0.05, 0.06, 0.055, 0.05] * 6),  # a low plateau
        curve([8.0, 5.0, 2.0] + [1.15, 1.16, 1.14] * 9, grad_norm=lambda i: 2.0 if i < 6 else 0.2),  # converged
        curve([1.10, 1.16, 1.05, 1.2, 1.02, 1.1, 1.13, 1.07, 1.0, 1.1] * 3),  # a fine-tune that hardly moves
        curve([3.0, 2.9, 2.7, 2.5, 2.3, 2.2], grad_norm=lambda i: 2.0**i),  # only the gradient norm rises
        curve([0.31, 0.29, 0.3, 0.28, 0.3, 0.31] * 3, every=10, step=lambda i: 5000 + 10 * i, lr=1e-9),  # a tail
        curve([10.98, 10.97, 10.97, 10.96, 10.96, 10.95] * 4, total_steps=100000, framework="megatron"),  # warm-up
        [*curve(FALLING), *curve([NAN] * 20, split="eval")],
    ],
)
def test_e1_is_absent_for_healthy_shapes(rows: list[Row]) -> None:
    assert judge_store("E1", store(rows)).outcome is ABSENT


def test_a_flat_loss_is_called_guessing_only_at_the_loss_of_guessing() -> None:
    wiggle = [0.002 * (i * 7 % 11 - 5) for i in range(120)]
    guess = judge_store("E1", store(curve([2.3026 + step for step in wiggle], framework="generic"), DONE))
    other = judge_store("E1", store(curve([2125.0 + 1000 * step for step in wiggle], framework="generic"), DONE))
    assert "guessed among 10 classes" in clause(guess.shows[0])
    assert "guess" not in clause(other.shows[0])
    assert clause(other.headline or other.shows[0]) == "the model learns nothing: the loss stays flat"


def test_the_figures_of_a_flat_loss_are_those_of_its_flat_part() -> None:
    level = [5.03 + 0.01 * (i % 3) for i in range(200)]
    finding = judge_store("E1", store(curve([10.9, 7.2, 5.6, *level], framework="generic"), DONE))
    assert list(map(clause, finding.shows[:2])) == [
        "the loss stayed flat for the last 193 of 203 logged steps: 5.04 at the first of these, 5.04 at the end",
        "the first logged loss was 10.9",
    ]
    steady = judge_store("E1", store(curve(level, framework="generic"), DONE))
    assert "first_loss" not in keys(steady)


def test_a_loss_without_a_gradient_is_stuck_whether_it_rose_or_fell() -> None:
    for losses in ([579000.0] + [5.198] * 19, [2.0] * 3 + [5.198] * 19):
        finding = judge_store("E1", store(curve(losses, grad_norm=0.0)))
        assert finding.headline is not None
        assert clause(finding.headline).endswith("the loss is stuck near 5.198 with a gradient norm of 0")
        assert finding.variant == "plateau"


def test_a_loss_printed_as_zero_is_shown_as_not_finite() -> None:
    rows = curve([930.0, 5.0, 4.0, 0.0, 0.0, 0.0], grad_norm=lambda i: 1.0 if i < 3 else NAN)
    verdict = engine.verdict_of(engine.facts_of(store(rows, DONE), Run(id="1")))
    assert verdict.last_attempt is not None
    assert math.isnan(verdict.last_attempt.last_loss or 0)
    assert "the trainer prints NaN as zero" in clause(verdict.primary.shows[0])
    printed = judge_store("E1", store(curve([930.0, 5.0, 4.0, NAN, NAN, NAN]), DONE))
    assert "prints NaN as zero" not in clause(printed.shows[0])


def test_the_losses_of_a_run_are_medians_if_a_spike_hides_which_way_they_went() -> None:
    falling = [0.5] + [2.0 - 0.02 * i for i in range(60)] + [2.5]
    attempt = engine.verdict_of(engine.facts_of(store(curve(falling), DONE), Run(id="1"))).last_attempt
    assert attempt is not None
    assert attempt.medians is not None
    assert attempt.medians[0] > attempt.medians[1]
    plain = engine.verdict_of(engine.facts_of(store(curve(FALLING), DONE), Run(id="1"))).last_attempt
    assert plain is not None
    assert plain.medians is None


def test_the_count_of_losses_cites_the_last_attempt() -> None:
    level = [4.2 + 0.001 * (i % 3) for i in range(120)]
    rows = [*curve([4.0] * 30, run_part=0), *curve(level, run_part=1, time=lambda i: 5000.0 + 10 * i)]
    claim = judge_store("E1", store(rows, DONE)).shows[0]
    (cite,) = claim.values["points"].cites
    assert (cite.value, "run_part=1" in str(cite.query)) == (120, True)


def test_e1_is_ruled_out_by_levels_not_by_outliers() -> None:
    (claim,) = judge_store("E1", store(curve([0.5, 1.5, 1.4, 1.5, 1.6] * 4))).because
    assert "from" not in clause(claim)
    assert "medians of the first and the last" in clause(claim)


def test_a_loss_that_rises_says_so_and_by_orders_of_magnitude_rules_nothing_out() -> None:
    (claim,) = judge_store("E1", store(curve([1.5, 1.6, 1.5, 1.7, 1.6, 1.9, 2.0, 1.9, 2.1, 2.0]))).because
    assert clause(claim).startswith("the loss stayed finite and rose from 1.55 to 2.05")
    exploded = judge_store("E1", store(curve([-0.3, -0.2, 0.1, 40.0, 5e6, 7e11, 5e16, 6e16, 5e17, 5e17])))
    assert exploded.outcome is UNKNOWN


def test_e1_needs_points() -> None:
    assert judge_store("E1", store(curve([7.6, 7.1]))).outcome is UNKNOWN
    assert judge_store("E1", store(event("log_activity"))).outcome is UNKNOWN


def test_e1_explains_the_abort_after_a_nan_loss() -> None:
    rows = store(curve([5.0, 4.0, NAN]), exception("RuntimeError", "loss is nan at step 30"), short_job("FAILED"))
    assert primary(rows).family == "E1"
    assert judge_store("E1", store(exception("ValueError", "Loss is nan, stopping training"))).variant == "non-finite"
    assert (
        judge_store("E1", store(curve(FALLING), exception("ValueError", "input holds a nanometer"))).outcome is ABSENT
    )


def test_a_loss_that_rose_is_not_called_not_finite() -> None:
    """The abort is for a loss that the log does not show."""
    abort = exception("RuntimeError", "Non-finite loss", 500)
    finding = judge_store("E1", store(curve([4.0 - 0.1 * i for i in range(20)] + [9.0 + i for i in range(20)]), abort))
    assert finding.headline is not None
    assert clause(finding.headline) == (
        "training diverged by step 210: the loss rose and stayed high; the run ended itself with RuntimeError: "
        "Non-finite loss"
    )
    assert finding.variant == "non-finite"


def test_e1_finds_a_collapsed_evaluation_score() -> None:
    scores: list[Row] = [
        event("evaluation", 50 + i, metric="eval_accuracy", value=v) for i, v in enumerate([0.85, 0.88, 0.89, 0.0])
    ]
    assert judge_store("E1", store(scores)).variant == "diverging"
    losses: list[Row] = [event("evaluation", 50 + i, metric="eval_loss", value=v) for i, v in enumerate([0.8, 0.0])]
    assert judge_store("E1", store(losses)).outcome is UNKNOWN


def losses(curve: Any, cluster: Cluster | None = None, **gauges: Any) -> Cluster:
    """Gauges of a training loop, sampled every 15 s; a step takes 15 s."""
    cluster = cluster or working()
    steps = np.arange(len(cluster.times), dtype=np.float64)
    for name, values in {"training_loss": curve(cluster), "training_step": steps, **gauges}.items():
        cluster.put(name, values, node="n1")
    return cluster


def learned(cluster: Cluster, to: float = 3.0) -> Any:
    """A loss that falls from 10 with a little noise."""
    share = (cluster.times - START) / (END - START)
    return cluster.noisy(to + (10 - to) * np.exp(-5 * share), 0.01)


SHAPES: dict[str, tuple[Any, str]] = {
    "not finite to the end": (lambda c: np.where(c.times >= 3000, np.inf, learned(c)), "non-finite"),
    "plateau near 11.9": (lambda c: np.where(c.times >= 2400, c.noisy(11.9, 0.0005), learned(c)), "plateau"),
    "risen and stayed": (lambda c: np.where(c.times >= 3000, c.noisy(40.0, 0.2), learned(c)), "diverging"),
    "lost what it had learned": (lambda c: np.where(c.times >= 3000, c.noisy(9.0, 0.08), learned(c)), "diverging"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_loss_gauges_alone_show_each_shape(case: str) -> None:
    curve, variant = SHAPES[case]
    norm = np.where(Cluster().times >= 2400, 0.0001, 1.0) if variant == "plateau" else 1.0
    finding = losses(curve, training_gradient_norm=norm).judge("E1", COMPLETED, planes=NO_LOG)
    assert (finding.outcome, finding.variant, finding.culprit) == (FOUND, variant, "job")
    assert {"ended_well", "gpus_busy"} <= set(keys(finding))
    assert finding.since is not None
    assert finding.since >= 2300


def test_mostly_idle_gpus_are_not_reported_as_busy() -> None:
    curve, _ = SHAPES["not finite to the end"]
    resting = Cluster()
    resting.per_gpu("gpu_sm_active_ratio", np.where(resting.times >= 4500, 0.8, 0.0))
    cluster = losses(curve, resting)
    assert "gpus_busy" not in keys(cluster.judge("E1", COMPLETED, planes=NO_LOG))


def test_an_unchanging_loss_at_the_end_is_an_established_plateau() -> None:
    flat = lambda c: np.where(c.times >= 2400, 11.9, learned(c))  # noqa: E731
    dead = losses(flat, training_gradient_norm=np.where(Cluster().times >= 2400, 0.0, 1.0))
    finding = dead.judge("E1", COMPLETED, planes=NO_LOG)
    assert (finding.variant, finding.certainty) == ("plateau", ESTABLISHED)
    assert "dead_plateau" in keys(finding)


@pytest.mark.parametrize(
    "curve",
    [
        learned,
        lambda c: np.where((c.times >= 3000) & (c.times < 3100), 11.9, learned(c)),  # a spike
        lambda c: np.where((c.times >= 3000) & (c.times < 3010), np.inf, learned(c)),  # one overflow
        lambda c: np.where(c.times >= 4000, c.noisy(3.05, 0.001), learned(c)),  # converged: a low plateau
    ],
)
def test_loss_gauges_of_a_learning_model_rule_out_divergence(curve: Any) -> None:
    finding = losses(curve, training_gradient_norm=1.0).judge("E1", COMPLETED, planes=NO_LOG)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["loss_fell"])


def test_e1_is_unknown_without_a_loss() -> None:
    assert working().judge("E1", COMPLETED, planes=NO_LOG).outcome is UNKNOWN


def broken(kind: str, at: float, then: float = 2, before: float = 0) -> Cluster:
    """The loss is not finite from 3000 on; metric ``kind`` of n2:3 becomes ``then`` at ``at``."""
    cluster = losses(SHAPES["not finite to the end"][0])
    return cluster.per_gpu(kind, before, {"n2:3": cluster.after(at, then, before)})


ECC, XID = "gpu_ecc_uncorrectable_total", "gpu_xid_last"


@pytest.mark.parametrize(
    ("cluster", "suspected"),
    [
        (lambda: broken(ECC, 2500), True),
        (lambda: broken(XID, 2500, 94), True),
        (lambda: broken(ECC, 4000), False),  # after the divergence
        (lambda: broken(XID, 2500, 31), False),  # an illegal access is no memory error
        (lambda: broken(XID, 2500, 74), False),  # nor is a broken link
        (lambda: broken(ECC, 0, 2, 2), False),  # from before the run
        (lambda: broken(ECC, 9e9), False),
    ],
)
def test_memory_errors_before_the_divergence_make_the_culprit_unknown(cluster: Any, suspected: bool) -> None:
    finding = cluster().judge("E1", COMPLETED, planes=NO_LOG)
    assert (finding.outcome, finding.variant) == (FOUND, "non-finite")
    assert finding.culprit == ("unknown" if suspected else "job")
    assert ("hardware_or_job" in [sentence_name(claim) for claim in finding.cannot_decide]) is suspected
    assert (sentence_name(finding.actions[0]) == "test_gpu") is suspected


def test_clean_memory_counters_are_reported_and_missing_ones_are_not() -> None:
    implied = [sentence_name(claim) for claim in broken(ECC, 9e9).judge("E1", COMPLETED, planes=NO_LOG).implies]
    assert "no_memory_error" in implied
    blind = losses(SHAPES["not finite to the end"][0]).judge("E1", COMPLETED, planes=NO_LOG)
    assert "no_memory_error" not in [sentence_name(claim) for claim in blind.implies]


def test_an_ecc_xid_alone_makes_the_culprit_unknown() -> None:
    fields = {"pci": "0000:3a:00", "time": 2500.0, "node": "n2", "plane": "kernel", "path": "dmesg"}

    def judged(number: int, **more: Any) -> Finding:
        error = event("xid", role=EventRole.CONFIRMATION, xid=number, text=f"NVRM: Xid {number}", **{**fields, **more})
        return losses(SHAPES["not finite to the end"][0]).judge("E1", error, COMPLETED)

    assert (judged(95).culprit, "memory_xid" in keys(judged(95))) == ("unknown", True)
    assert judged(43).culprit == "job"
    assert judged(95, time=4500.0).culprit == "job"
    assert judged(95, time=200.0).culprit == "job"


def test_a_memory_error_of_another_jobs_gpu_is_ignored() -> None:
    cluster = losses(SHAPES["not finite to the end"][0])
    for name in cluster.gpus:
        node, _, gpu = name.partition(":")
        cluster.put(ECC, 0, node=node, gpu=gpu, pci=f"00000000:{gpu}A:00.0")
    fields: dict[str, Any] = {"time": 2500.0, "node": "n2", "plane": "kernel", "path": "dmesg", "xid": 95}
    own = event("xid", role=EventRole.CONFIRMATION, pci="0000:3a:00", **fields)
    other = event("xid", role=EventRole.CONFIRMATION, pci="0000:9a:00", **fields)
    assert cluster.judge("E1", own, COMPLETED).culprit == "unknown"
    assert cluster.judge("E1", other, COMPLETED).culprit == "job"


def test_one_loss_that_is_not_finite_is_called_the_only_one() -> None:
    finding = judge_store("E1", store(*curve([NAN])))
    assert keys(finding)[0] == "only_loss_not_finite"
    assert finding.headline is not None
    assert "the only logged loss" in finding.headline.sentence.text
