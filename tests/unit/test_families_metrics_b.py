"""B1, B2, B3, A1, A2 and F1 on curves built by hand: positives, rivals that must not be found, and blind cases.

``Cluster.judge`` asks every citation again, so each case checks them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.grids import END, Cluster, event, job, keys, points, worded
from trackside.diagnose.family import find_family
from trackside.model import Certainty, Event, Finding, Outcome, Plane, Role

FOUND, ABSENT, UNKNOWN = Outcome.FOUND, Outcome.ABSENT, Outcome.UNKNOWN
ESTABLISHED, SUPPORTED, POSSIBLE = Certainty.ESTABLISHED, Certainty.SUPPORTED, Certainty.POSSIBLE
GIB = 1 << 30
SICK = "n2:3"
FAILED, COMPLETED = job("FAILED", exit_code=1), job("COMPLETED", exit_code=0)
NO_LOG: tuple[Plane, ...] = ("scheduler",)
Make = Callable[[Cluster], Any]


def working(**shape: Any) -> Cluster:
    """A cluster whose GPUs work from start to end."""
    cluster = Cluster(**shape)
    return cluster.per_gpu("gpu_sm_active_ratio", cluster.noisy(0.8)).per_gpu("gpu_memory_used_bytes", 60 * GIB)


@pytest.mark.parametrize("code", ["A1", "A2", "B1", "B2", "B3", "F1"])
def test_no_digits_in_sentences(code: str) -> None:
    family = find_family(code)
    assert family is not None
    assert not any(any(char.isdigit() for char in text) for text in family.says.values())


# -- B2


def ecc(but: Make | None = None, metric: str = "gpu_ecc_uncorrectable_total", flat: float = 0, **shape: Any) -> Cluster:
    cluster = working(**shape)
    return cluster.per_gpu(metric, flat, {SICK: but(cluster)} if but else {})


RISES: dict[str, tuple[str, Make]] = {
    "volatile ECC": ("gpu_ecc_uncorrectable_total", lambda c: c.after(4980, 2)),
    "lifetime ECC": ("gpu_ecc_uncorrectable_lifetime_total", lambda c: c.after(4980, 9, 7)),
    "remapped rows": ("gpu_rows_remapped_uncorrectable_total", lambda c: c.after(4980, 4, 3)),
    "failed remap": ("gpu_row_remap_failed", lambda c: c.after(4980, 1)),
    "Xid 94": ("gpu_xid_last", lambda c: c.after(4980, 94)),
    "Xid 79 after 43": ("gpu_xid_last", lambda c: c.after(4980, 79, 43)),
}


@pytest.mark.parametrize("case", RISES)
@pytest.mark.parametrize("interval", [10.0, 60.0])
def test_hardware_fault_in_figures(case: str, interval: float) -> None:
    metric, curve = RISES[case]
    finding = ecc(curve, metric, interval=interval).judge("B2", *points(), FAILED)
    assert (finding.outcome, finding.certainty, finding.latent) == (FOUND, ESTABLISHED, False)
    assert (finding.gpus, finding.nodes, finding.culprit) == ((SICK,), ("n2",), "infrastructure")
    assert finding.since is not None
    assert finding.since <= 4990


def test_hardware_fault_names_rank_and_advice() -> None:
    cluster = ecc(lambda c: c.after(4980, 94), "gpu_xid_last")
    finding = cluster.judge("B2", FAILED, run=cluster.run(n_ranks=16))
    assert finding.ranks == (11,)
    assert finding.actions[0].key == "advised"


def test_hardware_fault_when_it_stopped_the_work_hours_before() -> None:
    """The peers wait until the time limit: nothing is done after it, however long it lasts."""
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.after(2000, 0.0, 0.8))
    cluster.per_gpu("gpu_ecc_uncorrectable_total", 0, {SICK: cluster.after(2000, 1)})
    assert not cluster.judge("B2", job("TIMEOUT")).latent


LATENT: dict[str, tuple[Make, str]] = {
    "flat": (lambda c: 3, "gpu_rows_remapped_uncorrectable_total"),
    "flat Xid": (lambda c: 79, "gpu_xid_last"),
    "training went on": (lambda c: c.after(2000, 2), "gpu_ecc_uncorrectable_total"),
    "flat over a restart": (lambda c: c.between(3000, 3300, np.nan, 5), "gpu_ecc_uncorrectable_total"),
    "flat, zero while restarted": (lambda c: c.between(3000, 3060, 0, 5), "gpu_ecc_uncorrectable_total"),
}


@pytest.mark.parametrize("case", LATENT)
def test_hardware_fault_that_is_latent(case: str) -> None:
    curve, metric = LATENT[case]
    finding = ecc(curve, metric).judge("B2", points(60), FAILED)
    assert (finding.outcome, finding.latent, finding.gpus) == (FOUND, True, (SICK,))
    assert ecc(curve, metric).judge("B2", points(60), COMPLETED).latent


def test_a_rise_without_log_is_latent_where_the_gpus_worked_on() -> None:
    assert ecc(lambda c: c.after(2000, 2)).judge("B2", FAILED, planes=NO_LOG).latent


def test_clean_counters_rule_it_out_with_figures() -> None:
    finding = ecc().per_gpu("gpu_health", 0, {SICK: 10}).judge("B2", *points(), FAILED)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["flag_only", "clean_ecc"])
    assert "rose by 0 on 16 GPUs" in worded(finding)
    assert keys(ecc(metric="gpu_xid_last").judge("B2", FAILED)) == ["quiet_gauge"]


def test_application_xids_in_the_gauge_are_no_hardware_fault() -> None:
    for number in (13, 31, 43, 45):
        finding = ecc(lambda c, n=number: c.after(4980, n), "gpu_xid_last").judge("B2", *points(), FAILED)  # type: ignore[misc]
        assert (finding.outcome, keys(finding)) == (ABSENT, ["application_gauge"])


def test_a_gpu_that_vanishes_but_no_node_that_does() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_memory_used_bytes", 1e10, {SICK: cluster.until(4800, 1e10)})
    finding = cluster.judge("B2", *points(), FAILED)
    assert (finding.outcome, finding.certainty, finding.gpus) == (FOUND, SUPPORTED, (SICK,))
    cluster = Cluster()
    gone = cluster.until(4800, 1e10)
    cluster.per_gpu("gpu_memory_used_bytes", 1e10, {f"n2:{i}": gone for i in range(8)})
    assert cluster.judge("B2", *points(), FAILED).outcome is UNKNOWN
    cluster = Cluster()
    cluster.per_gpu("gpu_memory_used_bytes", 1e10, {SICK: cluster.between(3000, 3030, np.nan, 1e10)})
    assert cluster.judge("B2", *points(), FAILED).outcome is UNKNOWN


def test_hardware_of_a_neighbours_job() -> None:
    cluster = Cluster(gpus=4, job="7")
    cluster.per_gpu("gpu_ecc_uncorrectable_total", 0).per_gpu("gpu_memory_used_bytes", 1e10)
    cluster.put("gpu_ecc_uncorrectable_total", cluster.after(4980, 5), node="n2", gpu="6", job="99")
    cluster.put("gpu_xid_last", cluster.after(4980, 79), node="n2", gpu="6", job="99")
    assert cluster.judge("B2", *points(), FAILED).outcome is ABSENT


def xid(pci: str, node: str | None = None, **fields: Any) -> Event:
    fields = {"xid": 79, "pci": pci, "time": 4980.0, "text": f"NVRM: Xid (PCI:{pci}): 79", **fields}
    return event("xid", role=Role.CONFIRMATION, plane="kernel", path="dmesg", node=node, **fields)


def addressed() -> Cluster:
    """Each GPU with its PCI address, alike on both nodes; another job's GPU at 0000:90:00."""
    cluster = Cluster(gpus=4)
    for name in cluster.gpus:
        node, _, gpu = name.partition(":")
        cluster.put("gpu_ecc_uncorrectable_total", 0, node=node, gpu=gpu, pci=f"00000000:{gpu}A:00.0")
    return cluster


def test_kernel_and_curves_name_the_same_gpu() -> None:
    finding = addressed().judge("B2", xid("0000:3A:00", "n2"), FAILED)
    assert (finding.gpus, finding.certainty) == ((SICK,), ESTABLISHED)
    finding = addressed().judge("B2", xid("0000:3a:00"), FAILED)  # two nodes have one there
    assert finding.gpus == ("0000:3a:00",)
    cluster = addressed()
    cluster.per_gpu("gpu_xid_last", 0, {SICK: cluster.after(4980, 79)})
    assert cluster.judge("B2", xid("0000:3a:00"), FAILED).gpus == (SICK,)
    assert addressed().judge("B2", xid("0000:90:00", "n2"), FAILED).outcome is ABSENT


# -- B3

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
    """Points every 10 s, ``slow`` times as far apart while clocks are held down."""
    times = [1060.0]
    while times[-1] < 4900:
        times.append(times[-1] + 10 * (slow if span[0] <= times[-1] < span[1] else 1))
    return [event("progress", 10 + i, step=i + 1, loss=4 - i / 200, time=time) for i, time in enumerate(times)]


def outcome(finding: Finding) -> tuple[Outcome, Certainty | None, bool]:
    return finding.outcome, finding.certainty, finding.latent


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


@pytest.mark.parametrize("case", THROTTLES)
def test_throttling(case: str) -> None:
    make, progress, certainty = THROTTLES[case]
    finding = make().judge("B3", progress, COMPLETED)
    assert outcome(finding) == (FOUND, certainty, False)
    assert finding.gpus in ((SICK,), ("n1:3",))
    assert finding.nodes == (finding.gpus[0].partition(":")[0],)
    assert finding.since == pytest.approx(1000 if case == "from start to end" else HOT[0], abs=120)


def test_throttling_by_counters_of_throttled_time() -> None:
    cluster = throttled(give=("clocks",))
    held = cluster.growing(cluster.between(*HOT, 0.8, 0))
    cluster.per_gpu("gpu_throttle_seconds_total", 0, {SICK: held}, reason="hw_thermal_slowdown")
    cluster.per_gpu("gpu_throttle_seconds_total", cluster.growing(0.9), reason="sw_power_cap")
    finding = cluster.judge("B3", steps(), COMPLETED)
    assert (outcome(finding), finding.gpus, finding.variant) == ((FOUND, ESTABLISHED, False), (SICK,), "thermal")


def test_throttling_of_a_whole_node() -> None:
    node = tuple(f"n2:{i}" for i in range(8))
    finding = throttled(0x80, gpus=node).judge("B3", steps(), COMPLETED)
    assert (finding.gpus, finding.nodes, finding.variant) == (node, ("n2",), "power")


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


BENIGN: dict[str, tuple[Callable[[], Cluster], list[str]]] = {
    "power cap": (lambda: throttled(0x4, 1.3e9, 60), ["benign", "hottest"]),
    "all at their power cap": (lambda: throttled(0x4, 1.3e9, 70, (0, 9999), Cluster().gpus), ["benign", "hottest"]),
    "single samples": (lambda: throttled(span=(3000, 3040)), ["brief", "hottest"]),
    "clock kept": (lambda: throttled(clock=1.58e9), ["kept", "hottest"]),
    "cool and slow, no reasons": (lambda: throttled(heat=60, give=("clocks", "heat")), ["clocks", "hottest"]),
}


@pytest.mark.parametrize("case", BENIGN)
def test_no_throttling(case: str) -> None:
    make, said = BENIGN[case]
    finding = make().judge("B3", steps(), COMPLETED)
    assert (finding.outcome, keys(finding)) == (ABSENT, said)


def test_single_samples_again_and_again_are_flapping() -> None:
    cluster = working()
    flaps = np.where(np.arange(len(cluster.times)) % 6 < 2, 0x8, 0)
    cluster.per_gpu("gpu_throttle_reasons", 0, {SICK: flaps}).per_gpu("gpu_sm_clock_hertz", 1.6e9)
    assert keys(cluster.judge("B3", steps(), COMPLETED)) == ["brief"]


def test_idle_gpus_are_not_throttled() -> None:
    cluster = Cluster().per_gpu("gpu_sm_active_ratio", 0.0).per_gpu("gpu_engine_active_ratio", 0.0)
    cluster.per_gpu("gpu_throttle_reasons", 0x1, {SICK: 0x9}).per_gpu("gpu_sm_clock_hertz", 3.45e8)
    assert cluster.judge("B3", COMPLETED).outcome is ABSENT


def test_clocks_unwatched() -> None:
    assert working().judge("B3", steps(), COMPLETED).outcome is UNKNOWN
    assert throttled(give=("clocks",)).judge("B3", steps(), COMPLETED).outcome is UNKNOWN


# -- B1


def oom(rank: int = 3, **fields: Any) -> Event:
    fields = {"requested_bytes": 2 * GIB, "total_bytes": 80 * GIB, "time": 4990.0, **fields}
    return event("cuda_oom", 50, role=Role.ROOT, rank=rank, text="CUDA out of memory", **fields)


def filled(used: Make | float, but: dict[str, Make] | None = None, **shape: Any) -> Cluster:
    cluster = Cluster(**shape)
    own = {name: make(cluster) for name, make in (but or {}).items()}
    cluster.per_gpu("gpu_memory_used_bytes", used(cluster) if callable(used) else used, own)
    return cluster.per_gpu("gpu_memory_total_bytes", 80 * GIB)


def test_out_of_memory_with_its_curve() -> None:
    cluster = filled(lambda c: c.between(1030, 4990, 78 * GIB)).per_gpu("gpu_ecc_uncorrectable_total", 0)
    finding = cluster.judge("B1", oom(), FAILED, run=cluster.run(n_ranks=16))
    assert (finding.outcome, finding.certainty, finding.culprit) == (FOUND, ESTABLISHED, "job")
    assert (finding.gpus, set(finding.planes)) == (("n1:3",), {"log", "metric", "scheduler"})
    assert {"near", "clean_ecc"} <= set(keys(finding))


def test_one_request_too_large_never_shows_in_the_curve() -> None:
    cluster = filled(lambda c: c.between(1030, 4990, 40 * GIB))
    finding = cluster.judge("B1", oom(requested_bytes=91 * GIB), FAILED, run=cluster.run(n_ranks=16))
    assert finding.certainty is ESTABLISHED
    assert "near" not in keys(finding)
    assert "below" in [each.key for each in finding.implies]


def test_capacity_from_used_and_free() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_memory_used_bytes", 78 * GIB).per_gpu("gpu_memory_free_bytes", 2 * GIB)
    assert "near" in keys(cluster.judge("B1", oom(), FAILED, run=cluster.run(n_ranks=16)))


def test_memory_that_somebody_else_held() -> None:
    long: dict[str, Any] = {"start": 400.0, "end": 5600.0}
    run = Cluster().run(n_ranks=16)

    def own(level: float, before: float) -> Make:
        return lambda c: c.between(1040, 4990, level * GIB, before * GIB)

    held = filled(own(50, 0), {"n1:3": own(79, 30)}, **long)
    finding = held.judge("B1", oom(), FAILED, run=run)
    assert (finding.culprit, "taken" in keys(finding)) == ("infrastructure", True)
    assert finding.actions[0].key == "who"
    too_large = held.judge("B1", oom(requested_bytes=60 * GIB), FAILED, run=run)
    assert (too_large.culprit, "taken" in keys(too_large)) == ("job", True)
    before: Make = lambda c: c.between(1040, 4990, 79 * GIB, c.between(0, 1000, 60 * GIB))  # noqa: E731
    assert "taken" not in keys(filled(before, **long).judge("B1", oom(), FAILED, run=run))


def test_out_of_memory_by_its_curve_alone() -> None:
    climbing = filled(lambda c: c.between(4700, 4990, 79 * GIB, 50 * GIB))
    finding = climbing.judge("B1", FAILED, planes=NO_LOG)
    assert (finding.outcome, finding.certainty) == (FOUND, POSSIBLE)
    cache = filled(79 * GIB)
    assert cache.judge("B1", FAILED, planes=NO_LOG).outcome is UNKNOWN
    assert climbing.judge("B1", job("COMPLETED"), planes=NO_LOG).outcome is UNKNOWN
    assert climbing.judge("B1", job("FAILED", exit_code=0, signal=9), planes=NO_LOG).outcome is UNKNOWN
    finding = filled(40 * GIB).judge("B1", *points(), FAILED)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["none", "at_most"])


# -- A1


def raised(**fields: Any) -> Event:
    fields = {"type": "ValueError", "message": "no such option", "about": "application", "time": 4900.0, **fields}
    return event("exception", 50, role=Role.ROOT, **fields)


def cold() -> Cluster:
    """GPUs with no more than a context on them, and no kernel launched."""
    cluster = Cluster().per_gpu("gpu_memory_used_bytes", GIB // 2).per_gpu("gpu_memory_total_bytes", 80 * GIB)
    return cluster.per_gpu("trackside_cuda_kernel_launches_total", 0)


def test_startup_crash_before_any_gpu_work() -> None:
    finding = cold().judge("A1", raised(), FAILED)
    assert (finding.outcome, finding.certainty, finding.cannot_decide) == (FOUND, ESTABLISHED, ())
    assert {"launches", "context_only"} <= set(keys(finding))
    assert "metric" in finding.planes
    loaded = Cluster().per_gpu("gpu_memory_used_bytes", 50 * GIB).per_gpu("gpu_memory_total_bytes", 80 * GIB)
    loaded.per_gpu("gpu_sm_active_ratio", 0.0)
    assert {"no_work", "loaded"} <= set(keys(loaded.judge("A1", raised(), FAILED)))
    blind = Cluster().per_node("host_load1", 3)
    assert [each.key for each in blind.judge("A1", raised(), FAILED).cannot_decide] == ["gpu_memory"]


def test_startup_crash_is_none_after_long_gpu_work() -> None:
    """A training loop that prints nothing readable: the GPUs tell that it ran."""
    assert keys(working().judge("A1", raised(), FAILED)) == ["worked"]
    finding = working().judge("H2", raised(), FAILED)
    assert (finding.outcome, "worked" in keys(finding)) == (FOUND, True)
    assert cold().judge("H2", raised(), FAILED).outcome is ABSENT


def test_quick_failure_without_a_log() -> None:
    quick = job("FAILED", exit_code=1, end=1060.0, elapsed_s=60.0)
    assert outcome(cold().judge("A1", quick, planes=NO_LOG))[:2] == (FOUND, POSSIBLE)
    assert working().judge("A1", quick, planes=NO_LOG).outcome is UNKNOWN


# -- A2


def killed(**fields: Any) -> Event:
    fields = {"global_rank": 9, "signal": 9, "time": 4980.0, "first": True, "node": "n2", **fields}
    return event("launcher_failure", 90, role=Role.ROOT, rank=9, **fields)


def host(cluster: Cluster, low: float, kills: int) -> Cluster:
    """Node n2's memory, down to a share of it as the run ends, and its kernel's kills."""
    cluster.per_node("host_memory_total_bytes", 1000 * GIB)
    left = cluster.between(4900, 4990, low * 1000 * GIB, 900 * GIB)
    cluster.per_node("host_memory_available_bytes", 900 * GIB, {"n2": left})
    return cluster.per_node("host_oom_kills_total", 3, {"n2": cluster.after(4980, 3 + kills, 3)})


@pytest.mark.parametrize(
    ("low", "kills", "said", "implied", "open_"),
    [
        (0.01, 1, {"oom_counted", "host_short"}, "implies_host_oom", []),
        (0.1, 1, {"oom_counted"}, "implies_host_oom", []),
        (0.01, 0, {"host_short"}, "implies_host_oom", []),
        (0.5, 1, {"oom_counted", "host_ample"}, "implies_cgroup_oom", []),
        (0.5, 0, {"host_ample"}, "implies_other_kill", ["who_else"]),
    ],
)
def test_a_kill_and_the_hosts_memory(low: float, kills: int, said: set[str], implied: str, open_: list[str]) -> None:
    finding = host(cold(), low, kills).judge("A2", killed(), FAILED)
    assert (finding.outcome, finding.certainty, finding.nodes) == (FOUND, ESTABLISHED, ("n2",))
    assert said | {"launches", "context_only"} <= set(keys(finding))
    assert [each.key for each in finding.implies] == [implied]
    assert [each.key for each in finding.cannot_decide] == open_


def test_a_kill_without_host_metrics_stays_undecided() -> None:
    finding = cold().judge("A2", killed(), FAILED)
    assert [each.key for each in finding.cannot_decide] == ["who"]
    assert keys(working().judge("A2", killed(), FAILED))[1] == "worked"


def test_a_kill_that_only_the_kernel_counted() -> None:
    finding = host(Cluster(), 0.01, 1).judge("A2", FAILED, planes=NO_LOG)
    assert (outcome(finding), finding.signal) == ((FOUND, ESTABLISHED, False), ("SIGKILL", 9))
    assert outcome(host(Cluster(), 0.01, 0).judge("A2", FAILED, planes=NO_LOG))[:2] == (FOUND, POSSIBLE)
    assert host(Cluster(), 0.01, 1).judge("A2", COMPLETED).latent
    assert host(Cluster(), 0.01, 1).judge("A2", points(60), job("TIMEOUT")).latent
    assert host(Cluster(), 0.5, 0).judge("A2", points(), FAILED).outcome is ABSENT
    assert host(Cluster(), 0.01, 1).judge("A2", raised(), FAILED).outcome is ABSENT


def test_a_kill_that_stopped_training_long_before_the_end() -> None:
    cluster = Cluster().per_node("host_memory_total_bytes", 1e12)
    cluster.per_node("host_oom_kills_total", 0, {"n2": cluster.after(2300, 1)})
    finding = cluster.judge("A2", points(), job("TIMEOUT"))
    assert (finding.outcome, finding.latent, finding.nodes) == (FOUND, False, ("n2",))


# -- F1

LATER = 5600.0


def nodes(at: float = 4700, gpu: bool = True, up: bool = False, count: int = 4, **shape: Any) -> Cluster:
    """Node n3 (the last one) is sampled until ``at`` only; the monitor goes on after the run's end."""
    cluster = Cluster(start=400, end=LATER, nodes=count, **shape)
    last = cluster.nodes[-1]
    cluster.per_node("host_load1", 3.0, {last: cluster.until(at, 3.0)})
    left = cluster.until(at, 6e10) if gpu else 6e10
    cluster.per_gpu("gpu_memory_used_bytes", 6e10, {f"{last}:{i}": left for i in range(8)})
    if up:
        cluster.per_node("scrape_up", 1, {last: cluster.after(at, 0, 1)}, target="node")
    return cluster


def judged(cluster: Cluster, *rows: Any, **more: Any) -> Finding:
    run = Cluster(nodes=len(cluster.nodes)).run()
    return cluster.judge("F1", points(40, 1060, 90), *rows, run=run, **more)


@pytest.mark.parametrize(
    ("shape", "state", "certainty"),
    [
        ({}, "NODE_FAIL", ESTABLISHED),
        ({}, "FAILED", SUPPORTED),
        ({"up": True}, "FAILED", SUPPORTED),
        ({"up": True, "count": 1}, "FAILED", SUPPORTED),
        ({"interval": 60.0}, "FAILED", SUPPORTED),
    ],
)
def test_a_node_falls_silent(shape: dict[str, Any], state: str, certainty: Certainty) -> None:
    finding = judged(nodes(**shape), job(state))
    assert outcome(finding) == (FOUND, certainty, False)
    assert finding.nodes == (f"n{shape.get('count', 4)}",)
    assert finding.since == pytest.approx(4700, abs=120)


def test_a_silent_node_that_the_scheduler_calls_down() -> None:
    lost = event("node_state", plane="scheduler", node="n4", state="down", time=4990.0, path="slurmctld.log")
    finding = judged(nodes(), lost, job("FAILED"))
    assert (finding.certainty, set(finding.planes)) == (ESTABLISHED, {"scheduler", "metric", "log"})


SILENCES: dict[str, tuple[dict[str, Any], str, str]] = {
    "one exporter only": ({"gpu": False}, "FAILED", "watched"),
    "after the run's end": ({"at": 5200}, "FAILED", "watched"),
    "never": ({"at": 9e9}, "FAILED", "watched"),
    "training went on": ({"at": 2000}, "FAILED", "monitoring"),
    "it ended well": ({"at": 4700}, "COMPLETED", "monitoring"),
}


@pytest.mark.parametrize("case", SILENCES)
def test_no_node_is_down(case: str) -> None:
    shape, state, said = SILENCES[case]
    finding = judged(nodes(**shape), job(state))
    assert (finding.outcome, keys(finding)) == (ABSENT, ["other_state", said])


def test_all_nodes_silent_at_once_is_the_monitors_end() -> None:
    cluster = Cluster(nodes=4)
    cluster.per_node("host_load1", cluster.until(4000, 3.0))
    assert judged(cluster, job("FAILED")).outcome is ABSENT


def test_a_node_is_started_anew() -> None:
    def booted(at: float) -> Cluster:
        cluster = nodes(9e9)
        return cluster.per_node("host_boot_time_seconds", 100.0, {"n2": cluster.after(at + 120, at, 100.5)})

    finding = judged(booted(4850), job("FAILED"))
    assert (outcome(finding), finding.nodes) == ((FOUND, ESTABLISHED, False), ("n2",))
    assert judged(booted(END + 200), job("FAILED")).outcome is ABSENT


def test_a_health_flag_is_no_nodes_state() -> None:
    cluster = nodes(9e9).per_gpu("gpu_health", 0, {"n4:0": 20})
    assert judged(cluster, job("FAILED")).outcome is ABSENT
