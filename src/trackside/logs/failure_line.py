"""A program's own line that its run failed, without a traceback or the exception's type."""

from __future__ import annotations

import re

from trackside.catalog.events import MAX_MESSAGE_CHARS
from trackside.logs.error_words import has_error_word
from trackside.logs.exception_topics import topic
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event

_RUN = r"(?:the )?(?:main |model )?(?:training|pre-?training|fine-?tuning|trainer|experiment|job|run|program|pipeline|main)"
_RUN += r"(?: (?:loop|run|job|script|process|function|step))?"
_FAILURE = re.compile(
    rf"^(?P<before>.{{0,160}}?)(?P<what>(?i:{_RUN} (?:has |was )?(?:failed|crashed|aborted|errored)"
    r"(?: with (?:an? )?(?:error|exception))?"
    r"|(?:an? )?(?:fatal |unexpected )?(?:error|exception|failure)(?: occurred| raised| encountered)?"
    rf" (?:during|in|while running) {_RUN}"
    r"|(?P<any_run>(?:unhandled|uncaught|fatal|unexpected|unrecoverable) (?:error|exception|failure))"
    r"(?: occurred| encountered| in worker \d{1,6}| in rank \d{1,6})?))"
    r"(?:[:!.,]| -)\s*(?P<message>\S.{2,2000})$",
    re.DOTALL,
)
_LOGGER = re.compile(r"(?=.{0,159}\b(?:ERROR|CRITICAL|FATAL|E\d{4})\b)[\[(]?[\dA-Z][^'\"`]{0,155}[\s:\]>|-]$")
_EXCEPTION_TYPE = re.compile(r"(?:\w{1,60}\.){0,6}[A-Z]\w{1,60}(?:Error|Exception|Interrupt)\b")
_TRACEBACK = b"Traceback (most recent call last)"
BYTES_BEFORE, BYTES_AFTER = 8 << 10, 16 << 10
"""Bytes before and after the line: with a traceback among them the line gives no event, because the traceback's own event
says more."""

_SYSTEM_ERROR = re.compile(r"(?P<before>.{3,200}): (?P<message>\[(?:Errno|WinError) (?P<number>\d{1,5})\] \S.{2,400})$")
_HANDLED = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG)\b|can't open file|\b(?:thrown|retry\w*|skipp\w*|ignor\w*)\b")
MAX_LAST_LINES = 3
"""Lines that a program may print after the error that ends it."""

PARSER = Parser("failure-line", "failures that a program reports in its own words", "system")


@PARSER.pattern(
    rb"(?:train(?:ing|er)|tuning|experiment|job|run|program|pipeline|main)[^\n]{0,20} (?:failed|crashed|aborted|errored)"
    rb"|(?:error|exception|failure)[^\n]{0,20} (?:during|in|running) [^\n]{0,20}"
    rb"(?:train|tuning|experiment|job|run|main|program|pipeline)"
    rb"|(?:unhandled|uncaught|fatal|unexpected|unrecoverable) (?:error|exception|failure)",
    _FAILURE,
    safety="Only a failure of the whole run, at the line's start or behind a logger's ERROR; one of an item is handled. "
    "With a traceback near it, only that one gives an event.",
    matches=(
        "2026-01-02 03:04:05,678 - __main__ - ERROR - Training failed: 'a_0002.wav' has an unknown format",
        "Error during training: no batch has the right shape",
        "[2026-01-02 03:04:05] ERROR: unexpected failure in worker 3, giving up",
        "CRITICAL:trainer:Fatal error: the loader returned nothing",
    ),
    avoids=(
        "Error processing example 17: bad image",
        "2026-01-02 03:04:05,678 - INFO - Training failed: 0 of 4 runs",
        "src/op.cu:3:10: fatal error: cuda.h: No such file or directory",
        "2026-01-02 03:04:05,678 - ERROR - Training failed: ValueError: bad batch",
        "Training failed: bad batch\nTraceback (most recent call last):",
        "the job failed because of the disk",
    ),
    caseless=True,
)
def _run_failure(line: Line, match: re.Match[str]) -> Event | None:
    before, message = match["before"], match["message"].strip()[:MAX_MESSAGE_CHARS]
    is_logged = _LOGGER.match(before) is not None
    if not is_logged and (before.strip() or match["any_run"]):
        return None
    begin, end = max(0, line.start - BYTES_BEFORE), line.end + BYTES_AFTER
    if _EXCEPTION_TYPE.match(message) or line.buffer.find(_TRACEBACK, begin, end) >= 0:
        return None
    about, role = topic("Error", message, ())
    return line.event(
        "exception",
        role,
        type="Error",
        message=f"{match['what']}: {message}",
        root_type="Error",
        root_message=message,
        about=about,
        logged=is_logged or None,
    )


@PARSER.pattern(
    rb": \[(?:Errno|WinError) [0-9]{1,5}\] ",
    _SYSTEM_ERROR,
    safety="An error of the operating system behind a program's own words for an error, in whatever language, as the log's end; "
    "without the exception's type, which the traceback parser reads.",
    matches=(
        "[2026-01-02 03:04:05] Eğitim başlatma hatası: [WinError 2] The system cannot find the file specified",
        "Fehler beim Start: [Errno 13] Permission denied: 'run.sh'\nAbgebrochen.",
    ),
    avoids=(
        "FileNotFoundError: [Errno 2] No such file or directory: 'a.yaml'",
        "Error in cleanup: [Errno 2] No such file or directory: 'a'\nEpoch 1\nEpoch 2\nEpoch 3\nEpoch 4",
        "WARNING could not delete: [Errno 2] No such file or directory: 'a'",
        "python: can't open file 'train.py': [Errno 2] No such file or directory",
    ),
)
def _system_error(line: Line, match: re.Match[str]) -> Event | None:
    before, message = match["before"], match["message"].strip()[:MAX_MESSAGE_CHARS]
    if _EXCEPTION_TYPE.search(before) or _HANDLED.search(before) or not has_error_word(before):
        return None
    if sum(1 for other in line.following(MAX_LAST_LINES + 1) if other.text.strip()) > MAX_LAST_LINES:
        return None
    if line.buffer.find(_TRACEBACK, max(0, line.start - BYTES_BEFORE), line.end + BYTES_AFTER) >= 0:
        return None
    about, role = topic("OSError", message, ())
    return line.event(
        "exception",
        role,
        type="OSError",
        message=message,
        root_type="OSError",
        root_message=message,
        about=about,
        logged=True,
    )


@PARSER.pattern(
    rb"XIO: {1,3}fatal IO error [0-9]",
    r"(?P<message>XIO: {1,3}fatal IO error \d{1,4} \(.{1,80}?\) on X server \S{1,120})",
    safety="Xlib ends the process when its display is gone, and prints nothing else.",
    matches=(
        'XIO:  fatal IO error 11 (Resource temporarily unavailable) on X server "localhost:11.0"',
        ' 10%|#    | 6/60 [00:12<02:04,  2.04s/it]XIO:  fatal IO error 0 (Success) on X server ":1"',
    ),
    avoids=("XIO: 3",),
)
def _display_lost(line: Line, match: re.Match[str]) -> Event | None:
    about, role = topic("DisplayError", match["message"], ())
    return line.event(
        "exception",
        role,
        type="DisplayError",
        message=match["message"],
        root_type="DisplayError",
        root_message=match["message"],
        about=about,
    )
