"""Migrations of the archive's tables: Alembic's environment, and one file per revision in ``versions/``."""
