"""Why a server did not answer: a kind for the program, and one plain line that quotes the server's own message."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from trackside.errors import TracksideError

MAX_MESSAGE_CHARS = 300
"""Maximum characters of the server's message in a reason."""
FailureKind = Literal["unreachable", "timeout", "refused", "limited", "unauthorized", "broken", "too_large", "partial"]
CHECK_IDENTITY = "check the token, the user and the tenant"
_TEMPORARY_STATUSES: Mapping[int, FailureKind] = {429: "limited", 502: "unreachable", 503: "limited", 504: "timeout"}


class SourceUnavailable(TracksideError):
    """A request that a server did not answer. ``str`` is one line: what happened, where, and what may help.

    ``status``: HTTP status of the response, 0 if there was none. ``message``: the server's own message in it.
    ``retry_after_s``: seconds before which the server does not want another request.
    """

    def __init__(
        self, kind: FailureKind, reason: str, status: int = 0, message: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(reason)
        self.kind: FailureKind = kind
        self.status, self.message, self.retry_after_s = status, message, retry_after_s


class TemporaryFailure(SourceUnavailable):
    """A failure that may pass; the request is worth a retry."""


def refusal(url: str, status: int, headers: Mapping[str, str], body: bytes) -> SourceUnavailable:
    """The error for a response with a status of 300 or more. ``headers``: by lower-case name. ``body``: its beginning
    suffices."""
    message = error_message(body)
    kind, remedy = _classify(status, message, headers.get("location", ""))
    is_temporary = status in _TEMPORARY_STATUSES and kind == _TEMPORARY_STATUSES[status]
    text = f"{url} answered {status}" + (f": {message}" if message else "") + (f"; {remedy}" if remedy else "")
    retry_after_s = _retry_after(headers.get("retry-after", ""))
    return (TemporaryFailure if is_temporary else SourceUnavailable)(kind, text, status, message, retry_after_s)


def _classify(status: int, message: str, location: str) -> tuple[FailureKind, str]:
    """(kind, remedy) of an error response."""
    if status < 400:
        host = urlsplit(location).hostname
        return "refused", f"the server redirects{f' to {host}' if host else ''}: set that URL"
    if status in (401, 403, 407):
        return "unauthorized", CHECK_IDENTITY
    if status in (404, 405):
        return "refused", "is the URL's path right?"
    if status == 503 and "timeout" in message.lower():
        return "timeout", ""  # the query itself timed out and would again
    return _TEMPORARY_STATUSES.get(status, "refused" if status < 500 else "broken"), ""


def _retry_after(text: str) -> float:
    """Seconds to wait, from a Retry-After number or date; 0 for neither."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def error_message(body: bytes) -> str:
    """The server's error message: from the JSON body if it has one, else the text without tags."""
    text = body[: 1 << 14].decode("utf-8", "replace")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = None
    if isinstance(document, dict):
        document_message = document.get("error") or document.get("message") or document.get("msg") or ""
        if not document_message and isinstance(errors := document.get("errors"), list):  # slurmrestd
            texts = [
                error.get(key) for error in errors[:3] if isinstance(error, dict) for key in ("error", "description")
            ]
            document_message = "; ".join(str(text) for text in texts if text)
        if isinstance(document_message, dict):
            document_message = (
                document_message.get("reason") or document_message.get("message") or document_message.get("type") or ""
            )
        text = str(document_message) or text
    return plain(re.sub(r"<[^<>]{0,200}>", " ", text))


def plain(text: str) -> str:
    """One printable line of bounded length."""
    line = " ".join(
        "".join(letter if letter.isprintable() else " " for letter in text[: 8 * MAX_MESSAGE_CHARS]).split()
    )
    return line if len(line) <= MAX_MESSAGE_CHARS else line[: MAX_MESSAGE_CHARS - 3] + "..."
