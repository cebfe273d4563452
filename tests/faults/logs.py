"""A run's output and kernel messages as a Loki has them, and the rest in files."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np

from tests.faults.runs import JOB, Held, Told, ask, loki_at, metrics_at, site
from tests.stores.logs.servers import SECOND, Answer, Entry, LokiServer
from trackside.model import Run

LABELS = "timeout_s = 1\ndeadline_s = 8\nretries = 1\npage = 20\nlookback_s = 4e7\n"
KERNEL = {"unit": "kernel", "transport": "kernel"}


def loki(run: Run, files: Path) -> LokiServer:
    """It holds all that was printed: training in even time from a minute after the run's start to its end."""
    assert run.id is not None
    assert run.start is not None
    assert run.end is not None
    start, end, labels = run.start, run.end, {"job_id": run.id, "node": run.nodes[0]}
    texts = next(files.glob("slurm-*.out")).read_text("utf-8").splitlines()
    before = next((place for place, text in enumerate(texts) if "loss" in text), len(texts))
    times = np.concatenate([start + np.arange(before) * 0.1, np.linspace(start + 60, end, len(texts) - before)])
    own = [Entry(round(time * SECOND), text, labels) for time, text in zip(times.tolist(), texts, strict=True)]
    return LokiServer(*own, *_kernel(files), max_range_s=10**9)


def _kernel(rest: Path) -> Iterator[Entry]:
    for path in sorted(rest.glob("kernel/*.log")):
        for line in path.read_text("utf-8").splitlines():
            time, _, text = line.partition(" ")
            moment = dt.datetime.fromisoformat(time.replace(",", "."))
            yield Entry(int(moment.timestamp()) * SECOND, text, {"node": path.stem, **KERNEL})


def without_logs(files: Path, folder: Path, records: bool = True) -> Path:
    """The run's other files; ``records``: Slurm's as well."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in files.glob("*.txt") if records else ():
        shutil.copy(path, folder)
    return folder


def judged(run: Held, logs: str, folder: Path, records: bool = True) -> Told:
    """The verdict with logs from there."""
    where = site(folder, metrics_at(run.url, "timeout_s = 20\n"), loki_at(logs, LABELS))
    return ask(where, [without_logs(run.rest, folder / "rest", records)], JOB)


def from_page(number: int, spoil: Callable[[Answer], Answer]) -> Callable[[int, str, Answer], Answer]:
    """Answers that hold lines of the job are spoilt from this one on."""
    asked = count(1)

    def at(place: int, path: str, answer: Answer) -> Answer:
        own = path.endswith("query_range") and b'"job_id"' in answer.body
        return spoil(answer) if own and next(asked) >= number else answer

    return at
