"""Python exceptions: tracebacks of any shape, and last lines whose traceback is missing.

A header starts a block: the following lines are distributed among their writers (by rank label, by a logger's prefix)
until every traceback that began there has ended, so that each line is read once, however ranks interleave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from trackside.logs.exception_event import bar_event, cut_traceback_event, exception_event
from trackside.logs.line import Line, split_label
from trackside.logs.pattern import Parser
from trackside.logs.traceback_lines import (
    PROGRESS_BAR,
    StackFrame,
    exception_line,
    exception_raised_by,
    read_frame,
    unescape,
    untangle,
)
from trackside.logs.traceback_reader import ParsedException, TracebackReader
from trackside.logs.wrapping import broken_width, continues, join_pieces
from trackside.model import Event

MAX_BLOCK_LINES = 4_000
"""Lines of one block; ranks whose tracebacks are longer than that together get separate blocks."""
MAX_FOREIGN_BYTES = 64 << 10
"""Bytes of other writers' lines after which a labeled traceback counts as ended: about eight rounds of 64 ranks."""
HEADER = "Traceback (most recent call last)"
_HEADER = HEADER.encode()
_LAST_LABEL = re.compile(r"[\[(]?[^\[(]*$")

_LABEL_INSIDE = re.compile(r"\[(?:rank|default|trainer|worker)\s*\d+\]:")
_DECORATION = re.compile(r"[\s│|╭─╮+-]{1,400}|\s{0,40}\+ Exception Group\s*|[\w.]{1,80}\s{2,200}|\^C")
_SUMMARY = re.compile(r"\s{0,8}traceback ?:\s")

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
    events = list(TracebackBlock(line).events())
    bar = bar_event(line) if events else None
    return events if bar is None else [bar, *events]


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
        self._width = broken_width(line)
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
                elif self._width is None:
                    self._distribute(line, line.text)
                else:
                    self._distribute_broken(line, self._width)
                if any(reader.open_count > 1 for _, reader in self._readers):
                    self._line.notes("python")["interleaved"] = line.offset
                self._readers = [(label, reader) for label, reader in self._readers if not reader.is_closed]
                if not self._readers:
                    break
                self._line.notes("python")["end"] = line.offset
                self._update_needles()
        self._distribute_pieces()
        for _, reader in self._readers:
            reader.close()
        if not self._events:  # the frames of ranks that print over each other have one exception
            self._events.extend(filter(None, (cut_traceback_event(reader) for _, reader in self._readers)))
        yield from sorted(self._events, key=lambda event: event.at.offset)

    def _update_needles(self) -> None:
        """Set what the next line to read must contain: a header, or the label of a writer whose traceback is open."""
        self._needles.clear()
        self._needles.update((_HEADER, *(_needle(label) for label, _ in self._readers)))

    def _open_reader(self, line: Line) -> None:
        """Give a header to the reader of its writer, or to a new one."""
        self._read_offsets.add(line.offset)
        label, before, after = _writer(line)
        if "\\n" in after:
            self._read_escaped(line, before, after)
            return
        in_summary = _SUMMARY.match(before) is not None
        quoted = "Original" in before
        is_plain = in_summary or quoted or _DECORATION.fullmatch(before) or PROGRESS_BAR.search(before)
        shape = None if is_plain else _prefix_shape(before)
        for reader_label, reader in self._readers:
            if reader_label == label and reader.in_summary == in_summary and _same_writer(reader, shape, before):
                if reader.feed_header(quoted):
                    return
                break
        reader = TracebackReader(
            line,
            self._add_event,
            lambda read_line: self._read_offsets.add(read_line.offset),
            prefix=before,
            shape=shape,
            labeled="[rank" in label,
            in_summary=in_summary,
            in_group="Exception Group" in before,
        )
        self._readers.append((label, reader))

    def _distribute_broken(self, line: Line, width: int) -> None:
        """Collect the pieces of a broken line; hand over the line before it."""
        if not (self._pieces and continues(self._pieces[-1].full, line.full, width)):
            self._distribute_pieces()
        self._pieces.append(line)

    def _distribute_pieces(self) -> None:
        """Hand over the pieces of a broken line as one line."""
        pieces, self._pieces = self._pieces, []
        if pieces:
            self._distribute(pieces[0], pieces[0].text + "".join(piece.full for piece in pieces[1:]))

    def _distribute(self, line: Line, text: str) -> None:
        """Give a line to its writer's reader: the latest one that takes it."""
        readers = [reader for label, reader in reversed(self._readers) if label == line.label]
        for reader in readers:
            if reader.shape is not None and (match := reader.shape.match(text)):
                reader.saw_shape = True
                reader.feed(line, text[match.end() :])
                return
        for reader in readers:
            if not reader.saw_shape and reader.feed(line, text):
                return

    def _read_escaped(self, line: Line, before: str, after: str) -> None:
        """Read a traceback that a JSON logger put into one line."""
        reader = TracebackReader(line, self._add_event, lambda _: None, prefix=before)
        for text in unescape(after):
            reader.feed(line, text)
        reader.close()

    def _add_event(self, reader: TracebackReader, chain: list[ParsedException]) -> None:
        self._events.append(exception_event(reader, chain))


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
        return not reader.saw_shape
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


def _prefix_shape(prefix: str) -> re.Pattern[str] | None:
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
    text = untangle(join_pieces(line).rstrip())
    match = _BARE.match(text)
    if match is None:
        return None
    colon = match["message"] is not None or match.end("type") < len(text)
    if not colon and (match["before"].strip() or not _frames_above(line)):
        return None
    before, name, message = match["before"], match["type"], match["message"] or ""
    if before.strip() and not (
        _LOGGER.match(before) or (PROGRESS_BAR.search(before) and before.rstrip()[-1] in "])%|")
    ):
        return None
    reader = TracebackReader(line, lambda reader, chain: None, lambda line: None, prefix=before)
    exception = ParsedException(name, [message], _frames_above(line), line, colon)
    if not before.strip() and colon:
        _read_continuation(reader, exception)
    return exception_event(reader, [exception])


def _read_continuation(reader: TracebackReader, exception: ParsedException) -> None:
    """Add to a bare exception the following lines that belong to its message."""
    chains: list[list[ParsedException]] = []
    reader.emit = lambda _, chain: chains.append(chain)
    reader.feed(exception.line, f"{exception.type}: {exception.message[0]}")
    width, above = broken_width(exception.line), exception.line.full
    for line in exception.line.following(60):
        if reader.is_closed:
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
    parsed = exception_raised_by(match[1])
    if parsed is None or line.offset <= line.notes("python").get("end", -1):
        return None
    above = next((near for near in line.preceding(20) if near.label == line.label), None)
    if above is None or read_frame(above.text) is None or not _ends_here(line):
        return None
    reader = TracebackReader(line, lambda reader, chain: None, lambda line: None)
    return exception_event(
        reader, [ParsedException(parsed[0], [parsed[1]], _frames_above(line, match[1].strip()), line)]
    )


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
