"""Jobs that print, for the tests of the source ``job_output``: a /proc of links, and the source run step by step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trackside.agent.node import LocalNode
from trackside.agent.output.options import JobOutputOptions
from trackside.agent.owners import JobProcess, Owner
from trackside.agent.source import Context, LogLine, Reading
from trackside.agent.sources import job_output
from trackside.agent.sources.job_output import JobOutput

USER = f"Uid:\t{os.getuid()}\t0\t0\t0\nGid:\t{os.getgid()}\t0\t0\t0\nGroups:\t\n"


class Host:
    """A node: its processes and the files to which they write."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.known = folder / "proc", list[JobProcess]()
        (self.proc / "self").mkdir(parents=True)
        self.newest = 1
        self._load()

    def _load(self) -> None:
        (self.proc / "loadavg").write_text(f"0.00 0.01 0.05 1/100 {self.newest}\n")

    def start(
        self,
        pid: int,
        owner: Owner,
        stdout: Path | str,
        stderr: Path | str | None = None,
        comm: str = "python3",
        flags: str = "0102001",
        is_mapped: bool = True,
        **environ: str,
    ) -> None:
        """Add a process. One with ``is_mapped=False`` started after the last scan of /proc."""
        folder = self.proc / str(pid)
        for part in ("fd", "fdinfo"):
            (folder / part).mkdir(parents=True)
        for number, target in ((1, stdout), (2, stdout if stderr is None else stderr)):
            self.open_output(pid, number, target, flags)
        (folder / "comm").write_text(comm + "\n")
        (folder / "status").write_text(f"Name:\t{comm}\nState:\tS (sleeping)\nTgid:\t{pid}\nPid:\t{pid}\n{USER}")
        (folder / "environ").write_bytes(b"\0".join(f"{k}={v}".encode() for k, v in environ.items()))
        (folder / "cmdline").write_bytes(environ.get("_cmdline", comm).encode())
        process = JobProcess(pid, 1000 + pid, 1, comm, owner, None, environ)
        self.unscanned = getattr(self, "unscanned", {})
        self.unscanned[pid] = owner
        if is_mapped:
            self.known.append(process)
        self.newest = max(self.newest, pid)
        self._load()

    def open_output(self, pid: int, number: int, target: Path | str, flags: str = "0102001") -> None:
        link = self.proc / str(pid) / "fd" / str(number)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        (link.parent.parent / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t{flags}\nmnt_id:\t29\n")

    def end(self, pid: int) -> None:
        self.known = [process for process in self.known if process.pid != pid]
        for part in ("fd", "fdinfo"):
            for path in (self.proc / str(pid) / part).iterdir():
                path.unlink()

    # -- the interface of owners

    def processes(self) -> Sequence[JobProcess]:
        return self.known

    def of_pid(self, pid: int) -> Owner | None:
        return getattr(self, "unscanned", {}).get(pid)

    def of_gpu(self, gpu: str) -> Owner | None:
        return None

    def set_gpu_pids(self, gpu: str, pids: Sequence[int]) -> None:
        pass


class OutputCollector:
    """The source ``job_output`` on a host, collected step by step."""

    def __init__(self, host: Host, state: Path | None = None, **options: object) -> None:
        self.host, self.messages = host, list[str]()
        context = Context(
            LocalNode("n1", proc=host.proc), host, JobOutputOptions(**options), self.messages.append, state
        )  # type: ignore[arg-type]
        self.source = JobOutput(context)
        self.last = Reading()

    def collect(self, is_accepted: bool = True) -> list[LogLine]:
        """The lines of one reading."""
        self.last = Reading()
        self.source.collect(self.last)
        if is_accepted:
            self.source.accepted()
        return self.last.lines

    def texts(self, is_accepted: bool = True) -> list[str]:
        """The texts of one reading's lines."""
        return [line.text for line in self.collect(is_accepted)]


class Clock:
    """Replaces the source's monotonic clock."""

    def __init__(self, monkeypatch: object) -> None:
        self.now = 1000.0
        setattr_ = monkeypatch.setattr  # type: ignore[attr-defined]
        setattr_(job_output.time, "monotonic", lambda: self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds


def owner(job: str = "42", rank: int | None = None, step: str | None = "0") -> Owner:
    """The owner of a task's process."""
    return Owner(job=job, step=step, task=rank, rank=rank)


def append(path: Path, text: str | bytes) -> None:
    """Write to a file as a program does that has it open for appending."""
    with open(path, "ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
        file.flush()
        os.fsync(file.fileno())
