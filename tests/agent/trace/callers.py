"""Stub libraries, and processes that call them as a test says."""

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
from trackside.agent.source import Context, Reading, Unavailable

STUBS = Path(__file__).parent / "stubs"
CALLER = Path(__file__).parent / "caller.py"
SONAMES = {"cudart": "libcudart.so.12", "cuda": "libcuda.so.1", "nccl": "libnccl.so.2"}
FLAGS = ("-shared", "-fPIC", "-O2", "-fno-omit-frame-pointer", "-fcf-protection=none", "-fvisibility=hidden", "-w")


def compiled(folder: Path, kind: str) -> Path:
    """A stub library in a folder."""
    path = folder / SONAMES[kind]
    target = f"{os.uname().machine}-linux-gnu"
    flags = [flag for flag in FLAGS if "cf-protection" not in flag or os.uname().machine == "x86_64"]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *flags, f"-Wl,-soname,{SONAMES[kind]}",
               str(STUBS / f"{kind}.c"), str(STUBS / "body.c"), "-o", str(path)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return path


class Caller:
    """A process that does what it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid

    def do(self, statement: str) -> Any:
        """Run a statement there; what it put into ``value``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def call(self, name: str, *given: object, times: int = 1) -> Any:
        """Call a function of its libraries."""
        return self.do(f"value = call({', '.join(map(repr, (name, *given)))}, times={times})")

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


@contextmanager
def calling(*libraries: Path, **environment: str) -> Iterator[Caller]:
    """A process that has loaded these."""
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
    """Owners of these processes: pid -> rank of job 42."""

    def __init__(self, **more: Any) -> None:
        self.ranks: dict[int, int] = {}
        self.more = more

    def add(self, *callers: Caller | int) -> None:
        """The next ranks."""
        for caller in callers:
            self.ranks[caller if isinstance(caller, int) else caller.pid] = len(self.ranks)

    def processes(self) -> Sequence[JobProcess]:
        return [
            JobProcess(pid, started(pid), 1, "", owner, environ={})
            for pid in list(self.ranks)
            if (owner := self.of_pid(pid)) is not None and started(pid)
        ]

    def of_pid(self, pid: int) -> Owner | None:
        return Owner(job="42", rank=self.ranks[pid], local_rank=self.ranks[pid]) if pid in self.ranks else None


def started(pid: int) -> int:
    """When a process began, in ticks; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def context(owners: Any, options: Any) -> Context:
    """As the runner gives it."""
    return Context(LocalNode("n1"), owners, options, lambda text: None)


def need_bpf(name: str = "cuda") -> None:
    """Skip where the kernel has no BPF for us; in CI that is a failure."""
    from trackside.agent.trace.probes import Probes

    try:
        Probes(name).close()
    except Unavailable as error:
        text = f"{error.reason}: {error.remedy}"
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(text, pytrace=False)
        pytest.skip(text)


def value(reading: Reading, metric: str, **labels: object) -> float | None:
    """The one sample that has these labels."""
    wanted = {(name, str(each)) for name, each in labels.items()}
    found = [sample.value for sample in reading.samples if sample.metric == metric and wanted <= set(sample.labels)]
    assert len(found) <= 1, f"{len(found)} samples of {metric} with {labels}"
    return found[0] if found else None


def total(reading: Reading, metric: str, **labels: object) -> float:
    """The sum of all samples with these labels."""
    wanted = {(name, str(each)) for name, each in labels.items()}
    return sum(sample.value for sample in reading.samples if sample.metric == metric and wanted <= set(sample.labels))


def collected(collector: Any) -> Reading:
    """A reading now."""
    reading = Reading()
    collector.collect(reading)
    return reading
