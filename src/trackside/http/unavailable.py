"""Why a server did not answer: a kind to act upon and one plain line, in the server's own words where it has some."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from trackside.errors import TracksideError

MAX_WORDS = 300
"""Characters of the server's own words in a reason."""
Kind = Literal["unreachable", "timeout", "refused", "limited", "unauthorized", "broken", "too_large", "partial"]
CHECK_IDENTITY = "check the token, the user and the tenant"
_PASSING: Mapping[int, Kind] = {429: "limited", 502: "unreachable", 503: "limited", 504: "timeout"}


class SourceUnavailable(TracksideError):
    """A question that a server did not answer. ``str`` is one line: what happened, where, and what may help.

    ``status``: of the answer that came instead, 0 where none did; ``words``: the server's own in it; ``after``: seconds
    before which it does not want to be asked again.
    """

    def __init__(self, kind: Kind, reason: str, status: int = 0, words: str = "", after: float = 0.0) -> None:
        super().__init__(reason)
        self.kind: Kind = kind
        self.status, self.words, self.after = status, words, after


class Passing(SourceUnavailable):
    """What may pass: to be tried again."""


def refusal(url: str, status: int, headers: Mapping[str, str], body: bytes) -> SourceUnavailable:
    """Why a status of 300 or more was given. ``headers`` by name in lower case; of ``body`` the beginning will do."""
    words = words_of(body)
    kind, remedy = _classified(status, words, headers.get("location", ""))
    passing = status in _PASSING and kind == _PASSING[status]
    text = f"{url} answered {status}" + (f": {words}" if words else "") + (f"; {remedy}" if remedy else "")
    after = _retry_after(headers.get("retry-after", ""))
    return (Passing if passing else SourceUnavailable)(kind, text, status, words, after)


def _classified(status: int, words: str, location: str) -> tuple[Kind, str]:
    """The kind of a refusal, and what may help."""
    if status < 400:
        host = urlsplit(location).hostname
        return "refused", f"it points elsewhere{f' ({host})' if host else ''}: give that URL"
    if status in (401, 403, 407):
        return "unauthorized", CHECK_IDENTITY
    if status in (404, 405):
        return "refused", "is the URL's path right?"
    if status == 503 and "timeout" in words.lower():
        return "timeout", ""  # the query's own: as slow the next time
    return _PASSING.get(status, "refused" if status < 500 else "broken"), ""


def _retry_after(text: str) -> float:
    """Seconds, from a number or a date; 0 for neither."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def words_of(body: bytes) -> str:
    """A server's own words of an error: its message where the body is JSON that has one, else the text without tags."""
    text = body[: 1 << 14].decode("utf-8", "replace")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = None
    if isinstance(document, dict):
        message = document.get("error") or document.get("message") or document.get("msg") or ""
        if not message and isinstance(errors := document.get("errors"), list):  # slurmrestd
            texts = [
                error.get(key) for error in errors[:3] if isinstance(error, dict) for key in ("error", "description")
            ]
            message = "; ".join(str(text) for text in texts if text)
        if isinstance(message, dict):
            message = message.get("reason") or message.get("message") or message.get("type") or ""
        text = str(message) or text
    return plain(re.sub(r"<[^<>]{0,200}>", " ", text))


def plain(text: str) -> str:
    """One printable line of bounded length."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 8 * MAX_WORDS]).split())
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 3] + "..."
