"""What processes write to pipes, caught at the system call."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.trace.callers import Jobs, collected, context, need_bpf
from tests.services import wait_until
from trackside.agent.source import LogLine, Unavailable
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


def caught(
    jobs: Jobs, process: subprocess.Popen[bytes], until: Callable[[list[LogLine]], bool], **options: Any
) -> list[LogLine]:
    collector = SOURCE.open(context(jobs, WrittenOptions("42", **options)))
    lines: list[LogLine] = []

    def enough() -> bool:
        lines.extend(collected(collector).lines)
        return until(lines)

    try:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_until(enough, "the lines")
    finally:
        collector.close()
    return lines


def test_lines_are_put_together_and_say_whose_they_are(jobs: Jobs, shell: Shell) -> None:
    before = time.time_ns()
    process = shell(
        "echo one; printf 'two '; sleep 0.05; echo parts; $1 -c \"$2\"; sleep 60", r"os.write(2, b'wrong\n')"
    )
    lines = caught(jobs, process, lambda got: len(got) >= 3)
    assert [(line.text, dict(line.labels)["stream"]) for line in lines] == [
        ("one", "stdout"), ("two parts", "stdout"), ("wrong", "stderr"),
    ]  # fmt: skip
    assert [dict(line.labels).get("rank") for line in lines] == ["0", "0", None]  # the owners don't know the child yet
    assert {dict(line.labels)["slurm_job_id"] for line in lines} == {"42"}
    assert all(before < line.time_ns < time.time_ns() for line in lines)


def test_children_that_are_born_meanwhile_are_followed(jobs: Jobs, shell: Shell) -> None:
    process = shell("(echo child; (echo grandchild)); /bin/echo program; sleep 60")
    lines = caught(jobs, process, lambda got: len(got) >= 3)
    assert [line.text for line in lines] == ["child", "grandchild", "program"]


def test_a_stream_that_is_a_file_is_left_to_those_who_read_files(jobs: Jobs, shell: Shell, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = shell('echo filed; $1 -c "$2"; sleep 60', r"os.write(2, b'said\n')", stdout=out)
        lines = caught(jobs, process, lambda got: bool(got))
    assert [line.text for line in lines] == ["said"]


def test_long_gathered_and_binary_writes(jobs: Jobs, shell: Shell) -> None:
    process = shell(
        '$1 -c "$2"; sleep 60',
        r"os.write(1, b'x' * 60000 + b'\n')",
        r"os.writev(1, [b'vec', b'tor', b'', b'\n'])",
        r"os.write(1, b'\xff\xfe\n')",
    )
    lines = caught(jobs, process, lambda got: len(got) >= 3)
    assert [line.text for line in lines] == ["x" * 60000, "vector", "\ufffd\ufffd"]


def test_what_is_too_long_is_counted_as_lost(jobs: Jobs, shell: Shell) -> None:
    process = shell('$1 -c "$2"; sleep 60', r"os.write(1, b'x' * 200000)", r"os.write(1, b'\n')")
    assert process.stdin is not None
    assert process.stdout is not None
    collector = SOURCE.open(context(jobs, WrittenOptions("42")))
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert len(process.stdout.read(200001)) == 200001
    assert collected(collector).lost["bytes"] == 200000 - 4 * 16384
    collector.close()


def test_nobody_elses_lines(jobs: Jobs, shell: Shell) -> None:
    process = shell("echo mine; sleep 60")
    with subprocess.Popen(["sh", "-c", "echo others"], stdout=subprocess.PIPE) as other:
        lines = caught(jobs, process, lambda got: bool(got))
        other.communicate()
    assert [line.text for line in lines] == ["mine"]


def test_it_ends_by_itself(jobs: Jobs, shell: Shell) -> None:
    shell("sleep 60")
    collector = SOURCE.open(context(jobs, WrittenOptions("42", 0.0)))
    collected(collector)
    reading = collected(collector)
    assert "is over" in reading.warnings[0]
    collector.close()


def test_unavailable_without_a_job(jobs: Jobs) -> None:
    with pytest.raises(Unavailable, match="no job is set"):
        SOURCE.open(context(jobs, WrittenOptions()))
