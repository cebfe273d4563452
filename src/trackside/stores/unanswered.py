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

MOST_SAID = 300
"""Characters of the server's own words in a reason."""
Kind = Literal["unreachable", "timeout", "refused", "limited", "unauthorized", "broken", "too_large", "partial"]
_PASSING: Mapping[int, Kind] = {429: "limited", 502: "unreachable", 503: "limited", 504: "timeout"}


class Unanswered(TracksideError):
    """A question that a server did not answer. ``str`` is one line: what happened, where, and what may help."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind: Kind = kind


class Passing(Unanswered):
    """What may pass: to be tried again, not before ``after`` seconds."""

    def __init__(self, kind: Kind, reason: str, after: float = 0.0) -> None:
        super().__init__(kind, reason)
        self.after = after


def refusal(url: str, status: int, headers: Mapping[str, str], body: bytes) -> Unanswered:
    """Why a status of 300 or more was given. ``headers`` by name in lower case; of ``body`` the beginning will do."""
    words = said(body)
    text = f"{url} answered {status}" + (f": {words}" if words else "")
    if status < 400:
        host = urlsplit(headers.get("location", "")).hostname
        return Unanswered("refused", f"{text}; it points elsewhere{f' ({host})' if host else ''}: give that URL")
    if status in (401, 403):
        return Unanswered("unauthorized", f"{text}; check the token, the user and the tenant")
    if status == 404:
        return Unanswered("refused", f"{text}; is the URL's path right?")
    if status not in _PASSING:
        return Unanswered("refused" if status < 500 else "broken", text)
    if status == 503 and "timeout" in words.lower():
        return Unanswered("timeout", text)  # the query's own: as slow the next time
    return Passing(_PASSING[status], text, _retry_after(headers.get("retry-after", "")))


def _retry_after(text: str) -> float:
    """Seconds, from a number or a date; 0 for neither."""
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text.strip()):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def said(body: bytes) -> str:
    """A server's own words of an error: its message where the body is JSON that has one, else the text without tags."""
    text = body[: 1 << 14].decode("utf-8", "replace")
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told = None
    if isinstance(told, dict):
        found = told.get("error") or told.get("message") or told.get("msg") or ""
        if not found and isinstance(several := told.get("errors"), list):  # slurmrestd
            each = [one for one in several[:3] if isinstance(one, dict)]
            found = "; ".join(str(one[key]) for one in each for key in ("error", "description") if one.get(key))
        if isinstance(found, dict):
            found = found.get("reason") or found.get("message") or found.get("type") or ""
        text = str(found) or text
    return plain(re.sub(r"<[^<>]{0,200}>", " ", text))


def plain(text: str) -> str:
    """One printable line of bounded length."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text[: 8 * MOST_SAID]).split())
    return line if len(line) <= MOST_SAID else line[: MOST_SAID - 3] + "..."
