"""Real processes that hang and their owners, for the tests of the source ``hang``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.agent.readings import open_source
from trackside.agent.node import LocalNode
from trackside.agent.owners import JobProcess, Owner
from trackside.agent.source import Collector, LogLine, Reading
from trackside.agent.sources.hang import SOURCE, HangOptions
from trackside.stores.log_store import LogEntry
from trackside.stores.log_text import log_lines

QUICK = HangOptions(
    silence_s=0.6,
    usual_gaps=3.0,
    inactive_s=0.5,
    unheard_s=1.5,
    startup_s=60.0,
    settled_s=0.5,
    max_process_s=5.0,
    recorder_s=3.0,
)
"""The thresholds for real jobs, divided by about a hundred."""


class Jobs:
    """Owners of the processes that a test started and of their descendants, read from their environments."""

    def __init__(self, *root_pids: int, job: str = "4242") -> None:
        self.root_pids, self.job = list(root_pids), job

    def processes(self) -> Sequence[JobProcess]:
        """All that are alive, as /proc lists them."""
        stats = {pid: stat for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (stat := stat_of(pid))}
        descendants, pending_pids = {}, list(self.root_pids)
        while pending_pids:
            pid = pending_pids.pop()
            if pid in stats and pid not in descendants:
                descendants[pid] = stats[pid]
                pending_pids += [child for child, stat in stats.items() if stat[1] == pid]
        return [self._process(pid, *stat) for pid, stat in sorted(descendants.items())]

    def _process(self, pid: int, comm: str, parent: int, start_ticks: int) -> JobProcess:
        environ = environ_of(pid)
        rank = int(environ["RANK"]) if "RANK" in environ else None
        return JobProcess(pid, start_ticks, parent, comm, Owner(job=self.job, rank=rank), environ=environ)

    def of_pid(self, pid: int) -> Owner | None:
        """Unused by the source."""
        return None

    def of_gpu(self, gpu: str) -> Owner | None:
        """Unused by the source."""
        return None

    def set_gpu_pids(self, gpu: str, pids: Sequence[int]) -> None:
        """Ignored."""


class FixedProcesses(Jobs):
    """Owners of a fixed list of processes."""

    def __init__(self, processes: Sequence[JobProcess]) -> None:
        super().__init__()
        self.fixed = processes

    def processes(self) -> Sequence[JobProcess]:
        """The fixed list."""
        return self.fixed


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """Command, parent and start of a process; None if it has ended."""
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
    """Processes that run a Python program as ``train.py RANK RANKS``."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(program)
    path = output or folder / "slurm-4242.out"
    processes = []
    try:
        with open(path, "ab") as out:
            for rank in range(ranks):
                rank_environ = {**os.environ, "RANK": str(rank), **environ}
                command = [sys.executable, "-u", str(script), str(rank), str(ranks)]
                processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=rank_environ, cwd=folder))
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def wait_asleep(processes: Sequence[subprocess.Popen[bytes]], within_s: float = 60.0) -> None:
    """Wait until each process is in ``time.sleep``: Python has started and the script has reached that line."""
    deadline = time.monotonic() + within_s
    for process in processes:
        while "nanosleep" not in Path(f"/proc/{process.pid}/wchan").read_text():
            assert time.monotonic() < deadline, f"{process.pid} did not reach time.sleep"
            time.sleep(0.02)


def hang_collector(
    jobs: Jobs, options: HangOptions = QUICK, say: Callable[[str], object] = lambda text: None
) -> Collector:
    """The source ``hang``, opened on this machine."""
    return open_source(SOURCE, LocalNode("n1"), jobs, options, say)


def collect_until(
    collector: Collector, until: Callable[[list[LogLine]], bool], within_s: float, step_s: float = 0.15
) -> Reading:
    """Collect repeatedly until ``until`` is true for all lines so far, or the time is up."""
    total, deadline = Reading(), time.monotonic() + within_s
    while time.monotonic() < deadline:
        reading = Reading()
        collector.collect(reading)
        total.lines += reading.lines
        for name, count in reading.lost.items():
            total.lost[name] = total.lost.get(name, 0) + count
        if until(total.lines):
            break
        time.sleep(step_s)
    return total


def is_hang_reported(lines: list[LogLine]) -> bool:
    """Whether the lines report a hang."""
    return any("inactive" in line.text and " pid " not in line.text for line in lines)


def lines_with(reading: Reading, *words: str) -> list[str]:
    """The texts of the lines that contain all these words."""
    return [line.text for line in reading.lines if all(word in line.text for word in words)]


def files(lines: Sequence[LogLine], node: str = "n1") -> Mapping[str, str]:
    """The files that a receiver writes from lines: path -> text."""
    texts_by_path: dict[str, list[str]] = {}
    for line in lines:
        for path, text in log_lines(LogEntry(line.time_ns, line.text, {**dict(line.labels), "node": node})):
            texts_by_path.setdefault(path, []).append(text)
    return {path: "".join(texts) for path, texts in texts_by_path.items()}


def with_owner(process: JobProcess, **owner: object) -> JobProcess:
    """A process with some fields of its owner replaced."""
    return replace(process, owner=replace(process.owner, **owner))  # type: ignore[arg-type]
