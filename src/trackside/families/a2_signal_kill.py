"""Process killed by a signal.

Meaning
-------
The kernel or a fault in native code ends a training process before it can print a Python stack. Most often it
is SIGKILL because host memory ran out (the machine's, or the job's cgroup). SIGSEGV, SIGABRT, SIGBUS, SIGFPE
and SIGILL come from native libraries, drivers or too little shared memory (/dev/shm).

What it looks like
------------------
A launcher's summary with a negative exit code (exitcode -9), srun's "Killed" or "Segmentation fault", a shell's
exit code of 128 plus the signal, faulthandler's "Fatal Python error", Slurm's OUT_OF_MEMORY, slurmstepd's
"oom_kill event", the kernel's "oom-kill", Ray's memory monitor. The only Python exceptions
in the log are launchers' wrappers, and those of peers whose connection closed. In metrics, a node's kernel counts
one more OOM kill, or its available memory falls to zero, or the job's requested memory is used up; at startup the
GPUs are still unused.

Not this family when
--------------------
- The signal is SIGTERM, or SIGKILL that the launcher sent to the remaining ranks.
- The scheduler ended the run: canceled, time limit, preemption, node failure.
- The rank has its own traceback, or its SIGABRT comes from NCCL's watchdog or from a CUDA error.
- Steps were logged after the death: a restart recovered from it.
- A GPU ran out of memory: that is another family.

Impact
------
The run ends, and the log does not say why.

Do next
-------
SIGKILL: see whether the kernel's OOM killer sent it (`journalctl -k | grep -i 'killed process'`, as root); then use
fewer DataLoader workers, a smaller prefetch, no copy of the data set per worker, or a larger `--mem`. Native crash:
rerun with `export PYTHONFAULTHANDLER=1; ulimit -c unlimited`, and check the native extension that the stack names.

What it cannot decide
---------------------
Who sent a SIGKILL, if neither the kernel log nor the scheduler nor a kernel counter names the OOM killer.
Counted kills name no process: on a shared node they may belong to another job.

References
----------
- [PyTorch: error propagation of torchrun](https://docs.pytorch.org/docs/stable/elastic/errors.html)
- [Slurm: job exit codes](https://slurm.schedmd.com/job_exit_code.html)
- [Linux: signal(7)](https://man7.org/linux/man-pages/man7/signal.7.html)
- [Linux: memory limits of a cgroup](https://docs.kernel.org/admin-guide/cgroup-v2.html)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trackside.catalog.natural import whole_number
from trackside.catalog.signals import signal_name
from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe
from trackside.facts.gpus import nodes_of_ranks
from trackside.facts.hardware.host_memory import HostMemory
from trackside.facts.logs.death_account import DeathAccount
from trackside.facts.logs.deaths import (
    ALSO_REPORTED,
    DIED,
    DIED_ON,
    KILL,
    WORKER_DIED,
    WORKER_DIED_ON,
    Death,
    Deaths,
)
from trackside.facts.logs.ending import ENDED_WELL, FATAL_SIGNALS, RECORDED, Ending, exit_signal
from trackside.facts.logs.oom_kills import OomKills, OomReport
from trackside.facts.logs.order import follows
from trackside.facts.logs.restarts import MAY_RECUR
from trackside.facts.training.learning import Trajectory
from trackside.facts.training.phase import Phase
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Event, EventRole, Run


@dataclass(frozen=True)
class Limits:
    """When a run counts as training."""

    training_s: float = 120.0
    """Seconds of GPU work without a readable logged step: loading and a first compilation take less."""


NATIVE_FAULTS = (4, 7, 8, 11)
"""Signals of a native-code fault."""
BUS_ERROR = 7
"""SIGBUS: no page could be given to an address of mapped memory."""

SIGNAL_UNKNOWN = Sentence("which signal ended the process: its parent only saw that it was gone")
TRAINING_WAS_OVER = Sentence("training was over before that: {line}")
NO_DEADLY_SIGNAL = Sentence("the log reports {signal}, which asks a process to end, and no crash or kill: {line}")
SIGNAL_EXPLAINED = Sentence("the signal follows from another failure; it is reported by this line: {line}")
SIGNAL_IN_SUMMARY = Sentence("the signal follows from another failure; the launcher's summary reports it: {line}")
NO_SIGNAL = Sentence("no process in the log ended by a signal")
KERNEL_NAMES_LIBRARY = Sentence("the kernel names the library: {line}")
CRASHED_IN = re.compile(r" in ([\w.+-]{1,100}\.so[\w.]{0,20})\[")
NO_KILL_IN_KERNEL_LOG = Sentence("the kernel log that was given has no OOM kill of the job")
HEADLINES = {
    "host_oom": Sentence("out of host memory: the kernel killed a process of the job"),
    "slurm_oom": Sentence("out of host memory: Slurm counted {count:OOM kills} among the job's processes"),
    "slurm_limit": Sentence("out of host memory: Slurm killed a step of the job that exceeded its memory limit"),
    "slurm_limit_of": Sentence(
        "out of host memory: Slurm killed a step of the job, which used {used}; its limit was {limit}"
    ),
    "ray_oom": Sentence("out of host memory: Ray's memory monitor killed a worker of the job"),
    "kubelet_oom": Sentence("out of host memory: Kubernetes evicted the job's pod, whose node ran low on memory"),
    "cgroup_oom": Sentence("out of host memory: the job exceeded its own memory limit and was killed"),
    "near_limit": Sentence("killed close to the job's memory limit, most likely by that limit"),
    "other_kill": Sentence("killed by SIGKILL, sender unknown"),
    "kill": Sentence("killed (SIGKILL) without a traceback; possibly out of host memory"),
    "kill_with_traceback": Sentence("a process was killed (SIGKILL); possibly out of host memory"),
    "worker": Sentence("a data-loader worker was killed (SIGKILL); possibly out of host memory"),
    "lost": Sentence("a process ended without a traceback; possibly out of host memory"),
    "fault": Sentence("a process crashed in native code ({signal})"),
    "fault_in": Sentence("a process crashed in {library} ({signal})"),
    "fault_of_task": Sentence("task {task} crashed in native code ({signal})"),
    "fault_of_task_in": Sentence("task {task} crashed in {library} ({signal})"),
    "abort": Sentence("a process was aborted by native code ({signal})"),
    "helper": Sentence("a helper process was killed because host memory ran out; the run continued without it"),
}
USED_AND_LIMIT = (("used", "rss"), ("limit", "limit"))
KNOWN_SENDERS = ("cgroup_oom", "host_oom", "slurm_limit", "ray_oom", "kubelet_oom")
"""Senders of a kill that leave no question open."""
DIED_AND_RESTARTED = Sentence("a worker died, and the launcher restarted the workers")
MEANINGS = {
    "host_oom": Sentence("the job needed more host memory than it had"),
    "slurm_oom": Sentence("the job exceeded its own memory limit (Slurm's --mem), or its node ran out of memory"),
    "slurm_limit": Sentence(
        "the job exceeded its own memory limit (Slurm's --mem); Slurm measures it and ends the step"
    ),
    "ray_oom": Sentence("the node's memory was nearly full: Ray then kills workers, before the kernel does"),
    "kubelet_oom": Sentence("the node's memory was nearly full: Kubernetes then evicts pods, before the kernel kills"),
    "cgroup_oom": Sentence("the job exceeded its own memory limit (Slurm's --mem or its container's)"),
    "near_limit": Sentence("the job had nearly reached the memory that it requested: most likely that limit ended it"),
    "other_kill": Sentence(
        "the process exceeded a limit of its own, memory ran short between two samples, or somebody killed it"
    ),
    "kill": Sentence(
        "such a SIGKILL usually comes from the kernel's out-of-memory killer: data-loader workers that "
        "copy the data set, pinned buffers, or a large model in host memory"
    ),
    "fault": Sentence("native code crashed: an extension, a library, a driver, or too little shared memory"),
    "abort": Sentence("native code aborted: a failed check, a corrupted heap, or an uncaught exception"),
    "helper": Sentence(
        "a helper process, or another job's process, was killed because host memory ran out; the run continued"
    ),
}
SENDER_UNKNOWN = Sentence(
    "who sent the SIGKILL: the kernel's OOM killer, a cgroup limit or a person; a kernel log would show it"
)
SENDER_UNKNOWN_MEMORY_LEFT = Sentence(
    "who sent the SIGKILL: no sample shows a shortage of host memory, so possibly a cgroup limit or another process"
)
LIMIT_OR_NODE = Sentence("whether the job's own memory limit or the node's memory ran out")
LIBRARY_UNKNOWN = Sentence("which library crashed: no core file or native stack was given")
CORE_NOT_READ = Sentence("which library crashed: a core was written, and none was given")
USE_LESS_MEMORY_IF_KILLED = Sentence(
    "if it did, use less host memory (fewer DataLoader workers, smaller prefetch, lazy loading) or request more, and "
    "rerun"
)
USE_LESS_MEMORY = Sentence(
    "use less host memory (fewer DataLoader workers, smaller prefetch, lazy loading) or request more (--mem), and rerun"
)
MEASURE_AND_USE_LESS = Sentence(
    "see how much memory the job used (under Slurm, MaxRSS of each of its Slurm steps), then use less (fewer "
    "DataLoader workers, smaller prefetch, lazy loading) or request more (--mem), and rerun"
)
USE_LESS_MEMORY_PER_NODE = Sentence(
    "use less host memory (fewer DataLoader workers, smaller prefetch, lazy loading) or fewer ranks per node, and rerun"
)
USE_LESS_MEMORY_WITH_RAY = Sentence(
    "use less host memory (fewer or smaller workers, fewer tasks at once on a node: num_cpus, memory), and rerun; if "
    "much memory was left, raise the share from which Ray kills workers, before the node's ray start"
)
SET_RAY_THRESHOLD = ShellCommand("export RAY_memory_usage_threshold=0.98  # default: 0.95")
REQUEST_MORE_OF_POD = Sentence(
    "use less host memory (fewer DataLoader workers, smaller prefetch, lazy loading), or set the pod's memory request "
    "to what it uses, so that its node has that much, and rerun"
)
FIND_SENDER = Sentence(
    "search the kernel log of the process's node for an OOM kill (as root, or ask an administrator to)"
)
CHECK_LIMIT = Sentence(
    "compare the memory that the job used with what it requested (under Slurm, MaxRSS and ReqMem of each of its Slurm "
    "steps)"
)
CHECK_OOM_KILL = Sentence(
    "see whether the kernel's OOM killer ended the process: search the kernel log of the process's node (as root, or "
    "ask an administrator to)"
)
READ_CORE = Sentence(
    "read the core that was written, on the node of the process; if coredumpctl lists none, core_pattern shows where "
    "cores go"
)
SHOW_CORES = (
    ShellCommand("ssh {node} 'coredumpctl list; cat /proc/sys/kernel/core_pattern'"),
    ShellCommand("coredumpctl list; cat /proc/sys/kernel/core_pattern"),
)
SHOW_KERNEL_LOG = (
    ShellCommand("ssh {node} 'journalctl -k | grep -iE \"oom|killed process\"'"),
    ShellCommand("journalctl -k | grep -iE 'oom|killed process'"),
)
MEASURE_SHARED_MEMORY = Sentence(
    "see how large the shared memory of the job is, with this in the job script: a full /dev/shm often ends in a bus "
    "error; then give the job more of it, or use fewer DataLoader workers"
)
SHOW_SHARED_MEMORY = ShellCommand("df -h /dev/shm")
TRACE_NATIVE_CODE = Sentence(
    "put this before the launch in the job script and run it once, for a stack trace of the crash; then check or "
    "rebuild the native extension that it names"
)
TRACE_CRASH = ShellCommand("export PYTHONFAULTHANDLER=1; ulimit -c unlimited")
KILLED_ON_NODE = Sentence("a job ran out of host memory; whose processes the kernel killed is not known")
WHOSE_PROCESSES = Sentence("whose processes they were: the inputs hold no job's output or record")
ADD_JOB = Sentence("run diagnose again with the output and the sacct record of the job that ran on the node then")
CRASHED_BELOW = Sentence("Python's stack ends where the native code was called: {frame}")
CHECK_EXTENSION = Sentence(
    "check or rebuild the native extension that {place} calls; if it is unknown, have the next run write a core, with "
    "this before the launch in the job script, and read its native stack with gdb (bt)"
)
CHECK_EXTENSION_BY_CORE = Sentence(
    "check or rebuild the native extension that {place} calls, as the core's stack shows"
)
WRITE_CORE = ShellCommand("ulimit -c unlimited")
SHOW_MEMORY = ShellCommand("sacct -j {jobs} --format=JobID,NodeList,ReqMem,MaxRSS,MaxRSSNode,State")


def judge(
    account: Maybe[DeathAccount], deaths: Deaths, kills: OomKills, memory: HostMemory, phase: Phase, ending: Ending,
    run: Run, limits: Limits,
) -> Finding | Missing:  # fmt: skip
    """A death that nothing else explains, by the strongest evidence; else one that the run survived."""
    if kills.report is not None and ending.completed is not None:
        return _survived_oom_kill(kills.report, ending.completed)
    if kills.report is not None and _is_no_job_known(account, kills.report, phase, deaths, ending, run):
        return _kills_of_no_known_job(kills.report)
    if not isinstance(account, Missing):
        return _death_finding(account, deaths, kills, phase, ending, run, limits)
    if deaths.recovered_death is not None:
        return _survived_death(run, *deaths.recovered_death)
    state = None if ending.state is None else ending.state.value
    if deaths.missing_log is not None and ending.completed is None and state in (None, "FAILED", "RUNNING"):
        return Missing("no job log was given")
    return _ruled_out(deaths, memory, ending)


def _death_finding(
    account: DeathAccount, deaths: Deaths, kills: OomKills, phase: Phase, ending: Ending, run: Run, limits: Limits
) -> Finding:
    """The finding about what ended the process, and in which phase of the run."""
    row, memory, number, sender = account.row, account.memory, account.number, _sender(account, kills)
    kill, slurm_kill = number in (KILL, None), kills.by_slurm
    doubt = (
        SENDER_UNKNOWN_MEMORY_LEFT
        if memory.ample
        else SIGNAL_UNKNOWN
        if number is None
        else LIMIT_OR_NODE
        if sender == "slurm_oom"
        else SENDER_UNKNOWN
        if kill
        else CORE_NOT_READ
        if row is not None and row.get("core")
        else LIBRARY_UNKNOWN
    )
    trained = phase.points(row) or (phase.use.trained(limits.training_s) is not None and not account.outlived)
    repeats = [
        claim for claim in account.claims if claim.sentence is ALSO_REPORTED
    ]  # the same death, as others report it
    shows = [claim for claim in account.claims if claim.sentence is not ALSO_REPORTED]
    if not account.outlived:
        shows += [*memory.claims, *phase.claims(row, limits.training_s)]
    shows += repeats
    if not account.outlived:
        shows += [] if ending.state is None else [RECORDED(state=ending.state)]
    crash = None if kill else _kernel_crash(ending, row)
    library = None if crash is None else ending.exits.value(crash, "text")
    shows[:0] = [] if library is None else [KERNEL_NAMES_LIBRARY(line=library)]
    called_from = None if kill else _python_frame(deaths)
    shows[1:1] = [] if called_from is None else [CRASHED_BELOW(frame=called_from)]
    no_kill = kills.none_in_kernel_log(row) if sender == "other_kill" else None
    shows += [] if no_kill is None else [NO_KILL_IN_KERNEL_LOG(count=no_kill)]
    ends = [end for end in ending.ends.events if end.get("status") != "aborted"]
    ends_before = [end for end in ends if row is not None and follows(row, end)]
    return present(
        account.certainty,
        "job",
        [*shows, *(TRAINING_WAS_OVER(line=ending.ends.value(end, "text")) for end in ends_before[-1:])],
        headline=_headline(
            account,
            kills,
            sender,
            library,
            has_traceback=any(row.role is not EventRole.TEARDOWN for row in deaths.exceptions.frame.events),
        ),
        implies=[MEANINGS["helper" if account.outlived else sender]()],
        cannot_decide=[] if sender in KNOWN_SENDERS or library is not None else [doubt()],
        actions=_remedies(account, sender, kill, slurm_kill, no_kill is not None, ending.by_slurm, called_from),
        since=_since(deaths, row, crash)
        if row is not None
        else min((change.since for change in memory.kills), default=None),
        at=None if row is None else row.at,
        variant="training" if trained else "startup",
        ranks=account.ranks,
        nodes=((row.node,) if row is not None and row.node else memory.nodes) or nodes_of_ranks(run, account.ranks),
        signal=None if number is None else (signal_name(number), number),
        exception=account.exception,
        latent=account.outlived or (_is_over(ends_before) and not ending.bad_state),
    )


def _is_over(ends: Sequence[Event]) -> bool:
    """Whether one of the job's closing lines reports success."""
    return any(end.get("status") == "success" for end in ends)


def _since(deaths: Deaths, row: Event, crash: Event | None) -> float | None:
    """When the process died: as its own report has it, else as the kernel's."""
    since = deaths.since(row)
    return crash.time if since is None and crash is not None else since


def _headline(
    account: DeathAccount, kills: OomKills, sender: str, library: Value | None, *, has_traceback: bool
) -> Claim:
    """What ended the process, in one clause. ``has_traceback``: whether the log has an exception of the job."""
    row = kills.by_slurm
    if sender == "slurm_limit" and not account.outlived and row is not None and row.get("limit_bytes") is not None:
        values = {name: kills.frame.value(row, f"{field}_bytes", "bytes") for name, field in USED_AND_LIMIT}
        return HEADLINES["slurm_limit_of"](**values)
    if sender == "slurm_oom" and not account.outlived:
        if row is not None and isinstance(row.get("count"), int):
            return HEADLINES["slurm_oom"](count=kills.frame.value(row, "count"))
        return HEADLINES["host_oom"]()
    if account.outlived or account.number is None or sender not in ("fault", "abort"):
        return HEADLINES["helper" if account.outlived else _kill_headline(account, sender, has_traceback)]()
    cited = account.claims[0].values.values()
    signal, task = (
        derived(signal_name(account.number), *cited),
        None if account.row is None else account.row.get("task"),
    )
    match = None if library is None else CRASHED_IN.search(str(library.value))
    values, suffix = {"signal": signal}, ""
    if sender == "fault" and match is not None and library is not None:
        values, suffix = {**values, "library": derived(match[1], library)}, "_in"
    if sender == "fault" and not account.ranks and isinstance(task, (int, str)):
        return HEADLINES[f"fault_of_task{suffix}"](**values, task=derived(task, *cited))
    return HEADLINES[sender + suffix](**values)


def _kill_headline(account: DeathAccount, sender: str, has_traceback: bool) -> str:
    """The headline of a kill: a key of :data:`HEADLINES`."""
    if sender != "kill":
        return sender
    if account.claims and account.claims[0].sentence in (WORKER_DIED, WORKER_DIED_ON):
        return "worker"
    return "lost" if account.number is None else "kill_with_traceback" if has_traceback else "kill"


def _remedies(
    account: DeathAccount, sender: str, kill: bool, slurm_kill: Event | None, no_kill: bool, by_slurm: bool,
    called_from: Value | None,
) -> list[Action]:  # fmt: skip
    """What to do about it; less memory is no remedy if memory was not short. ``no_kill``: the kernel log that was given
    shows none. ``called_from``: the line of Python that called the native code, if faulthandler printed it."""
    if not kill:
        core = account.row is not None and bool(account.row.get("core"))
        shared = [action(MEASURE_SHARED_MEMORY, SHOW_SHARED_MEMORY)] if account.number == BUS_ERROR else []
        read_core = [action(READ_CORE, *SHOW_CORES)] if core else []
        if called_from is None:
            return [*shared, *read_core, action(TRACE_NATIVE_CODE, TRACE_CRASH)]
        place = derived(_short_place(str(called_from.value)), called_from)
        if core:
            return [*shared, *read_core, action(CHECK_EXTENSION_BY_CORE, place=place)]
        return [*shared, action(CHECK_EXTENSION, WRITE_CORE, place=place)]
    if sender == "other_kill":
        search = [] if no_kill else [action(FIND_SENDER, *SHOW_KERNEL_LOG)]
        return [*search, action(CHECK_LIMIT, SHOW_MEMORY)]
    if sender == "host_oom":
        return [action(USE_LESS_MEMORY_PER_NODE)]
    if sender == "slurm_limit" and slurm_kill is not None and slurm_kill.get("limit_bytes") is not None:
        return [action(USE_LESS_MEMORY)]
    if sender == "ray_oom":
        return [action(USE_LESS_MEMORY_WITH_RAY, SET_RAY_THRESHOLD)]
    if sender == "kubelet_oom":
        return [action(REQUEST_MORE_OF_POD)]
    if sender in ("slurm_oom", "slurm_limit") and slurm_kill is not None and slurm_kill.get("step"):
        job = derived(str(slurm_kill.get("step")).split(".")[0], *account.claims[0].values.values())
        return [action(MEASURE_AND_USE_LESS, SHOW_MEMORY, job=job, jobs=job)]
    if sender == "kill":
        compare_memory = [action(CHECK_LIMIT, SHOW_MEMORY)] if by_slurm else []
        return [action(CHECK_OOM_KILL, *SHOW_KERNEL_LOG), *compare_memory, action(USE_LESS_MEMORY_IF_KILLED)]
    return [action(MEASURE_AND_USE_LESS, SHOW_MEMORY)]


def _sender(account: DeathAccount, kills: OomKills) -> str:
    """What ended the process: a key of :data:`MEANINGS`; the first that applies."""
    memory, number = account.memory, account.number
    by_kernel = number == KILL and bool(account.of_memory or memory.kills or memory.short or memory.scope is not None)
    killer = None if memory.kills else kills.killer
    ladder = (
        ("ray_oom", by_kernel and killer == "ray"),
        ("kubelet_oom", by_kernel and killer == "kubelet"),
        ("slurm_limit", by_kernel and killer == "slurm"),
        ("cgroup_oom", by_kernel and memory.own_limit),
        ("slurm_oom", by_kernel and _only_slurm(account, kills)),
        ("host_oom", by_kernel),
        ("near_limit", number == KILL and memory.limit is not None),
        ("other_kill", number == KILL and memory.ample),
        ("kill", number in (KILL, None)),
        ("fault", number in NATIVE_FAULTS),
        ("abort", True),
    )
    return next(sender for sender, holds in ladder if holds)


def _short_place(frame: str) -> str:
    """``pretrain.py:96`` of ``/home/u/pretrain.py:96 in main``; with its folder if the file is a package's."""
    folder, _, name = frame.partition(" in ")[0].rpartition("/")
    return f"{folder.rpartition('/')[2]}/{name}" if name.startswith("__init__.") else name


def _python_frame(deaths: Deaths) -> Value | None:
    """The innermost Python frame of a crash in native code, if faulthandler printed it."""
    fatals = deaths.evidence["fatals"]
    row = next((row for row in fatals.events if row.role is EventRole.ROOT and row.get("frame")), None)
    return None if row is None else fatals.value(row, "frame")


def _kernel_crash(ending: Ending, row: Event | None) -> Event | None:
    """The kernel's line about the crash, if it names the library in which the process crashed."""
    if row is None or row.node is None:
        return None
    for line in ending.exits.events:
        same = line.get("source") == "kernel" and line.node == row.node and line.get("signal") == row.get("signal")
        if same and CRASHED_IN.search(line.text):
            return line
    return None


def _only_slurm(account: DeathAccount, kills: OomKills) -> bool:
    """Whether only Slurm's count of kills in the job's cgroup shows it: the limit or the node may have run out."""
    return (
        kills.by_slurm is not None
        and not account.memory.kills
        and not account.memory.short
        and account.memory.scope is None
    )


def _is_no_job_known(
    account: Maybe[DeathAccount], report: OomReport, phase: Phase, deaths: Deaths, ending: Ending, run: Run
) -> bool:
    """Whether only a node's kernel log reports the kill, and nothing shows which of its processes were a job's."""
    row = None if isinstance(account, Missing) else account.row
    is_kernels = report.row.plane == "kernel" and (row is None or row.plane == "kernel")
    if not is_kernels or report.row.get("step") or run.id or ending.job is not None or deaths.exceptions.frame:
        return False
    return not (isinstance(phase.trajectory, Trajectory) and phase.trajectory.points) and phase.use.work_s is None


def _kills_of_no_known_job(report: OomReport) -> Finding:
    """OOM kills in the kernel log of a node, with no job in the inputs."""
    return present(
        Certainty.POSSIBLE,
        "unknown",
        [report.claim],
        headline=KILLED_ON_NODE(),
        cannot_decide=[WHOSE_PROCESSES()],
        actions=[action(ADD_JOB)],
        since=None if report.event is None else report.event.time,
        at=report.row.at,
        nodes=() if report.event is None or report.event.node is None else (report.event.node,),
    )


def _survived_oom_kill(report: OomReport, good_end: Value) -> Finding:
    """An OOM kill in a run that ended well."""
    return present(
        Certainty.SUPPORTED,
        "job",
        [report.claim, ENDED_WELL(state=good_end)],
        headline=HEADLINES["helper"](),
        implies=[MEANINGS["helper"]()],
        actions=[action(MEASURE_AND_USE_LESS, SHOW_MEMORY)],
        since=None if report.event is None else report.event.time,
        at=report.row.at,
        latent=True,
    )


def _survived_death(run: Run, death: Death, restart_claims: tuple[Claim, ...]) -> Finding:
    """A crash after which the launcher restarted the workers: not the cause of the end, but it may recur."""
    signal, rank, kill = derived(signal_name(death.number), death.line), death.rank, death.number == KILL
    if rank is None and len(run.nodes) == 1 and death.row.get("source") == "torchrun":
        rank = whole_number(str(death.row.get("task")))  # torchrun counts on its own node
    died = DIED(signal=signal, line=death.line)
    if rank is not None:
        died = DIED_ON(signal=signal, line=death.line, ranks=derived((rank,), death.line))
    return present(
        Certainty.SUPPORTED,
        "job",
        [died, *restart_claims],
        headline=DIED_AND_RESTARTED(),
        implies=[MAY_RECUR()],
        cannot_decide=[SENDER_UNKNOWN() if kill else LIBRARY_UNKNOWN()],
        actions=[action(USE_LESS_MEMORY) if kill else action(TRACE_NATIVE_CODE, TRACE_CRASH)],
        since=death.row.time,
        at=death.row.at,
        ranks=() if rank is None else (rank,),
        signal=(signal_name(death.number), death.number),
        latent=True,
    )


def _ruled_out(deaths: Deaths, memory: HostMemory, ending: Ending) -> Finding | Missing:
    """The evidence against a death by signal, the strongest first."""
    clear = memory.counter_evidence
    signals = [
        (frame, row, None if source == "fatals" else exit_signal(row))
        for source, frame in deaths.frames.items()
        for row in (frame.events if source != "workers" else ())
        if row.get("signal") is not None or source == "fatals"
    ]
    for frame, row, number in sorted(signals, key=lambda item: not (item[2] is None or item[2] in FATAL_SIGNALS)):
        line = frame.value(row, "text")
        if number is None or number in FATAL_SIGNALS:
            in_summary = row.text.startswith("rank : ")  # whose lines are joined
            return absent((SIGNAL_IN_SUMMARY if in_summary else SIGNAL_EXPLAINED)(line=line), *clear)
        return absent(NO_DEADLY_SIGNAL(line=line, signal=derived(signal_name(number), line)), *clear)
    if ending.completed is not None:
        return absent(ENDED_WELL(state=ending.completed), *clear)
    if deaths.missing_log is None:
        return absent(NO_SIGNAL(count=ending.launchers.reduce("count", "signal")), *clear)
    if ending.state is not None:
        return absent(RECORDED(state=ending.state), *clear)
    return Missing("no job log was given")


FAMILY = Family(
    code="A2",
    id="signal-kill",
    title="Process killed by a signal",
    example=("host-oom", "timeline"),
    judge=judge,
    limits=Limits(),
    explains=("C1", "C2", "F3", "H2"),
    rivals=("A1", "B1", "C2", "F1", "H3"),
    collect=(
        "the launcher's whole output with its failure summary",
        "sacct -j JOB_ID -P --format=JobID,State,ExitCode,DerivedExitCode,MaxRSS,ReqMem",
        "dmesg -T of the job's nodes (oom-kill lines)",
        "node_vmstat_oom_kill and node_memory_MemAvailable_bytes of node_exporter over the run",
    ),
)
