"""WHAT WAS JUDGED: runs, verdicts and which run continued which, in SQLite or PostgreSQL. Needs the ``serve`` extra."""
