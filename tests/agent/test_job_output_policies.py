"""What leaves the node under each policy, and that the verdict is the one on the files themselves."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from tools.cases import Case, scenarios

from tests.agent.played_output import played
from tests.agent.printing import Clock, Host, Printing, append, owner
from trackside.agent.output.choosing import MAX_CONTEXT_BYTES, MAX_PROGRESS_LINES
from trackside.agent.output.options import Text
from trackside.logs.event_line import MARK, WITHHELD, WORDS, Pulse, format_event, parse_event
from trackside.logs.scan import scan_text
from trackside.model import Event, Position
from trackside.session.paths import load
from trackside.stores.log_store import LogEntry
from trackside.stores.log_text import written_lines

pytestmark = pytest.mark.slow

CASES = {case.name: case for case in scenarios()}
PLAYED = [name for name in sorted(CASES) if not name.partition("/")[2].startswith("sim-")][::6]
TIMED = {"c2/storage-freezes-a-rank", "c2/lab-slurm-timeout-hung"}
"""Their lines have no times, and when they were written decides: this cannot be played."""
WORDED = {
    "a2/thread-map-subprocess-died": "that a worker of a pool died is told by the exception's message alone",
    "c1/thread-hccl-socket-timeout": "whose library failed is told by the exception's message alone",
}
"""Verdicts that need words which ``none`` keeps on the node."""
TRACEBACK = """Traceback (most recent call last):
  File "/home/alice/secret/train.py", line 12, in <module>
    main(token="hunter2")
  File "/home/alice/secret/train.py", line 9, in main
    raise ValueError("customer 4711 has no rows")
ValueError: customer 4711 has no rows
"""


@pytest.mark.parametrize("text", ["all", "errors", "none"])
@pytest.mark.parametrize("name", [name for name in PLAYED if name not in TIMED])
def test_the_verdict_is_the_same(name: str, text: Text, tmp_path: Path) -> None:
    direct, sent, _ = played(CASES[name], text, tmp_path)
    if sent and not (text == "none" and name in WORDED):
        assert sent == direct


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "slurm-42.out"


def printed(
    tmp_path: Path, out: Path, clock: Clock, text: str, said: str, seconds: int = 60, **options: object
) -> list[str]:
    """What is sent of an output that grows evenly for so long, and then falls silent."""
    out.touch()
    host = Host(tmp_path)
    host.start(100, owner(rank=0), out)
    printing = Printing(host, text=text, **options)
    lines, found = said.splitlines(keepends=True), []
    for second in range(seconds):
        part = lines[len(lines) * second // seconds : len(lines) * (second + 1) // seconds]
        append(out, "".join(part))
        found += printing.texts()
        clock.passes(1)
    for wait in (3, 20, 40):
        clock.passes(wait)
        found += printing.texts()
    return found


def chatter(count: int) -> str:
    return "".join(f"worker {n} fetched a batch\n" for n in range(count))


class TestErrors:
    def test_whole_tracebacks_with_lines_around(self, tmp_path: Path, out: Path, clock: Clock) -> None:
        said = chatter(5000) + TRACEBACK + chatter(5000)
        output = printed(tmp_path, out, clock, "errors", said)
        text = "\n".join(output)
        assert TRACEBACK in text + "\n"
        place = output.index("Traceback (most recent call last):")
        assert output[place - 10 : place] == [f"worker {n} fetched a batch" for n in range(4990, 5000)]
        assert output[place + 6 : place + 16] == [f"worker {n} fetched a batch" for n in range(10)]
        assert len(output) < 200 + 50 + 26 + 70

    def test_first_and_last_lines(self, tmp_path: Path, out: Path, clock: Clock) -> None:
        lines = chatter(10_000).splitlines()
        output = printed(tmp_path, out, clock, "errors", chatter(10_000))
        assert output[:200] == lines[:200]
        assert output[-50:] == lines[-50:]

    def test_a_file_that_says_nothing_is_not_silent(self, tmp_path: Path, out: Path, clock: Clock) -> None:
        output = printed(tmp_path, out, clock, "errors", chatter(60_000), 600, head_lines=0, tail_lines=0)
        assert 55 <= len(output) <= 65

    def test_progress_is_thinned(self, tmp_path: Path, out: Path, clock: Clock) -> None:
        said = "".join(
            f"step {n} loss {'nan' if n == 7777 else f'{2 + 1 / (n + 1):.4f}'} lr 1.00e-03\n" for n in range(10_000)
        )
        output = printed(tmp_path, out, clock, "errors", said, 200)
        steps = [int(line.split()[1]) for line in output]
        assert (steps[0], steps[-1]) == (0, 9999)
        assert "step 7777 loss nan lr 1.00e-03" in output
        assert steps == sorted(set(steps))
        assert len(output) < MAX_PROGRESS_LINES + 200 / 5 + 10_000 * 32 / 65_536 + 250 + 60

    def test_floods_of_errors_are_bounded(self, tmp_path: Path, out: Path, clock: Clock) -> None:
        noise = TRACEBACK + chatter(20)
        output = printed(tmp_path, out, clock, "errors", noise * 5000)
        assert sum(map(len, output)) < 1.4 * MAX_CONTEXT_BYTES < 0.6 * 5000 * len(noise)
        assert output[-1] == "worker 19 fetched a batch"
        assert TRACEBACK in "\n".join(output[-100:])

    def test_no_line_twice_nor_out_of_order(self, tmp_path: Path, out: Path, clock: Clock) -> None:
        noted = "".join(
            f"{n} {'ERROR: CUDA out of memory. Tried to allocate 2.00 GiB' if n % 97 == 0 else 'chatter'}\n"
            for n in range(20_000)
        )
        numbers = [int(line.split()[0]) for line in printed(tmp_path, out, clock, "errors", noted)]
        assert numbers == sorted(set(numbers))


class TestNone:
    def test_no_words_of_the_job(self, tmp_path: Path, out: Path, clock: Clock) -> None:
        said = chatter(500) + "step 1 loss 2.5 lr 1.00e-03\n" + TRACEBACK
        output = printed(tmp_path, out, clock, "none", said)
        assert all(line.startswith(MARK) for line in output)
        text = "\n".join(output)
        for secret in ("alice", "hunter2", "4711", "customer", "fetched", "train.py"):
            assert secret not in text
        events = [told for line in output if isinstance(told := parse_event(line, Position("x", 1)), Event)]
        assert {"progress", "exception"} <= {event.kind for event in events}
        (raised,) = [event for event in events if event.kind == "exception"]
        assert (raised.get("type"), raised.get("message")) == ("ValueError", WITHHELD)

    def test_silence_is_told_from_output(self, tmp_path: Path, out: Path, clock: Clock) -> None:
        said = chatter(6000)
        output = printed(tmp_path, out, clock, "none", said)
        pulses = [told for line in output if isinstance(told := parse_event(line, Position("x", 1)), Pulse)]
        assert 6 <= len(pulses) <= 9
        assert pulses[-1] == Pulse(6000, len(said))

    def test_it_is_a_stream_of_its_own(self, tmp_path: Path, out: Path, clock: Clock) -> None:
        host = Host(tmp_path)
        append(out, TRACEBACK)
        host.start(100, owner(rank=3), out)
        printing = Printing(host, text="none")
        printing.collect()
        clock.passes(5)
        (line, *_) = printing.collect()
        ((path, text),) = written_lines(LogEntry(line.time_ns, line.text, dict(line.labels) | {"node": "n1"}))
        assert path == "job-42/slurm-42.rank3.out.events@n1.log"
        assert text.startswith("20")

    def test_it_is_read_back(self, tmp_path: Path, out: Path, clock: Clock) -> None:
        said = "".join(f"step {n} loss {'nan' if n > 80 else 2.5} lr 1.00e-03\n" for n in range(100)) + TRACEBACK
        lines = printed(tmp_path, out, clock, "none", said)
        path = tmp_path / "back" / "slurm-42.out.events.log"
        path.parent.mkdir()
        path.write_text(
            "".join(f"2026-03-02T08:00:{n % 60:02}.000000000Z stdout F {line}\n" for n, line in enumerate(lines))
        )
        loaded = load([path.parent])
        (row,) = loaded.inputs
        assert (row.format, row.note) == ("typed-events", "events parsed on the node")
        kinds = {event.kind for event in loaded.store.all_rows() if isinstance(event, Event)}
        assert {"exception", "log_activity"} <= kinds


@cache
def recorded() -> list[Event]:
    """Events of many scenarios' logs."""
    found: list[Event] = []
    for name in PLAYED:
        case: Case = CASES[name]
        for path in sorted((case.folder / "inputs").rglob("*")):
            if path.suffix in (".log", ".out", ".txt"):
                found += scan_text(path.read_bytes())
    return found


def test_an_event_comes_back_with_its_figures() -> None:
    assert len(recorded()) > 500
    for event in recorded():
        back = parse_event(format_event(event), event.at)
        assert isinstance(back, Event)
        assert (back.kind, back.role, back.parser, back.rank) == (event.kind, event.role, event.parser, event.rank)
        for name, value in event.fields.items():
            if isinstance(value, (int, float)):
                assert back.get(name) == value or value != value


def test_no_event_carries_a_sentence() -> None:
    for event in recorded():
        back = parse_event(format_event(event), event.at)
        assert isinstance(back, Event)
        for name, value in back.fields.items():
            if isinstance(value, str) and value != WITHHELD:
                assert name in WORDS or name in ("what", "by", "value", "path", "command"), (event.kind, name, value)
                assert re.fullmatch(r"[\w.:;,@+\-\[\]()/=* ]{0,200}", value)


@pytest.mark.parametrize(
    "line",
    ["", "no event", MARK, MARK + "{", MARK + "[]", MARK + '{"kind": "nothing"}', MARK + '{"kind": "pulse"}', MARK + "[" * 99_999,
     MARK + '{"kind": "exception", "fields": 3}', MARK + '{"kind": "exception", "role": "king"}'],
)  # fmt: skip
def test_lines_that_are_no_events(line: str) -> None:
    assert parse_event(line, Position("x", 1)) is None
