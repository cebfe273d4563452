"""How Slurm's commands are asked: in plain English and POSIX seconds, for the columns that are read."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trackside.catalog.slurm.fields import JOB

_UNSET = re.compile(r"(?:SACCT|SQUEUE|SCONTROL|SINFO|SDIAG)_|SLURM_(?:JSON|YAML)\Z")
"""Variables of the user's that change what the commands print."""
SEPARATOR = "\x1f"
"""Between the columns of sacct's tables: no name has it."""
_READ = (field.spellings["sacct"][0] for field in JOB if "sacct" in field.spellings)
ACCOUNTING_COLUMNS = tuple(dict.fromkeys(("JobID", "JobIDRaw", *_READ, "Account", "QOS", "Suspended")))
"""What sacct is asked for."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to run a command with."""
    kept = {name: value for name, value in environ.items() if not _UNSET.match(name)}
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "4096"}


def accounting_columns(help_format: str) -> list[str]:
    """The columns that a sacct has, by its ``--helpformat``: to ask for another is an error."""
    offered = set(help_format.lower().split())
    return [column for column in ACCOUNTING_COLUMNS if column.lower() in offered]


def accounting_table(columns: list[str]) -> list[str]:
    """Options of sacct for a table of these columns."""
    return ["-P", f"--delimiter={SEPARATOR}", f"--format={','.join(columns)}"]
