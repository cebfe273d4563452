"""``sacct`` as text: ``-P``, ``-p``, ``--delimiter``, CSV, or its default columns under dashes."""

from __future__ import annotations

import re

from trackside.catalog.job_states import ALL_STATES
from trackside.model import Record
from trackside.read import slurm
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.slurm_row import Row
from trackside.read.slurm_table import below as rows_below
from trackside.read.slurm_table import first_lines, header_of

COLUMNS = slurm.vocabulary(
    """
    account admincomment alloccpus allocgres allocnodes alloctres associd avecpu avecpufreq avediskread avediskwrite
    avepages averss avevmsize blockid cluster comment constraints consumedenergy consumedenergyraw container cputime
    cputimeraw dbindex derivedexitcode derivedexitstr elapsed elapsedraw eligible end exitcode extra failednode
    flags gid group jobid jobidraw jobname layout licenses maxdiskread maxdiskreadnode maxdiskreadtask maxdiskwrite
    maxdiskwritenode maxdiskwritetask maxpages maxpagesnode maxpagestask maxrss maxrssnode maxrsstask maxvmsize
    maxvmsizenode maxvmsizetask mcslabel mincpu mincpunode mincputask ncpus nnodes nodelist ntasks partition planned
    plannedcpu plannedcpuraw priority qos qosraw qosreq reason reqcpufreq reqcpufreqgov reqcpufreqmax reqcpufreqmin
    reqcpus reqgres reqmem reqnodes reqtres reservation reservationid reqreservation reserved restarts resvcpu
    resvcpuraw segmentsize sluid start state stderr stdin stdout submit submitline suspended systemcomment systemcpu
    timelimit timelimitraw totalcpu tresusageinave tresusageinmax tresusageinmaxnode tresusageinmaxtask
    tresusageinmin tresusageinminnode tresusageinmintask tresusageintot tresusageoutave tresusageoutmax
    tresusageoutmaxnode tresusageoutmaxtask tresusageoutmin tresusageoutminnode tresusageoutmintask tresusageouttot
    uid user usercpu wckey wckeyid workdir
    """
)
"""sacct --helpformat of 20.11 to 25.11, in lower case"""

_STATE = re.compile(rf"(?:CANCELLED by \S+|{'|'.join(sorted(ALL_STATES))})\Z")


def _sniff(source: Source) -> Match | None:
    lines = first_lines(source.text, 12)
    if not lines:
        return None
    under = lines[1] if len(lines) > 1 else ""
    table = header_of(lines[0], COLUMNS, under)
    if table is not None and not lines[0].isupper():
        if (table.separator is None and not table.spans) or not table.covers(source.text):
            return None
        what = "fixed columns" if table.spans else f"{len(table.columns)} columns"
        return Match(0.95, f"sacct, {what}")
    if _headerless(lines):
        return Match(0.7, "sacct without its header")
    return None


def _headerless(lines: list[str]) -> bool:
    """Most lines have a job id and a state in the same places."""
    places: dict[tuple[int, int], int] = {}
    for line in lines:
        fields = line.split("|")
        ids = [index for index, value in enumerate(fields[:40]) if slurm.split_job_id(value)]
        states = [index for index, value in enumerate(fields) if _STATE.match(value)]
        if len(fields) > 2 and ids and states:
            place = ids[0], states[0]
            places[place] = places.get(place, 0) + 1
    return bool(places) and max(places.values()) >= 0.6 * len(lines)


def _read(source: Source, sink: Sink) -> Result:
    lines = first_lines(source.text)
    table = header_of(lines[0], COLUMNS, lines[1] if len(lines) > 1 else "")
    if table is None:
        raise ValueError("the columns can't be told: run sacct with -P and without --noheader")
    if not {"jobid", "jobidraw"} & set(table.columns):
        raise ValueError("no job id: run sacct with JobID among the columns of --format")
    count = 0
    for row in table.rows(rows_below(table, source.lines())):
        sink.record(record_of(source.path, row))
        count += 1
    if table.lost:
        return Result(count, "partial", f"{table.lost} lines fit no row (a separator or line break inside a name)")
    return Result(count) if count else Result(0, "empty", "a header and no job")


def record_of(path: str, row: Row) -> Record:
    """A job or a step, by its id."""
    parts = slurm.split_job_id(row.get("jobid", "jobidraw") or "")
    job, array, step = parts if parts is not None else (row.get("jobid", "jobidraw") or "", None, None)
    nodes = slurm.nodes_of(row.get("nodelist"))
    state, by = slurm.state_of(row.get("state"))
    code = slurm.exit_of(row.get("exitcode"))
    tasks = slurm.number_of(row.get("ntasks"))
    fields: dict[str, slurm.Field] = {
        "name": row.get("jobname"),
        "state": state,
        "exit_code": code[0] if code else None,
        "signal": code[1] if code else None,
        "start": slurm.time_of(row.get("start")),
        "end": slurm.time_of(row.get("end")),
        "elapsed_s": _seconds(row, "elapsedraw", "elapsed"),
        "nodes": nodes,
        "n_tasks": tasks,
        "max_rss_bytes": slurm.bytes_of(row.get("maxrss")),
        "source": "sacct",
    }
    if step is not None:
        return Record(
            "step", row.at(path), "scheduler", slurm.job_fields(fields, id=f"{job}.{step}", job=job), row.text
        )
    fields |= {"id": job, "array_id": array, "cancelled_by": by} | _job(row, nodes)
    return Record("job", row.at(path), "scheduler", slurm.job_fields(fields), row.text)


def _job(row: Row, nodes: tuple[str, ...]) -> dict[str, slurm.Field]:
    """What is told of a job and not of a step."""
    raw = slurm.split_job_id(row.get("jobidraw") or "")
    derived = slurm.exit_of(row.get("derivedexitcode"))
    n_nodes = slurm.number_of(row.get("nnodes", "allocnodes")) or len(nodes) or None
    n_cpus = slurm.number_of(row.get("alloccpus", "ncpus"))
    dependency = slurm.dependency_of(row.get("submitline"))
    minutes = slurm.number_of(row.get("timelimitraw"))
    gpus = slurm.gpus_of(row.get("alloctres"))
    return {
        "raw_id": raw[0] if raw else None,
        "user": row.get("user"),
        "uid": slurm.number_of(row.get("uid")),
        "cluster": row.get("cluster"),
        "partition": row.get("partition"),
        "derived_exit_code": derived[0] if derived else None,
        "reason": slurm.known(row.get("reason")),
        "submit": slurm.time_of(row.get("submit")),
        "eligible": slurm.time_of(row.get("eligible")),
        "time_limit_s": minutes * 60 if minutes else slurm.duration_of(row.get("timelimit")),
        "failed_node": slurm.known(row.get("failednode")),
        "restarts": slurm.number_of(row.get("restarts")),
        "n_nodes": n_nodes,
        "n_cpus": n_cpus,
        "n_gpus": gpus if gpus is not None else slurm.gpus_of(row.get("reqtres")),
        "dependency": dependency,
        "parents": slurm.parents_of(dependency),
        "submit_line": row.get("submitline"),
        "work_dir": row.get("workdir"),
        "std_out": slurm.known(row.get("stdout")),
        "std_err": slurm.known(row.get("stderr")),
        "req_mem_bytes": slurm.bytes_of(row.get("reqmem"), "M", n_nodes, n_cpus),
    }


def _seconds(row: Row, raw: str, shown: str) -> float | None:
    plain = slurm.number_of(row.get(raw))
    return float(plain) if plain is not None else slurm.duration_of(row.get(shown))


FORMAT = Format("sacct-text", "Slurm accounting, sacct as text", "scheduler", _sniff, _read)
