"""What processes write to pipes, read at the system call."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.trace.callers import Jobs, collect_reading, context, need_bpf
from tests.services import wait_until
from trackside.agent.source import AgentSourceUnavailable, LogLine
from trackside.agent.sources.written import SOURCE, WrittenOptions

pytestmark = pytest.mark.service

Shell = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def shell(jobs: Jobs) -> Iterator[Shell]:
    """Starts shells of job 42 that wait for a line of input first; ``$1 -c "$2"`` runs the Python statements."""
    need_bpf()
    with ExitStack() as stack:

        def start(script: str, *python: str, **streams: Any) -> subprocess.Popen[bytes]:
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
            command = ["sh", "-c", f"read go; {script}", "sh", sys.executable, "import os;" + ";".join(python)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, **streams)
            stack.callback(process.wait)
            stack.callback(process.kill)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    stack.callback(pipe.close)
            jobs.add(process.pid)
            return process

        yield start


def captured_lines(
    jobs: Jobs, process: subprocess.Popen[bytes], until: Callable[[list[LogLine]], bool], **options: Any
) -> list[LogLine]:
    collector = SOURCE.open(context(jobs, WrittenOptions("42", **options)))
    lines: list[LogLine] = []

    def collect_and_check() -> bool:
        lines.extend(collect_reading(collector).lines)
        return until(lines)

    try:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_until(collect_and_check, "the lines")
    finally:
        collector.close()
    return lines


def test_lines_are_assembled_and_labeled_with_their_owner(jobs: Jobs, shell: Shell) -> None:
    before = time.time_ns()
    process = shell(
        "echo one; printf 'two '; sleep 0.05; echo parts; $1 -c \"$2\"; sleep 60", r"os.write(2, b'wrong\n')"
    )
    lines = captured_lines(jobs, process, lambda lines: len(lines) >= 3)
    assert [(line.text, dict(line.labels)["stream"]) for line in lines] == [
        ("one", "stdout"), ("two parts", "stdout"), ("wrong", "stderr"),
    ]  # fmt: skip
    # the child is not yet among the owners
    assert [dict(line.labels).get("rank") for line in lines] == ["0", "0", None]
    assert {dict(line.labels)["slurm_job_id"] for line in lines} == {"42"}
    assert all(before < line.time_ns < time.time_ns() for line in lines)


def test_children_started_later_are_traced(jobs: Jobs, shell: Shell) -> None:
    process = shell("(echo child; (echo grandchild)); /bin/echo program; sleep 60")
    lines = captured_lines(jobs, process, lambda lines: len(lines) >= 3)
    assert [line.text for line in lines] == ["child", "grandchild", "program"]


def test_output_to_files_is_not_traced(jobs: Jobs, shell: Shell, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = shell('echo filed; $1 -c "$2"; sleep 60', r"os.write(2, b'said\n')", stdout=out)
        lines = captured_lines(jobs, process, lambda lines: bool(lines))
    assert [line.text for line in lines] == ["said"]


def test_long_vectored_and_binary_writes_are_read(jobs: Jobs, shell: Shell) -> None:
    process = shell(
        '$1 -c "$2"; sleep 60',
        r"os.write(1, b'x' * 60000 + b'\n')",
        r"os.writev(1, [b'vec', b'tor', b'', b'\n'])",
        r"os.write(1, b'\xff\xfe\n')",
    )
    lines = captured_lines(jobs, process, lambda lines: len(lines) >= 3)
    assert [line.text for line in lines] == ["x" * 60000, "vector", "\ufffd\ufffd"]


def test_bytes_beyond_the_limit_of_a_write_are_counted_as_lost(jobs: Jobs, shell: Shell) -> None:
    process = shell('$1 -c "$2"; sleep 60', r"os.write(1, b'x' * 200000)", r"os.write(1, b'\n')")
    assert process.stdin is not None
    assert process.stdout is not None
    collector = SOURCE.open(context(jobs, WrittenOptions("42")))
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert len(process.stdout.read(200001)) == 200001
    assert collect_reading(collector).lost["bytes"] == 200000 - 4 * 16384
    collector.close()


def test_lines_of_other_processes_are_not_read(jobs: Jobs, shell: Shell) -> None:
    process = shell("echo traced; sleep 60")
    with subprocess.Popen(["sh", "-c", "echo others"], stdout=subprocess.PIPE) as other:
        lines = captured_lines(jobs, process, lambda lines: bool(lines))
        other.communicate()
    assert [line.text for line in lines] == ["traced"]


def test_the_source_ends_after_its_duration(jobs: Jobs, shell: Shell) -> None:
    shell("sleep 60")
    collector = SOURCE.open(context(jobs, WrittenOptions("42", 0.0)))
    collect_reading(collector)
    reading = collect_reading(collector)
    assert "is over" in reading.warnings[0]
    collector.close()


def test_without_a_job_the_source_is_unavailable(jobs: Jobs) -> None:
    with pytest.raises(AgentSourceUnavailable, match="no job is set"):
        SOURCE.open(context(jobs, WrittenOptions()))
