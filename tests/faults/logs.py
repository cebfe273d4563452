"""A run with its output and kernel messages in a Loki, and the rest in files."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np

from tests.faults.runs import JOB, ServedRun, TimedVerdict, diagnose, loki_at, metrics_at, site
from tests.stores.logs.servers import SECOND, Answer, Entry, LokiServer
from trackside.model import Run

LABELS = "timeout_s = 1\ndeadline_s = 8\nretries = 1\npage = 20\nlookback_s = 4e7\n"
KERNEL = {"unit": "kernel", "transport": "kernel"}


def loki(run: Run, files: Path) -> LokiServer:
    """A Loki with all output; lines of training are spread evenly from one minute after the start to the end."""
    assert run.id is not None
    assert run.start is not None
    assert run.end is not None
    start, end, labels = run.start, run.end, {"job_id": run.id, "node": run.nodes[0]}
    texts = next(files.glob("slurm-*.out")).read_text("utf-8").splitlines()
    startup_count = next((index for index, text in enumerate(texts) if "loss" in text), len(texts))
    times = np.concatenate(
        [start + np.arange(startup_count) * 0.1, np.linspace(start + 60, end, len(texts) - startup_count)]
    )
    job_lines = [Entry(round(time * SECOND), text, labels) for time, text in zip(times.tolist(), texts, strict=True)]
    return LokiServer(*job_lines, *_kernel(files), max_range_s=10**9)


def _kernel(files: Path) -> Iterator[Entry]:
    for path in sorted(files.glob("kernel/*.log")):
        for line in path.read_text("utf-8").splitlines():
            time, _, text = line.partition(" ")
            moment = dt.datetime.fromisoformat(time.replace(",", "."))
            yield Entry(int(moment.timestamp()) * SECOND, text, {"node": path.stem, **KERNEL})


def without_logs(files: Path, folder: Path, records: bool = True) -> Path:
    """A folder with the run's other files; ``records``: including those of Slurm."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in files.glob("*.txt") if records else ():
        shutil.copy(path, folder)
    return folder


def diagnose_with_logs(run: ServedRun, logs: str, folder: Path, records: bool = True) -> TimedVerdict:
    """The verdict with logs from the Loki at ``logs``."""
    site_ = site(folder, metrics_at(run.url, "timeout_s = 20\n"), loki_at(logs, LABELS))
    return diagnose(site_, [without_logs(run.rest, folder / "rest", records)], JOB)


def from_page(number: int, spoil: Callable[[Answer], Answer]) -> Callable[[int, str, Answer], Answer]:
    """Change the answers that contain lines of the job, from this page on."""
    pages = count(1)

    def spoil_late(number_of_request: int, path: str, answer: Answer) -> Answer:
        of_job = path.endswith("query_range") and b'"job_id"' in answer.body
        return spoil(answer) if of_job and next(pages) >= number else answer

    return spoil_late
