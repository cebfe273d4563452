"""The archive of runs, verdicts and lineage, in SQLite or PostgreSQL. Needs the ``serve`` extra."""
