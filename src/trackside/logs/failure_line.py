"""A program's own line that its run failed, without a traceback or the exception's type."""

from __future__ import annotations

import re

from trackside.catalog.events import MAX_MESSAGE_CHARS
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
