from __future__ import annotations

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.logs import buffers as buffers_module
from trackside.logs import scan as scan_module
from trackside.logs.line import FileContext, Line, has_srun_labels, split_label
from trackside.logs.scan import scan, scan_text
from trackside.logs.stamp import find_time
from trackside.model import Event
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource

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
def test_events_do_not_depend_on_the_chunk_size(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(
        noise(40, seed) + TRACEBACK.replace("7", str(seed)) + f"step {seed} loss 3.{seed}\n" for seed in range(60)
    )
    unsplit = scan_text(text)
    monkeypatch.setattr(buffers_module, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(buffers_module, "BEHIND_BYTES", 512)
    monkeypatch.setattr(buffers_module, "AHEAD_BYTES", 2048)
    assert scan_text(text) == unsplit
    assert sum(event.kind == "exception" for event in unsplit) == 60


def test_positions_are_offset_and_line_of_the_event() -> None:
    text = noise(10) + "a bar\r  12%|## | 3/25\r\n" + TRACEBACK + noise(3)
    exception = next(event for event in scan_text(text) if event.kind == "exception")
    assert text.encode()[exception.at.offset :].startswith((b"Traceback", b"ValueError"))
    assert text.encode()[: exception.at.offset].count(b"\n") + 1 == exception.at.line


def test_repeated_events_are_limited_and_keep_first_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_PER_KIND", 20)
    events = [event for event in scan_text(TRACEBACK * 500) if event.kind == "exception"]
    assert len(events) == 20
    assert events[0].at.line < 20
    assert events[-1].at.line > 4 * 480


def test_the_activity_event_has_times_lines_and_truncation() -> None:
    text = "2026-11-21 08:00:00 start\nno time here\n2026-11-21T08:05:00Z end of story"
    activity = scan_text(text)[-1]
    assert activity.kind == "log_activity"
    assert (activity.get("first_time"), activity.get("last_time")) == (1795248000.0, 1795248300.0)
    assert activity.get("truncated") is True
    assert activity.get("lines") == 3
    assert activity.get("zoned") is True
    assert scan_text(text.replace("Z", ""))[-1].get("zoned") is None


@given(st.binary(max_size=3000))
@settings(max_examples=150, deadline=None)
def test_any_bytes_can_be_scanned(data: bytes) -> None:
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
def test_any_mixture_of_log_fragments_can_be_scanned(pieces: list[str]) -> None:
    data = "".join(pieces).encode()
    assert all(0 <= event.at.offset <= len(data) for event in scan_bytes(data))


@pytest.mark.parametrize(
    ("line", "text", "rank"),
    [
        ("[rank3]: ValueError: x", "ValueError: x", 3),
        ('[rank3]:   File "a"', '  File "a"', 3),
        ("[default3]:[rank1]: x", "x", 1),
        ("[1,12]<stderr>:boom", "boom", 12),
        ("[titan] step: 4", "[titan] step: 4", None),
        ("plain", "plain", None),
    ],
)
def test_rank_labels_are_split_off(line: str, text: str, rank: int | None) -> None:
    rest, _, number = split_label(line, srun_labels=False)
    assert (rest, number) == (text, rank)


def test_srun_labels_are_recognized_in_the_head() -> None:
    assert has_srun_labels([b"0: a", b"1: b", b" 2: c", b"0: d", b"no label"])
    assert not has_srun_labels([b"step", b"1: b", b"step", b"step", b"step"])
    assert split_label(" 2: hello", srun_labels=True)[:2] == ("hello", "2:")


def test_a_collectors_prefix_is_not_quoted() -> None:
    stamp = "2026-11-21T09:33:48.000000000Z stderr F "
    exception, activity = scan_text(f"{stamp}[rank3]: ModuleNotFoundError: No module named 'x'\n{stamp}bye\n")
    assert (exception.kind, exception.rank, exception.time) == ("exception", 3, 1795253628.0)
    assert not [event for event in (exception, activity) if "stderr F" in f"{event.text} {event.fields}"]
    assert activity.get("last_line") == "bye"
    events = scan_text(f"{stamp}step 10 loss 2.5\n{stamp}step 20 loss 2.4\n{stamp}step 30 loss 2.3\n")
    points = [event for event in events if event.kind == "progress"]
    assert next((event.text, event.time) for event in points) == ("step 10 loss 2.5", 1795253628.0)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("received/nodes/gpu-01/system.log", "NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus."),
        ("syslog", "2026-11-21T09:33:48.000000000Z gpu-01 kernel: NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen "
         "off the bus."),
    ],
)  # fmt: skip
def test_a_line_of_a_node_is_quoted_as_sent(path: str, text: str) -> None:
    """In received/, time, host and program are a prefix added on receipt; in a syslog file they belong to the line."""
    data = (
        b"2026-11-21T09:33:48.000000000Z gpu-01 kernel: NVRM: Xid (PCI:0000:18:00): 79, pid=1, "
        b"GPU has fallen off the bus.\n"
    )
    sink = CollectingSink()
    read_source(InputSource(path, data, io.BytesIO(data)), sink)
    xid = next(event for event in sink.events if event.kind == "xid")
    assert (xid.text, xid.node, xid.time) == (text, "gpu-01", 1795253628.0)
    last = next(event for event in sink.events if event.kind == "kernel_log")
    assert last.get("last_line") == text


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        (
            "start\n[06:22] INFO saving the model to\n            ./weights on rank 0\n",
            "[06:22] INFO saving the model to ./weights on rank 0",
        ),
        ("start\na.py:3: UserWarning: old\n  warnings.warn(\n", "a.py:3: UserWarning: old warnings.warn("),
        ("start\nbye\n", "bye"),
        ("start\n  52% of the steps are done\n", "52% of the steps are done"),
        ("start\n  one\n  two\n", "two"),
    ],
)
def test_the_last_line_is_quoted_with_the_line_that_it_continues(lines: str, last: str) -> None:
    (activity,) = (event for event in scan_text(lines) if event.kind == "log_activity")
    assert activity.get("last_line") == last


def test_the_task_of_an_srun_label_is_a_field_of_the_exception() -> None:
    error = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n"
    labeled = "".join(f"{task}: {line}\n" for task in (4, 5) for line in error.splitlines())
    exceptions = [event for event in scan_text(labeled) if event.kind == "exception"]
    assert [(event.get("task"), event.rank) for event in exceptions] == [("4", None), ("5", None)]
    unlabeled = [event for event in scan_text(error) if event.kind == "exception"]
    assert [event.get("task") for event in unlabeled] == [None]


def test_neighboring_lines() -> None:
    buffer = b"one\ntwo\rtwo again\nthree\n"
    line = Line(buffer, 8, 17, 2, 8, FileContext("log"))
    assert line.text == "two again"
    assert [neighbor.text for neighbor in line.following()] == ["three"]
    assert [(neighbor.text, neighbor.number) for neighbor in line.preceding()] == [("two", 2), ("one", 1)]


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("[2026-11-21 08:00:00,500] x", 1795248000.5),
        ("2026-11-21T10:00:00+02:00 x", 1795248000.0),
        ("2026-11-21,08:00:00 | INFO | x", 1795248000.0),
        ("[Sat Nov 21 08:00:00 2026] NVRM", 1795248000.0),
        (" 46%|####6     | 220/474 [11:05<12:57,  3.06s/it]W1121 08:00:00.250000 123 api.py:704] x", 1795248000.25),
        ("W1121 08:00:00.250000 123 run.py:1] x", 1795248000.25),
        ("[rank8]:[E302 08:27:58.066013008 ProcessGroupNCCL.cpp:616] x", 1772440078.066013008),
        ("Nov 21 08:00:00 gpu017 kernel: x", 1795248000.0),
        ("2026-13-41 08:00:00 x", None),
        ("took 08:00 minutes", None),
    ],
)
def test_timestamps_are_parsed(text: str, time: float | None) -> None:
    assert find_time(text, 2026) == time


@pytest.mark.parametrize(
    ("line", "unread"),
    [
        ("[01/02 03:04:05 d2.utils.events]: eta: 0:10:00", 1),
        ("Jan 02 03:04:05 step 5", 1),
        ("I0102 03:04:05.678901 42 trainer.cc:10] step 5", 1),
        ("03:04:05 INFO step 5", 1),
        ("2 Jan 2026", None),
        (" 45%|####5     | 45/100 [03:12:09<04:12:15,  3.61it/s]", None),
        ("total time 03:04:05", None),
        ("2026-01-02 03:04:06 step 5", None),
    ],
)
def test_times_in_an_unknown_form_are_counted(line: str, unread: int | None) -> None:
    events = scan_text(f"warming up\nstep\n{line}\n", year=None)
    assert events[-1].get("unread_times") == unread


def test_the_jobs_own_last_time_is_not_the_schedulers() -> None:
    notice = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T05:04:05 DUE TO TIME LIMIT ***"
    activity = scan_text(f"2026-01-02 03:04:05 a\n2026-01-02 04:04:05 b\nno time\n{notice}\n")[-1]
    assert activity.get("last_time") - activity.get("last_own_time") == 3600  # type: ignore[operator]
    assert (activity.get("unstamped_lines"), activity.get("unread_times")) == (1, None)


def test_of_very_many_alike_lines_a_sample_and_the_end_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_ALIKE_LINES", 1_000)
    monkeypatch.setattr(buffers_module, "CHUNK_BYTES", 64 << 10)
    monkeypatch.setattr(buffers_module, "AHEAD_BYTES", 4 << 10)
    lines = [f"step {number} loss {2 + 100 / number:.4f}\n" for number in range(1, 20_001)]
    lines.insert(15_000, "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n")
    events: list[Event] = []
    stats = scan(io.BytesIO("".join(lines).encode()), events.append, FileContext("train.log"))
    steps = sorted({step for event in events if isinstance(step := event.get("step"), int)})
    assert steps[:1_000] == list(range(1, 1_001))
    assert steps[-150:] == list(range(19_851, 20_001))
    assert 1_400 < len(steps) < 2_000
    assert stats.passed_over == 20_000 - len(steps)
    assert [event.kind for event in events].count("scheduler_notice") == 1


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_in_utf_16_between_plain_text_is_read_at_its_place(end: str) -> None:
    wide = f"step 2 loss 1.9{end}step 3 loss 1.8{end}".encode("utf-16-le")
    data = b"step 1 loss 2.0\n" + wide + b"step 4 loss 1.7\n"
    events = [event for event in scan_bytes(data) if event.kind == "progress" and event.parser == "custom"]
    assert [(event.get("step"), event.at.line) for event in events] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert data[events[3].at.offset :].startswith(b"step 4")
    assert not b"".join(buffers_module.read_text(io.BytesIO(data), lambda _: None, printed=False)).count(b"\0")
