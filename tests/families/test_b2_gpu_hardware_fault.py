"""B2 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.families.grids import (
    NO_LOG,
    SICK,
    Cluster,
    Make,
    working,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    END,
    ESTABLISHED,
    FAILED,
    FOUND,
    GIB,
    START,
    SUPPORTED,
    UNKNOWN,
    event,
    job,
    judge,
    keys,
    log_points,
    points,
    root,
    sentence_name,
    text_of,
    xid_number,
)
from trackside.finding import Certainty, Finding
from trackside.model import Event, EventRole, Position, Record, Run

RUN = Run(id="7", start=1000.0, end=5000.0, nodes=("n1",))


def test_an_xid_79_is_an_established_hardware_fault() -> None:
    finding = judge("B2", log_points(), xid_number(79), job("FAILED", exit_code=1), run=RUN)
    assert (finding.outcome, finding.certainty, finding.culprit) == (FOUND, Certainty.ESTABLISHED, "infrastructure")
    assert (finding.variant, finding.gpus, finding.nodes) == ("active", ("0000:4e:00",), ("n1",))
    error = root("cuda_error", 50, name="uncorrectable ECC error", rank=2)
    assert judge("B2", error).certainty is Certainty.SUPPORTED


def test_a_hardware_fault_without_effect_is_latent() -> None:
    for rows in (
        [xid_number(64, time=10.0), job("FAILED")],
        [xid_number(79), job("COMPLETED")],
        [xid_number(79, time=1005.0), *log_points()],
    ):
        finding = judge("B2", *rows, run=RUN)
        assert (finding.outcome, finding.latent, finding.variant) == (FOUND, True, "latent")


def test_application_xids_are_no_hardware_fault() -> None:
    assert keys(judge("B2", xid_number(31), xid_number(43), job("FAILED"), run=RUN)) == ["only_application_xids"]
    again = [xid_number(31, line, pid=line, time=float(line)) for line in (10, 20, 30)]
    finding = judge("B2", again, run=RUN)
    assert (finding.outcome, finding.latent, finding.certainty) == (FOUND, True, Certainty.POSSIBLE)


def test_an_xid_for_information_is_not_blamed_on_the_application() -> None:
    finding = judge("B2", event("xid", 3, role=EventRole.OBSERVATION, plane="kernel", xid=63, time=1500.0), run=RUN)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["only_harmless_xids"])


def test_b2_is_unknown_without_a_kernel_log() -> None:
    assert judge("B2", log_points(), job("FAILED")).outcome is UNKNOWN


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
def test_a_rising_error_counter_is_a_hardware_fault(case: str, interval: float) -> None:
    metric, curve = RISES[case]
    finding = ecc(curve, metric, interval=interval).judge("B2", *points(), FAILED)
    assert (finding.outcome, finding.certainty, finding.latent) == (FOUND, ESTABLISHED, False)
    assert (finding.gpus, finding.nodes, finding.culprit) == ((SICK,), ("n2",), "infrastructure")
    assert finding.since is not None
    assert finding.since <= 4990


def test_a_hardware_fault_names_the_rank_and_the_actions() -> None:
    cluster = ecc(lambda c: c.after(4980, 94), "gpu_xid_last")
    finding = cluster.judge("B2", FAILED, run=cluster.run(n_ranks=16))
    assert finding.ranks == (11,)
    assert [sentence_name(one) for one in finding.actions] == [
        "drain_node",
        "save_report",
        "rerun_elsewhere",
        "nvidia_advice",
    ]


def test_a_hardware_fault_hours_before_the_time_limit_is_no_warning() -> None:
    """The peers wait until the time limit and do no work after the fault."""
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
def test_a_counter_without_effect_on_the_run_is_latent(case: str) -> None:
    curve, metric = LATENT[case]
    finding = ecc(curve, metric).judge("B2", points(60), FAILED)
    assert (finding.outcome, finding.latent, finding.gpus) == (FOUND, True, (SICK,))
    assert ecc(curve, metric).judge("B2", points(60), COMPLETED).latent


def test_a_rising_counter_is_latent_if_the_gpus_kept_working() -> None:
    assert ecc(lambda c: c.after(2000, 2)).judge("B2", FAILED, planes=NO_LOG).latent


def test_clean_counters_rule_out_a_hardware_fault_with_figures() -> None:
    finding = ecc().per_gpu("gpu_health", 0, {SICK: 10}).judge("B2", *points(), FAILED)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["only_health_flag", "no_ecc_errors"])
    assert "No new uncorrectable ECC errors on 16 GPUs" in text_of(finding)
    assert keys(ecc(metric="gpu_xid_last").judge("B2", FAILED)) == ["no_new_xid"]


def test_application_xids_in_the_gauge_are_no_hardware_fault() -> None:
    for number in (13, 31, 43, 45):
        finding = ecc(lambda c, n=number: c.after(4980, n), "gpu_xid_last").judge("B2", *points(), FAILED)  # type: ignore[misc]
        assert (finding.outcome, keys(finding)) == (ABSENT, ["application_gauge"])


def test_a_vanished_gpu_is_a_fault_but_a_vanished_node_is_not() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_memory_used_bytes", 1e10, {SICK: cluster.until(4800, 1e10)})
    finding = cluster.judge("B2", *points(), FAILED)
    assert (finding.outcome, finding.certainty, finding.gpus) == (FOUND, SUPPORTED, (SICK,))
    cluster = Cluster()
    until_4800 = cluster.until(4800, 1e10)
    cluster.per_gpu("gpu_memory_used_bytes", 1e10, {f"n2:{i}": until_4800 for i in range(8)})
    assert cluster.judge("B2", *points(), FAILED).outcome is UNKNOWN
    cluster = Cluster()
    cluster.per_gpu("gpu_memory_used_bytes", 1e10, {SICK: cluster.between(3000, 3030, np.nan, 1e10)})
    assert cluster.judge("B2", *points(), FAILED).outcome is UNKNOWN


def test_errors_of_another_jobs_gpu_are_ignored() -> None:
    cluster = Cluster(gpus=4, job="7")
    cluster.per_gpu("gpu_ecc_uncorrectable_total", 0).per_gpu("gpu_memory_used_bytes", 1e10)
    cluster.put("gpu_ecc_uncorrectable_total", cluster.after(4980, 5), node="n2", gpu="6", job="99")
    cluster.put("gpu_xid_last", cluster.after(4980, 79), node="n2", gpu="6", job="99")
    assert cluster.judge("B2", *points(), FAILED).outcome is ABSENT


def xid(pci: str, node: str | None = None, line: int = 1, **fields: Any) -> Event:
    fields = {"xid": 79, "pci": pci, "time": 4980.0, "text": f"NVRM: Xid (PCI:{pci}): 79", **fields}
    return event("xid", line, role=EventRole.CONFIRMATION, plane="kernel", path="dmesg", node=node, **fields)


def addressed() -> Cluster:
    """Each GPU has its PCI address, the same on both nodes; another job's GPU is at 0000:90:00."""
    cluster = Cluster(gpus=4)
    for name in cluster.gpus:
        node, _, gpu = name.partition(":")
        cluster.put("gpu_ecc_uncorrectable_total", 0, node=node, gpu=gpu, pci=f"00000000:{gpu}A:00.0")
    return cluster


def test_kernel_log_and_metrics_name_the_same_gpu() -> None:
    finding = addressed().judge("B2", xid("0000:3A:00", "n2"), FAILED)
    assert (finding.gpus, finding.certainty) == ((SICK,), ESTABLISHED)
    finding = addressed().judge("B2", xid("0000:3a:00"), FAILED)  # both nodes have a GPU there
    assert finding.gpus == ("0000:3a:00",)
    cluster = addressed()
    cluster.per_gpu("gpu_xid_last", 0, {SICK: cluster.after(4980, 79)})
    assert cluster.judge("B2", xid("0000:3a:00"), FAILED).gpus == (SICK,)
    foreign = addressed().judge("B2", xid("0000:90:00", "n2"), FAILED)
    assert (foreign.outcome, keys(foreign)[0]) == (ABSENT, "foreign_xid")
    assert "only_application_xids" not in keys(foreign)


def test_a_pci_address_unknown_to_the_metrics_is_not_a_second_gpu() -> None:
    """Kernel log and metrics each name one GPU of the node: it is the same one."""
    cluster = ecc(lambda c: c.after(4980, 2))
    finding = cluster.judge("B2", xid("0000:3a:00", "n2"), FAILED)
    assert (finding.gpus, finding.certainty) == ((SICK,), ESTABLISHED)
    both = cluster.judge("B2", xid("0000:3a:00", "n2"), xid("0000:4b:00.0", "n2", 2, xid=95), FAILED)
    assert both.gpus == ("0000:3a:00", SICK)  # the headline names the first Xid only
    assert "other_xids" in [sentence_name(claim) for claim in both.implies]
    twice = Cluster().judge("B2", xid("0000:3a:00", "n2"), xid("00000000:3A:00.0", "n2", 2, xid=95), FAILED)
    assert twice.gpus == ("0000:3a:00",)


def test_a_rank_names_the_gpu_if_nothing_else_does() -> None:
    cluster = ecc()
    cuda = event("cuda_error", 50, name="uncorrectable ECC error", role=EventRole.ROOT, rank=11, time=4980.0)
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
    result = cluster.run(gpus=cluster.gpus, gpus_by="scheduler")
    labeled = ecc(gpus=4, job="7")
    assert labeled.judge("B2", drained("gpu7 lost"), FAILED, run=result).outcome is ABSENT


def test_a_drain_counts_only_during_the_run() -> None:
    """END is 5000. A drain counts during the run and shortly after; not before, not later, not once the node is back."""

    def judged(time: float | None, *more: Record, state: str = "FAILED", **fields: Any) -> Finding:
        rows = [at(drained("Xid 79"), reason_time=time), *more]
        return Cluster().judge("B2", *rows, job(state, nodes=("n1", "n2")), run=Run("7", **{**run_fields, **fields}))

    def at(row: Record, **fields: Any) -> Record:
        known = {**row.fields, **fields}
        return Record("node", row.at, "scheduler", {key: value for key, value in known.items() if value is not None})

    run_fields: dict[str, Any] = {"nodes": ("n1", "n2"), "start": START, "end": END}
    assert [judged(time).outcome for time in (START, 3000.0, END, END + 150)] == [FOUND] * 4
    assert not judged(END + 150).latent
    assert [judged(time).outcome for time in (START - 1, END + 292, END + 1600)] == [UNKNOWN] * 3
    back = Record(
        "node", Position("node.txt", 2), "scheduler", {"name": "n2", "reason": "bad fan", "reason_end": 5020.0}
    )
    assert judged(END + 80, back).outcome is UNKNOWN
    assert judged(END + 10, back).outcome is FOUND  # drained before it was back
    undated = judged(None)
    assert (undated.latent, "drain_undated" in keys(undated)) == (True, True)


@pytest.mark.parametrize("code", ["B2", "F1"])
def test_a_job_without_nodes_has_no_node_evidence(code: str) -> None:
    never = Record("job", Position("sacct.txt", 2), "scheduler", {"id": "7", "state": "DEADLINE", "end": END})
    run = Run("7", end=END)
    down = Record("node", Position("node.txt", 1), "scheduler", {**drained("Xid 79").fields, "state": "down"})
    assert Cluster().judge(code, down, never, run=run).outcome is not FOUND


def idle_gpu_with_errors(job_: str | None = None) -> Cluster:
    """n2:3 held memory like the others and did nothing while its errors rose; only memory shows its owner."""
    cluster = Cluster(start=400, end=5600, nodes=2, gpus=8, job=job_)
    cluster.per_gpu("gpu_memory_used_bytes", cluster.between(1020, 4990, 60 * GIB))
    busy = cluster.between(1020, 4990, 0.8)
    cluster.per_gpu("gpu_sm_active_ratio", busy, {SICK: 0.0})
    return cluster.per_gpu("gpu_ecc_uncorrectable_total", 0, {SICK: cluster.after(3000, 2)})


def test_errors_of_an_idle_gpu_known_only_by_its_memory_are_ignored() -> None:
    run = Run(id="7", start=START, end=END, nodes=("n1", "n2"))
    finding = idle_gpu_with_errors().judge("B2", *points(), FAILED, run=run)
    assert (finding.outcome, "other_jobs_gpu" in keys(finding)) == (ABSENT, True)
    assert SICK in text_of(finding)
    named = idle_gpu_with_errors("7").judge("B2", *points(), FAILED, run=run)
    assert (named.outcome, named.gpus) == (FOUND, (SICK,))


def commands_of(finding: Finding) -> str:
    """The commands of a finding's actions as text, each on its line."""
    return "\n".join(str(act).partition("\n$ ")[2] for act in finding.actions)


def test_a_pci_address_is_no_index() -> None:
    """``nvidia-smi -i 00`` would reset GPU 0."""
    finding = judge("B2", log_points(), xid_number(48, pci="0000:3a:00"), FAILED, run=RUN)
    assert "--gpu-reset -i 0000:3a:00.0" in commands_of(finding)
    named = ecc(lambda c: c.after(4980, 2)).judge("B2", xid("0000:3a:00", "n2", xid=48), FAILED)
    assert named.gpus == (SICK,)
    assert "--gpu-reset -i 3" in commands_of(named)


def test_a_switch_is_no_gpu() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    fields = {"sxid": 20034, "pci": "0000:c5:00.0", "fatal": True, "text": line, "time": 4990.0, "node": "n1"}
    fatal = event("sxid", 5, EventRole.CONFIRMATION, plane="kernel", path="dmesg.txt", **fields)
    finding = judge("B2", log_points(), fatal, FAILED, run=RUN)
    assert finding.headline is not None
    assert str(finding.headline) == "NVSwitch fault: fatal SXid 20034 on the switch at PCI address 0000:c5:00.0"
    assert (finding.gpus, finding.nodes) == ((), ("n1",))
    assert commands_of(finding).endswith("sudo nvidia-smi --gpu-reset")  # of all GPUs: without -i
    with_xid = judge("B2", log_points(), fatal, xid_number(79), FAILED, run=RUN)
    assert with_xid.gpus == ("0000:4e:00",)


@pytest.mark.parametrize(
    ("recovery", "advice", "open_question"),
    [
        ("0x2 (Node Reboot Required)", "reboot the node (the driver asks for it)", "part_unknown_after_reboot"),
        ("0x1 (GPU Reset Required)", "reset the GPU (the driver asks for it)", "part_unknown"),
    ],
)
def test_xid_154_names_its_action(recovery: str, advice: str, open_question: str) -> None:
    detail = f"GPU recovery action changed from 0x0 (None) to {recovery}"
    finding = judge("B2", log_points(), xid_number(154, detail=detail), FAILED, run=RUN)
    assert advice in "\n".join(map(str, finding.actions))
    assert ("--gpu-reset -i 0000:4e:00.0" in commands_of(finding)) == ("reset" in advice)
    assert sentence_name(finding.cannot_decide[0]) == open_question
    other = judge("B2", xid_number(154, 4, detail=detail), xid_number(79), FAILED, run=RUN)
    assert other.headline is not None
    assert "Xid 79" in str(other.headline)
