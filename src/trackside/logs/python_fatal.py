"""A process that dies below Python: faulthandler, glibc's heap checks, uncaught C++ exceptions, failed checks, Rust's
panics."""

from __future__ import annotations

import re
from dataclasses import replace

from trackside.catalog.events import MAX_MESSAGE_CHARS
from trackside.catalog.signals import signal_number
from trackside.logs.exception_topics import topic
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_FRAME = re.compile(r'\s*File "([^"]{1,500})", line (\d{1,7}) in (\S.{0,200})')
_SHUTDOWN = re.compile(r"at interpreter shutdown|_enter_buffered_busy|finalizing")
_WHAT = re.compile(r"\s*what\(\): {1,2}(.{0,500})")
_OTHER_RANK = re.compile(
    r"NCCL|remote process exited|[Ww]atchdog|Connection (?:closed|reset)|[Tt]imed? ?out|DistBackendError"
    r"|DistNetworkError"
    r"|TCPStore|Socket Timeout|gloo|Broken pipe|heartbeat"
)

_SENDER = re.compile(r"\(@0x(?P<address>[0-9a-f]{1,16})\) received by PID .{1,80} from PID (?P<pid>\d{1,9})")
_UNIX_TIME = re.compile(r"\*\*\* Aborted at (\d{9,11}) \(unix time\)")

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
    rb"terminate called (?:after|without|recursively)|terminating (?:due to|with) uncaught exception",
    r"terminate called (?:after throwing an instance of '(?P<name>[^']{1,200})'"
    r"|(?P<bare>without an active exception|recursively))"
    r"|terminating (?:due to|with) uncaught (?:exception|foreign exception)(?: of type (?P<type>[\w:<>, ]{1,200}?)"
    r"(?:: (?P<what>.{1,500}))?)?$",
    safety="If what() is about another rank's end or a timeout, this is that rank's cascade.",
    matches=(
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "terminate called without an active exception",
        "terminate called after throwing an instance of 'c10::Error'\n"
        "  what():  CUDA error: an illegal memory access was encountered",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: record 7 is truncated",
    ),
    avoids=("the terminate handler was called", "terminating with uncaught exceptions is bad style"),
)
def _parse_terminate(line: Line, match: re.Match[str]) -> Event | None:
    description = name = match["name"] or match["bare"] or match["type"] or "uncaught exception"
    if match["what"]:
        if device := _device_exception(line, name, match["what"]):
            return device
        description = f"{name}: {match['what']}"
    for below in line.following(20):
        if below.label == line.label and (what_text := _WHAT.match(below.text)):
            description = f"{name}: {what_text[1].strip()}"
            if device := _device_exception(line, name, what_text[1].strip()):
                return device
            break
    return line.event(
        "python_fatal", EventRole.CASCADE if _OTHER_RANK.search(description) else EventRole.ROOT, what=description
    )


def _device_exception(line: Line, name: str, message: str) -> Event | None:
    """An uncaught C++ exception, or a failed check, about the GPU: evidence like a Python exception with the same
    text."""
    message = message.rpartition("terminated with exception: ")[2]  # a watchdog's text about its own rank's device
    about, role = topic("", message, ())
    if about not in ("cuda", "oom") or _OTHER_RANK.search(message):
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
    rb"\*\*\* SIG[A-Z]{2,6} (?:\(@|received at)|Caught signal \d|(?:Signal|Caught error): (?:Seg|Abo|Bus|Float"
    rb"|Illegal|Kill|Term|Inter)",
    r"\*\*\* (SIG[A-Z]{2,6}) (?:\(@\w{1,20}\) )?received (?:at time|by PID)|Caught signal (\d{1,2}) \(([^:)]{1,60})"
    r"|(?:Signal|Caught error): ([A-Z][\w ]{2,40}) \((?:signal )?(\d{1,2})\)",
    safety="The signal handlers of absl, glog, UCX, Open MPI, MVAPICH and Paddle; SIGTERM there is a request to stop.",
    matches=(
        "  [SignalInfo: *** SIGTERM (@0x3e8) received by PID 786 (TID 0x7fd2759b0700) from PID 792 ***]",
        "*** SIGSEGV received at time=1767322000 on cpu 12 ***",
        "*** SIGSEGV (@0x0) received by PID 1835 (TID 0x7fc9305c9700) from PID 0; stack trace: ***",
        "[gpu017:4242] Signal: Segmentation fault (11)",
        "[gpu017:mpi_rank_3][error_sighandler] Caught error: Segmentation fault (signal 11)",
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
    number = signal_number(match[2] or match[5] or description.partition(" ")[0])
    if number == 15:
        event = line.event("signal_received", EventRole.TEARDOWN, signal=15, signal_name="SIGTERM", by="job")
        return replace(event, fields={**event.fields, **_sender(line)})
    return line.event("python_fatal", EventRole.TEARDOWN if number == 2 else EventRole.ROOT, what=description.strip())


def _sender(line: Line) -> dict[str, int]:
    """Who sent a signal, as glog prints it, and when: the address of a sent signal holds the sender's user and process
    id."""
    fields: dict[str, int] = {}
    if (match := _SENDER.search(line.text)) is not None and (pid := int(match["pid"])):
        fields["sender_pid"] = pid
        user, low = divmod(int(match["address"], 16), 1 << 32)
        if low == pid:
            fields["sender_uid"] = user
    for above in line.preceding(3):
        if (moment := _UNIX_TIME.search(above.text)) is not None:
            fields["unix_time"] = int(moment[1])
            break
    return fields


@PARSER.pattern(
    rb"Check failed|: F tensorflow|: F external|: F \\./|F[0-9]{4,8} [0-9][0-9]:[0-9][0-9]:",
    r"(?:^|\s|\[)F(?:20\d\d)?\d{4} \d\d:.{0,120}\] ?(.{1,300})|: F (?:\w|/).{0,160}\] (.{1,300})",
    safety="Only glog's F level, which aborts; I, W and E lines do not.",
    matches=(
        "F0102 03:04:05.678901 4242 layer.cc:88] Check failed: n == m (3 vs. 4)",
        "F20260102 03:04:05.678901 4242 reader.cc:88] the record is truncated",
        "2026-01-02 03:04:05.678: F tensorflow/core/platform/env.cc:20] Check failed: ok",
    ),
    avoids=("E0102 03:04:05.678901 4242 layer.cc:88] will retry", "grade: F [1] end"),
)
def _parse_check(line: Line, match: re.Match[str]) -> Event | None:
    description = (match[1] or match[2]).strip()
    if device := _device_exception(line, "Check failed", description.removeprefix("Check failed: ")):
        return device
    return line.event(
        "python_fatal", EventRole.CASCADE if _OTHER_RANK.search(description) else EventRole.ROOT, what=description
    )


@PARSER.pattern(
    rb"Assertion `[^\n]{1,300}' failed|Assertion failed: \(",
    r"\S{1,200}:\d{1,7}: .{0,300}(Assertion `.{1,300}' failed)|^(Assertion failed: \(.{1,300}\), function .{1,200})",
    safety="A failed assert() of C, which aborts the process; CUDA's assertions name the block and the thread.",
    matches=(
        "python: ../src/reader.cc:88: void Reader::Next(): Assertion `pos < size' failed.",
        "Assertion failed: (pos < size), function Next, file reader.cc, line 88.",
    ),
    avoids=(
        "/src/Loss.cu:250: nll_loss_forward: block: [0,0,0], thread: [1,0,0] Assertion `t >= 0` failed.",
        "AssertionError: Assertion failed",
    ),
)
def _parse_assert(line: Line, match: re.Match[str]) -> Event:
    return line.event("python_fatal", EventRole.ROOT, what=match[1] or match[2])


_PANIC = re.compile(
    r"thread '([^'\n]{0,100})'(?: \(\d{1,10}\))? panicked at (?:'(.{0,1000})', )?(\S{1,300}:\d{1,7}:\d{1,5}):?"
)
_PANIC_END = re.compile(r"note: (?:run with|some details)|stack backtrace:|thread '[^']*' panicked|$")
MAX_PANIC_LINES = 20
"""Lines of a panic's message."""
BYTES_AFTER = 16 << 10
"""Text below a panic in which Python's traceback about it is expected."""


@PARSER.pattern(
    rb"thread '[^'\n]{0,100}'[^\n]{0,20} panicked at ",
    _PANIC,
    safety="Rust's own report. A panic in a pool's thread need not end the process; if Python raises PanicException for "
    "it, that traceback says more.",
    matches=(
        "thread '<unnamed>' panicked at src/shard.rs:88:14:\ncalled `Option::unwrap()` on a `None` value",
        "thread 'main' panicked at 'index out of bounds: the len is 3 but the index is 7', src/loader.rs:12:9",
        "thread 'main' (4711) panicked at src/loader.rs:12:9:\nno shard",
    ),
    avoids=(
        "the thread 'main' panicked at once",
        "thread '<unnamed>' panicked at src/a.rs:8:1:\nx\npyo3_runtime.PanicException: x",
    ),
)
def _parse_panic(line: Line, match: re.Match[str]) -> Event | None:
    if line.buffer.find(b"pyo3_runtime.PanicException", line.end, line.end + BYTES_AFTER) >= 0:
        return None
    message: list[str] = [match[2]] if match[2] else []
    for below in () if message else line.following(MAX_PANIC_LINES):
        if below.label == line.label:
            if _PANIC_END.match(below.text):
                break
            message.append(below.text)
    text = "\n".join(message).strip()
    about, role = topic("panic", text, ())
    if match[1] not in ("main", "<unnamed>"):
        role = EventRole.CONFIRMATION
    return line.event(
        "exception",
        role,
        text=f"panic: {text.partition(chr(10))[0]}",
        type="panic",
        message=text[:MAX_MESSAGE_CHARS],
        root_type="panic",
        root_message=text[:MAX_MESSAGE_CHARS],
        about=about,
        frame=f"{match[3]} in ?",
    )
