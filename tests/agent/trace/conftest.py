"""Stub libraries, compiled once per session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.trace.callers import SONAMES, Caller, Jobs, compile_stub, start_caller
from trackside.agent.trace import probes


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> its stub library."""
    folder = tmp_path_factory.mktemp("stubs")
    return {kind: compile_stub(folder, kind) for kind in SONAMES}


@pytest.fixture(params=probes.METHODS)
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each method to attach probes, on its own."""
    monkeypatch.setattr(probes, "METHODS", (request.param,))
    return str(request.param)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def caller(stubs: dict[str, Path], jobs: Jobs) -> Iterator[Caller]:
    """Rank 0 of job 42, with all stubs loaded."""
    with start_caller(stubs["cudart"], stubs["cuda"], stubs["nccl"]) as process:
        jobs.add(process)
        yield process
