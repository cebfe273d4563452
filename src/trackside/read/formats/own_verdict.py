"""Saved verdicts of Trackside, as text, Markdown, JSON or a page: no evidence."""

from __future__ import annotations

from trackside.logs.own_verdicts import JSON_BEGIN, OWNER_LINE, without_verdicts
from trackside.read.format import Format, InputSource, Match, Result, Sink

PAGE_SIGN = b'<meta name="generator" content="Trackside'
HEADLINE_BYTES = 2048
"""Bytes within which a verdict as Markdown names the owner."""


def _sniff(source: InputSource) -> Match | None:
    head = source.head
    is_markdown = head.startswith(b"### ") and OWNER_LINE.search(head, 0, HEADLINE_BYTES) is not None
    is_document = JSON_BEGIN.match(head.lstrip()) is not None or PAGE_SIGN in head
    if is_markdown or is_document or (head.strip() and not without_verdicts(head).strip()):
        return Match(0.99, "a verdict of Trackside, which is no evidence")
    return None


def _skip(source: InputSource, sink: Sink) -> Result:
    return Result(0, "unrecognised")


FORMAT = Format("own-verdict", "verdicts of Trackside: not read", "log", _sniff, _skip)
