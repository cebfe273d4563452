"""The archive of verdicts: what was judged, when, and how that changed; several instances may share one.

What is recorded twice is kept once: a verdict that came out again as it was only says so. A run is told by cluster,
job id and the time of its submission, since schedulers begin anew with their ids.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
import zstandard

from trackside.finding import Verdict
from trackside.stores.metadata import facts
from trackside.stores.metadata.engine import Database, migrate
from trackside.stores.metadata.errors import ArchiveError
from trackside.stores.metadata.rows import (
    ArchivedRun,
    ArchivedVerdict,
    Filters,
    Lineage,
    Link,
    Recorded,
    RunPage,
    VerdictPage,
    cursor,
    place_of,
    run_id,
    run_number,
    run_of,
    verdict_of,
)
from trackside.stores.metadata.schema import lineage, run_nodes, runs, verdicts

MOST_DOCUMENT = 64 << 20
"""Bytes of one verdict's document."""
MOST_PAGE = 1000
MOST_CHILDREN = 100
"""Runs that continued one run."""
SAME_S = 1.0
"""By how much two sources may differ in when a job was submitted."""
_VERDICT = [column for column in verdicts.c if column.name != "document"]


class Archive:
    """Open it with a URL (:class:`trackside.stores.metadata.engine.Database`); any thread may use it.

    Everything raises ArchiveError where the database can't be asked.
    """

    def __init__(self, database: Database) -> None:
        self._connections = database
        self._migrated = False

    @classmethod
    def open(cls, url: str, *, later: bool = False) -> Archive:
        """Connect, and make or update the tables; ``later``: not before something is asked, so that a server which is
        down keeps nobody from starting. Raises ArchiveError."""
        archive = cls(Database(url))
        try:
            if not later:
                archive.ready()
        except BaseException:
            archive.close()
            raise
        return archive

    @property
    def _database(self) -> Database:
        if not self._migrated:
            migrate(self._connections)  # by several threads at once: it does no harm
            self._migrated = True
        return self._connections

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connections.close()

    def ready(self) -> None:
        """Nothing, where the database answers. Raises ArchiveError."""
        with self._database.reading() as link:
            link.execute(sa.select(sa.literal(1)))

    # -- writing

    def record(
        self, verdict: Verdict, document: bytes, *, made_at: float | None = None, job: str | None = None
    ) -> Recorded:
        """Keep a verdict and its published document; recording it again changes nothing but when it was confirmed.

        ``job``: what it was asked as, for one that has no job's id. ``made_at``: POSIX seconds, now if not given.
        """
        if len(document) > MOST_DOCUMENT:
            raise ArchiveError(
                "refused", f"the verdict's document has {len(document):,} bytes; {MOST_DOCUMENT:,} is most"
            )
        now = time.time() if made_at is None else made_at
        run = facts.run_facts(verdict, job)
        row = {
            **facts.verdict_facts(verdict),
            "version": verdict.version,
            "digest": hashlib.sha256(document).hexdigest(),
            "bytes": len(document),
            "document": zstandard.compress(document, 3),
        }
        try:
            return self._record(run, row, facts.parent_facts(verdict), now)
        except ArchiveError as error:
            if error.kind != "unreachable":
                raise
            return self._record(run, row, facts.parent_facts(verdict), now)  # a connection that died under it

    def _record(self, run: facts.Row, row: facts.Row, parent: tuple[str, str] | None, now: float) -> Recorded:
        with self._database.writing("run", run["cluster"], run["job"]) as link:
            before = _same_run(link, run)
            at = run["started"] or run["submitted"] or now
            first = {**run, "at": at, "first_seen": now, "updated": now}
            number = _insert(link, runs, first) if before is None else before.id
            verdict, new = _keep(link, number, row, now)
            if before is None or before.judged is None or now >= before.judged:
                latest = {name: row[name] for name in ("family", "variant", "culprit", "certainty", "confidence")}
                _renew(link, number, before, run, {**latest, "verdict": verdict, "judged": now, "updated": now})
                if parent is not None:
                    link.execute(sa.delete(lineage).where(lineage.c.child == number))
                    link.execute(sa.insert(lineage), {"child": number, "parent": parent[0], "how": parent[1]})
        return Recorded(run=run_id(number), verdict=verdict, new=new)

    def prune(self, before: float) -> int:
        """Delete verdicts that last came out before a time, but the latest of each run. Gives how many."""
        old = sa.delete(verdicts).where(
            verdicts.c.confirmed_at < before,
            ~sa.exists().where(runs.c.id == verdicts.c.run, runs.c.verdict == verdicts.c.id),
        )
        with self._database.writing("prune") as link:
            return link.execute(old).rowcount

    # -- reading

    def runs(self, filters: Filters | None = None, limit: int = 100, after: str | None = None) -> RunPage:
        """Runs, the last to start first; ``after``: the ``next`` of the page before."""
        found, following = self._page(_filtered(filters or Filters()), runs.c.at, runs.c.id, limit, after)
        return RunPage(runs=[run_of(row) for row in found], next=following)

    def find(self, id_: str, cluster: str | None = None) -> ArchivedRun | None:
        """A run by its id, or the last one of a job by the job's. Raises ArchiveError(ambiguous) for one of several
        clusters."""
        number = run_number(id_)
        if number is not None:
            found = self._rows(sa.select(runs).where(runs.c.id == number))
            return run_of(found[0]) if found else None
        asked = sa.select(runs).where(runs.c.job == (facts.text(id_) or ""))
        if cluster is not None:
            asked = asked.where(runs.c.cluster == cluster)
        found = self._rows(asked.order_by(runs.c.at.desc(), runs.c.id.desc()).limit(MOST_PAGE))
        clusters = sorted({row["cluster"] for row in found})
        if len(clusters) > 1:
            named = ", ".join(each or "(none)" for each in clusters)
            which = "say which as cluster=NAME, empty for (none)"
            raise ArchiveError("ambiguous", f"job {id_} is of several clusters: {named}; {which}")
        return run_of(found[0]) if found else None

    def verdicts(self, run: str, limit: int = 100, after: str | None = None) -> VerdictPage:
        """A run's verdicts, the latest first."""
        asked = sa.select(*_VERDICT).where(verdicts.c.run == run_number(run))
        found, following = self._page(asked, verdicts.c.made_at, verdicts.c.id, limit, after)
        return VerdictPage(verdicts=[verdict_of(row) for row in found], next=following)

    def verdict(self, id_: int) -> ArchivedVerdict | None:
        found = self._rows(sa.select(*_VERDICT).where(verdicts.c.id == id_))
        return verdict_of(found[0]) if found else None

    def document(self, id_: int) -> bytes | None:
        """A verdict's document, byte for byte as it was recorded."""
        found = self._rows(sa.select(verdicts.c.document, verdicts.c.bytes).where(verdicts.c.id == id_))
        if not found:
            return None
        try:
            return zstandard.decompress(found[0]["document"], max_output_size=found[0]["bytes"])
        except zstandard.ZstdError as error:
            raise ArchiveError("refused", f"the document of verdict {id_} is damaged: judge the run again") from error

    def lineage(self, run: ArchivedRun) -> Lineage:
        """What a run continued and what continued it, as far as was recorded."""
        child = runs.alias("child")
        number = run_number(run.id)
        with self._database.reading() as link:
            up = link.execute(sa.select(lineage.c.parent, lineage.c.how).where(lineage.c.child == number)).first()
            asked = sa.select(child.c.id, child.c.job, child.c.at, lineage.c.how).select_from(
                lineage.join(child, child.c.id == lineage.c.child)
            )
            asked = asked.where(lineage.c.parent == run.job, child.c.cluster == run.cluster, child.c.id != number)
            below = link.execute(asked.order_by(child.c.at, child.c.id).limit(MOST_CHILDREN)).all()
            began = link.execute(sa.select(runs.c.at).where(runs.c.id == number)).scalar()
            before = None if up is None or began is None else _last_before(link, run.cluster, up.parent, began, number)
            children = [
                Link(job=row.job, run=run_id(row.id), how=row.how)
                for row in below
                if _last_before(link, run.cluster, run.job, row.at, row.id) == number
            ]
        parent = None
        if up is not None:
            parent = Link(job=up.parent, run=None if before is None else run_id(before), how=up.how)
        return Lineage(parent=parent, children=children)

    def _page(
        self, asked: sa.Select[Any], time: sa.Column[Any], id_: sa.Column[Any], limit: int, after: str | None
    ) -> tuple[Sequence[sa.RowMapping], str | None]:
        """Rows by time and id, the last first, and the cursor of the page after them."""
        if not 1 <= limit <= MOST_PAGE:
            raise ArchiveError("refused", f"a page has 1 to {MOST_PAGE:,} rows, not {limit}")
        if after is not None:
            asked = asked.where(sa.tuple_(time, id_) < sa.tuple_(*place_of(after)))
        found = self._rows(asked.order_by(time.desc(), id_.desc()).limit(limit + 1))
        last = found[limit - 1] if len(found) > limit else None
        return found[:limit], None if last is None else cursor((last[time.name], last[id_.name]))

    def _rows(self, asked: sa.Select[Any]) -> Sequence[sa.RowMapping]:
        with self._database.reading() as link:
            return link.execute(asked).mappings().all()


def _filtered(filters: Filters) -> sa.Select[Any]:
    asked = sa.select(runs)
    for name in ("job", "cluster", "name", "username", "state", "family", "culprit"):
        value = getattr(filters, name)
        if value is not None:
            asked = asked.where(runs.c[name] == value)
    if filters.node is not None:
        asked = asked.where(runs.c.id.in_(sa.select(run_nodes.c.run).where(run_nodes.c.node == filters.node)))
    if filters.since is not None:
        asked = asked.where(runs.c.at >= filters.since)
    if filters.until is not None:
        asked = asked.where(runs.c.at < filters.until)
    return asked


def _same_run(link: sa.Connection, run: facts.Row) -> sa.Row[Any] | None:
    """The row of this run. Where its time or the row's is not known, the last of the job; the caller has the lock."""
    same_job = sa.select(runs).where(runs.c.cluster == run["cluster"], runs.c.job == run["job"])
    found = link.execute(same_job.order_by(runs.c.began.desc(), runs.c.id.desc()).limit(MOST_PAGE)).all()
    for row in found:
        for name in ("submitted", "started"):
            then, now = getattr(row, name), run[name]
            if then is not None and now is not None:
                if abs(then - now) <= SAME_S:
                    return row
                break
        else:
            return row
    return None


def _insert(link: sa.Connection, table: sa.Table, row: facts.Row) -> int:
    return int(link.execute(sa.insert(table).returning(table.c.id), row).scalar_one())


def _keep(link: sa.Connection, run: int, row: facts.Row, now: float) -> tuple[int, bool]:
    """A verdict of the run, unless the one before or the one after it in time is the same document."""
    mine = sa.select(verdicts.c.id, verdicts.c.digest, verdicts.c.made_at, verdicts.c.confirmed_at).where(
        verdicts.c.run == run
    )
    before = mine.where(verdicts.c.made_at <= now).order_by(verdicts.c.made_at.desc(), verdicts.c.id.desc())
    after = mine.where(verdicts.c.made_at > now).order_by(verdicts.c.made_at, verdicts.c.id)
    for asked in (before, after):
        near = link.execute(asked.limit(1)).first()
        if near is not None and near.digest == row["digest"]:
            span = {"made_at": min(near.made_at, now), "confirmed_at": max(near.confirmed_at, now)}
            if link.execute(sa.update(verdicts).where(verdicts.c.id == near.id).values(span)).rowcount:
                return near.id, False  # else it was pruned this moment
    return _insert(link, verdicts, {**row, "run": run, "made_at": now, "confirmed_at": now}), True


def _renew(link: sa.Connection, number: int, before: sa.Row[Any] | None, run: facts.Row, latest: facts.Row) -> None:
    """The run as the latest verdict has it; what that one doesn't know stays as it was."""
    known = {name: value for name, value in run.items() if value not in (None, [], "")}
    if before is not None:
        submitted = known.get("submitted") or before.submitted
        started = known.get("started") or before.started
        known["began"] = submitted or known["began"] or before.began
        known["at"] = started or submitted or before.first_seen
        known["attempts"] = max(run["attempts"], before.attempts)
    link.execute(sa.update(runs).where(runs.c.id == number).values({**known, **latest}))
    if run["nodes"] and (before is None or before.nodes != run["nodes"]):
        link.execute(sa.delete(run_nodes).where(run_nodes.c.run == number))
        link.execute(sa.insert(run_nodes), [{"node": node, "run": number} for node in run["nodes"]])


def _last_before(link: sa.Connection, cluster: str, job: str, at: float, but: int | None) -> int | None:
    """The last run of a job that began before a time."""
    asked = sa.select(runs.c.id).where(runs.c.cluster == cluster, runs.c.job == job, runs.c.at <= at, runs.c.id != but)
    return link.execute(asked.order_by(runs.c.at.desc(), runs.c.id.desc()).limit(1)).scalar()
