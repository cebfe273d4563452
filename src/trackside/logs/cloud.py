"""Clouds: notices that a spot or preemptible machine is being reclaimed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.logs.job_report import notice
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event

_NOT_NOW = re.compile(
    r"\b(?:if|when|whether|unless|in case|no|not|never|without|handle[sr]?|handling|polling|listen\w*|watch\w*|monitor\w*|"
    r"simulat\w*|enabled?|disabled?|before|test\w*|could|may|might|would)\b|\?",
    re.IGNORECASE,
)
MAX_TEXT_CHARS = 600
"""A longer line is a dump."""
_STATEMENT = re.compile(
    r"\b(?:received|got|detected)\b.{0,60}\b(?:spot|preemptible|ec2)\b.{0,40}"
    r"\b(?:interruption|termination|preemption) (?:notice|warning|event|signal)\b"
    r"|\bspot (?:instance )?(?:interruption|termination) (?:notice|warning) (?:was |has been )?(?:received|detected)\b"
    r"|\b(?:spot|preemptible|low[- ]priority)\b.{0,60}\b(?:instance|vm|node|machine)\b.{0,60}"
    r"\b(?:was|is being|has been|got|will be) (?:preempted|reclaimed|evicted|interrupted)\b"
    r"|\b(?:instance|vm|node|machine|tpu|cluster)\b.{0,80}\b(?:was|is being|has been|got) (?:preempted|reclaimed)\b"
    r"|\bcompute\.instances\.preempted\b"
    r"|\"EventType\": ?\"Preempt\""
    r"|\"action\": ?\"(?:terminate|stop|hibernate)\", ?\"time\": ?\"20\d\d-",
    re.IGNORECASE,
)

PARSER = Parser("cloud", "spot and preemptible machines", "system")


@PARSER.pattern(
    rb"(interruption|termination|preemption) (notice|warning|event|signal)|(vm|instance|node|machine|tpu|cluster)[^\n]{0,120} "
    rb"(preempted|reclaimed|evicted)|compute\.instances\.preempted|\"eventtype\": ?\"preempt\"|\"action\": ?\"(terminate|stop|hibernate)\"",
    safety="A statement that the machine is being reclaimed; conditions, settings and handlers do not count.",
    matches=(
        "WARNING: received spot interruption notice, saving a checkpoint",
        '{"action": "terminate", "time": "2026-05-04T10:02:00Z"}',
        "Instance train-vm-2 was preempted.",
        'scheduled events: {"EventType": "Preempt", "ResourceType": "VirtualMachine"}',
        "Spot interruption notice received for i-0a1b",
    ),
    avoids=(
        "will save a checkpoint when a spot interruption notice is received",
        "spot interruption handler enabled",
        "the worker thread was preempted",
        "received preemption signal SIGUSR1, saving",
        "no spot termination notice received",
        '{"action": "terminate"}',
        "Node evicted 3 cache entries",
    ),
    caseless=True,
)
def _preemption(line: Line) -> Iterator[Event]:
    text = line.text
    if (
        len(text) <= MAX_TEXT_CHARS
        and _STATEMENT.search(text)
        and _NOT_NOW.search(text) is None
        and "thread" not in text
    ):
        yield from notice(line, "preemption")
