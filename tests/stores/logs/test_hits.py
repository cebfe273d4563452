"""Lines of a store give the same events as those of a file, plus times, ranks and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trackside.catalog.streams import is_node_log, is_stream_of, node_in, stream_path, tag_of
from trackside.http.options import HttpOptions
from trackside.logs.scan import scan_text
from trackside.model import Event
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource
from trackside.read.formats.job_log import rank_of
from trackside.site.hits import sources
from trackside.stores.log_store import LogEntry, LogOptions, LogRequest, LogStream, Streams
from trackside.stores.log_text import log_lines

T0 = 1_795_253_600_000_000_000
LOGS = Path(__file__).parents[2] / "logs"
CASES = sorted(
    path
    for path in [*LOGS.glob("tracebacks/*.txt"), *LOGS.glob("systems/*.log.txt"), *LOGS.glob("frameworks/cases/*.log")]
)
TIME_FIELDS = frozenset(
    {
        "first_time",
        "last_time",
        "last_own_time",
        "unread_times",
        "zoned",
        "unstamped_lines",
        "bytes",
        "last_line",
        "truncated",
    }
)
"""Fields that the time before each line changes."""


class MemoryLogStore:
    """A log store in memory: streams by their labels."""

    name = "memory"

    def __init__(self, *lines: LogEntry) -> None:
        self._lines = lines

    def streams(self, request: LogRequest) -> Streams:
        sets = {tuple(sorted(line.labels.items())) for line in self._lines}
        return Streams(tuple(LogStream("job", dict(labels), "", 0, 1 << 62) for labels in sorted(sets)))

    def lines(self, stream: LogStream) -> Iterator[Sequence[LogEntry]]:
        yield [line for line in self._lines if line.labels == stream.labels]


def read(*lines: LogEntry) -> tuple[list[str], CollectingSink]:
    """(paths, sink with the events)"""
    sink, paths = CollectingSink(), []
    options = LogOptions(kind="loki", endpoint=HttpOptions(url="http://localhost:1"))
    for source in sources(MemoryLogStore(*lines), options, LogRequest(("4242",))):
        assert isinstance(source, InputSource)
        paths.append(source.path)
        assert read_source(source, sink).status == "read"
    return paths, sink


def log_of(case: Path) -> str:
    text = case.read_bytes().decode()
    return text if case.suffix == ".log" else text.split("\n", 1)[1]


def event_values(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    return [
        (
            event.kind,
            event.at.line,
            event.rank,
            event.node,
            event.role,
            sorted((name, repr(value)) for name, value in event.fields.items() if name not in TIME_FIELDS),
        )
        for event in events
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_log_gives_the_same_events_from_a_store(case: Path) -> None:
    """Tracebacks with one entry per line, ``srun -l``, rank labels, progress bars: the time prefix loses nothing."""
    text = log_of(case).removesuffix("\n") + "\n"
    lines = [LogEntry(T0 + index, line, {"job_id": "4242"}) for index, line in enumerate(text.split("\n")[:-1])]
    _, sink = read(*lines)
    assert event_values(sink.events) == event_values(scan_text(text, path="job-4242/slurm-4242.out.log"))


def test_there_are_logs_to_compare() -> None:
    assert len(CASES) > 60


def test_events_get_time_rank_and_node_of_the_store() -> None:
    labels = {"job_id": "4242", "rank": "3", "host": "gpu-01.cluster.local"}
    texts = ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "    f()", "ValueError: bad"]
    paths, sink = read(*(LogEntry(T0 + index, text, labels) for index, text in enumerate(texts)))
    assert paths == ["job-4242/slurm-4242.rank3@gpu-01.log"]
    (event,) = [event for event in sink.events if event.kind == "exception"]
    assert (event.rank, event.node, event.get("message")) == (3, "gpu-01", "bad")
    assert event.time == pytest.approx(T0 / 1e9)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-21T01:00:00+01:00 step 1 loss 2.5", 1795219200.0),  # has a zone: used
        ("2026-11-21 01:00:00,123 step 1 loss 2.5", T0 / 1e9),  # no zone: the store's time is used
        ("[rank0]:[W1121 08:00:00.5 a.cpp:1] step 1 loss 2.5", T0 / 1e9),
        ("step 1 loss 2.5", T0 / 1e9),
    ],
)
def test_a_time_with_a_zone_overrides_the_time_of_the_store(text: str, time: float) -> None:
    _, sink = read(LogEntry(T0, text, {"job_id": "4242"}))
    (activity,) = [event for event in sink.events if event.kind == "log_activity"]
    assert activity.time == pytest.approx(time, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Nov 21 09:34:08 gpu-00 kernel: [ 12.3] NVRM: x",
            "2026-11-21T09:33:20.000000000Z gpu-00 kernel: [ 12.3] NVRM: x\n",
        ),
        ("[ 12.345678] NVRM: x", "2026-11-21T09:33:20.000000000Z n1 kernel: [ 12.345678] NVRM: x\n"),
        ("2026-11-21T09:34:08.5+00:00 gpu-00 kernel: NVRM: x", "2026-11-21T09:34:08.5+00:00 gpu-00 kernel: NVRM: x\n"),
        ("<6>Nov 21 09:34:08 gpu-00 sshd[12]: y", "2026-11-21T09:33:20.000000000Z gpu-00 sshd[12]: y\n"),
        ("", "2026-11-21T09:33:20.000000000Z n1 kernel: \n"),
    ],
)
def test_a_nodes_line_has_year_zone_and_host(text: str, expected: str) -> None:
    assert [*log_lines(LogEntry(T0, text, {"host": "n1", "source": "kernel"}))] == [("nodes/n1/system.log", expected)]


def test_a_daemons_line_in_a_system_log_goes_to_the_daemons_log() -> None:
    line = LogEntry(T0, "Nov 21 09:34:08 gpu-00 slurmd[7]: error: x", {"host": "gpu-00", "filename": "/var/log/syslog"})
    ((path, text),) = log_lines(line)
    assert path == "nodes/gpu-00/slurmd.log"
    assert text.endswith("Z gpu-00 slurmd[7]: error: x\n")


@pytest.mark.parametrize(
    ("labels", "path"),
    [
        ({"slurm_job_id": "4242", "rank": "3", "node": "gpu-01"}, "job-4242/slurm-4242.rank3@gpu-01.log"),
        ({"job": "60_3", "hostname": "gpu-01.a.b"}, "job-60_3/slurm-60_3.out@gpu-01.log"),
        ({"job": "4242", "filename": "/logs/slurm-4242.err"}, "job-4242/slurm-4242.err.log"),
        ({"job": "4242", "filename": "/logs/rank7/train.log"}, "job-4242/slurm-4242.rank7.train.log"),
        ({"job": "4242", "filename": "/x/attempt_1/2/stderr.log"}, "job-4242/slurm-4242.torchrun/attempt_1/2/stderr.log"),
        ({"job": "varlogs", "host": "gpu-01", "source": "kernel"}, "nodes/gpu-01/system.log"),
        ({"host": "gpu-01", "unit": "slurmd.service"}, "nodes/gpu-01/slurmd.log"),
        ({"job": "4242", "node": "gpu-01", "transport": "kernel"}, "nodes/gpu-01/system.log"),
        ({"_HOSTNAME": "10.0.0.1", "_TRANSPORT": "kernel"}, "nodes/10.0.0.1/system.log"),
        ({"service_name": "../../etc/passwd"}, "streams/passwd.log"),
        ({"job": "4242", "node": "../../x"}, "job-4242/slurm-4242.out.log"),
        ({"filename": "/a/../../b.log"}, "streams/a_.._.._b.log"),
        ({}, "streams/unknown.log"),
    ],
)  # fmt: skip
def test_paths_of_streams(labels: dict[str, str], path: str) -> None:
    assert stream_path(labels) == path
    assert stream_path(dict(reversed(labels.items()))) == path


def test_paths_hold_rank_node_and_source() -> None:
    path = stream_path({"slurm_job_id": "4242", "rank": "3", "node": "gpu-01"})
    assert (rank_of(path), node_in(path), is_node_log(path)) == (3, "gpu-01", False)
    path = stream_path({"job": "4242", "node": "gpu-01", "filename": "/x/attempt_1/2/stderr.log"})
    assert (rank_of(path), node_in(path)) == (2, "gpu-01")
    assert is_node_log(stream_path({"host": "n1", "unit": "sshd"}))
    assert tag_of({"filename": "/var/log/kern.log"}) == "kernel"
    assert stream_path({"lsf_job": "77"}, {"lsf_job": "job"}) == "job-77/slurm-77.out.log"


@pytest.mark.parametrize(
    ("labels", "job", "file", "expected"),
    [
        ({"node": "n1", "filename": "/work/slurm-42.out"}, "42", "/work/slurm-42.out", True),
        ({"filename": "/work/slurm-42.out"}, "42", "/work/slurm-42.out", True),
        ({"node": "n1", "rank": "3", "filename": "/work/logs/train.log"}, "42", "/work/logs/train.log", True),
        ({"node": "n1", "filename": "/work/run7/train.log"}, "42", "/work/run8/train.log", False),
        ({"node": "n1", "filename": "/work/slurm-42.out"}, "41", "/work/slurm-42.out", False),
        ({"node": "n1", "filename": "hang"}, "42", "/work/slurm-42.out", False),
    ],
)
def test_a_stream_is_matched_to_its_file(labels: dict[str, str], job: str, file: str, expected: bool) -> None:
    path = stream_path({"slurm_job_id": "42", **labels})
    assert is_stream_of(f"store/received/logs/{path}", job, file) is expected
    assert is_stream_of(f"{path}.zst", job, file) is expected
