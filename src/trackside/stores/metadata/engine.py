"""One database behind the archive: connections, migrations, transactions, and readable errors.

SQLite: WAL, so that readers and the one writer don't block each other; a writer takes its lock when it begins.
PostgreSQL: every transaction sets its own limits, so that a connection pooler does no harm.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from trackside.extras import install_command
from trackside.stores.metadata.errors import ArchiveError, archive_error, redacted_url
from trackside.stores.metadata.schema import REVISION, metadata

WAIT_S = 15
"""Longest wait for a lock or a connection, in seconds."""
MAX_STATEMENT_S = 30
"""Longest time of one statement on the server."""
MAX_CONNECTIONS = 8
"""Maximum number of connections of one process."""
SCRIPTS = Path(__file__).with_name("migrations")
_version = sa.table("alembic_version", sa.column("version_num"))


class Database:
    """A database and its connections; any thread may use it."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        """Raises ArchiveError for an unusable URL; if not ``create``, also for a file that does not exist."""
        self.url = _checked_url(url)
        if not create and self.url.get_backend_name() == "sqlite" and not Path(self.url.database or "").exists():
            raise ArchiveError("unreachable", f"no archive at {self.url.database}")
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {"timeout": WAIT_S}
        if not self.is_sqlite:
            options = {"connect_timeout": WAIT_S, "application_name": "trackside", "prepare_threshold": None,
                       "tcp_user_timeout": 2 * MAX_STATEMENT_S * 1000}  # fmt: skip
            options = {name: value for name, value in options.items() if name not in self.url.query}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", exc.SAWarning)  # for a parameter that the driver does not know
                self._engine = sa.create_engine(
                    self.url, connect_args=options, pool_size=MAX_CONNECTIONS, max_overflow=0, pool_timeout=WAIT_S,
                    pool_pre_ping=not self.is_sqlite,
                )  # fmt: skip
        except (ValueError, TypeError, exc.ArgumentError, exc.SAWarning) as error:
            raise ArchiveError("refused", f"{redacted_url(self.url)}: invalid parameters: {error}") from error
        if self.is_sqlite:
            event.listen(self._engine, "connect", _configure_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        else:
            event.listen(self._engine, "begin", _begin_postgres)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction with a consistent view. Raises ArchiveError."""
        with self._plain_errors(), self._engine.connect() as link:
            if not self.is_sqlite:
                link = link.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with link.begin():
                yield link

    @contextmanager
    def writing(self, *names: str) -> Iterator[sa.Connection]:
        """A transaction that holds the lock of these names; SQLite has a single lock. Raises ArchiveError."""
        with self._plain_errors(), self._engine.connect() as link:
            link = link.execution_options(trackside_writes=True)
            with link.begin():
                if not self.is_sqlite:
                    link.execute(sa.select(sa.func.pg_advisory_xact_lock(_lock_key(names))))
                yield link

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except exc.SQLAlchemyError as error:
            raise archive_error(self.url, error) from error
        except UnicodeEncodeError as error:
            raise ArchiveError("refused", f"{redacted_url(self.url)}: text that is not Unicode: {error}") from error


def _checked_url(text: str) -> sa.URL:
    remedy = "write sqlite:////path/to/archive.db or postgresql://user@host/database"
    try:
        url = sa.make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        raise ArchiveError("refused", f"the archive's URL cannot be read; {remedy}") from error
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "postgresql+psycopg":
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise ArchiveError("refused", f"PostgreSQL needs psycopg: {install_command('postgres')}") from error
        return url
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise ArchiveError("refused", f"an archive cannot be kept in {url.drivername!r}; {remedy}")
    if not url.database or url.database == ":memory:" or "\0" in url.database:
        raise ArchiveError("refused", f"the archive's URL names no file; {remedy}")
    _check_path(Path(url.database))
    return url


def _check_path(file: Path) -> None:
    """Raise ArchiveError if an archive cannot be kept at this path."""
    folder = file.parent
    try:
        if not folder.is_dir():
            raise ArchiveError(
                "unreachable", f"the archive's folder {folder} does not exist: create it, or give another"
            )
        if file.is_dir():
            raise ArchiveError("refused", f"the archive {file} is a folder: name a file in it")
        if not (os.access(folder, os.W_OK | os.X_OK) and (not file.exists() or os.access(file, os.R_OK | os.W_OK))):
            raise ArchiveError("refused", f"the archive {file} or its folder is not writable for this user")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArchiveError("unreachable", f"the archive {str(file)!r}: {reason}") from error


def _configure_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # otherwise the driver begins by itself, and only before the first change
    connection.execute(f"PRAGMA busy_timeout = {WAIT_S * 1000}")
    connection.execute("PRAGMA foreign_keys = ON")
    deadline = time.monotonic() + WAIT_S
    while True:  # if two processes switch a new file to WAL at once, SQLite refuses one and does not let it wait
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _begin_sqlite(link: sa.Connection) -> None:
    writes = link.get_execution_options().get("trackside_writes", False)
    link.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _begin_postgres(link: sa.Connection) -> None:
    link.exec_driver_sql(
        f"SELECT set_config('statement_timeout', '{MAX_STATEMENT_S}s', true),"
        f" set_config('lock_timeout', '{WAIT_S}s', true)"
    )


def _lock_key(names: tuple[str, ...]) -> int:
    """The signed 64-bit key of an advisory lock."""
    digest = hashlib.sha256("\0".join(("trackside", *names)).encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def migrate(database: Database, scripts: Path = SCRIPTS, revision: str = REVISION) -> None:
    """Migrate the tables to a revision: forward only, all or nothing, one instance at a time.

    Raises ArchiveError, also for a database made by a later version.
    """
    with database.reading() as link:
        if _current(link) == revision:
            return  # the usual case: Alembic need not be loaded
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    with database.writing("migrate") as link:
        current = _current(link)  # another instance may have migrated while this one waited for the lock
        if current is not None and current not in revisions:
            raise ArchiveError(
                "newer",
                f"{redacted_url(database.url)} was made by a later Trackside (revision {current}, "
                f"this one knows {revision}): update it",
            )
        config.attributes["connection"] = link
        if current is None:
            metadata.create_all(link)
            command.stamp(config, revision)
        elif current != revision:
            command.upgrade(config, revision)


def _current(link: sa.Connection) -> str | None:
    """The revision of the tables; None if there are none."""
    if not sa.inspect(link).has_table(_version.name):
        return None
    return link.execute(sa.select(_version.c.version_num)).scalar()
