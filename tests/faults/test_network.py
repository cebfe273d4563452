"""A broken network path to a metrics server: a transient fault costs nothing, a permanent one only the metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.proxy import Fault, Proxy, proxied
from tests.faults.runs import (
    HEALTHY,
    HUNG,
    PATIENT,
    SLOW,
    ServedRun,
    assert_careful,
    assert_same,
    assert_without_metrics,
    diagnose,
    metrics_at,
    run_in_prometheus,
    site,
)

pytestmark = [pytest.mark.service, pytest.mark.slow]

TRANSIENT = {
    "cut once": Fault(cut=500, times=1),
    "cut at once, thrice": Fault(cut=0, times=3),
    "reset in mid-answer": Fault(cut=2000, reset=True, times=2),
    "every other connection dropped": Fault(drop=2),
    "slow but alive": Fault(rate=1_500_000),
}
PERMANENT = {
    "nothing listens": (Fault(refuse=True), "cannot be reached"),
    "never answers": (Fault(hang=True), "did not answer within 1 s"),
    "always cut": (Fault(cut=10), "the connection broke in the middle of the response"),
    "always reset": (Fault(cut=10, reset=True), "the connection broke in the middle of the response"),
    "bits turned over": (Fault(flip=5), "http://"),
    "a byte now and then": (Fault(rate=100), "did not answer within 1 s"),
}


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
def test_a_transient_fault_does_not_change_the_verdict(
    fault: Fault, run: ServedRun, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.set_fault(fault)
    result = diagnose(site(tmp_path, metrics_at(proxy.url, PATIENT)), [run.rest])
    assert proxy.hits
    assert_same(result, run.full)


@pytest.mark.parametrize("run", ["hung"], indirect=True)
def test_truncated_compressed_answers_are_requested_again(run: ServedRun, proxy: Proxy, tmp_path: Path) -> None:
    proxy.set_fault(Fault(cut=300, times=2))
    result = diagnose(site(tmp_path, metrics_at(proxy.url, PATIENT + "gzip = true\n")), [run.rest])
    assert proxy.hits == 2
    assert_same(result, run.full)


@pytest.mark.parametrize(("fault", "reason"), PERMANENT.values(), ids=PERMANENT)
def test_a_permanent_fault_is_reported_and_rules_nothing_out(
    fault: Fault, reason: str, run: ServedRun, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.set_fault(fault)
    result = diagnose(site(tmp_path, metrics_at(proxy.url)), [run.rest])
    assert fault.refuse or proxy.hits
    assert_without_metrics(result, run, reason, proxy.url)


@pytest.mark.parametrize("run", ["healthy", "hung"], indirect=True)
@pytest.mark.parametrize("name", ["nothing listens", "never answers"])
def test_healthy_and_hung_runs_without_a_server(run: ServedRun, name: str, proxy: Proxy, tmp_path: Path) -> None:
    fault, reason = PERMANENT[name]
    proxy.set_fault(fault)
    assert_without_metrics(diagnose(site(tmp_path, metrics_at(proxy.url)), [run.rest]), run, reason, proxy.url)


@pytest.mark.parametrize(
    ("fault", "after"),
    [(Fault(refuse=True), 3), (Fault(refuse=True), 60), (Fault(refuse=True), 150), (Fault(hang=True), 60)],
    ids=["gone at once", "gone soon", "gone late", "hangs"],
)
def test_a_server_lost_during_the_diagnosis(
    run: ServedRun, proxy: Proxy, fault: Fault, after: int, tmp_path: Path
) -> None:
    """The fault begins after ``after`` requests."""
    proxy.set_fault_after(after, fault)
    result = diagnose(site(tmp_path, metrics_at(proxy.url)), [run.rest])
    assert proxy.fault == fault
    assert_careful(result, run)
    assert proxy.url in result.preflight
    undecided = run.full.ruled_out_families - result.ruled_out_families
    assert all("unable to check: " in result.unknown_families[family] for family in undecided), result.unknown_families


def test_prometheus_as_the_metrics_server(tmp_path: Path) -> None:
    with run_in_prometheus(HEALTHY, tmp_path) as run, proxied(run.port) as proxy:
        proxy.set_fault(TRANSIENT["reset in mid-answer"])
        assert_same(diagnose(site(tmp_path, metrics_at(proxy.url, PATIENT)), [run.rest]), run.full)
        fault, reason = PERMANENT["never answers"]
        proxy.set_fault(fault)
        assert_without_metrics(diagnose(site(tmp_path, metrics_at(proxy.url)), [run.rest]), run, reason, proxy.url)


def test_the_runs_have_the_expected_verdicts(healthy: ServedRun, slow: ServedRun, hung: ServedRun) -> None:
    """Metrics rule out something in each of them."""
    assert [run.full.doc.primary.family for run in (healthy, slow, hung)] == ["G1", "D2", "C2"]
    assert [run.name for run in (healthy, slow, hung)] == [HEALTHY, SLOW, HUNG]
    assert all(run.full.ruled_out_by("metric") - run.bare.ruled_out_families for run in (healthy, slow, hung))
