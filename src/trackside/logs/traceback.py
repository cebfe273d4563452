"""Python exceptions: tracebacks of any shape, and last lines whose traceback is gone.

A header starts a block: the lines after it are shared out among their writers (by rank label, by a logger's
prefix) until every traceback begun there has ended, so that each line is read once however ranks interleave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from trackside.logs.exception_topics import chain_topic
from trackside.logs.line import Line, split_label
from trackside.logs.pattern import Parser
from trackside.logs.traceback_reader import Frame, Stream, Told, read_frame, unescape
from trackside.model import Event, Role

MAX_LINES = 4_000
"""Lines of one block; ranks whose tracebacks are longer than that together get blocks of their own."""
MAX_EVENT_FRAMES = 40
REACH = 64 << 10
"""Bytes of other writers' lines after which a labelled traceback counts as ended: some eight rounds of 64 ranks."""
HEADER = "Traceback (most recent call last)"
_HEADER = HEADER.encode()
_LAST_LABEL = re.compile(r"[\[(]?[^\[(]*$")

_LEVEL = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|WARNING|WARN|EXCEPTION|Error|error)\b")
_WARNING = re.compile(r"\b(?:WARNING|WARN)\b")
_PID = re.compile(r"(?:\bpid[=: ]{1,2}|python\d?(?:\.\d+)?\[)(\d{1,8})", re.IGNORECASE)
_RANK = re.compile(r"\brank\W{0,4}(\d{1,6})\b", re.IGNORECASE)
_LABEL_INSIDE = re.compile(r"\[(?:rank|default|trainer|worker)\s*\d+\]:")
_BAR = re.compile(r"\d%\||it/s|s/it|\?, ?\?")
_DECORATION = re.compile(r"[\s│|╭─╮+-]{1,400}|\s{0,40}\+ Exception Group\s*|[\w.]{1,80}\s{2,200}|\^C")
_SUMMARY = re.compile(r"\s{0,8}traceback ?:\s")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|\\lib\\|<frozen |<string>|^importlib|/bin/(?:torchrun|accelerate"
    r"|deepspeed|python\d?)$"
    r"|\.pyx$|/lib64/python"
)
_NOT_FATAL = re.compile(
    r"Exception ignored in|Error in atexit|--- Logging error ---|Exception in thread|never retrieved"
)
_ENDING = re.compile(r"SIGTERM|CANCELLED AT|[Ss]ignal:? 15\b|15 death signal|Terminated")

PARSER = Parser("python", "Python tracebacks", "system")


@PARSER.pattern(
    rb"Traceback \(most recent call last\)",
    safety="A traceback is read once, with its chain: headers inside a chain, quoted by a worker's or "
    "printed by an interleaved rank give no second event. Handled ones are events too: what came after tells.",
    matches=(
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: x',
        (
            '2026-01-02 03:04:05 ERROR Traceback (most recent call last):\\n  File \\"a.py\\", line 1, in '
            "f\\nKeyError: 'k'"
        ),
    ),
    avoids=("Traceback (most recent call first):", "see the Traceback above"),
)
def _parse_header(line: Line) -> list[Event] | None:
    seen: set[int] = line.notes("python").setdefault("seen", set())
    if line.offset in seen:
        return None
    line.notes("python")["seen"] = {offset for offset in seen if offset >= line.offset}
    return list(Block(line).events())


class Block:
    """The lines from a header to where every traceback that began meanwhile has ended."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._seen: set[int] = line.notes("python")["seen"]
        self._streams: list[tuple[str, Stream]] = []
        self._found: list[Event] = []
        self._needles: set[bytes] = set()

    def events(self) -> Iterator[Event]:
        """Read the block."""
        self._open(self._line)
        if self._streams:
            self._look_for()
            for physical in islice(self._line.holding(self._needles, REACH), MAX_LINES):
                line = last_segment(physical)
                if HEADER in line.full:
                    self._open(line)
                else:
                    self._share(line)
                if any(stream.open > 1 for _, stream in self._streams):
                    self._line.notes("python")["interleaved"] = line.offset
                self._streams = [(label, stream) for label, stream in self._streams if not stream.closed]
                if not self._streams:
                    break
                self._look_for()
        for _, stream in self._streams:
            stream.close()
        yield from sorted(self._found, key=lambda event: event.at.offset)

    def _look_for(self) -> None:
        """What the next line to be read must hold: a header, or the label of a writer still telling."""
        self._needles.clear()
        self._needles.update((_HEADER, *(_needle(label) for label, _ in self._streams)))

    def _open(self, line: Line) -> None:
        self._seen.add(line.offset)
        label, before, after = _writer(line)
        if "\\n" in after:
            self._escaped(line, before, after)
            return
        summary = _SUMMARY.match(before) is not None
        quoted = "Original" in before
        plain = summary or quoted or _DECORATION.fullmatch(before) or _BAR.search(before)
        shape = None if plain else _shape(before)
        for known, stream in self._streams:
            if known == label and stream.in_summary == summary and _same(stream, shape, before):
                if stream.head(quoted):
                    return
                break
        stream = Stream(
            line,
            self._take,
            lambda told: self._seen.add(told.offset),
            prefix=before,
            shape=shape,
            labelled="[rank" in label,
            in_summary=summary,
            group="Exception Group" in before,
        )
        self._streams.append((label, stream))

    def _share(self, line: Line) -> None:
        writers = [stream for label, stream in reversed(self._streams) if label == line.label]
        for stream in writers:
            if stream.shape is not None and (found := stream.shape.match(line.text)):
                stream.shaped = True
                stream.feed(line, line.text[found.end() :])
                return
        for stream in writers:
            if not stream.shaped and stream.feed(line, line.text):
                return

    def _escaped(self, line: Line, before: str, after: str) -> None:
        stream = Stream(line, self._take, lambda told: None, prefix=before)
        for text in unescape(after):
            stream.feed(line, text)
        stream.close()

    def _take(self, stream: Stream, chain: list[Told]) -> None:
        self._found.append(_event(stream, chain))


def _needle(label: str) -> bytes:
    """What every raw line of a writer with this label holds; nothing for a writer without one."""
    found = _LAST_LABEL.search(label)
    return found[0].encode() if found else b""


def _same(stream: Stream, shape: re.Pattern[str] | None, before: str) -> bool:
    """Whether a header with this prefix may be of the writer of ``stream``, which has the same label."""
    if shape is None:
        return not stream.shaped
    return stream.shape is not None and stream.shape.fullmatch(before) is not None


def last_segment(line: Line) -> Line:
    """What the last redraw left on a physical line."""
    if "\r" not in line.full:
        return line
    start = line.buffer.rfind(b"\r", line.start, line.end) + 1
    last = Line(line.buffer, start, line.end, line.number, line.offset + start - line.start, line.scratch)
    last.parser = line.parser
    return last


def _writer(line: Line) -> tuple[str, str, str]:
    """(label, what stands before the header, what stands after it); a label behind a progress bar counts."""
    before, _, after = line.text.partition(HEADER)
    if found := _LABEL_INSIDE.search(before):
        rest, label, _ = split_label(before[found.start() :], False)
        return line.label + label, rest, after
    return line.label, before, after


def _shape(prefix: str) -> re.Pattern[str] | None:
    """What the same logger puts before the next line: times and line numbers differ, the rest is equal."""
    tokens = prefix.split()
    if not tokens or len(prefix) > 200:
        return None
    parts = []
    for token in tokens:
        escaped = re.escape(token)
        variable = any(c.isdigit() for c in token) and any(c in ":.,-/" for c in token)
        parts.append(re.sub(r"\d+", r"\\d+", escaped) if variable else escaped)
    return re.compile(r"\s*" + r"\s+".join(parts) + (" ?" if prefix.endswith(" ") else ""))


def _event(stream: Stream, chain: list[Told]) -> Event:
    last, oldest = chain[-1], chain[0]
    about, role = chain_topic([(told.type, told.text, told.frames) for told in chain])
    context = "\n".join(line.full for line in stream.header.preceding(3)) if not stream.in_summary else ""
    if role is Role.ROOT and about in ("application", "signal") and _aside(stream, context):
        role = Role.CONFIRMATION
    if about == "interrupt" and any(_ENDING.search(line.full) for line in stream.header.preceding(20)):
        role = Role.TEARDOWN
    rank, pid = _whose(stream, last)
    return last.line.event(
        "exception",
        role,
        rank=rank,
        time=stream.header.time if last.line.time is None else None,
        text=f"{last.type}: {last.message[0]}".strip().removesuffix(":") if last.message else last.type,
        type=last.type,
        message=last.text,
        chain=";".join(told.type for told in chain[:-1]) or None,
        root_type=oldest.type,
        root_message=oldest.text,
        about=about,
        wrapper=True if about == "wrapper" else None,
        in_summary=stream.in_summary or None,
        logged=_logged(stream.prefix) or None,
        pid=pid,
        **_places([told.frames for told in reversed(chain) if told.frames]),
    )


def _aside(stream: Stream, context: str) -> bool:
    """Whether this exception could not end the process: a thread's, a destructor's, one logged as a warning."""
    nearest = context.split("\n", 1)[0]
    return _NOT_FATAL.search(nearest) is not None or _WARNING.search(stream.prefix) is not None


def _whose(stream: Stream, last: Told) -> tuple[int | None, int | None]:
    """(rank, pid) where the label, the logger's prefix or the launcher's summary tells."""
    rank = stream.header.rank if last.line.rank is None else last.line.rank
    pid = _PID.search(stream.prefix) or _PID.search(last.line.label)
    if stream.in_summary:
        for line in stream.header.preceding(8):
            if rank is None and (found := re.match(r"\s*rank\s{0,12}: (\d{1,6})", line.text)):
                rank = int(found[1])
            pid = pid or re.search(r"\(pid: (\d{1,8})\)", line.text)
    elif rank is None and (found := _RANK.search(stream.prefix)):
        rank = int(found[1])
    return rank, int(pid[1]) if pid else None


def _logged(prefix: str) -> bool:
    return _LEVEL.search(prefix) is not None and _BAR.search(prefix) is None


def _places(traces: list[list[Frame]]) -> dict[str, str | None]:
    """The frame fields: of the last exception, and the user's innermost one of any in the chain."""
    if not traces:
        return {}
    frames = traces[0]
    if len(frames) > MAX_EVENT_FRAMES:
        frames = frames[:10] + frames[10 - MAX_EVENT_FRAMES :]
    own = (frame for trace in traces for frame in reversed(trace) if _LIBRARY.search(frame[0]) is None)
    mine = next(own, None)
    return {
        "frame": _place(frames[-1]),
        "user_frame": None if mine is None else _place(mine),
        "user_code": None if mine is None else mine[3] or None,
        "frames": ";".join(map(_place, frames)),
    }


def _place(frame: Frame) -> str:
    file, number, function, _ = frame
    return f"{file}:{number} in {function}"


# -- last lines whose traceback is gone

_BARE = re.compile(
    r"(?P<before>.{0,120}?)(?P<type>(?:[a-z_]\w{0,40}\.){0,8}(?:[A-Z]\w{1,60}(?:Error|Exception)|KeyboardInterrupt"
    r"|SystemExit|"
    r"PyYAMLException|ArrowInvalid))(?::(?: (?P<message>.*))?)?$",
    re.DOTALL,
)
_LOGGER = re.compile(
    r"(?=.{0,80}\b(?:ERROR|CRITICAL|FATAL|E\d{4})\b)[\[(]?(?:\d{2,4}[-/]\d\d|[A-Z]{2,10}\b|E\d{4}"
    r"|\d\d:\d\d)[^'\"`]{0,110}[\s:\]>|-]$"
)


@PARSER.pattern(
    rb"(?:Error|Exception|Interrupt|SystemExit|ArrowInvalid): ",
    safety="Only at the line's beginning, or right after a logger's ERROR prefix: prose, warnings and "
    "reports like 'with error <class ...>' do not count.",
    matches=(
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "2026-01-02 03:04:05,678 - ERROR - ValueError: bad batch size",
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
    ),
    avoids=(
        "WARNING: retrying after ConnectionError: timed out",
        "if you see a ValueError: check your data",
        "error: something failed",
        "FutureWarning: x raises ValueError: later",
        "Error: 3",
    ),
)
def _parse_bare(line: Line) -> Event | None:
    notes = line.notes("python")
    if line.offset in notes.get("seen", ()) or line.offset <= notes.get("interleaved", -1):
        return None
    found = _BARE.match(line.text.rstrip())
    if found is None or (found["message"] is None and found.end("type") == len(line.text.rstrip())):
        return None
    before, name, message = found["before"], found["type"], found["message"] or ""
    if before.strip() and _LOGGER.match(before) is None:
        return None
    stream = Stream(line, lambda stream, chain: None, lambda line: None, prefix=before)
    told = Told(name, [message], _frames_above(line), line)
    if not before.strip():
        _continue(stream, told)
    return _event(stream, [told])


def _continue(stream: Stream, told: Told) -> None:
    """Take the lines after a bare exception line that belong to its message."""
    taken: list[list[Told]] = []
    stream.emit = lambda _, chain: taken.append(chain)
    stream.feed(told.line, f"{told.type}: {told.message[0]}")
    for line in told.line.following(60):
        if stream.closed:
            break
        if line.label == told.line.label:
            if HEADER in line.text:
                break
            stream.feed(line, line.text)
    stream.close()
    if taken:
        told.message = taken[0][0].message


def _frames_above(line: Line) -> list[Frame]:
    """Frames right above a last line whose header is cut off, outermost first."""
    frames: list[Frame] = []
    code = ""
    for above in line.preceding(60):
        if above.label != line.label:
            continue
        if frame := read_frame(above.text):
            frames.append((*frame, code))
            code = ""
        elif above.text.startswith("    "):
            code = above.text.strip()[:300] if above.text.strip(" ^~") else code
        else:
            break
    return frames[::-1]
