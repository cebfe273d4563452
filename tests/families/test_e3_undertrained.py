"""E3 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from tests.families.rows import (
    ABSENT,
    DONE,
    FOUND,
    STEPS,
    UNKNOWN,
    curve,
    event,
    judge_store,
    short_job,
    store,
)
from trackside.finding import Finding
from trackside.logs.scan import scan_text


def test_e3_counts_steps_not_lines() -> None:
    assert judge_store("E3", store(curve([5.2, 5.1, 5.1], **STEPS), DONE, short_job("COMPLETED"))).outcome is FOUND
    silent = event("training_end", 90, status="success", steps=3)
    assert judge_store("E3", store(silent, short_job("COMPLETED"))).outcome is FOUND
    assert judge_store("E3", store(curve([2.0, 1.9, 1.8], every=500), DONE, short_job("COMPLETED"))).outcome is ABSENT
    assert judge_store("E3", store(curve([5.2, 5.1, 5.1], **STEPS), short_job("FAILED"))).outcome is ABSENT
    assert judge_store("E3", store(curve([5.2, 5.1, 5.1], **STEPS))).outcome is UNKNOWN


def test_e3_counts_the_steps_behind_the_summary() -> None:
    """No point of the two steps is printed; the summary's rate or the bar after it gives the count."""
    summary = "{'train_runtime': 6.02, 'train_steps_per_second': %s, 'train_loss': 2.11, 'epoch': 0.0}\n"
    bar = "100%|##########| 2/2 [00:06<00:00,  3.01s/it]\n"
    for text in (summary % "0.332", summary % "0.3" + bar):
        finding = judge_store("E3", store(*scan_text(text), short_job("COMPLETED")))
        assert (finding.outcome, finding.headline.values["done"].value) == (FOUND, 2)
    coarse = "{'train_runtime': 5000.1, 'train_steps_per_second': 0.3, 'train_loss': 2.1, 'epoch': 1.0}\n"
    assert judge_store("E3", store(*scan_text(coarse), short_job("COMPLETED"))).outcome is UNKNOWN, (
        "the rounded rate fits about 250 step counts"
    )
    done = summary % "0.332" + "  0%|          | 0/8 [00:00<?, ?it/s]\n"
    assert judge_store("E3", store(*scan_text(done), short_job("COMPLETED"))).headline.values["done"].value == 2


def test_the_training_s_full_bar_counts_the_steps_after_the_last_logged_one() -> None:
    steps = "".join(
        f"{{'loss': {9 - step / 50:.4f}, 'epoch': {step / 274:.2f}}}\n {step // 3}%|#### | {step}/274 [00:01<00:02,  1.0it/s]\n"
        for step in range(10, 271, 10)
    )
    full = "100%|##########| 274/274 [28:47<00:00,  6.30s/it]\n"

    def place_of(text: str) -> object:
        return judge_store("E3", store(*scan_text(text), short_job("COMPLETED"))).because[0].values["place"].value

    assert place_of(steps) == place_of(steps + full.replace("274", "50")) == 270
    assert place_of(steps + full) == 274


def test_e3_is_a_warning_for_a_smoke_test() -> None:
    finding = judge_store("E3", store(curve([5.2, 5.1, 5.1], **STEPS), DONE, short_job("COMPLETED", name="smoke-test")))
    assert finding.latent


def test_the_first_steps_of_a_log_without_an_end_rule_nothing_out() -> None:
    def logged(step: int) -> Finding:
        return judge_store("E3", store(event("progress", 10, step=step, total_steps=80_000, loss=0.4)))

    assert logged(50).outcome is UNKNOWN
    assert logged(60_000).outcome is ABSENT
