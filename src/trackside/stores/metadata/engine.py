"""One database behind the archive: how it is connected to and brought up to date, what a transaction is, and its errors
made plain.

SQLite: WAL, so that readers and the one writer don't wait for each other; a writer takes its lock when it begins.
PostgreSQL: every transaction has its own limits, set inside it, so that a pooler in between does no harm.
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

from trackside.stores.metadata.errors import ArchiveError, explained, shown
from trackside.stores.metadata.schema import REVISION, metadata

WAIT_S = 15
"""How long a lock or a connection is waited for."""
STATEMENT_S = 30
"""How long one statement may take at the server."""
CONNECTIONS = 8
"""Of one process."""
SCRIPTS = Path(__file__).with_name("migrations")
_version = sa.table("alembic_version", sa.column("version_num"))


class Database:
    """A database and its connections; any thread may use it."""

    def __init__(self, url: str) -> None:
        self.url = _checked(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {"timeout": WAIT_S}
        if not self.is_sqlite:
            options = {"connect_timeout": WAIT_S, "application_name": "trackside", "prepare_threshold": None,
                       "tcp_user_timeout": 2 * STATEMENT_S * 1000}  # fmt: skip
            options = {name: value for name, value in options.items() if name not in self.url.query}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", exc.SAWarning)  # of a parameter that the driver doesn't know
                self._engine = sa.create_engine(
                    self.url, connect_args=options, pool_size=CONNECTIONS, max_overflow=0, pool_timeout=WAIT_S,
                    pool_pre_ping=not self.is_sqlite,
                )  # fmt: skip
        except (ValueError, TypeError, exc.ArgumentError, exc.SAWarning) as error:
            raise ArchiveError("refused", f"{shown(self.url)}: its parameters can't be meant: {error}") from error
        if self.is_sqlite:
            event.listen(self._engine, "connect", _sqlite_connected)
            event.listen(self._engine, "begin", _sqlite_begins)
        else:
            event.listen(self._engine, "begin", _postgres_begins)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that sees one moment. Raises ArchiveError."""
        with self._plain(), self._engine.connect() as link:
            if not self.is_sqlite:
                link = link.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with link.begin():
                yield link

    @contextmanager
    def writing(self, *names: str) -> Iterator[sa.Connection]:
        """A transaction with the lock that goes by these names; on SQLite there is but one. Raises ArchiveError."""
        with self._plain(), self._engine.connect() as link:
            link = link.execution_options(trackside_writes=True)
            with link.begin():
                if not self.is_sqlite:
                    link.execute(sa.select(sa.func.pg_advisory_xact_lock(_key(names))))
                yield link

    @contextmanager
    def _plain(self) -> Iterator[None]:
        try:
            yield
        except exc.SQLAlchemyError as error:
            raise explained(self.url, error) from error
        except UnicodeEncodeError as error:
            raise ArchiveError("refused", f"{shown(self.url)}: text that is no Unicode: {error}") from error


def _checked(text: str) -> sa.URL:
    wanted = "write sqlite:////path/to/archive.db or postgresql+psycopg://user@host/database"
    try:
        url = sa.make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        raise ArchiveError("refused", f"the archive's URL can't be read; {wanted}") from error
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "postgresql+psycopg":
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise ArchiveError("refused", "PostgreSQL needs psycopg: pip install 'trackside[postgres]'") from error
        return url
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise ArchiveError("refused", f"no archive is kept in {url.drivername!r}; {wanted}")
    if not url.database or url.database == ":memory:" or "\0" in url.database:
        raise ArchiveError("refused", f"the archive's URL names no file; {wanted}")
    _check_place(Path(url.database))
    return url


def _check_place(file: Path) -> None:
    """Whether an archive can be kept there. Raises ArchiveError."""
    folder = file.parent
    try:
        if not folder.is_dir():
            raise ArchiveError("unreachable", f"the archive's folder {folder} is not there: make it, or give another")
        if file.is_dir():
            raise ArchiveError("refused", f"the archive {file} is a folder: name a file in it")
        if not (os.access(folder, os.W_OK | os.X_OK) and (not file.exists() or os.access(file, os.R_OK | os.W_OK))):
            raise ArchiveError("refused", f"the archive {file} or its folder may not be written by this user")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ArchiveError("unreachable", f"the archive {str(file)!r}: {why}") from error


def _sqlite_connected(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver would begin by itself, and not before the first change
    connection.execute(f"PRAGMA busy_timeout = {WAIT_S * 1000}")
    connection.execute("PRAGMA foreign_keys = ON")
    deadline = time.monotonic() + WAIT_S
    while True:  # two that make a new file's journal a WAL at once: SQLite refuses one and lets it not wait
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _sqlite_begins(link: sa.Connection) -> None:
    writes = link.get_execution_options().get("trackside_writes", False)
    link.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgres_begins(link: sa.Connection) -> None:
    link.exec_driver_sql(
        f"SELECT set_config('statement_timeout', '{STATEMENT_S}s', true), set_config('lock_timeout', '{WAIT_S}s', true)"
    )


def _key(names: tuple[str, ...]) -> int:
    """Advisory locks go by a signed 64-bit number."""
    digest = hashlib.sha256("\0".join(("trackside", *names)).encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def migrate(database: Database, scripts: Path = SCRIPTS, revision: str = REVISION) -> None:
    """Have the tables of a revision: forward only, all or nothing, one instance at a time.

    Raises ArchiveError, also for a database that a later version made.
    """
    with database.reading() as link:
        if _current(link) == revision:
            return  # as nearly always: Alembic need not be loaded
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    known = {each.revision for each in ScriptDirectory.from_config(config).walk_revisions()}
    with database.writing("migrate") as link:
        current = _current(link)  # another instance may have been here while this one waited for the lock
        if current is not None and current not in known:
            raise ArchiveError(
                "newer",
                f"{shown(database.url)} was made by a later Trackside (revision {current}, this one knows {revision}): "
                "update it",
            )
        config.attributes["connection"] = link
        if current is None:
            metadata.create_all(link)
            command.stamp(config, revision)
        elif current != revision:
            command.upgrade(config, revision)


def _current(link: sa.Connection) -> str | None:
    """The revision of the tables; None where there are none."""
    if not sa.inspect(link).has_table(_version.name):
        return None
    return link.execute(sa.select(_version.c.version_num)).scalar()
