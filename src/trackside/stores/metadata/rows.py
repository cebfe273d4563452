"""What the archive returns: runs, verdicts, links between runs, and pages of them. Times are POSIX seconds, UTC."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from trackside.stores.metadata.errors import ArchiveError


class ArchivedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was judged. A value that no input gave is null or empty."""

    id: str
    """Id in the verdict archive, such as r17; unique, while schedulers may reuse a job id."""
    job: str
    """Job id."""
    cluster: str
    """Name of the cluster; empty if not known."""
    name: str | None
    """Name of the job."""
    username: str | None
    """User who submitted it."""
    state: str | None
    """Final state in the scheduler, such as NODE_FAIL."""
    submitted: float | None
    """Time of submission, POSIX seconds."""
    started: float | None
    """Start, POSIX seconds."""
    ended: float | None
    """End, POSIX seconds."""
    attempts: int
    """Number of starts by the scheduler."""
    nodes: list[str]
    """Nodes of the run."""
    gpus: list[str]
    """GPUs of the run, as node:index."""
    n_gpus: int | None
    """Number of GPUs."""
    framework: str | None
    """Training framework."""
    first_seen: float
    """Time of its first verdict, POSIX seconds."""
    updated: float
    """Time of the last change of this entry, POSIX seconds."""
    verdict: int | None
    """Id of the latest verdict, from which the fields below come; null if it was deleted."""
    judged: float | None
    """Time of that verdict, POSIX seconds."""
    family: str | None
    """Code of its primary family, such as B1."""
    variant: str | None
    """Variant of the family."""
    culprit: str | None
    """Owner of the fault: job, infrastructure, scheduler, none or unknown."""
    certainty: str | None
    """established, supported or possible."""
    confidence: float | None
    """How often verdicts with similar evidence were right on runs that were unseen when judged, 0 to 1; null for
    U0 (unknown)."""


class ArchivedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict on a run, without its document."""

    id: int
    """Id of the verdict."""
    run: str
    """Id of the run in the verdict archive, such as r17."""
    made_at: float
    """When it was made, POSIX seconds."""
    confirmed_at: float
    """When a diagnosis last gave the same document, POSIX seconds."""
    version: str
    """Version of Trackside."""
    family: str
    """Code of the primary family, such as B1."""
    variant: str | None
    """Variant of the family."""
    culprit: str
    """Owner of the fault: job, infrastructure, scheduler, none or unknown."""
    certainty: str | None
    """established, supported or possible; possible for U0 (unknown)."""
    confidence: float | None
    """How often verdicts with similar evidence were right on runs that were unseen when judged, 0 to 1; null for
    U0 (unknown)."""
    digest: str
    """SHA-256 of the document, in hexadecimal."""
    bytes: int
    """Size of the document in bytes."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One run continued another."""

    job: str
    """Job id of the other run."""
    run: str | None
    """Id of the other run in the verdict archive; null if it is not there."""
    how: str
    """How the link is known: dependency, requeue, restart or order (same name, one after the other)."""


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run continued, and what continued it."""

    parent: Link | None
    """The run that it continued; null if none is known."""
    children: list[Link]
    """The runs that continued it."""


class RecordResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where a verdict was recorded; ``new`` is false if the archive had it already."""

    run: str
    verdict: int
    new: bool


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs, newest first."""

    runs: list[ArchivedRun]
    """The runs, newest first."""
    next: str | None
    """Cursor of the next page; null on the last."""


class VerdictPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of verdicts on one run, newest first."""

    verdicts: list[ArchivedVerdict]
    """The verdicts, newest first."""
    next: str | None
    """Cursor of the next page; null on the last."""


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
