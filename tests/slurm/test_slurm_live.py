"""A real Slurm, asked live: by its commands, through slurmrestd, and with each of its daemons dead."""

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
from trackside.runs.attempts import attempts_of, final
from trackside.runs.jobs import collect
from trackside.site.slurm import SlurmAnswer, live
from trackside.site.slurm_options import SlurmOptions

pytestmark = [pytest.mark.service, pytest.mark.corpus]
TOOLS = Path(__file__).resolve().parents[3] / "shared" / "slurm"
"""``slurm-up DIR`` starts a cluster of four nodes with eight GPUs each; ``slurm-down DIR --purge`` ends it."""
NOBODY = 65534


class Cluster:
    """A cluster of our own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs = folder, folder / "jobs"
        # Each of several workers has a cluster, and on one machine their nodes need names of their own.
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        prefix = "t" + "abcdefghij"[int(worker) % 10]
        self.env = {**os.environ, "SLURM_CONF": str(folder / "etc/slurm.conf"), "SLURM_LAB_PREFIX": prefix}
        self.env["PATH"] += ":/usr/sbin"

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            arguments, env=self.env, cwd=self.jobs, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr or done.stdout}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        return self.run("sbatch", "--parsable", *options, "--wrap", script)

    def ask(self, job: str, **options: object) -> SlurmAnswer:
        return live(SlurmOptions(**options), job, self.env)  # type: ignore[arg-type]

    def until(self, job: str, true: Callable[[SlurmAnswer], bool]) -> SlurmAnswer:
        """The first answer of which it is true; Slurm's records come some seconds late."""
        answer = self.ask(job)
        end = time.monotonic() + 60
        while not true(answer):
            assert time.monotonic() < end, (answer.stage, answer.rows)
            time.sleep(0.5)
            answer = self.ask(job)
        return answer

    def kill(self, daemon: str) -> None:
        os.kill(int((self.folder / "run" / f"{daemon}.pid").read_text()), signal.SIGKILL)

    def up(self) -> None:
        done = subprocess.run(
            [TOOLS / "slurm-up", self.folder], env=self.env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr


def machine_lock() -> IO[str]:
    """Held until it is closed, by one process of the machine."""
    lock = open(Path(tempfile.gettempdir()) / "trackside-tests-slurm.lock", "w")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
        if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            missing(name, "slurm-wlm")
    if os.geteuid() != 0:
        pytest.skip("a Slurm is started by root alone")
    folder = Path(tempfile.mkdtemp(prefix="ts-slurm-", dir="/tmp"))  # sockets lie under it: the path must be short
    folder.chmod(0o755)
    one = Cluster(folder)
    turn = machine_lock()  # of several workers one has a cluster at a time: their ports and cgroups are the machine's
    try:
        one.up()
        yield one
    finally:
        subprocess.run(
            [TOOLS / "slurm-down", folder, "--purge"], env=one.env, capture_output=True, timeout=120, check=False
        )
        shutil.rmtree(folder, ignore_errors=True)
        turn.close()


def states(answer: SlurmAnswer) -> dict[str, tuple[str | None, int, int | None]]:
    """Job -> its state, number of attempts and exit code, as the readers take it."""
    found = CollectingSink()
    for source in answer.sources:
        assert read_source(source, found).status == "read", source.path
    told = {job.id: attempts_of(job.rows) for job in collect(found.records)}
    return {
        id_: (last.state, len(each), last.exit_code())
        for id_, each in told.items()
        if (last := final(each)) is not None
    }


def notes(answer: SlurmAnswer) -> str:
    return "\n".join(f"{row.path}: {row.note}" for row in answer.rows)


def test_jobs_of_every_kind(cluster: Cluster) -> None:
    ended = cluster.submit("echo begun; srun -N2 hostname; exit 3", "-N2", "--gpus-per-node=4", "-J", "train")
    going = cluster.submit(
        "srun sleep 300", "-d", f"afterany:{ended}", "-N2", "--gpus-per-node=2", "-o", "%x-%j.log", "-J", "next"
    )
    waiting = cluster.submit("true", "--begin=now+1hour")
    array = cluster.submit("exit $SLURM_ARRAY_TASK_ID", "--array=0-2", "-o", "part-%A_%a.out")
    again = cluster.submit("echo attempt; sleep 3", "-J", "again")
    singleton = cluster.submit("true", "-J", "again", "-d", "singleton")
    cluster.until(again, lambda answer: answer.start is not None)
    cluster.run("scontrol", "requeue", again)

    answer = cluster.until(ended, lambda answer: answer.stage == "settled")
    assert states(answer)[ended] == ("FAILED", 1, 3)
    assert answer.logs == (str(cluster.jobs / f"slurm-{ended}.out"),)
    assert (len(answer.nodes), answer.going, answer.cluster, answer.rows) == (2, False, "lab", ())
    assert answer.end is not None
    assert abs(answer.end - time.time()) < 120

    answer = cluster.until(going, lambda answer: answer.start is not None and answer.parents == (ended,))
    assert answer.stage == "going"
    assert answer.logs == (str(cluster.jobs / f"next-{going}.log"), str(cluster.jobs / f"slurm-{ended}.out"))
    assert any(reply.path == f"scontrol show step {going}" for reply in answer.replies)

    answer = cluster.ask(waiting)
    assert (answer.stage, answer.start, answer.nodes, answer.logs) == ("going", None, (), ())
    assert not any(row.plane == "log" for row in answer.rows)

    answer = cluster.until(array, lambda answer: answer.stage == "settled")
    assert [states(answer)[f"{array}_{task}"][2] for task in range(3)] == [0, 1, 2]
    assert len(answer.logs) == 3
    answer = cluster.ask(f"{array}_1")
    assert (len(answer.logs), answer.stage) == (1, "settled")

    answer = cluster.until(again, lambda answer: answer.stage == "settled")
    assert states(answer)[again] == ("COMPLETED", 2, 0)
    answer = cluster.until(singleton, lambda answer: answer.stage == "settled")
    assert answer.parents == (again,)

    answer = cluster.ask("987654")
    assert (answer.known, [row.status for row in answer.rows]) == (False, ["empty", "empty"])


def test_slurmrestd_at_its_socket(cluster: Cluster) -> None:
    program = shutil.which("slurmrestd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        missing("slurmrestd", "slurmrestd")
    job = cluster.submit("exit 4", "-N2", "--gpus-per-node=1", "-J", "rest")
    cluster.until(job, lambda answer: answer.stage == "settled")
    socket = cluster.folder / "rest" / "s"
    socket.parent.mkdir()
    os.chown(socket.parent, NOBODY, NOBODY)
    log = cluster.folder / "rest.log"
    with log.open("wb") as said:
        server = subprocess.Popen(
            [str(program), "-a", "rest_auth/local", f"unix:{socket}"], env=cluster.env, cwd="/",
            user=NOBODY, group=NOBODY, extra_groups=[], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        wait_until(socket.exists, f"slurmrestd's socket; it said {log.read_text()!r}")
        answer = cluster.ask(job, url=f"unix:{socket}")
        assert (answer.stage, answer.known, len(answer.nodes)) == ("settled", True, 2), answer.rows
        assert states(answer)[job] == ("FAILED", 1, 4)
        assert answer.logs == (str(cluster.jobs / f"slurm-{job}.out"),)
        assert all(reply.path.startswith("slurmrestd /slurm") for reply in answer.replies)
        answer = cluster.ask("987654", url=f"unix:{socket}")
        assert [row.status for row in answer.rows] == ["empty", "empty"]
    finally:
        server.terminate()
        server.wait(20)


def test_a_part_of_slurm_is_dead(cluster: Cluster) -> None:
    job = cluster.submit(
        "sleep 300"
    )  # the last one here: a controller that is killed may forget it and give its id again
    cluster.until(
        job, lambda answer: answer.start is not None and any(each.path.startswith("sacct") for each in answer.replies)
    )
    try:
        cluster.kill("slurmdbd")
        answer = cluster.ask(job)
        assert (answer.known, answer.stage) == (True, "going")
        assert re.search("Connection refused|endpoint is not connected", notes(answer))  # by how far it is dead
        cluster.kill("slurmctld")
        answer = cluster.ask(job, timeout_s=3.0)
        assert (answer.known, answer.stage) == (False, "unknown")
        assert len([row for row in answer.rows if row.status == "unreadable"]) == 2
        cluster.up()
        cluster.kill("slurmctld")
        answer = cluster.ask(job, timeout_s=3.0)
        assert (answer.known, answer.stage) == (True, "going")
        assert re.search(r"Unable to contact slurm controller|did not end within", notes(answer))
    finally:
        cluster.up()
