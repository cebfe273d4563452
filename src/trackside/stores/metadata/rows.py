"""What the archive gives: runs, verdicts, links between runs, pages of them. Times are POSIX seconds, UTC."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from trackside.stores.metadata.errors import ArchiveError


class ArchivedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was judged. A fact that no input gave is null or empty."""

    id: str
    """The archive's own: ``r17``. A job's id may come back after years, this one doesn't."""
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
    """Id of the latest, which the fields from here on are of."""
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
    """Of the document."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One run continued another. ``run``: the other one, null where it is not in the archive."""

    job: str
    """The other one's job id."""
    run: str | None
    how: str
    """dependency, requeue, restart or order (of the same name, one after the other)."""


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run continued, and what continued it."""

    parent: Link | None
    children: list[Link]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Where a verdict went; ``new`` is false where the archive had it already."""

    run: str
    verdict: int
    new: bool


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs, newest first."""

    runs: list[ArchivedRun]
    next: str | None
    """The cursor of the page after it; null at the end."""


class VerdictPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some verdicts on one run, newest first."""

    verdicts: list[ArchivedVerdict]
    next: str | None
    """The cursor of the page after it; null at the end."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs are wanted: those to which all that is given applies. Texts are compared whole."""

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
    """Started then or later."""
    until: float | None = None
    """Started before."""


Place = tuple[float, int]
"""A row's place in an order by time and id."""


def cursor(place: Place) -> str:
    """A place as text that a URL may hold."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode("ascii").rstrip("=")


def place_of(text: str) -> Place:
    """The place that :func:`cursor` wrote. Raises ArchiveError for any other text."""
    try:
        place: Place = msgspec.json.decode(
            base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=tuple[float, int]
        )
    except (ValueError, msgspec.MsgspecError) as error:
        raise ArchiveError("refused", "the cursor is none that a page gave as its 'next'; begin without one") from error
    if not 0 <= place[1] < 2**63:
        raise ArchiveError("refused", "the cursor is none that a page gave as its 'next'; begin without one")
    return place


def run_id(number: int) -> str:
    """A run's id from its row's."""
    return f"r{number}"


def run_number(text: str) -> int | None:
    """The row's id; None where the text is no run's id, but perhaps a job's."""
    return int(text[1:]) if text[:1] == "r" and text[1:].isascii() and text[1:].isdigit() and len(text) < 20 else None


def run_of(row: Any) -> ArchivedRun:
    """From a row of the table."""
    told = {name: value for name, value in row.items() if name in ArchivedRun.__struct_fields__}
    return ArchivedRun(**{**told, "id": run_id(row["id"])})


def verdict_of(row: Any) -> ArchivedVerdict:
    """From a row of the table."""
    told = {name: value for name, value in row.items() if name in ArchivedVerdict.__struct_fields__}
    return ArchivedVerdict(**{**told, "run": run_id(row["run"])})
