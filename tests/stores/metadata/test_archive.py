"""The archive of verdicts: the same tests over SQLite and over a real PostgreSQL."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
import sqlalchemy as sa

from tests.services import Postgres, postgresql, takes_queries, wait_until
from tests.stores.metadata.verdicts import T0, run, verdict, written
from trackside.finding import Verdict
from trackside.model import Attempt
from trackside.stores.metadata import engine as migrating
from trackside.stores.metadata.archive import Archive
from trackside.stores.metadata.engine import Database
from trackside.stores.metadata.errors import ArchiveError
from trackside.stores.metadata.rows import Filters
from trackside.stores.metadata.schema import REVISION, metadata

pytestmark = pytest.mark.slow

DUMPS = Path(__file__).parent / "revisions"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'archive.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def archive(url: str) -> Iterator[Archive]:
    with Archive.open(url) as opened:
        yield opened


def record(archive: Archive, made: Verdict | None = None, at: float = T0 + 700, **more: Any) -> Any:
    made = made or verdict()
    return archive.record(made, written(made), made_at=at, **more)


def jobs(archive: Archive, **filters: Any) -> list[str]:
    return [run.job for run in archive.runs(Filters(**filters)).runs]


# -- recording


def test_a_verdict_comes_back_as_it_was_recorded(archive: Archive) -> None:
    made = verdict(run(user="ada"))
    recorded = record(archive, made)
    assert recorded.new
    match = archive.find("4242")
    assert match is not None
    assert (match.id, match.verdict) == (recorded.run, recorded.verdict)
    assert (match.cluster, match.name, match.username, match.state) == ("alpha", "lm", "ada", "FAILED")
    assert (match.submitted, match.started, match.ended) == (T0, T0 + 10, T0 + 600)
    assert (match.nodes, match.gpus, match.n_gpus) == (["gpu017", "gpu018"], ["gpu017:0"], 16)
    assert (match.family, match.culprit, match.certainty, match.confidence) == ("A1", "job", "established", 0.9)
    assert archive.document(recorded.verdict) == written(made)
    about = archive.verdict(recorded.verdict)
    assert about is not None
    assert (about.run, about.made_at, about.version, about.bytes) == (recorded.run, T0 + 700, "1.0", len(written(made)))
    assert archive.find(recorded.run) == match


def test_the_same_verdict_is_stored_once(archive: Archive) -> None:
    first = record(archive)
    again = record(archive, at=T0 + 900)
    assert (again.run, again.verdict, again.new) == (first.run, first.verdict, False)
    (only,) = archive.verdicts(first.run).verdicts
    assert (only.made_at, only.confirmed_at) == (T0 + 700, T0 + 900)


def test_a_verdict_that_changes_has_a_history(archive: Archive) -> None:
    a, b = verdict(), verdict(exception="ImportError")
    ids = [record(archive, made, at=T0 + n).verdict for n, made in enumerate((a, a, b, a))]
    assert len(set(ids)) == 3
    match = archive.find("4242")
    assert match is not None
    assert match.verdict == ids[3]
    history = archive.verdicts(match.id)
    assert [verdict.id for verdict in history.verdicts] == [ids[3], ids[2], ids[0]]
    first = archive.verdicts(match.id, limit=2)
    assert [verdict.id for verdict in archive.verdicts(match.id, limit=2, after=first.next).verdicts] == [ids[0]]


def test_a_verdict_that_arrives_late_is_not_the_latest(archive: Archive) -> None:
    new, old = verdict(verdict().run, "G1"), verdict(run(disposition="RUNNING"))
    recorded = record(archive, new, at=T0 + 900)
    record(archive, old, at=T0 + 500)
    record(archive, old, at=T0 + 400)  # the same document, made earlier: its time moves back
    match = archive.find("4242")
    assert match is not None
    assert (match.verdict, match.family, match.state) == (recorded.verdict, "G1", "FAILED")
    assert [verdict.made_at for verdict in archive.verdicts(match.id).verdicts] == [T0 + 900, T0 + 400]


def test_fields_that_a_later_verdict_lacks_are_kept(archive: Archive) -> None:
    record(archive)
    record(archive, verdict(run(cluster="alpha", name=None, submit=None, nodes=(), n_gpus=None)), at=T0 + 900)
    (row,) = archive.runs().runs
    assert (row.name, row.submitted, row.n_gpus, row.nodes) == ("lm", T0, 16, ["gpu017", "gpu018"])


def test_a_run_known_only_by_its_log_gets_the_times_of_the_scheduler(archive: Archive) -> None:
    bare = run(submit=None, start=None, end=None, attempts=(), nodes=())
    first = record(archive, verdict(bare))
    second = record(archive, at=T0 + 900)
    assert second.run == first.run
    (row,) = archive.runs().runs
    assert (row.submitted, row.started) == (T0, T0 + 10)


def test_reused_job_ids_are_other_runs(archive: Archive) -> None:
    year = 365 * 86400.0
    record(archive)
    later = run(submit=T0 + year, start=T0 + year, end=T0 + year + 60, attempts=())
    second = record(archive, verdict(later), at=T0 + year + 70)
    record(archive, verdict(run(cluster="beta")))
    assert len(archive.runs().runs) == 3
    match = archive.find("4242", cluster="alpha")
    assert match is not None
    assert match.id == second.run
    with pytest.raises(ArchiveError, match="several clusters: alpha, beta") as error:
        archive.find("4242")
    assert error.value.kind == "ambiguous"


def test_a_verdict_without_a_job_is_recorded_under_the_requested_name(archive: Archive) -> None:
    with pytest.raises(ArchiveError, match="names no job"):
        record(archive, verdict(run(None)))
    record(archive, verdict(run(None)), job="runs/lm-7")
    assert jobs(archive) == ["runs/lm-7"]


def test_odd_text_is_cleaned_or_cut_but_never_refused(archive: Archive) -> None:
    odd = run(
        "42\0 \udcff'; DROP TABLE runs; --", name="n" * 10_000, nodes=("a\0b", "a\0b"), n_gpus=2**40, end=float("nan")
    )
    archive.record(verdict(odd), b"{}")
    (row,) = archive.runs().runs
    assert row.job == "42 ?'; DROP TABLE runs; --"
    assert (len(row.name or ""), row.nodes, row.n_gpus, row.ended) == (500, ["ab"], None, None)
    assert archive.find("42\0 \udcff'; DROP TABLE runs; --") == row


def test_lineage_is_matched_by_job_and_time(archive: Archive) -> None:
    child = run("43", submit=T0 + 650, start=T0 + 660, end=T0 + 900, parent="4242", parent_by="dependency")
    recorded = record(archive, verdict(child))
    match = archive.find("43")
    assert match is not None
    link = archive.lineage(match).parent
    assert link is not None
    assert (link.job, link.run, link.how) == ("4242", None, "dependency")
    parent = record(archive)  # recorded after its child
    year = 365 * 86400.0
    record(archive, verdict(run(submit=T0 + year, start=T0 + year, end=T0 + year, attempts=())))  # the id was reused
    assert archive.lineage(match).parent.run == parent.run  # type: ignore[union-attr]
    first, last = archive.find(parent.run), archive.find("4242")
    assert first is not None
    assert last is not None
    assert [(child.job, child.run, child.how) for child in archive.lineage(first).children] == [
        ("43", recorded.run, "dependency")
    ]
    assert archive.lineage(last).children == []


# -- listing


@pytest.fixture
def many(archive: Archive) -> Archive:
    for n in range(25):
        start = T0 + (n // 2) * 100  # two runs per time: pages are cut between equal times
        submitted_run = run(str(n), name=f"lm{n % 3}", submit=start, start=start, attempts=(Attempt(1, start=start),),
                 nodes=(f"gpu{n % 5:03}", "login"), cluster="beta" if n % 4 == 0 else "alpha",
                 disposition="COMPLETED" if n % 2 else "FAILED")  # fmt: skip
        record(archive, verdict(submitted_run, "G1" if n % 2 else "A1"))
    return archive


@pytest.mark.parametrize("limit", [1, 2, 7, 24, 25, 100])
def test_pages_hold_every_run_once_newest_first(many: Archive, limit: int) -> None:
    job_ids, after = [], None
    while True:
        page = many.runs(limit=limit, after=after)
        assert len(page.runs) <= limit
        job_ids += [int(run.job) for run in page.runs]
        after = page.next
        if after is None:
            break
    assert job_ids == sorted(range(25), reverse=True)


def test_a_new_run_does_not_shift_the_pages(many: Archive) -> None:
    first = many.runs(limit=10)
    record(many, verdict(run("99", submit=T0 + 9000, start=T0 + 9000, attempts=())))
    assert int(many.runs(limit=10, after=first.next).runs[0].job) == 14


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"job": "7"}, [7]),
        ({"cluster": "beta"}, [24, 20, 16, 12, 8, 4, 0]),
        ({"name": "lm1", "family": "G1"}, [19, 13, 7, 1]),
        ({"culprit": "none", "since": T0 + 900}, [23, 21, 19]),
        ({"node": "gpu003"}, [23, 18, 13, 8, 3]),
        ({"node": "gpu003", "state": "FAILED"}, [18, 8]),
        ({"since": T0 + 200, "until": T0 + 400}, [7, 6, 5, 4]),
        ({"name": "lm"}, []),
    ],
)
def test_runs_are_filtered(many: Archive, filters: dict[str, Any], expected: list[int]) -> None:
    assert [int(job) for job in jobs(many, **filters)] == expected


@pytest.mark.parametrize("text", ["", "x", "!!", "WzFd", "eyJhIjoxfQ", "a" * 5000, "é"])
def test_an_invalid_cursor_is_refused(archive: Archive, text: str) -> None:
    with pytest.raises(ArchiveError, match="the cursor is not"):
        archive.runs(after=text)


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_the_size_of_a_page_is_bounded(archive: Archive, limit: int) -> None:
    with pytest.raises(ArchiveError, match="1 to 1,000"):
        archive.runs(limit=limit)


def test_pruning_keeps_the_last_verdict_of_each_run(archive: Archive) -> None:
    for n in range(4):
        record(archive, verdict(exception=str(n)), at=T0 + n)
    other = record(archive, verdict(run("5")), at=T0)
    assert archive.prune(T0 + 2.5) == 3
    match = archive.find("4242")
    assert match is not None
    assert [verdict.made_at for verdict in archive.verdicts(match.id).verdicts] == [T0 + 3]
    assert archive.document(other.verdict) is not None
    assert archive.prune(T0 + 1e6) == 0


# -- several writers

WRITER = """
import sys
from dataclasses import replace
from tests.stores.metadata.verdicts import run, verdict, written, T0
from trackside.stores.metadata.archive import Archive
from trackside.stores.metadata.errors import ArchiveError
url, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
archive = Archive.open(url)
for n in range(count):
    made = verdict(run(f"{n % 10 if who != 'alone' else n}"), exception=str(n))
    while True:
        try:
            recorded = archive.record(made, written(made), made_at=T0 + n)
            break
        except ArchiveError as error:
            print("failed", error.kind, flush=True)
    print("recorded", n, recorded.run, recorded.verdict, flush=True)
"""


@contextmanager
def writer(url: str, name: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """A process that records when it reads a line from stdin; it is killed at the end of the block."""
    command = [sys.executable, "-c", WRITER, url, name, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[str]) -> IO[str]:
    """Start the writer; returns its output."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return process.stdout


def test_two_processes_record_the_same_verdicts_at_once(url: str) -> None:
    """Both start with an empty database, migrate it and record the same hundred verdicts on ten runs."""
    with writer(url, "a", 100) as first, writer(url, "b", 100) as second:
        outputs = [set(printed) for printed in [lines_of(process) for process in (first, second)]]
        assert [process.wait(10) for process in (first, second)] == [0, 0]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 100  # each verdict has one id, whichever process recorded it, and none failed
    with Archive.open(url) as archive:
        runs = archive.runs().runs
        assert sorted(int(row.job) for row in runs) == list(range(10))
        assert [len(archive.verdicts(row.id).verdicts) for row in runs] == [10] * 10


def test_many_threads_share_one_archive(archive: Archive) -> None:
    failed: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for m in range(10):
                record(archive, verdict(run(str(m)), exception=str(n)), at=T0 + n)
                archive.runs(limit=5)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert all(len(archive.verdicts(run.id).verdicts) == 8 for run in archive.runs().runs)


def test_a_killed_writer_leaves_complete_records(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'archive.db'}"
    with writer(url, "alone", 100_000) as process:
        printed = lines_of(process)
        acknowledged = [printed.readline() for _ in range(20)]
        process.kill()
        acknowledged += printed.readlines()
    with Archive.open(url) as archive:
        for line in acknowledged:
            if line.endswith("\n"):
                match = archive.find(line.split()[2])
                assert match is not None
                assert archive.document(match.verdict or 0) is not None


@pytest.mark.service
def test_killing_postgres_loses_no_acknowledged_record(tmp_path: Path) -> None:
    with postgresql(tmp_path / "server") as server:
        url = server.database()
        with writer(url, "alone", 300) as process:
            printed = lines_of(process)
            lines = [printed.readline() for _ in range(50)]
            server.process.kill()
            server.process.wait()
            lines.append(printed.readline())
            with restarted(server):
                lines += printed.readlines()
                assert process.wait(10) == 0
                assert "failed unreachable\n" in lines
                verdict_ids = {line.split()[1]: line.split()[3] for line in lines if line.startswith("recorded")}
                assert len(verdict_ids) == 300
                with Archive.open(url) as archive:
                    assert all(archive.document(int(id_)) is not None for id_ in verdict_ids.values())
                    assert len(archive.runs(limit=1000).runs) == 300  # a record that was tried twice is stored once


@pytest.mark.service
def test_a_lazy_archive_opens_while_its_server_is_down(tmp_path: Path) -> None:
    with postgresql(tmp_path / "server") as server:
        url = server.database()
        server.process.kill()
        server.process.wait()
        with Archive.open(url, lazy=True) as archive:
            with pytest.raises(ArchiveError) as error:
                record(archive)
            assert error.value.kind == "unreachable"
            with restarted(server):
                assert record(archive).new


@contextmanager
def restarted(server: Postgres) -> Iterator[None]:
    """Start the server again on the same data, once its orphaned processes have ended."""
    data = Path(server.process.args[server.process.args.index("-D") + 1])  # type: ignore[index,union-attr,operator,arg-type]
    owner = data.stat()
    (data / "postmaster.pid").unlink(missing_ok=True)
    account: dict[str, Any] = (
        {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    )

    def start() -> subprocess.Popen[bytes]:
        with server.log.open("ab") as out:
            return subprocess.Popen(server.process.args, stdout=out, stderr=out, cwd=data.parent, **account)

    def up() -> bool:
        if server.process.poll() is not None:
            time.sleep(0.2)
            server.process = start()
        return takes_queries(server)

    server.process = start()
    try:
        wait_until(up, "PostgreSQL to be up again")
        yield
    finally:
        server.end(signal.SIGINT)


@pytest.mark.service
def test_a_dead_connection_is_replaced(postgres: Postgres) -> None:
    """Every pooled connection is dead, as after a restart of the server."""
    url = postgres.database()
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'trackside'"
    with Archive.open(url) as archive:
        record(archive)
        engine = sa.create_engine(url)
        with engine.connect() as link:
            assert link.execute(sa.text(kill)).scalar()
        engine.dispose()
        assert not record(archive).new


# -- revisions


@pytest.mark.parametrize("revision", [str(n) for n in range(int(REVISION) + 1)])
def test_the_tables_match_the_schema(url: str, revision: str) -> None:
    """The migrations bring every revision, and an empty database, to the tables in schema.py."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    if revision != "0":
        load(url, dump_path(url, revision))
    Archive.open(url).close()
    engine = sa.create_engine(url)
    with engine.connect() as link:
        context = MigrationContext.configure(link, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_the_newest_revision_is_the_required_one() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory(str(migrating.SCRIPTS)).get_current_head() == REVISION


def load(url: str, dump: Path) -> None:
    """Load an SQL dump into an empty database."""
    if url.startswith("sqlite"):
        link = sqlite3.connect(sa.make_url(url).database or "")
        link.executescript(dump.read_text())
        link.close()
        return
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.connection.cursor().execute(dump.read_text())  # several statements at once
    engine.dispose()


def dump_path(url: str, revision: str) -> Path:
    return DUMPS / f"revision-{revision}.{'sqlite' if url.startswith('sqlite') else 'postgresql'}.sql"


def check_content(archive: Archive) -> None:
    """The dump of every published revision holds two runs, one with two verdicts, and their link."""
    first, last = archive.find("4242"), archive.find("4243")
    assert first is not None
    assert last is not None
    assert (last.name, last.nodes, last.family) == ("lm", ["gpu017", "gpu018"], "A1")
    assert [verdict.family for verdict in archive.verdicts(first.id).verdicts] == ["A1", "G1"]
    document = archive.document(first.verdict or 0)
    assert document is not None
    assert document.startswith(b'{\n  "schema": "trackside.verdict/1"')
    parent = archive.lineage(last).parent
    assert parent is not None
    assert (parent.run, parent.how) == (first.id, "dependency")
    record(archive, verdict(run("new")))
    assert len(archive.runs().runs) == 3


@pytest.mark.parametrize("revision", [str(n) for n in range(1, int(REVISION) + 1)])
def test_an_archive_of_every_revision_can_be_opened(url: str, revision: str) -> None:
    load(url, dump_path(url, revision))
    with Archive.open(url) as archive:
        check_content(archive)


SECOND = '''
"""A revision that may come one day."""
import sqlalchemy as sa
from alembic import op
revision, down_revision = "2", "1"

def upgrade() -> None:
    op.add_column("runs", sa.Column("qos", sa.Text))
    op.execute("UPDATE runs SET qos = 'normal'"){more}
'''


def second(folder: Path, more: str = "") -> Path:
    """The migrations with a second revision."""
    shutil.copytree(migrating.SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "v2_later.py").write_text(SECOND.format(more=more))
    return folder


def test_a_migration_keeps_existing_rows(url: str, tmp_path: Path) -> None:
    load(url, dump_path(url, "1"))
    database = Database(url)
    migrating.migrate(database, second(tmp_path / "scripts"), "2")
    with database.reading() as link:
        assert link.execute(sa.text("SELECT job, qos FROM runs ORDER BY job")).all() == [
            ("4242", "normal"),
            ("4243", "normal"),
        ]
    with database.reading() as link:
        assert link.execute(sa.text("SELECT count(*) FROM verdicts")).scalar() == 3
    database.close()
    with pytest.raises(ArchiveError, match=r"later Trackside \(revision 2, this one knows 1\): update it") as error:
        Archive.open(url)
    assert error.value.kind == "newer"


def test_a_failed_migration_changes_nothing(url: str, tmp_path: Path) -> None:
    load(url, dump_path(url, "1"))
    database = Database(url)
    broken = second(tmp_path / "scripts", "\n    op.execute('UPDATE no_such_table SET x = 1')")
    with pytest.raises(ArchiveError, match="no_such_table"):
        migrating.migrate(database, broken, "2")
    database.close()
    with Archive.open(url) as archive:
        check_content(archive)


def test_instances_that_start_at_once_migrate_once(url: str) -> None:
    failed: list[BaseException] = []
    start = threading.Barrier(6)

    def work() -> None:
        try:
            start.wait()
            Archive.open(url).close()
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# -- errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: "nonsense", "the archive's URL cannot be read; write sqlite:///"),
        (lambda folder: "mysql://x/y", "an archive cannot be kept in 'mysql'"),
        (lambda folder: "sqlite://", "names no file"),
        (lambda folder: f"sqlite:///{folder}/gone/a.db", "gone does not exist: create it"),
        (lambda folder: f"sqlite:///{folder}", "is a folder: name a file in it"),
        (lambda folder: f"sqlite:///{other_file(folder / 'x.db')}", "another kind of file: give a new path"),
        (lambda folder: "postgresql+psycopg://u:secret@127.0.0.1:1/db", "is the server up, and its address right"),
    ],
)
def test_an_archive_that_cannot_be_opened_reports_the_reason(
    tmp_path: Path, make: Callable[[Path], str], message: str
) -> None:
    with pytest.raises(ArchiveError) as error:
        Archive.open(make(tmp_path))
    assert message in str(error.value)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def other_file(path: Path) -> Path:
    path.write_bytes(b"no database, but a good many bytes of something else " * 40)
    return path


@pytest.mark.service
def test_a_missing_postgres_database_is_reported(postgres: Postgres) -> None:
    with pytest.raises(ArchiveError, match="create that database first"):
        Archive.open(postgres.url.rpartition("/")[0] + "/gone")


def test_a_lock_timeout_is_reported_as_busy(url: str, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.stores.metadata.engine.WAIT_S", 1)
    waiting = Database(url)
    with archive._database.writing("run", "alpha", "4242"), pytest.raises(ArchiveError) as error:
        Archive(waiting).record(verdict(), written(verdict()))
    assert error.value.kind == "busy"
    assert "try again" in str(error.value)
    waiting.close()


def test_a_damaged_document_is_reported(archive: Archive, url: str) -> None:
    recorded = record(archive)
    engine = sa.create_engine(url)
    with engine.begin() as link:
        link.execute(sa.text("UPDATE verdicts SET document = :it"), {"it": b"\x28\xb5\x2f\xfdrubbish"})
    engine.dispose()
    with pytest.raises(ArchiveError, match="is damaged: diagnose the run again"):
        archive.document(recorded.verdict)


def test_the_size_of_a_document_is_bounded(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.stores.metadata.archive.MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(ArchiveError, match="100 is the maximum"):
        record(archive)


def test_a_run_of_many_nodes(archive: Archive) -> None:
    nodes = tuple(f"n{n:05}" for n in range(3000))
    record(archive, verdict(run(nodes=nodes)))
    record(archive, verdict(replace(run(), nodes=nodes[:10]), exception="other"), at=T0 + 800)
    assert jobs(archive, node="n00009") == ["4242"]
    assert jobs(archive, node="n00010") == []


# -- invalid URLs


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:s3cretpw@h/db", "an archive cannot be kept in 'mysql'"),
        ("sqlite:///{folder}", "is a folder: name a file in it"),
        ("sqlite:////proc/1/archive.db", "is not writable for this user"),
        ("sqlite:///{folder}/gone/archive.db", "does not exist"),
        ("sqlite:///{folder}/a\0b.db", "names no file"),
        ("sqlite:///{folder}/a.db?timeout=soon", "invalid parameters"),
        ("sqlite:///{folder}/a.db?password=s3cretpw", "invalid parameters"),
    ],
)
def test_an_invalid_url_gives_one_line_on_the_command_line(tmp_path: Path, url: str, message: str) -> None:
    from trackside.cli.exit_codes import errors

    with pytest.raises(ArchiveError, match=re.escape(message)) as caught:
        Archive.open(url.format(folder=tmp_path), lazy=True)
    assert "\n" not in str(caught.value)
    assert "s3cretpw" not in str(caught.value)
    with pytest.raises(SystemExit) as ended, errors():
        raise caught.value
    assert ended.value.code == 2


def test_serve_ends_with_one_line_for_an_invalid_archive(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trackside", "serve", "--store", tmp_path / "store", "--archive", "mysql://h/db",
         "--listen", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("trackside: an archive cannot be kept in 'mysql'")


def test_archive_errors_can_be_imported_without_the_extra() -> None:
    without = "import sys; sys.modules['sqlalchemy'] = None; import trackside.stores.metadata.errors"
    assert subprocess.run([sys.executable, "-c", without], timeout=60).returncode == 0


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cretpw@127.0.0.1:1/db",
        "postgresql://u@127.0.0.1:1/db?password=s3cretpw",
        "postgresql://s3cretpw@127.0.0.1:1/db",
        "postgresql://u:a%40s3cretpw@127.0.0.1:1/db?options=x",
    ],
)
def test_connection_errors_hold_no_password(url: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(ArchiveError) as caught:
        Archive.open(url)
    assert "127.0.0.1" in str(caught.value)
    assert "s3cretpw" not in str(caught.value)


def test_the_error_for_a_later_archive_holds_no_password(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path / 'archive.db'}")) as database:
        migrating.migrate(database)
        with database.writing() as link:
            link.execute(sa.text("UPDATE alembic_version SET version_num = 'later'"))
        database.url = database.url.update_query_dict({"password": "s3cretpw"})
        with pytest.raises(ArchiveError, match="later Trackside") as caught:
            migrating.migrate(database)
    assert "s3cretpw" not in str(caught.value)
