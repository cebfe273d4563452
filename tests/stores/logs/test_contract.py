"""What every log store must do: load lines, request them, compare. Each case runs on all stores.

The stores are stand-ins (servers.py): those for Loki and VictoriaLogs are compared with recordings of real servers, the
one for Elasticsearch follows its documentation only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stores.logs.elasticsearch_server import ElasticsearchServer
from tests.stores.logs.servers import SECOND, Entry, LokiServer, Server, running
from tests.stores.logs.victorialogs_server import VictoriaLogsServer
from trackside.http.options import HttpOptions
from trackside.model import Input
from trackside.read.format import InputSource
from trackside.site.hits import sources
from trackside.stores.log_store import LogOptions, LogRequest, open_log_store

pytestmark = pytest.mark.slow

T0 = 1_795_253_600
"""POSIX seconds."""
SERVERS: Mapping[str, Callable[..., Server]] = {
    "loki": LokiServer,
    "victorialogs": VictoriaLogsServer,
    "elasticsearch": ElasticsearchServer,
}
ALL = pytest.mark.parametrize("kind", sorted(SERVERS))


def line(second: float, text: str, **labels: str) -> Entry:
    return Entry(T0 * SECOND + round(second * SECOND), text, labels)


def ask(server: Server, kind: str, request: LogRequest, **more: object) -> dict[str, list[str]]:
    """The lines of each log, without prefixes; notes are under the name of their store."""
    return {
        path: [without_prefix(text) for text in texts]
        for path, texts in ask_with_prefixes(server, kind, request, **more).items()
    }


def ask_with_prefixes(server: Server, kind: str, request: LogRequest, **more: object) -> dict[str, list[str]]:
    with running(server):
        options = replace(LogOptions(kind=kind, endpoint=HttpOptions(url=server.url, retries=0)), **more)  # type: ignore[arg-type]
        return dict(logs(sources(open_log_store(options), options, request)))


def logs(results: Iterator[InputSource | Input]) -> Iterator[tuple[str, list[str]]]:
    for result in results:
        if isinstance(result, InputSource):
            yield result.path, result.stream.read().decode().split("\n")[:-1]
            assert result.faults == []
        else:
            yield result.path.split()[0], [result.note]


def without_prefix(text: str) -> str:
    return text.split(" F ", 1)[-1] if " F " in text else re.sub(r"^20\S+Z ", "", text)


@dataclass(frozen=True, slots=True)
class Case:
    """``expect``: the lines of each log, in order."""

    load: tuple[Entry, ...]
    ask: LogRequest
    expect: Mapping[str, list[str]]
    labels: Mapping[str, str] = field(default_factory=dict)
    match: Mapping[str, str] = field(default_factory=dict)


RUN = LogRequest(("4242",), ("gpu-00",), T0, T0 + 60)
CASES = {
    "each rank is a log of its own, in time order": Case(
        load=(
            line(3, "c", job_id="4242", node="gpu-00", rank="0"),
            line(1, "a", job_id="4242", node="gpu-00", rank="0"),
            line(2, "b", job_id="4242", node="gpu-01", rank="1"),
        ),
        ask=LogRequest(("4242",), (), T0, T0 + 60),
        expect={
            "job-4242/slurm-4242.rank0@gpu-00.log": ["a", "c"],
            "job-4242/slurm-4242.rank1@gpu-01.log": ["b"],
        },
    ),
    "stdout and stderr are one log, as on a terminal": Case(
        load=(
            line(1, "step 1", job_id="4242", node="gpu-00", stream="stdout"),
            line(2, "ValueError: x", job_id="4242", node="gpu-00", stream="stderr"),
        ),
        ask=LogRequest(("4242",), (), T0, T0 + 60),
        expect={"job-4242/slurm-4242.out@gpu-00.log": ["step 1", "ValueError: x"]},
    ),
    "other jobs, other nodes and other times stay out": Case(
        load=(
            line(1, "mine", job_id="4242", node="gpu-00"),
            line(1, "theirs", job_id="4243", node="gpu-00"),
            line(1, "longer", job_id="42420", node="gpu-00"),
            line(1, "elsewhere", node="gpu-09", unit="kubelet.service"),
            line(-1000, "long ago", job_id="4242", node="gpu-00"),
            line(9000, "later", job_id="4242", node="gpu-00"),
        ),
        ask=RUN,
        expect={
            "job-4242/slurm-4242.out@gpu-00.log": ["mine"],
            "STORE": ["has no system log lines of gpu-00 in this time range"],
        },
    ),
    "kernel and system of the run's nodes, by host and program": Case(
        load=(
            line(1, "mine", job_id="4242", host="gpu-00.cluster.local"),
            line(2, "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", host="gpu-00.cluster.local", source="kernel"),
            line(3, "PLEG is not healthy", host="gpu-00.cluster.local", unit="kubelet.service"),
            line(4, "Node reboot", host="gpu-00.cluster.local", unit="slurmd.service"),
        ),
        ask=RUN,
        expect={
            "job-4242/slurm-4242.out@gpu-00.log": ["mine"],
            "nodes/gpu-00/system.log": [
                "gpu-00 kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
                "gpu-00 kubelet: PLEG is not healthy",
            ],
            "nodes/gpu-00/slurmd.log": ["gpu-00 slurmd: Node reboot"],
        },
    ),
    "a kernel's line under the job's label is the node's": Case(
        load=(
            line(1, "mine", job_id="4242", node="gpu-00", source="app"),
            line(2, "Out of memory: Killed process 7 (python)", job_id="4242", node="gpu-00", source="kernel"),
            line(3, "usb 1-1: new device", node="gpu-00", source="kernel"),
        ),
        ask=RUN,
        expect={
            "job-4242/slurm-4242.out@gpu-00.log": ["mine"],
            "nodes/gpu-00/system.log": [
                "gpu-00 kernel: Out of memory: Killed process 7 (python)",
                "gpu-00 kernel: usb 1-1: new device",
            ],
        },
    ),
    "a collector's own job label is not a Slurm job": Case(
        load=(
            line(1, "mine", job="training", slurm_job_id="4242", node="gpu-00"),
            line(2, "daemon", job="systemd-journal", node="gpu-00", unit="chronyd.service"),
        ),
        ask=RUN,
        expect={
            "job-4242/slurm-4242.out@gpu-00.log": ["mine"],
            "nodes/gpu-00/system.log": ["gpu-00 chronyd: daemon"],
        },
    ),
    "without a job label, the file name gives the job": Case(
        load=(
            line(1, "mine", filename="/home/u/logs/slurm-4242.out", host="gpu-00"),
            line(2, "err", filename="/home/u/logs/slurm-4242.err", host="gpu-00"),
            line(1, "theirs", filename="/home/u/logs/slurm-14242.out", host="gpu-00"),
            line(3, "Nov 21 09:33:23 gpu-00 systemd[1]: Started x.", filename="/var/log/syslog", host="gpu-00"),
        ),
        ask=RUN,
        expect={
            "job-4242/slurm-4242.out@gpu-00.log": ["mine"],
            "job-4242/slurm-4242.err@gpu-00.log": ["err"],
            "nodes/gpu-00/system.log": ["gpu-00 systemd[1]: Started x."],
        },
    ),
    "label names of the site override guesses": Case(
        load=(
            line(1, "mine", allocation="4242", job_id="1", blade="gpu-00"),
            line(1, "not mine", allocation="7", job_id="4242", blade="gpu-00"),
        ),
        ask=LogRequest(("4242",), (), T0, T0 + 60),
        labels={"allocation": "job", "blade": "node"},
        expect={"job-4242/slurm-4242.out@gpu-00.log": ["mine"]},
    ),
    "only streams with the fixed labels of the site": Case(
        load=(
            line(1, "mine", job_id="4242", cluster="a"),
            line(1, "of another cluster", job_id="4242", cluster="b"),
        ),
        ask=LogRequest(("4242",), (), T0, T0 + 60),
        match={"cluster": "a"},
        expect={"job-4242/slurm-4242.out.log": ["mine"]},
    ),
    "array tasks by their own ids": Case(
        load=(line(1, "three", job_id="60_3"), line(1, "four", job_id="60_4")),
        ask=LogRequest(("60_3",), (), T0, T0 + 60),
        expect={"job-60_3/slurm-60_3.out.log": ["three"]},
    ),
    "exact repeats are kept as the store has them": Case(
        load=(line(1, "same", job_id="4242", rank="0"), line(1, "same", job_id="4242", rank="0")),
        ask=LogRequest(("4242",), (), T0, T0 + 60),
        expect={"job-4242/slurm-4242.rank0.log": ["same", "same"]},
    ),
    "a collector's envelope is removed, and its fields are used": Case(
        load=(
            line(1, json.dumps({"log": "plain\n", "stream": "stderr", "time": "2026-11-21T09:33:21Z"}), job_id="4242"),
            line(2, json.dumps({"message": "beat", "host": {"name": "gpu-00"}, "tags": ["x"]}), job_id="4242"),
            line(3, json.dumps({"message": "step", "loss": 2.5}), job_id="4242"),
        ),
        ask=LogRequest(("4242",), (), T0, T0 + 60),
        expect={"job-4242/slurm-4242.out.log": ["plain", "beat", '{"message": "step", "loss": 2.5}']},
    ),
    "an entry of several lines is several lines": Case(
        load=(line(1, "Traceback (most recent call last):\n  File \"a.py\", line 1\nValueError: x\n", job_id="4242"),),
        ask=LogRequest(("4242",), (), T0, T0 + 60),
        expect={
            "job-4242/slurm-4242.out.log": [
                "Traceback (most recent call last):",
                '  File "a.py", line 1',
                "ValueError: x",
            ]
        },
    ),
    "torchrun's files keep their folders, which hold attempt and rank": Case(
        load=(line(1, "x", job_id="4242", node="gpu-00", filename="/s/4242_2cby87dw/attempt_0/3/stdout.log"),),
        ask=LogRequest(("4242",), (), T0, T0 + 60),
        expect={"job-4242/slurm-4242.torchrun@gpu-00/attempt_0/3/stdout.log": ["x"]},
    ),
    "an empty result lists the labels that exist": Case(
        load=(line(1, "x", app="web"),),
        ask=LogRequest(("4242",), (), T0, T0 + 60),
        expect={"STORE": ["holds no stream of job 4242 in this time; its labels are app: map the one that names the job"]},
    ),
}  # fmt: skip


@ALL
@pytest.mark.parametrize("name", CASES)
def test_log_stores_agree(kind: str, name: str) -> None:
    case = CASES[name]
    answer = ask(SERVERS[kind](*case.load), kind, case.ask, labels=case.labels, match=case.match)
    notes = answer.pop(next((path for path in answer if path.lower() == kind), ""), None)
    expected = dict(case.expect)
    assert answer == {path: lines for path, lines in expected.items() if path != "STORE"}
    assert notes == expected.get("STORE")


# -- every line once, for any page size


@st.composite
def streams(draw: st.DrawFn) -> list[Entry]:
    """Streams of a job with many lines at equal times."""
    entries = []
    for rank in range(draw(st.integers(1, 3))):
        times = draw(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 10**10)), max_size=40))
        entries += [
            Entry(T0 * SECOND + ms * 1_000_000, f"{rank}:{index}", {"job_id": "4242", "rank": str(rank)})
            for index, ms in enumerate(sorted(time % 50_000 for time in times))
        ]
    return entries


@ALL
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(entries=streams(), page=st.integers(1, 60))
def test_all_lines_come_once_and_in_order(kind: str, entries: list[Entry], page: int) -> None:
    answer = ask(SERVERS[kind](*entries), kind, LogRequest(("4242",), (), T0, T0 + 60), page=page)
    expected: dict[str, list[str]] = {}
    for entry in entries:
        expected.setdefault(f"job-4242/slurm-4242.rank{entry.labels['rank']}.log", []).append(entry.text)
    if entries:
        assert answer == expected


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(entries=streams(), page=st.integers(1, 60), max_entries=st.integers(45, 60), max_range_s=st.integers(10, 100))
def test_loki_with_narrow_limits(entries: list[Entry], page: int, max_entries: int, max_range_s: int) -> None:
    server = LokiServer(*entries, max_entries=max_entries, max_range_s=max_range_s)
    answer = ask(server, "loki", LogRequest(("4242",), (), T0, T0 + 60), page=page, margin_s=0.0)
    texts = sorted(text for path, lines in answer.items() if path != "Loki" for text in lines)
    assert texts == sorted(entry.text for entry in entries)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(entries=streams(), page=st.integers(50, 100), unit_ns=st.sampled_from([1, 1_000_000]))
def test_elasticsearch_of_milliseconds(entries: list[Entry], page: int, unit_ns: int) -> None:
    shifted = [replace(entry, time_ns=entry.time_ns + 123_456) for entry in entries]
    server = ElasticsearchServer(*shifted, unit_ns=unit_ns, text_fields=frozenset({"job_id"}))
    answer = ask(server, "elasticsearch", LogRequest(("4242",), (), T0, T0 + 60), page=page)
    texts = [text for path, lines in answer.items() if path != "Elasticsearch" for text in lines]
    assert sorted(texts) == sorted(entry.text for entry in entries)
