"""Servers with the data of the runs: one server for each run, for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.proxy import Proxy, proxied
from tests.faults.rewriting import RewritingServer, rewriting_server
from tests.faults.runs import HEALTHY, HUNG, SLOW, ServedRun, run_in_victoria


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRun]:
    """A healthy run."""
    with run_in_victoria(HEALTHY, tmp_path_factory.mktemp("healthy")) as run:
        yield run


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRun]:
    """A run whose interconnect is slow, as its metrics show."""
    with run_in_victoria(SLOW, tmp_path_factory.mktemp("slow")) as run:
        yield run


@pytest.fixture(scope="session")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRun]:
    """A run in which a rank hangs."""
    with run_in_victoria(HUNG, tmp_path_factory.mktemp("hung")) as run:
        yield run


@pytest.fixture
def proxy(run: ServedRun) -> Iterator[Proxy]:
    """A proxy in front of the server of the test's run."""
    with proxied(run.port) as running_proxy:
        yield running_proxy


@pytest.fixture
def stub(run: ServedRun) -> Iterator[RewritingServer]:
    """A server that rewrites the answers of the server of the test's run."""
    with rewriting_server(run.url) as server:
        yield server


@pytest.fixture
def run(request: pytest.FixtureRequest) -> ServedRun:
    """The run of a test: the fixture that the parameter names."""
    served: ServedRun = request.getfixturevalue(getattr(request, "param", "slow"))
    return served
