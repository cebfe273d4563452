"""Jobs that print, for the tests of the source that follows them: a /proc of links, and the source by hand."""

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
    """A node: its processes, and which file each writes to."""

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
        """A process begins; one that is not mapped is too young for it."""
        here = self.proc / str(pid)
        for part in ("fd", "fdinfo"):
            (here / part).mkdir(parents=True)
        for number, target in ((1, stdout), (2, stdout if stderr is None else stderr)):
            self.opens(pid, number, target, flags)
        (here / "comm").write_text(comm + "\n")
        (here / "status").write_text(f"Name:\t{comm}\nState:\tS (sleeping)\nTgid:\t{pid}\nPid:\t{pid}\n{USER}")
        (here / "environ").write_bytes(b"\0".join(f"{k}={v}".encode() for k, v in environ.items()))
        (here / "cmdline").write_bytes(environ.get("_cmdline", comm).encode())
        process = JobProcess(pid, 1000 + pid, 1, comm, owner, None, environ)
        self.young = getattr(self, "young", {})
        self.young[pid] = owner
        if is_mapped:
            self.known.append(process)
        self.newest = max(self.newest, pid)
        self._load()

    def opens(self, pid: int, number: int, target: Path | str, flags: str = "0102001") -> None:
        link = self.proc / str(pid) / "fd" / str(number)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        (link.parent.parent / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t{flags}\nmnt_id:\t29\n")

    def ends(self, pid: int) -> None:
        self.known = [each for each in self.known if each.pid != pid]
        for part in ("fd", "fdinfo"):
            for path in (self.proc / str(pid) / part).iterdir():
                path.unlink()

    # -- as owners

    def processes(self) -> Sequence[JobProcess]:
        return self.known

    def of_pid(self, pid: int) -> Owner | None:
        return getattr(self, "young", {}).get(pid)

    def of_gpu(self, gpu: str) -> Owner | None:
        return None

    def set_gpu_pids(self, gpu: str, pids: Sequence[int]) -> None:
        pass


class Printing:
    """The source on a host, with a clock that is set by hand."""

    def __init__(self, host: Host, state: Path | None = None, **options: object) -> None:
        self.host, self.said = host, list[str]()
        context = Context(LocalNode("n1", proc=host.proc), host, JobOutputOptions(**options), self.said.append, state)  # type: ignore[arg-type]
        self.source = JobOutput(context)
        self.last = Reading()

    def collect(self, is_accepted: bool = True) -> list[LogLine]:
        """One reading's lines."""
        self.last = Reading()
        self.source.collect(self.last)
        if is_accepted:
            self.source.accepted()
        return self.last.lines

    def texts(self, is_accepted: bool = True) -> list[str]:
        """The same without times and labels."""
        return [line.text for line in self.collect(is_accepted)]


class Clock:
    """Stands in for the steady clock of the source."""

    def __init__(self, monkeypatch: object) -> None:
        self.now = 1000.0
        setattr_ = monkeypatch.setattr  # type: ignore[attr-defined]
        setattr_(job_output.time, "monotonic", lambda: self.now)

    def passes(self, seconds: float) -> None:
        self.now += seconds


def owner(job: str = "42", rank: int | None = None, step: str | None = "0") -> Owner:
    """Of a task."""
    return Owner(job=job, step=step, task=rank, rank=rank)


def append(path: Path, text: str | bytes) -> None:
    """As a program that has it open for appending."""
    with open(path, "ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
        file.flush()
        os.fsync(file.fileno())
