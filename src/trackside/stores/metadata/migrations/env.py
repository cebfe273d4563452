"""Alembic runs this for every migration, over the connection that it is given and in its transaction."""

from __future__ import annotations

from alembic import context

from trackside.stores.metadata.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # the caller began the transaction and holds the lock: all revisions or none
)
context.run_migrations()
