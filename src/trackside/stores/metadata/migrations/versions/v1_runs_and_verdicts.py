"""The first revision: runs, their nodes, their verdicts, and which run continued which."""

revision = "1"
down_revision = None


def upgrade() -> None:
    """Do nothing: an empty database gets the tables of the newest revision directly."""
