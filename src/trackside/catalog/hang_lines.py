"""What the agent writes down of processes that seem to hang, as lines that people and the reader both read.

    [hang] job 4242: no output for 312 s, 4 s between outputs before; 8 ranks on this node stand still
    [hang] job 4242 rank 3 pid 977 python: state S in futex_do_wait, syscall 202, 0.00 cores, 25 threads (24 S, 1 R)
    [hang] job 4242 rank 3 pid 977 thread 977 "MainThread" idle at train.py:88 in main: main (train.py:88); ...
    [hang] job 4242 rank 3 pid 977 thread 977 "MainThread" idle ...: ... | native: clock_nanosleep; time_sleep
    [hang] job 4242 rank 3 pid 977: no stack: WHY
    [hang] job 4242 rank 3 pid 977 flight recorder a1b2c3d4 piece 2/3: BASE64 of the deflated dump
    [hang] job 4242 rank 3: goes on after 431 s

Rank and pid are left out where they aren't known. A thread's frames come innermost first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackside.catalog.python_stack import Call

MARK = "[hang] "
MOST_FRAMES = 40
"""Python frames of one thread that are written."""
MOST_NATIVE = 16
"""Native frames that are written, of those inside of the innermost Python frame."""
_MOST_NAME, _MOST_FILE = 120, 160
_WHO = re.compile(
    r"\[hang\] job (?P<job>[\w.+-]{1,40})(?: rank (?P<rank>\d{1,7}))?(?: pid (?P<pid>\d{1,10}))?(?P<colon>:?) (?P<rest>.*)"
)
_STATE = re.compile(
    r"(?P<comm>.{1,64}?): state (?P<state>[A-Za-z])(?: in (?P<wait>\S{1,100}))?(?:, syscall (?P<syscall>\S{1,20}))?"
    r"(?:, (?P<cores>\d{1,5}\.\d\d) cores)?(?:, (?P<threads>\d{1,6}) threads?(?: \((?P<each>[^)]{0,200})\))?)?\Z"
)
_THREAD = re.compile(
    r"thread (?P<tid>\d{1,10}) \"(?P<name>[^\"]{0,100})\" (?P<doing>[a-z]{1,10})(?: at (?P<place>.{1,400}))?\Z"
)
_FRAME = re.compile(r"(\S{1,200}) \((.{1,300}?)(?::(\d{1,9}))?\)")
_PIECE = re.compile(
    r"flight recorder (?P<id>[0-9a-f]{8}) piece (?P<number>\d{1,4})/(?P<count>\d{1,4}): (?P<data>[A-Za-z0-9+/=]{1,65536})\Z"
)
_RESUMED = re.compile(r"goes on after (\d{1,9}) s\Z")


@dataclass(frozen=True, slots=True)
class Who:
    """The process that a line is about."""

    job: str
    rank: int | None = None
    pid: int | None = None

    def __str__(self) -> str:
        rank = "" if self.rank is None else f" rank {self.rank}"
        return f"{MARK}job {self.job}{rank}{'' if self.pid is None else f' pid {self.pid}'}"


@dataclass(frozen=True, slots=True)
class State:
    """What the kernel says of a process. ``wait``: the kernel function it sleeps in; ``each``: threads by state."""

    comm: str
    state: str
    wait: str = ""
    syscall: str = ""
    cores: float | None = None
    each: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread's stack, innermost first. ``native``: the functions inside of the innermost Python frame."""

    tid: int
    name: str
    doing: str
    place: str
    calls: tuple[Call, ...]
    native: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a flight recorder's dump."""

    id: str
    number: int
    count: int
    data: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """Output came again."""

    after_s: int


Told = State | Thread | Piece | Resumed | None
"""What a line tells; None for words to people alone."""


def _word(text: str, most: int) -> str:
    return re.sub(r"[\s;|]+", "_", text.strip())[:most] or "?"


def native_name(name: str) -> str:
    """A C++ function without its parameters and template arguments."""
    flat, depth = [], 0
    for character in name[:2000]:
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth = max(0, depth - 1)
        elif not depth:
            flat.append(character)
    return _word("".join(flat).replace(" const", "").replace("operator", "operator_"), _MOST_NAME)


def place_of(call: Call) -> str:
    """``train.py:88 in main``."""
    return f"{_word(call.file, _MOST_FILE)}:{call.line} in {_word(call.name, _MOST_NAME)}"


def state_line(who: Who, state: State) -> str:
    """The line of a process."""
    line = f"{who} {_word(state.comm, 64)}: state {state.state}"
    line += f" in {_word(state.wait, 100)}" if state.wait else ""
    line += f", syscall {state.syscall}" if state.syscall else ""
    line += f", {state.cores:.2f} cores" if state.cores is not None else ""
    if state.each:
        count = sum(state.each.values())
        kinds = ", ".join(f"{number} {letter}" for letter, number in sorted(state.each.items()))
        line += f", {count} thread{'s' if count != 1 else ''} ({kinds})"
    return line


def thread_line(who: Who, thread: Thread) -> str:
    """The line of a thread."""
    name = re.sub(r"[\s\"]+", "_", thread.name)[:60]
    frames = "; ".join(
        f"{_word(call.name, _MOST_NAME)} ({_word(call.file, _MOST_FILE)}:{call.line})"
        for call in thread.calls[:MOST_FRAMES]
    )
    at = f" at {thread.place}" if thread.place else ""
    native = "; ".join(_word(each, _MOST_NAME) for each in thread.native[:MOST_NATIVE])
    return f'{who} thread {thread.tid} "{name}" {thread.doing}{at}: {frames}' + (
        f" | native: {native}" if native else ""
    )


def piece_line(who: Who, piece: Piece) -> str:
    """The line of a part of a dump."""
    return f"{who} flight recorder {piece.id} piece {piece.number}/{piece.count}: {piece.data}"


def resumed_line(who: Who, after_s: float) -> str:
    """The line that takes a suspicion back."""
    return f"{who}: goes on after {after_s:.0f} s"


def words_line(who: Who, words: str) -> str:
    """A line for people."""
    return f"{who}: " + re.sub(r"\s+", " ", words)[:500]


def read_line(text: str) -> tuple[Who, Told] | None:
    """What a line tells and of whom; None where it is none of these lines."""
    found = _WHO.match(text) if text.startswith(MARK) else None
    if found is None:
        return None
    who = Who(found["job"], _number(found["rank"]), _number(found["pid"]))
    rest = found["rest"]
    if found["colon"]:
        told = _RESUMED.match(rest)
        return who, Resumed(int(told[1])) if told else None
    return who, _thread(rest) or _piece(rest) or _state(rest)


def read_piece(line: bytes) -> Piece | None:
    """The part of a dump that a line of a file holds, whatever a collector put before it."""
    at = line.find(MARK.encode(), 0, 120)
    found = read_line(line[at:].decode("utf-8", "replace").rstrip()) if at >= 0 else None
    return found[1] if found is not None and isinstance(found[1], Piece) else None


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _thread(rest: str) -> Thread | None:
    head, _, tail = rest.partition(": ")  # no word before it has a blank after a colon
    found = _THREAD.match(head) if rest.startswith("thread ") else None
    if found is None:
        return None
    frames, _, inner = tail.partition(" | native: ")
    native = tuple(each[:_MOST_NAME] for each in inner.split("; ", MOST_NATIVE)[:MOST_NATIVE]) if inner else ()
    return Thread(int(found["tid"]), found["name"], found["doing"], found["place"] or "", calls_of(frames), native)


def calls_of(text: str) -> tuple[Call, ...]:
    """Frames as they are written in a line."""
    parts = (_FRAME.fullmatch(part) for part in text.split("; ", MOST_FRAMES)[:MOST_FRAMES])
    return tuple(Call(part[1], part[2], int(part[3] or 0)) for part in parts if part)


def _piece(rest: str) -> Piece | None:
    found = _PIECE.match(rest)
    return None if found is None else Piece(found["id"], int(found["number"]), int(found["count"]), found["data"])


def _state(rest: str) -> State | None:
    found = _STATE.match(rest)
    if found is None:
        return None
    pairs = (part.rpartition(" ")[::2] for part in (found["each"] or "").split(", ") if part)
    each = {letter: int(count.strip()) for count, letter in pairs if count.strip().isdecimal()}
    cores = None if found["cores"] is None else float(found["cores"])
    return State(found["comm"], found["state"], found["wait"] or "", found["syscall"] or "", cores, each or None)


def pieces_of(data: str, id_: str, most: int) -> Sequence[Piece]:
    """Base64 text cut into parts of at most ``most`` characters."""
    parts = [data[start : start + most] for start in range(0, len(data), most)]
    return [Piece(id_, number, len(parts), part) for number, part in enumerate(parts, 1)]
