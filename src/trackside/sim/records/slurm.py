"""Slurm's records: sacct, scontrol show job and node, sinfo -R. Times are the cluster's local time, without a zone."""

from __future__ import annotations

import math
from pathlib import Path

from trackside.sim.attempt import JobAttempt
from trackside.sim.simulation import Simulation

COLUMNS = (
    "JobID|JobIDRaw|JobName|User|Account|Partition|State|ExitCode|DerivedExitCode|Submit|Eligible|Start|End|Elapsed|"
    "Timelimit|NNodes|NodeList|NTasks|AllocTRES|MaxRSS|ReqMem|Reason|Restarts|SubmitLine|WorkDir"
)


def duration(seconds: float) -> str:
    """A duration as Slurm writes it: [D-]HH:MM:SS."""
    total = round(seconds)
    days, remainder = divmod(total, 86400)
    text = f"{remainder // 3600:02d}:{remainder // 60 % 60:02d}:{remainder % 60:02d}"
    return f"{days}-{text}" if days else text


def host_list(names: tuple[str, ...]) -> str:
    """gpu[001-004] from the names of consecutive nodes."""
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
    ranges = ",".join(f"{a:0{digits}d}" if a == b else f"{a:0{digits}d}-{b:0{digits}d}" for a, b in parts)
    return f"{prefix}[{ranges}]"


def write(sim: Simulation, folder: Path) -> None:
    """Write all files of the scheduler plane."""
    (folder / "sacct.txt").write_text(sacct(sim), encoding="utf-8")
    (folder / "scontrol-job.txt").write_text(_scontrol_job(sim), encoding="utf-8")
    (folder / "scontrol-node.txt").write_text(_scontrol_nodes(sim), encoding="utf-8")
    if sim.node_changes:
        (folder / "sinfo-R.txt").write_text(_sinfo(sim), encoding="utf-8")


def sacct(sim: Simulation) -> str:
    """``sacct -P --duplicates`` of the job and of the one that it continues."""
    rows = [COLUMNS]
    for attempt in sim.attempts:
        rows += _rows(sim, attempt)
    return "\n".join(rows) + "\n"


def _rows(sim: Simulation, attempt: JobAttempt) -> list[str]:
    job, outcome = sim.scenario.job, attempt.outcome
    state = (
        f"CANCELLED {outcome.canceled_by}" if outcome.state == "CANCELLED" and outcome.canceled_by else outcome.state
    )
    per_node = len(attempt.placements) // len(attempt.nodes)
    gpus, nodes, cpus = len(attempt.placements), len(attempt.nodes), sim.scenario.cluster.cores * len(attempt.nodes)
    tres = f"billing={cpus},cpu={cpus},gres/gpu={gpus},mem={nodes * 960}G,node={nodes}"
    code = f"{outcome.code}:{outcome.signal}"
    span = (
        *(_stamp(sim, t) for t in (attempt.submit, attempt.submit, attempt.start, attempt.end)),
        _elapsed(attempt),
    )
    names = host_list(attempt.nodes)
    submit = f"sbatch --nodes={nodes} --gpus-per-node={per_node} --time={duration(_limit(sim))}"
    submit += f" --dependency=afterany:{attempt.parent}" if attempt.parent else ""
    allocation = [
        attempt.job, attempt.job, job.name, job.user, job.account, sim.scenario.cluster.partition, state, code, "0:0", *span,
        duration(_limit(sim)), str(nodes), names, "", tres, "", f"{960}G", "None", str(attempt.restarts),
        f"{submit} train.sh", "/home/user/train",
    ]  # fmt: skip
    step_state = outcome.state if outcome.state in ("COMPLETED", "FAILED", "OUT_OF_MEMORY") else "CANCELLED"
    resident = f"{int(per_node * job.rss_gib * 1024 * 1024)}K"
    rows = ["|".join(allocation)]
    program = "torchrun" if job.launcher == "torchrun" else "python"
    steps = [("batch", 1, attempt.nodes[0], 1), ("extern", nodes, names, nodes)]
    main = "batch" if job.launcher == "python" else "0"
    if main == "0":
        steps.append(("0", nodes, names, nodes))
    for step, count, node_list, tasks in steps:
        succeeded = step == "extern"
        step_row = [
            f"{attempt.job}.{step}", f"{attempt.job}.{step}", program if step == "0" else step, "", job.account, "",
            "COMPLETED" if succeeded else step_state, "0:0" if succeeded else (code if step_state != "CANCELLED" else "0:15"), "",
            *span, "", str(count), node_list, str(tasks), tres, resident if step == main else "", "", "", "", "", "",
        ]  # fmt: skip
        rows.append("|".join(step_row))
    return rows


def _limit(sim: Simulation) -> float:
    return math.ceil(sim.time_limit / 60) * 60


def _stamp(sim: Simulation, time: float) -> str:
    return sim.local_time(time).isoformat(timespec="seconds")


def _elapsed(attempt: JobAttempt) -> str:
    """The time from the printed start to the printed end."""
    return duration(math.floor(attempt.end) - math.floor(attempt.start))


def _scontrol_job(sim: Simulation) -> str:
    attempt, job, outcome = sim.attempt, sim.scenario.job, sim.attempt.outcome
    nodes, gpus = len(attempt.nodes), len(attempt.placements)
    dependency = f"afterany:{attempt.parent}" if attempt.parent else "(null)"
    reasons = {"TIMEOUT": "TimeLimit", "FAILED": "NonZeroExitCode", "NODE_FAIL": "NodeDown"}
    return f"""JobId={attempt.job} JobName={job.name}
   UserId={job.user}(1000) GroupId={job.user}(1000) MCS_label=N/A
   Priority=4294 Nice=0 Account={job.account} QOS=normal
   JobState={outcome.state} Reason={reasons.get(outcome.state, "None")} Dependency={dependency}
   Requeue=1 Restarts={attempt.restarts} BatchFlag=1 Reboot=0 ExitCode={outcome.code}:{outcome.signal}
   DerivedExitCode=0:0
   RunTime={_elapsed(attempt)} TimeLimit={duration(_limit(sim))} TimeMin=N/A
   SubmitTime={_stamp(sim, attempt.submit)} EligibleTime={_stamp(sim, attempt.submit)}
   AccrueTime={_stamp(sim, attempt.submit)}
   StartTime={_stamp(sim, attempt.start)} EndTime={_stamp(sim, attempt.end)} Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval={_stamp(sim, attempt.start)} Scheduler=Main
   Partition={sim.scenario.cluster.partition} AllocNode:Sid=login1:4021
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList={host_list(attempt.nodes)}
   BatchHost={attempt.nodes[0]}
   NumNodes={nodes} NumCPUs={sim.scenario.cluster.cores * nodes} NumTasks={nodes} CPUs/Task={sim.scenario.cluster.cores} ReqB:S:C:T=0:0:*:*
   TRES=cpu={sim.scenario.cluster.cores * nodes},mem={960 * nodes}G,node={nodes},gres/gpu={gpus}
   Socks/Node=* NtasksPerN:B:S:C=1:0:*:* CoreSpec=*
   JOB_GRES=gpu:{gpus}
{_allocated_gpus(sim, attempt)}
   MinCPUsNode={sim.scenario.cluster.cores} MinMemoryNode=960G MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null)
   Command=/home/user/train/train.sh
   WorkDir=/home/user/train
   StdErr=/home/user/train/slurm-{attempt.job}.out
   StdIn=/dev/null
   StdOut=/home/user/train/slurm-{attempt.job}.out
   TresPerNode=gres:gpu:{gpus // nodes}
"""


def _allocated_gpus(sim: Simulation, attempt: JobAttempt) -> str:
    """What ``scontrol -d`` adds: the devices that the job has on its nodes."""
    first = min(placement.gpu for placement in attempt.placements)
    last = max(placement.gpu for placement in attempt.placements)
    index = f"{first}-{last}" if last > first else str(first)
    cores = sim.scenario.cluster.cores
    return f"     Nodes={host_list(attempt.nodes)} CPU_IDs=0-{cores - 1} Mem=983040 GRES=gpu:{last - first + 1}(IDX:{index})"


def _scontrol_nodes(sim: Simulation) -> str:
    blocks = []
    for node in sim.attempt.nodes:
        change = max((row for row in sim.node_changes if row.node == node), key=lambda row: row.time, default=None)
        state = change.state if change else "IDLE"
        cores = sim.scenario.cluster.cores
        lines = [
            f"NodeName={node} Arch=x86_64 CoresPerSocket={cores // 2} ",
            f"   CPUAlloc=0 CPUEfctv={cores} CPUTot={cores} CPULoad=1.02",
            "   AvailableFeatures=(null)",
            "   ActiveFeatures=(null)",
            f"   Gres=gpu:{sim.scenario.cluster.gpus_per_node}",
            f"   NodeAddr={node} NodeHostName={node} Version=23.11.7",
            "   OS=Linux 5.15.0-105-generic #115-Ubuntu SMP Mon Apr 15 09:52:04 UTC 2024 ",
            f"   RealMemory={int(sim.scenario.cluster.memory_gib * 1000)} AllocMem=0 FreeMem=912000 Sockets=2 Boards=1",
            f"   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
            f"   Partitions={sim.scenario.cluster.partition} ",
            f"   BootTime={_stamp(sim, sim.start - 905_123)} SlurmdStartTime={_stamp(sim, sim.start - 905_000)}",
            f"   LastBusyTime={_stamp(sim, sim.attempt.end)} ResumeAfterTime=None",
        ]
        if change is not None and change.reason:
            lines.append(f"   Reason={change.reason} [root@{_stamp(sim, change.time)}]")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _sinfo(sim: Simulation) -> str:
    rows = ["REASON               USER      TIMESTAMP           NODELIST"]
    rows += [
        f"{change.reason[:20]:<20} {'root':<9} {_stamp(sim, change.time)} {change.node}"
        for change in sim.node_changes
        if change.reason
    ]
    return "\n".join(rows) + "\n"
