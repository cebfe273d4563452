"""All Slurm fields used in records: the spellings of each tool, and the parser of their values.

Each field is one row of JOB or NODE. Readers, live queries and the agent all use these rows, which define what to request
and how to parse the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from trackside.catalog.job_states import ACTIVE_STATES, WAITING_STATES
from trackside.catalog.records import RECORDS
from trackside.catalog.slurm import values
from trackside.model import Scalar

SlurmValue = Scalar | tuple[Scalar, ...]
Tool = Literal["sacct", "scontrol", "squeue", "sinfo", "sacctmgr", "jobcomp", "slurmdbd", "slurmctld"]
"""``sacct``, ``squeue``, ``sinfo``, ``sacctmgr``: columns of tables; ``scontrol``: keys of its blocks and of
jobcomp/filetxt; ``jobcomp``: keys of its JSON lines; ``slurmdbd``, ``slurmctld``: paths in the JSON of sacct and slurmdb,
and in the JSON of scontrol, squeue, sinfo and slurm, of all versions."""
_EMPTY = ((), "")
_TABLES = ("sacct", "squeue", "sinfo", "sacctmgr")


@dataclass(frozen=True, slots=True)
class SlurmField:
    """A field of a record. ``spellings``: tool -> its names, best first. ``parse``: parses a value of any of them.

    If a value contains several fields, ``names`` lists them in the order that ``parse`` returns them; ``-``: ignored.
    """

    names: tuple[str, ...]
    parse: Callable[[Any], Any]
    spellings: Mapping[str, tuple[str, ...]]


def _field(names: str, parse: Callable[[Any], Any], **spellings: str) -> SlurmField:
    return SlurmField(tuple(names.split()), parse, {tool: tuple(text.split()) for tool, text in spellings.items()})


JOB = (
    _field("name", values.raw, sacct="JobName", scontrol="JobName Name", squeue="NAME STEPNAME", jobcomp="job_name", slurmdbd="name step.name", slurmctld="name step.name"),
    _field("user uid", values.user, sacct="User", scontrol="UserId", squeue="USER USERNAME", jobcomp="username", slurmdbd="user association.user", slurmctld="user_name"),
    _field("uid", values.number, sacct="UID", slurmctld="user_id"),
    _field("cluster", values.raw, sacct="Cluster", scontrol="Cluster", squeue="CLUSTER", jobcomp="cluster", slurmdbd="cluster", slurmctld="cluster"),
    _field("partition", values.raw, sacct="Partition", scontrol="Partition", squeue="PARTITION", jobcomp="partition", slurmdbd="partition", slurmctld="partition"),
    _field("state cancelled_by", values.job_state, sacct="State", scontrol="JobState State", squeue="STATE STATECOMPACT ST", jobcomp="state", slurmdbd="state.current state", slurmctld="job_state state"),
    _field("cancelled_by", values.known_text, slurmdbd="kill_request_user"),
    _field("exit_code signal", values.exit_status, sacct="ExitCode", scontrol="ExitCode", jobcomp="exit_code", slurmdbd="exit_code", slurmctld="exit_code"),
    _field("derived_exit_code -", values.exit_status, sacct="DerivedExitCode", scontrol="DerivedExitCode", jobcomp="derived_ec", slurmdbd="derived_exit_code", slurmctld="derived_exit_code"),
    _field("reason", values.known_text, sacct="Reason", scontrol="Reason", squeue="REASON", slurmdbd="state.reason", slurmctld="state_reason"),
    _field("reason", values.waiting_reason, squeue="NODELIST NODELIST(REASON)"),
    _field("submit", values.time, sacct="Submit", scontrol="SubmitTime", squeue="SUBMIT_TIME SUBMITTIME", jobcomp="@submit", slurmdbd="time.submission", slurmctld="submit_time"),
    _field("eligible", values.time, sacct="Eligible", scontrol="EligibleTime", squeue="ELIGIBLE_TIME", jobcomp="@eligible", slurmdbd="time.eligible", slurmctld="eligible_time"),
    _field("start", values.time, sacct="Start", scontrol="StartTime", squeue="START_TIME", jobcomp="@start", slurmdbd="time.start", slurmctld="time.start start_time"),
    _field("zoned", values.zoned, sacct="Start", scontrol="StartTime", squeue="START_TIME", jobcomp="@start", slurmdbd="time.start", slurmctld="time.start start_time"),
    _field("end", values.time, sacct="End", scontrol="EndTime", squeue="END_TIME", jobcomp="@end", slurmdbd="time.end", slurmctld="end_time"),
    _field("elapsed_s", values.duration, sacct="ElapsedRaw Elapsed", scontrol="RunTime", squeue="TIME TIME_USED TIMEUSED", jobcomp="elapsed", slurmdbd="time.elapsed"),
    _field("time_limit_s", values.time_limit, sacct="TimelimitRaw Timelimit", scontrol="TimeLimit", squeue="TIME_LIMIT TIME_LIMI TIMELIMIT", jobcomp="time_limit", slurmdbd="time.limit", slurmctld="time_limit"),
    _field("n_nodes", values.count, sacct="NNodes AllocNodes", scontrol="NumNodes NodeCnt", squeue="NODES NUMNODES", jobcomp="total_nodes", slurmdbd="allocation_nodes", slurmctld="node_count"),
    _field("n_tasks", values.number, sacct="NTasks", scontrol="NumTasks Tasks", squeue="TASKS NTASKS NUMTASKS", jobcomp="ntasks", slurmdbd="tasks.count", slurmctld="tasks.count tasks number_tasks"),
    _field("n_cpus", values.number, sacct="AllocCPUS NCPUS", scontrol="NumCPUs ProcCnt", squeue="CPUS NUMCPUS", jobcomp="total_cpus", slurmdbd="required.CPUs", slurmctld="cpus"),
    _field("nodes", values.nodes, sacct="NodeList", scontrol="NodeList", squeue="NODELIST NODELIST(REASON)", jobcomp="nodes", slurmdbd="nodes", slurmctld="nodes"),
    _field("failed_node", values.known_text, sacct="FailedNode", scontrol="FailedNode", slurmdbd="failed_node", slurmctld="failed_node"),
    _field("restarts", values.number, sacct="Restarts", scontrol="Restarts", squeue="RESTART_CNT RESTARTCNT", slurmdbd="restart_cnt", slurmctld="restart_cnt"),
    _field("requeue", values.flag, scontrol="Requeue", slurmctld="requeue"),
    _field("n_gpus", values.gpus, sacct="AllocTRES", scontrol="AllocTRES TRES Tres", squeue="TRES_ALLOC TRES-ALLOC", jobcomp="tres_alloc", slurmdbd="tres.allocated", slurmctld="tres_alloc_str"),
    _field("n_gpus", values.gpus, sacct="ReqTRES", scontrol="ReqTRES", jobcomp="tres_req", slurmdbd="tres.requested", slurmctld="tres_req_str"),
    _field("gpus", values.allocated_gpus, scontrol="Nodes"),
    _field("req_mem_bytes", values.known_text, sacct="ReqMem"),
    _field("req_mem_bytes", partial(values.requested_memory, "n"), scontrol="MinMemoryNode", slurmdbd="required.memory_per_node"),
    _field("req_mem_bytes", partial(values.requested_memory, "c"), scontrol="MinMemoryCPU", slurmdbd="required.memory_per_cpu"),
    _field("max_rss_bytes", values.resident, sacct="MaxRSS", slurmdbd="tres.requested.max"),
    _field("dependency", values.known_text, scontrol="Dependency", squeue="DEPENDENCY", slurmctld="dependency"),
    _field("dependency", values.dependency_of, sacct="SubmitLine", slurmdbd="submit_line"),
    _field("submit_line", values.known_text, sacct="SubmitLine", scontrol="SubmitLine", slurmdbd="submit_line"),
    _field("command", values.known_text, scontrol="Command", squeue="COMMAND", slurmctld="command"),
    _field("work_dir", values.known_text, sacct="WorkDir", scontrol="WorkDir", squeue="WORK_DIR WORKDIR", jobcomp="work_dir", slurmdbd="working_directory", slurmctld="current_working_directory"),
    _field("std_out", values.known_text, sacct="StdOut", scontrol="StdOut", squeue="STDOUT", jobcomp="std_out", slurmdbd="stdout_expanded stdout", slurmctld="standard_output"),
    _field("std_err", values.known_text, sacct="StdErr", scontrol="StdErr", squeue="STDERR", jobcomp="std_err", slurmdbd="stderr_expanded stderr", slurmctld="standard_error"),
)  # fmt: skip
"""Fields of jobs and steps. Of rows with the same name, the first with a value is used."""
_OF_STEPS = RECORDS["step"].fields
STEP = (
    *(
        replace(field, names=tuple(name if name in _OF_STEPS else "-" for name in field.names))
        for field in JOB
        if field.names[0] in _OF_STEPS
    ),
    _field("nodes", values.nodes, squeue="NODES"),
)

NODE = (
    _field("reason reason_user reason_time", values.signed_reason, scontrol="Reason", sinfo="REASON", sacctmgr="Reason", slurmctld="reason reason.description"),
    _field("reason_time", values.time, sinfo="TIMESTAMP", sacctmgr="TimeStart Start", slurmctld="reason_changed_at reason.time"),
    _field("reason_end", values.time, sacctmgr="TimeEnd End"),
    _field("reason_user -", values.user, sinfo="USER USERLONG", sacctmgr="User", slurmctld="reason_set_by_user reason.user"),
    _field("boot_time", values.time, scontrol="BootTime", slurmctld="boot_time"),
)  # fmt: skip

_IDS: Mapping[str, str] = {
    "scontrol": "JobId ArrayJobId ArrayTaskId ArrayTaskId HetJobId,PackJobId HetJobOffset,PackJobOffset",
    "jobcomp": "jobid array_job_id array_task_id - - -",
    "slurmdbd": "job_id array.job_id array.task_id array.task het.job_id het.job_offset",
    "slurmctld": "job_id array_job_id array_task_id array_task_string het_job_id het_job_offset",
}
"""Tool -> its names of job id, array id, array task, pending array tasks, heterogeneous job id and its offset."""

_ROWS = {
    (kind, tool): [
        (field.names, field.parse, tuple(name.lower() if tool in _TABLES else name for name in field.spellings[tool]))
        for field in fields
        if tool in field.spellings
    ]
    for kind, fields in {"job": JOB, "step": STEP, "node": NODE}.items()
    for tool in get_args(Tool)
}
"""(kind of record, tool) -> (names, parser, spellings); columns in lower case"""


def spellings_of(tool: Tool, *kinds: str) -> frozenset[str]:
    """All spellings of a tool; columns in lower case."""
    return frozenset(spelling for kind in kinds for *_, spellings in _ROWS[kind, tool] for spelling in spellings)


def read(kind: str, tool: Tool, get: Callable[[str], Any]) -> dict[str, SlurmValue]:
    """The known fields of a record. ``get`` returns the value of a spelling."""
    record: dict[str, SlurmValue] = {}
    for names, parse, spellings in _ROWS[kind, tool]:
        if names[0] in record:
            continue
        for spelling in spellings:
            value = get(spelling)
            if value is None or value == "":
                continue
            parsed = parse(value)
            pairs = zip(names, parsed, strict=True) if len(names) > 1 else ((names[0], parsed),)
            fields = [(name, part) for name, part in pairs if part is not None and part not in _EMPTY and name != "-"]
            if fields:
                record.update(fields)
                break
    return record


def job_ids(tool: Tool, get: Callable[[str], Any]) -> dict[str, SlurmValue]:
    """A job's ``raw_id``, ``array_id`` and ``id`` as users write it: ``60_3``, ``60_[4-9]`` for pending tasks, ``73+0``."""
    job, array, task, tasks, het, part = (
        next((value for name in names.split(",") if (value := get(name)) not in (None, "")), None)
        for names in _IDS[tool].split()
    )
    raw_id, array_id, het_id, part_number = (values.number(value) for value in (job, array, het, part))
    number = values.number(task.partition("%")[0] if isinstance(task, str) else task)
    ids: dict[str, SlurmValue] = {} if raw_id is None else {"id": str(raw_id), "raw_id": str(raw_id)}
    if array_id and (number is not None or values.known_text(tasks)):
        ids["id"] = f"{array_id}_{f'[{tasks}]' if number is None else number}"
        ids["array_id"] = str(array_id)
    elif het_id and part_number is not None:
        ids["id"] = f"{het_id}+{part_number}"
    return ids


def job_record(tool: Tool, get: Callable[[str], Any], **more: SlurmValue | None) -> dict[str, SlurmValue]:
    """A job's fields for a record: those of the tool, fields derived from them, and ``more``."""
    fields: dict[str, Any] = {**read("job", tool, get), **more}
    fields["n_nodes"] = fields.get("n_nodes") or len(fields.get("nodes", ())) or None
    fields["req_mem_bytes"] = values.size(fields.get("req_mem_bytes"), "M", fields["n_nodes"], fields.get("n_cpus"))
    fields["parents"] = values.parents_of(fields.get("dependency"))
    return without_forecasts(fields)


def step_record(
    tool: Tool, get: Callable[[str], Any], id_: str | None, **more: SlurmValue | None
) -> dict[str, SlurmValue]:
    """A step's fields for a record. ``id_``: ``60_3.batch``."""
    job, *_ = values.split_job_id(id_ or "") or (None,)
    return without_forecasts({**read("step", tool, get), "id": id_, "job": job, **more})


def node_record(
    tool: Tool, get: Callable[[str], Any], name: str, state: str | Iterable[str] | None, **more: SlurmValue | None
) -> dict[str, SlurmValue]:
    """A node's fields for a record."""
    base, flags = values.node_state_of(state)
    return _without_unknown({"name": name, "state": base, "flags": flags, **read("node", tool, get), **more})


def without_forecasts(fields: Mapping[str, SlurmValue | None]) -> dict[str, SlurmValue]:
    """A job's or step's fields without unknown ones and those that are not real yet: forecast start and end, and the exit
    code of a job that has not ended."""
    forecast: tuple[str, ...] = ()
    if fields.get("state") in WAITING_STATES:
        forecast = ("start", "end", "elapsed_s", "exit_code", "signal")
    elif fields.get("state") in ACTIVE_STATES:
        forecast = ("end", "exit_code", "signal", "derived_exit_code")
    elif not fields.get("nodes") and fields.get("start") == fields.get("end"):
        forecast = ("start",)  # it ended without having started; scontrol and 22.05 print the end twice
    return {name: value for name, value in _without_unknown(fields).items() if name not in forecast}


def _without_unknown(fields: Mapping[str, SlurmValue | None]) -> dict[str, SlurmValue]:
    return {name: value for name, value in fields.items() if value is not None and value not in _EMPTY}
