"""How the archive's tables came to be: Alembic's environment, and one file a revision in ``versions/``."""
