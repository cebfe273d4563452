"""Kernel messages in all formats: recognized, timed, assigned to a node; job logs are not taken for them."""

from __future__ import annotations

import datetime as dt
import io
import json

import pytest

from trackside.logs import scan as scan_module
from trackside.logs.line import Line
from trackside.logs.matcher import matcher
from trackside.logs.pattern import Parser, Pattern
from trackside.logs.scan import PatternSet, scan_text
from trackside.model import Event, EventRole, Input
from trackside.read.detect import detect, read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource
from trackside.read.formats.kernel_log import host_in, node_of

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
OTHER = "nvme nvme0: 64/0/0 default/read/poll queues"
AT = dt.datetime(2026, 11, 21, 8, 0, 1, 250_000, dt.UTC).timestamp()
WHOLE = float(int(AT))
STYLES = {
    "dmesg": ("[171167.620236] {}", None, None),
    "dmesg-thread": ("[171167.620236][T12345] {}", None, None),
    "dmesg -T": ("[Sat Nov 21 08:00:01 2026] {}", WHOLE, None),
    "dmesg -x": ("kern  :warn  : [171167.620236] {}", None, None),
    "dmesg -x -T": ("kern  :err   : [Sat Nov 21 08:00:01 2026] {}", WHOLE, None),
    "dmesg iso": ("2026-11-21T08:00:01,250000+00:00 {}", AT, None),
    "dmesg -x iso": ("kern  :warn  : 2026-11-21T09:00:01,250000+01:00 {}", AT, None),
    "kmsg": ("4,3964,206764307,-;{}", None, None),
    "pstore": ("<4>[  201.650687] {}", None, None),
    "syslog": ("Nov 21 08:00:01 gpu017 kernel: [171167.620236] {}", WHOLE, "gpu017"),
    "journal short": ("Nov 21 08:00:01 gpu017 kernel: {}", WHOLE, "gpu017"),
    "journal short-precise": ("Nov 21 08:00:01.250000 gpu017 kernel: {}", AT, "gpu017"),
    "journal short-iso": ("2026-11-21T09:00:01+0100 gpu017 kernel: {}", WHOLE, "gpu017"),
    "journal short-full": ("Sat 2026-11-21 08:00:01 UTC gpu017 kernel: {}", WHOLE, "gpu017"),
    "rfc3339": ("2026-11-21T08:00:01.250000+00:00 gpu017.cluster.example kernel: {}", AT, "gpu017"),
    "rfc5424": ("<4>1 2026-11-21T08:00:01.250000Z gpu017 kernel - - - {}", AT, "gpu017"),
    "bare": ("{}", None, None),
}


def _xid(line: Line) -> Event | None:
    return line.event("xid", EventRole.ROOT, xid=79) if "Xid" in line.text else None


@pytest.fixture
def xid_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single pattern on the kernel plane, so that these tests do not depend on the patterns."""
    pattern = Pattern("xid", rb"NVRM: Xid", _xid, "")
    parser = Parser("kernel", "kernel", "system", (pattern,), ("kernel", "log"))
    only = PatternSet((pattern,), (parser,), matcher((pattern,)))
    monkeypatch.setattr(scan_module, "pattern_set", lambda *_: only)


def read(text: str | bytes, path: str = "dmesg.txt", modified: float | None = AT) -> tuple[Input, list[Event]]:
    data = text.encode() if isinstance(text, str) else text
    sink = CollectingSink()
    source = InputSource(path, data[:HEAD_BYTES], io.BufferedReader(io.BytesIO(data)), len(data), modified)  # type: ignore[arg-type]
    row = read_source(source, sink)
    return row, [event for event in sink.events if event.kind != "kernel_log"]


def format_of(text: str, path: str = "file") -> str | None:
    data = text.encode()
    detected = detect(InputSource(path, data[:HEAD_BYTES], io.BytesIO(data)))
    return None if detected is None else detected[0].id


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.usefixtures("xid_only")
def test_every_style_of_kernel_log_is_read(style: str) -> None:
    template, time, node = STYLES[style]
    row, events = read("".join(template.format(text) + "\n" for text in (OTHER, XID, OTHER)))
    assert (row.format, row.status, row.plane) == ("kernel-log", "read", "kernel")
    (xid,) = events
    assert (xid.at.line, xid.plane, xid.node) == (2, "kernel", node)
    assert xid.time == (None if time is None else pytest.approx(time))


def test_dmesg_iso_lines_have_no_host() -> None:
    text = "2026-03-02T08:09:59,527636+00:00 Out of memory: Killed process 49050 (python3) total-vm:18kB, anon-rss:9kB"
    assert host_in(text) is None


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ("dmesg-gpu017.txt", "gpu017"),
        ("logs/gpu017.dmesg", "gpu017"),
        ("gpu017/dmesg", "gpu017"),
        ("gpu017/dmesg.txt", "gpu017"),
        ("run.tar.gz!a100-03/messages", "a100-03"),
        ("kern.node-a12.log", "node-a12"),
        ("journalctl-n0042.log.gz", "n0042"),
        ("kernel/gpu017.log.gz", "gpu017"),
        ("dmesg.txt", None),
        ("run7/dmesg.txt", None),
        ("dmesg-rank3.txt", None),
        ("dmesg-xid-119-gsp-timeout.log", None),
    ],
)
@pytest.mark.usefixtures("xid_only")
def test_the_node_comes_from_the_path(path: str, node: str | None) -> None:
    assert node_of(path) == node
    _, (xid,) = read(f"[1.000000] {OTHER}\n[2.000000] {XID}\n", path)
    assert xid.node == node


@pytest.mark.parametrize("path", ["kernel/gpu017.log", "messages"])
def test_a_log_without_events_is_still_evidence(path: str) -> None:
    line = (
        f"2026-11-21T08:00:01,250000+00:00 {OTHER}\n"
        if "gpu017" in path
        else f"Nov 21 08:00:01 gpu017 kernel: {OTHER}\n"
    )
    data, sink = line.encode() * 3, CollectingSink()
    read_source(InputSource(path, data, io.BufferedReader(io.BytesIO(data)), len(data), AT), sink)  # type: ignore[arg-type]
    assert [(event.kind, event.node, event.plane, event.get("lines")) for event in sink.events] == [
        ("kernel_log", "gpu017", "kernel", 3)
    ]


@pytest.mark.usefixtures("xid_only")
def test_each_event_of_a_shared_log_has_its_host() -> None:
    _, events = read("".join(f"Nov 21 08:00:01 {host} kernel: {XID}\n" for host in ("n1", "n2", "n1")))
    assert [event.node for event in events] == ["n1", "n2", "n1"]


@pytest.mark.usefixtures("xid_only")
def test_the_year_is_that_of_the_file_or_the_previous_one() -> None:
    row, (xid,) = read(f"Dec 31 23:59:59 n1 kernel: {XID}\n", modified=AT)
    assert xid.time == dt.datetime(2025, 12, 31, 23, 59, 59, tzinfo=dt.UTC).timestamp()
    assert "2025" in row.note
    _, (xid,) = read(f"Dec 31 23:59:59 n1 kernel: {XID}\n", modified=None)
    assert xid.time is None


@pytest.mark.parametrize(
    "text",
    [
        "loading shards\n" * 30 + f"[171167.620236] {XID}\n" * 4,
        "[2026-11-21 08:00:01,123][train][INFO] - step 1\n" * 9,
        "Nov 21 08:00:01 gpu017 torchrun[811]: {'loss': 2.5, 'epoch': 0.1}\n" * 40,
        "2026-11-21T08:00:01.250000Z step 1 loss 2.5\n" * 9,
        "[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: x\n",
        "[1.0] warming up\n",
        "gpu017:811:811 [0] NCCL INFO Bootstrap : Using eth0\n" * 2 + "step 1 loss 2.5\n" * 9,
    ],
)
def test_a_job_log_is_not_taken_for_a_kernel_log(text: str) -> None:
    assert format_of(text) == "job-log"


def test_a_system_log_with_few_kernel_lines_is_a_kernel_log() -> None:
    lines = [
        f"Nov 21 08:00:{n:02} gpu017 {tag}[{n}]: message" for n, tag in enumerate(["sshd", "systemd", "slurmd"] * 9)
    ]
    assert format_of("\n".join([*lines, f"Nov 21 08:00:59 gpu017 kernel: {XID}", ""])) == "kernel-log"


# -- JSON


def journal(**fields: object) -> str:
    entry = {"__REALTIME_TIMESTAMP": str(int(AT * 1e6)), "_HOSTNAME": "gpu017", "_TRANSPORT": "kernel", **fields}
    return json.dumps(entry) + "\n"


@pytest.mark.usefixtures("xid_only")
def test_kernel_messages_in_journal_json() -> None:
    text = "".join(
        [
            journal(MESSAGE=OTHER),
            journal(MESSAGE=list(XID.encode())),
            "{cut\n",
            journal(MESSAGE=None),
            journal(MESSAGE=f"two lines\n{XID}", _HOSTNAME="gpu018.cluster"),
            journal(MESSAGE=XID)[:-40],
        ]
    )
    row, events = read(text * 1, "journal.json")
    assert (row.format, row.plane, row.rows) == ("journal-json", "kernel", 6)
    assert [(e.at.line, e.node, e.time) for e in events] == [(2, "gpu017", AT), (5, "gpu018", AT)]


def test_the_journal_of_a_service_is_a_job_log() -> None:
    text = journal(MESSAGE="step 1 loss 2.5", _TRANSPORT="stdout", SYSLOG_IDENTIFIER="train") * 9
    row, events = read(text)
    assert (row.format, row.plane) == ("journal-json-service", "log")
    assert "log_activity" in {event.kind for event in events}


@pytest.mark.usefixtures("xid_only")
def test_dmesg_json_pretty_truncated_and_compact() -> None:
    rows = [{"pri": 6, "time": 1.5, "msg": OTHER}, {"pri": 4, "time": 171167.62, "msg": XID}, {"time": 9.0, "msg": XID}]
    pretty = json.dumps({"dmesg": rows}, indent=3)
    row, events = read(pretty, "gpu017.dmesg")
    assert (row.format, row.status) == ("dmesg-json", "read")
    assert [pretty.split("\n")[event.at.line - 1].strip()[:16] for event in events] == ['"msg": "NVRM: Xi'] * 2
    assert {event.node for event in events} == {"gpu017"}
    assert len(read(pretty[:-120])[1]) == 1
    assert [event.at.line for event in read(json.dumps({"dmesg": rows}))[1]] == [2, 3]
    assert read('{"dmesg": [{"msg": ' + "[" * 100_000)[0].status == "unreadable"


def test_a_plane_without_patterns_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "parsers", lambda: ())
    scan_module.pattern_set.cache_clear()
    try:
        row, events = read(f"[1.000000] {XID}\n")
    finally:
        scan_module.pattern_set.cache_clear()
    assert (row.status, row.rows, events) == ("read", 1, [])


def test_an_oom_kill_names_the_step_of_the_victim_and_the_cgroup_of_the_limit() -> None:
    kernel_log = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0,"
        "oom_memcg=/slurm/uid_1000/job_77,task_memcg=/slurm/uid_1000/job_77/step_0/task_1,task=python3,pid=812,uid=1000\n"
        "Memory cgroup out of memory: Killed process 812 (python3) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB\n"
    )
    (kill,) = [event for event in scan_text(kernel_log, plane="kernel") if event.kind == "oom_kill"]
    assert (kill.fields["step"], kill.fields["cgroup"]) == ("77.0", "/slurm/uid_1000/job_77")
