"""The source ``hang`` on real processes: some hang, some are only silent, some end."""

from __future__ import annotations

import base64
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

import trackside
from tests.agent.hanging import (
    QUICK,
    FixedProcesses,
    Jobs,
    collect_until,
    files,
    hang_collector,
    is_hang_reported,
    lines_with,
    running,
    wait_asleep,
    with_owner,
)
from tests.families.rows import sentence_name
from tests.services import wait_until
from trackside.agent.hang import py_spy, recorder
from trackside.agent.hang.activity import state_of
from trackside.agent.hang.ranks import Rank, ranks_by_job
from trackside.agent.hang.report import HangReporter
from trackside.agent.hang.watch import Suspicion
from trackside.agent.source import AgentSourceUnavailable, Reading
from trackside.catalog.hang_lines import (
    LineSubject,
    Piece,
    ProcessState,
    Resumption,
    ThreadStack,
    piece_line,
    pieces_of,
    read_line,
    read_piece,
    thread_line,
)
from trackside.catalog.python_stack import Call
from trackside.session.paths import load

pytestmark = pytest.mark.slow  # real processes, and seconds of waiting for them

BARRIER = """
import sys, threading, time

rank = int(sys.argv[1])
lock = threading.Lock()


def load_batch(step):
    if rank == 2 and step == 8:
        time.sleep(10000)


def all_reduce(step):
    if step == 8 and rank != 2:
        lock.acquire()
        lock.acquire()


def main():
    for step in range(100000):
        load_batch(step)
        all_reduce(step)
        print("step", step, flush=True)
        time.sleep(0.1)


main()
"""
PAUSED = """
import os, sys, time
for step in range(100000):
    print("step", step, "of 100000", flush=True)
    while step == 8 and not os.path.exists("go"):
        time.sleep(0.05)
    time.sleep(0.1)
"""
AT_WORK = {
    "computes": "while True:\n    x = [n * 2 for n in range(2000000)]\n",
    "compiles": "import os\nwhile True:\n    if os.fork() == 0:\n        sum(range(10**6)); os._exit(0)\n    os.wait()\n",
    "saves": "import time\nwhile True:\n    open('model.bin', 'wb').write(b'x' * (1 << 20)); time.sleep(0.05)\n",
    "reads": "import time\nopen('data.bin', 'wb').write(b'x' * (1 << 20))\nwhile True:\n    open('data.bin', 'rb').read(); time.sleep(0.05)\n",
}
PRINT_STEPS = "import time\nfor step in range(12):\n    print('step', step, flush=True); time.sleep(0.1)\n"


def ranks_of(jobs: Jobs) -> list[Rank]:
    return list(ranks_by_job(jobs.processes()).get("4242", ()))


class TestReports:
    def test_a_report_shows_the_stack_and_state_of_each_rank(self, tmp_path: Path) -> None:
        with running(BARRIER, tmp_path, ranks=4) as processes:
            collector = hang_collector(Jobs(*(process.pid for process in processes)))
            reading = collect_until(collector, is_hang_reported, 25.0)
            assert is_hang_reported(reading.lines)
            assert all(process.poll() is None for process in processes)
            later = collect_until(collector, lambda lines: bool(lines), 2.0)
            assert not later.lines, "a hang is reported once"
        threads = {
            who.rank: record for line in reading.lines if (parsed := read_line(line.text)) for who, record in [parsed]
            if isinstance(record, ThreadStack)
        }  # fmt: skip
        lines = BARRIER.splitlines()
        assert {rank: thread.place for rank, thread in threads.items()} == {
            **{rank: f"train.py:{lines.index('        lock.acquire()') + 2} in all_reduce" for rank in (0, 1, 3)},
            2: f"train.py:{lines.index('        time.sleep(10000)') + 1} in load_batch",
        }
        assert any("sleep" in name for name in threads[2].native)
        states = [
            record
            for line in reading.lines
            if (parsed := read_line(line.text)) and isinstance(record := parsed[1], ProcessState)
        ]
        asleep = [state.wait for state in states if state.state == "S"]
        assert len(asleep) >= 3, "one may be awake for a moment"
        assert {state.state for state in states} <= {"S", "R"}
        assert "hrtimer_nanosleep" in asleep or len(asleep) < 4
        first = next(line for line in reading.lines if "MainThread" in line.text)
        assert dict(first.labels)["rank"] == "2", "the outlier comes first"
        assert all(dict(line.labels)["slurm_job_id"] == "4242" for line in reading.lines)
        assert len({line.time_ns for line in reading.lines}) == len(reading.lines)

    def test_a_job_that_goes_on_is_reported_as_resumed(self, tmp_path: Path) -> None:
        with running(PAUSED, tmp_path, ranks=2) as processes:
            collector = hang_collector(Jobs(*(process.pid for process in processes)))
            assert is_hang_reported(collect_until(collector, is_hang_reported, 25.0).lines)
            (tmp_path / "go").touch()
            reading = collect_until(collector, lambda lines: bool(lines), 10.0)
        parsed = [read_line(line.text) for line in reading.lines]
        assert [record is not None and isinstance(record[1], Resumption) for record in parsed] == [True] * 3
        assert [record[0].rank for record in parsed if record] == [None, 0, 1]

    def test_a_stopped_process_is_reported_with_its_stack(self, tmp_path: Path) -> None:
        """A stopped process does not respond to ptrace: its stack is read without it."""
        with running(PAUSED, tmp_path) as processes:
            out = tmp_path / "slurm-4242.out"
            wait_until(lambda: "step 8 " in out.read_text(), "its pause", 30)
            os.kill(processes[0].pid, signal.SIGSTOP)
            reading = collect_until(
                hang_collector(Jobs(processes[0].pid), replace(QUICK, settled_s=0.0)), is_hang_reported, 25.0
            )
            assert Path(f"/proc/{processes[0].pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        assert lines_with(reading, "state T")
        assert lines_with(reading, "train.py:", "MainThread")

    @pytest.mark.parametrize("activity", AT_WORK)
    def test_a_working_process_is_not_reported(self, activity: str, tmp_path: Path) -> None:
        with running(PRINT_STEPS + AT_WORK[activity], tmp_path) as processes:
            reading = collect_until(hang_collector(Jobs(processes[0].pid)), is_hang_reported, 5.0)
        assert not reading.lines

    def test_silence_during_startup_is_not_reported(self, tmp_path: Path) -> None:
        with running("print('loading', flush=True)\nimport time\ntime.sleep(1000)", tmp_path) as processes:
            reading = collect_until(hang_collector(Jobs(processes[0].pid)), is_hang_reported, 4.0)
        assert not reading.lines

    def test_output_to_a_pipe_is_detected(self, tmp_path: Path) -> None:
        """Under srun standard output is not a file: the I/O counters show that the process writes."""
        script = tmp_path / "train.py"
        script.write_text(PAUSED)
        process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, cwd=tmp_path)
        try:
            collector = hang_collector(Jobs(process.pid))
            reading = collect_until(collector, is_hang_reported, 25.0)
        finally:
            process.kill()
            process.communicate()
        assert lines_with(reading, "no output for", "s between outputs before")


class TestBounds:
    def test_a_report_of_64_ranks_stays_within_its_bounds(self, tmp_path: Path) -> None:
        """The report has stacks of some ranks, states of all, and stays within its size limit."""
        with running("import time\ntime.sleep(1000)", tmp_path, ranks=64) as processes:
            jobs = Jobs(*(process.pid for process in processes))
            wait_asleep(processes)
            ranks, reading = ranks_of(jobs), Reading()
            reporter = HangReporter(Path("/proc"), replace(QUICK, ranks=8, bytes=7_500), py_spy.program())
            suspicion = Suspicion(10.0, 1.0, 10.0, tuple(rank.key for rank in ranks), ())
            begin = time.monotonic()
            reporter.report(reading, "4242", ranks, suspicion, {})
            assert time.monotonic() - begin < 60.0
        assert len(lines_with(reading, "state")) == 64
        assert sum(len(line.text) for line in reading.lines) <= 7_500
        assert len(lines_with(reading, "MainThread")) + reading.lost["hang_lines"] >= 8

    def test_py_spy_has_a_time_limit_for_all_ranks(self, tmp_path: Path) -> None:
        with running("import time\ntime.sleep(1000)", tmp_path, ranks=6) as processes:
            slow_spy = fake_py_spy(tmp_path, "sleep 60")
            jobs = Jobs(*(process.pid for process in processes))
            wait_asleep(processes)
            ranks, reading = ranks_of(jobs), Reading()
            reporter = HangReporter(Path("/proc"), replace(QUICK, max_process_s=0.5, max_total_s=1.2), slow_spy)
            begin = time.monotonic()
            reporter.report(reading, "4242", ranks, Suspicion(None, None, 9.0, (), ()), {})
            assert time.monotonic() - begin < 15.0
        assert lines_with(reading, "took more than 0.5 s")
        assert lines_with(reading, "the time limit of 1.2 s for all ranks was reached")

    def test_a_process_that_dies_during_the_report_has_no_stack(self, tmp_path: Path) -> None:
        with running("import time\ntime.sleep(1000)", tmp_path, ranks=3) as processes:
            wait_asleep(processes)
            jobs = Jobs(*(process.pid for process in processes))
            ranks, reading = ranks_of(jobs), Reading()
            pids = [rank.main.pid for rank in ranks]
            spy = fake_py_spy(tmp_path, f'kill -9 {pids[1]} {pids[2]}\nsleep 0.1\nexec {py_spy.program()} "$@"')
            HangReporter(Path("/proc"), QUICK, spy).report(reading, "4242", ranks, Suspicion(9.0, 1.0, 9.0, (), ()), {})
        assert len(lines_with(reading, "no stack: ")) >= 2
        assert len(lines_with(reading, "state S")) == 3


def fake_py_spy(folder: Path, script: str) -> str:
    """The path of a script that replaces py-spy."""
    path = folder / "spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


class TestPySpy:
    @pytest.fixture
    def sleeper(self, tmp_path: Path) -> int:
        with running("import time\ntime.sleep(1000)", tmp_path) as processes:
            wait_asleep(processes)
            yield processes[0].pid  # type: ignore[misc]

    def test_stacks_of_a_real_process_name_its_calls(self, sleeper: int) -> None:
        spy = py_spy.program()
        assert spy is not None
        (thread,) = py_spy.stacks(spy, sleeper, timeout_s=5.0, native=True)
        assert (thread.tid, thread.name, thread.place) == (sleeper, "MainThread", "train.py:2 in <module>")
        assert any("sleep" in name for name in thread.native)
        (second,) = py_spy.stacks(spy, sleeper, timeout_s=5.0, nonblocking=True)
        assert second.calls == thread.calls
        assert not second.native

    @pytest.mark.parametrize(
        ("script", "reason"),
        [
            ("echo '{\"not\": a stack'", "unexpected output of py-spy"),
            ("head -c 100 /dev/urandom", "unexpected output of py-spy"),
            ("echo '[{\"frames\": 7}]'", "unexpected output of py-spy"),
            ("echo '[]'", "py-spy found no Python thread"),
            ("yes", "printed more than 4 MiB and was stopped"),
            ("sleep 60", "took more than 1 s and was stopped"),
            ("sleep 60 & wait", "took more than 1 s and was stopped"),
            ("exec >&- 2>&-; sleep 60", "took more than 1 s and was stopped"),
            ("echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1", "no permission to inspect the process"),
            ("echo 'Error: Failed to open process - check if it is running.' >&2; exit 1", "has ended or is not Python"),
            ("echo 'Error: Failed to find python version' >&2; exit 1", "py-spy: Failed to find python version"),
            ("exit 3", "py-spy: failed without a message"),
        ],
    )  # fmt: skip
    def test_a_failing_py_spy_gives_a_reason(self, script: str, reason: str, sleeper: int, tmp_path: Path) -> None:
        begin = time.monotonic()
        with pytest.raises(py_spy.StackUnavailable, match=reason):
            py_spy.stacks(fake_py_spy(tmp_path, script), sleeper, timeout_s=1.0 if "sleep" in script else 20.0)
        assert time.monotonic() - begin < 15.0

    def test_a_missing_py_spy_is_reported(self, sleeper: int, tmp_path: Path) -> None:
        with pytest.raises(py_spy.StackUnavailable, match="cannot be started"):
            py_spy.stacks(str(tmp_path / "nowhere"), sleeper, timeout_s=1.0)
        assert py_spy.program(str(tmp_path / "nowhere")) is None
        messages: list[str] = []
        hang_collector(Jobs(sleeper), replace(QUICK, py_spy=str(tmp_path / "nowhere")), messages.append)
        assert messages
        assert "py-spy not found at" in messages[0]

    def test_without_py_spy_a_sleeping_process_is_still_reported(self, tmp_path: Path) -> None:
        with running(PAUSED, tmp_path) as processes:
            options = replace(QUICK, py_spy=str(tmp_path / "nowhere"))
            reading = collect_until(hang_collector(Jobs(processes[0].pid), options), is_hang_reported, 25.0)
        assert lines_with(reading, "state S")
        assert lines_with(reading, "no stack: py-spy is not installed")

    def test_a_killed_py_spy_leaves_the_process_unharmed(self, sleeper: int) -> None:
        """A py-spy that is killed while it traces the process releases it."""
        spy = py_spy.program()
        assert spy is not None
        for wait in (0.0, 0.005, 0.01, 0.02, 0.04, 0.06):
            child = subprocess.Popen([spy, "dump", "--native", "--pid", str(sleeper)], stdout=-3, stderr=-3)
            time.sleep(wait)
            child.kill()
            child.wait()
        time.sleep(0.1)
        assert Path(f"/proc/{sleeper}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
    def test_an_unprivileged_py_spy_reports_the_missing_permission(self, sleeper: int) -> None:
        """py-spy may not inspect another user's process."""
        spy = Path("/tmp") / f"py-spy-{os.getpid()}"
        shutil.copy(py_spy.program() or "", spy)
        spy.chmod(0o755)
        command = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            str(spy),
            "dump",
            "--pid",
            str(sleeper),
        ]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        finally:
            spy.unlink()
        assert result.returncode == 1
        assert "no permission to inspect the process" in py_spy.reason(result.stderr)

    def test_the_obstacle_to_ptrace_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "none").write_text("Name:\tagent\nCapEff:\t0000000000000000\n")
        (tmp_path / "all").write_text("CapEff:\t000001ffffffffff\n")
        (tmp_path / "yama").write_text("1\n")
        (tmp_path / "off").write_text("3\n")
        none = py_spy.ptrace_obstacle(tmp_path / "none", tmp_path / "yama")
        assert none == "give the agent CAP_SYS_PTRACE (kernel.yama.ptrace_scope is 1)"
        assert "CAP_SYS_PTRACE" in py_spy.ptrace_obstacle(tmp_path / "none", tmp_path / "nowhere")
        assert "until the next boot" in py_spy.ptrace_obstacle(tmp_path / "all", tmp_path / "off")
        assert "user namespace" in py_spy.ptrace_obstacle(tmp_path / "all", tmp_path / "nowhere")


RECORDER = """
import os, sys, time
pipe, dump = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"], os.environ["TORCH_FR_DUMP_TEMP_FILE"]
name = f"{pipe}{sys.argv[1]}.pipe"
os.mkfifo(name)
read = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
for step in range(10):
    print("step", step, flush=True)
    time.sleep(0.1)
while True:
    time.sleep(0.2)
    if os.read(read, 128):
        with open(f"{dump}{sys.argv[1]}", "wb") as file:
            file.write(open(f"ring{sys.argv[1]}", "rb").read())
"""


def ring(enqueued: int, completed: int) -> bytes:
    """A flight recorder dump of one of two ranks."""
    entry = {
        "record_id": enqueued, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": enqueued,
        "profiling_name": "nccl:all_reduce", "state": "started", "time_created_ns": 10**18, "is_p2p": False,
    }  # fmt: skip
    status = {
        "last_enqueued_collective": enqueued,
        "last_started_collective": enqueued,
        "last_completed_collective": completed,
    }
    return pickle.dumps(
        {
            "version": "2.4",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
            "pg_status": {"0": status},
            "entries": [entry] if enqueued > completed else [],
        },
        protocol=2,
    )


def recorder_rows(folder: Path) -> list[dict[str, object]]:
    """The rows that are read from flight recorder dumps in a folder."""
    rows = [row for row in load([folder]).store.all_rows() if row.kind.startswith("flight_recorder")]
    return [{"kind": row.kind, **row.fields} for row in rows]


class TestRecorder:
    def test_a_requested_dump_is_sent_and_diagnosed(self, tmp_path: Path) -> None:
        """The dump arrives unchanged: it is read like the recorder's own file."""
        rings = [ring(40, 39), ring(39, 39)]
        for rank in (0, 1):
            (tmp_path / f"ring{rank}").write_bytes(rings[rank])
        environ = {
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/ask_",
            "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_",
            "TORCH_FR_BUFFER_SIZE": "2000",
        }
        with running(RECORDER, tmp_path, ranks=2, **environ) as processes:
            reading = collect_until(
                hang_collector(Jobs(*(process.pid for process in processes))), is_hang_reported, 25.0
            )
        assert len(lines_with(reading, "flight recorder", "piece")) == 2
        run = tmp_path / "run"
        for path, text in files(reading.lines).items():
            (run / path).parent.mkdir(parents=True, exist_ok=True)
            (run / path).write_text(text)
            (direct := tmp_path / "direct").mkdir(exist_ok=True)
        for rank in (0, 1):
            (direct / f"nccl_trace_rank_{rank}").write_bytes(rings[rank])
        assert recorder_rows(run) == [{**fields, "job": "4242"} for fields in recorder_rows(direct)]
        verdict = trackside.diagnose(run)
        assert (verdict.family, verdict.primary.ranks, verdict.run.id) == ("C2", (1,), "4242")
        assert "never_entered" in [sentence_name(claim) for claim in verdict.primary.shows]

    def test_a_redacted_bundle_contains_no_dump(self, tmp_path: Path) -> None:
        """A pickled dump cannot be redacted."""
        who, data = LineSubject("7", 3, 9), base64.b64encode(zlib.compress(ring(40, 39))).decode()
        thread = ThreadStack(9, "MainThread", "idle", "a.py:1 in f", (Call("f", "a.py", 1),))
        lines = [thread_line(who, thread), piece_line(who, Piece("a" * 8, 1, 1, data)), "step 1"]
        records = [f"2026-11-22T02:03:04.000000005Z stdout F {line}".encode() + b"\n" for line in lines]
        assert [read_piece(line) is not None for line in records] == [False, True, False]
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "hang.log").write_bytes(b"".join(records[:2]))
        bundle = tmp_path / "out.trackside"
        for redacted in (False, True):
            bundle.unlink(missing_ok=True)
            command = [sys.executable, "-m", "trackside", "bundle", str(tmp_path / "run"), "-o", str(bundle)]
            subprocess.run(command + ["--redact"] * redacted, check=True, capture_output=True, timeout=60)
            kinds = {row.kind for row in load([bundle]).store.all_rows()}
            assert "stack" in kinds
            assert ("flight_recorder" in kinds) is not redacted

    def test_lost_or_hostile_pieces_are_noted_and_not_read(self, tmp_path: Path) -> None:
        who, data = LineSubject("7", 3, 9), base64.b64encode(zlib.compress(ring(40, 39))).decode()
        evil = base64.b64encode(zlib.compress(pickle.dumps(os.system))).decode()
        bomb = base64.b64encode(zlib.compress(bytes(80 << 20))).decode()
        for note, lines in {
            "1 of its 2 pieces": [piece_line(who, Piece("a" * 8, 2, 2, data))],
            "pieces are damaged": [piece_line(who, Piece("a" * 8, 1, 1, "AAAA"))],
            "truncated": [
                piece_line(who, Piece("a" * 8, 1, 1, base64.b64encode(zlib.compress(b"x" * 99)[:-6]).decode()))
            ],
            "truncated or far too large": [piece_line(who, piece) for piece in pieces_of(bomb, "b" * 8, 48 << 10)],
            "not a flight recorder dump": [piece_line(who, Piece("a" * 8, 1, 1, evil))],
        }.items():
            (tmp_path / "hang.log").write_text("".join(f"{line}\n" for line in lines))
            (row,) = load([tmp_path]).inputs
            assert row.format == "hang-report"
            assert note in row.note, (note, row)
            assert not recorder_rows(tmp_path)

    def recorder_of(self, **environ: str) -> recorder.Recorder | None:
        (process,) = [process for process in Jobs(os.getpid()).processes() if process.pid == os.getpid()]
        process_with_environ = replace(with_owner(process, rank=3), environ={"RANK": "3", **environ})
        return recorder.recorder(Path("/proc"), Rank("7", 3, process_with_environ))

    def test_only_a_pipe_of_its_own_user_is_written_to(self, tmp_path: Path) -> None:
        environ = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/p", "TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}
        flight_recorder = self.recorder_of(**environ)
        assert flight_recorder is not None
        assert not recorder.request_dump(flight_recorder), "there is no pipe"
        victim = tmp_path / "p3.pipe"
        victim.write_text("precious")
        assert not recorder.request_dump(flight_recorder)
        assert victim.read_text() == "precious", "a plain file is not written to"
        victim.unlink()
        os.mkfifo(tmp_path / "real")
        victim.symlink_to(tmp_path / "real")
        reader = os.open(tmp_path / "real", os.O_RDONLY | os.O_NONBLOCK)
        assert not recorder.request_dump(flight_recorder), "links are not followed"
        victim.unlink()
        os.rename(tmp_path / "real", victim)
        assert not recorder.request_dump(replace(flight_recorder, uid=flight_recorder.uid + 1)), (
            "nor another user's pipe"
        )
        assert recorder.request_dump(flight_recorder)
        assert os.read(reader, 10) == b"1"
        os.close(reader)
        assert not recorder.request_dump(flight_recorder), "there is no reader"

    def test_only_a_file_of_its_own_user_is_read(self, tmp_path: Path) -> None:
        flight_recorder = self.recorder_of(TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/d")
        assert flight_recorder is not None
        assert flight_recorder.pipe is None
        dump = tmp_path / "d3"
        (tmp_path / "secret").write_bytes(b"secret")
        dump.symlink_to(tmp_path / "secret")
        with pytest.raises(recorder.DumpUnavailable, match="no dump"):
            recorder.dump_pieces(flight_recorder, 0, 1 << 20)
        dump.unlink()
        dump.write_bytes(pickle.dumps({"entries": []}))
        assert recorder.dump_pieces(flight_recorder, 0, 1 << 20)
        with pytest.raises(recorder.DumpUnavailable, match="no dump"):
            recorder.dump_pieces(flight_recorder, time.time_ns() + 10**9, 1 << 20)
        with pytest.raises(recorder.DumpUnavailable, match="no dump"):
            recorder.dump_pieces(replace(flight_recorder, uid=flight_recorder.uid + 1), 0, 1 << 20)
        dump.write_bytes(os.urandom(5000))
        with pytest.raises(recorder.DumpUnavailable, match=f"too large to send: {dump}"):
            recorder.dump_pieces(flight_recorder, 0, 1000)

    def test_paths_of_dumps_follow_the_environment(self, tmp_path: Path) -> None:
        assert self.recorder_of() is None
        flight_recorder = self.recorder_of(TORCH_NCCL_TRACE_BUFFER_SIZE="2000")
        assert flight_recorder is not None
        assert [path.name for path in flight_recorder.dumps] == ["comm_lib_trace_rank_3", "nccl_trace_rank_3"]
        disabled = self.recorder_of(TORCH_NCCL_DEBUG_INFO_PIPE_FILE="/x/p", TORCH_NCCL_TRACE_BUFFER_SIZE="0")
        assert disabled is not None
        assert disabled.pipe is None, "an empty ring is never dumped"


def test_a_state_is_read_without_wait_channel_and_system_call(tmp_path: Path) -> None:
    """Without privileges wchan is 0 and the other files may not be read."""
    task = tmp_path / "9" / "task" / "9"
    task.mkdir(parents=True)
    (task / "stat").write_text("9 (py thon) D 1 1 1 0")
    (task / "wchan").write_text("0")
    (process,) = [process for process in Jobs(os.getpid()).processes() if process.pid == os.getpid()]
    state = state_of(tmp_path, Rank("7", 0, replace(process, pid=9)))
    assert state is not None
    assert (state.state, state.wait, state.syscall) == ("D", "", "")
    assert state_of(tmp_path, Rank("7", 0, replace(process, pid=10))) is None


def test_ended_processes_are_not_reported() -> None:
    (process,) = [process for process in Jobs(os.getpid()).processes() if process.pid == os.getpid()]
    collector = hang_collector(FixedProcesses([with_owner(replace(process, pid=2**22 - 1), rank=0)]))
    for _ in range(3):
        reading = Reading()
        collector.collect(reading)
        assert not reading.lines
    collector.close()


def test_the_source_needs_a_proc_file_system(tmp_path: Path) -> None:
    from tests.agent.readings import open_source
    from trackside.agent.node import LocalNode
    from trackside.agent.sources.hang import SOURCE

    with pytest.raises(AgentSourceUnavailable, match="is not a proc file system"):
        open_source(SOURCE, LocalNode("n1", proc=tmp_path))
