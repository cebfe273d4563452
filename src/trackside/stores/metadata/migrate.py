"""Bring an archive's tables up to date when it is opened: forward only, all or nothing, one instance at a time."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from trackside.stores.metadata.engine import Database
from trackside.stores.metadata.errors import ArchiveError, shown
from trackside.stores.metadata.schema import REVISION

SCRIPTS = Path(__file__).with_name("migrations")
_version = sa.table("alembic_version", sa.column("version_num"))


def migrate(database: Database, scripts: Path = SCRIPTS, revision: str = REVISION) -> None:
    """Have the tables of a revision. Raises ArchiveError, also for a database that a later version made."""
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
        if current != revision:
            config.attributes["connection"] = link
            command.upgrade(config, revision)


def _current(link: sa.Connection) -> str | None:
    """The revision of the tables; None where there are none."""
    if not sa.inspect(link).has_table(_version.name):
        return None
    return link.execute(sa.select(_version.c.version_num)).scalar()
