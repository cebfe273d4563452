"""Servers that hold the runs, one a session for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.proxy import Proxy, proxied
from tests.faults.rewriting import Rewriting, rewriting
from tests.faults.runs import HEALTHY, HUNG, SLOW, Held, held


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """A run that is well."""
    with held(HEALTHY, tmp_path_factory.mktemp("healthy")) as run:
        yield run


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """A run whose interconnect is slow, which metrics tell."""
    with held(SLOW, tmp_path_factory.mktemp("slow")) as run:
        yield run


@pytest.fixture(scope="session")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """A run in which a rank hangs."""
    with held(HUNG, tmp_path_factory.mktemp("hung")) as run:
        yield run


@pytest.fixture
def proxy(run: Held) -> Iterator[Proxy]:
    """Before the server of the test's run."""
    with proxied(run.port) as between:
        yield between


@pytest.fixture
def stub(run: Held) -> Iterator[Rewriting]:
    """Before the server of the test's run."""
    with rewriting(run.url) as between:
        yield between
