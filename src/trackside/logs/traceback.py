"""Python exceptions: tracebacks of any shape, and last lines whose traceback is missing.

A header starts a block: the following lines are distributed among their writers (by rank label, by a logger's prefix)
until every traceback that began there has ended, so that each line is read once, however ranks interleave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from trackside.logs.exception_topics import chain_topic
from trackside.logs.line import Line, split_label
from trackside.logs.pattern import Parser
from trackside.logs.traceback_reader import (
    ParsedException,
    StackFrame,
    TracebackReader,
    exception_line,
    raised,
    read_frame,
    unescape,
    untangled,
)
from trackside.logs.wrapping import columns, continues, joined
from trackside.model import Event, EventRole

MAX_BLOCK_LINES = 4_000
"""Lines of one block; ranks whose tracebacks are longer than that together get separate blocks."""
MAX_EVENT_FRAMES = 40
MAX_FOREIGN_BYTES = 64 << 10
"""Bytes of other writers' lines after which a labeled traceback counts as ended: about eight rounds of 64 ranks."""
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
    safety="A traceback is read once, with its chain: headers inside a chain, quoted by a worker or printed by an "
    "interleaved rank yield no second event. Handled exceptions are events too: what follows shows that they "
    "were handled.",
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
    offsets: set[int] = line.notes("python").setdefault("read", set())
    if line.offset in offsets:
        return None
    line.notes("python")["read"] = {offset for offset in offsets if offset >= line.offset}
    return list(TracebackBlock(line).events())


def is_below_traceback(line: Line) -> bool:
    """Whether the segment is the first of a line right below the last line of a traceback, or of the next one."""
    end: int | None = line.notes("python").get("end")
    if end is None or not 0 <= line.offset - end <= line.start:
        return False
    begin = line.start - (line.offset - end)
    before = line.buffer[line.buffer.rfind(b"\n", 0, line.start) + 1 : line.start]
    return not before.strip() and line.buffer.count(b"\n", begin, line.start) <= 2


class TracebackBlock:
    """The lines from a header to where every traceback that began meanwhile has ended."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._read_offsets: set[int] = line.notes("python")["read"]
        self._readers: list[tuple[str, TracebackReader]] = []
        self._events: list[Event] = []
        self._needles: set[bytes] = set()
        self._columns = columns(line)
        self._pieces: list[Line] = []
        """Lines that a terminal broke off one line, up to now."""

    def events(self) -> Iterator[Event]:
        """Read the block; yield its exception events in order of position."""
        self._open_reader(self._line)
        if self._readers:
            self._update_needles()
            for physical in islice(self._line.containing(self._needles, MAX_FOREIGN_BYTES), MAX_BLOCK_LINES):
                line = last_segment(physical)
                if HEADER in line.full and not _is_quoted_in_message(line):
                    self._distribute_pieces()
                    self._open_reader(line)
                elif self._columns is None:
                    self._distribute(line, line.text)
                else:
                    self._distribute_broken(line, self._columns)
                self._line.notes("python")["end"] = line.offset
                if any(reader.open > 1 for _, reader in self._readers):
                    self._line.notes("python")["interleaved"] = line.offset
                self._readers = [(label, reader) for label, reader in self._readers if not reader.closed]
                if not self._readers:
                    break
                self._update_needles()
        self._distribute_pieces()
        for _, reader in self._readers:
            reader.close()
        yield from sorted(self._events, key=lambda event: event.at.offset)

    def _update_needles(self) -> None:
        """Set what the next line to read must contain: a header, or the label of a writer whose traceback is open."""
        self._needles.clear()
        self._needles.update((_HEADER, *(_needle(label) for label, _ in self._readers)))

    def _open_reader(self, line: Line) -> None:
        self._read_offsets.add(line.offset)
        label, before, after = _writer(line)
        if "\\n" in after:
            self._read_escaped(line, before, after)
            return
        summary = _SUMMARY.match(before) is not None
        quoted = "Original" in before
        plain = summary or quoted or _DECORATION.fullmatch(before) or _BAR.search(before)
        shape = None if plain else _shape(before)
        for reader_label, reader in self._readers:
            if reader_label == label and reader.in_summary == summary and _same_writer(reader, shape, before):
                if reader.head(quoted):
                    return
                break
        reader = TracebackReader(
            line,
            self._add_event,
            lambda read_line: self._read_offsets.add(read_line.offset),
            prefix=before,
            shape=shape,
            labeled="[rank" in label,
            in_summary=summary,
            group="Exception Group" in before,
        )
        self._readers.append((label, reader))

    def _distribute_broken(self, line: Line, width: int) -> None:
        """Collect the pieces of a broken line; hand over the line before it."""
        if not (self._pieces and continues(self._pieces[-1].full, line.full, width)):
            self._distribute_pieces()
        self._pieces.append(line)

    def _distribute_pieces(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces:
            self._distribute(pieces[0], pieces[0].text + "".join(piece.full for piece in pieces[1:]))

    def _distribute(self, line: Line, text: str) -> None:
        readers = [reader for label, reader in reversed(self._readers) if label == line.label]
        for reader in readers:
            if reader.shape is not None and (match := reader.shape.match(text)):
                reader.shaped = True
                reader.feed(line, text[match.end() :])
                return
        for reader in readers:
            if not reader.shaped and reader.feed(line, text):
                return

    def _read_escaped(self, line: Line, before: str, after: str) -> None:
        reader = TracebackReader(line, self._add_event, lambda _: None, prefix=before)
        for text in unescape(after):
            reader.feed(line, text)
        reader.close()

    def _add_event(self, reader: TracebackReader, chain: list[ParsedException]) -> None:
        self._events.append(_event(reader, chain))


def _is_quoted_in_message(line: Line) -> bool:
    """Whether the line is the last of a traceback, whose message quotes another one."""
    before, _, after = line.text.partition(HEADER)
    return before.endswith("\\n") and "\\n" in after and exception_line(before) is not None


def _needle(label: str) -> bytes:
    """What every raw line of a writer with this label contains; empty for a writer without a label."""
    match = _LAST_LABEL.search(label)
    return match[0].encode() if match else b""


def _same_writer(reader: TracebackReader, shape: re.Pattern[str] | None, before: str) -> bool:
    """Whether a header with this prefix may come from the writer of ``reader``, which has the same label."""
    if shape is None:
        return not reader.shaped
    return reader.shape is not None and reader.shape.fullmatch(before) is not None


def last_segment(line: Line) -> Line:
    """The segment that the last redraw left on a physical line."""
    if "\r" not in line.full:
        return line
    start = line.buffer.rfind(b"\r", line.start, line.end) + 1
    last = Line(line.buffer, start, line.end, line.number, line.offset + start - line.start, line.context)
    last.parser = line.parser
    return last


def _writer(line: Line) -> tuple[str, str, str]:
    """(label, text before the header, text after it); a label behind a progress bar counts."""
    before, _, after = line.text.partition(HEADER)
    if match := _LABEL_INSIDE.search(before):
        prefix, label, _ = split_label(before[match.start() :], False)
        return line.label + label, prefix, after
    return line.label, before, after


def _shape(prefix: str) -> re.Pattern[str] | None:
    """A regex for what the same logger prints before the next line: times and line numbers differ, the rest is
    equal."""
    tokens = prefix.split()
    if not tokens or len(prefix) > 200:
        return None
    parts = []
    for token in tokens:
        escaped = re.escape(token)
        variable = any(c.isdigit() for c in token) and any(c in ":.,-/" for c in token)
        parts.append(re.sub(r"\d+", r"\\d+", escaped) if variable else escaped)
    return re.compile(r"\s*" + r"\s+".join(parts) + (" ?" if prefix.endswith(" ") else ""))


def _event(reader: TracebackReader, chain: list[ParsedException]) -> Event:
    last, oldest = chain[-1], chain[0]
    about, role = chain_topic([(exception.type, exception.text, exception.frames) for exception in chain])
    text_above = "\n".join(line.full for line in reader.header.preceding(3)) if not reader.in_summary else ""
    if role is EventRole.ROOT and about in ("application", "signal") and _is_not_fatal(reader, text_above):
        role = EventRole.CONFIRMATION
    if "^C" in reader.prefix and about in ("application", "signal"):
        about, role = "interrupt", EventRole.ROOT
    if about == "interrupt" and any(_ENDING.search(line.full) for line in reader.header.preceding(20)):
        role = EventRole.TEARDOWN
    rank, pid = _rank_and_pid(reader, last)
    return last.line.event(
        "exception",
        role,
        rank=rank,
        time=reader.header.time if last.line.time is None else None,
        text=f"{last.type}: {last.message[0]}".strip().removesuffix(":") if last.message else last.type,
        type=last.type,
        message=last.text,
        chain=";".join(exception.type for exception in chain[:-1]) or None,
        root_type=oldest.type,
        root_message=oldest.text,
        about=about,
        wrapper=True if about == "wrapper" else None,
        lines=last.lines if last.lines > 1 else None,
        in_summary=reader.in_summary or None,
        logged=_is_log_prefix(reader.prefix) or None,
        pid=pid,
        **_frame_fields([exception.frames for exception in reversed(chain) if exception.frames]),
    )


def _is_not_fatal(reader: TracebackReader, text_above: str) -> bool:
    """Whether this exception could not end the process: one in a thread or a destructor, or one logged as a warning."""
    nearest = text_above.split("\n", 1)[0]
    return _NOT_FATAL.search(nearest) is not None or _WARNING.search(reader.prefix) is not None


def _rank_and_pid(reader: TracebackReader, last: ParsedException) -> tuple[int | None, int | None]:
    """(rank, pid) if the label, the logger's prefix or the launcher's summary gives them."""
    rank = reader.header.rank if last.line.rank is None else last.line.rank
    pid = _PID.search(reader.prefix) or _PID.search(last.line.label)
    if reader.in_summary:
        for line in reader.header.preceding(8):
            if rank is None and (match := re.match(r"\s*rank\s{0,12}: (\d{1,6})", line.text)):
                rank = int(match[1])
            pid = pid or re.search(r"\(pid: (\d{1,8})\)", line.text)
    elif rank is None and (match := _RANK.search(reader.prefix)):
        rank = int(match[1])
    return rank, int(pid[1]) if pid else None


def _is_log_prefix(prefix: str) -> bool:
    return _LEVEL.search(prefix) is not None and _BAR.search(prefix) is None


def _frame_fields(traces: list[list[StackFrame]]) -> dict[str, str | None]:
    """The frame fields: those of the last exception, and the innermost user frame of any exception in the chain."""
    if not traces:
        return {}
    frames = traces[0]
    if len(frames) > MAX_EVENT_FRAMES:
        frames = frames[:10] + frames[10 - MAX_EVENT_FRAMES :]
    user_frames = (frame for trace in traces for frame in reversed(trace) if _LIBRARY.search(frame[0]) is None)
    user_frame = next(user_frames, None)
    return {
        "frame": _format_frame(frames[-1]),
        "user_frame": None if user_frame is None else _format_frame(user_frame),
        "user_code": None if user_frame is None else user_frame[3] or None,
        "frames": ";".join(map(_format_frame, frames)),
    }


def _format_frame(frame: StackFrame) -> str:
    file, number, function, _ = frame
    return f"{file}:{number} in {function}"


# -- last lines whose traceback is missing

_BARE = re.compile(
    r"(?P<before>.{0,300}?)(?P<type>(?:[a-z_]\w{0,40}\.){0,8}(?:_?[A-Z]\w{1,60}(?:Error|Exception)(?:\(\w{1,60}\))?|KeyboardInterrupt"
    r"|SystemExit|"
    r"PyYAMLException|ArrowInvalid))(?::(?: (?P<message>.*))?)?$",
    re.DOTALL,
)
_LOGGER = re.compile(
    r"(?=.{0,80}\b(?:ERROR|CRITICAL|FATAL|E\d{4})\b)[\[(]?(?:\d{2,4}[-/]\d\d|[A-Z]{2,10}\b|E\d{4}"
    r"|\d\d:\d\d)[^'\"`]{0,110}[\s:\]>|-]$"
)


@PARSER.pattern(
    rb"(?:Error|Exception|Interrupt|SystemExit|ArrowInvalid)(?:\([A-Za-z]{1,60}\))?(?:: |\r?\n)",
    safety="Only at the start of the line, or right after a logger's ERROR prefix: prose, warnings and reports like "
    "'with error <class ...>' do not count. Without a colon, frames must be above.",
    matches=(
        '  File "/home/u/train.py", line 61, in main\n    step()\nKeyboardInterrupt',
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "2026-01-02 03:04:05,678 - ERROR - ValueError: bad batch size",
        "ray.exceptions.RayTaskError(ValueError): ray::Trainer.fit() (pid=7, ip=10.0.0.2)",
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
    ),
    avoids=(
        "WARNING: retrying after ConnectionError: timed out",
        "if you see a ValueError: check your data",
        "error: something failed",
        "FutureWarning: x raises ValueError: later",
        "ValueError",
        "Error: 3",
    ),
)
def _parse_bare(line: Line) -> Event | None:
    notes = line.notes("python")
    if line.offset in notes.get("read", ()) or line.offset <= notes.get("interleaved", -1):
        return None
    text = untangled(joined(line).rstrip())
    match = _BARE.match(text)
    if match is None:
        return None
    colon = match["message"] is not None or match.end("type") < len(text)
    if not colon and (match["before"].strip() or not _frames_above(line)):
        return None
    before, name, message = match["before"], match["type"], match["message"] or ""
    if before.strip() and not (_LOGGER.match(before) or (_BAR.search(before) and before.rstrip()[-1] in "])%|")):
        return None
    reader = TracebackReader(line, lambda reader, chain: None, lambda line: None, prefix=before)
    exception = ParsedException(name, [message], _frames_above(line), line, colon)
    if not before.strip() and colon:
        _read_continuation(reader, exception)
    return _event(reader, [exception])


def _read_continuation(reader: TracebackReader, exception: ParsedException) -> None:
    """Add to a bare exception the following lines that belong to its message."""
    chains: list[list[ParsedException]] = []
    reader.emit = lambda _, chain: chains.append(chain)
    reader.feed(exception.line, f"{exception.type}: {exception.message[0]}")
    width, above = columns(exception.line), exception.line.full
    for line in exception.line.following(60):
        if reader.closed:
            break
        if line.label == exception.line.label:
            if HEADER in line.text:
                break
            if width is None or not continues(above, line.full, width):  # else it is part of the first line
                reader.feed(line, line.text)
                width = None
            above = line.full
    reader.close()
    if chains:
        exception.message = chains[0][0].message


@PARSER.pattern(
    rb"  raise [A-Za-z_]",
    r"^\s{4,12}(raise \S.{0,400})",
    safety="The source line of a frame, if the text ends there or something else follows: then the header and the last "
    "line are missing. Source code that is printed without a frame above it does not count.",
    matches=(
        '  File "/home/u/data.py", line 17, in collate\n    raise ValueError(',
        '  File "/home/u/io.py", line 9, in read\n    raise EOFError\n2026-01-02 03:04:05 INFO bye',
    ),
    avoids=(
        "    raise ValueError(",
        '  File "/home/u/data.py", line 17, in collate\n    raise exception',
        "    if n < 0:\n        raise ValueError(",
    ),
)
def _parse_raise(line: Line, match: re.Match[str]) -> Event | None:
    parsed = raised(match[1])
    if parsed is None or line.offset <= line.notes("python").get("end", -1):
        return None
    above = next((near for near in line.preceding(20) if near.label == line.label), None)
    if above is None or read_frame(above.text) is None or not _ends_here(line):
        return None
    reader = TracebackReader(line, lambda reader, chain: None, lambda line: None)
    return _event(reader, [ParsedException(parsed[0], [parsed[1]], _frames_above(line, match[1].strip()), line)])


def _ends_here(line: Line) -> bool:
    """Whether neither a last line nor another frame follows a frame's source line."""
    for below in line.following(20):
        if below.label == line.label and not below.text.startswith("    "):
            return read_frame(below.text) is None and exception_line(below.text) is None
    return True


def _frames_above(line: Line, code: str = "") -> list[StackFrame]:
    """Frames right above a last line whose header is missing, outermost first; ``code`` is the innermost one's."""
    frames: list[StackFrame] = []
    for above in line.preceding(60):
        if above.label != line.label:
            continue
        if parts := read_frame(above.text):
            frames.append((*parts, code))
            code = ""
        elif above.text.startswith("    "):
            code = above.text.strip()[:300] if above.text.strip(" ^~") else code
        else:
            break
    return frames[::-1]
