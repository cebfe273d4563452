"""Runs, their nodes, their verdicts, and which run continued which: no archive is older."""

revision = "1"
down_revision = None


def upgrade() -> None:
    """Nothing: an empty database gets the tables of the newest revision at once."""
