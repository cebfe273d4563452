"""What the archive returns: runs, verdicts, links between runs, and pages of them. Times are POSIX seconds, UTC."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from trackside.stores.metadata.errors import ArchiveError


class ArchivedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was judged. A fact that no input gave is null or empty."""

    id: str
    """The archive's own id: ``r17``. Schedulers may reuse a job's id, but this id is unique."""
    job: str
    cluster: str
    name: str | None
    username: str | None
    state: str | None
    submitted: float | None
    started: float | None
    ended: float | None
    attempts: int
    nodes: list[str]
    gpus: list[str]
    n_gpus: int | None
    framework: str | None
    first_seen: float
    updated: float
    verdict: int | None
    """Id of the latest verdict, from which the fields below come."""
    judged: float | None
    family: str | None
    variant: str | None
    culprit: str | None
    certainty: str | None
    confidence: float | None


class ArchivedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict on a run, without its document."""

    id: int
    run: str
    made_at: float
    confirmed_at: float
    """When the same document last came out again."""
    version: str
    family: str
    variant: str | None
    culprit: str
    certainty: str | None
    confidence: float | None
    digest: str
    """SHA-256 of the document, in hexadecimal."""
    bytes: int
    """Size of the document."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One run continued another. ``run``: the id of the other run, null if it is not in the archive."""

    job: str
    """The job id of the other run."""
    run: str | None
    how: str
    """dependency, requeue, restart or order (of the same name, one after the other)."""


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run continued, and what continued it."""

    parent: Link | None
    children: list[Link]


class RecordResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where a verdict was recorded; ``new`` is false if the archive had it already."""

    run: str
    verdict: int
    new: bool


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs, newest first."""

    runs: list[ArchivedRun]
    next: str | None
    """Cursor of the next page; null at the end."""


class VerdictPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of verdicts on one run, newest first."""

    verdicts: list[ArchivedVerdict]
    next: str | None
    """Cursor of the next page; null at the end."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on runs; all that are given must hold. Texts are compared as a whole."""

    job: str | None = None
    cluster: str | None = None
    name: str | None = None
    username: str | None = None
    state: str | None = None
    family: str | None = None
    """A code, such as B1."""
    culprit: str | None = None
    node: str | None = None
    since: float | None = None
    """Started at or after this time."""
    until: float | None = None
    """Started before this time."""


PageKey = tuple[float, int]
"""(time, id): the key of a row in a page order."""


def encode_cursor(key: PageKey) -> str:
    """A page key as text for a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode("ascii").rstrip("=")


def decode_cursor(text: str) -> PageKey:
    """The page key in a text by :func:`encode_cursor`. Raises ArchiveError for any other text."""
    try:
        key: PageKey = msgspec.json.decode(
            base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=tuple[float, int]
        )
    except (ValueError, msgspec.MsgspecError) as error:
        raise ArchiveError("refused", "the cursor is not the 'next' of any page; start without one") from error
    if not 0 <= key[1] < 2**63:
        raise ArchiveError("refused", "the cursor is not the 'next' of any page; start without one")
    return key


def run_id(number: int) -> str:
    """A run's id, from the id of its row."""
    return f"r{number}"


def run_number(text: str) -> int | None:
    """The id of the row; None if the text is not a run's id, but perhaps a job's."""
    return int(text[1:]) if text[:1] == "r" and text[1:].isascii() and text[1:].isdigit() and len(text) < 20 else None


def run_of(row: Any) -> ArchivedRun:
    """A run from a row of the table."""
    values = {name: value for name, value in row.items() if name in ArchivedRun.__struct_fields__}
    return ArchivedRun(**{**values, "id": run_id(row["id"])})


def verdict_of(row: Any) -> ArchivedVerdict:
    """A verdict from a row of the table."""
    values = {name: value for name, value in row.items() if name in ArchivedVerdict.__struct_fields__}
    return ArchivedVerdict(**{**values, "run": run_id(row["run"])})
