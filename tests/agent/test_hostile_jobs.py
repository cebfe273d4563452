"""Jobs that lie about whose they are, lead the agent to what is not theirs, or want it to do more than it can."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent import printing
from tests.agent.hanging import Listed, watching
from tests.agent.printing import Printing, append
from tests.agent.test_processes import BOX, V1, V2, Host, task
from trackside.agent.daemon import state_folder
from trackside.agent.hang import py_spy, recorder
from trackside.agent.hang.ranks import Rank, jobs_of
from trackside.agent.jobs.cgroup_path import NOTHING, membership
from trackside.agent.jobs.environment import MAX_CHARS, variables
from trackside.agent.out.scrape import MAX_REQUESTS, Scrape
from trackside.agent.out.segments import Segments
from trackside.agent.output.tail import MAX_LINES, Tail, open_file
from trackside.agent.owners import JobProcess, Owner
from trackside.agent.source import Reading
from trackside.agent.user import User, user_of
from trackside.catalog.streams import is_printed, stream_path
from trackside.http import unavailable
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, Source

PRINTED = "job-50/slurm-50.out@n1.log"
TIME = "2026-11-21T08:00:00.000000001Z "


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def jobs(tmp_path: Path) -> printing.Host:
    return printing.Host(tmp_path)


def started_by(host: Host, pid: int, uid: int) -> None:
    (host.proc / str(pid) / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t0\t0\t0\n")


class TestWhose:
    @pytest.mark.parametrize(
        "path",
        [
            b"0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_42/step_0\n",
            b"0::/user.slice/slurmstepd.scope/job_42/step_0/user/task_0\n",
            b"1:name=systemd:/user.slice/u/slurm/uid_0/job_42/step_0/task_1\n0::/\n",
        ],
    )
    def test_a_cgroup_that_a_user_made_is_no_jobs(self, path: bytes) -> None:
        assert membership(path) == NOTHING

    def test_of_cgroups_in_each_other_the_outer_holds(self) -> None:
        inner = b"0::/system.slice/slurmstepd.scope/job_50/step_0/user/slurmstepd.scope/job_42/step_0\n"
        assert membership(inner).job == "50"
        assert membership(b"2:cpuacct:/slurm/uid_1/job_50/step_0/slurm/uid_0/job_42/step_0\n").job == "50"

    def test_an_environment_counts_for_the_jobs_own_user(self, host: Host) -> None:
        host.start(9, task())  # another user's, and there before all others
        started_by(host, 9, 2000)
        host.start(10, task(procid=1), V2.format(job=42, step=0, task=1))
        started_by(host, 10, 1000)
        host.start(11, task(procid=2))  # the same user's, beside the cgroup
        started_by(host, 11, 1000)
        assert sorted(host.owners()) == [10, 11]
        host.start(12, task(procid=3))
        started_by(host, 12, 2000)
        assert host.map.of_pid(12) is None
        assert sorted(host.owners()) == [10, 11]

    def test_where_nothing_is_sure_the_first_holds(self, host: Host) -> None:
        for pid, uid in ((10, 1000), (11, 1000)):
            host.start(pid, task(procid=pid))
            started_by(host, pid, uid)
        assert len(host.owners()) == 2
        host.start(12, task(procid=3), f"0::/kubepods/pod{BOX[:32]}/{BOX}\n")
        started_by(host, 12, 2000)
        assert sorted(host.owners()) == [10, 11]

    def test_no_task_of_an_array_that_came_later_or_is_anothers(self, host: Host) -> None:
        array = {"SLURM_ARRAY_JOB_ID": "60", "SLURM_ARRAY_TASK_ID": "3"}
        host.start(10, task(64) | array, V2.format(job=64, step=0, task=0))
        assert host.owners()[10].job == "60_3"
        host.start(11, task(70) | array, V2.format(job=70, step=0, task=0))
        host.start(12, task(50) | array, V2.format(job=50, step=0, task=0))
        parts = {"SLURM_JOB_ID_HET_GROUP_0": "73", "SLURM_JOB_ID_HET_GROUP_1": "51"}
        host.start(13, task(51) | parts, V2.format(job=51, step=0, task=0))
        assert {pid: each.job for pid, each in host.owners().items()} == {10: "60_3", 11: "70", 12: "50", 13: "51"}

    def test_a_users_name_is_a_name(self, host: Host) -> None:
        host.start(10, task(SLURM_JOB_USER='x"}\n' * 900), V1.format(job=42, step=0, task=0))
        assert host.owners()[10].user is None

    def test_environments_of_half_a_megabyte_are_not_kept(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        many = variables(b"\0".join(b"NCCL_%d=%s" % (number, b"v" * 4000) for number in range(120)) + b"\0RANK=7")
        assert sum(map(len, (*many, *many.values()))) <= MAX_CHARS
        assert many["RANK"] == "7"
        monkeypatch.setattr("trackside.agent.jobs.processes.MAX_ENVIRON_CHARS", 2000)
        for pid in range(10, 40):
            host.start(pid, task(procid=pid), V2.format(job=42, step=0, task=0))
        owners = host.owners()
        assert [owners[pid].rank for pid in range(10, 40)] == list(range(10, 40))
        kept = [process for process in host.map.processes() if process.environ is not None]
        assert 0 < len(kept) <= 16
        assert host.map.unread == 30 - len(kept)


class TestOutput:
    def test_a_launchers_folder_with_links_to_what_is_anothers(
        self, jobs: printing.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret, logs = tmp_path / "secret", tmp_path / "logs"
        append(secret, "root's alone\n")
        for worker in ("0", "1"):
            (logs / "attempt_0" / worker).mkdir(parents=True)
        (logs / "attempt_0/0/stdout.log").symlink_to(secret)
        append(logs / "attempt_0/1/stdout.log", "hello\n")
        jobs.start(100, printing.owner(), "/dev/null", comm="torchrun", _cmdline=f"torchrun\0--log-dir={logs}\0x.py")
        (jobs.proc / "100/cwd").symlink_to(tmp_path)
        (jobs.proc / "100/root").symlink_to("/")
        theirs, own = os.stat(secret), os.getuid()
        real = User.may_read
        monkeypatch.setattr(
            User, "may_read", lambda user, told: told.st_ino != theirs.st_ino and user.own_only and real(user, told)
        )
        assert User(own, own_only=True).may_read(theirs) is False
        assert Printing(jobs).texts() == ["hello"]

    def test_what_its_user_may_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.touch(mode=0o640)
        path.chmod(0o640)
        told = os.stat(path)
        uid, gid = told.st_uid, told.st_gid
        assert User(uid).may_read(told)
        assert User(uid + 1, frozenset({gid})).may_read(told)
        assert not User(uid + 1, frozenset({gid}), own_only=True).may_read(told)
        assert not User(uid + 1, frozenset({gid + 1})).may_read(told)
        with pytest.raises(PermissionError, match="may not read it"):
            open_file(str(path), User(uid + 1))

    def test_a_pipe_or_a_link_in_the_place_of_a_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        append(tmp_path / "secret", "x")
        (tmp_path / "slurm-42.out").symlink_to(tmp_path / "secret")
        for name in ("pipe", "slurm-42.out"):
            with pytest.raises(OSError, match="not a plain file"):
                open_file(str(tmp_path / name), None)

    def test_a_file_of_other_rights_behind_a_descriptor(self, jobs: printing.Host, tmp_path: Path) -> None:
        """As one is that was opened without the right to read it, and put there a moment ago."""
        append(tmp_path / "secret", "x\n")
        (tmp_path / "secret").chmod(0o600)
        jobs.start(100, printing.owner(), tmp_path / "secret")
        status = jobs.proc / "100/status"
        status.write_text(status.read_text().replace(printing.USER, f"Uid:\t{os.getuid() + 1}\nGid:\t12345\n"))
        source = Printing(jobs)
        assert source.texts() == []
        assert any("user may not read" in words or "denied" in words for words in source.last.warnings)

    def test_a_million_empty_lines_come_in_turns(self, jobs: printing.Host, tmp_path: Path) -> None:
        append(tmp_path / "flood", b"\n" * (1 << 20))
        append(tmp_path / "other", "hello\n")
        jobs.start(100, printing.owner(), tmp_path / "flood", tmp_path / "other")
        source = Printing(jobs)
        first = source.texts()
        assert "hello" in first
        assert len(first) <= 25_000 + 2 * MAX_LINES
        count = len(first)
        for _ in range(100):
            count += len(source.collect())
        assert count == (1 << 20) + 1

    def test_a_hole_of_a_terabyte_is_passed(self, jobs: printing.Host, tmp_path: Path) -> None:
        path = tmp_path / "sparse"
        append(path, "begin\n")
        jobs.start(100, printing.owner(), path)
        source = Printing(jobs)
        found = source.texts()
        os.truncate(path, 1 << 40)
        append(path, "end\n")
        for _ in range(5):
            found += source.texts()
        assert [text for text in found if text.strip()] == ["begin", "end"]

    def test_one_jobs_files_leave_room(self, jobs: printing.Host, tmp_path: Path) -> None:
        for number in range(30):
            append(tmp_path / f"{number}.out", "hello\n")
            jobs.start(100 + number, printing.owner(rank=number), tmp_path / f"{number}.out")
        append(tmp_path / "other.out", "other\n")
        jobs.start(200, printing.owner("43"), tmp_path / "other.out")
        source = Printing(jobs, most_files=16)
        assert source.texts().count("other") == 1
        assert any("job 42 has more than 14 output files" in words for words in source.last.warnings)

    def test_folders_without_end(self, jobs: printing.Host, tmp_path: Path) -> None:
        logs = tmp_path / "logs"
        for number in range(5000):
            (logs / "attempt_0" / str(number)).mkdir(parents=True)
        jobs.start(100, printing.owner(), "/dev/null", comm="torchrun", _cmdline=f"torchrun\0--log-dir={logs}\0x.py")
        (jobs.proc / "100/cwd").symlink_to(tmp_path)
        (jobs.proc / "100/root").symlink_to("/")
        source, begin = Printing(jobs), time.monotonic()
        assert source.texts() == []
        assert time.monotonic() - begin < 2.0

    def test_a_piece_ends_with_a_line(self, tmp_path: Path) -> None:
        append(tmp_path / "file", b"a\n" * (MAX_LINES + 10))
        tail = Tail(str(tmp_path / "file"))
        assert len(tail.read(1 << 20)) == 2 * MAX_LINES
        assert [tail.has_more, len(tail.read(1 << 20)), tail.has_more] == [True, 20, False]
        tail.close()


class TestHang:
    def test_a_process_of_a_program_with_roots_rights_is_its_users(self, tmp_path: Path) -> None:
        """Its folder in /proc is root's, and so is many a file whose name ends in a number."""
        folder = tmp_path / "proc/7"
        (folder / "root").mkdir(parents=True)
        (folder / "root/auth.log.1").write_text("root's alone")
        (folder / "status").write_text(f"Uid:\t{os.getuid() + 1}\nGid:\t1\n")
        environ = {"RANK": "1", "TORCH_FR_BUFFER_SIZE": "9", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/auth.log."}
        rank = Rank("42", 1, JobProcess(7, 1, 1, "python", Owner(job="42", rank=1), environ=environ))
        found = recorder.recorder(tmp_path / "proc", rank)
        assert found is not None
        assert found.uid == os.getuid() + 1
        with pytest.raises(recorder.DumpUnavailable, match="made no dump"):
            recorder.pieces(found, 0, 1 << 20)

    def test_a_dump_of_a_terabyte_is_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "dump0"
        path.touch()
        os.truncate(path, 1 << 40)
        begin = time.monotonic()
        with pytest.raises(recorder.DumpUnavailable, match="too large"):
            recorder.pieces(recorder.Recorder(None, (path,), os.getuid()), 0, 4 << 20)
        assert time.monotonic() - begin < 0.1

    def test_ten_thousand_processes_each_the_child_of_the_one_before(self) -> None:
        chain = [JobProcess(pid, 1, pid - 1, "python", Owner(job="42")) for pid in range(2, 10_002)]
        begin = time.monotonic()
        [[rank]] = jobs_of(chain).values()
        assert time.monotonic() - begin < 2.0
        assert rank.main.pid == 2
        watching(Listed(chain[:100])).collect(Reading())


class TestRead:
    """What a job printed is no witness of anything beyond it."""

    @pytest.mark.parametrize(
        "text",
        [
            f"{TIME}[2026-11-21T08:00:00.123] error: Nodes n3 not responding, setting DOWN\n" * 5,
            f"{TIME}[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n" * 5,
            f"{TIME}job 42 ended NODE_FAIL, exit code 1\tJobId=42 JobName=train\tUserId=alice(1001)\n" * 5,
            "job 42 ended NODE_FAIL, exit code 1\tJobId=42 JobName=train\tUserId=alice(1001)\n" * 5,
            "JobID|JobIDRaw|JobName|State|ExitCode|Start|End|NodeList\n"
            "42|42|train|NODE_FAIL|1:0|2026-11-21T08:00:00|2026-11-21T09:00:00|n3\n",
            f"{TIME}[hang] job 42 rank 3 pid 977 python: state D in nfs_wait, syscall 202, 0.00 cores\n",
        ],
    )
    def test_the_words_of_others(self, text: str) -> None:
        data, found = text.encode(), CollectingSink()
        read = read_source(Source(PRINTED, data, io.BytesIO(data), len(data)), found)
        assert read.plane == "log"
        assert not found.records
        assert {event.plane for event in found.events} <= {"log"}

    def test_a_file_of_a_name_that_is_anothers(self) -> None:
        def path(name: str, **more: str) -> str:
            return stream_path({"slurm_job_id": "50", "node": "n1", "filename": name, **more})

        for name in ("kern.log", "dmesg", "kernel", "hang", "scontrol", "rank3.hang", "slurmctld.log"):
            assert is_printed(path(f"/home/u/{name}", stream="stdout")), name
        assert not is_printed(path("hang", rank="3"))
        assert not is_printed(path("scontrol"))
        assert not is_printed(stream_path({"node": "n1", "unit": "kernel"}))


class TestRoom:
    def test_no_thread_for_who_asks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where a job has taken all that the node may have."""
        scrape = Scrape(("127.0.0.1", 0), lambda: "", lambda: "")

        def refused(thread: threading.Thread) -> None:
            raise RuntimeError("cannot start new thread")

        try:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refused)
                for _ in range(2 * MAX_REQUESTS):
                    with pytest.raises(RuntimeError):
                        scrape.process_request(None, ("127.0.0.1", 1))
            assert scrape._slots.acquire(blocking=False)
        finally:
            scrape.server_close()

    @pytest.fixture
    def victim(self, tmp_path: Path) -> Iterator[Path]:
        path = tmp_path / "victim"
        path.write_text("precious")
        yield path
        assert path.read_text() == "precious"

    @pytest.mark.parametrize("name", ["lock", "position"])
    def test_links_in_the_spools_folder(self, tmp_path: Path, victim: Path, name: str) -> None:
        (tmp_path / "spool").mkdir()
        (tmp_path / "spool" / name).symlink_to(victim)
        with pytest.raises(OSError, match="symbolic links"):
            Segments(tmp_path / "spool", 1 << 20, 1 << 24, False)

    def test_a_link_in_the_state(self, tmp_path: Path, victim: Path) -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / ".written").symlink_to(victim)
        assert state_folder(tmp_path / "state") is not None


def test_figures_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = b'[{"frames":[{"name":"f","filename":"a.py","line":3}],"os_thread_id":1e999}]'
    monkeypatch.setattr(py_spy, "_output", lambda command, timeout_s: frames)
    with pytest.raises(py_spy.NoStack, match="OverflowError"):
        py_spy.stacks("py-spy", 7, timeout_s=1.0)
    assert unavailable._retry_after("409\x1c") == 409.0


def test_whose_this_process_is() -> None:
    user = user_of("/proc", os.getpid())
    assert user is not None
    assert user.uid == os.getuid()
    assert os.getgid() in user.groups
    assert user_of("/proc", 1 << 30) is None
