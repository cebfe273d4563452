"""A process that dies below Python: faulthandler, glibc's heap checks, uncaught C++ exceptions, failed checks."""

from __future__ import annotations

import re

from trackside.logs.exception_topics import topic
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_FRAME = re.compile(r'\s*File "([^"]{1,500})", line (\d{1,7}) in (\S.{0,200})')
_SHUTDOWN = re.compile(r"at interpreter shutdown|_enter_buffered_busy|finalizing")
_WHAT = re.compile(r"\s*what\(\): {1,2}(.{0,500})")
_OTHERS = re.compile(
    r"NCCL|remote process exited|[Ww]atchdog|Connection (?:closed|reset)|[Tt]imed? ?out|DistBackendError"
    r"|DistNetworkError"
    r"|TCPStore|Socket Timeout|gloo|Broken pipe|heartbeat"
)

PARSER = Parser("python-fatal", "native crashes", "system")


@PARSER.pattern(
    rb"Fatal Python error: ",
    r"Fatal Python error: (.{1,200})",
    safety="A lock held at interpreter shutdown is teardown; a dump on request ('most recent call first') does not "
    "count.",
    matches=(
        "Fatal Python error: Segmentation fault",
        "Fatal Python error: Aborted",
        "[rank2]: Fatal Python error: Bus error",
    ),
    avoids=("Current thread 0x00007f3f1741ab80 (most recent call first):", "Timeout (0:05:00)!"),
)
def _parse_fatal(line: Line, match: re.Match[str]) -> Event:
    role = EventRole.TEARDOWN if _SHUTDOWN.search(match[1]) else EventRole.ROOT
    return line.event("python_fatal", role, what=match[1].strip(), frame=_innermost_frame(line))


def _innermost_frame(line: Line) -> str | None:
    """The innermost frame of the thread that died: faulthandler lists it first."""
    for below in line.following(60):
        if below.label == line.label and (match := _FRAME.match(below.text)):
            return f"{match[1]}:{match[2]} in {match[3].strip()}"
        if "Extension modules:" in below.text or "Traceback (most recent" in below.text:
            return None
    return None


@PARSER.pattern(
    rb"double free or corruption|free\(\): (?:invalid|double)|malloc\(\): |munmap_chunk\(\)"
    rb"|realloc\(\): invalid"
    rb"|corrupted size vs\. prev_size|corrupted double-linked list|malloc_consolidate\(\)"
    rb"|stack smashing detected|buffer overflow detected",
    r"(?:^|\s|: )((?:double free or corruption|free\(\): |malloc\(\): |munmap_chunk\(\): |realloc\(\): "
    r"|corrupted size vs\. prev_size"
    r"|corrupted double-linked list|malloc_consolidate\(\): |\*\*\* (?:stack smashing"
    r"|buffer overflow) detected).{0,120})",
    safety="glibc's own sentences, printed right before abort().",
    matches=(
        "double free or corruption (fasttop)",
        "free(): invalid pointer",
        "malloc(): unsorted double linked list corrupted",
        "corrupted size vs. prev_size",
        "*** stack smashing detected ***: terminated",
    ),
    avoids=("uses malloc() for host buffers", "freed 3 tensors"),
)
def _parse_heap(line: Line, match: re.Match[str]) -> Event:
    return line.event("python_fatal", EventRole.ROOT, what=match[1].strip())


@PARSER.pattern(
    rb"terminate called (?:after|without|recursively)",
    r"terminate called (?:after throwing an instance of '([^']{1,200})'|(without an active exception|recursively))",
    safety="If what() is about another rank's end or a timeout, this is that rank's cascade.",
    matches=(
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "terminate called without an active exception",
        "terminate called after throwing an instance of 'c10::Error'\n"
        "  what():  CUDA error: an illegal memory access was encountered",
    ),
    avoids=("the terminate handler was called",),
)
def _parse_terminate(line: Line, match: re.Match[str]) -> Event | None:
    description = name = match[1] or match[2]
    for below in line.following(20):
        if below.label == line.label and (what_text := _WHAT.match(below.text)):
            description = f"{name}: {what_text[1].strip()}"
            if device := _device_exception(line, name, what_text[1].strip()):
                return device
            break
    return line.event(
        "python_fatal", EventRole.CASCADE if _OTHERS.search(description) else EventRole.ROOT, what=description
    )


def _device_exception(line: Line, name: str, message: str) -> Event | None:
    """An uncaught C++ exception, or a failed check, about the GPU: evidence like a Python exception with the same
    text."""
    message = message.rpartition("terminated with exception: ")[2]  # a watchdog's text about its own rank's device
    about, role = topic("", message, ())
    if about not in ("cuda", "oom") or _OTHERS.search(message):
        return None
    return line.event(
        "exception",
        role,
        text=f"{name}: {message}",
        type=name,
        message=message,
        root_type=name,
        root_message=message,
        about=about,
    )


@PARSER.pattern(
    rb"\*\*\* SIG[A-Z]{2,6} (?:\(@|received at)|Caught signal \d|Signal: (?:Seg|Abo|Bus|Float"
    rb"|Illegal|Kill|Term|Inter)",
    r"\*\*\* (SIG[A-Z]{2,6}) (?:\(@\w{1,20}\) )?received (?:at time|by PID)|Caught signal (\d{1,2}) \(([^:)]{1,60})"
    r"|Signal: ([A-Z][\w ]{2,40}) \((\d{1,2})\)",
    safety="The signal handlers of absl, glog, UCX and Open MPI; SIGTERM there is teardown.",
    matches=(
        "*** SIGSEGV received at time=1767322000 on cpu 12 ***",
        "*** SIGSEGV (@0x0) received by PID 1835 (TID 0x7fc9305c9700) from PID 0; stack trace: ***",
        "[gpu017:4242] Signal: Segmentation fault (11)",
        "[gpu017:4242:0:4242] Caught signal 11 (Segmentation fault: address not mapped to object at address (nil))",
    ),
    avoids=(
        "Signal: good",
        "caught signal handler setup",
        '*** Aborted at 1767322000 (unix time) try "date -d @1767322000" if you are using GNU date ***',
    ),
)
def _parse_handler(line: Line, match: re.Match[str]) -> Event:
    description = match[1] or match[3] or match[4] or "Aborted"
    is_stop = description in ("SIGTERM", "Terminated", "SIGINT", "Interrupt") or (match[2] or match[5]) in ("15", "2")
    return line.event("python_fatal", EventRole.TEARDOWN if is_stop else EventRole.ROOT, what=description.strip())


@PARSER.pattern(
    rb"Check failed|: F tensorflow|: F external|: F \\./",
    r"(?:^|\s|\[)F\d{4} .{0,120}\] ?(.{1,300})|: F (?:\w|/).{0,160}\] (.{1,300})",
    safety="Only glog's F level, which aborts; I, W and E lines do not.",
    matches=(
        "F0102 03:04:05.678901 4242 layer.cc:88] Check failed: n == m (3 vs. 4)",
        "2026-01-02 03:04:05.678: F tensorflow/core/platform/env.cc:20] Check failed: ok",
    ),
    avoids=("E0102 03:04:05.678901 4242 layer.cc:88] will retry", "grade: F [1] end"),
)
def _parse_check(line: Line, match: re.Match[str]) -> Event | None:
    description = (match[1] or match[2]).strip()
    if device := _device_exception(line, "Check failed", description.removeprefix("Check failed: ")):
        return device
    return line.event(
        "python_fatal", EventRole.CASCADE if _OTHERS.search(description) else EventRole.ROOT, what=description
    )
