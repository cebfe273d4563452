"""The parts of the demonstration that need no cluster: checks of a verdict, the table, and the declared faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.demo.accounts import Account, last_rows
from lab.demo.agents import SETTINGS
from lab.demo.fault import DemoFault, ExpectedVerdict
from lab.demo.faults import FAULTS
from lab.demo.outcome import FaultResult, mismatches, summary_text, table
from trackside.agent.config import load
from trackside.families import find_family

NODES = ("n1", "n2", "n3", "n4")
HANG = DemoFault(
    name="hang",
    story="",
    script="",
    state="CANCELLED",
    expected=ExpectedVerdict("C2", culprit="job", ranks=(1,), nodes=(2,), shows="tinylm.py:41", never=("memory",)),
)


def verdict(**primary: Any) -> dict[str, Any]:
    summary_text = {"family": "C2", "variant": None, "culprit": "job", "ranks": [1], "nodes": ["n2"], "title": "Hang"}
    summary_text |= {"certainty": "supported", **primary}
    shows = [{"text": "Rank 1 stood at tinylm.py:41 in f"}]
    return {
        "run": {"disposition": "CANCELLED"},
        "primary": summary_text,
        "shows": shows,
        "implies": [{"text": "It froze"}],
    }


def test_a_right_verdict_has_no_errors() -> None:
    assert mismatches(HANG, "CANCELLED", verdict(), NODES) == ()


@pytest.mark.parametrize(
    ("primary", "error"),
    [
        ({"family": "H1"}, "family is 'H1', not 'C2'"),
        ({"culprit": "none"}, "owner is 'none', not 'job'"),
        ({"ranks": []}, "ranks is [], not [1]"),
        ({"nodes": ["n1"]}, "nodes is ['n1'], not ['n2']"),
    ],
)
def test_a_wrong_field_of_the_verdict_is_named(primary: dict[str, Any], error: str) -> None:
    assert mismatches(HANG, "CANCELLED", verdict(**primary), NODES) == (error,)


def test_missing_evidence_and_forbidden_words_are_named() -> None:
    incomplete = {**verdict(), "shows": [], "implies": [{"text": "It was short of memory"}]}
    assert mismatches(HANG, "CANCELLED", incomplete, NODES) == (
        "'tinylm.py:41' is not in the evidence",
        "'memory' is stated, but is wrong",
    )
    assert "Slurm's state is 'FAILED', not 'CANCELLED'" in mismatches(HANG, "FAILED", verdict(), NODES)


def test_the_table_shows_right_and_wrong_outcomes() -> None:
    right = FaultResult(HANG, "42", "CANCELLED", verdict(), 9.6)
    failed = FaultResult(HANG, "", "", None, None, ("no verdict",))
    lines = table([right, failed]).splitlines()
    assert lines[2].split() == ["hang", "42", "CANCELLED", "C2", "Hang", "supported", "10", "right"]
    assert (lines[3].split()[-1], lines[4]) == ("WRONG", "    no verdict")
    assert summary_text(right).splitlines()[0] == "hang: C2 Hang; owner: job"


def test_the_last_attempt_of_a_job_counts() -> None:
    rows = last_rows("7|REQUEUED|1795313210|1795313184\n7|RUNNING|Unknown|1795313220\n8|CANCELLED by 0|1795313210|1\n")
    assert rows["7"] == Account("RUNNING", None)
    assert (rows["7"].is_over, rows["8"].is_over, rows["8"].state) == (False, True, "CANCELLED")


def test_declared_faults_name_existing_families_and_nodes() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert find_family(fault.expected.family) is not None, fault.name
        assert set(fault.nodes) <= set("1234"), fault.name


def test_the_agents_settings_are_those_of_the_agent(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(SETTINGS.format(node="n1", state=tmp_path, port=9, url="http://127.0.0.1:9"))
    assert not load(file, environ={}).warnings
