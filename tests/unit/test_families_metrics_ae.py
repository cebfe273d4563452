"""A1, A2 and E1 on curves built by hand: positives, rivals that must not be found, and blind cases.

``Cluster.judge`` asks every citation again, so each case checks them, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trackside
from tests.unit.grids import END, START, Cluster, event, job, keys, points, worded
from trackside.families import find_family
from trackside.finding import Certainty, Finding, Outcome
from trackside.model import Event, Plane, Position, Record, Role, Run

FOUND, ABSENT, UNKNOWN = Outcome.FOUND, Outcome.ABSENT, Outcome.UNKNOWN
ESTABLISHED, SUPPORTED, POSSIBLE = Certainty.ESTABLISHED, Certainty.SUPPORTED, Certainty.POSSIBLE
GIB = 1 << 30
FAILED, COMPLETED = job("FAILED", exit_code=1), job("COMPLETED", exit_code=0)
NO_LOG: tuple[Plane, ...] = ("scheduler",)


def working(**shape: Any) -> Cluster:
    """A cluster whose GPUs work from start to end."""
    cluster = Cluster(**shape)
    return cluster.per_gpu("gpu_sm_active_ratio", cluster.noisy(0.8)).per_gpu("gpu_memory_used_bytes", 60 * GIB)


def outcome(finding: Finding) -> tuple[Outcome, Certainty | None, bool]:
    return finding.outcome, finding.certainty, finding.latent


@pytest.mark.parametrize("code", ["A1", "A2", "E1"])
def test_no_digits_in_sentences(code: str) -> None:
    family = find_family(code)
    assert family is not None
    assert not any(any(char.isdigit() for char in text) for text in family.says.values())


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


def test_a_crash_within_seconds_is_too_short_for_counters() -> None:
    """One scrape of a counter tells no growth; where it stands does, and so do the gauges."""

    def crashed(launches: float) -> list[str]:
        cluster = Cluster(end=START + 20, interval=30.0)
        cluster.put("trackside_cuda_kernel_launches_total", launches, node="n1", rank="0")
        cluster.per_gpu("gpu_memory_used_bytes", GIB // 2).per_gpu("gpu_memory_total_bytes", 80 * GIB)
        short = job("FAILED", exit_code=1, end=START + 20, elapsed_s=20.0)
        return keys(cluster.judge("A1", raised(time=START + 15), short))

    assert {"launches", "context_only"} <= set(crashed(0))
    assert not {"launches", "context_only"} & set(crashed(1e6))


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


def test_gpus_of_another_job_are_no_work_of_a_run_that_died_at_its_start() -> None:
    """Nothing tells which GPUs of the node the run held: those that worked may be a neighbour's."""
    cluster = Cluster(nodes=1).per_gpu("gpu_sm_active_ratio", 0.8, {"n1:0": 0.0, "n1:1": 0.0})
    assert cluster.judge("A1", raised(), FAILED, run=Run(id="7", start=START, end=END, nodes=("n1",))).outcome is FOUND
    whole = Cluster(nodes=1).per_gpu("gpu_sm_active_ratio", 0.8)
    assert keys(whole.judge("A1", raised(), FAILED, run=Run(id="7", start=START, end=END, nodes=("n1",)))) == ["worked"]


# -- A2


def killed(rank: int = 9, **fields: Any) -> Event:
    fields = {"global_rank": rank, "signal": 9, "time": 4980.0, "first": True, "node": "n2", **fields}
    return event("launcher_failure", 90, role=Role.ROOT, rank=rank, **fields)


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


def oom_kill(scope: str, node: str | None = "n2", **more: str) -> Event:
    fields = {"scope": scope, "pid": 12, "time": 4980.0, "text": "Out of memory: Killed process 12 (python3)", **more}
    return event("oom_kill", 3, role=Role.ROOT, plane="kernel", path="dmesg", node=node, **fields)


def test_kills_that_the_kernel_gives_to_other_jobs_are_not_this_runs() -> None:
    """On a node that several jobs share its count of kills is everybody's; its lines name the cgroups."""
    theirs, mine = (oom_kill("cgroup", cgroup=f"/slurm/uid_0/job_{number}") for number in (99, 7))
    finding = host(cold(), 0.5, 1).judge("A2", killed(), theirs, FAILED)
    assert "oom_counted" not in keys(finding)
    assert [each.key for each in finding.cannot_decide] == ["who_else"]
    assert "oom_counted" in keys(
        host(cold(), 0.5, 2).judge("A2", killed(), theirs, FAILED)
    )  # the other kill is nobody's
    assert "oom_counted" in keys(host(cold(), 0.5, 1).judge("A2", killed(), theirs, mine, FAILED))
    healthy = host(working(), 0.5, 1).judge("A2", *points(), theirs, FAILED)
    assert (healthy.outcome, "none_counted" in keys(healthy)) == (ABSENT, False)


@pytest.mark.parametrize(
    ("scope", "low", "implied"),
    [
        ("host", 0.9, "implies_host_oom"),  # it went too fast for the samples
        ("host", 0.01, "implies_host_oom"),
        ("cgroup", 0.9, "implies_cgroup_oom"),
        ("cgroup", 0.01, "implies_cgroup_oom"),  # beside others that filled the node
        ("slurm", 0.9, "implies_cgroup_oom"),  # Slurm counts kills of either kind
        ("slurm", 0.01, "implies_host_oom"),
    ],
)
def test_whose_memory_ran_out_is_the_kernels_word(scope: str, low: float, implied: str) -> None:
    finding = host(cold(), low, 1).judge("A2", killed(), oom_kill(scope), FAILED)
    assert [each.key for each in finding.implies] == [implied]


def test_the_kernels_word_of_another_node_does_not_count() -> None:
    finding = host(cold(), 0.9, 1).judge("A2", killed(), oom_kill("host", "n1"), FAILED)
    assert [each.key for each in finding.implies] == ["implies_cgroup_oom"]


def test_the_node_of_a_rank_is_looked_at() -> None:
    """The launcher names no node: the rank's GPU tells which one, and the other's memory is none of its."""
    cluster = host(working(), 0.01, 0)
    run = cluster.run(n_ranks=16)
    other = cluster.judge("A2", killed(2, node=None), FAILED, run=run)
    assert (other.nodes, "host_ample" in keys(other)) == (("n1",), True)
    assert "n1" in worded(other)
    own = cluster.judge("A2", killed(node=None), FAILED, run=run)
    assert (own.nodes, "host_short" in keys(own)) == (("n2",), True)


def asked(limit: float) -> Record:
    return job("FAILED", exit_code=1, req_mem_bytes=2 * limit)


def test_the_memory_that_the_job_had_asked_for() -> None:
    def judged(limit: float, *more: Record) -> Finding:
        return host(cold(), 0.5, 0).judge("A2", killed(), asked(limit), *more)

    near = judged(420 * GIB)  # of 900 GiB left at first, 400 went
    assert ([each.key for each in near.implies], "asked_reached" in keys(near)) == (["implies_near_limit"], True)
    assert [each.key for each in near.cannot_decide] == ["who_else"]
    assert "asked_reached" not in keys(judged(800 * GIB))
    step = Record("step", Position("sacct.txt", 3), "scheduler", {"id": "7.0", "max_rss_bytes": 790 * GIB})
    assert "rss_reached" in keys(judged(800 * GIB, step))
    blind = cold().judge("A2", killed(), asked(800 * GIB), step)
    assert [each.key for each in blind.implies] == ["implies_near_limit"]


def test_what_the_jobs_own_cgroup_held_counts_before_what_the_node_lost() -> None:
    """Of 900 GiB that were left on the node at first, 400 went: most of it to another job."""

    def judged(own: float) -> Finding:
        cluster = host(cold(), 0.5, 0)
        cluster.put("host_cgroup_memory_bytes", own, node="n2", job="7", cgroup="job_7", kind="anon")
        return cluster.judge("A2", killed(), asked(420 * GIB))

    assert not {"asked_reached", "cgroup_reached"} & set(keys(judged(40 * GIB)))
    assert [each.key for each in judged(40 * GIB).implies] == ["implies_other_kill"]
    assert "cgroup_reached" in keys(judged(410 * GIB))
    assert [each.key for each in judged(410 * GIB).implies] == ["implies_near_limit"]


def test_host_memory_that_killed_nothing_is_said() -> None:
    finding = host(working(), 0.5, 0).judge("A2", *points(), FAILED)
    assert (finding.outcome, keys(finding)[1:]) == (ABSENT, ["none_counted", "host_ample_all"])
    assert "2 nodes" in worded(finding)
    assert keys(working().judge("A2", *points(), FAILED))[1:] == []


# -- E1


def losses(curve: Any, cluster: Cluster | None = None, **gauges: Any) -> Cluster:
    """Gauges of a training loop, each sampled every 15 s; a step takes as long."""
    cluster = cluster or working()
    steps = np.arange(len(cluster.times), dtype=np.float64)
    for name, values in {"training_loss": curve(cluster), "training_step": steps, **gauges}.items():
        cluster.put(name, values, node="n1")
    return cluster


def learned(cluster: Cluster, to: float = 3.0) -> Any:
    """A loss that falls from 10 with a little noise."""
    share = (cluster.times - START) / (END - START)
    return cluster.noisy(to + (10 - to) * np.exp(-5 * share), 0.01)


SHAPES: dict[str, tuple[Any, str]] = {
    "not finite to the end": (lambda c: np.where(c.times >= 3000, np.inf, learned(c)), "non-finite"),
    "plateau near 11.9": (lambda c: np.where(c.times >= 2400, c.noisy(11.9, 0.0005), learned(c)), "plateau"),
    "risen and stayed": (lambda c: np.where(c.times >= 3000, c.noisy(40.0, 0.2), learned(c)), "diverging"),
    "lost what it had learned": (lambda c: np.where(c.times >= 3000, c.noisy(9.0, 0.08), learned(c)), "diverging"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_loss_that_only_gauges_tell(case: str) -> None:
    curve, variant = SHAPES[case]
    norm = np.where(Cluster().times >= 2400, 0.0001, 1.0) if variant == "plateau" else 1.0
    finding = losses(curve, training_gradient_norm=norm).judge("E1", COMPLETED, planes=NO_LOG)
    assert (finding.outcome, finding.variant, finding.culprit) == (FOUND, variant, "job")
    assert {"completed", "gpus_busy"} <= set(keys(finding))
    assert finding.since is not None
    assert finding.since >= 2300


def test_gpus_that_rested_for_most_of_a_short_run_are_not_said_to_have_worked() -> None:
    curve, _ = SHAPES["not finite to the end"]
    resting = Cluster()
    resting.per_gpu("gpu_sm_active_ratio", np.where(resting.times >= 4500, 0.8, 0.0))
    cluster = losses(curve, resting)
    assert "gpus_busy" not in keys(cluster.judge("E1", COMPLETED, planes=NO_LOG))


def test_dead_to_the_digit_at_its_end() -> None:
    flat = lambda c: np.where(c.times >= 2400, 11.9, learned(c))  # noqa: E731
    dead = losses(flat, training_gradient_norm=np.where(Cluster().times >= 2400, 0.0, 1.0))
    finding = dead.judge("E1", COMPLETED, planes=NO_LOG)
    assert (finding.variant, finding.certainty) == ("plateau", ESTABLISHED)
    assert "dead_plateau" in keys(finding)


@pytest.mark.parametrize(
    "curve",
    [
        learned,
        lambda c: np.where((c.times >= 3000) & (c.times < 3100), 11.9, learned(c)),  # a spike
        lambda c: np.where((c.times >= 3000) & (c.times < 3010), np.inf, learned(c)),  # one overflow
        lambda c: np.where(c.times >= 4000, c.noisy(3.05, 0.001), learned(c)),  # converged: a low plateau
    ],
)
def test_loss_gauges_of_a_model_that_learns(curve: Any) -> None:
    finding = losses(curve, training_gradient_norm=1.0).judge("E1", COMPLETED, planes=NO_LOG)
    assert (finding.outcome, keys(finding)) == (ABSENT, ["fell"])


def test_no_loss_at_all_stays_unknown() -> None:
    assert working().judge("E1", COMPLETED, planes=NO_LOG).outcome is UNKNOWN


def broken(kind: str, at: float, then: float = 2, before: float = 0) -> Cluster:
    """The loss is not finite from 3000 on; a counter of n2:3 takes a value at some time."""
    cluster = losses(SHAPES["not finite to the end"][0])
    return cluster.per_gpu(kind, before, {"n2:3": cluster.after(at, then, before)})


ECC, XID = "gpu_ecc_uncorrectable_total", "gpu_xid_last"


@pytest.mark.parametrize(
    ("cluster", "suspected"),
    [
        (lambda: broken(ECC, 2500), True),
        (lambda: broken(XID, 2500, 94), True),
        (lambda: broken(ECC, 4000), False),  # after the loss had gone
        (lambda: broken(XID, 2500, 31), False),  # an illegal access is no memory error
        (lambda: broken(XID, 2500, 74), False),  # nor is a broken link
        (lambda: broken(ECC, 0, 2, 2), False),  # from before the run
        (lambda: broken(ECC, 9e9), False),
    ],
)
def test_memory_errors_before_the_loss_went_put_the_hardware_in_question(cluster: Any, suspected: bool) -> None:
    finding = cluster().judge("E1", COMPLETED, planes=NO_LOG)
    assert (finding.outcome, finding.variant) == (FOUND, "non-finite")
    assert finding.culprit == ("unknown" if suspected else "job")
    assert ("hardware_or_job" in [each.key for each in finding.cannot_decide]) is suspected
    assert (finding.actions[0].key == "test_gpu") is suspected


def test_clean_counters_say_so_and_unwatched_ones_say_nothing() -> None:
    said = [each.key for each in broken(ECC, 9e9).judge("E1", COMPLETED, planes=NO_LOG).implies]
    assert "no_memory_error" in said
    blind = losses(SHAPES["not finite to the end"][0]).judge("E1", COMPLETED, planes=NO_LOG)
    assert "no_memory_error" not in [each.key for each in blind.implies]


def test_a_memory_error_that_only_the_kernel_reported() -> None:
    fields = {"pci": "0000:3a:00", "time": 2500.0, "node": "n2", "plane": "kernel", "path": "dmesg"}

    def judged(number: int, **more: Any) -> Finding:
        told = event("xid", role=Role.CONFIRMATION, xid=number, text=f"NVRM: Xid {number}", **{**fields, **more})
        return losses(SHAPES["not finite to the end"][0]).judge("E1", told, COMPLETED)

    assert (judged(95).culprit, "xid_before" in keys(judged(95))) == ("unknown", True)
    assert judged(43).culprit == "job"
    assert judged(95, time=4500.0).culprit == "job"
    assert judged(95, time=200.0).culprit == "job"


def test_a_memory_error_of_another_jobs_gpu_is_no_suspicion() -> None:
    cluster = losses(SHAPES["not finite to the end"][0])
    for name in cluster.gpus:
        node, _, gpu = name.partition(":")
        cluster.put(ECC, 0, node=node, gpu=gpu, pci=f"00000000:{gpu}A:00.0")
    fields: dict[str, Any] = {"time": 2500.0, "node": "n2", "plane": "kernel", "path": "dmesg", "xid": 95}
    own = event("xid", role=Role.CONFIRMATION, pci="0000:3a:00", **fields)
    other = event("xid", role=Role.CONFIRMATION, pci="0000:9a:00", **fields)
    assert cluster.judge("E1", own, COMPLETED).culprit == "unknown"
    assert cluster.judge("E1", other, COMPLETED).culprit == "job"


def test_g1_curves_alone_do_not_say_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "m.prom").write_text(
        "".join(
            f'gpu_sm_active_ratio{{node="n1",gpu="0",job="7"}} 0.8 {time}\n'
            f'training_loss{{node="n1",job="7"}} {4 - step / 80:.4f} {time}\n'
            for step, time in enumerate(range(1_772_438_400_000, 1_772_441_400_000, 15_000))
        )
    )
    found = trackside.diagnose(tmp_path)
    assert (found.family, found.primary.certainty) == ("G1", Certainty.POSSIBLE)
    assert [action.key for action in found.primary.actions] == ["tell_end"]
