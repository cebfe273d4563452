"""G1 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trackside
from tests.families.grids import (
    NO_LOG,
    SICK,
    Cluster,
    cold,
    hung,
    judged,
    traced,
    until_stop,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    DONE,
    END,
    ESTABLISHED,
    FAILED,
    FALLING,
    FOUND,
    START,
    SUPPORTED,
    UNKNOWN,
    curve,
    decision,
    event,
    exception,
    judge_store,
    keys,
    points,
    primary,
    sentence_name,
    short_job,
    store,
    text_of,
)
from trackside.finding import Certainty


def test_g1_needs_positive_evidence() -> None:
    healthy = store(curve(FALLING), DONE, short_job("COMPLETED"))
    finding = primary(healthy)
    assert (finding.family, finding.variant, finding.certainty) == ("G1", "healthy", Certainty.SUPPORTED)  # no metrics
    assert judge_store("G1", store(short_job("COMPLETED"))).variant == "unverifiable"
    assert judge_store("G1", store(curve([None] * 4, lr=5e-5))).variant == "unverifiable"
    assert judge_store("G1", store(curve([7.6, 7.1]))).certainty is Certainty.POSSIBLE  # no end
    assert judge_store("G1", store(curve(FALLING), short_job("FAILED"))).outcome is ABSENT
    assert judge_store("G1", store(curve(FALLING), exception("KeyError", "'text'"))).outcome is ABSENT
    assert judge_store("G1", store(event("log_activity"))).outcome is UNKNOWN


def test_g1_ignores_a_handled_error() -> None:
    rows = store(exception("FileNotFoundError", "shard", line=5), curve(FALLING), DONE, short_job("COMPLETED"))
    assert primary(rows).family == "G1"


def test_all_families_describe_an_aborted_end_alike() -> None:
    """G1 and the families that a regular end rules out describe it with the same sentence."""
    for status, key in (("aborted", "aborted_itself"), ("success", "ended_itself")):
        rows = store(curve(FALLING), event("training_end", 900, text="run_stop", status=status))
        for code in ("F2", "F3"):
            assert [sentence_name(claim) for claim in judge_store(code, rows).because] == [key]
        healthy = judge_store("G1", rows)
        shown = [sentence_name(claim) for claim in (*healthy.shows, *healthy.implies, *healthy.cannot_decide)]
        assert healthy.outcome is FOUND
        assert "end_unknown" not in shown
        assert ("aborted_itself" in shown) is (status == "aborted")
        assert ("no_success_reported" in shown) is (status == "aborted")
        assert (healthy.variant == "unverifiable") is (status == "aborted")


def test_families_do_not_contradict_each_other_about_the_end() -> None:
    """No family reports a regular end that another denies."""
    rows = store(curve(FALLING), event("log_activity", 900, lines=900), short_job("FAILED"))
    reasons = [text_of(judge_store(code, rows)) for code in ("C3", "E3", "G1")]
    assert all(reasons)
    assert not [text for text in reasons if "by itself" in text]


def test_g1_is_only_possible_with_metrics_alone(tmp_path: Path) -> None:
    (tmp_path / "m.prom").write_text(
        "".join(
            f'gpu_sm_active_ratio{{node="n1",gpu="0",job="7"}} 0.8 {time}\n'
            f'training_loss{{node="n1",job="7"}} {4 - step / 80:.4f} {time}\n'
            for step, time in enumerate(range(1_772_438_400_000, 1_772_441_400_000, 15_000))
        )
    )
    verdict = trackside.diagnose(tmp_path)
    assert (verdict.family, verdict.primary.certainty) == ("G1", Certainty.POSSIBLE)
    assert [sentence_name(action) for action in verdict.primary.actions] == ["add_output"]


def healthy(**shape: Any) -> Cluster:
    cluster = traced(hung(since=9e9, away=None, **shape), 5000)
    return cluster.per_gpu("gpu_ecc_uncorrectable_total", 3).per_gpu("gpu_rows_remapped_uncorrectable_total", 1)


def test_g1_is_established_on_positive_evidence() -> None:
    finding = judged(healthy(), "G1", points(65), COMPLETED)
    assert (decision(finding), finding.variant) == ((FOUND, ESTABLISHED), "healthy")
    assert {"ended_well", "computed", "kernels_launched", "loss_fell", "no_memory_errors"} <= set(keys(finding))
    assert [sentence_name(claim) for claim in finding.implies] == ["healthy"]


PARTS: dict[str, tuple[Callable[[], Cluster], list[str]]] = {
    "no metrics": (lambda: Cluster().per_node("host_load1", 1), ["hardware_unknown"]),
    "no counters": (lambda: hung(since=9e9), ["no_counters"]),
    "counters alone": (lambda: Cluster().per_gpu("gpu_ecc_uncorrectable_total", 0), ["no_activity"]),
    "utilization alone": (
        lambda: Cluster().per_gpu("gpu_utilization_ratio", 1.0).per_gpu("gpu_ecc_uncorrectable_total", 0),
        ["no_activity", "only_utilization"],
    ),
}


@pytest.mark.parametrize("case", PARTS)
def test_g1_is_at_most_supported_if_evidence_is_missing(case: str) -> None:
    make, undecided = PARTS[case]
    finding = judged(make(), "G1", points(65), COMPLETED)
    assert (decision(finding), finding.variant) == ((FOUND, SUPPORTED), "healthy")
    assert [sentence_name(claim) for claim in finding.cannot_decide] == undecided
    assert [sentence_name(claim) for claim in finding.implies] == ["gpus_not_measured"]


def test_g1_is_at_most_supported_if_half_of_the_gpus_were_measured() -> None:
    whole = healthy()
    missing = whole.judge("G1", points(65), COMPLETED, run=whole.run(n_gpus=32))
    assert (missing.certainty, [sentence_name(claim) for claim in missing.cannot_decide]) == (
        SUPPORTED,
        ["partly_measured"],
    )
    dead = Cluster()
    until_3500 = dict.fromkeys(dead.gpus[8:], dead.until(3500, 0.7))
    dead.per_gpu("gpu_sm_active_ratio", 0.7, until_3500)
    dead.per_gpu("gpu_ecc_uncorrectable_total", 0, dict.fromkeys(dead.gpus[8:], dead.until(3500, 0)))
    finding = judged(traced(dead, 5000), "G1", points(65), COMPLETED)
    assert finding.certainty is SUPPORTED
    assert "partly_measured" in [sentence_name(claim) for claim in finding.cannot_decide]


def test_g1_is_absent_without_work() -> None:
    assert judged(cold(), "G1", points(65), COMPLETED).outcome is ABSENT
    assert judged(hung(), "G1", until_stop()).outcome is ABSENT
    assert judged(healthy(), "G1", points(65), FAILED).outcome is ABSENT


def test_g1_variants() -> None:
    slow = Cluster().per_gpu("gpu_sm_active_ratio", 0.12).per_gpu("gpu_engine_active_ratio", 0.4)
    assert judged(slow, "G1", points(65), COMPLETED).variant == "slow"
    finding = judged(healthy(), "G1", COMPLETED, planes=NO_LOG)
    assert (decision(finding), finding.variant) == ((FOUND, Certainty.POSSIBLE), "unverifiable")
    level = [event("progress", 10 + i, step=i, loss=2.0, time=1060.0 + 60 * i) for i in range(60)]
    flat = judged(healthy(), "G1", level, COMPLETED)
    assert (flat.certainty, [sentence_name(claim) for claim in flat.implies]) == (Certainty.POSSIBLE, ["no_fault"])


def test_an_exported_loss_counts_like_a_printed_one() -> None:
    cluster = healthy()
    falls = np.linspace(4.0, 2.0, len(cluster.times))
    cluster.put("training_loss", falls, rank="0").put("training_step", np.arange(len(falls)), rank="0")
    finding = judged(cluster, "G1", COMPLETED, planes=NO_LOG)
    assert (decision(finding), finding.variant) == ((FOUND, ESTABLISHED), "healthy")


def test_reported_power_leaves_out_idle_gpus() -> None:
    cluster = Cluster(nodes=1)
    rows = dict.fromkeys(cluster.gpus[4:], 60.0)
    cluster.per_gpu("gpu_power_watts", cluster.between(1300, 4700, 500, 90), rows)
    assert "500 W" in text_of(judged(cluster, "G1", points(60), COMPLETED))


def busy_cluster(**shape: Any) -> Cluster:
    cluster = Cluster(**shape)
    cluster.per_gpu("gpu_sm_active_ratio", cluster.noisy(0.8)).per_gpu("gpu_engine_active_ratio", 0.95)
    return cluster.per_gpu("gpu_memory_used_bytes", 1 << 36)


def test_unused_gpus_are_named() -> None:
    cluster = Cluster(nodes=1, gpus=4)
    idle = {f"n1:{gpu}": 0.0 for gpu in (1, 2, 3)}
    cluster.per_gpu("gpu_sm_active_ratio", 0.8, idle).per_gpu("gpu_engine_active_ratio", 0.95, idle)
    cluster.per_gpu("gpu_ecc_uncorrectable_total", 0)
    finding = cluster.judge("G1", points(), COMPLETED)
    assert (finding.outcome, {"some_computed", "gpus_unused"} <= set(keys(finding))) == (FOUND, True)
    assert "3 of the 4 GPUs allocated did nothing during the whole run: n1:1-3" in text_of(finding)
    assert [sentence_name(action) for action in finding.actions] == ["request_fewer"]
    assert "idle_gpus_lost" in [sentence_name(claim) for claim in finding.implies]
    whole = busy_cluster(nodes=1, gpus=4).per_gpu("gpu_ecc_uncorrectable_total", 0).judge("G1", points(), COMPLETED)
    assert "gpus_unused" not in keys(whole)


def test_errors_before_or_after_the_run_are_only_a_warning() -> None:
    cluster = busy_cluster(start=START - 600, end=END + 600)
    rose = {"n1:3": cluster.after(START - 300, 1), SICK: cluster.after(END + 300, 1)}
    cluster.per_gpu("gpu_ecc_uncorrectable_total", 0, rose)
    run = cluster.run(start=START, end=END)
    finding = cluster.judge("G1", points(60), COMPLETED, run=run)
    assert (finding.certainty, "no_ecc_errors_during_run" in keys(finding)) == (ESTABLISHED, True)
    assert "no_counters" not in [sentence_name(claim) for claim in finding.cannot_decide]
    warning = cluster.judge("B2", points(60), COMPLETED, run=run)
    assert (warning.latent, {"too_early", "too_late"} <= set(keys(warning))) == (True, True)
    assert "ended_well" not in keys(warning)
    assert "On n1:3, before the run began" in text_of(warning)


def test_an_error_counter_that_rose_lowers_the_certainty_of_g1() -> None:
    cluster = busy_cluster()
    cluster.per_gpu("gpu_rows_remapped_uncorrectable_total", 0, {SICK: cluster.after(3000, 1)})
    finding = cluster.judge("G1", points(60), COMPLETED)
    assert (finding.certainty, "counter_rose_remaps" in keys(finding)) == (SUPPORTED, True)
    assert "no_counters" not in [sentence_name(claim) for claim in finding.cannot_decide]
    assert [sentence_name(claim) for claim in finding.implies] == ["gpu_reported_errors"]
    assert [sentence_name(action) for action in finding.actions] == ["test_gpu"]
    assert "ended_nevertheless" in keys(cluster.judge("B2", points(60), COMPLETED))
    bare = busy_cluster().judge("G1", points(60), COMPLETED)
    assert [sentence_name(claim) for claim in bare.cannot_decide] == ["no_counters"]


@pytest.mark.parametrize(
    ("losses", "headline"),
    [([5.0 + i / 2 for i in range(8)], "but the evaluation loss rose"), ([5.0 - i / 9 for i in range(8)], "")],
    ids=["rises", "falls"],
)
def test_an_evaluation_loss_that_rises_is_in_the_headline(losses: list[float], headline: str) -> None:
    evaluations = [
        event(
            "evaluation", 900 + 30 * i + batch, epoch=i, batch=batch, metric="loss", value=loss + part, loss=loss + part
        )
        for i, loss in enumerate(losses)
        for batch, part in ((0, -1.0), (10, -0.5), (19, 0.0))
    ]
    finding = busy_cluster().judge("G1", curve(FALLING), evaluations, COMPLETED)
    assert finding.headline is not None
    assert headline in str(finding.headline)
    text = text_of(finding)
    assert f"from {losses[0]:g} to {losses[-1]:.4g}" in text
    assert any("overfits" in str(claim) for claim in finding.implies) == bool(headline)


def test_the_loss_is_compared_within_the_last_attempt() -> None:
    first = [event("progress", 10 + i, step=i + 1, loss=10.0 - i, time=START + 60.0 * i, run_part=0) for i in range(5)]
    second = [
        event("progress", 40 + i, step=i + 4, loss=6.0 - i / 5, time=START + 900 + 60.0 * i, run_part=1)
        for i in range(20)
    ]
    finding = busy_cluster().judge("G1", first, second, COMPLETED)
    assert {"loss_fell", "last_attempt_only"} <= set(keys(finding))
    text = text_of(finding)
    assert "over 20 logged steps" in text
    assert "an earlier training, whose first loss is 10" in text
    assert "last_attempt_only" not in keys(busy_cluster().judge("G1", points(), COMPLETED))
