"""B3 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.families.grids import (
    SICK,
    Cluster,
    working,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    ESTABLISHED,
    FAILED,
    FOUND,
    GIB,
    POSSIBLE,
    START,
    SUPPORTED,
    UNKNOWN,
    event,
    job,
    keys,
    outcome,
    sentence_name,
)
from trackside.families import families
from trackside.finding import Certainty, Finding, Outcome
from trackside.model import Event, Run
from trackside.verdict.arbiter import arbitrate

HOT = (2500.0, 4800.0)
SPAN = tuple[float, float]


def throttled(
    reasons: float = 0x40, clock: float = 1.1e9, heat: float = 90, span: SPAN = HOT, gpus: tuple[str, ...] = (SICK,),
    give: tuple[str, ...] = ("reasons", "clocks", "heat"), **shape: Any,
) -> Cluster:  # fmt: skip
    cluster = working(**shape)
    for name, metric, usual, then in (
        ("reasons", "gpu_throttle_reasons", 0x4, reasons),
        ("clocks", "gpu_sm_clock_hertz", 1.6e9, clock),
        ("heat", "gpu_temperature_celsius", 65, heat),
    ):
        if name in give:
            curve = cluster.between(*span, then, usual)
            cluster.per_gpu(metric, usual, dict.fromkeys(gpus, curve))
    return cluster


def steps(slow: float = 2.0, span: SPAN = HOT) -> list[Event]:
    """Points every 10 s, ``slow`` times as far apart while clocks are low."""
    times = [1060.0]
    while times[-1] < 4900:
        times.append(times[-1] + 10 * (slow if span[0] <= times[-1] < span[1] else 1))
    return [event("progress", 10 + i, step=i + 1, loss=4 - i / 200, time=time) for i, time in enumerate(times)]


THROTTLES: dict[str, tuple[Callable[[], Cluster], list[Event], Certainty]] = {
    "heat": (throttled, steps(), ESTABLISHED),
    "software heat": (lambda: throttled(0x24), steps(), ESTABLISHED),
    "power brake": (lambda: throttled(0x88), steps(), ESTABLISHED),
    "sampled every minute": (lambda: throttled(interval=60.0), steps(), ESTABLISHED),
    "one GPU of one": (lambda: throttled(nodes=1, gpus=("n1:3",)), steps(), ESTABLISHED),
    "no pace": (throttled, [], SUPPORTED),
    "from start to end": (lambda: throttled(span=(0, 9999)), steps(), SUPPORTED),
    "no clocks": (lambda: throttled(give=("reasons",)), steps(), SUPPORTED),
    "reasons alone": (lambda: throttled(give=("reasons",)), [], POSSIBLE),
    "no reasons": (lambda: throttled(give=("clocks", "heat")), steps(), POSSIBLE),
}


def test_throttling_of_all_gpus_from_the_start_is_found() -> None:
    every = tuple(f"n{node}:{gpu}" for node in (1, 2) for gpu in range(8))
    finding = throttled(span=(0, 9999), gpus=every).judge("B3", steps(), COMPLETED)
    assert outcome(finding) == (FOUND, SUPPORTED, False)
    assert finding.gpus == every


@pytest.mark.parametrize(("counted", "expected"), [(1e-3, True), (0.0, False)])
def test_a_slowly_growing_throttle_counter_confirms_a_low_hot_clock(counted: float, expected: bool) -> None:
    """DCGM's violation times are in other units than documented."""
    cluster = throttled(give=("clocks", "heat"))
    creeping = {SICK: cluster.growing(cluster.between(*HOT, counted))}
    cluster.per_gpu("gpu_throttle_seconds_total", 0.0, creeping, reason="thermal")
    finding = cluster.judge("B3", steps(), COMPLETED)
    assert (finding.outcome is FOUND, finding.certainty is ESTABLISHED) == (expected, expected)


@pytest.mark.parametrize("case", THROTTLES)
def test_throttling_is_found_with_its_certainty(case: str) -> None:
    make, progress, certainty = THROTTLES[case]
    finding = make().judge("B3", progress, COMPLETED)
    assert outcome(finding) == (FOUND, certainty, False)
    assert finding.gpus in ((SICK,), ("n1:3",))
    assert finding.nodes == (finding.gpus[0].partition(":")[0],)
    assert finding.since == pytest.approx(1000 if case == "from start to end" else HOT[0], abs=120)


def test_throttle_time_counters_show_throttling() -> None:
    cluster = throttled(give=("clocks",))
    throttled_time = cluster.growing(cluster.between(*HOT, 0.8, 0))
    cluster.per_gpu("gpu_throttle_seconds_total", 0, {SICK: throttled_time}, reason="hw_thermal_slowdown")
    cluster.per_gpu("gpu_throttle_seconds_total", cluster.growing(0.9), reason="sw_power_cap")
    finding = cluster.judge("B3", steps(), COMPLETED)
    assert (outcome(finding), finding.gpus, finding.variant) == ((FOUND, ESTABLISHED, False), (SICK,), "thermal")


def test_a_whole_node_can_be_throttled() -> None:
    node = tuple(f"n2:{i}" for i in range(8))
    finding = throttled(0x80, gpus=node).judge("B3", steps(), COMPLETED)
    assert (finding.gpus, finding.nodes, finding.variant) == (node, ("n2",), "power")
    assert keys(finding)[:4] == ["node_throttled_alone", "clock_lowered_own", "pace_claims_step", "node_temperature"]
    assert "cooling" not in str(finding.cannot_decide)


def test_a_figure_cites_its_own_metric_first() -> None:
    metrics = {"clock_lowered_own": "gpu_sm_clock_hertz", "temperature_reached": "gpu_temperature_celsius"}
    claims = throttled().judge("B3", steps(), COMPLETED).shows
    shown = {sentence_name(claim): str(claim.cites[0]) for claim in claims}
    assert all(metric in shown[key] for key, metric in metrics.items())


def test_throttling_that_did_not_end_the_run_is_a_warning() -> None:
    assert throttled().judge("B3", steps(), FAILED).latent
    assert throttled().judge("B3", steps(1.0), COMPLETED).latent
    assert throttled(span=(2500, 2650)).judge("B3", steps(2.0, (2500, 2650)), COMPLETED).latent
    assert not throttled().judge("B3", steps(), job("TIMEOUT")).latent
    cluster = throttled(span=(1500, 2500))
    hung = Cluster()
    hung.per_gpu("gpu_throttle_reasons", 4, {SICK: hung.between(1500, 2500, 0x40, 4)})
    hung.per_gpu("gpu_sm_clock_hertz", 1.6e9, {SICK: hung.between(1500, 2500, 1e9, 1.6e9)})
    hung.per_gpu("gpu_sm_active_ratio", hung.until(9e9, hung.after(3000, 0.0, 0.8)))
    assert not cluster.judge("B3", steps(2.0, (1500, 2500)), job("TIMEOUT")).latent
    assert hung.judge("B3", job("TIMEOUT")).latent


def test_throttling_to_the_end_of_work_is_primary_if_samples_continue() -> None:
    """No record has the end of the run; the GPUs are released and sampled for another hour."""
    cluster = Cluster(end=9000)
    cluster.per_gpu("gpu_sm_active_ratio", cluster.between(1060, 4900, 0.8))
    memory = cluster.between(1020, 4960, 60 * GIB)
    cluster.per_gpu("gpu_throttle_reasons", 4, {SICK: cluster.between(*HOT, 0x40, 4)})
    cluster.per_gpu("gpu_sm_clock_hertz", 1.6e9, {SICK: cluster.between(*HOT, 1e9, 1.6e9)})
    run = Run(id="7", start=START, end=9000.0, nodes=cluster.nodes)
    undated = cluster.judge("B3", steps(), run=run)
    assert (undated.outcome, undated.latent) == (FOUND, True)  # the run may as well have stalled
    finding = cluster.per_gpu("gpu_memory_used_bytes", memory).judge("B3", steps(), run=run)
    assert (finding.outcome, finding.latent) == (FOUND, False)


def test_low_power_from_low_clocks_is_no_stall() -> None:
    """Without SM activity, power shows work; GPUs with low clocks draw little power although they are busy."""

    def slow_clocks(busy: float) -> Cluster:
        cluster = Cluster()
        cluster.per_gpu("gpu_power_watts", cluster.between(1060, 2500, 400, cluster.after(2500, 110, 60)))
        cluster.per_gpu("gpu_utilization_ratio", cluster.between(1060, 2500, 1.0, cluster.after(2500, busy, 0)))
        cluster.per_gpu("gpu_throttle_reasons", cluster.after(2500, 0x80, 4))
        return cluster.per_gpu("gpu_sm_clock_hertz", cluster.after(2500, 5e8, 1.6e9))

    assert not slow_clocks(1.0).judge("B3", job("TIMEOUT")).latent
    assert slow_clocks(1.0).judge("B3", job("TIMEOUT")).variant == "power"


BENIGN: dict[str, tuple[Callable[[], Cluster], list[str]]] = {
    "power cap": (lambda: throttled(0x4, 1.3e9, 60), ["no_severe_reason", "hottest_gpu"]),
    "all at their power cap": (
        lambda: throttled(0x4, 1.3e9, 70, (0, 9999), Cluster().gpus),
        ["no_severe_reason", "hottest_gpu"],
    ),
    "single samples": (lambda: throttled(span=(3000, 3040)), ["only_briefly", "hottest_gpu"]),
    "clock kept": (lambda: throttled(clock=1.58e9), ["clock_stayed", "hottest_gpu"]),
    "no reasons, at the highest clock": (
        lambda: throttled(heat=60, clock=1.59e9, give=("clocks", "heat")).per_gpu("gpu_sm_clock_max_hertz", 1.7e9),
        ["clocks_stayed", "hottest_gpu"],
    ),
}


@pytest.mark.parametrize("case", BENIGN)
def test_benign_reasons_are_no_throttling(case: str) -> None:
    make, reasons = BENIGN[case]
    finding = make().judge("B3", steps(), COMPLETED)
    assert (finding.outcome, keys(finding)) == (ABSENT, reasons)


def test_repeated_single_samples_are_brief() -> None:
    cluster = working()
    flaps = np.where(np.arange(len(cluster.times)) % 6 < 2, 0x8, 0)
    cluster.per_gpu("gpu_throttle_reasons", 0, {SICK: flaps}).per_gpu("gpu_sm_clock_hertz", 1.6e9)
    assert keys(cluster.judge("B3", steps(), COMPLETED)) == ["only_briefly"]


def test_idle_gpus_are_not_throttled() -> None:
    cluster = Cluster().per_gpu("gpu_sm_active_ratio", 0.0).per_gpu("gpu_engine_active_ratio", 0.0)
    cluster.per_gpu("gpu_throttle_reasons", 0x1, {SICK: 0x9}).per_gpu("gpu_sm_clock_hertz", 3.45e8)
    assert cluster.judge("B3", COMPLETED).outcome is ABSENT


@pytest.mark.parametrize("max_clock", [None, 1.7e9])
def test_low_clocks_without_reasons_are_unknown(max_clock: float | None) -> None:
    """Neither heat nor reasons show a cause, but a power brake would look the same."""
    cluster = throttled(heat=60, give=("clocks", "heat"))
    if max_clock is not None:
        cluster.per_gpu("gpu_sm_clock_max_hertz", max_clock)
    assert cluster.judge("B3", steps(), COMPLETED).outcome is UNKNOWN


def by_default(clock: float, heat: float, watts: float, **labels: str) -> Cluster:
    """The default metrics of exporters, for GPUs with constant activity from the start."""
    cluster = working()
    cluster.per_gpu("gpu_sm_clock_hertz", clock, **labels).per_gpu("gpu_temperature_celsius", heat, **labels)
    return cluster.per_gpu("gpu_power_watts", watts, **labels)


def test_hot_gpus_below_their_models_clock_from_the_start_are_possible() -> None:
    model = {"gpu_model": "NVIDIA H100 80GB HBM3"}
    finding = by_default(8.85e8, 86, 230, **model).judge("B3", steps(), COMPLETED)
    assert outcome(finding) == (FOUND, POSSIBLE, True)
    assert "clock_lowered_highest" in keys(finding)
    assert "heat_or_setting" in [sentence_name(claim) for claim in finding.cannot_decide]
    for other in (by_default(8.85e8, 60, 230, **model), by_default(8.85e8, 86, 690, **model)):
        assert other.judge("B3", steps(), COMPLETED).outcome is UNKNOWN, "set by hand, or at the power limit"
    assert by_default(8.85e8, 86, 230).judge("B3", steps(), COMPLETED).outcome is UNKNOWN
    assert by_default(1.9e9, 86, 650, **model).judge("B3", steps(), COMPLETED).outcome is UNKNOWN


@pytest.mark.parametrize(("count", "expected"), [(4, UNKNOWN), (12, ABSENT)])
def test_a_few_samples_do_not_rule_out_throttling(count: int, expected: Outcome) -> None:
    short = throttled(0x4, 1.58e9, end=START + 15 * (count - 1))
    assert short.judge("B3", job("COMPLETED", end=START + 15 * count)).outcome is expected


def test_throttling_seen_one_window_after_the_straggler_is_its_cause() -> None:
    """On the same GPU: the curves of the two families are smoothed over different windows."""
    families_ = [family for family in families() if family.code in ("B3", "D3")]

    def ranked(gpu: str, later: float) -> str:
        slow = Finding(FOUND, family="D3", certainty=SUPPORTED, since=1000.0, gpus=(SICK,))
        throttling = Finding(FOUND, family="B3", certainty=SUPPORTED, since=1000.0 + later, gpus=(gpu,))
        return arbitrate([throttling, slow], families_).primary.family

    assert ranked(SICK, 30.0) == "B3"
    assert ranked(SICK, 3000.0) == "D3"
    assert ranked("n1:0", 30.0) == "D3"


def test_b3_is_unknown_without_clocks_or_reasons() -> None:
    assert working().judge("B3", steps(), COMPLETED).outcome is UNKNOWN
    assert throttled(give=("clocks",)).judge("B3", steps(), COMPLETED).outcome is UNKNOWN
