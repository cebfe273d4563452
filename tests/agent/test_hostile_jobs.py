"""Jobs that lie about their owner, lead the agent to the files of others, or try to overload it."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent import printing
from tests.agent.hanging import FixedProcesses, hang_collector
from tests.agent.printing import OutputCollector, append
from tests.agent.test_processes import BOX, V1, V2, Host, task
from trackside.agent.daemon import state_folder
from trackside.agent.delivery.scrape import MAX_REQUESTS, MetricsServer
from trackside.agent.delivery.segments import Segments
from trackside.agent.hang import py_spy, recorder
from trackside.agent.hang.ranks import Rank, ranks_by_job
from trackside.agent.jobs.cgroup_path import NOTHING, membership
from trackside.agent.jobs.environment import MAX_CHARS, variables
from trackside.agent.output.tail import MAX_LINES, Tail, open_file
from trackside.agent.owners import JobProcess, Owner
from trackside.agent.source import Reading
from trackside.agent.user import User, user_of
from trackside.catalog.streams import is_printed, stream_path
from trackside.http import unavailable
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource

PRINTED = "job-50/slurm-50.out@n1.log"
TIME = "2026-11-21T08:00:00.000000001Z "


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def jobs(tmp_path: Path) -> printing.Host:
    return printing.Host(tmp_path)


class TestOwners:
    @pytest.mark.parametrize(
        "path",
        [
            b"0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_42/step_0\n",
            b"0::/user.slice/slurmstepd.scope/job_42/step_0/user/task_0\n",
            b"1:name=systemd:/user.slice/u/slurm/uid_0/job_42/step_0/task_1\n0::/\n",
        ],
    )
    def test_a_cgroup_made_by_a_user_has_no_job(self, path: bytes) -> None:
        assert membership(path) == NOTHING

    def test_the_outermost_job_of_nested_cgroups_counts(self) -> None:
        inner = b"0::/system.slice/slurmstepd.scope/job_50/step_0/user/slurmstepd.scope/job_42/step_0\n"
        assert membership(inner).job == "50"
        assert membership(b"2:cpuacct:/slurm/uid_1/job_50/step_0/slurm/uid_0/job_42/step_0\n").job == "50"

    def test_an_environment_counts_only_for_the_user_of_the_job(self, host: Host) -> None:
        host.start(9, task())  # another user's, started before all others
        host.set_user(9, 2000)
        host.start(10, task(procid=1), V2.format(job=42, step=0, task=1))
        host.set_user(10, 1000)
        host.start(11, task(procid=2))  # the same user's, outside the cgroup
        host.set_user(11, 1000)
        assert sorted(host.owners()) == [10, 11]
        host.start(12, task(procid=3))
        host.set_user(12, 2000)
        assert host.map.of_pid(12) is None
        assert sorted(host.owners()) == [10, 11]

    def test_without_a_cgroup_what_the_step_daemon_started_counts(self, host: Host) -> None:
        host.start(12, task(procid=5))  # names the job first
        host.set_user(12, 2000)
        host.start_step_daemon(5, "42.0")
        host.start(10, task(procid=0), parent=5)
        host.start(11, task(procid=1), parent=10)
        host.start(13, task(procid=2))  # of the same user, left by its parent
        for pid in (10, 11, 13):
            host.set_user(pid, 1000)
        assert sorted(host.owners()) == [10, 11, 13]
        host.start(14, task(procid=3), f"0::/kubepods/pod{BOX[:32]}/{BOX}\n")
        host.set_user(14, 2000)
        assert sorted(host.owners()) == [10, 11, 13]

    @pytest.mark.parametrize(("title", "uid"), [("42.0", 2000), ("43.0", 0), ("x", 0), ("", 0)])
    def test_another_step_daemon_or_one_of_a_user_proves_nothing(self, host: Host, title: str, uid: int) -> None:
        host.start_step_daemon(5, title, uid)
        host.start(10, task(), parent=5)
        host.set_user(10, 2000)
        assert host.owners() == {}

    def test_parents_that_go_in_circles_end(self, host: Host) -> None:
        host.start(10, task(), parent=11)
        host.start(11, task(), parent=10)
        assert host.owners() == {}

    def test_array_and_group_ids_count_only_if_they_match_the_job(self, host: Host) -> None:
        array = {"SLURM_ARRAY_JOB_ID": "60", "SLURM_ARRAY_TASK_ID": "3"}
        host.start(10, task(64) | array, V2.format(job=64, step=0, task=0))
        assert host.owners()[10].job == "60_3"
        host.start(11, task(70) | array, V2.format(job=70, step=0, task=0))
        host.start(12, task(50) | array, V2.format(job=50, step=0, task=0))
        het_group = {"SLURM_JOB_ID_HET_GROUP_0": "73", "SLURM_JOB_ID_HET_GROUP_1": "51"}
        host.start(13, task(51) | het_group, V2.format(job=51, step=0, task=0))
        assert {pid: owner.job for pid, owner in host.owners().items()} == {10: "60_3", 11: "70", 12: "50", 13: "51"}

    def test_an_invalid_user_name_is_dropped(self, host: Host) -> None:
        host.start(10, task(SLURM_JOB_USER='x"}\n' * 900), V1.format(job=42, step=0, task=0))
        assert host.owners()[10].user is None

    def test_large_environments_are_bounded(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        large = variables(b"\0".join(b"NCCL_%d=%s" % (number, b"v" * 4000) for number in range(120)) + b"\0RANK=7")
        assert sum(map(len, (*large, *large.values()))) <= MAX_CHARS
        assert large["RANK"] == "7"
        monkeypatch.setattr("trackside.agent.jobs.processes.MAX_ENVIRON_CHARS", 2000)
        for pid in range(10, 40):
            host.start(pid, task(procid=pid), V2.format(job=42, step=0, task=0))
        owners = host.owners()
        assert [owners[pid].rank for pid in range(10, 40)] == list(range(10, 40))
        with_environ = [process for process in host.map.processes() if process.environ is not None]
        assert 0 < len(with_environ) <= 16
        assert host.map.unread == 30 - len(with_environ)


class TestOutput:
    def test_links_to_files_of_others_in_a_launchers_folder_are_not_followed(
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
        secret_stat, uid = os.stat(secret), os.getuid()
        real = User.may_read
        monkeypatch.setattr(
            User,
            "may_read",
            lambda user, file_stat: file_stat.st_ino != secret_stat.st_ino and user.own_only and real(user, file_stat),
        )
        assert User(uid, own_only=True).may_read(secret_stat) is False
        assert OutputCollector(jobs).texts() == ["hello"]

    def test_files_that_the_user_may_not_read_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.touch(mode=0o640)
        path.chmod(0o640)
        file_stat = os.stat(path)
        uid, gid = file_stat.st_uid, file_stat.st_gid
        assert User(uid).may_read(file_stat)
        assert User(uid + 1, frozenset({gid})).may_read(file_stat)
        assert not User(uid + 1, frozenset({gid}), own_only=True).may_read(file_stat)
        assert not User(uid + 1, frozenset({gid + 1})).may_read(file_stat)
        with pytest.raises(PermissionError, match="may not read it"):
            open_file(str(path), User(uid + 1))

    def test_pipes_and_links_are_not_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        append(tmp_path / "secret", "x")
        (tmp_path / "slurm-42.out").symlink_to(tmp_path / "secret")
        for name in ("pipe", "slurm-42.out"):
            with pytest.raises(OSError, match="not a plain file"):
                open_file(str(tmp_path / name), None)

    def test_an_open_file_that_the_user_may_not_read_is_refused(self, jobs: printing.Host, tmp_path: Path) -> None:
        """For example a file that was opened for writing only."""
        append(tmp_path / "secret", "x\n")
        (tmp_path / "secret").chmod(0o600)
        jobs.start(100, printing.owner(), tmp_path / "secret")
        status = jobs.proc / "100/status"
        status.write_text(status.read_text().replace(printing.USER, f"Uid:\t{os.getuid() + 1}\nGid:\t12345\n"))
        source = OutputCollector(jobs)
        assert source.texts() == []
        assert any("user may not read" in warning or "denied" in warning for warning in source.last.warnings)

    def test_a_million_empty_lines_are_read_in_several_readings(self, jobs: printing.Host, tmp_path: Path) -> None:
        append(tmp_path / "flood", b"\n" * (1 << 20))
        append(tmp_path / "other", "hello\n")
        jobs.start(100, printing.owner(), tmp_path / "flood", tmp_path / "other")
        source = OutputCollector(jobs)
        first = source.texts()
        assert "hello" in first
        assert len(first) <= 25_000 + 2 * MAX_LINES
        count = len(first)
        for _ in range(100):
            count += len(source.collect())
        assert count == (1 << 20) + 1

    def test_a_hole_of_a_terabyte_is_skipped(self, jobs: printing.Host, tmp_path: Path) -> None:
        path = tmp_path / "sparse"
        append(path, "begin\n")
        jobs.start(100, printing.owner(), path)
        source = OutputCollector(jobs)
        texts = source.texts()
        os.truncate(path, 1 << 40)
        append(path, "end\n")
        for _ in range(5):
            texts += source.texts()
        assert [text for text in texts if text.strip()] == ["begin", "end"]

    def test_many_files_of_one_job_leave_room_for_other_jobs(self, jobs: printing.Host, tmp_path: Path) -> None:
        for number in range(30):
            append(tmp_path / f"{number}.out", "hello\n")
            jobs.start(100 + number, printing.owner(rank=number), tmp_path / f"{number}.out")
        append(tmp_path / "other.out", "other\n")
        jobs.start(200, printing.owner("43"), tmp_path / "other.out")
        source = OutputCollector(jobs, max_files=16)
        assert source.texts().count("other") == 1
        assert any("job 42 has more than 14 output files" in warning for warning in source.last.warnings)

    def test_huge_folders_are_searched_in_bounded_time(self, jobs: printing.Host, tmp_path: Path) -> None:
        logs = tmp_path / "logs"
        for number in range(5000):
            (logs / "attempt_0" / str(number)).mkdir(parents=True)
        jobs.start(100, printing.owner(), "/dev/null", comm="torchrun", _cmdline=f"torchrun\0--log-dir={logs}\0x.py")
        (jobs.proc / "100/cwd").symlink_to(tmp_path)
        (jobs.proc / "100/root").symlink_to("/")
        source, begin = OutputCollector(jobs), time.monotonic()
        assert source.texts() == []
        assert time.monotonic() - begin < 2.0

    def test_a_limited_piece_ends_with_a_complete_line(self, tmp_path: Path) -> None:
        append(tmp_path / "file", b"a\n" * (MAX_LINES + 10))
        tail = Tail(str(tmp_path / "file"))
        assert len(tail.read(1 << 20)) == 2 * MAX_LINES
        assert [tail.has_more, len(tail.read(1 << 20)), tail.has_more] == [True, 20, False]
        tail.close()


class TestHang:
    def test_a_setuid_process_belongs_to_the_user_who_started_it(self, tmp_path: Path) -> None:
        """The process's folder in /proc belongs to root, and so do many files whose names end in a number."""
        folder = tmp_path / "proc/7"
        (folder / "root").mkdir(parents=True)
        (folder / "root/auth.log.1").write_text("root's alone")
        (folder / "status").write_text(f"Uid:\t{os.getuid() + 1}\nGid:\t1\n")
        environ = {"RANK": "1", "TORCH_FR_BUFFER_SIZE": "9", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/auth.log."}
        rank = Rank("42", 1, JobProcess(7, 1, 1, "python", Owner(job="42", rank=1), environ=environ))
        flight_recorder = recorder.recorder(tmp_path / "proc", rank)
        assert flight_recorder is not None
        assert flight_recorder.uid == os.getuid() + 1
        with pytest.raises(recorder.DumpUnavailable, match="made no dump"):
            recorder.dump_pieces(flight_recorder, 0, 1 << 20)

    def test_a_dump_of_a_terabyte_is_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "dump0"
        path.touch()
        os.truncate(path, 1 << 40)
        begin = time.monotonic()
        with pytest.raises(recorder.DumpUnavailable, match="too large"):
            recorder.dump_pieces(recorder.Recorder(None, (path,), os.getuid()), 0, 4 << 20)
        assert time.monotonic() - begin < 0.1

    def test_a_chain_of_ten_thousand_processes_is_searched_in_bounded_time(self) -> None:
        chain = [JobProcess(pid, 1, pid - 1, "python", Owner(job="42")) for pid in range(2, 10_002)]
        begin = time.monotonic()
        [[rank]] = ranks_by_job(chain).values()
        assert time.monotonic() - begin < 2.0
        assert rank.main.pid == 2
        hang_collector(FixedProcesses(chain[:100])).collect(Reading())


class TestRead:
    """Printed text of a job is not evidence about anything else."""

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
    def test_printed_lines_of_other_sources_are_read_as_log_only(self, text: str) -> None:
        data, sink = text.encode(), CollectingSink()
        result = read_source(InputSource(PRINTED, data, io.BytesIO(data), len(data)), sink)
        assert result.plane == "log"
        assert not sink.records
        assert {event.plane for event in sink.events} <= {"log"}

    def test_output_files_with_names_of_other_sources_are_recognized(self) -> None:
        def path(name: str, **labels: str) -> str:
            return stream_path({"slurm_job_id": "50", "node": "n1", "filename": name, **labels})

        for name in ("kern.log", "dmesg", "kernel", "hang", "scontrol", "rank3.hang", "slurmctld.log"):
            assert is_printed(path(f"/home/u/{name}", stream="stdout")), name
        assert not is_printed(path("hang", rank="3"))
        assert not is_printed(path("scontrol"))
        assert not is_printed(stream_path({"node": "n1", "unit": "kernel"}))


class TestResources:
    def test_a_request_without_a_thread_frees_its_slot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A job may have used up all threads of the node."""
        scrape = MetricsServer(("127.0.0.1", 0), lambda: "", lambda: "")

        def failing_start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        try:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", failing_start)
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
    def test_links_in_the_spool_folder_are_refused(self, tmp_path: Path, victim: Path, name: str) -> None:
        (tmp_path / "spool").mkdir()
        (tmp_path / "spool" / name).symlink_to(victim)
        with pytest.raises(OSError, match="symbolic links"):
            Segments(tmp_path / "spool", 1 << 20, 1 << 24, False)

    def test_a_link_in_the_state_folder_is_not_followed(self, tmp_path: Path, victim: Path) -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / ".written").symlink_to(victim)
        assert state_folder(tmp_path / "state") is not None


def test_numbers_that_overflow_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = b'[{"frames":[{"name":"f","filename":"a.py","line":3}],"os_thread_id":1e999}]'
    monkeypatch.setattr(py_spy, "_output", lambda command, timeout_s: frames)
    with pytest.raises(py_spy.StackUnavailable, match="OverflowError"):
        py_spy.stacks("py-spy", 7, timeout_s=1.0)
    assert unavailable._retry_after("409\x1c") == 409.0


def test_the_user_of_this_process() -> None:
    user = user_of("/proc", os.getpid())
    assert user is not None
    assert user.uid == os.getuid()
    assert os.getgid() in user.groups
    assert user_of("/proc", 1 << 30) is None
