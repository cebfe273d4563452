"""Lines that the agent writes about processes that seem to hang, readable by people and by the reader.

    [hang] job 4242: no output for 312 s, 4 s between outputs before; 8 ranks on this node are inactive for 250 s
    [hang] job 4242 rank 3 pid 977 python: state S in futex_do_wait, syscall 202, 0.00 cores, 25 threads (24 S, 1 R)
    [hang] job 4242 rank 3 pid 977 thread 977 "MainThread" idle at train.py:88 in main: main (train.py:88); ...
    [hang] job 4242 rank 3 pid 977 thread 977 "MainThread" idle ...: ... | native: clock_nanosleep; time_sleep
    [hang] job 4242 rank 3 pid 977: no stack: WHY
    [hang] job 4242 rank 3 pid 977 flight recorder a1b2c3d4 piece 2/3: BASE64 of the deflated dump
    [hang] job 4242 rank 3: goes on after 431 s

Rank and pid are omitted if unknown. A thread's frames are listed innermost first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackside.catalog.python_stack import Call

MARK = "[hang] "
MAX_FRAMES = 40
"""Maximum number of Python frames written per thread."""
MAX_NATIVE_FRAMES = 16
"""Maximum number of native frames written, of those inside the innermost Python frame."""
_MAX_NAME_CHARS, _MAX_FILE_CHARS = 120, 160
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
_RESUMPTION = re.compile(r"goes on after (\d{1,9}) s\Z")


@dataclass(frozen=True, slots=True)
class LineSubject:
    """The job, or one of its processes, that a line is about."""

    job: str
    rank: int | None = None
    pid: int | None = None

    def __str__(self) -> str:
        rank = "" if self.rank is None else f" rank {self.rank}"
        return f"{MARK}job {self.job}{rank}{'' if self.pid is None else f' pid {self.pid}'}"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process's state in the kernel. ``wait``: the kernel function it sleeps in; ``threads``: threads by state."""

    comm: str
    state: str
    wait: str = ""
    syscall: str = ""
    cores: float | None = None
    threads: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread's stack, innermost first. ``native``: functions inside the innermost Python frame."""

    tid: int
    name: str
    doing: str
    place: str
    calls: tuple[Call, ...]
    native: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a flight recorder dump."""

    id: str
    number: int
    count: int
    data: str


@dataclass(frozen=True, slots=True)
class Resumption:
    """Output resumed after ``after_s`` seconds."""

    after_s: int


LineContent = ProcessState | ThreadStack | Piece | Resumption | None
"""The content of a line; None for lines that are only for people."""


def _word(text: str, max_chars: int) -> str:
    return re.sub(r"[\s;|]+", "_", text.strip())[:max_chars] or "?"


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
    return _word("".join(flat).replace(" const", "").replace("operator", "operator_"), _MAX_NAME_CHARS)


def place_of(call: Call) -> str:
    """The frame as ``train.py:88 in main``."""
    return f"{_word(call.file, _MAX_FILE_CHARS)}:{call.line} in {_word(call.name, _MAX_NAME_CHARS)}"


def state_line(subject: LineSubject, state: ProcessState) -> str:
    """The line for a process's state."""
    line = f"{subject} {_word(state.comm, 64)}: state {state.state}"
    line += f" in {_word(state.wait, 100)}" if state.wait else ""
    line += f", syscall {state.syscall}" if state.syscall else ""
    line += f", {state.cores:.2f} cores" if state.cores is not None else ""
    if state.threads:
        count = sum(state.threads.values())
        kinds = ", ".join(f"{number} {letter}" for letter, number in sorted(state.threads.items()))
        line += f", {count} thread{'s' if count != 1 else ''} ({kinds})"
    return line


def thread_line(subject: LineSubject, thread: ThreadStack) -> str:
    """The line for a thread's stack."""
    name = re.sub(r"[\s\"]+", "_", thread.name)[:60]
    frames = "; ".join(
        f"{_word(call.name, _MAX_NAME_CHARS)} ({_word(call.file, _MAX_FILE_CHARS)}:{call.line})"
        for call in thread.calls[:MAX_FRAMES]
    )
    location = f" at {thread.place}" if thread.place else ""
    native = "; ".join(_word(function, _MAX_NAME_CHARS) for function in thread.native[:MAX_NATIVE_FRAMES])
    return f'{subject} thread {thread.tid} "{name}" {thread.doing}{location}: {frames}' + (
        f" | native: {native}" if native else ""
    )


def piece_line(subject: LineSubject, piece: Piece) -> str:
    """The line for a piece of a dump."""
    return f"{subject} flight recorder {piece.id} piece {piece.number}/{piece.count}: {piece.data}"


def resumption_line(subject: LineSubject, after_s: float) -> str:
    """The line that withdraws a suspicion."""
    return f"{subject}: goes on after {after_s:.0f} s"


def text_line(subject: LineSubject, words: str) -> str:
    """A line with free text for people."""
    return f"{subject}: " + re.sub(r"\s+", " ", words)[:500]


def read_line(text: str) -> tuple[LineSubject, LineContent] | None:
    """The process and content of a line; None for any other line."""
    match = _WHO.match(text) if text.startswith(MARK) else None
    if match is None:
        return None
    subject = LineSubject(match["job"], _number(match["rank"]), _number(match["pid"]))
    content = match["rest"]
    if match["colon"]:
        resumption = _RESUMPTION.match(content)
        return subject, Resumption(int(resumption[1])) if resumption else None
    return subject, _thread(content) or _piece(content) or _state(content)


def read_piece(line: bytes) -> Piece | None:
    """The piece of a dump in a line, whatever prefix a collector added; None for other lines."""
    offset = line.find(MARK.encode(), 0, 120)
    parsed = read_line(line[offset:].decode("utf-8", "replace").rstrip()) if offset >= 0 else None
    return parsed[1] if parsed is not None and isinstance(parsed[1], Piece) else None


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _thread(rest: str) -> ThreadStack | None:
    head, _, tail = rest.partition(": ")  # nothing before it contains a colon and a blank
    match = _THREAD.match(head) if rest.startswith("thread ") else None
    if match is None:
        return None
    frames, _, inner = tail.partition(" | native: ")
    native = (
        tuple(function[:_MAX_NAME_CHARS] for function in inner.split("; ", MAX_NATIVE_FRAMES)[:MAX_NATIVE_FRAMES])
        if inner
        else ()
    )
    return ThreadStack(int(match["tid"]), match["name"], match["doing"], match["place"] or "", calls_of(frames), native)


def calls_of(text: str) -> tuple[Call, ...]:
    """Parse frames as written in a line."""
    parts = (_FRAME.fullmatch(part) for part in text.split("; ", MAX_FRAMES)[:MAX_FRAMES])
    return tuple(Call(part[1], part[2], int(part[3] or 0)) for part in parts if part)


def _piece(rest: str) -> Piece | None:
    match = _PIECE.match(rest)
    return None if match is None else Piece(match["id"], int(match["number"]), int(match["count"]), match["data"])


def _state(rest: str) -> ProcessState | None:
    match = _STATE.match(rest)
    if match is None:
        return None
    pairs = (part.rpartition(" ")[::2] for part in (match["each"] or "").split(", ") if part)
    threads = {letter: int(count.strip()) for count, letter in pairs if count.strip().isdecimal()}
    cores = None if match["cores"] is None else float(match["cores"])
    return ProcessState(
        match["comm"], match["state"], match["wait"] or "", match["syscall"] or "", cores, threads or None
    )


def pieces_of(data: str, id_: str, max_chars: int) -> Sequence[Piece]:
    """Base64 text cut into pieces of at most ``max_chars`` characters."""
    parts = [data[start : start + max_chars] for start in range(0, len(data), max_chars)]
    return [Piece(id_, number, len(parts), part) for number, part in enumerate(parts, 1)]
