"""The agent's Slurm sources on a real cluster: owners of processes, and the history of jobs from the controller.

The history from a store that received only the agent's lines is compared with accounting.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import trackside
from tests.agent.readings import assert_conforms, open_source
from tests.agent.test_slurm_history import SentLine, store_of
from tests.slurm.test_slurm_live import TOOLS, Cluster, cluster, states
from trackside.agent.jobs.processes import ProcessMap
from trackside.agent.node import LocalNode
from trackside.agent.owners import Owner
from trackside.agent.source import Reading
from trackside.agent.sources import controller as controller_source
from trackside.agent.sources import slurm_node as slurm_node_source
from trackside.agent.sources.controller import ControllerOptions

__all__ = ["cluster"]
pytestmark = [pytest.mark.service, pytest.mark.corpus]
RANKS = """srun -n2 -N2 bash -c '
for local in 0 1; do
  RANK=$((SLURM_PROCID * 2 + local)) LOCAL_RANK=$local WORLD_SIZE=4 sleep 20 &
done
wait; exit 3'"""
"""Two launchers with two ranks each."""


def wait_until(condition: Callable[[], bool], description: Callable[[], object], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, description()
        time.sleep(0.5)


def nodes(cluster: Cluster) -> list[str]:
    return sorted(set(cluster.run("sinfo", "-h", "-N", "-o", "%N").split()))  # a line for each partition


def test_processes_and_gpus_have_their_owners(cluster: Cluster) -> None:
    names = nodes(cluster)[:2]
    maps = [ProcessMap(LocalNode(name)) for name in names]
    job = cluster.submit(RANKS, "-N2", f"-w{','.join(names)}", "--gpus-per-node=2", "-J", "ranks")
    array = cluster.submit("exec sleep 20", "--array=5-6", f"-w{names[0]}", "--gpus-per-node=3")

    def owners_on(node_index: int, job_id: str) -> dict[int, Owner]:
        maps[node_index].renew()
        return {process.pid: process.owner for process in maps[node_index].processes() if process.owner.job == job_id}

    def ranks(node_index: int) -> set[int]:
        return {owner.rank for owner in owners_on(node_index, job).values() if owner.rank is not None}

    wait_until(lambda: ranks(0) | ranks(1) == {0, 1, 2, 3}, lambda: [owners_on(0, job), owners_on(1, job)])
    assert [ranks(0), ranks(1)] == [{0, 1}, {2, 3}]  # the nodes share a kernel, but each sees only its own processes
    by_rank = {owner.rank: owner for owner in owners_on(1, job).values()}
    assert by_rank[3] == Owner(job, "0", 1, 3, 1, 4, "root")
    assert {owner.step for owner in owners_on(0, job).values()} >= {"0", "batch"}
    wait_until(lambda: bool(owners_on(0, f"{array}_5") and owners_on(0, f"{array}_6")), lambda: maps[0].processes())
    assert not owners_on(0, array)
    owners = [maps[0].of_gpu(str(gpu)) for gpu in range(8)]
    assert sorted(str(owner.job) for owner in owners if owner is not None) == sorted(
        [job] * 2 + [f"{array}_5"] * 3 + [f"{array}_6"] * 3
    )
    cluster.run("scancel", job, array)
    wait_until(lambda: not owners_on(0, job) and not owners_on(0, f"{array}_5"), lambda: maps[0].processes())


class ControllerWatch:
    """The controller source, read repeatedly, and what it sent."""

    def __init__(self, cluster: Cluster) -> None:
        self._collector = open_source(
            controller_source.SOURCE,
            LocalNode("ctl"),
            options=ControllerOptions(conf=cluster.env["SLURM_CONF"], statistics_s=5.0),
        )
        self.sent: list[SentLine] = []
        self.sentences: list[str] = []
        self.metrics: set[str] = set()

    def read(self) -> Reading:
        reading = Reading()
        self._collector.collect(reading)
        assert_conforms(reading, controller_source.SOURCE)
        assert reading.warnings == []
        self.sent += [(line.time_ns, dict(line.labels), line.text) for line in reading.lines]
        self.sentences += [line.text.partition("\t")[0] for line in reading.lines if "\t" in line.text]
        self.metrics |= {sample.metric for sample in reading.samples}
        return reading

    def history_of(self, job: str) -> list[str]:
        """The sentences and states that were sent about a job."""
        texts = [text for _, labels, text in self.sent if labels.get("slurm_job_id") == job]
        keys = r"(?:Job)?State=\S*|\b(?:Submit|Start|End)(?:Time)?=\S*|Restarts=\S*|JobID=\S*"
        return [" ".join([text.partition("\t")[0], *re.findall(keys, text)]) for text in texts]

    def wait_until(self, sentence: str, seconds: float = 300.0) -> None:
        def is_reported() -> bool:
            self.read()
            return any(text.startswith(sentence) for text in self.sentences)

        wait_until(is_reported, lambda: (sentence, self.sentences), seconds)


def test_the_history_of_jobs_comes_from_the_store_alone(cluster: Cluster, tmp_path: Path) -> None:
    watch = ControllerWatch(cluster)
    watch.read()
    *working_nodes, drained_node, lost_node = nodes(cluster)
    on_first_node = f"-w{working_nodes[0]}"
    failed = cluster.submit(
        "srun -N2 sleep 4; exit 3",
        "-N2",
        f"-w{','.join(working_nodes[:2])}",
        "--gpus-per-node=2",
        "-J",
        "fails",
        "--time=30",
    )
    array = cluster.submit("sleep 2; exit $SLURM_ARRAY_TASK_ID", "--array=0-1", "-J", "tasks", on_first_node)
    requeued = cluster.submit("sleep 8", "-J", "again", on_first_node)
    paused = cluster.submit("sleep 8", "-J", "paused", on_first_node)
    dependent = cluster.submit("true", "-J", "after", "-d", f"afterok:{paused}", on_first_node)
    held_back = cluster.submit("true", "-J", "later", "--begin=now+1hour", "--time=10")
    out_of_memory = cluster.submit("head -c 300M /dev/zero | tail", "-J", "memory", "--mem=50", on_first_node)
    on_lost_node = cluster.submit("sleep 300", "-J", "gone", "--no-requeue", f"-w{lost_node}")
    killed = cluster.submit("kill -9 $$", "-J", "odd JobState=DONE\nx|y\tz", on_first_node)
    cancelled = cluster.submit("sleep 300", "-J", "cancelled", on_first_node)
    for job in (requeued, paused, cancelled, on_lost_node):
        watch.wait_until(f"job {job} started on")
    cluster.run("scontrol", "requeue", requeued)
    cluster.run("scontrol", "suspend", paused)
    cluster.run("scontrol", "update", f"jobid={held_back}", "timelimit=20", "nice=50")
    cluster.run("scontrol", "update", f"nodename={drained_node}", "state=drain", "reason=bad fan")
    cluster.run("scancel", cancelled)
    cluster.run(str(TOOLS / "slurm-node"), str(cluster.folder), "kill", lost_node)
    try:
        watch.wait_until(f"job {paused} suspended")
        watch.wait_until(f"job {held_back} updated: TimeLimit 00:10:00 -> 00:20:00, Nice 0 -> 50")
        watch.wait_until(f"job {requeued} requeued")
        watch.wait_until(f"node {drained_node} is ")
        cluster.run("scontrol", "resume", paused)
        watch.wait_until(f"job {paused} resumed")
        watch.wait_until(f"job {on_lost_node} ended NODE_FAIL")
        watch.wait_until(f"node {lost_node} is DOWN")
        for job in (
            failed,
            requeued,
            paused,
            dependent,
            out_of_memory,
            cancelled,
            on_lost_node,
            f"{array}_0",
            f"{array}_1",
        ):
            watch.wait_until(f"job {job} ended ")
            watch.wait_until(f"job {job} accounted for as ")
        watch.wait_until(f"job {killed} ended FAILED, exit code 0, signal 9")
    finally:
        cluster.run("scontrol", "update", f"nodename={drained_node}", "state=resume")
        cluster.run(str(TOOLS / "slurm-node"), str(cluster.folder), "start", lost_node)
    watch.wait_until(f"node {drained_node} is ")
    assert set(controller_source.SOURCE.metrics) == watch.metrics
    store = store_of(tmp_path / "store", watch.sent)
    for job in (
        failed,
        f"{array}_0",
        f"{array}_1",
        requeued,
        paused,
        dependent,
        out_of_memory,
        cancelled,
        on_lost_node,
    ):
        run = trackside.diagnose(store=store, job=job).run
        state, attempts, code = states(cluster.until(job, lambda answer: answer.stage == "settled"))[job]
        assert (run.disposition, len(run.attempts), run.exit_code) == (state, attempts, code), "\n".join(
            watch.history_of(job)
        )
    run = trackside.diagnose(store=store, job=failed).run
    assert (run.disposition, run.exit_code, len(run.nodes), run.n_gpus, run.time_limit_s) == ("FAILED", 3, 2, 4, 1800.0)
    assert trackside.diagnose(store=store, job=on_lost_node).primary.family == "F1"  # type: ignore[union-attr]
    assert trackside.diagnose(store=store, job=cancelled).primary.family == "H1"  # type: ignore[union-attr]
    assert trackside.diagnose(store=store, job=held_back).run.time_limit_s == 1200.0
    assert trackside.diagnose(store=store, job=killed).run.signal == 9


def test_requests_to_the_controller_are_few(cluster: Cluster) -> None:
    watch = ControllerWatch(cluster)
    watch.read()

    def requests() -> dict[str, int]:
        text = cluster.run("sdiag")
        section = text.partition("by message type")[2].partition("by user")[0]
        rows = (line.split() for line in section.splitlines() if "count:" in line)
        return {row[0]: int(line.partition("count:")[2].split()[0]) for row in rows for line in [" ".join(row)]}

    before = requests()
    for _ in range(5):
        watch.read()
    after = requests()
    expected = {"REQUEST_JOB_INFO": 5, "REQUEST_NODE_INFO": 10, "REQUEST_PARTITION_INFO": 5}
    assert {name: after[name] - before.get(name, 0) for name in expected} == expected
    single = "REQUEST_JOB_INFO_SINGLE"
    assert after.get(single) == before.get(single)


def test_the_log_of_slurmd_is_read(cluster: Cluster) -> None:
    name = nodes(cluster)[0]
    collector = open_source(
        slurm_node_source.SOURCE,
        LocalNode(name),
        options=slurm_node_source.SlurmNodeOptions(conf=cluster.env["SLURM_CONF"]),
    )
    job = cluster.submit("true", f"-w{name}")
    texts: list[str] = []

    def is_logged() -> bool:
        reading = Reading()
        collector.collect(reading)
        assert [sample.value for sample in reading.samples] == [1.0]
        texts.extend(line.text for line in reading.lines)
        return any(f"[{job}.batch] done with job" in text for text in texts)

    wait_until(is_logged, lambda: texts[-10:])
    collector.close()
