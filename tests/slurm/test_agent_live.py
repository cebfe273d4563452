"""The agent's sources of Slurm on a real one: whose processes are, and a job's life from what the controller tells.

What a store that only took the agent's lines says of a job is held against what accounting says of it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import trackside
from tests.agent.readings import conform, opened
from tests.agent.test_slurm_history import Sent, received
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


def until(true: Callable[[], bool], what: Callable[[], object], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.5)


def nodes(cluster: Cluster) -> list[str]:
    return sorted(set(cluster.run("sinfo", "-h", "-N", "-o", "%N").split()))  # a line for each partition


def test_whose_processes_are(cluster: Cluster) -> None:
    names = nodes(cluster)[:2]
    maps = [ProcessMap(LocalNode(name)) for name in names]
    job = cluster.submit(RANKS, "-N2", f"-w{','.join(names)}", "--gpus-per-node=2", "-J", "ranks")
    array = cluster.submit("exec sleep 20", "--array=5-6", f"-w{names[0]}", "--gpus-per-node=3")

    def found(index: int, of: str) -> dict[int, Owner]:
        maps[index].renew()
        return {process.pid: process.owner for process in maps[index].processes() if process.owner.job == of}

    def ranks(index: int) -> set[int]:
        return {owner.rank for owner in found(index, job).values() if owner.rank is not None}

    until(lambda: ranks(0) | ranks(1) == {0, 1, 2, 3}, lambda: [found(0, job), found(1, job)])
    assert [ranks(0), ranks(1)] == [{0, 1}, {2, 3}]  # of one kernel, each node sees its own
    by_rank = {owner.rank: owner for owner in found(1, job).values()}
    assert by_rank[3] == Owner(job, "0", 1, 3, 1, 4, "root")
    assert {owner.step for owner in found(0, job).values()} >= {"0", "batch"}
    until(lambda: bool(found(0, f"{array}_5") and found(0, f"{array}_6")), lambda: maps[0].processes())
    assert not found(0, array)
    owners = [maps[0].of_gpu(str(gpu)) for gpu in range(8)]
    assert sorted(str(owner.job) for owner in owners if owner is not None) == sorted(
        [job] * 2 + [f"{array}_5"] * 3 + [f"{array}_6"] * 3
    )
    cluster.run("scancel", job, array)
    until(lambda: not found(0, job) and not found(0, f"{array}_5"), lambda: maps[0].processes())


class Watched:
    """The controller source, read again and again; what it sent."""

    def __init__(self, cluster: Cluster) -> None:
        self._collector = opened(
            controller_source.SOURCE,
            LocalNode("ctl"),
            options=ControllerOptions(conf=cluster.env["SLURM_CONF"], statistics_s=5.0),
        )
        self.sent: list[Sent] = []
        self.said: list[str] = []
        self.metrics: set[str] = set()

    def read(self) -> Reading:
        reading = Reading()
        self._collector.collect(reading)
        conform(reading, controller_source.SOURCE)
        assert reading.warnings == []
        self.sent += [(line.time_ns, dict(line.labels), line.text) for line in reading.lines]
        self.said += [line.text.partition("\t")[0] for line in reading.lines if "\t" in line.text]
        self.metrics |= {sample.metric for sample in reading.samples}
        return reading

    def told(self, job: str) -> list[str]:
        """What was sent of a job."""
        mine = [text for _, labels, text in self.sent if labels.get("slurm_job_id") == job]
        keys = r"(?:Job)?State=\S*|\b(?:Submit|Start|End)(?:Time)?=\S*|Restarts=\S*|JobID=\S*"
        return [" ".join([text.partition("\t")[0], *re.findall(keys, text)]) for text in mine]

    def until(self, sentence: str, seconds: float = 300.0) -> None:
        def said() -> bool:
            self.read()
            return any(each.startswith(sentence) for each in self.said)

        until(said, lambda: (sentence, self.said), seconds)


def test_a_jobs_life_from_the_store_alone(cluster: Cluster, tmp_path: Path) -> None:
    watched = Watched(cluster)
    watched.read()
    *others, drained, lost = nodes(cluster)
    here = f"-w{others[0]}"
    fails = cluster.submit(
        "srun -N2 sleep 4; exit 3", "-N2", f"-w{','.join(others[:2])}", "--gpus-per-node=2", "-J", "fails", "--time=30"
    )
    array = cluster.submit("sleep 2; exit $SLURM_ARRAY_TASK_ID", "--array=0-1", "-J", "tasks", here)
    again = cluster.submit("sleep 8", "-J", "again", here)
    paused = cluster.submit("sleep 8", "-J", "paused", here)
    after = cluster.submit("true", "-J", "after", "-d", f"afterok:{paused}", here)
    later = cluster.submit("true", "-J", "later", "--begin=now+1hour", "--time=10")
    memory = cluster.submit("head -c 300M /dev/zero | tail", "-J", "memory", "--mem=50", here)
    gone = cluster.submit("sleep 300", "-J", "gone", "--no-requeue", f"-w{lost}")
    killed = cluster.submit("kill -9 $$", "-J", "odd JobState=DONE\nx|y\tz", here)
    ended = cluster.submit("sleep 300", "-J", "cancelled", here)
    for job in (again, paused, ended, gone):
        watched.until(f"job {job} started on")
    cluster.run("scontrol", "requeue", again)
    cluster.run("scontrol", "suspend", paused)
    cluster.run("scontrol", "update", f"jobid={later}", "timelimit=20", "nice=50")
    cluster.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=bad fan")
    cluster.run("scancel", ended)
    cluster.run(str(TOOLS / "slurm-node"), str(cluster.folder), "kill", lost)
    try:
        watched.until(f"job {paused} suspended")
        watched.until(f"job {later} updated: TimeLimit 00:10:00 -> 00:20:00, Nice 0 -> 50")
        watched.until(f"job {again} requeued")
        watched.until(f"node {drained} is ")
        cluster.run("scontrol", "resume", paused)
        watched.until(f"job {paused} resumed")
        watched.until(f"job {gone} ended NODE_FAIL")
        watched.until(f"node {lost} is DOWN")
        for job in (fails, again, paused, after, memory, ended, gone, f"{array}_0", f"{array}_1"):
            watched.until(f"job {job} ended ")
            watched.until(f"job {job} accounted for as ")
        watched.until(f"job {killed} ended FAILED, exit code 0, signal 9")
    finally:
        cluster.run("scontrol", "update", f"nodename={drained}", "state=resume")
        cluster.run(str(TOOLS / "slurm-node"), str(cluster.folder), "start", lost)
    watched.until(f"node {drained} is ")
    assert set(controller_source.SOURCE.metrics) == watched.metrics
    store = received(tmp_path / "store", watched.sent)
    for job in (fails, f"{array}_0", f"{array}_1", again, paused, after, memory, ended, gone):
        run = trackside.diagnose(store=store, job=job).run
        state, attempts, code = states(cluster.until(job, lambda answer: answer.stage == "settled"))[job]
        assert (run.disposition, len(run.attempts), run.exit_code) == (state, attempts, code), "\n".join(
            watched.told(job)
        )
    run = trackside.diagnose(store=store, job=fails).run
    assert (run.disposition, run.exit_code, len(run.nodes), run.n_gpus, run.time_limit_s) == ("FAILED", 3, 2, 4, 1800.0)
    assert trackside.diagnose(store=store, job=gone).primary.family == "F1"  # type: ignore[union-attr]
    assert trackside.diagnose(store=store, job=ended).primary.family == "H1"  # type: ignore[union-attr]
    assert trackside.diagnose(store=store, job=later).run.time_limit_s == 1200.0
    assert trackside.diagnose(store=store, job=killed).run.signal == 9


def test_what_it_costs_the_controller(cluster: Cluster) -> None:
    watched = Watched(cluster)
    watched.read()

    def requests() -> dict[str, int]:
        text = cluster.run("sdiag")
        section = text.partition("by message type")[2].partition("by user")[0]
        rows = (line.split() for line in section.splitlines() if "count:" in line)
        return {row[0]: int(line.partition("count:")[2].split()[0]) for row in rows for line in [" ".join(row)]}

    before = requests()
    for _ in range(5):
        watched.read()
    after = requests()
    asked = {"REQUEST_JOB_INFO": 5, "REQUEST_NODE_INFO": 10, "REQUEST_PARTITION_INFO": 5}
    assert {name: after[name] - before.get(name, 0) for name in asked} == asked
    single = "REQUEST_JOB_INFO_SINGLE"
    assert after.get(single) == before.get(single)


def test_the_log_of_a_node(cluster: Cluster) -> None:
    name = nodes(cluster)[0]
    collector = opened(
        slurm_node_source.SOURCE, LocalNode(name), options=slurm_node_source.Options(conf=cluster.env["SLURM_CONF"])
    )
    job = cluster.submit("true", f"-w{name}")
    texts: list[str] = []

    def came() -> bool:
        reading = Reading()
        collector.collect(reading)
        assert [sample.value for sample in reading.samples] == [1.0]
        texts.extend(line.text for line in reading.lines)
        return any(f"[{job}.batch] done with job" in text for text in texts)

    until(came, lambda: texts[-10:])
    collector.close()
