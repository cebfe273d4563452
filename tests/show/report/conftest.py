"""What the tests of pages share: made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.cases import simulated

import trackside.sim
from tests.show.report.pages import made
from trackside.show.document import VerdictDoc

HANG = Path(trackside.sim.__file__).parent / "scenarios" / "stuck-rank-watchdog.toml"


@pytest.fixture(scope="session")
def hanging() -> Path:
    """What a run leaves behind one rank of which hangs: logs, records and metrics, so that it has every chart."""
    return simulated(HANG)


@pytest.fixture(scope="session")
def hang(hanging: Path) -> tuple[VerdictDoc, str]:
    """The verdict on it, and its page."""
    doc, page = made(hanging)
    return doc, page.decode()
