"""The way to a server of metrics is broken: what passes costs nothing, what lasts costs what metrics alone can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.proxy import Fault, Proxy, proxied
from tests.faults.runs import (
    HEALTHY,
    HUNG,
    PATIENT,
    SLOW,
    Held,
    ask,
    assert_careful,
    assert_same,
    assert_without_metrics,
    held_by_prometheus,
    metrics_at,
    site,
)

pytestmark = [pytest.mark.service, pytest.mark.slow]

PASSING = {
    "cut once": Fault(cut=500, times=1),
    "cut at once, thrice": Fault(cut=0, times=3),
    "reset in mid-answer": Fault(cut=2000, reset=True, times=2),
    "every other connection dropped": Fault(drop=2),
    "slow but alive": Fault(rate=1_500_000),
}
LASTING = {
    "nothing listens": (Fault(refuse=True), "cannot be reached"),
    "never answers": (Fault(hang=True), "did not answer within 1 s"),
    "always cut": (Fault(cut=10), "the connection broke in the middle of the response"),
    "always reset": (Fault(cut=10, reset=True), "the connection broke in the middle of the response"),
    "bits turned over": (Fault(flip=5), "http://"),
    "a byte now and then": (Fault(rate=100), "did not answer within 1 s"),
}


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Held:
    """The run of a test, by its fixture's name."""
    found: Held = request.getfixturevalue(getattr(request, "param", "slow"))
    return found


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_what_passes_changes_nothing(fault: Fault, run: Held, proxy: Proxy, tmp_path: Path) -> None:
    proxy.become(fault)
    answer = ask(site(tmp_path, metrics_at(proxy.url, PATIENT)), [run.rest])
    assert proxy.hits
    assert_same(answer, run.full)


@pytest.mark.parametrize("run", ["hung"], indirect=True)
def test_compressed_answers_that_break_off_are_asked_for_again(run: Held, proxy: Proxy, tmp_path: Path) -> None:
    proxy.become(Fault(cut=300, times=2))
    answer = ask(site(tmp_path, metrics_at(proxy.url, PATIENT + "gzip = true\n")), [run.rest])
    assert proxy.hits == 2
    assert_same(answer, run.full)


@pytest.mark.parametrize(("fault", "reason"), LASTING.values(), ids=LASTING)
def test_what_lasts_is_told_and_rules_nothing_out(
    fault: Fault, reason: str, run: Held, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.become(fault)
    answer = ask(site(tmp_path, metrics_at(proxy.url)), [run.rest])
    assert fault.refuse or proxy.hits
    assert_without_metrics(answer, run, reason, proxy.url)


@pytest.mark.parametrize("run", ["healthy", "hung"], indirect=True)
@pytest.mark.parametrize("name", ["nothing listens", "never answers"])
def test_runs_of_other_kinds_without_a_server(run: Held, name: str, proxy: Proxy, tmp_path: Path) -> None:
    fault, reason = LASTING[name]
    proxy.become(fault)
    assert_without_metrics(ask(site(tmp_path, metrics_at(proxy.url)), [run.rest]), run, reason, proxy.url)


@pytest.mark.parametrize(
    ("fault", "after"),
    [(Fault(refuse=True), 3), (Fault(refuse=True), 60), (Fault(refuse=True), 150), (Fault(hang=True), 60)],
    ids=["gone at once", "gone soon", "gone late", "hangs"],
)
def test_a_server_lost_on_the_way(run: Held, proxy: Proxy, fault: Fault, after: int, tmp_path: Path) -> None:
    """It answered so many times, and then no more."""
    proxy.change(after, fault)
    answer = ask(site(tmp_path, metrics_at(proxy.url)), [run.rest])
    assert proxy.fault == fault
    assert_careful(answer, run)
    assert proxy.url in answer.preflight
    lost = run.full.absent - answer.absent
    assert all("unable to check: " in answer.unknown[family] for family in lost), answer.unknown


def test_prometheus(tmp_path: Path) -> None:
    with held_by_prometheus(HEALTHY, tmp_path) as run, proxied(run.port) as proxy:
        proxy.become(PASSING["reset in mid-answer"])
        assert_same(ask(site(tmp_path, metrics_at(proxy.url, PATIENT)), [run.rest]), run.full)
        fault, reason = LASTING["never answers"]
        proxy.become(fault)
        assert_without_metrics(ask(site(tmp_path, metrics_at(proxy.url)), [run.rest]), run, reason, proxy.url)


def test_the_runs_are_what_they_are_named(healthy: Held, slow: Held, hung: Held) -> None:
    """And metrics count in each."""
    assert [run.full.doc.primary.family for run in (healthy, slow, hung)] == ["G1", "D2", "C2"]
    assert [run.name for run in (healthy, slow, hung)] == [HEALTHY, SLOW, HUNG]
    assert all(run.full.by("metric") - run.bare.absent for run in (healthy, slow, hung))
