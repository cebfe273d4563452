"""All columns and keys that Slurm's commands print, 20.11 to 25.11, used to recognize headers and the ends of values.

The columns used in records are defined in :mod:`trackside.catalog.slurm.fields` and included here automatically.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trackside.catalog.slurm.fields import spellings_of
from trackside.catalog.slurm.values import vocabulary

_TIME = r"(\d{4}-\d\d-\d\d[T ]\S+|\d{9,10}|Unknown|None|N/A|\(null\)|)\Z"
_DURATION = (
    r"(([\d-]+:)?\d+:\d\d(\.\d+)?|\d+(-\d\d)?|UNLIMITED|Partition_Limit|PartitionLimit|INVALID|NOT_SET|N/A|infinite|)\Z"
)
_SHAPES: Mapping[str, str] = {
    _TIME: "start end submit eligible timestamp timestart timeend start_time end_time submit_time",
    _DURATION: "elapsed timelimit suspended totalcpu systemcpu usercpu cputime planned reserved "
    "time time_limit time_limi time_left default_time",
    r"(\d+([_+]\S+)?(\.\w+)?)\Z": "jobid jobidraw stepid",
    r"([A-Z][A-Z_]+\+?( by \S*)?|)\Z": "state",
    r"(-?\d+:\d+|)\Z": "exitcode derivedexitcode",
    r"(\d+(\.\d+)?[KMGT]?|)\Z": "elapsedraw timelimitraw nnodes ntasks ncpus alloccpus allocnodes restarts reqcpus uid gid "
    "priority cputimeraw qosraw nodes cpus memory tmp_disk weight maxrss averss min_cpus core_spec nice",
    r"\d+:\d+:\d+\Z": "s:c:t",
    r"[A-Z]{1,3}\Z": "st",
    r"\S*\Z": "nodelist user partition account alloctres reqtres cluster group avail",
}
SHAPES = {name: re.compile(shape) for shape, names in _SHAPES.items() for name in names.split()}
"""column in lower case -> pattern of its values"""
LIKELY_FREE = vocabulary("jobname name job_name comment submitline command reason nodelist(reason)")
FREE = LIKELY_FREE | vocabulary(
    "admincomment systemcomment workdir work_dir constraints extra container stdout stderr stdin features wckey licenses "
    "account flags reservation"
)
"""Columns whose values may contain the separator or a line break."""
COMMA_FREE = vocabulary(
    "alloctres reqtres nodelist flags tresusageinave tresusageinmax tresusageintot nodelist(reason)"
)
"""Columns whose values may contain a comma."""

SACCT = spellings_of("sacct", "job") | vocabulary(
    """
    account admincomment allocgres associd avecpu avecpufreq avediskread avediskwrite avepages averss avevmsize
    blockid comment constraints consumedenergy consumedenergyraw container cputime cputimeraw dbindex
    derivedexitstr extra flags gid group jobid jobidraw layout licenses maxdiskread maxdiskreadnode
    maxdiskreadtask maxdiskwrite maxdiskwritenode maxdiskwritetask maxpages maxpagesnode maxpagestask maxrssnode
    maxrsstask maxvmsize maxvmsizenode maxvmsizetask mcslabel mincpu mincpunode mincputask planned plannedcpu
    plannedcpuraw priority qos qosraw qosreq reqcpufreq reqcpufreqgov reqcpufreqmax reqcpufreqmin reqcpus reqgres
    reqnodes reqreservation reservation reservationid reserved resvcpu resvcpuraw segmentsize sluid stdin
    suspended systemcomment systemcpu totalcpu tresusageinave tresusageinmax tresusageinmaxnode tresusageinmaxtask
    tresusageinmin tresusageinminnode tresusageinmintask tresusageintot tresusageoutave tresusageoutmax
    tresusageoutmaxnode tresusageoutmaxtask tresusageoutmin tresusageoutminnode tresusageoutmintask
    tresusageouttot usercpu wckey wckeyid
    """
)
"""sacct --helpformat, in lower case"""
SQUEUE = spellings_of("squeue", "job") | vocabulary(
    """
    account accrue_time admin_comment alloc_nodes alloc_sid allocnodes array_job array_job_id array_task
    array_task_id associd batch_flag batchhost boards_per_node burst_buffer burst_buffer_state clusterfeatures
    comment container contiguous core_spec cores cores_per_socket cpus_per_tres deadline delayboot derived_ec
    exc_nodes exec_host exit_code features gres group groupid groupname het_job_id het_job_id_set het_job_offset
    jobarrayid jobid lasts_sched_eval licenses maxcpus maxnodes mcslabel mem_per_tres min_cpus min_memory min_time
    min_tmp_disk mincpus network nice node ntasks_per_board over_subscribe oversubscribe pendingtime preempt_time
    prefer priority prioritylong profile qos reboot req_nodes req_switch reqnodes requeue reservation resizetime
    resv_port s:c:t schednodes sct selinux_context shared sibling sockets sockets_per_board sockets_per_node stdin
    stepid suspend_time system_comment thread threads threads_per_core time_left timeleft tres-alloc: tres_bind
    tres_freq tres_per_job tres_per_node tres_per_socket tres_per_step tres_per_task uid userid wait4switch wckey
    """
)
"""Header words of squeue, in lower case (``time_limi``: truncated in the long format)"""
SINFO = spellings_of("sinfo", "node") | vocabulary(
    """
    active_features alloc_cpus allocmem allocnodes avail avail_fe avail_features cluster comment cores cpu_load
    cpus cpus(a/i/o/t) default default_time defaulttime extra features features_act free_mem gres gres_used groups
    hostnames job_size max_cpus_per_node memory node_addr nodeaddr nodehost nodelist nodes nodes(a/i)
    nodes(a/i/o/t) oversubscribe partition partitionname port preempt_mode prio_job_factor prio_tier priority
    reservation root s:c:t share size socketcorethread sockets state statecompact statecomplete statelong threads
    time timelimit tmp_disk version weight
    """
)
"""Header words of sinfo, in lower case"""
SACCTMGR_EVENT = spellings_of("sacctmgr", "node") | vocabulary(
    """
    cluster clusternodes cpucount duration event eventraw node nodename state stateraw tres
    """
)
"""Columns of sacctmgr show event, in lower case"""
_NOT_OF_JOBS = vocabulary("Name NodeCnt ProcCnt State Tasks Tres")
"""Keys only of steps and jobcomp: in scontrol's jobs they occur inside values."""
JOB_KEYS = spellings_of("scontrol", "job") - _NOT_OF_JOBS | vocabulary(
    """
    Account AccrueTime AdminComment AllocNode:Sid ArrayJobId ArrayTaskId ArrayTaskThrottle BatchFlag BatchHost
    CPUs/Task Comment Contiguous CoreSpec CpusPerTres Deadline DelayBoot ExcNodeList Extra Features GroupId
    HetJobId HetJobIdSet HetJobOffset JOB_GRES JobId LastSchedEval Licenses MCS_label MailType MailUser MemPerTres
    MinCPUsNode MinTmpDiskNode Network Nice NtasksPerN:B:S:C OverSubscribe PackJobId PackJobOffset Power
    PreemptEligibleTime PreemptTime Priority QOS Reboot ReqB:S:C:T ReqNodeList Reservation SLUID SchedNodeList
    Scheduler SecsPreSuspend SelinuxContext Socks/Node StdIn SuspendTime SystemComment ThreadSpec TimeMin
    TresPerJob TresPerNode TresPerTask WCKey
    """
)
"""Keys of scontrol show job"""
JOB_LINES = vocabulary(
    "AdminComment Command Comment Extra HetJobIdSet JobName StdErr StdIn StdOut SubmitLine SystemComment WorkDir"
)
"""Keys whose values run to the end of their line"""
JOB_REPEATED = frozenset({"Nodes"})
"""Repeated in ``show job -d``: one line per group of nodes with the same CPUs, memory and GRES"""
JOBCOMP_KEYS = vocabulary(
    """
    Account ArrayJobId ArrayTaskId BatchFlag Cluster DerivedExitCode EligibleTime EndTime ExitCode FailedNode Gres
    GroupId HetJobId HetJobOffset JobId JobState Name NodeCnt NodeList PackJobId PackJobOffset Partition ProcCnt
    QOS ReservationName StartTime SubmitTime TimeLimit Tres UserId WcKey WorkDir
    """
)
"""Keys of jobcomp/filetxt"""
STEP_KEYS = vocabulary(
    """
    CPUFreqReq CPUs Container Dist Name Network NodeList Nodes Partition ResvPorts SrunHost:Pid StartTime State
    StepId SubmitLine TRES Tasks TimeLimit TresPerNode TresPerStep UserId
    """
)
"""Keys of scontrol show step"""
NODE_KEYS = spellings_of("scontrol", "node") | vocabulary(
    """
    ActiveFeatures AllocMem AllocTRES Arch AvailableFeatures AveWatts Boards CPUAlloc CPUEfctv CPUErr CPULoad
    CPUSpecList CPUTot CapWatts CfgTRES Comment ConsumedJoules CoreSpecCount CoresPerSocket CurrentWatts
    ExtSensorsJoules ExtSensorsTemp ExtSensorsWatts Extra FreeMem Gres GresDrain GresUsed InstanceId InstanceType
    LastBusyTime LowestJoules MCS_label MemSpecLimit NodeAddr NodeHostName NodeName OS Owner Partitions Port
    RealMemory ReservationName ResumeAfterTime SlurmdStartTime Sockets State ThreadsPerCore TmpDisk Topology
    Version Weight
    """
)
"""Keys of scontrol show node"""
NODE_LINES = frozenset({"Reason", "Comment", "Extra", "OS", "Topology"})
"""Keys whose values run to the end of their line"""
