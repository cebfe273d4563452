"""Reads exceptions from the lines after "Traceback (most recent call last)", one writer's lines at a time.

A :class:`TracebackReader` takes the lines of one writer and hands over each finished chain of :class:`ParsedException`.
It reads plain tracebacks, chains, exception groups, rich's boxes, IPython's pages, nested ones of Ray and DataLoader,
and unlabeled ranks that print over each other (their frames are then merged, and each last line counts).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from trackside.catalog.events import MAX_MESSAGE_CHARS, MAX_MESSAGE_LINE_CHARS
from trackside.logs.line import Line
from trackside.logs.traceback_lines import (
    StackFrame,
    exception_line,
    exception_line_behind_bar,
    exception_raised_by,
    read_frame,
    starts_something_else,
)

MAX_CONTINUATION_LINES = 40
"""Lines after the first that a message may have."""
MAX_FRAMES = 200
"""Frames of one traceback that are kept while it is read (recursion errors print a thousand)."""
MAX_STRAY_LINES = 80
"""After this many lines of other writers, a traceback without its end counts as cut off."""

_MARKED_CODE = re.compile(r"(?:-{1,6}>|[│|]\s*❱)\s*(\d{1,7})\s(.{0,300})")
"""The source line that IPython and rich mark in a frame: line number, code."""
_CHAIN_LINK = re.compile(r"(?:During handling of the above exception|The above exception was the direct cause)")
"""Python's sentence between two exceptions of a chain."""
_NESTED_FOLLOWS = re.compile(r"-- Process \d+ terminated|'{3}$|\"{3}$|Original Traceback")
"""A line below which the traceback of another process is quoted."""
_NESTING_TYPE = re.compile(r"RayTaskError|RemoteTraceback|ProcessRaised|TrainingFailedError|FailedJobError")
"""Exceptions whose message is the traceback of another process."""
_USER_CODE = re.compile(r"[Ii]n user code:?")
"""The whole message of an error of Paddle or TensorFlow that repeats the user's frames below, and then the error."""
_USER_FRAME = re.compile(r"\s{4,8}(\S{1,300}\.py):(\d{1,7}) (\S{1,120})\s+\*+\s*$")
"""How TensorFlow prints the frames of the user's code."""
_LIST_ITEM = re.compile(r"\s{1,8}size mismatch for ")
"""An item of a list that may be longer than a message is kept: one parameter of a model that does not fit."""
_RULER = re.compile(r"-{10,60}$")
_LOG_LINE = re.compile(
    r"\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d[\d.,]{0,8}\]? .{0,60}?\b(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\b"
)
"""A logger's line where a message begins: another process wrote it between the type and the message."""
_MESSAGE_START = re.compile(r"[A-Za-z('\"]")
MAX_LINES_WRITTEN_OVER = 5
"""Lines of another process between a type and its message."""
_GROUP_MARGIN = re.compile(r"[ ]{0,40}[|+](?:-[-+ \d.]*|[ ]|$)")
"""What Python prints before each line of an exception group."""
_ONE_LINE_TYPE = re.compile(
    r"(?:\w{1,60}\.){0,6}(?:Key|Index|Name|Type|Attribute|UnboundLocal|ZeroDivision|Recursion|ModuleNotFound)Error$"
)
"""Types whose message has further lines only if the first one announces them."""
_SYSTEM_MESSAGE = re.compile(r"\[Errno -?\d{1,3}\] ")
_ANNOUNCES_MORE = re.compile(r"[:,(\[{\\]\s*$")
_HAS_PARAGRAPHS = re.compile(
    r"Request ID|generating the dataset|hugging ?face|\bHub\b|validation error|when calling",
    re.IGNORECASE,
)
"""Messages that go on after a blank line."""
_TYPE_ANYWHERE = re.compile(r"(?<![\w.])((?:\w{1,40}\.){0,6}[A-Z]\w{2,60}(?:Error|Exception))(?=\W|$)(?:: (.{1,300}))?")
"""A type, and perhaps its message, anywhere in a line."""


class TracebackState(enum.Enum):
    """Where in a traceback a writer is."""

    FRAMES = enum.auto()
    MESSAGE = enum.auto()
    ENDED = enum.auto()  # a blank line followed the message: a chain's link may come
    LINKED = enum.auto()  # the link was read: the next traceback belongs to this chain


@dataclass(slots=True)
class ParsedException:
    """One exception as a traceback shows it; its frames are outermost first."""

    type: str
    message: list[str]
    frames: list[StackFrame]
    line: Line
    colon: bool = True
    """Whether a colon follows the type: Python prints none if the message is empty."""
    lines: int = 1
    """Lines of the message in the log, those that are not kept included."""

    @property
    def text(self) -> str:
        """The message with its continuation lines."""
        lines = self.message if len(self.message) < 2 else [line[:MAX_MESSAGE_LINE_CHARS] for line in self.message]
        return "\n".join(lines).strip()[:MAX_MESSAGE_CHARS]


@dataclass(slots=True)
class TracebackReader:
    """Reads one writer's lines inside a block of interleaved tracebacks."""

    header: Line
    emit: Callable[[TracebackReader, list[ParsedException]], None]
    """Receives each finished chain, oldest exception first."""
    on_exception_line: Callable[[Line], None]
    """Called with each line that was read as an exception, so that nothing reads it again."""
    prefix: str = ""
    """The text before the header on its line."""
    shape: re.Pattern[str] | None = None
    """Matches what a logger prints before each line of this traceback."""
    saw_shape: bool = False
    """Whether a line with that shape came."""
    labeled: bool = False
    """Whether torch's excepthook labels each line: all lines with the label belong to the exception."""
    in_summary: bool = False
    """Whether torchrun's summary of failures quotes the traceback."""
    in_group: bool = False
    """Whether it is one of an exception group."""
    state: TracebackState = TracebackState.FRAMES
    open_count: int = 1
    """Tracebacks that began and did not end; more than one if unlabeled writers interleave."""
    frames: list[StackFrame] = field(default_factory=list)
    """Frames of the traceback that is being read."""
    chain: list[ParsedException] = field(default_factory=list)
    """The exceptions of the chain so far."""
    stray_lines: list[str] = field(default_factory=list)
    """Lines of other writers since the last exception line."""
    chain_count: int = 0
    """Chains handed over."""
    continuation_count: int = 0
    """Lines of the last message after its first."""
    written_over: str = ""
    """Another process's line in the place of the message, while the message is looked for; else empty."""
    written_over_lines: int = 0
    """Lines since then."""
    nested_follows: bool = False
    """Whether the last line announced the traceback of another process."""
    user_code: ParsedException | None = None
    """The exception that announced the indented frames being read, and the error below them."""
    has_new_frames: bool = True
    """Whether frames came since the last exception line."""
    last_line: Line | None = None
    """The last line that was read as part of a frame."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can belong to it."""
        return self.open_count <= 0

    @property
    def cut_line(self) -> Line | None:
        """The last line of a closed traceback that ends before its exception; None if it has its end, or no frame."""
        return None if self.chain_count else self.last_line

    def feed_header(self, quoted: bool) -> bool:
        """Take a header line of the same writer: that of a chain's next link, of a nested traceback, or of another rank
        that prints over this one. False if a separate traceback starts there: this one is then finished. ``quoted``:
        whether the line calls it the original traceback."""
        if self.state is TracebackState.LINKED or self.in_group:
            self.state, self.frames = TracebackState.FRAMES, []
        elif self.chain and self.state is not TracebackState.FRAMES:
            if not (quoted or self.nested_follows):
                self._finish()
                return self._join_interleaved()
            self._unwrap()
        else:
            return self._join_interleaved()
        return True

    def feed(self, line: Line, text: str) -> bool:
        """Take a line; False if it belongs to another writer."""
        if self.in_group:
            if text.strip() and _GROUP_MARGIN.match(text) is None:
                self._finish()
                return False
            text = _GROUP_MARGIN.sub("", text, count=1)
        elif self.prefix.isspace():
            text = text.removeprefix(self.prefix)  # the whole traceback is indented
        if self.state is TracebackState.FRAMES:
            return self._feed_frames(line, text)
        if self.state is TracebackState.MESSAGE:
            return self._feed_message(line, text)
        return self._feed_after_message(line, text)

    def close(self) -> None:
        """Hand over what was read, because no more lines come."""
        if self.user_code is not None and not self.chain:
            self.chain.append(self.user_code)
        if self.chain:
            self._finish()
        elif self.frames and not self.chain_count:
            self._salvage_exception()
        self.open_count = 0

    # -- one method per state

    def _feed_frames(self, line: Line, text: str) -> bool:
        """Take a line between a header and the last line: a frame, its code, the last line, or another writer's."""
        frame = read_frame(text)
        if frame is None and self.user_code is not None and (match := _USER_FRAME.match(text)) is not None:
            frame = (match[1], match[2], match[3])
        if frame is not None:
            self.last_line = line
            self._add_frame(frame)
            return True
        if match := _MARKED_CODE.match(text):
            if self.frames:
                file, number, function, _ = self.frames[-1]
                self.frames[-1] = (file, number or match[1], function, match[2])
            return True
        parsed = exception_line(text.strip() if self.in_summary or self.user_code is not None else text)
        if parsed is None and self.frames:
            parsed = exception_line_behind_bar(text)
        if parsed is not None:
            self._begin_exception(line, *parsed)
            return True
        if self.user_code is not None and text[:1].strip():
            self.close()
            return False
        if not text.strip() or text[0] in " \t│╰╭|":
            self.last_line = line if text.strip() else self.last_line
            if self.frames and text.strip(" ^~│") and not self.frames[-1][3]:
                self.frames[-1] = (*self.frames[-1][:3], text.strip()[:300])
            return True
        self.stray_lines.append(text[:500])
        if len(self.stray_lines) > MAX_STRAY_LINES * self.open_count:
            self.close()
        return False

    def _feed_message(self, line: Line, text: str) -> bool:
        """Take a line right after a last line or its continuation."""
        if text.startswith("\r\r"):  # a hole of NUL bytes: what follows is another program's
            return self._finish_without_line()
        stripped = text.strip()
        if self.written_over and (is_read := self._feed_written_over(text)) is not None:
            return is_read
        if not stripped:
            self.state = TracebackState.ENDED
        elif _CHAIN_LINK.match(stripped):
            self.state = TracebackState.LINKED
        elif _NESTED_FOLLOWS.match(stripped) or (_RULER.match(stripped) and _NESTING_TYPE.search(self.chain[-1].type)):
            self.nested_follows = True
        elif read_frame(text) is not None:
            return self._feed_frame_in_message(line, text)
        elif (parsed := exception_line(stripped if self.in_summary else text)) is not None and self.open_count > 1:
            self._finish()
            self._begin_exception(line, *parsed)
        elif self._has_message_ended(text) or self._is_foreign(text, parsed is not None):
            return self._finish_without_line()
        else:
            self._extend_message(text)
        return True

    def _feed_written_over(self, text: str) -> bool | None:
        """Take the message that follows another process's line; False for a line of that process. None if the line ends
        the search: then what stands behind the type is the message."""
        self.written_over_lines += 1
        is_end = not text.strip() or _CHAIN_LINK.match(text) or read_frame(text) is not None
        if is_end or self.written_over_lines > MAX_LINES_WRITTEN_OVER:
            self._restore_message()
            return None
        if starts_something_else(text) or _MESSAGE_START.match(text) is None:
            return False
        self.written_over, self.chain[-1].message = "", [text]
        return True

    def _restore_message(self) -> None:
        if self.written_over and self.chain:
            self.chain[-1].message = [self.written_over]
        self.written_over = ""

    def _feed_after_message(self, line: Line, text: str) -> bool:
        """Take a line after a blank one or a chain's link."""
        stripped = text.strip()
        if not stripped or self.state is TracebackState.LINKED:
            return True
        if _CHAIN_LINK.match(stripped):
            self.state = TracebackState.LINKED
            return True
        if _NESTED_FOLLOWS.match(stripped):
            self.nested_follows = True
            return True
        last = self.chain[-1]
        if text.startswith("    ") and _USER_CODE.fullmatch(last.text) is not None:
            self.user_code = last
            self._unwrap()
            return self._feed_frames(line, text)
        may_continue = (
            self.labeled or not last.text or text.startswith(("  ", "\t")) or _HAS_PARAGRAPHS.search(last.text)
        )
        is_foreign = (
            not may_continue
            or self._has_message_ended(text)
            or self._is_foreign(text, exception_line(text) is not None)
        )
        if self.in_summary or is_foreign:
            return self._finish_without_line()
        self._extend_message("\n" + text)
        self.state = TracebackState.MESSAGE
        return True

    # -- steps that the states share

    def _join_interleaved(self) -> bool:
        """Take the header as another rank's that prints over this one; False if this traceback has ended."""
        if self.open_count <= 0 or not self.has_new_frames:
            self.close()
            return False
        self.open_count += 1
        return True

    def _has_message_ended(self, text: str) -> bool:
        """Whether the message cannot have this further line: Python prints no colon if there is no message, and the
        interpreter's own messages have one line."""
        last = self.chain[-1]
        if self.labeled or self.in_summary or text.startswith(("  ", "\t")):
            return False
        if not last.text:
            return not last.colon
        one_line = _ONE_LINE_TYPE.match(last.type) or _SYSTEM_MESSAGE.match(last.text)
        return one_line is not None and self.continuation_count == 0 and _ANNOUNCES_MORE.search(last.text) is None

    def _is_foreign(self, text: str, is_exception: bool) -> bool:
        """Whether a line is not part of the message; ``is_exception``: whether it looks like an exception of its own."""
        if self.in_summary and not text.startswith("  "):
            return True
        return (
            (self.continuation_count >= MAX_CONTINUATION_LINES and _LIST_ITEM.match(text) is None)
            or (is_exception and not self.labeled)
            or starts_something_else(text)
        )

    def _finish_without_line(self) -> bool:
        """Finish; False, because the line that showed the end belongs to another writer."""
        self._finish()
        return False

    def _begin_exception(self, line: Line, name: str, message: str) -> None:
        """Take a traceback's last line: the frames before it are the exception's."""
        self.on_exception_line(line)
        self.stray_lines.clear()
        self.user_code = None
        self.state, self.has_new_frames, self.nested_follows, self.continuation_count = (
            TracebackState.MESSAGE,
            False,
            False,
            0,
        )
        if self.in_group and self.chain and "Group" not in self.chain[-1].type:
            return  # only the first leaf of a group is kept
        colon = not line.full.rstrip().endswith(name)
        self.written_over, self.written_over_lines = message if _LOG_LINE.match(message) else "", 0
        message = "" if self.written_over else message
        self.chain.append(ParsedException(name, [message], list(self.frames), line, colon))
        if self.open_count <= 1:
            self.frames = []

    def _unwrap(self) -> None:
        """Drop the exception just read, which only wraps another process's, and continue with the frames of that one."""
        outer = self.chain.pop()
        self.frames = outer.frames + self.frames
        self.state, self.nested_follows = TracebackState.FRAMES, False

    def _feed_frame_in_message(self, line: Line, text: str) -> bool:
        """Take a frame where a message was: of an interleaved rank, or of the process whose exception was wrapped."""
        if self.open_count > 1:
            self._finish()
        elif self.chain and _NESTING_TYPE.search(self.chain[-1].type):
            self._unwrap()
        else:
            return self._finish_without_line()
        return self._feed_frames(line, text)

    def _add_frame(self, frame: tuple[str, str, str]) -> None:
        """Add a frame without its code; of too many, those in the middle are dropped."""
        self.has_new_frames = True
        if self.open_count > 1 and any(other[:3] == frame for other in self.frames):
            return  # ranks that print over each other have the same frames
        if len(self.frames) >= MAX_FRAMES:
            del self.frames[MAX_FRAMES // 4 : MAX_FRAMES // 2]
        self.frames.append((*frame, ""))

    def _extend_message(self, text: str) -> None:
        """Add a line to the last exception's message; of too many, the last are only counted."""
        self.continuation_count += 1
        self.chain[-1].lines += 1
        if not self.in_group and self.continuation_count <= MAX_CONTINUATION_LINES:
            self.chain[-1].message.append(text.rstrip()[:MAX_MESSAGE_CHARS])

    def _finish(self) -> None:
        """Hand over the chain: one of the open tracebacks has ended."""
        self._restore_message()
        chain, self.chain = self.chain, []
        self.open_count -= 1
        self.state, self.nested_follows = TracebackState.FRAMES, False
        if chain:
            self.chain_count += 1
            self.emit(self, chain)

    def _salvage_exception(self) -> None:
        """Hand over a traceback without a last line: the exception's name is somewhere in the stray lines, which ranks
        printed into each other's, or in the statement that raised it."""
        for text in self.stray_lines:
            if match := _TYPE_ANYWHERE.search(text):
                self.chain.append(ParsedException(match[1], [match[2] or ""], self.frames, self.header))
                self._finish()
                return
        if (parsed := exception_raised_by(self.frames[-1][3])) is not None:
            self.chain.append(ParsedException(parsed[0], [parsed[1]], self.frames, self.last_line or self.header))
            self._finish()
