"""A2 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.families.grids import (
    NO_LOG,
    Cluster,
    idle_contexts,
    later,
    raised_late,
    restarted,
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
    UNKNOWN,
    event,
    job,
    judge,
    keys,
    log_points,
    outcome,
    points,
    root,
    sentence_name,
    text_of,
    unhandled_exception,
)
from trackside.finding import Certainty, Finding, clause
from trackside.model import Event, EventRole, Position, Record, Run


def killed_by(signal: int = 9, rank: int = 1, **fields: Any) -> Event:
    known = {"role": EventRole.ROOT, "global_rank": rank, "signal": signal, "time": 1100.0, "first": True, **fields}
    role = known.pop("role")
    return event("launcher_failure", 90, role, rank=rank, **known)


def test_a_killed_rank_is_a_signal_kill() -> None:
    finding = judge("A2", log_points(), killed_by(), job("FAILED", exit_code=1))
    assert (finding.outcome, finding.signal, finding.ranks, finding.variant) == (
        FOUND,
        ("SIGKILL", 9),
        (1,),
        "training",
    )
    assert finding.certainty is Certainty.ESTABLISHED
    assert judge("A2", killed_by(11)).variant == "startup"


def test_a_kernel_oom_kill_names_the_sender() -> None:
    finding = judge("A2", killed_by(), root("oom_kill", scope="cgroup", plane="kernel"), job("OUT_OF_MEMORY"))
    assert "host_memory_ran_out" in keys(finding)
    assert not finding.cannot_decide
    alone = judge("A2", job("OUT_OF_MEMORY"), planes=("scheduler",))
    assert (alone.outcome, alone.signal) == (FOUND, ("SIGKILL", 9))
    other = root("oom_kill", scope="cgroup", plane="kernel", cgroup="/slurm/uid_1/job_99/step_0")
    assert judge("A2", other, run=Run(id="7")).outcome is ABSENT


def test_a_signal_with_another_cause_is_no_signal_kill() -> None:
    timeout = event("collective_timeout", 40, EventRole.CASCADE, rank=1)
    assert judge("A2", timeout, killed_by(6)).outcome is ABSENT
    notice = root("scheduler_notice", 80, reason="cancelled")
    assert judge("A2", notice, killed_by(), job("CANCELLED")).outcome is ABSENT
    assert judge("A2", killed_by(15, role=EventRole.TEARDOWN)).outcome is ABSENT
    assert judge("A2", unhandled_exception("ValueError", rank=1), killed_by()).outcome is ABSENT
    first = event(
        "launcher_failure", 80, EventRole.CONFIRMATION, global_rank=0, rank=0, exit_code=1, time=1000.0, first=True
    )
    assert judge("A2", first, killed_by(first=None, time=1031.0)).outcome is ABSENT
    assert judge("A2", killed_by(time=1005.0), log_points(line=200), job("COMPLETED")).outcome is ABSENT


def test_an_exit_code_may_stand_for_a_signal() -> None:
    finding = judge("A2", job("FAILED", exit_code=11, signal=0), planes=("scheduler",))
    assert (finding.outcome, finding.certainty) == (FOUND, Certainty.POSSIBLE)
    finding = judge("A2", job("FAILED", exit_code=139, signal=0), planes=("scheduler",))
    assert (finding.certainty, finding.signal) == (Certainty.SUPPORTED, ("SIGSEGV", 11))
    assert judge("A2", job("FAILED", exit_code=1), planes=("scheduler",)).outcome is UNKNOWN


def killed(rank: int = 9, **fields: Any) -> Event:
    fields = {"global_rank": rank, "signal": 9, "time": 4980.0, "first": True, "node": "n2", **fields}
    return event("launcher_failure", 90, role=EventRole.ROOT, rank=rank, **fields)


def host(cluster: Cluster, low: float, kills: int) -> Cluster:
    """Node n2's memory, down to a share of it as the run ends, and its kernel's kills."""
    cluster.per_node("host_memory_total_bytes", 1000 * GIB)
    left = cluster.between(4900, 4990, low * 1000 * GIB, 900 * GIB)
    cluster.per_node("host_memory_available_bytes", 900 * GIB, {"n2": left})
    return cluster.per_node("host_oom_kills_total", 3, {"n2": cluster.after(4980, 3 + kills, 3)})


@pytest.mark.parametrize(
    ("low", "kills", "shown", "implied", "undecided"),
    [
        (0.01, 1, {"kills_counted", "host_short"}, "meanings_host_oom", []),
        (0.1, 1, {"kills_counted"}, "meanings_host_oom", []),
        (0.01, 0, {"host_short"}, "meanings_host_oom", []),
        (0.5, 1, {"kills_counted", "host_ample"}, "meanings_cgroup_oom", []),
        (0.5, 0, {"host_ample"}, "meanings_other_kill", ["sender_unknown_memory_left"]),
    ],
)
def test_host_memory_explains_a_kill(
    low: float, kills: int, shown: set[str], implied: str, undecided: list[str]
) -> None:
    finding = host(idle_contexts(), low, kills).judge("A2", killed(), FAILED)
    assert (finding.outcome, finding.certainty, finding.nodes) == (FOUND, ESTABLISHED, ("n2",))
    assert shown | {"no_launch", "context_only"} <= set(keys(finding))
    assert [sentence_name(claim) for claim in finding.implies] == [implied]
    assert [sentence_name(claim) for claim in finding.cannot_decide] == undecided


def test_a_kill_without_host_metrics_stays_undecided() -> None:
    finding = idle_contexts().judge("A2", killed(), FAILED)
    assert [sentence_name(claim) for claim in finding.cannot_decide] == ["sender_unknown"]
    assert keys(working().judge("A2", killed(), FAILED))[1] == "gpus_had_computed"


def test_a_kill_counted_by_the_kernel_alone_is_found() -> None:
    finding = host(Cluster(), 0.01, 1).judge("A2", FAILED, planes=NO_LOG)
    assert (outcome(finding), finding.signal) == ((FOUND, ESTABLISHED, False), ("SIGKILL", 9))
    assert outcome(host(Cluster(), 0.01, 0).judge("A2", FAILED, planes=NO_LOG))[:2] == (FOUND, POSSIBLE)
    assert host(Cluster(), 0.01, 1).judge("A2", COMPLETED).latent
    assert host(Cluster(), 0.01, 1).judge("A2", points(60), job("TIMEOUT")).latent
    assert host(Cluster(), 0.5, 0).judge("A2", points(), FAILED).outcome is ABSENT
    assert host(Cluster(), 0.01, 1).judge("A2", raised_late(), FAILED).outcome is ABSENT


def test_a_kill_that_stopped_training_early_is_no_warning() -> None:
    cluster = Cluster().per_node("host_memory_total_bytes", 1e12)
    cluster.per_node("host_oom_kills_total", 0, {"n2": cluster.after(2300, 1)})
    finding = cluster.judge("A2", points(), job("TIMEOUT"))
    assert (finding.outcome, finding.latent, finding.nodes) == (FOUND, False, ("n2",))


def oom_kill(scope: str, node: str | None = "n2", **more: str) -> Event:
    fields = {"scope": scope, "pid": 12, "time": 4980.0, "text": "Out of memory: Killed process 12 (python3)", **more}
    return event("oom_kill", 3, role=EventRole.ROOT, plane="kernel", path="dmesg", node=node, **fields)


def test_kills_in_cgroups_of_other_jobs_are_not_counted() -> None:
    """On a shared node the kill counter covers all jobs; the kernel lines name the cgroups."""
    other, own = (oom_kill("cgroup", cgroup=f"/slurm/uid_0/job_{number}") for number in (99, 7))
    finding = host(idle_contexts(), 0.5, 1).judge("A2", killed(), other, FAILED)
    assert "kills_counted" not in keys(finding)
    assert [sentence_name(claim) for claim in finding.cannot_decide] == ["sender_unknown_memory_left"]
    assert "kills_counted" in keys(
        host(idle_contexts(), 0.5, 2).judge("A2", killed(), other, FAILED)
    )  # the second kill is in no named cgroup
    assert "kills_counted" in keys(host(idle_contexts(), 0.5, 1).judge("A2", killed(), other, own, FAILED))
    healthy = host(working(), 0.5, 1).judge("A2", *points(), other, FAILED)
    assert (healthy.outcome, "no_kill_counted" in keys(healthy)) == (ABSENT, False)


@pytest.mark.parametrize(
    ("scope", "low", "implied"),
    [
        ("host", 0.9, "meanings_host_oom"),  # too fast for the samples
        ("host", 0.01, "meanings_host_oom"),
        ("cgroup", 0.9, "meanings_cgroup_oom"),
        ("cgroup", 0.01, "meanings_cgroup_oom"),  # while other jobs filled the node
        ("slurm", 0.9, "meanings_cgroup_oom"),  # Slurm counts kills of either kind
        ("slurm", 0.01, "meanings_host_oom"),
    ],
)
def test_the_kernels_scope_of_a_kill_decides_whose_memory_ran_out(scope: str, low: float, implied: str) -> None:
    finding = host(idle_contexts(), low, 1).judge("A2", killed(), oom_kill(scope), FAILED)
    assert [sentence_name(claim) for claim in finding.implies] == [implied]


def test_the_kernels_scope_on_another_node_does_not_count() -> None:
    finding = host(idle_contexts(), 0.9, 1).judge("A2", killed(), oom_kill("host", "n1"), FAILED)
    assert [sentence_name(claim) for claim in finding.implies] == ["meanings_cgroup_oom"]


def test_host_memory_is_read_on_the_node_of_the_killed_rank() -> None:
    """The launcher names no node: the rank's GPU gives it, and memory of other nodes does not count."""
    cluster = host(working(), 0.01, 0)
    run = cluster.run(n_ranks=16)
    other = cluster.judge("A2", killed(2, node=None), FAILED, run=run)
    assert (other.nodes, "host_ample" in keys(other)) == (("n1",), True)
    assert "n1" in text_of(other)
    own = cluster.judge("A2", killed(node=None), FAILED, run=run)
    assert (own.nodes, "host_short" in keys(own)) == (("n2",), True)


def with_memory_request(limit: float) -> Record:
    return job("FAILED", exit_code=1, req_mem_bytes=2 * limit)


def test_memory_use_near_the_request_explains_a_kill() -> None:
    def judged(limit: float, *more: Record) -> Finding:
        return host(idle_contexts(), 0.5, 0).judge("A2", killed(), with_memory_request(limit), *more)

    near = judged(420 * GIB)  # available memory fell from 900 to 500 GiB
    assert ([sentence_name(claim) for claim in near.implies], "growth_near_limit" in keys(near)) == (
        ["meanings_near_limit"],
        True,
    )
    assert [sentence_name(claim) for claim in near.cannot_decide] == ["sender_unknown_memory_left"]
    assert "growth_near_limit" not in keys(judged(800 * GIB))
    step = Record("step", Position("sacct.txt", 3), "scheduler", {"id": "7.0", "max_rss_bytes": 790 * GIB})
    assert "rss_near_limit" in keys(judged(800 * GIB, step))
    blind = idle_contexts().judge("A2", killed(), with_memory_request(800 * GIB), step)
    assert [sentence_name(claim) for claim in blind.implies] == ["meanings_near_limit"]


def test_the_jobs_cgroup_memory_outweighs_the_nodes_memory() -> None:
    """Available memory on the node fell by 400 GiB, mostly because of another job."""

    def judged(own: float) -> Finding:
        cluster = host(idle_contexts(), 0.5, 0)
        cluster.put("host_cgroup_memory_bytes", own, node="n2", job="7", cgroup="job_7", kind="anon")
        return cluster.judge("A2", killed(), with_memory_request(420 * GIB))

    assert not {"growth_near_limit", "cgroup_near_limit"} & set(keys(judged(40 * GIB)))
    assert [sentence_name(claim) for claim in judged(40 * GIB).implies] == ["meanings_other_kill"]
    assert "cgroup_near_limit" in keys(judged(410 * GIB))
    assert [sentence_name(claim) for claim in judged(410 * GIB).implies] == ["meanings_near_limit"]


def test_ample_host_memory_is_reported_if_nothing_was_killed() -> None:
    finding = host(working(), 0.5, 0).judge("A2", *points(), FAILED)
    assert (finding.outcome, keys(finding)[1:]) == (ABSENT, ["no_kill_counted", "host_ample_all"])
    assert "2 nodes" in text_of(finding)
    assert keys(working().judge("A2", *points(), FAILED))[1:] == []


def crashed(**fields: Any) -> Event:
    fields = {"source": "torchrun", "task": "2", "signal": 11, "pid": 41, "time": 2000.0, **fields}
    return event("process_exit", 20, role=EventRole.ROOT, **fields)


def test_a_crash_that_a_restart_survived_is_a_warning() -> None:
    cluster = Cluster(nodes=1).per_gpu("gpu_sm_active_ratio", 0.8)
    finding = cluster.judge("A2", crashed(), restarted(), later(), COMPLETED)
    assert (finding.outcome, finding.latent, finding.ranks) == (FOUND, True, (2,))
    assert keys(finding) == ["died_on", "workers_restarted", "training_continued"]
    assert cluster.judge("A2", crashed(), later(), COMPLETED).outcome is ABSENT  # nothing restarted it
    several = Cluster().per_gpu("gpu_sm_active_ratio", 0.8).judge("A2", crashed(), restarted(), later(), COMPLETED)
    assert several.ranks == ()  # local rank 2 of which node is unknown


def test_a_dead_data_loader_worker_is_named_with_its_rank() -> None:
    died = event("dataloader_death", 50, role=EventRole.ROOT, rank=9, signal=9, pid=77, time=4900.0)
    cluster = Cluster().per_gpu("gpu_sm_active_ratio", 0.8)
    finding = cluster.judge("A2", died, FAILED, run=cluster.run(n_ranks=16))
    assert "SIGKILL killed a data-loader worker of rank 9" in text_of(finding)
    assert finding.nodes == ("n2",)


def test_all_nodes_are_checked_if_the_node_of_a_kill_is_unknown() -> None:
    cluster = Cluster().per_node("host_memory_total_bytes", 1000 << 30)
    cluster.per_node("host_memory_available_bytes", 900 << 30)
    cluster.per_node("host_oom_kills_total", 0)
    died = event("launcher_failure", 90, role=EventRole.ROOT, signal=9, first=True, time=4980.0)
    assert "host_ample_all" in keys(cluster.judge("A2", died, FAILED))
    on_n2 = event("launcher_failure", 90, role=EventRole.ROOT, signal=9, first=True, time=4980.0, node="n2")
    text = text_of(cluster.judge("A2", on_n2, FAILED))
    assert "host memory on node n2" in text


def test_kills_that_only_slurm_counts_leave_open_whose_memory_ran_out() -> None:
    text = "slurmstepd: error: Detected 12 oom-kill event(s) in step 7.batch cgroup."
    line = event("oom_kill", 90, role=EventRole.ROOT, scope="slurm", step="7.batch", count=12, text=text)
    finding = judge("A2", line)
    assert finding.headline is not None
    assert clause(finding.headline) == "out of host memory: Slurm counted 12 OOM kills among the job's processes"
    assert [sentence_name(claim) for claim in finding.cannot_decide] == ["limit_or_node"]


@pytest.mark.parametrize(
    ("fields", "text", "part"),
    [
        ({"scope": "ray"}, "1 Workers killed due to memory pressure (OOM)", "Ray's memory monitor killed a worker"),
        ({"scope": "kubelet"}, "The node was low on resource: memory.", "Kubernetes evicted the job's pod"),
        ({"scope": "slurm"}, "slurmstepd: error: Exceeded job memory limit", "Slurm killed a step of the job"),
        (
            {"scope": "slurm", "rss_bytes": 3 << 30, "limit_bytes": 2 << 30},
            "slurmstepd: error: StepId=7.0 exceeded memory limit (3221225472 > 2147483648), being killed",
            "which used 3 GiB; its limit was 2 GiB",
        ),
        ({"scope": "host"}, "Out of memory: Killed process 1 (python)", "the kernel killed a process"),
    ],
)
def test_who_killed_for_lack_of_memory_is_named(fields: dict[str, Any], text: str, part: str) -> None:
    finding = judge("A2", root("oom_kill", text=text, **fields))
    assert finding.headline is not None
    assert part in clause(finding.headline)
    assert not finding.cannot_decide


def test_ray_s_list_of_usual_causes_is_not_quoted_as_the_cause() -> None:
    text = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: 4711 "
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. "
        "End of file. Some common causes include: (1) the process was killed by the OOM killer due to high memory "
        "usage, (2) ray stop --force was called, or (3) the worker is crashed unexpectedly due to SIGSEGV or another."
    )
    shown = text_of(judge("A2", root("process_exit", 90, source="ray", text=text)))
    assert "Ray's worker with process id 4711 died without a traceback" in shown
    assert "SIGSEGV" not in shown


def test_a_stack_that_the_log_has_is_not_asked_for() -> None:
    died = event("process_exit", 90, role=EventRole.ROOT, source="bash", signal=11)
    fatal = root("python_fatal", 80, what="Segmentation fault", frame="/home/u/pretrain.py:96 in main")
    assert sentence_name(judge("A2", died).actions[0]) == "trace_native_code"
    assert sentence_name(judge("A2", died, fatal).actions[0]) == "check_extension"


def test_a_written_core_is_read_first() -> None:
    finding = judge("A2", event("process_exit", 90, role=EventRole.ROOT, source="srun", signal=11, task=7, core=True))
    assert sentence_name(finding.actions[0]) == "read_core"
