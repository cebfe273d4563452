"""Throttled clocks, on curves built by hand."""

from __future__ import annotations

import pytest

from tests.families.grids import SICK, Cluster, working
from trackside.evidence import Missing
from trackside.facts.fact import Facts
from trackside.facts.hardware.clocks import Clocks
from trackside.facts.hardware.throttling import Throttling


def throttling(cluster: Cluster) -> Throttling:
    run, store = cluster.store()
    fact = Facts(store, run).get(Throttling)
    assert isinstance(fact, Throttling)
    return fact


def slowed(reasons: float | None = 0x40, clock: float = 1.1e9, heat: float | None = 90) -> Cluster:
    """One GPU whose clock is lower from 2,500 to 4,800 s."""
    cluster = working()
    curves = (
        ("gpu_throttle_reasons", reasons, 4),
        ("gpu_sm_clock_hertz", clock, 1.6e9),
        ("gpu_temperature_celsius", heat, 65),
    )
    for metric, then, usual in curves:
        if then is not None:
            cluster.per_gpu(metric, usual, {SICK: cluster.between(2500, 4800, then, usual)})
    return cluster


def test_throttling_reports_reason_duration_and_drop() -> None:
    fact = throttling(slowed())
    (gpu,) = fact.lowered
    assert (fact.clocks.basis, gpu.gpu, gpu.baseline, gpu.reasons) == ("reasons", SICK, "own", ("hw_thermal_slowdown",))
    assert gpu.seconds.number == pytest.approx(2300, abs=120)
    assert gpu.drop == pytest.approx(1 - 1.1 / 1.6, abs=0.02)
    assert fact.hot


def test_a_thermal_reason_without_a_lower_clock_is_not_lowered() -> None:
    fact = throttling(slowed(clock=1.58e9))
    assert ([gpu.gpu for gpu in fact.sustained], fact.lowered) == ([SICK], ())
    assert fact.counter_evidence


def test_heat_and_a_low_clock_show_throttling_without_reasons() -> None:
    fact = throttling(slowed(reasons=None))
    assert (fact.clocks.basis, [gpu.gpu for gpu in fact.lowered]) == ("heat", [SICK])
    assert not throttling(slowed(reasons=None, heat=60)).sustained


def test_clocks_alone_are_missing() -> None:
    run, store = slowed(reasons=None, heat=None).store()
    assert isinstance(Facts(store, run).get(Clocks), Missing)
