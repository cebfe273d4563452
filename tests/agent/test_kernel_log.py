"""Kernel messages: from the ring buffer or the journal to lines, and the events that the receiver reads from them."""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.agent.readings import assert_golden, exposition, open_source
from tests.serve.receiving import flushed, push_lines
from tests.serve.receiving import opened as receiver
from trackside.agent.kernel.journal import KernelPosition, load_position, parse_entry
from trackside.agent.kernel.line_selection import known_lines, select_lines
from trackside.agent.kernel.ring import KernelClock, Ring, parse_records
from trackside.agent.node import LocalNode
from trackside.agent.owners import Owners
from trackside.agent.rate_limit import RateLimit
from trackside.agent.source import AgentSourceUnavailable, Collector, Context, Reading
from trackside.agent.sources import kernel_log
from trackside.agent.sources.kernel_log import KernelLogOptions
from trackside.stores.embedded.snapshot import Snapshot

SECOND = 1_000_000_000
BOOTED_NS = 1_772_438_400 * SECOND
"""2026-03-02T08:00:00Z"""
UP_NS = 9_000 * SECOND
BOOT = "5e2f3a70-88a1-4ad8-b0f3-0c8f4e0f9a11"
HERE = Path(__file__).parent


class Times:
    """The clocks of a machine."""

    def __init__(self) -> None:
        self.up_ns, self.booted_ns = UP_NS, BOOTED_NS

    def now(self) -> int:
        return self.booted_ns + self.up_ns

    def monotonic(self) -> int:
        return self.up_ns


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    clock = functools.partial(KernelClock, now_ns=times.now, monotonic_ns=times.monotonic)
    monkeypatch.setattr(kernel_log, "KernelClock", clock)
    return times


class Machine:
    """A node with a ring that is a file; lines are added with :meth:`say`."""

    def __init__(self, folder: Path) -> None:
        self.node = LocalNode("n1", folder / "proc", folder / "sys", folder / "dev")
        self.state = folder / "state"
        for path in (self.node.dev, self.state, self.node.proc / "sys/kernel/random"):
            path.mkdir(parents=True)
        self.ring = self.node.dev / "kmsg"
        self.ring.touch()
        self.sequence = 0
        self.boot(BOOT)

    def boot(self, name: str) -> None:
        (self.node.proc / "sys/kernel/random/boot_id").write_text(name + "\n")

    def say(self, text: str, up_s: float = UP_NS / 1e9, skip: int = 0) -> None:
        self.sequence += 1 + skip
        with self.ring.open("a") as file:
            file.write(f"4,{self.sequence},{int(up_s * 1e6)},-;{text}\n")

    def agent(self, **options: Any) -> Collector:
        return kernel_log.SOURCE.open(Context(self.node, Owners(), KernelLogOptions(**options), print, self.state))


@pytest.fixture
def machine(tmp_path: Path, times: Times) -> Machine:
    return Machine(tmp_path)


def lines(collector: Collector) -> list[str]:
    reading = Reading()
    collector.collect(reading)
    return [line.text for line in reading.lines]


# -- records


def test_texts_are_unescaped_as_by_dmesg() -> None:
    data = (
        b"4,9,12,-,caller=T1;a \\x09tab\\x0asecond \\xc3\\xa9\\xff \\x5c\n SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n"
    )
    (record,) = parse_records(data)
    assert record.lines == ["a \ttab", "second é� \\"]
    assert (record.sequence, record.time_us) == (9, 12)


def ring_of(reads: Sequence[bytes | int], after: int = -1) -> Ring:
    """A ring that answers reads in order: with data, or with an error number."""
    answers = list(reads)

    def read(fd: int, size: int) -> bytes:
        answer = answers.pop(0) if answers else errno.EAGAIN
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    return Ring(Path("/dev/null"), after, read)


def record_bytes(sequence: int, text: str = "text", flag: str = "-") -> bytes:
    return f"6,{sequence},{sequence * 1000},{flag};{text}\n".encode()


def test_a_gap_in_sequence_numbers_counts_as_lost() -> None:
    ring = ring_of([record_bytes(1), record_bytes(2), errno.EPIPE, record_bytes(40), record_bytes(41)])
    assert [record.sequence for record in ring.records(100)] == [1, 2, 40, 41]
    assert ring.lost == 37
    ring.close()


def test_known_records_are_skipped_and_not_counted_as_lost() -> None:
    ring = ring_of([record_bytes(5), record_bytes(6), record_bytes(7)], after=6)
    assert [record.sequence for record in ring.records(100)] == [7]
    assert ring.lost == 0
    ring.close()


def test_continued_records_become_one_line() -> None:
    ring = ring_of(
        [
            record_bytes(1, "oom_kill_", "c"),
            record_bytes(2, "process", "+"),
            record_bytes(3, ", done", "+"),
            record_bytes(4, "next"),
        ]
    )
    assert [record.text for record in ring.records(100)] == ["oom_kill_process, done", "next"]
    ring.close()


def test_reading_an_endless_ring_is_bounded() -> None:
    numbers = iter(range(10**9))
    ring = Ring(Path("/dev/null"), -1, lambda fd, size: record_bytes(next(numbers)))
    assert len(list(ring.records(500))) == 500
    overwritten = Ring(Path("/dev/null"), -1, failing_read(errno.EPIPE))
    assert list(overwritten.records(500)) == []
    ring.close()
    overwritten.close()


def failing_read(number: int) -> Callable[[int, int], bytes]:
    def read(fd: int, size: int) -> bytes:
        raise OSError(number, os.strerror(number))

    return read


# -- time


def test_times_follow_the_clock_when_it_is_set(machine: Machine, times: Times) -> None:
    agent = machine.agent()
    machine.say("before")
    times.up_ns += 2 * SECOND
    machine.say("after", 9001.5)
    reading = Reading()
    agent.collect(reading)
    assert [line.time_ns - BOOTED_NS for line in reading.lines] == [9_000 * SECOND, 9_001_500_000_000]
    times.booted_ns += 3600 * SECOND  # the clock is set
    times.up_ns += 2 * SECOND
    machine.say("set", 9003)
    reading = Reading()
    agent.collect(reading)
    assert [line.time_ns - BOOTED_NS for line in reading.lines] == [(9_003 + 3600) * SECOND]
    agent.close()


@pytest.mark.parametrize("off_s", [-80.0, 80.0])
def test_the_drift_of_the_kernels_clock_is_corrected(off_s: float, machine: Machine, times: Times) -> None:
    """The kernel's clock drifts over months. Lines read live reveal the offset, and later times are corrected."""
    agent = machine.agent()
    assert lines(agent) == []
    offsets_ns = []
    for seconds in (2, 4, 6):
        times.up_ns = UP_NS + seconds * SECOND
        machine.say("tick", UP_NS / 1e9 + seconds - 0.5 + off_s)
        reading = Reading()
        agent.collect(reading)
        offsets_ns += [line.time_ns - BOOTED_NS - UP_NS for line in reading.lines]
    assert len(offsets_ns) == 3
    for offset_ns, seconds in zip(offsets_ns, (2, 4, 6), strict=True):
        assert (seconds - 2.2) * SECOND <= offset_ns <= (seconds + 0.2) * SECOND
    agent.close()


def test_lines_of_one_reading_keep_their_order_and_distances(machine: Machine, times: Times) -> None:
    """The last line reveals that the kernel's clock is ahead."""
    agent = machine.agent()
    for up_s in (9_000.0, 9_000.3, 9_000.6):
        machine.say("tick", up_s)
    reading = Reading()
    agent.collect(reading)
    assert [line.time_ns - BOOTED_NS - UP_NS for line in reading.lines] == [-600_000_000, -300_000_000, 0]
    agent.close()


def test_an_impossible_time_does_not_affect_other_lines(machine: Machine, times: Times) -> None:
    agent = machine.agent()
    machine.say("damaged", 1e12)
    machine.say("sound", 8_999.0)
    reading = Reading()
    agent.collect(reading)
    assert [line.time_ns - BOOTED_NS - UP_NS for line in reading.lines] == [0, -SECOND]
    agent.close()


# -- across restarts of the agent


def test_a_restarted_agent_continues_where_it_stopped(machine: Machine, times: Times) -> None:
    agent = machine.agent()
    machine.say("one")
    assert lines(agent) == ["one"]
    machine.say("two")
    assert lines(agent) == ["two"]
    agent.close()
    machine.say("three")
    agent = machine.agent()
    assert lines(agent) == ["three"]
    agent.close()


def test_a_killed_agent_sends_its_last_reading_again_with_the_same_times(machine: Machine, times: Times) -> None:
    agent = machine.agent()
    machine.say("one")
    assert lines(agent) == ["one"]
    machine.say("two")
    first = Reading()
    agent.collect(first)  # then the agent is killed: whether this was sent is unknown
    times.booted_ns += 5_000_000  # within the jitter of clocks
    second = Reading()
    machine.agent().collect(second)
    assert [(line.text, line.time_ns) for line in second.lines] == [(line.text, line.time_ns) for line in first.lines]


def test_after_a_reboot_the_ring_is_read_from_its_start(machine: Machine, times: Times) -> None:
    agent = machine.agent()
    machine.say("one")
    assert lines(agent) == ["one"]
    agent.close()
    machine.ring.write_text("")
    machine.sequence = 0
    machine.boot("another")
    machine.say("Linux version 6.8.0-60-generic (buildd@lcy02) (gcc 13.3.0) #63-Ubuntu SMP", 0.0)
    assert lines(machine.agent()) == ["Linux version 6.8.0-60-generic (buildd@lcy02) (gcc 13.3.0) #63-Ubuntu SMP"]


def test_the_first_start_looks_back_one_hour(machine: Machine, times: Times) -> None:
    machine.say("of yesterday", 100.0)
    machine.say("of just now", 8_000.0)
    agent = machine.agent()
    assert lines(agent) == ["of just now"]
    agent.close()
    assert load_position(machine.state / "kernel_log.json").sequence == 2


def test_a_damaged_state_is_ignored(machine: Machine, times: Times) -> None:
    machine.say("one")
    for text in ("", "[]", "{", '{"boot": 5, "sequence": "x"}', '{"sequence": true}', "\0"):
        (machine.state / "kernel_log.json").write_text(text)
        assert lines(machine.agent()) == ["one"]


def test_an_unwritable_state_is_reported(machine: Machine) -> None:
    machine.say("one")
    agent = machine.agent()
    lines(agent)
    machine.state.rmdir()
    reading = Reading()
    agent.collect(reading)
    assert "kernel_log.json cannot be written" in reading.warnings[0]
    agent.close()


# -- selection of lines


def test_lost_lines_are_counted_and_reported(machine: Machine) -> None:
    agent = machine.agent()
    machine.say("one")
    machine.say("two", skip=12)
    reading = Reading()
    agent.collect(reading)
    assert reading.lost == {"lines": 12}
    assert reading.warnings == ["12 kernel messages were overwritten before they were read"]
    agent.close()


XID = "NVRM: Xid (PCI:0000:5d:00): 79, pid=4120, name=python3, GPU has fallen off the bus."


def test_in_a_flood_known_lines_have_priority(machine: Machine) -> None:
    agent = machine.agent(lines_per_s=0.0, burst=100)
    for number in range(5_000):
        machine.say(f"nfs: page allocation stalls for {number}ms")
    machine.say(XID)
    reading = Reading()
    agent.collect(reading)
    assert len(reading.lines) == 100
    assert reading.lines[-1].text == XID
    assert reading.lost == {"lines": 4_901}
    agent.close()


def test_the_policy_known_sends_only_known_lines(machine: Machine) -> None:
    agent = machine.agent(policy="known")
    for text in (
        "usb 1-1: new high-speed USB device",
        XID,
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0",
    ):
        machine.say(text)
    assert lines(agent) == [XID, "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0"]
    agent.close()


def test_indices_of_known_lines_are_correct_with_odd_lines_between() -> None:
    lines = ["a\rb", "", "x\x00y", XID, "\u2028", "INFO: task python:280058 blocked for more than 120 seconds."]
    assert known_lines(lines) == {3, 5}


def test_the_rate_limit_allows_bursts_after_a_pause() -> None:
    allowance = RateLimit(10.0, 50)
    assert allowance.take(80, 0.0) == 50
    assert allowance.take(80, 1.0) == 10
    assert allowance.take(80, 1000.0) == 50
    assert select_lines(["x"] * 5, "all", RateLimit(1.0, 9), 0.0) == ([0, 1, 2, 3, 4], 0)


def test_an_odd_ring_matches_the_golden(times: Times, rewrite: bool) -> None:
    root = HERE / "hosts/odd"
    collector = open_source(
        kernel_log.SOURCE,
        LocalNode("n1", root / "proc", root / "sys", root / "dev"),
        options=KernelLogOptions(look_back_s=1e9),
    )
    reading = Reading()
    collector.collect(reading)
    assert_golden(root / "expected_kernel_log.txt", exposition(reading), rewrite)
    collector.close()


@pytest.mark.parametrize(
    ("cgroup", "own_cgroup", "is_sent"),
    [
        ("/slurm_n2/uid_1000/job_9/step_0", "fs/cgroup/memory/slurm_n1", False),
        ("/slurm_n1/uid_1000/job_9/step_0", "fs/cgroup/memory/slurm_n1", True),
        ("/system.slice/n2_slurmstepd.scope/job_9/step_0", "fs/cgroup/system.slice/n1_slurmstepd.scope", False),
        ("/slurm_gpu01/uid_1000/job_9/step_0", "fs/cgroup/memory/slurm_gpu01", True),
        ("/slurm/uid_1000/job_9/step_0", "fs/cgroup/memory/slurm", True),
        ("/user.slice/user-1000.slice", "fs/cgroup/memory/slurm_n1", True),
    ],
)
def test_nodes_that_share_a_kernel_report_only_their_own_oom_kills(
    cgroup: str, own_cgroup: str, is_sent: bool, machine: Machine
) -> None:
    """Only if the node's cgroups contain its name: otherwise another name may be its own under Slurm."""
    (machine.node.sys / own_cgroup).mkdir(parents=True)
    agent = machine.agent()
    machine.say("usb 1-1: new device")
    report = (
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "memory: usage 102400kB, limit 102400kB, failcnt 12",
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={cgroup},task_memcg={cgroup}/task_0,task=python3,pid=77,uid=9",
        "Memory cgroup out of memory: Killed process 77 (python3) total-vm:1000kB, anon-rss:300kB",
    )
    for text in report:
        machine.say(text)
    machine.say(XID)
    assert lines(agent) == ["usb 1-1: new device", *(report if is_sent else ()), XID]
    agent.close()


# -- the journal, if the ring may not be read


def journalctl(folder: Path, text: str) -> str:
    path = folder / "journalctl"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def entry(message: object, cursor: str) -> str:
    return json.dumps({"__REALTIME_TIMESTAMP": "1772438400000123", "MESSAGE": message, "__CURSOR": cursor})


def test_the_journal_replaces_an_unreadable_ring(machine: Machine) -> None:
    machine.ring.unlink()
    calls = machine.state / "calls"
    entries = [entry(XID, "c1"), entry([104, 105, 255], "c2"), "no entry", entry(None, "c3"), entry("two\nlines", "c4")]
    entries_file = machine.state / "entries"
    entries_file.write_text("\n".join(entries) + "\n")
    program = journalctl(
        machine.state,
        f'case "$*" in *"-n 1"*) echo yes;; *) echo "$*" >> {calls}; cat {entries_file}; exec sleep 600;; esac',
    )
    agent = machine.agent(journalctl=program)
    reading = Reading()
    end = time.monotonic() + 10
    while len(reading.lines) < 4 and time.monotonic() < end:
        agent.collect(reading)
        time.sleep(0.01)
    assert [line.text for line in reading.lines] == [XID, "hi�", "two", "lines"]
    assert reading.lines[0].time_ns == 1_772_438_400_000_123_000
    agent.close()
    assert load_position(machine.state / "kernel_log.json") == KernelPosition(cursor="c4")
    agent = machine.agent(journalctl=program)
    while len(calls.read_text().splitlines()) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    agent.close()
    first, second = calls.read_text().splitlines()
    assert "--since=@" in first
    assert "--after-cursor=c4" in second


def collect_repeatedly(agent: Collector, within_s: float = 20.0) -> None:
    """Collect repeatedly until the time is up."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        agent.collect(Reading())
        time.sleep(0.01)


def test_an_ended_journal_makes_the_source_unavailable(machine: Machine) -> None:
    machine.ring.unlink()
    program = journalctl(machine.state, 'case "$*" in *"-n 1"*) echo yes;; *) exec >&-; exit 3;; esac')
    agent = machine.agent(journalctl=program)
    with pytest.raises(AgentSourceUnavailable, match="journalctl exited with status 3"):
        collect_repeatedly(agent)
    agent.close()


@pytest.mark.parametrize(
    "answer", ["exit 0", "echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1"]
)
def test_without_ring_and_journal_the_remedy_is_given(answer: str, machine: Machine) -> None:
    machine.ring.unlink()
    with pytest.raises(AgentSourceUnavailable) as error:
        machine.agent(journalctl=journalctl(machine.state, answer))
    assert "kmsg cannot be read: No such file or directory, and" in error.value.reason
    assert "CAP_SYSLOG" in error.value.remedy
    assert "systemd-journal" in error.value.remedy
    with pytest.raises(AgentSourceUnavailable, match="cannot be run"):
        machine.agent(journalctl="/nowhere/journalctl")


def test_invalid_journal_entries_are_ignored() -> None:
    for text in (
        b"",
        b"[]",
        b"{}",
        b'{"MESSAGE": "x"}',
        b'{"MESSAGE": [999], "__REALTIME_TIMESTAMP": "1"}',
        b"[" * 5000,
    ):
        assert parse_entry(text) is None


# -- to the receiver


CASES = sorted((HERE / "kernel").glob("*.kmsg"))


def events_of_receiver(reading: Reading, folder: Path, node: str) -> list[dict[str, Any]]:
    """The events in a receiver's store after the lines of a reading were sent to it."""
    intake = receiver(folder)
    by_labels: dict[tuple[tuple[str, str], ...], list[tuple[int, str]]] = {}
    for line in reading.lines:
        # the receiver's tests count times from the same second
        by_labels.setdefault((("node", node), *line.labels), []).append((line.time_ns - BOOTED_NS, line.text))
    for labels, rows in by_labels.items():
        push_lines(intake, dict(labels), rows).result(10)
    flushed(intake)
    intake.close()
    with Snapshot.open(folder) as snapshot:
        event_rows = snapshot.rows(
            f"SELECT kind, plane, role, node, time, fields FROM {snapshot.table('events')}"
            " WHERE kind NOT IN ('kernel_log', 'log_activity') ORDER BY line, kind"
        )
    return [
        {"kind": kind, "plane": plane, "role": role, "node": event_node, "time": time_s, **json.loads(fields or "{}")}
        for kind, plane, role, event_node, time_s, fields in event_rows
    ]


@pytest.mark.parametrize("policy", ["all", "known"])
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_events_in_the_receivers_store_match_the_golden(
    case: Path, policy: str, machine: Machine, times: Times, tmp_path: Path, rewrite: bool
) -> None:
    """Kernel lines become events with their node and time."""
    times.up_ns += 60 * SECOND
    agent = machine.agent(policy=policy)
    machine.ring.write_bytes(case.read_bytes())
    reading = Reading()
    agent.collect(reading)
    agent.close()
    assert all(dict(line.labels) == {"unit": "kernel"} for line in reading.lines)
    events = events_of_receiver(reading, tmp_path / "store", "gpu017")
    assert {(event["node"], event["plane"]) for event in events} == {("gpu017", "kernel")}
    text = "".join(f"{json.dumps(event)}\n" for event in events)
    assert_golden(case.with_suffix(".events"), text, rewrite and policy == "all")


def test_an_oom_report_in_two_readings_is_one_event(machine: Machine, tmp_path: Path) -> None:
    """The limit of the job's cgroup is many lines before the kill. Between the readings the clock is found to be ahead,
    but the lines keep their order.
    """
    ring_bytes = (HERE / "kernel/oom-of-a-job.kmsg").read_bytes()
    middle = ring_bytes.index(b"6,915,")
    agent, reading = machine.agent(), Reading()
    for part in (ring_bytes[:middle], ring_bytes[middle:]):
        with machine.ring.open("ab") as file:
            file.write(part)
        agent.collect(reading)
    agent.close()
    (event,) = events_of_receiver(reading, tmp_path / "store", "gpu017")
    assert (event["kind"], event["step"], event["limit_bytes"]) == ("oom_kill", "4242.0", 503_316_480 * 1024)


# -- the real ring


def test_a_line_written_to_the_real_ring_is_read() -> None:
    """On this machine, if its ring may be read and written."""
    try:
        agent = open_source(kernel_log.SOURCE, options=KernelLogOptions(look_back_s=0.0))
    except AgentSourceUnavailable as error:
        pytest.skip(error.reason)
    try:
        agent.collect(Reading())
        marker = f"trackside test {os.getpid()} {time.monotonic_ns()}"
        try:
            Path("/dev/kmsg").write_text(f"<4>{marker}\n")
        except OSError as error:
            pytest.skip(f"/dev/kmsg cannot be written to: {error.strerror}")
        written_ns = time.time_ns()
        reading = Reading()
        agent.collect(reading)
        (line,) = [line for line in reading.lines if line.text == marker]
        assert abs(line.time_ns - written_ns) < 2 * SECOND
    finally:
        agent.close()
