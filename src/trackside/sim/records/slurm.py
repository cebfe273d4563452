"""Slurm's records: sacct, scontrol show job and node, sinfo -R. Times are the cluster's local ones, without a zone."""

from __future__ import annotations

import math
from pathlib import Path

from trackside.sim.act import Act
from trackside.sim.stage import Stage

COLUMNS = (
    "JobID|JobIDRaw|JobName|User|Account|Partition|State|ExitCode|DerivedExitCode|Submit|Eligible|Start|End|Elapsed|"
    "Timelimit|NNodes|NodeList|NTasks|AllocTRES|MaxRSS|ReqMem|Reason|Restarts|SubmitLine|WorkDir"
)


def length(seconds: float) -> str:
    """As Slurm writes lengths: [D-]HH:MM:SS."""
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def host_list(names: tuple[str, ...]) -> str:
    """gpu[001-004] from the names of a run of nodes."""
    if len(names) == 1:
        return names[0]
    digits = len(names[0]) - len(names[0].rstrip("0123456789"))
    prefix = names[0][: len(names[0]) - digits]
    parts: list[list[int]] = []
    for name in names:
        number = int(name[-digits:])
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    inside = ",".join(f"{a:0{digits}d}" if a == b else f"{a:0{digits}d}-{b:0{digits}d}" for a, b in parts)
    return f"{prefix}[{inside}]"


def write(stage: Stage, folder: Path) -> None:
    """All files of the scheduler's plane."""
    (folder / "sacct.txt").write_text(sacct(stage), encoding="utf-8")
    (folder / "scontrol-job.txt").write_text(_scontrol_job(stage), encoding="utf-8")
    (folder / "scontrol-node.txt").write_text(_scontrol_nodes(stage), encoding="utf-8")
    if stage.node_changes:
        (folder / "sinfo-R.txt").write_text(_sinfo(stage), encoding="utf-8")


def sacct(stage: Stage) -> str:
    """``sacct -P --duplicates`` of the job and of the one it continues."""
    rows = [COLUMNS]
    for act in stage.acts:
        rows += _rows(stage, act)
    return "\n".join(rows) + "\n"


def _rows(stage: Stage, act: Act) -> list[str]:
    job, ending = stage.scenario.job, act.ending
    state = f"CANCELLED {ending.by}" if ending.state == "CANCELLED" and ending.by else ending.state
    per_node = len(act.places) // len(act.nodes)
    gpus, nodes, cpus = len(act.places), len(act.nodes), stage.scenario.cluster.cores * len(act.nodes)
    tres = f"billing={cpus},cpu={cpus},gres/gpu={gpus},mem={nodes * 960}G,node={nodes}"
    code = f"{ending.code}:{ending.signal}"
    span = (*(_stamp(stage, t) for t in (act.submit, act.submit, act.start, act.end)), length(act.end - act.start))
    names = host_list(act.nodes)
    submit = f"sbatch --nodes={nodes} --gpus-per-node={per_node} --time={length(_limit(stage))}"
    submit += f" --dependency=afterany:{act.parent}" if act.parent else ""
    whole = [
        act.job, act.job, job.name, job.user, job.account, stage.scenario.cluster.partition, state, code, "0:0", *span,
        length(_limit(stage)), str(nodes), names, "", tres, "", f"{960}G", "None", str(act.restarts),
        f"{submit} train.sh", "/home/user/train",
    ]  # fmt: skip
    inner = ending.state if ending.state in ("COMPLETED", "FAILED", "OUT_OF_MEMORY") else "CANCELLED"
    resident = f"{int(per_node * job.rss_gib * 1024 * 1024)}K"
    rows = ["|".join(whole)]
    program = "torchrun" if job.launcher == "torchrun" else "python"
    steps = [("batch", 1, act.nodes[0], 1), ("extern", nodes, names, nodes)]
    main = "batch" if job.launcher == "python" else "0"
    if main == "0":
        steps.append(("0", nodes, names, nodes))
    for step, count, where, tasks in steps:
        good = step == "extern"
        part = [
            f"{act.job}.{step}", f"{act.job}.{step}", program if step == "0" else step, "", job.account, "",
            "COMPLETED" if good else inner, "0:0" if good else (code if inner != "CANCELLED" else "0:15"), "",
            *span, "", str(count), where, str(tasks), tres, resident if step == main else "", "", "", "", "", "",
        ]  # fmt: skip
        rows.append("|".join(part))
    return rows


def _limit(stage: Stage) -> float:
    return math.ceil(stage.time_limit / 60) * 60


def _stamp(stage: Stage, time: float) -> str:
    return stage.local(time).isoformat(timespec="seconds")


def _scontrol_job(stage: Stage) -> str:
    act, job, ending = stage.act, stage.scenario.job, stage.act.ending
    nodes, gpus = len(act.nodes), len(act.places)
    dependency = f"afterany:{act.parent}" if act.parent else "(null)"
    reasons = {"TIMEOUT": "TimeLimit", "FAILED": "NonZeroExitCode", "NODE_FAIL": "NodeDown"}
    return f"""JobId={act.job} JobName={job.name}
   UserId={job.user}(1000) GroupId={job.user}(1000) MCS_label=N/A
   Priority=4294 Nice=0 Account={job.account} QOS=normal
   JobState={ending.state} Reason={reasons.get(ending.state, "None")} Dependency={dependency}
   Requeue=1 Restarts={act.restarts} BatchFlag=1 Reboot=0 ExitCode={ending.code}:{ending.signal}
   DerivedExitCode=0:0
   RunTime={length(act.end - act.start)} TimeLimit={length(_limit(stage))} TimeMin=N/A
   SubmitTime={_stamp(stage, act.submit)} EligibleTime={_stamp(stage, act.submit)}
   AccrueTime={_stamp(stage, act.submit)}
   StartTime={_stamp(stage, act.start)} EndTime={_stamp(stage, act.end)} Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval={_stamp(stage, act.start)} Scheduler=Main
   Partition={stage.scenario.cluster.partition} AllocNode:Sid=login1:4021
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList={host_list(act.nodes)}
   BatchHost={act.nodes[0]}
   NumNodes={nodes} NumCPUs={stage.scenario.cluster.cores * nodes} NumTasks={nodes} CPUs/Task={stage.scenario.cluster.cores} ReqB:S:C:T=0:0:*:*
   TRES=cpu={stage.scenario.cluster.cores * nodes},mem={960 * nodes}G,node={nodes},gres/gpu={gpus}
   Socks/Node=* NtasksPerN:B:S:C=1:0:*:* CoreSpec=*
   JOB_GRES=gpu:{gpus}
{_held(stage, act)}
   MinCPUsNode={stage.scenario.cluster.cores} MinMemoryNode=960G MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null)
   Command=/home/user/train/train.sh
   WorkDir=/home/user/train
   StdErr=/home/user/train/slurm-{act.job}.out
   StdIn=/dev/null
   StdOut=/home/user/train/slurm-{act.job}.out
   TresPerNode=gres:gpu:{gpus // nodes}
"""


def _held(stage: Stage, act: Act) -> str:
    """What ``scontrol -d`` adds: the devices that the job has on its nodes."""
    first = min(place.gpu for place in act.places)
    last = max(place.gpu for place in act.places)
    index = f"{first}-{last}" if last > first else str(first)
    cores = stage.scenario.cluster.cores
    return (
        f"     Nodes={host_list(act.nodes)} CPU_IDs=0-{cores - 1} Mem=983040 GRES=gpu:{last - first + 1}(IDX:{index})"
    )


def _scontrol_nodes(stage: Stage) -> str:
    blocks = []
    for node in stage.act.nodes:
        change = max((one for one in stage.node_changes if one.node == node), key=lambda one: one.time, default=None)
        state = change.state if change else "IDLE"
        cores = stage.scenario.cluster.cores
        lines = [
            f"NodeName={node} Arch=x86_64 CoresPerSocket={cores // 2} ",
            f"   CPUAlloc=0 CPUEfctv={cores} CPUTot={cores} CPULoad=1.02",
            "   AvailableFeatures=(null)",
            "   ActiveFeatures=(null)",
            f"   Gres=gpu:{stage.scenario.cluster.gpus_per_node}",
            f"   NodeAddr={node} NodeHostName={node} Version=23.11.7",
            "   OS=Linux 5.15.0-105-generic #115-Ubuntu SMP Mon Apr 15 09:52:04 UTC 2024 ",
            f"   RealMemory={int(stage.scenario.cluster.memory_gib * 1000)} AllocMem=0 FreeMem=912000 Sockets=2 Boards=1",
            f"   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
            f"   Partitions={stage.scenario.cluster.partition} ",
            f"   BootTime={_stamp(stage, stage.start - 905_123)} SlurmdStartTime={_stamp(stage, stage.start - 905_000)}",
            f"   LastBusyTime={_stamp(stage, stage.act.end)} ResumeAfterTime=None",
        ]
        if change is not None and change.reason:
            lines.append(f"   Reason={change.reason} [root@{_stamp(stage, change.time)}]")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _sinfo(stage: Stage) -> str:
    rows = ["REASON               USER      TIMESTAMP           NODELIST"]
    rows += [
        f"{change.reason[:20]:<20} {'root':<9} {_stamp(stage, change.time)} {change.node}"
        for change in stage.node_changes
        if change.reason
    ]
    return "\n".join(rows) + "\n"
