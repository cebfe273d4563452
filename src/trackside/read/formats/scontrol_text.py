"""``scontrol show job``, ``show step`` and ``show node`` as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trackside.model import Record
from trackside.read import slurm
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.slurm_blocks import blocks, job_id_of, job_of
from trackside.read.slurm_row import Row
from trackside.read.slurm_table import first_lines

_JOB_KEYS = slurm.vocabulary(
    """
    JobId ArrayJobId ArrayTaskId ArrayTaskThrottle HetJobId HetJobOffset HetJobIdSet PackJobId PackJobOffset JobName
    UserId GroupId MCS_label Priority Nice Account QOS WCKey JobState Reason FailedNode Dependency Requeue Restarts
    BatchFlag Reboot ExitCode DerivedExitCode RunTime TimeLimit TimeMin SubmitTime EligibleTime AccrueTime StartTime
    EndTime Deadline PreemptEligibleTime PreemptTime SuspendTime SecsPreSuspend LastSchedEval Scheduler Partition
    AllocNode:Sid ReqNodeList ExcNodeList NodeList SchedNodeList BatchHost NumNodes NumCPUs NumTasks CPUs/Task
    ReqB:S:C:T TRES ReqTRES AllocTRES Socks/Node NtasksPerN:B:S:C CoreSpec ThreadSpec Nodes MinCPUsNode
    MinMemoryNode MinMemoryCPU MinTmpDiskNode Features DelayBoot OverSubscribe Contiguous Licenses Network Command
    SubmitLine WorkDir AdminComment SystemComment Comment StdErr StdIn StdOut Power TresPerJob TresPerNode
    TresPerTask MailUser MailType SLUID Reservation Cluster
    """
) | {"JOB_GRES", "Extra", "CpusPerTres", "MemPerTres", "SelinuxContext"}
_JOB_LINES = slurm.vocabulary(
    """
    JobName Command SubmitLine WorkDir AdminComment SystemComment Comment StdErr StdIn StdOut Extra HetJobIdSet
    """
)
_JOB_REPEATED = frozenset({"Nodes"})
"""Of ``show job -d``: a line for the nodes on which the job was given the same CPUs, memory and GRES."""
_STEP_KEYS = slurm.vocabulary(
    """
    StepId UserId StartTime TimeLimit State Partition NodeList Nodes CPUs Tasks Name Network TRES ResvPorts
    CPUFreqReq Dist SrunHost:Pid TresPerStep TresPerNode Container SubmitLine
    """
)
_NODE_KEYS = slurm.vocabulary(
    """
    NodeName Arch CoresPerSocket CPUAlloc CPUEfctv CPUErr CPUTot CPULoad AvailableFeatures ActiveFeatures Gres
    GresDrain GresUsed NodeAddr NodeHostName Port Version OS RealMemory AllocMem FreeMem Sockets Boards
    CoreSpecCount CPUSpecList MemSpecLimit State ThreadsPerCore TmpDisk Weight Owner MCS_label Partitions BootTime
    SlurmdStartTime LastBusyTime ResumeAfterTime CfgTRES AllocTRES CapWatts CurrentWatts LowestJoules ConsumedJoules
    AveWatts ExtSensorsJoules ExtSensorsWatts ExtSensorsTemp Reason Comment Extra Topology InstanceId InstanceType
    ReservationName
    """
)
_NODE_LINES = frozenset({"Reason", "Comment", "Extra", "OS", "Topology"})
_DETAIL = re.compile(r"(\S+) CPU_IDs=\S* Mem=\S* GRES(?:_IDX)?=(\S+)")
_REASON = re.compile(r"(?s)(.*?)\s*\[([^@\[\]]+)@([^\]]+)\]\s*\Z")


def _first(source: Source) -> str:
    lines = first_lines(source.text, 1)
    return lines[0] if lines else ""


def _sniff_jobs(source: Source) -> Match | None:
    found = re.match(r"JobId=\d+ .{0,400}?(?:JobName|ArrayJobId|HetJobId|PackJobId)=", _first(source))
    return Match(0.96, "scontrol show job") if found else None


def _sniff_steps(source: Source) -> Match | None:
    return Match(0.95, "scontrol show step") if re.match(r"StepId=\d+\S* UserId=", _first(source)) else None


def _sniff_nodes(source: Source) -> Match | None:
    first = _first(source)
    if not re.match(r"NodeName=\S+ (?:Arch=|CoresPerSocket=|NodeAddr=)", first):
        return None
    return Match(0.95, "scontrol show node") if " State=" in source.text else None


def jobs_in(lines: Iterable[tuple[int, int, str]], path: str) -> Iterator[Record]:
    """The jobs of these lines (number, offset, text) of an input."""
    for block in blocks(lines, "JobId", _JOB_KEYS, _JOB_LINES, _JOB_REPEATED):
        text = f"{block.text.strip()} JobState={block.get('JobState')} ExitCode={block.get('ExitCode')}"
        yield Record("job", block.at(path), "scheduler", _job(block), text)


def _read_jobs(source: Source, sink: Sink) -> Result:
    count = 0
    for record in jobs_in(source.lines(), source.path):
        sink.record(record)
        count += 1
    return Result(count)


def _job(block: Row) -> dict[str, slurm.Field]:
    get = block.get
    requeue = get("Requeue")
    dependency = slurm.known(get("Dependency"))
    n_nodes = slurm.number_of((get("NumNodes") or "").partition("-")[0])
    n_cpus = slurm.number_of(get("NumCPUs"))
    gpus = slurm.gpus_of(get("AllocTRES", "TRES"))
    memory = get("MinMemoryNode"), get("MinMemoryCPU")
    return slurm.job_fields(
        job_of(block),
        id=job_id_of(block),
        name=get("JobName"),
        reason=slurm.known(get("Reason")),
        elapsed_s=slurm.duration_of(get("RunTime")),
        time_limit_s=slurm.duration_of(get("TimeLimit")),
        restarts=slurm.number_of(get("Restarts")),
        requeue=requeue == "1" if requeue else None,
        n_tasks=slurm.number_of(get("NumTasks")),
        n_cpus=n_cpus,
        n_gpus=gpus if gpus is not None else slurm.gpus_of(get("ReqTRES")),
        gpus=_gpus(get("Nodes")),
        dependency=dependency,
        parents=slurm.parents_of(dependency),
        submit_line=slurm.known(get("SubmitLine")),
        command=slurm.known(get("Command")),
        std_out=slurm.known(get("StdOut")),
        std_err=slurm.known(get("StdErr")),
        req_mem_bytes=slurm.bytes_of(f"{memory[0]}n", "M", n_nodes)
        or slurm.bytes_of(f"{memory[1]}c", "M", None, n_cpus),
        source="scontrol",
    )


def _gpus(detail: str | None) -> tuple[str, ...]:
    """The GPUs of ``Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:h100:4(IDX:0-3)`` lines."""
    told = [_DETAIL.match(line) for line in (detail or "").splitlines()]
    return tuple(gpu for each in told if each for gpu in slurm.held_gpus(slurm.nodes_of(each[1]), each[2]))


def _read_steps(source: Source, sink: Sink) -> Result:
    count = 0
    for block in blocks(source.lines(), "StepId", _STEP_KEYS):
        id_ = block.get("StepId") or ""
        parts = slurm.split_job_id(id_)
        state, _ = slurm.state_of(block.get("State"))
        fields = slurm.job_fields(
            {
                "id": id_,
                "job": parts[0] if parts else None,
                "name": block.get("Name"),
                "state": state,
                "start": slurm.time_of(block.get("StartTime")),
                "nodes": slurm.nodes_of(block.get("NodeList")),
                "n_tasks": slurm.number_of(block.get("Tasks")),
                "source": "scontrol",
            }
        )
        sink.record(Record("step", block.at(source.path), "scheduler", fields, block.text))
        count += 1
    return Result(count)


def nodes_in(lines: Iterable[tuple[int, int, str]], path: str) -> Iterator[Record]:
    """The nodes of these lines (number, offset, text) of an input."""
    for block in blocks(lines, "NodeName", _NODE_KEYS, _NODE_LINES):
        reason = slurm.known(block.get("Reason"))
        signed = _REASON.match(reason or "")
        fields = slurm.node_fields(
            block.get("NodeName") or "",
            block.get("State"),
            reason=signed[1] if signed else reason,
            reason_user=signed[2] if signed else None,
            reason_time=slurm.time_of(signed[3]) if signed else None,
            boot_time=slurm.time_of(block.get("BootTime")),
            source="scontrol",
        )
        text = f"NodeName={block.get('NodeName')} State={block.get('State')}" + (f" Reason={reason}" if reason else "")
        yield Record("node", block.at(path), "scheduler", fields, text)


def _read_nodes(source: Source, sink: Sink) -> Result:
    count = 0
    for record in nodes_in(source.lines(), source.path):
        sink.record(record)
        count += 1
    return Result(count)


FORMATS = (
    Format("scontrol-job", "scontrol show job", "scheduler", _sniff_jobs, _read_jobs),
    Format("scontrol-step", "scontrol show step", "scheduler", _sniff_steps, _read_steps),
    Format("scontrol-node", "scontrol show node", "scheduler", _sniff_nodes, _read_nodes),
)
