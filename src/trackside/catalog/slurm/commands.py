"""How Slurm's commands are run: C locale, POSIX times, and only the columns that are read."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trackside.catalog.slurm.fields import JOB

_UNSET = re.compile(r"(?:SACCT|SQUEUE|SCONTROL|SINFO|SDIAG)_|SLURM_(?:JSON|YAML)\Z")
"""User variables that change what the commands print."""
SEPARATOR = "\x1f"
"""Column separator for sacct, which no name contains."""
_READ = (field.spellings["sacct"][0] for field in JOB if "sacct" in field.spellings)
ACCOUNTING_COLUMNS = tuple(dict.fromkeys(("JobID", "JobIDRaw", *_READ, "Account", "QOS", "Suspended")))
"""Columns requested from sacct."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment to run a command with."""
    base = {name: value for name, value in environ.items() if not _UNSET.match(name)}
    return {**base, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "4096"}


def accounting_columns(help_format: str) -> list[str]:
    """The columns that this sacct supports, from its ``--helpformat``; requesting another is an error."""
    offered = set(help_format.lower().split())
    return [column for column in ACCOUNTING_COLUMNS if column.lower() in offered]


def accounting_table(columns: list[str]) -> list[str]:
    """sacct options for a table with these columns."""
    return ["-P", f"--delimiter={SEPARATOR}", f"--format={','.join(columns)}"]
