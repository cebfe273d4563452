"""The ranking of findings: what is a consequence, and what only stands in the same log."""

from __future__ import annotations

import pytest

from tests.families.rows import exception, root, store
from trackside.families import families
from trackside.model import Run
from trackside.verdict.arbiter import arbitrate
from trackside.verdict.engine import judge_all


@pytest.mark.parametrize(("line", "consequences"), [(13, ()), (590, ("A1",))])
def test_an_error_far_above_its_explanation_is_a_warning_and_no_consequence(
    line: int, consequences: tuple[str, ...]
) -> None:
    rows = store(exception("AssertionError", "no config", line), root("cuda_oom", 600, requested_bytes=1 << 34))
    ranked = arbitrate(judge_all(rows, Run()), families())
    assert ranked.primary.family == "B1"
    assert tuple(finding.family for finding in ranked.consequences) == consequences
    assert ("A1" in [finding.family for finding in ranked.warnings]) is not bool(consequences)


def test_an_error_about_what_the_job_was_given_is_no_consequence_and_keeps_its_advice() -> None:
    rows = store(
        root("cuda_oom", 50, requested_bytes=1 << 34),
        exception("OSError", "Incorrect path_or_model_id: '/models/clip'. Provide a local folder or a repo_id", 60),
    )
    ranked = arbitrate(judge_all(rows, Run()), families())
    assert (ranked.primary.family, ranked.consequences) == ("B1", ())
    assert [finding.family for finding in ranked.warnings] == ["A1"]
    assert ranked.warnings[0].actions[0] in ranked.primary.actions


def test_an_interrupt_of_another_program_is_no_consequence_of_a_rejected_command_line() -> None:
    rows = store(
        exception("argparse.ArgumentError", "t.py: error: argument --model: expected one argument", 25),
        exception("KeyboardInterrupt", "", 69, about="interrupt"),
    )
    ranked = arbitrate(judge_all(rows, Run()), families())
    assert (ranked.primary.family, ranked.consequences) == ("A1", ())
    assert "H1" in [finding.family for finding in ranked.warnings]
