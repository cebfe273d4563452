"""The archive's current tables. ``migrations/versions`` holds the steps to them; a test compares the two.

Times are POSIX seconds, UTC.
"""

from __future__ import annotations

import sqlalchemy as sa

REVISION = "1"
"""The newest revision in ``migrations/versions``."""

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite numbers rows automatically only if the type is called INTEGER."""

metadata = sa.MetaData()

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("cluster", sa.Text, nullable=False, comment="empty where no input names it"),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column(
        "began",
        sa.Double,
        nullable=False,
        comment="submit, else start, else 0: distinguishes runs of one job id",
    ),
    sa.Column("at", sa.Double, nullable=False, comment="start, else submit, else first_seen: sort key of listings"),
    sa.Column("name", sa.Text),
    sa.Column("username", sa.Text),
    sa.Column("state", sa.Text),
    sa.Column("submitted", sa.Double),
    sa.Column("started", sa.Double),
    sa.Column("ended", sa.Double),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("nodes", sa.JSON, nullable=False),
    sa.Column("gpus", sa.JSON, nullable=False),
    sa.Column("n_gpus", sa.Integer),
    sa.Column("framework", sa.Text),
    sa.Column("first_seen", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),
    sa.Column("verdict", ID, comment="the latest; its columns are repeated here so that a listing reads one table"),
    sa.Column("judged", sa.Double),
    sa.Column("family", sa.Text),
    sa.Column("variant", sa.Text),
    sa.Column("culprit", sa.Text),
    sa.Column("certainty", sa.Text),
    sa.Column("confidence", sa.Double),
    sa.UniqueConstraint("cluster", "job", "began", name="runs_identity"),
    sa.Index("runs_at", "at", "id"),
    sa.Index("runs_job", "job", "at"),
    sa.Index("runs_family", "family", "at", "id"),
    sa.Index("runs_culprit", "culprit", "at", "id"),
    sa.Index("runs_state", "state", "at", "id"),
    sa.Index("runs_name", "name", "at", "id"),
)

run_nodes = sa.Table(
    "run_nodes",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("run", ID, sa.ForeignKey("runs.id", ondelete="CASCADE", name="run_nodes_run"), primary_key=True),
    sa.Index("run_nodes_of", "run"),
)

verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("run", ID, sa.ForeignKey("runs.id", ondelete="CASCADE", name="verdicts_run"), nullable=False),
    sa.Column("made_at", sa.Double, nullable=False),
    sa.Column("confirmed_at", sa.Double, nullable=False, comment="last time the same verdict was produced"),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("family", sa.Text, nullable=False),
    sa.Column("variant", sa.Text),
    sa.Column("culprit", sa.Text, nullable=False),
    sa.Column("certainty", sa.Text),
    sa.Column("confidence", sa.Double),
    sa.Column("digest", sa.Text, nullable=False, comment="SHA-256 of the document, in hexadecimal"),
    sa.Column("bytes", sa.Integer, nullable=False, comment="of the document as it was given"),
    sa.Column("document", sa.LargeBinary, nullable=False, comment="trackside.verdict/1 as JSON, zstd"),
    sa.UniqueConstraint("run", "made_at", "digest", name="verdicts_identity"),
    sa.Index("verdicts_history", "run", "made_at", "id"),
    sa.Index("verdicts_confirmed", "confirmed_at"),
)

lineage = sa.Table(
    "lineage",
    metadata,
    sa.Column("child", ID, sa.ForeignKey("runs.id", ondelete="CASCADE", name="lineage_child"), primary_key=True),
    sa.Column("parent", sa.Text, nullable=False, comment="the parent job's id: it may be recorded later or never"),
    sa.Column("how", sa.Text, nullable=False, comment="dependency, requeue, restart or order"),
    sa.Index("lineage_parent", "parent"),
)
