"""Stub libraries, and processes that call them on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trackside.agent.node import LocalNode
from trackside.agent.owners import JobProcess, Owner, Owners
from trackside.agent.source import AgentSourceUnavailable, Context, Reading

STUBS = Path(__file__).parent / "stubs"
CALLER = Path(__file__).parent / "caller.py"
SONAMES = {"cudart": "libcudart.so.12", "cuda": "libcuda.so.1", "nccl": "libnccl.so.2"}
FLAGS = ("-shared", "-fPIC", "-O2", "-fno-omit-frame-pointer", "-fcf-protection=none", "-fvisibility=hidden", "-w")


def compile_stub(folder: Path, kind: str) -> Path:
    """Compile a stub library into a folder; its path."""
    path = folder / SONAMES[kind]
    target = f"{os.uname().machine}-linux-gnu"
    flags = [flag for flag in FLAGS if "cf-protection" not in flag or os.uname().machine == "x86_64"]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *flags, f"-Wl,-soname,{SONAMES[kind]}",
               str(STUBS / f"{kind}.c"), str(STUBS / "body.c"), "-o", str(path)]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return path


class Caller:
    """A process that runs statements on request."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid

    def do(self, statement: str) -> Any:
        """Run a statement in the process; returns what it assigned to ``value``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def call(self, name: str, *arguments: object, times: int = 1) -> Any:
        """Call a function of the process's libraries."""
        return self.do(f"value = call({', '.join(map(repr, (name, *arguments)))}, times={times})")

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()


@contextmanager
def start_caller(*libraries: Path, **environment: str) -> Iterator[Caller]:
    """A process that has loaded these libraries."""
    process = subprocess.Popen([sys.executable, "-S", str(CALLER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, env={**os.environ, **environment})  # fmt: skip
    caller = Caller(process)
    try:
        for library in libraries:
            caller.do(f"load({str(library)!r})")
        yield caller
    finally:
        caller.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


class Jobs(Owners):
    """Owners of the processes that are ranks of job 42."""

    def __init__(self) -> None:
        self.ranks: dict[int, int] = {}

    def add(self, *callers: Caller | int) -> None:
        """Add processes as the next ranks."""
        for caller in callers:
            self.ranks[caller if isinstance(caller, int) else caller.pid] = len(self.ranks)

    def processes(self) -> Sequence[JobProcess]:
        return [
            JobProcess(pid, start_ticks(pid), 1, "", owner, environ={})
            for pid in list(self.ranks)
            if (owner := self.of_pid(pid)) is not None and start_ticks(pid)
        ]

    def of_pid(self, pid: int) -> Owner | None:
        return Owner(job="42", rank=self.ranks[pid], local_rank=self.ranks[pid]) if pid in self.ranks else None


def start_ticks(pid: int) -> int:
    """When a process started, in ticks; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def context(owners: Any, options: Any) -> Context:
    """A context as the runner makes it."""
    return Context(LocalNode("n1"), owners, options, lambda text: None)


def need_bpf(name: str = "cuda") -> None:
    """Skip if the kernel does not allow BPF; fail in CI."""
    from trackside.agent.trace.probes import Probes

    try:
        Probes(name).close()
    except AgentSourceUnavailable as error:
        text = f"{error.reason}: {error.remedy}"
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(text, pytrace=False)
        pytest.skip(text)


def value(reading: Reading, metric: str, **labels: object) -> float | None:
    """The value of the only sample with these labels; None if there is none."""
    label_set = {(name, str(label_value)) for name, label_value in labels.items()}
    values = [sample.value for sample in reading.samples if sample.metric == metric and label_set <= set(sample.labels)]
    assert len(values) <= 1, f"{len(values)} samples of {metric} with {labels}"
    return values[0] if values else None


def total(reading: Reading, metric: str, **labels: object) -> float:
    """The sum of all samples with these labels."""
    label_set = {(name, str(label_value)) for name, label_value in labels.items()}
    return sum(
        sample.value for sample in reading.samples if sample.metric == metric and label_set <= set(sample.labels)
    )


def collect_reading(collector: Any) -> Reading:
    """A new reading."""
    reading = Reading()
    collector.collect(reading)
    return reading
