from __future__ import annotations

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.logs import scan as scan_module
from trackside.logs.line import FileContext, Line, has_srun_labels, split_label
from trackside.logs.scan import scan, scan_text
from trackside.logs.stamp import find_time
from trackside.model import Event
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, Source

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/home/user/t.py", line 3, in main\n    f()\nValueError: bad shard 7\n'
)


def noise(lines: int, seed: int = 0) -> str:
    random.seed(seed)
    return "".join(f"worker {random.random():.9f} waits for bucket {k}\n" for k in range(lines))


def scan_bytes(data: bytes) -> list[Event]:
    events: list[Event] = []
    scan(io.BytesIO(data), events.append, FileContext("log"))
    return events


@pytest.mark.parametrize("chunk", [997, 4096, 70_001])
def test_chunk_size_changes_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(
        noise(40, seed) + TRACEBACK.replace("7", str(seed)) + f"step {seed} loss 3.{seed}\n" for seed in range(60)
    )
    unsplit = scan_text(text)
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(scan_module, "BEHIND_BYTES", 512)
    monkeypatch.setattr(scan_module, "AHEAD_BYTES", 2048)
    assert scan_text(text) == unsplit
    assert sum(event.kind == "exception" for event in unsplit) == 60


def test_positions_are_exact() -> None:
    text = noise(10) + "a bar\r  12%|## | 3/25\r\n" + TRACEBACK + noise(3)
    found_event = next(event for event in scan_text(text) if event.kind == "exception")
    assert text.encode()[found_event.at.offset :].startswith((b"Traceback", b"ValueError"))
    assert text.encode()[: found_event.at.offset].count(b"\n") + 1 == found_event.at.line


def test_repeats_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_PER_KIND", 20)
    events = [event for event in scan_text(TRACEBACK * 500) if event.kind == "exception"]
    assert len(events) == 20
    assert events[0].at.line < 20
    assert events[-1].at.line > 4 * 480


def test_last_time_and_line_are_known() -> None:
    text = "2026-11-21 08:00:00 start\nno time here\n2026-11-21T08:05:00Z end of story"
    activity = scan_text(text)[-1]
    assert activity.kind == "log_activity"
    assert (activity.get("first_time"), activity.get("last_time")) == (1795248000.0, 1795248300.0)
    assert activity.get("truncated") is True
    assert activity.get("lines") == 3


@given(st.binary(max_size=3000))
@settings(max_examples=150, deadline=None)
def test_any_bytes(data: bytes) -> None:
    events = scan_bytes(data)
    assert bool(events) == bool(data)


@given(
    st.lists(
        st.sampled_from(
            [
                "Traceback (most recent call last):",
                '  File "a.py", line 1, in f',
                "ValueError: x",
                "[rank1]: ",
                "3: ",
                "\r",
                "\n",
                "\n",
                "step 3 loss 2.0",
                "{'loss': 1.0}",
                "50%|#####| 5/10 [00:01<00:01, 5it/s, loss=3]",
                "CUDA out of memory.",
                "\x1b[31m",
                "srun: error: n1: task 0: Killed",
                "\x00",
            ]
        ),
        max_size=60,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_mixture(parts: list[str]) -> None:
    data = "".join(parts).encode()
    assert all(0 <= event.at.offset <= len(data) for event in scan_bytes(data))


@pytest.mark.parametrize(
    ("full", "text", "rank"),
    [
        ("[rank3]: ValueError: x", "ValueError: x", 3),
        ('[rank3]:   File "a"', '  File "a"', 3),
        ("[default3]:[rank1]: x", "x", 1),
        ("[1,12]<stderr>:boom", "boom", 12),
        ("[titan] step: 4", "[titan] step: 4", None),
        ("plain", "plain", None),
    ],
)
def test_labels(full: str, text: str, rank: int | None) -> None:
    got, _, number = split_label(full, srun_labels=False)
    assert (got, number) == (text, rank)


def test_srun_labels_are_learned_from_the_head() -> None:
    assert has_srun_labels(b"0: a\n1: b\n 2: c\n0: d\nno label\n")
    assert not has_srun_labels(b"step\n1: b\nstep\nstep\nstep\n")
    assert split_label(" 2: hello", srun_labels=True)[:2] == ("hello", "2:")


def test_what_a_collector_put_before_a_line_is_no_part_of_its_quote() -> None:
    stamp = "2026-11-21T09:33:48.000000000Z stderr F "
    raised, life = scan_text(f"{stamp}[rank3]: ModuleNotFoundError: No module named 'x'\n{stamp}  bye\n")
    assert (raised.kind, raised.rank, raised.time) == ("exception", 3, 1795253628.0)
    assert not [event for event in (raised, life) if "stderr F" in f"{event.text} {event.fields}"]
    assert life.get("last_line") == "bye"
    quotes = scan_text(f"{stamp}step 10 loss 2.5\n{stamp}step 20 loss 2.4\n{stamp}step 30 loss 2.3\n")
    points = [event for event in quotes if event.kind == "progress"]
    assert next((event.text, event.time) for event in points) == ("step 10 loss 2.5", 1795253628.0)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("received/nodes/gpu-01/system.log", "NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus."),
        ("syslog", "2026-11-21T09:33:48.000000000Z gpu-01 kernel: NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen "
         "off the bus."),
    ],
)  # fmt: skip
def test_a_nodes_line_is_quoted_as_it_was_sent(path: str, text: str) -> None:
    """Its time, host and program were put before it when it was received; in a file of syslog's they are its own."""
    data = (
        b"2026-11-21T09:33:48.000000000Z gpu-01 kernel: NVRM: Xid (PCI:0000:18:00): 79, pid=1, "
        b"GPU has fallen off the bus.\n"
    )
    sink = CollectingSink()
    read_source(Source(path, data, io.BytesIO(data)), sink)
    xid = next(event for event in sink.events if event.kind == "xid")
    assert (xid.text, xid.node, xid.time) == (text, "gpu-01", 1795253628.0)
    last = next(event for event in sink.events if event.kind == "kernel_log")
    assert last.get("last_line") == text


def test_the_task_of_a_label_goes_along() -> None:
    error = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n"
    labeled = "".join(f"{task}: {line}\n" for task in (4, 5) for line in error.splitlines())
    raised = [event for event in scan_text(labeled) if event.kind == "exception"]
    assert [(event.get("task"), event.rank) for event in raised] == [("4", None), ("5", None)]
    bare = [event for event in scan_text(error) if event.kind == "exception"]
    assert [event.get("task") for event in bare] == [None]


def test_neighbors() -> None:
    buffer = b"one\ntwo\rtwo again\nthree\n"
    line = Line(buffer, 8, 17, 2, 8, FileContext("log"))
    assert line.text == "two again"
    assert [each.text for each in line.following()] == ["three"]
    assert [(each.text, each.number) for each in line.preceding()] == [("two", 2), ("one", 1)]


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("[2026-11-21 08:00:00,500] x", 1795248000.5),
        ("2026-11-21T10:00:00+02:00 x", 1795248000.0),
        ("[Sat Nov 21 08:00:00 2026] NVRM", 1795248000.0),
        ("W1121 08:00:00.250000 123 run.py:1] x", 1795248000.25),
        ("Nov 21 08:00:00 gpu017 kernel: x", 1795248000.0),
        ("2026-13-41 08:00:00 x", None),
        ("took 08:00 minutes", None),
    ],
)
def test_time_stamps(text: str, time: float | None) -> None:
    assert find_time(text, 2026) == time
