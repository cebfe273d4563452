"""The archive of verdicts: what was judged, when, and how it changed. Several instances may share one.

A verdict that is recorded again unchanged only updates its time of confirmation. A run is identified by cluster, job id
and time of submission, since schedulers reuse ids.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
import zstandard

from trackside.finding import Verdict
from trackside.stores.metadata import columns
from trackside.stores.metadata.columns import ColumnValues
from trackside.stores.metadata.engine import Database, migrate
from trackside.stores.metadata.errors import ArchiveError
from trackside.stores.metadata.rows import (
    ArchivedRun,
    ArchivedVerdict,
    Filters,
    Lineage,
    Link,
    RecordResult,
    RunPage,
    VerdictPage,
    decode_cursor,
    encode_cursor,
    run_id,
    run_number,
    run_of,
    verdict_of,
)
from trackside.stores.metadata.schema import lineage, run_nodes, runs, verdicts

MAX_DOCUMENT_BYTES = 64 << 20
"""Largest size of one verdict's document."""
MAX_PAGE_ROWS = 1000
MAX_CHILDREN = 100
"""Maximum number of runs listed as continuations of one run."""
MAX_SUBMIT_DIFFERENCE_S = 1.0
"""Two sources may differ by this much in when a job was submitted."""
_VERDICT = [column for column in verdicts.c if column.name != "document"]


class Archive:
    """Open it with a URL (:class:`trackside.stores.metadata.engine.Database`); any thread may use it.

    Every method raises ArchiveError if the database is unavailable.
    """

    def __init__(self, database: Database) -> None:
        self._connections = database
        self._migrated = False

    @classmethod
    def open(cls, url: str, *, lazy: bool = False, create: bool = True) -> Archive:
        """Connect, and create or migrate the tables; with ``lazy`` only at the first query, so that a server can start
        while its database is down. Raises ArchiveError; if not ``create``, also for a file that does not exist."""
        archive = cls(Database(url, create=create))
        try:
            if not lazy:
                archive.check_ready()
        except BaseException:
            archive.close()
            raise
        return archive

    @property
    def _database(self) -> Database:
        if not self._migrated:
            migrate(self._connections)  # harmless if several threads do it at once
            self._migrated = True
        return self._connections

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connections.close()

    def check_ready(self) -> None:
        """Raises ArchiveError unless the database answers."""
        with self._database.reading() as link:
            link.execute(sa.select(sa.literal(1)))

    # -- writing

    def record(
        self, verdict: Verdict, document: bytes, *, made_at: float | None = None, job: str | None = None
    ) -> RecordResult:
        """Record a verdict and its published document; recording it again only updates the time of confirmation.

        ``job``: the id under which it was requested, for a verdict without a job id. ``made_at``: POSIX seconds, now if
        not given.
        """
        if len(document) > MAX_DOCUMENT_BYTES:
            raise ArchiveError(
                "refused", f"the verdict's document has {len(document):,} bytes; {MAX_DOCUMENT_BYTES:,} is the maximum"
            )
        now = time.time() if made_at is None else made_at
        run = columns.run_columns(verdict, job)
        row = {
            **columns.verdict_columns(verdict),
            "version": verdict.version,
            "digest": hashlib.sha256(document).hexdigest(),
            "bytes": len(document),
            "document": zstandard.compress(document, 3),
        }
        try:
            return self._record(run, row, columns.parent_of(verdict), now)
        except ArchiveError as error:
            if error.kind != "unreachable":
                raise
            return self._record(run, row, columns.parent_of(verdict), now)  # for a connection that died meanwhile

    def _record(self, run: ColumnValues, row: ColumnValues, parent: tuple[str, str] | None, now: float) -> RecordResult:
        with self._database.writing("run", run["cluster"], run["job"]) as link:
            before = _same_run(link, run)
            started_at = run["started"] or run["submitted"] or now
            first_row = {**run, "at": started_at, "first_seen": now, "updated": now}
            number = _insert(link, runs, first_row) if before is None else before.id
            verdict, new = _insert_verdict(link, number, row, now)
            if before is None or before.judged is None or now >= before.judged:
                latest = {name: row[name] for name in ("family", "variant", "culprit", "certainty", "confidence")}
                _update_run(link, number, before, run, {**latest, "verdict": verdict, "judged": now, "updated": now})
                if parent is not None:
                    link.execute(sa.delete(lineage).where(lineage.c.child == number))
                    link.execute(sa.insert(lineage), {"child": number, "parent": parent[0], "how": parent[1]})
        return RecordResult(run=run_id(number), verdict=verdict, new=new)

    def prune(self, before: float) -> int:
        """Delete verdicts last confirmed before a time, except the latest of each run. Returns how many."""
        delete_old = sa.delete(verdicts).where(
            verdicts.c.confirmed_at < before,
            ~sa.exists().where(runs.c.id == verdicts.c.run, runs.c.verdict == verdicts.c.id),
        )
        with self._database.writing("prune") as link:
            return link.execute(delete_old).rowcount

    # -- reading

    def runs(self, filters: Filters | None = None, limit: int = 100, after: str | None = None) -> RunPage:
        """Runs, the latest start first; ``after``: the ``next`` of the previous page."""
        rows, next_cursor = self._page(_filter(filters or Filters()), runs.c.at, runs.c.id, limit, after)
        return RunPage(runs=[run_of(row) for row in rows], next=next_cursor)

    def find(self, id_: str, cluster: str | None = None) -> ArchivedRun | None:
        """A run by its id, or the last run of a job by the job's id. Raises ArchiveError(ambiguous) if the job is of
        several clusters."""
        number = run_number(id_)
        if number is not None:
            rows = self._rows(sa.select(runs).where(runs.c.id == number))
            return run_of(rows[0]) if rows else None
        query = sa.select(runs).where(runs.c.job == (columns.text(id_) or ""))
        if cluster is not None:
            query = query.where(runs.c.cluster == cluster)
        rows = self._rows(query.order_by(runs.c.at.desc(), runs.c.id.desc()).limit(MAX_PAGE_ROWS))
        clusters = sorted({row["cluster"] for row in rows})
        if len(clusters) > 1:
            shown_clusters = ", ".join(name or "(none)" for name in clusters)
            remedy = "choose one with cluster=NAME, empty for (none)"
            raise ArchiveError("ambiguous", f"job {id_} is in several clusters: {shown_clusters}; {remedy}")
        return run_of(rows[0]) if rows else None

    def verdicts(self, run: str, limit: int = 100, after: str | None = None) -> VerdictPage:
        """A run's verdicts, the latest first."""
        query = sa.select(*_VERDICT).where(verdicts.c.run == run_number(run))
        rows, next_cursor = self._page(query, verdicts.c.made_at, verdicts.c.id, limit, after)
        return VerdictPage(verdicts=[verdict_of(row) for row in rows], next=next_cursor)

    def verdict(self, id_: int) -> ArchivedVerdict | None:
        rows = self._rows(sa.select(*_VERDICT).where(verdicts.c.id == id_))
        return verdict_of(rows[0]) if rows else None

    def document(self, id_: int) -> bytes | None:
        """A verdict's document, byte for byte as recorded."""
        rows = self._rows(sa.select(verdicts.c.document, verdicts.c.bytes).where(verdicts.c.id == id_))
        if not rows:
            return None
        try:
            return zstandard.decompress(rows[0]["document"], max_output_size=rows[0]["bytes"])
        except zstandard.ZstdError as error:
            raise ArchiveError(
                "refused", f"the document of verdict {id_} is damaged: diagnose the run again"
            ) from error

    def lineage(self, run: ArchivedRun) -> Lineage:
        """What a run continued and what continued it, as far as recorded."""
        child = runs.alias("child")
        number = run_number(run.id)
        with self._database.reading() as link:
            parent_link = link.execute(
                sa.select(lineage.c.parent, lineage.c.how).where(lineage.c.child == number)
            ).first()
            query = sa.select(child.c.id, child.c.job, child.c.at, lineage.c.how).select_from(
                lineage.join(child, child.c.id == lineage.c.child)
            )
            query = query.where(lineage.c.parent == run.job, child.c.cluster == run.cluster, child.c.id != number)
            child_rows = link.execute(query.order_by(child.c.at, child.c.id).limit(MAX_CHILDREN)).all()
            started_at = link.execute(sa.select(runs.c.at).where(runs.c.id == number)).scalar()
            parent_run = (
                None
                if parent_link is None or started_at is None
                else _last_before(link, run.cluster, parent_link.parent, started_at, number)
            )
            children = [
                Link(job=row.job, run=run_id(row.id), how=row.how)
                for row in child_rows
                if _last_before(link, run.cluster, run.job, row.at, row.id) == number
            ]
        parent = None
        if parent_link is not None:
            parent = Link(
                job=parent_link.parent, run=None if parent_run is None else run_id(parent_run), how=parent_link.how
            )
        return Lineage(parent=parent, children=children)

    def _page(
        self, query: sa.Select[Any], time: sa.Column[Any], id_: sa.Column[Any], limit: int, after: str | None
    ) -> tuple[Sequence[sa.RowMapping], str | None]:
        """Rows by time and id, the latest first, and the cursor of the next page."""
        if not 1 <= limit <= MAX_PAGE_ROWS:
            raise ArchiveError("refused", f"a page can have 1 to {MAX_PAGE_ROWS:,} rows, not {limit}")
        if after is not None:
            query = query.where(sa.tuple_(time, id_) < sa.tuple_(*decode_cursor(after)))
        rows = self._rows(query.order_by(time.desc(), id_.desc()).limit(limit + 1))
        last = rows[limit - 1] if len(rows) > limit else None
        return rows[:limit], None if last is None else encode_cursor((last[time.name], last[id_.name]))

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.RowMapping]:
        with self._database.reading() as link:
            return link.execute(query).mappings().all()


def _filter(filters: Filters) -> sa.Select[Any]:
    query = sa.select(runs)
    for name in ("job", "cluster", "name", "username", "state", "family", "culprit"):
        value = getattr(filters, name)
        if value is not None:
            query = query.where(runs.c[name] == value)
    if filters.node is not None:
        query = query.where(runs.c.id.in_(sa.select(run_nodes.c.run).where(run_nodes.c.node == filters.node)))
    if filters.since is not None:
        query = query.where(runs.c.at >= filters.since)
    if filters.until is not None:
        query = query.where(runs.c.at < filters.until)
    return query


def _same_run(link: sa.Connection, run: ColumnValues) -> sa.Row[Any] | None:
    """The row of this run. If its time or the row's is unknown, the last run of the job; the caller holds the lock."""
    same_job = sa.select(runs).where(runs.c.cluster == run["cluster"], runs.c.job == run["job"])
    rows = link.execute(same_job.order_by(runs.c.began.desc(), runs.c.id.desc()).limit(MAX_PAGE_ROWS)).all()
    for row in rows:
        for name in ("submitted", "started"):
            recorded_time, new_time = getattr(row, name), run[name]
            if recorded_time is not None and new_time is not None:
                if abs(recorded_time - new_time) <= MAX_SUBMIT_DIFFERENCE_S:
                    return row
                break
        else:
            return row
    return None


def _insert(link: sa.Connection, table: sa.Table, row: ColumnValues) -> int:
    return int(link.execute(sa.insert(table).returning(table.c.id), row).scalar_one())


def _insert_verdict(link: sa.Connection, run: int, row: ColumnValues, now: float) -> tuple[int, bool]:
    """Insert a verdict, unless the previous or next verdict of the run in time has the same document. Returns its id,
    and whether it is new."""
    of_run = sa.select(verdicts.c.id, verdicts.c.digest, verdicts.c.made_at, verdicts.c.confirmed_at).where(
        verdicts.c.run == run
    )
    before = of_run.where(verdicts.c.made_at <= now).order_by(verdicts.c.made_at.desc(), verdicts.c.id.desc())
    after = of_run.where(verdicts.c.made_at > now).order_by(verdicts.c.made_at, verdicts.c.id)
    for query in (before, after):
        neighbor = link.execute(query.limit(1)).first()
        if neighbor is not None and neighbor.digest == row["digest"]:
            span = {"made_at": min(neighbor.made_at, now), "confirmed_at": max(neighbor.confirmed_at, now)}
            if link.execute(sa.update(verdicts).where(verdicts.c.id == neighbor.id).values(span)).rowcount:
                return neighbor.id, False  # else it was pruned just now
    return _insert(link, verdicts, {**row, "run": run, "made_at": now, "confirmed_at": now}), True


def _update_run(
    link: sa.Connection,
    number: int,
    before: sa.Row[Any] | None,
    run: ColumnValues,
    latest: ColumnValues,
) -> None:
    """Update the run from its latest verdict; columns that the verdict does not fill stay unchanged."""
    values = {name: value for name, value in run.items() if value not in (None, [], "")}
    if before is not None:
        submitted = values.get("submitted") or before.submitted
        started = values.get("started") or before.started
        values["began"] = submitted or values["began"] or before.began
        values["at"] = started or submitted or before.first_seen
        values["attempts"] = max(run["attempts"], before.attempts)
    link.execute(sa.update(runs).where(runs.c.id == number).values({**values, **latest}))
    if run["nodes"] and (before is None or before.nodes != run["nodes"]):
        link.execute(sa.delete(run_nodes).where(run_nodes.c.run == number))
        link.execute(sa.insert(run_nodes), [{"node": node, "run": number} for node in run["nodes"]])


def _last_before(link: sa.Connection, cluster: str, job: str, started_at: float, excluded: int | None) -> int | None:
    """The last run of a job that began before a time."""
    query = sa.select(runs.c.id).where(
        runs.c.cluster == cluster, runs.c.job == job, runs.c.at <= started_at, runs.c.id != excluded
    )
    return link.execute(query.order_by(runs.c.at.desc(), runs.c.id.desc()).limit(1)).scalar()
