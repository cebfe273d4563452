"""Uncaught errors of programs in other languages than Python: Java, .NET, Lua (Torch7) and Go.

They become ``exception`` events, with the type that their runtime prints.
"""

from __future__ import annotations

import re

from trackside.catalog.events import MAX_MESSAGE_CHARS
from trackside.logs.exception_topics import topic
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event

MAX_LINES_BELOW = 80
"""Lines below an error in which its cause, its place and the end of its message are looked for."""
MAX_LINES_TO_GOROUTINE = 4
"""Lines between Go's panic and the goroutine that raised it."""
_TYPE = r"[A-Za-z_][\w.$]{0,160}(?:Exception|Error|Throwable)\w{0,20}"
_JAVA_CAUSE = re.compile(rf"Caused by: (?P<type>{_TYPE})(?:: (?P<message>.{{1,1000}}))?$")
_DOTNET_CAUSE = re.compile(rf"\s{{0,4}}---> (?:\([^)]{{1,40}}\) )?(?P<type>{_TYPE})(?:: (?P<message>.{{1,1000}}))?$")
_JAVA_PLACE = re.compile(r"\s{1,8}at [\w.$/@<>-]{1,200}\((?P<file>[\w$]{1,100}\.(?:java|scala|kt)):(?P<line>\d{1,7})\)")
_DOTNET_PLACE = re.compile(r"\s{1,8}at .{1,400} in (?P<file>[^\n]{1,300}\.(?:cs|fs|vb)):line (?P<line>\d{1,7})")
_TRACE_END = re.compile(r"stack traceback:|goroutine \d+ \[|\s*$")

PARSER = Parser("runtimes", "Java, .NET, Lua and Go", "system")


def _event(
    line: Line, name: str, message: str, cause: tuple[str, str] | None = None, place: tuple[str, int] | None = None
) -> Event:
    """The event of an uncaught error; ``cause``: type and message of the innermost one."""
    message = message.strip()[:MAX_MESSAGE_CHARS]
    root_type, root_message = cause or (name, message)
    about, role = topic(root_type, root_message, ())
    frame = None if place is None else f"{place[0]}:{place[1]} in ?"
    return line.event(
        "exception",
        role,
        text=f"{name}: {message}" if message else name,
        type=name,
        message=message,
        chain=root_type if cause is not None else None,
        root_type=root_type,
        root_message=root_message[:MAX_MESSAGE_CHARS],
        about=about,
        frame=frame,
    )


def _below(
    line: Line, cause: re.Pattern[str], place: re.Pattern[str]
) -> tuple[tuple[str, str] | None, tuple[str, int] | None]:
    """The innermost cause and the first place in source code in the lines below an error."""
    causes, places = [], []
    for below in line.following(MAX_LINES_BELOW):
        text = below.full
        if (match := cause.match(text)) is not None:
            causes.append((match["type"], (match["message"] or "").strip()))
        elif (match := place.match(text)) is not None:
            places.append((match["file"], int(match["line"])))
        elif below.label == line.label and text[:1].strip() and not text.startswith("File name: "):
            break
    return (causes[-1] if causes else None), (places[0] if places else None)


def _message_below(line: Line, message: str) -> str:
    """The message of an error, whose rest may stand in the lines below it, up to the trace."""
    parts = [message] if message.strip() else []
    for below in line.following(MAX_LINES_BELOW):
        if _TRACE_END.match(below.full):
            break
        parts.append(below.full.strip())
    return "\n".join(parts)


@PARSER.pattern(
    rb"Exception in thread \"main\" ",
    rf"\AException in thread \"main\" (?P<type>{_TYPE})(?:: (?P<message>.{{1,1000}}))?\s*\Z",
    safety="Of the main thread only; what a thread of a pool raises need not end the program.",
    matches=(
        'Exception in thread "main" java.lang.IllegalStateException: no data\n\tat org.example.Train.main(Train.java:12)\n'
        "Caused by: java.io.FileNotFoundException: /data/train (No such file or directory)",
    ),
    avoids=('Exception in thread "pool-1-thread-3" java.lang.RuntimeException: x', 'Exception in thread "main" of 3'),
)
def _java_error(line: Line, match: re.Match[str]) -> Event:
    return _event(line, match["type"], match["message"] or "", *_below(line, _JAVA_CAUSE, _JAVA_PLACE))


@PARSER.pattern(
    rb"Unhandled [Ee]xception[.:] ",
    rf"\AUnhandled [Ee]xception[.:] (?P<type>{_TYPE})(?:: (?P<message>.{{1,1000}}))?\s*\Z",
    safety="The sentence with which .NET ends a process.",
    matches=(
        "Unhandled exception. System.InvalidOperationException: Pipeline failed.\n"
        " ---> System.IO.FileNotFoundException: Training file not found: C:\\data\\x.txt",
        "Unhandled Exception: System.NullReferenceException: Object reference not set to an instance of an object.",
    ),
    avoids=("Unhandled exception in the worker", "Unhandled exception. Please report it"),
)
def _dotnet_error(line: Line, match: re.Match[str]) -> Event:
    return _event(line, match["type"], match["message"] or "", *_below(line, _DOTNET_CAUSE, _DOTNET_PLACE))


@PARSER.pattern(
    rb"\blua(?:jit)?: [^\n]{1,300}\.lua:[0-9]{1,7}: ",
    r"\A(?:\S{0,300}/)?lua(?:jit)?: (?P<file>[^\n]{1,300}\.lua):(?P<line>\d{1,7}): (?P<message>.{0,1000})\Z",
    safety="The interpreter's own report, with the trace below it.",
    matches=(
        "/home/ann/torch/install/bin/luajit: train.lua:51: attempt to index local 'opt' (a nil value)\nstack traceback:\n\ttrain.lua:51: in main chunk",
        "luajit: nn/Container.lua:67: \nIn 3 module of nn.Sequential:\nbad argument\nstack traceback:",
    ),
    avoids=("luajit: train.lua:51: loaded",),
)
def _lua_error(line: Line, match: re.Match[str]) -> Event | None:
    if not any(below.full.startswith("stack traceback:") for below in line.following(MAX_LINES_BELOW)):
        return None
    message = _message_below(line, match["message"])
    return _event(line, "Lua error", message, place=(match["file"], int(match["line"])))


@PARSER.pattern(
    rb"panic: [^ \n\r]",
    r"\Apanic: (?P<message>.{1,1000})\Z",
    safety="Go's own report, with the goroutine below it.",
    matches=("panic: runtime error: index out of range [3] with length 3\n\ngoroutine 1 [running]:\nmain.main()",),
    avoids=("panic: do not\n\nall is well",),
)
def _go_panic(line: Line, match: re.Match[str]) -> Event | None:
    is_go = any(below.full.startswith("goroutine ") for below in line.following(MAX_LINES_TO_GOROUTINE))
    return _event(line, "panic", match["message"]) if is_go else None
