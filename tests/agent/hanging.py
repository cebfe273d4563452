"""Real processes that hang, and whose they are: what the tests of the source ``hang`` share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.agent.readings import opened
from trackside.agent.node import LocalNode
from trackside.agent.owners import JobProcess, Owner
from trackside.agent.source import Collector, LogLine, Reading
from trackside.agent.sources.hang import SOURCE, HangOptions
from trackside.stores.log_store import LogEntry
from trackside.stores.log_text import written_lines

QUICK = HangOptions(
    silence_s=0.6, usual_gaps=3.0, still_s=0.5, unheard_s=1.5, startup_s=60.0, settled_s=0.5, one_s=5.0, recorder_s=3.0
)
"""The thresholds of real jobs, some hundred times as short."""


class Jobs:
    """The owners of the processes below some that a test started, by their environment."""

    def __init__(self, *tops: int, job: str = "4242") -> None:
        self.tops, self.job = list(tops), job

    def processes(self) -> Sequence[JobProcess]:
        """All of them that live, as the kernel lists them."""
        found = {pid: told for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (told := stat_of(pid))}
        mine, todo = {}, list(self.tops)
        while todo:
            pid = todo.pop()
            if pid in found and pid not in mine:
                mine[pid] = found[pid]
                todo += [child for child, told in found.items() if told[1] == pid]
        return [self._process(pid, *told) for pid, told in sorted(mine.items())]

    def _process(self, pid: int, comm: str, parent: int, started: int) -> JobProcess:
        environ = environ_of(pid)
        rank = int(environ["RANK"]) if "RANK" in environ else None
        return JobProcess(pid, started, parent, comm, Owner(job=self.job, rank=rank), environ=environ)

    def of_pid(self, pid: int) -> Owner | None:
        """Not asked."""
        return None

    def of_gpu(self, gpu: str) -> Owner | None:
        """Not asked."""
        return None

    def set_gpu_pids(self, gpu: str, pids: Sequence[int]) -> None:
        """Let go."""


class Listed(Jobs):
    """Owners that give what they were given."""

    def __init__(self, processes: Sequence[JobProcess]) -> None:
        super().__init__()
        self.listed = processes

    def processes(self) -> Sequence[JobProcess]:
        """These."""
        return self.listed


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """Command, parent, start; None of one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    comm, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return None if fields[0] == "Z" else (comm, int(fields[1]), int(fields[19]))


def environ_of(pid: int) -> dict[str, str]:
    """A process's environment."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(part.partition("=")[::2] for part in data.decode("utf-8", "replace").split("\0") if "=" in part)


@contextmanager
def running(
    program: str, folder: Path, ranks: int = 1, output: Path | None = None, **environ: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ranks of a Python program, whose file is ``train.py``. Its arguments: rank, number of ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(program)
    path = output or folder / "slurm-4242.out"
    started = []
    try:
        with open(path, "ab") as out:
            for rank in range(ranks):
                own = {**os.environ, "RANK": str(rank), **environ}
                command = [sys.executable, "-u", str(script), str(rank), str(ranks)]
                started.append(subprocess.Popen(command, stdout=out, stderr=out, env=own, cwd=folder))
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def wait_asleep(started: Sequence[subprocess.Popen[bytes]], within_s: float = 60.0) -> None:
    """Until each of these sleeps in ``time.sleep``: Python is up then, and the script at its line."""
    until = time.monotonic() + within_s
    for process in started:
        while "nanosleep" not in Path(f"/proc/{process.pid}/wchan").read_text():
            assert time.monotonic() < until, f"{process.pid} never came to sleep"
            time.sleep(0.02)


def watching(jobs: Jobs, options: HangOptions = QUICK, say: Callable[[str], object] = lambda text: None) -> Collector:
    """The source, opened on this machine."""
    return opened(SOURCE, LocalNode("n1"), jobs, options, say)


def collected(
    collector: Collector, until: Callable[[list[LogLine]], bool], within_s: float, step_s: float = 0.15
) -> Reading:
    """Collect again and again until there are such lines, or the time is over."""
    whole, end = Reading(), time.monotonic() + within_s
    while time.monotonic() < end:
        reading = Reading()
        collector.collect(reading)
        whole.lines += reading.lines
        for name, count in reading.lost.items():
            whole.lost[name] = whole.lost.get(name, 0) + count
        if until(whole.lines):
            break
        time.sleep(step_s)
    return whole


def reported(lines: list[LogLine]) -> bool:
    """Whether a hang was."""
    return any("still" in line.text and " pid " not in line.text for line in lines)


def said(reading: Reading, *words: str) -> list[str]:
    """The lines that have all these words."""
    return [line.text for line in reading.lines if all(word in line.text for word in words)]


def files(lines: Sequence[LogLine], node: str = "n1") -> Mapping[str, str]:
    """The files that a receiver makes of lines."""
    found: dict[str, list[str]] = {}
    for line in lines:
        for path, text in written_lines(LogEntry(line.time_ns, line.text, {**dict(line.labels), "node": node})):
            found.setdefault(path, []).append(text)
    return {path: "".join(texts) for path, texts in found.items()}


def moved(process: JobProcess, **owner: object) -> JobProcess:
    """A process of somebody else."""
    return replace(process, owner=replace(process.owner, **owner))  # type: ignore[arg-type]
