"""What log stores answer, taken apart: anything may come, and what is no answer is said to be none."""

from __future__ import annotations

import datetime as dt
import re
from typing import Protocol, TypeVar

import msgspec

from trackside.http.unanswered import Unanswered, words_of

T = TypeVar("T", covariant=True)
SECOND = 1_000_000_000
"""Nanoseconds."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:?00)", re.ASCII)


class _Decoder(Protocol[T]):
    def decode(self, buf: bytes | str, /) -> T: ...


def decoded(decoder: _Decoder[T], body: bytes, where: str, whose: str) -> T:
    """An answer, as its decoder tells it. Raises Unanswered for what is none.

    A byte that is no UTF-8 is one that some program wrote into its log: the lines are worth more than it.
    """
    try:
        try:
            return decoder.decode(body)
        except UnicodeDecodeError:
            return decoder.decode(body.decode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError):
        shown = words_of(body)[:80]
        raise Unanswered(
            "broken", f"{where} sent what is no answer of {whose}: {shown!r}; is it the right URL?"
        ) from None


def nanoseconds(text: str) -> int | None:
    """POSIX nanoseconds of an RFC 3339 time in UTC; None for what is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    try:
        seconds = int(dt.datetime.fromisoformat(found[1] + "+00:00").timestamp())
    except ValueError:
        return None
    return seconds * SECOND + int((found[2] or "0").ljust(9, "0"))
