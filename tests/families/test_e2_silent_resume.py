"""E2 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

import pytest

from tests.families.rows import (
    ABSENT,
    DONE,
    FALLING,
    FOUND,
    curve,
    event,
    exception,
    judge_store,
    primary,
    sentence_name,
    short_job,
    store,
)
from trackside.finding import Certainty, clause
from trackside.model import Run


def child(parent_by: str = "dependency") -> Run:
    return Run(id="8", parent="7", parent_by=parent_by)


PARENT = curve([6.4, 3.4, 2.0, 1.5, 1.2, 1.1], kind="parent_progress", path="parent.log")


def test_e2_finds_a_silent_start_from_scratch() -> None:
    finding = judge_store("E2", store(PARENT, curve([6.4, 3.4, 2.0, 1.4, 1.2, 1.0])), child())
    assert (finding.outcome, finding.variant, finding.certainty) == (FOUND, "silent", Certainty.ESTABLISHED)


def test_e2_is_absent_if_the_resume_worked() -> None:
    on = curve([1.05, 1.0, 0.9], step=lambda i: 60 + 10 * i)
    assert judge_store("E2", store(PARENT, on), child()).outcome is ABSENT
    marker = event("checkpoint_loaded", 5, text="resumed from ckpt.pt", step=60)
    assert judge_store("E2", store(PARENT, marker, curve([6.0, 3.0, 2.0])), child()).outcome is ABSENT
    weights_only = curve([1.1, 1.0, 0.9])  # steps restart, the loss does not
    assert judge_store("E2", store(PARENT, weights_only), child()).outcome is ABSENT


def test_e2_finds_steps_that_continue_without_the_weights() -> None:
    finding = judge_store("E2", store(PARENT, curve([6.4, 3.4, 2.0], step=lambda i: 60 + 10 * i)), child())
    assert (finding.outcome, finding.variant, finding.certainty) == (FOUND, "silent", Certainty.SUPPORTED)
    assert finding.headline is not None
    assert sentence_name(finding.headline) == "weights_not_resumed"


@pytest.mark.parametrize(
    ("parent", "first"),
    [
        ([6.4, 3.4, 2.0, 1.5, 1.2, 1.1], 4.5),  # far above the parent's last loss, and far from its first
        ([2.1, 1.7, 2.2, 1.8, 2.3, 1.9], 2.2),  # noise: the parent printed such a loss late
    ],
)
def test_e2_is_absent_if_the_steps_continue_and_the_loss_is_not_back_at_its_start(
    parent: list[float], first: float
) -> None:
    before = curve(parent, kind="parent_progress", path="parent.log")
    finding = judge_store("E2", store(before, curve([first, 1.9, 1.8], step=lambda i: 60 + 10 * i)), child())
    assert finding.outcome is ABSENT
    assert [sentence_name(claim) for claim in finding.because] == ["steps_continued"]


def test_e2_missing_checkpoint_is_a_warning_on_a_first_run() -> None:
    missing = event("checkpoint_missing", 5, text="could not find the metadata file", requested=True)
    assert judge_store("E2", store(missing)).certainty is Certainty.POSSIBLE
    assert primary(store(missing, curve(FALLING), DONE, short_job("COMPLETED"))).family == "G1"
    again = store(missing, curve(FALLING), short_job("COMPLETED", restarts=1))
    assert judge_store("E2", again, child("requeue")).certainty is Certainty.SUPPORTED


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Error(s) in loading state_dict for Lit: size mismatch for fc.weight", "config"),
        ("PytorchStreamReader failed reading zip archive: failed finding central directory", "asset"),
    ],
)
def test_e2_finds_a_crash_while_loading_a_checkpoint(message: str, kind: str) -> None:
    finding = judge_store("E2", store(exception("RuntimeError", message, about="checkpoint")))
    assert (finding.variant, finding.fault_class, finding.exception) == ("crash", kind, ("RuntimeError", message))


def test_a_failed_save_is_h4_and_not_e2() -> None:
    broken = exception("RuntimeError", "PytorchStreamWriter failed writing file data/7", about="checkpoint")
    assert judge_store("E2", store(broken)).outcome is ABSENT
    assert judge_store("H4", store(curve(FALLING), broken, short_job("FAILED"))).variant == "write-failed"


def test_e2_names_the_remedy_that_the_message_names() -> None:
    message = "we now require users to upgrade torch to at least v2.6 in order to use the function"
    finding = judge_store("E2", store(exception("ValueError", message, about="checkpoint")))
    assert sentence_name(finding.actions[0]) == "failure_remedies_old_torch"
    assert finding.actions[0].values["version"].value == "2.6"


def test_a_checkpoint_of_another_number_of_ranks_is_no_unreadable_file() -> None:
    message = "The checkpoint being loaded used a DP world size of 16 but the current world size is 12. Automatic ..."
    finding = judge_store("E2", store(exception("ZeRORuntimeException", message, about="checkpoint")))
    assert (finding.fault_class, sentence_name(finding.actions[0])) == ("config", "failure_remedies_world_size")
    assert finding.headline is not None
    assert clause(finding.headline) == "resume failed: the checkpoint was saved by 16 ranks, and this run has 12"


def test_a_checkpoint_of_other_sizes_is_named_with_both() -> None:
    message = (
        "Error(s) in loading state_dict for Net:\n\tsize mismatch for head.weight: copying a param with shape "
        "torch.Size([32000, 64]) from checkpoint, the shape in current model is torch.Size([128256, 64])."
    )
    finding = judge_store("E2", store(exception("RuntimeError", message, about="checkpoint")))
    assert finding.headline is not None
    assert clause(finding.headline).endswith("head.weight is 32000 x 64 in the checkpoint and 128256 x 64 in the model")


def test_a_checkpoint_that_no_resume_asked_for_is_not_found() -> None:
    row = exception("AssertionError", "Checkpoint out/final.pth not found!", about="checkpoint")
    finding = judge_store("E2", store(row))
    assert finding.headline is not None
    assert clause(finding.headline) == "checkpoint not found: out/final.pth"
    assert clause(finding.actions[0]).startswith("check that out/final.pth exists")
    resumed = judge_store("E2", store(event("resume_requested", 1, path="out/final.pth", by="argument"), row))
    assert resumed.headline is not None
    assert clause(resumed.headline).startswith("resume failed")
