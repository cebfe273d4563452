"""Slurm output without information about a run: configuration, shares, statistics, error messages."""

from __future__ import annotations

import re

from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.slurm_table import first_lines

_TEXTS = (
    (re.compile(r"\*{20,}\nsdiag output at "), "sdiag"),
    (re.compile(r"Configuration data as of \d{4}-"), "scontrol show config"),
    (re.compile(r"PartitionName=\S+\s+AllowGroups="), "scontrol show partition"),
    (re.compile(r"(?:#.*\n|[ \t\r]*\n)*(?:ClusterName|SlurmctldHost|ControlMachine)=\S"), "slurm.conf"),
    (re.compile(r"(?:#.*\n|[ \t\r]*\n)*(?:Cgroup\w+|Constrain\w+|AutoDetect)=\S"), "a Slurm configuration file"),
    (re.compile(r"(?:#.*\n|[ \t\r]*\n)*NodeName=\S+ (?:AutoDetect|Name|Type|File)="), "gres.conf"),
    (re.compile(r"\s*JOBID +PARTITION +.{0,40}PRIORITY +.{0,60}(?:FAIRSHARE|JOBSIZE)"), "sprio"),
    (re.compile(r"-{40,}\n[A-Z][\w/ ]{3,60} \d{4}-\d\d-\d\dT\S+ - \d{4}"), "sreport"),
    (re.compile(r"Account[| ]+User[| ]+RawShares"), "sshare"),
    (re.compile(r"Name\|Priority\|GraceTime|Type\|Name\|ID\n|NOTE: Runaway jobs are jobs"), "sacctmgr"),
)
_OTHER_JSON = re.compile(r'data_parser/v0|openapi\\?/(?:db)?v0|"(?:parts_packed|statistics)"\s*:')
_ERROR_LINE = re.compile(
    r"(?:slurm_load_\w+|scontrol|squeue|sacct|sinfo|scancel|sacctmgr|sdiag|slurm_\w+)(?: error)?: \S"
)
_MAX_ERROR_BYTES = 2_000
"""Longest text that is taken for a command's error message, bytes."""


def _error_message(source: InputSource) -> str | None:
    lines = first_lines(source.text, 8)
    if len(source.head) > _MAX_ERROR_BYTES or not lines or not all(_ERROR_LINE.match(line) for line in lines):
        return None
    return lines[0]


def _sniff(source: InputSource) -> Match | None:
    if _error_message(source) is not None:
        return Match(0.8, "")
    if source.text.lstrip().startswith("{") and _OTHER_JSON.search(source.text):
        return Match(0.8, "Slurm's JSON, neither jobs nor nodes")
    name = next((name for pattern, name in _TEXTS if pattern.match(source.text[:4000])), None)
    return Match(0.85, name) if name else None


def _read(source: InputSource, sink: Sink) -> Result:
    message = _error_message(source)
    if message is not None:
        raise ValueError(f"the command failed: {message[:200]}")
    return Result(0, "empty", "nothing about a run")


FORMAT = Format("slurm-other", "Slurm configuration and statistics", "scheduler", _sniff, _read)
