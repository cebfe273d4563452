"""Options of the whole suite."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from tools.cases import CORPUS

pytest_plugins = ["tests.services"]

# A fresh clone has no tables of its own yet, and CI machines are shared: slowness of the machine is no failure.
settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the golden files anew instead of comparing")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written anew."""
    return bool(request.config.getoption("--rewrite"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What Hypothesis draws is fuzz. The labeled corpus and others' data lie outside the repository: without them
    their tests don't run."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.fuzz)
        if item.get_closest_marker("corpus") and not CORPUS.is_dir():
            item.add_marker(pytest.mark.skip(reason="the shared data is not beside this checkout"))
