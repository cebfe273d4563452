"""B1, B2 and F1 on curves built by hand: positives, rivals that must not be found, and blind cases.

``Cluster.judge`` asks every citation again, so each case checks them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.grids import END, START, Cluster, event, job, keys, points, worded
from trackside.families import find_family
from trackside.finding import Certainty, Finding, Outcome
from trackside.model import Event, Plane, Position, Record, Role, Run

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


def outcome(finding: Finding) -> tuple[Outcome, Certainty | None, bool]:
    return finding.outcome, finding.certainty, finding.latent


@pytest.mark.parametrize("code", ["B1", "B2", "F1"])
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
    assert "No uncorrectable ECC error was added on 16 GPUs" in worded(finding)
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


def xid(pci: str, node: str | None = None, line: int = 1, **fields: Any) -> Event:
    fields = {"xid": 79, "pci": pci, "time": 4980.0, "text": f"NVRM: Xid (PCI:{pci}): 79", **fields}
    return event("xid", line, role=Role.CONFIRMATION, plane="kernel", path="dmesg", node=node, **fields)


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


def test_an_address_that_no_curve_carries_is_no_second_gpu() -> None:
    """Kernel and figures name one GPU each on the node: they mean the same one."""
    cluster = ecc(lambda c: c.after(4980, 2))
    finding = cluster.judge("B2", xid("0000:3a:00", "n2"), FAILED)
    assert (finding.gpus, finding.certainty) == ((SICK,), ESTABLISHED)
    both = cluster.judge("B2", xid("0000:3a:00", "n2"), xid("0000:4b:00.0", "n2", 2, xid=95), FAILED)
    assert both.gpus == ("0000:3a:00", "0000:4b:00", SICK)
    twice = Cluster().judge("B2", xid("0000:3a:00", "n2"), xid("00000000:3A:00.0", "n2", 2, xid=95), FAILED)
    assert twice.gpus == ("0000:3a:00",)


def test_a_rank_names_the_gpu_where_nothing_else_does() -> None:
    cluster = ecc()
    cuda = event("cuda_error", 50, name="uncorrectable ECC error", role=Role.ROOT, rank=11, time=4980.0)
    finding = cluster.judge("B2", cuda, FAILED, run=cluster.run(n_ranks=16))
    assert (finding.outcome, finding.gpus, finding.ranks) == (FOUND, (SICK,), (11,))


def drained(reason: str) -> Record:
    fields: dict[str, Any] = {"name": "n2", "reason": reason, "reason_time": 5100.0, "state": "drain"}
    return Record("node", Position("node.txt", 1), "scheduler", fields)


def test_a_drain_reason_names_the_gpu() -> None:
    cluster = ecc(gpus=4)
    assert cluster.judge("B2", drained("gpu3 lost"), FAILED).gpus == (SICK,)
    assert cluster.judge("B2", drained("GPU 3: Xid 79"), FAILED).gpus == (SICK,)
    assert cluster.judge("B2", drained("Xid 79 on 1 of 8"), FAILED).gpus == ()
    held = cluster.run(gpus=cluster.gpus, gpus_by="scheduler")
    labelled = ecc(gpus=4, job="7")
    assert labelled.judge("B2", drained("gpu7 lost"), FAILED, run=held).outcome is ABSENT


def test_a_drain_counts_only_in_the_runs_time() -> None:
    """END is 5000: within the run or while it is noticed; not before it, not later, not of a node given back."""

    def told(time: float | None, *more: Record, state: str = "FAILED", **held: Any) -> Finding:
        rows = [at(drained("Xid 79"), reason_time=time), *more]
        return Cluster().judge("B2", *rows, job(state, nodes=("n1", "n2")), run=Run("7", **{**RAN, **held}))

    def at(row: Record, **fields: Any) -> Record:
        known = {**row.fields, **fields}
        return Record("node", row.at, "scheduler", {key: value for key, value in known.items() if value is not None})

    RAN: dict[str, Any] = {"nodes": ("n1", "n2"), "start": START, "end": END}
    assert [told(time).outcome for time in (START, 3000.0, END, END + 150)] == [FOUND] * 4
    assert not told(END + 150).latent
    assert [told(time).outcome for time in (START - 1, END + 292, END + 1600)] == [UNKNOWN] * 3
    back = Record(
        "node", Position("node.txt", 2), "scheduler", {"name": "n2", "reason": "bad fan", "reason_end": 5020.0}
    )
    assert told(END + 80, back).outcome is UNKNOWN
    assert told(END + 10, back).outcome is FOUND  # taken out before it was given back
    undated = told(None)
    assert (undated.latent, "undated" in keys(undated)) == (True, True)


@pytest.mark.parametrize("code", ["B2", "F1"])
def test_a_job_without_nodes_has_no_node_evidence(code: str) -> None:
    never = Record("job", Position("sacct.txt", 2), "scheduler", {"id": "7", "state": "DEADLINE", "end": END})
    run = Run("7", end=END)
    down = Record("node", Position("node.txt", 1), "scheduler", {**drained("Xid 79").fields, "state": "down"})
    assert Cluster().judge(code, down, never, run=run).outcome is not FOUND


@pytest.mark.parametrize(("state", "after", "found"), [
    ("FAILED", 150, True), ("FAILED", 287, False), ("NODE_FAIL", 73, False), ("CANCELLED", 144, False),
    ("CANCELLED", 20, True),
])  # fmt: skip
def test_a_node_that_went_down_after_the_run(state: str, after: float, found: bool) -> None:
    fields: dict[str, Any] = {"name": "n2", "reason": "Not responding", "reason_time": END + after, "state": "down"}
    run = Run("7", nodes=("n1", "n2"), start=START, end=END)
    row = Record("node", Position("node.txt", 1), "scheduler", fields)
    finding = Cluster().judge("F1", row, job(state, nodes=("n1", "n2")), run=run)
    assert ("n2" in finding.nodes) is found


def untold(job_: str | None = None) -> Cluster:
    """n2:3 held memory like the others and did nothing, while its errors rose; nothing else tells whose it was."""
    cluster = Cluster(start=400, end=5600, nodes=2, gpus=8, job=job_)
    cluster.per_gpu("gpu_memory_used_bytes", cluster.between(1020, 4990, 60 * GIB))
    busy = cluster.between(1020, 4990, 0.8)
    cluster.per_gpu("gpu_sm_active_ratio", busy, {SICK: 0.0})
    return cluster.per_gpu("gpu_ecc_uncorrectable_total", 0, {SICK: cluster.after(3000, 2)})


def test_errors_of_a_gpu_that_did_nothing_are_anothers_where_only_memory_tells_whose_it_was() -> None:
    run = Run(id="7", start=START, end=END, nodes=("n1", "n2"))
    finding = untold().judge("B2", *points(), FAILED, run=run)
    assert (finding.outcome, "foreign" in keys(finding)) == (ABSENT, True)
    assert SICK in worded(finding)
    named = untold("7").judge("B2", *points(), FAILED, run=run)
    assert (named.outcome, named.gpus) == (FOUND, (SICK,))


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


def test_failed_allocations_that_the_framework_counted() -> None:
    def counted(at: float) -> Cluster:
        cluster = filled(40 * GIB)
        return cluster.put("training_memory_ooms_total", cluster.after(at, 1), node="n1", rank="0")

    finding = counted(4950).judge("B1", FAILED, planes=NO_LOG)
    assert (finding.outcome, finding.certainty, "counted" in keys(finding)) == (FOUND, SUPPORTED, True)
    assert counted(2000).judge("B1", FAILED, planes=NO_LOG).outcome is UNKNOWN  # caught, long before
    assert counted(4950).judge("B1", COMPLETED, planes=NO_LOG).outcome is UNKNOWN
    assert counted(4950).judge("B1", *points(), FAILED).outcome is FOUND
    raised = event("exception", 50, type="ValueError", message="bad", about="application", role=Role.ROOT, time=4990.0)
    assert counted(4950).judge("B1", raised, FAILED).outcome is ABSENT
    assert "counted" in keys(counted(4950).judge("B1", oom(), FAILED))


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


def test_a_node_falls_silent_as_the_output_ends() -> None:
    """No scheduler's record tells of the end; the log was written last when the node went."""

    def judged_at(last: float, cluster: Cluster) -> Finding:
        log = event("log_activity", 1, first_time=1000.0, last_time=last, time=last)
        run = Run(id="7", start=START, nodes=cluster.nodes)
        return cluster.judge("F1", points(40, 1060, 90), log, run=run, planes=("log",))

    finding = judged_at(4710.0, nodes())
    assert (outcome(finding), finding.nodes) == ((FOUND, SUPPORTED, False), ("n4",))
    assert judged_at(2000.0, nodes()).outcome is ABSENT  # long after it
    assert keys(judged_at(4710.0, nodes(9e9))) == ["watched"]


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
