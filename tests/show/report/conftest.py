"""Fixtures of the page tests, built once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

import trackside.sim
from tests.show.report.pages import verdict_page
from tools.cases import simulated_run
from trackside.show.document import VerdictDoc

HANG = Path(trackside.sim.__file__).parent / "scenarios" / "stuck-rank-watchdog.toml"


@pytest.fixture(scope="session")
def hanging() -> Path:
    """The files of a run with one hung rank: logs, records and metrics, so that it has every chart."""
    return simulated_run(HANG)


@pytest.fixture(scope="session")
def hang(hanging: Path) -> tuple[VerdictDoc, str]:
    """The verdict on the hung run, and its page."""
    doc, page = verdict_page(hanging)
    return doc, page.decode()
