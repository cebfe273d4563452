"""Live queries of a real Slurm: by its commands, through slurmrestd, and with each of its daemons killed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.services import missing, wait_until
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink
from trackside.runs.attempts import attempts_of, final_attempt
from trackside.runs.jobs import collect_jobs
from trackside.site.slurm import SlurmAnswer, query_slurm
from trackside.site.slurm_options import SlurmOptions

pytestmark = [pytest.mark.service, pytest.mark.corpus]
TOOLS = Path(__file__).resolve().parents[3] / "shared" / "slurm"
"""``slurm-up DIR`` starts a cluster of four nodes with eight GPUs each; ``slurm-down DIR --purge`` stops it."""
NOBODY = 65534


class Cluster:
    """A Slurm cluster on this machine for the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs = folder, folder / "jobs"
        # Each pytest worker has a cluster; on one machine their nodes need different names.
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        prefix = "t" + "abcdefghij"[int(worker) % 10]
        self.env = {**os.environ, "SLURM_CONF": str(folder / "etc/slurm.conf"), "SLURM_LAB_PREFIX": prefix}
        self.env["PATH"] += ":/usr/sbin"

    def run(self, *arguments: str) -> str:
        result = subprocess.run(
            arguments, env=self.env, cwd=self.jobs, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 0, f"{arguments}: {result.stderr or result.stdout}"
        return result.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        return self.run("sbatch", "--parsable", *options, "--wrap", script)

    def ask(self, job: str, **options: object) -> SlurmAnswer:
        return query_slurm(SlurmOptions(**options), job, self.env)  # type: ignore[arg-type]

    def until(self, job: str, condition: Callable[[SlurmAnswer], bool]) -> SlurmAnswer:
        """The first answer that satisfies the condition; Slurm's records appear with some seconds of delay."""
        answer = self.ask(job)
        deadline = time.monotonic() + 60
        while not condition(answer):
            assert time.monotonic() < deadline, (answer.stage, answer.rows)
            time.sleep(0.5)
            answer = self.ask(job)
        return answer

    def kill(self, daemon: str) -> None:
        os.kill(int((self.folder / "run" / f"{daemon}.pid").read_text()), signal.SIGKILL)

    def up(self) -> None:
        result = subprocess.run(
            [TOOLS / "slurm-up", self.folder], env=self.env, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 0, result.stderr


def machine_lock() -> IO[str]:
    """A lock that one process of the machine has until it closes the file."""
    lock = open(Path(tempfile.gettempdir()) / "trackside-tests-slurm.lock", "w")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
        if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            missing(name, "slurm-wlm")
    if os.geteuid() != 0:
        pytest.skip("only root can start Slurm")
    folder = Path(
        tempfile.mkdtemp(prefix="ts-slurm-", dir="/tmp")
    )  # the path must be short because it contains sockets
    folder.chmod(0o755)
    test_cluster = Cluster(folder)
    lock = machine_lock()  # one worker at a time has a cluster: ports and cgroups are those of the machine
    try:
        test_cluster.up()
        yield test_cluster
    finally:
        subprocess.run(
            [TOOLS / "slurm-down", folder, "--purge"],
            env=test_cluster.env,
            capture_output=True,
            timeout=120,
            check=False,
        )
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()


def states(answer: SlurmAnswer) -> dict[str, tuple[str | None, int, int | None]]:
    """Job -> state, number of attempts and exit code, from the readers."""
    sink = CollectingSink()
    for source in answer.sources:
        assert read_source(source, sink).status == "read", source.path
    attempts_by_job = {job.id: attempts_of(job.rows) for job in collect_jobs(sink.records)}
    return {
        id_: (last.state, len(attempts), last.exit_code())
        for id_, attempts in attempts_by_job.items()
        if (last := final_attempt(attempts)) is not None
    }


def notes(answer: SlurmAnswer) -> str:
    return "\n".join(f"{row.path}: {row.note}" for row in answer.rows)


def test_jobs_of_every_kind_are_found(cluster: Cluster) -> None:
    ended = cluster.submit("echo started; srun -N2 hostname; exit 3", "-N2", "--gpus-per-node=4", "-J", "train")
    running = cluster.submit(
        "srun sleep 300", "-d", f"afterany:{ended}", "-N2", "--gpus-per-node=2", "-o", "%x-%j.log", "-J", "next"
    )
    waiting = cluster.submit("true", "--begin=now+1hour")
    array = cluster.submit("exit $SLURM_ARRAY_TASK_ID", "--array=0-2", "-o", "part-%A_%a.out")
    requeued = cluster.submit("echo attempt; sleep 3", "-J", "again")
    singleton = cluster.submit("true", "-J", "again", "-d", "singleton")
    cluster.until(requeued, lambda answer: answer.start is not None)
    cluster.run("scontrol", "requeue", requeued)

    answer = cluster.until(ended, lambda answer: answer.stage == "settled")
    assert states(answer)[ended] == ("FAILED", 1, 3)
    assert answer.logs == (str(cluster.jobs / f"slurm-{ended}.out"),)
    assert (len(answer.nodes), answer.is_going, answer.cluster, answer.rows) == (2, False, "lab", ())
    assert answer.end is not None
    assert abs(answer.end - time.time()) < 120

    answer = cluster.until(running, lambda answer: answer.start is not None and answer.parents == (ended,))
    assert answer.stage == "going"
    assert answer.logs == (str(cluster.jobs / f"next-{running}.log"), str(cluster.jobs / f"slurm-{ended}.out"))
    assert any(reply.path == f"scontrol show step {running}" for reply in answer.replies)

    answer = cluster.ask(waiting)
    assert (answer.stage, answer.start, answer.nodes, answer.logs) == ("going", None, (), ())
    assert not any(row.plane == "log" for row in answer.rows)

    answer = cluster.until(array, lambda answer: answer.stage == "settled")
    assert [states(answer)[f"{array}_{task}"][2] for task in range(3)] == [0, 1, 2]
    assert len(answer.logs) == 3
    answer = cluster.ask(f"{array}_1")
    assert (len(answer.logs), answer.stage) == (1, "settled")

    answer = cluster.until(requeued, lambda answer: answer.stage == "settled")
    assert states(answer)[requeued] == ("COMPLETED", 2, 0)
    answer = cluster.until(singleton, lambda answer: answer.stage == "settled")
    assert answer.parents == (requeued,)

    answer = cluster.ask("987654")
    assert (answer.is_known, [row.status for row in answer.rows]) == (False, ["empty", "empty"])


def test_slurmrestd_answers_at_its_socket(cluster: Cluster) -> None:
    program = shutil.which("slurmrestd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        missing("slurmrestd", "slurmrestd")
    job = cluster.submit("exit 4", "-N2", "--gpus-per-node=1", "-J", "rest")
    cluster.until(job, lambda answer: answer.stage == "settled")
    socket = cluster.folder / "rest" / "s"
    socket.parent.mkdir()
    os.chown(socket.parent, NOBODY, NOBODY)
    log = cluster.folder / "rest.log"
    with log.open("wb") as log_file:
        server = subprocess.Popen(
            [str(program), "-a", "rest_auth/local", f"unix:{socket}"], env=cluster.env, cwd="/",
            user=NOBODY, group=NOBODY, extra_groups=[], stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file,
        )  # fmt: skip
    try:
        wait_until(socket.exists, f"slurmrestd's socket; its log is {log.read_text()!r}")
        answer = cluster.ask(job, url=f"unix:{socket}")
        assert (answer.stage, answer.is_known, len(answer.nodes)) == ("settled", True, 2), answer.rows
        assert states(answer)[job] == ("FAILED", 1, 4)
        assert answer.logs == (str(cluster.jobs / f"slurm-{job}.out"),)
        assert all(reply.path.startswith("slurmrestd /slurm") for reply in answer.replies)
        answer = cluster.ask("987654", url=f"unix:{socket}")
        assert [row.status for row in answer.rows] == ["empty", "empty"]
    finally:
        server.terminate()
        server.wait(20)


def test_a_killed_daemon_of_slurm_is_noted(cluster: Cluster) -> None:
    job = cluster.submit("sleep 300")  # the last test: a killed controller may forget the job and reuse its id
    cluster.until(
        job, lambda answer: answer.start is not None and any(reply.path.startswith("sacct") for reply in answer.replies)
    )
    try:
        cluster.kill("slurmdbd")
        answer = cluster.ask(job)
        assert (answer.is_known, answer.stage) == (True, "going")
        assert re.search(
            "Connection refused|endpoint is not connected", notes(answer)
        )  # depends on how far it has shut down
        cluster.kill("slurmctld")
        answer = cluster.ask(job, timeout_s=3.0)
        assert (answer.is_known, answer.stage) == (False, "unknown")
        assert len([row for row in answer.rows if row.status == "unreadable"]) == 2
        cluster.up()
        cluster.kill("slurmctld")
        answer = cluster.ask(job, timeout_s=3.0)
        assert (answer.is_known, answer.stage) == (True, "going")
        assert re.search(r"Unable to contact slurm controller|did not end within", notes(answer))
    finally:
        cluster.up()
