"""The event of an exception: its topic and role, the rank and process that raised it, its frames."""

from __future__ import annotations

import re
from collections import Counter

from trackside.catalog.events import MAX_MESSAGE_LINE_CHARS
from trackside.logs.bars import PREPARATION, read_bar
from trackside.logs.exception_topics import chain_topic
from trackside.logs.line import Line
from trackside.logs.traceback_lines import PROGRESS_BAR, StackFrame
from trackside.logs.traceback_reader import ParsedException, TracebackReader
from trackside.model import Event, EventRole

MAX_EVENT_FRAMES = 40
"""Frames of the last exception that the event has; of more, some in the middle are left out."""

MIN_REPEATED_FRAMES = 3
"""Python prints as many equal frames of a recursion, and then how often the line was repeated."""
MAX_SEGMENTS_BELOW_BAR = 3
"""Lines, or drawings of one line, between a progress bar and the traceback that ended its loop."""

MAX_LINES_OF_LISTING = 1_000
_SOURCE_CODE = re.compile(r"#\s*(?:if|ifdef|ifndef|define|include|pragma)\b|//|/\*")
"""How a listing of source code begins."""
_COMPILER_ERROR = re.compile(r"(?:nvrtc|ptxas\b[^:]{0,80}|\S{1,200}\(\d{1,6}\)): (?:fatal )?error\b")
_EMPTY_RECORD = re.compile(r"\b(?:ERROR|CRITICAL)\]?\s?[-:|]?\s{0,3}$")
"""A log record whose message is empty, as ``logger.exception("")`` prints it above the traceback."""
_LOG_LEVEL = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|WARNING|WARN|EXCEPTION|Error|error)\b")
_WARNING = re.compile(r"\b(?:WARNING|WARN)\b")
_PID = re.compile(r"(?:\bpid[=: ]{1,2}|python\d?(?:\.\d+)?\[)(\d{1,8})", re.IGNORECASE)
_RANK = re.compile(r"\brank\W{0,4}(\d{1,6})\b", re.IGNORECASE)
_LIBRARY_FILE = re.compile(
    r"site-packages|dist-packages|/lib/python\d|\\lib\\|<frozen |<string>|^importlib|/bin/(?:torchrun|accelerate"
    r"|deepspeed|python\d?)$|(?:env|/envs/[^/]+|conda\d?|/versions/[^/]+|\.local|^/usr|^/usr/local)/bin/[^/.]+$"
    r"|\.exe[\\/]__main__\.py$"
    r"|\.pyx$|/lib64/python"
)
_NOT_FATAL = re.compile(
    r"Exception ignored in|Error in atexit|--- Logging error ---|Exception in thread|never retrieved"
)
_ENDED_FROM_OUTSIDE = re.compile(r"SIGTERM|CANCELLED AT|[Ss]ignal:? 15\b|15 death signal|Terminated")


def exception_event(reader: TracebackReader, chain: list[ParsedException]) -> Event:
    """The event of a chain of exceptions, at the last line of its last one; the oldest gives the root fields.

    A chain ends before a SystemExit that answers an exception: what follows is raised while the process goes.
    """
    chain = chain[: next((at for at, exception in enumerate(chain) if at and exception.type == "SystemExit"), None)]
    last, oldest = chain[-1], chain[0]
    about, role = chain_topic([(exception.type, exception.text, exception.frames) for exception in chain])
    text_above = "\n".join(line.full for line in reader.header.preceding(3)) if not reader.in_summary else ""
    if role is EventRole.ROOT and about in ("application", "signal") and _is_not_fatal(reader, text_above):
        role = EventRole.CONFIRMATION
    if "^C" in reader.prefix and about in ("application", "signal"):
        about, role = "interrupt", EventRole.ROOT
    if about == "interrupt" and any(_ENDED_FROM_OUTSIDE.search(line.full) for line in reader.header.preceding(20)):
        role = EventRole.TEARDOWN
    rank, pid = _rank_and_pid(reader, last)
    compiler_error = _compiler_error(last)
    return last.line.event(
        "exception",
        role,
        rank=rank,
        time=reader.header.time if last.line.time is None else None,
        text=f"{last.type}: {last.message[0]}".strip().removesuffix(":") if last.message else last.type,
        type=last.type,
        message=last.text if compiler_error is None else compiler_error,
        chain=";".join(exception.type for exception in chain[:-1]) or None,
        root_type=oldest.type,
        root_message=compiler_error if compiler_error is not None and oldest is last else oldest.text,
        about=about,
        wrapper=True if about == "wrapper" else None,
        lines=last.lines if last.lines > 1 else None,
        in_summary=reader.in_summary or None,
        logged=_is_logged(reader) or None,
        pid=pid,
        **_frame_fields([exception.frames for exception in reversed(chain) if exception.frames], _repeated_frame(last)),
    )


def _compiler_error(exception: ParsedException) -> str | None:
    """What the compiler says below the source code that a message lists; None if it lists none. The listing is no
    message, and is often longer than what is kept of one."""
    if _SOURCE_CODE.match(exception.text) is None:
        return None
    for line in exception.line.following(MAX_LINES_OF_LISTING):
        if line.label == exception.line.label and _COMPILER_ERROR.match(line.text):
            return line.text.strip()[:MAX_MESSAGE_LINE_CHARS]
    return None


def bar_event(header: Line) -> Event | None:
    """The event of the progress bar right above a traceback's header, or before it on its line: how far the program had
    come."""
    for line in (header, *header.preceding(MAX_SEGMENTS_BELOW_BAR)):
        bar = read_bar(line.full.partition("Traceback (most")[0])
        if bar is not None and (seconds := bar.elapsed_s) is not None and bar.total:
            if not 0 < bar.count <= bar.total or PREPARATION.match(bar.description):
                return None
            return line.event("work_bar", count=bar.count, total=bar.total, elapsed_s=seconds)
        if bar is not None:
            return None
    return None


def cut_traceback_event(reader: TracebackReader) -> Event | None:
    """The event of a closed traceback that ends before its exception, at its last line; None if it has its end."""
    line = reader.cut_line
    if line is None or _is_log_prefix(reader.prefix):
        return None
    if _is_not_fatal(reader, "\n".join(above.full for above in reader.header.preceding(3))):
        return None
    frame = _frame_fields([reader.frames]).get("user_frame") if reader.frames else None
    return line.event("unread_error", severe=True, in_traceback=True, frame=frame)


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


def _is_logged(reader: TracebackReader) -> bool:
    """Whether a logger printed the traceback, behind its prefix or below a record without a message."""
    if _is_log_prefix(reader.prefix):
        return True
    return any(_EMPTY_RECORD.search(above.full) is not None for above in reader.header.preceding(1))


def _is_log_prefix(prefix: str) -> bool:
    """Whether the text before the header is a logger's prefix: the program caught the exception."""
    return _LOG_LEVEL.search(prefix) is not None and PROGRESS_BAR.search(prefix) is None


def _repeated_frame(exception: ParsedException) -> StackFrame | None:
    """The frame of a RecursionError that called itself: the last one may be in code that the recursion only reached."""
    if exception.type.rpartition(".")[2] != "RecursionError" or not exception.frames:
        return None
    frame, count = Counter(exception.frames).most_common(1)[0]
    return frame if count >= MIN_REPEATED_FRAMES and _LIBRARY_FILE.search(frame[0]) is None else None


def _frame_fields(traces: list[list[StackFrame]], repeated: StackFrame | None = None) -> dict[str, str | None]:
    """The frame fields: those of the last exception, and the frame that ``repeated`` in it, else the innermost user
    frame of any exception in the chain."""
    if not traces:
        return {}
    frames = traces[0]
    if len(frames) > MAX_EVENT_FRAMES:
        frames = frames[:10] + frames[10 - MAX_EVENT_FRAMES :]
    user_frames = (frame for trace in traces for frame in reversed(trace) if _LIBRARY_FILE.search(frame[0]) is None)
    user_frame = repeated or next(user_frames, None)
    return {
        "frame": _format_frame(frames[-1]),
        "user_frame": None if user_frame is None else _format_frame(user_frame),
        "user_code": None if user_frame is None else user_frame[3] or None,
        "frames": ";".join(map(_format_frame, frames)),
    }


def _format_frame(frame: StackFrame) -> str:
    """``file:line in function``."""
    file, number, function, _ = frame
    return f"{file}:{number} in {function}"
