"""``squeue`` as text: its default and long columns, ``-o`` and ``-O`` formats, ``-o %all``, and ``-s`` for steps."""

from __future__ import annotations

import re

from trackside.logs.stamp import find_time
from trackside.model import Record
from trackside.read import slurm
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.slurm_row import Row
from trackside.read.slurm_table import Table, below, first_lines, header_of

COLUMNS = slurm.vocabulary(
    """
    account accrue_time admin_comment allocnodes alloc_nodes alloc_sid array_job_id array_task_id associd batch_flag
    batchhost boards_per_node burst_buffer burst_buffer_state cluster clusterfeatures command comment container
    contiguous core_spec cores cores_per_socket cpus cpus_per_tres deadline delayboot dependency derived_ec
    eligible_time end_time exc_nodes exec_host exit_code features group groupid groupname het_job_id het_job_id_set
    het_job_offset jobarrayid jobid lasts_sched_eval licenses maxcpus maxnodes mcslabel mem_per_tres min_cpus
    min_memory min_time min_tmp_disk mincpus name network nice node nodelist nodelist(reason) nodes ntasks
    ntasks_per_board numcpus numnodes numtasks over_subscribe oversubscribe partition pendingtime preempt_time
    prefer priority prioritylong profile qos reason reboot reqnodes req_nodes req_switch requeue reservation
    resizetime restart_cnt restartcnt resv_port s:c:t schednodes sct selinux_context shared sibling sockets
    sockets_per_board sockets_per_node st start_time state statecompact stderr stdin stdout stepid stepname
    submit_time submittime suspend_time system_comment tasks thread threads threads_per_core time time_left
    time_limi time_limit time_used timeleft timelimit timeused tres_alloc tres_bind tres_freq tres_per_job
    tres_per_node tres_per_socket tres_per_step tres_per_task tres-alloc uid user userid username wait4switch wckey
    work_dir workdir gres array_job array_task tres-alloc:
    """
)
"""Header words of squeue 20.11 to 25.11, in lower case (``time_limi``: the long format cuts it)"""

_DATE = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}\s*\Z")


def date_of(line: str) -> float | None:
    """The date line that ``-l`` prints above its table, as POSIX seconds (read as UTC)."""
    return find_time(line) if _DATE.match(line) else None


def table_of(text: str, known: frozenset[str]) -> tuple[Table, float | None] | None:
    """The table at a text's top and the date above it; its header has to be in capitals."""
    lines = first_lines(text, 2)
    as_of = date_of(lines[0]) if lines else None
    lines = lines[1:] if as_of is not None else lines
    if not lines or lines[0].upper() != lines[0]:
        return None
    table = header_of(lines[0], known)
    return None if table is None else (table, as_of)


def _sniff(source: Source) -> Match | None:
    found = table_of(source.text, COLUMNS)
    if found is None or not found[0].covers(source.text):
        return None
    columns = set(found[0].columns)
    if "stepid" in columns:
        return Match(0.9, "squeue, steps")
    if not columns & {"jobid", "jobarrayid", "array_job_id"} or not columns & {"st", "state", "statecompact"}:
        return None
    return Match(0.93, f"squeue, {len(columns)} columns")


def _read(source: Source, sink: Sink) -> Result:
    found = table_of(source.text, COLUMNS)
    if found is None:
        raise ValueError("the header of squeue can't be read: run it without -h")
    table, as_of = found
    count = 0
    for row in table.rows(below(table, source.lines())):
        step = "stepid" in table.columns
        fields = _step(row) if step else _job(row, as_of)
        sink.record(Record("step" if step else "job", row.at(source.path), "scheduler", fields, row.text.strip()))
        count += 1
    if table.lost:
        return Result(count, "partial", f"{table.lost} lines fit no row")
    return Result(count) if count else Result(0, "empty", "a header and no job: it had ended or never was")


def _job(row: Row, as_of: float | None) -> dict[str, slurm.Field]:
    shown = row.get("jobarrayid", "jobid") or ""
    if row.get("jobid#2") and "_" not in shown and "+" not in shown:
        shown = next((row.values[name] for name in ("jobid", "jobid#2") if re.search("[_+]", row.values[name])), shown)
    parts = slurm.split_job_id(shown)
    raw = slurm.split_job_id(row.get("jobid#2") or "")
    state, _ = slurm.state_of(row.get("state", "statecompact", "st"))
    where = row.get("nodelist") or row.get("nodelist(reason)") or ""
    reason = slurm.known(row.get("reason")) or (where[1:-1] if where.startswith("(") else None)
    dependency = slurm.known(row.get("dependency"))
    return slurm.job_fields(
        {
            "id": shown,
            "raw_id": raw[0] if raw else (shown if shown.isdecimal() else None),
            "array_id": parts[1] if parts else None,
            "name": row.get("name"),
            "user": row.get("user", "username"),
            "cluster": row.get("cluster"),
            "partition": row.get("partition"),
            "state": state,
            "reason": reason,
            "submit": slurm.time_of(row.get("submit_time", "submittime")),
            "eligible": slurm.time_of(row.get("eligible_time")),
            "start": slurm.time_of(row.get("start_time")),
            "end": slurm.time_of(row.get("end_time")),
            "elapsed_s": slurm.duration_of(row.get("time", "time_used", "timeused")),
            "time_limit_s": slurm.duration_of(row.get("time_limit", "time_limi", "timelimit")),
            "nodes": slurm.nodes_of(where),
            "n_nodes": slurm.number_of(row.get("nodes", "numnodes")),
            "n_tasks": slurm.number_of(row.get("tasks", "ntasks", "numtasks")),
            "n_cpus": slurm.number_of(row.get("cpus", "numcpus")),
            "n_gpus": slurm.gpus_of(row.get("tres_alloc", "tres-alloc")),
            "dependency": dependency,
            "parents": slurm.parents_of(dependency),
            "command": slurm.known(row.get("command")),
            "work_dir": slurm.known(row.get("work_dir", "workdir")),
            "std_out": slurm.known(row.get("stdout")),
            "std_err": slurm.known(row.get("stderr")),
            "restarts": slurm.number_of(row.get("restart_cnt", "restartcnt")),
            "source": "squeue",
            "as_of": as_of,
        }
    )


def _step(row: Row) -> dict[str, slurm.Field]:
    parts = slurm.split_job_id(row.get("stepid") or "")
    return slurm.job_fields(
        {
            "id": row.get("stepid"),
            "job": parts[0] if parts else None,
            "name": row.get("name", "stepname"),
            "state": "RUNNING",
            "start": slurm.time_of(row.get("start_time")),
            "elapsed_s": slurm.duration_of(row.get("time", "time_used")),
            "nodes": slurm.nodes_of(row.get("nodelist", "nodes")),
            "n_tasks": slurm.number_of(row.get("tasks")),
            "source": "squeue",
        }
    )


FORMAT = Format("squeue", "Slurm queue, squeue as text", "scheduler", _sniff, _read)
