"""Options of the whole suite."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tools.cases import CORPUS

pytest_plugins = ["tests.services"]

# A fresh clone has no tables of its own yet, and CI machines are shared: a slow machine is no failure.
settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the golden files instead of comparing")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are rewritten instead of compared."""
    return bool(request.config.getoption("--rewrite"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark Hypothesis tests as fuzz, and skip tests of the labeled corpus if it is not present."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.fuzz)
        if item.get_closest_marker("corpus") and not CORPUS.is_dir():
            item.add_marker(pytest.mark.skip(reason="the shared data is not beside this checkout"))
