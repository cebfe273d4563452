"""Logs of Slurm's daemons: slurmctld.log, slurmd.log, slurmdbd.log, with their own timestamps or through syslog."""

from __future__ import annotations

import re

from trackside.catalog.streams import streaming_node
from trackside.logs.line import FileContext
from trackside.logs.scan import scan
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.formats.job_log import note_on
from trackside.read.slurm_table import first_lines

_STAMP = re.compile(r"\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3,6})?(?:[+-]\d\d:?\d\d)?\]\s")
_SYSLOG = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d [\d:]{8}|\d{4}-\d\d-\d\dT\S{8,32}) \S+ slurm(?:ctld|d|dbd|stepd)(?:\[\d+\])?: "
)
_TYPICAL = re.compile(
    r"JobId=\d|StepId=\d|_slurm_rpc|slurmctld|slurmd\b|slurmdbd|sched(?:/backfill)?: |cons_(?:tres|res)|task/cgroup|"
    r"\[\d+\.(?:batch|extern|interactive|\d+)\]|node\S* \S+ (?:returned to service|not resp|now resp|state set)|"
    r"Nodes? \S+ (?:not|now) responding|Launching batch job|launch task|prolog|epilog|update_node|Terminate signal|"
    r"agent/|_job_complete|accounting_storage|SchedulerParameters|Could not open \w+ state|backfill|gres/gpu|munge|"
    r"trigger|RPC|_handle_stray_script|stepd|done with (?:job|step)|x11 forwarding|job_str_signal|_sync_nodes|"
    r"priority/multifactor|select/cons"
)
_NODE_NAME = re.compile(r"slurmd[._-]([A-Za-z0-9][\w-]*?)(?:\.log.*)?\Z")


def _sniff(source: InputSource) -> Match | None:
    lines = first_lines(source.text, 60)
    if sum(1 for line in lines if _SYSLOG.match(line)) > 0.8 * len(lines) > 0:
        return Match(0.9, "Slurm daemon log, by syslog")
    stamped = [line for line in lines if _STAMP.match(line)]
    matching = sum(1 for line in stamped if _TYPICAL.search(line))
    if not stamped or len(stamped) < 0.7 * len(lines) or matching < 0.25 * len(stamped):
        return None
    return Match(0.9, "Slurm daemon log")


def _read(source: InputSource, sink: Sink) -> Result:
    match = _NODE_NAME.search(source.name)
    is_streamed = streaming_node(source.path) is not None
    context = FileContext(source.path, "scheduler", node=match[1] if match else None, has_syslog_prefix=is_streamed)
    scan_result = scan(source.stream, sink.event, context)
    return Result(scan_result.lines, note=note_on(scan_result))


FORMAT = Format("slurm-daemon-log", "slurmctld, slurmd or slurmdbd log", "scheduler", _sniff, _read)
