"""Slurm's host lists, and the budget of names that those of one input have."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackside.catalog.hostlist import TooManyNames, expand, name_budget
from trackside.read import detect


def test_the_budget_counts_the_names_of_all_lists() -> None:
    with name_budget(10):
        assert len(expand("a[1-6]", 100)) == 6
        with pytest.raises(TooManyNames, match="more than 10 nodes"):
            expand("b[1-6]", 100)
    assert len(expand("b[1-600]", 1000)) == 600


def test_a_name_is_one_string_however_often_it_is_listed() -> None:
    with name_budget(100):
        first, second = expand("node[1-9]", 100), expand("node[1-9]", 100)
    assert all(a is b for a, b in zip(first, second, strict=True))


def test_an_input_with_too_many_names_keeps_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trackside import diagnose

    monkeypatch.setattr(detect, "MAX_HOST_NAMES", 500)
    rows = "".join(
        f"{100 + i}|train|FAILED|n[{i * 1000}-{i * 1000 + 99}]|2026-01-01T00:00:00|2026-01-01T01:00:00|1:0\n"
        for i in range(20)
    )
    sacct = tmp_path / "sacct.txt"
    sacct.write_text("JobID|JobName|State|NodeList|Start|End|ExitCode\n" + rows, "utf-8")
    (read,) = diagnose(sacct, job="100").inputs
    assert (read.status, read.rows) == ("partial", 5)
    assert "more than 500 nodes" in read.note
