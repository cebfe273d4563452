"""All kinds of events: the planes that can show them, their meaning, and their fields with units.

Parsers may set only the fields listed here (enforced by a test), and families may query only these kinds. A field that
is not in the line is omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trackside.model import Event, Plane


@dataclass(frozen=True, slots=True)
class EventKind:
    """One kind of event. ``planes``: those that can show it; if none of them was read, a query returns Missing."""

    meaning: str
    fields: Mapping[str, str]
    planes: tuple[Plane, ...] = ("log",)


OUTCOMES = frozenset(
    (
        "unread_error", "exception", "python_fatal", "cuda_oom", "cuda_error", "launcher_failure", "process_exit",
        "signal_received", "user_interrupt", "requeue_requested", "dataloader_death", "oom_kill", "rendezvous_failure",
        "collective_timeout", "collective_state", "peer_lost", "heartbeat_lost", "collective_mismatch", "nccl_error",
        "storage_fault", "scheduler_notice", "training_end", "checkpoint_missing", "resume_requested",
    )
)  # fmt: skip
"""Kinds that say how a program failed or ended: those of earlier runs in a file are not about the last one."""
ERRORS = OUTCOMES - {"training_end", "checkpoint_missing", "resume_requested", "requeue_requested"}
"""Kinds that say that something failed or was stopped."""
MAX_PER_KIND = 2_000
"""Events of one kind kept from one file: the first half as they come, and the last half."""
MAX_MESSAGE_CHARS, MAX_MESSAGE_LINE_CHARS = 2_000, 500
"""Characters of an exception's message that are kept, and of each line if it has several: one may list thousands of
names."""
LABELED = "task number, if srun labels each line with it"

_LOG = {
    "first_time": "first timestamp",
    "last_time": "last timestamp",
    "zoned": "true if a timestamp gives its time zone",
    "lines": "lines",
    "bytes": "bytes",
    "last_line": "last line with text",
    "last_line_number": "its number",
    "lines_after_errors": "lines after the last one that says that something failed or was stopped; not set without one",
    "last_own_time": "last timestamp of a line of the job's own, in the last 64 KiB",
    "unread_times": "lines of the job's own after that one with a time of day in an unknown form",
    "unstamped_lines": "lines of the job's own after the last one with a time, in the last 64 KiB",
    "truncated": "true if it ends within a line",
}

EVENTS: Mapping[str, EventKind] = {
    # -- training, from the job's own output
    "progress": EventKind(
        "one logged step: an optimizer step with the values printed for it",
        {
            "step": "optimizer step, counted from the run's first",
            "step_in_epoch": "the step as printed, if the log counts from the start of each epoch",
            "epoch": "epochs, possibly fractional",
            "epoch_share": "share of the epoch that is done, if the line prints it besides the epoch",
            "loss": "training loss; nan and inf are kept",
            "grad_norm": "global gradient norm",
            "lr": "learning rate",
            "epoch_steps": "steps per epoch, if the step is counted from the start of the epoch",
            "total_steps": "steps planned, if in the line",
            "elapsed_s": "seconds since the training loop began, from a progress bar around it",
            "throughput": "as printed",
            "throughput_unit": "samples/s, tokens/s, it/s ...",
            "step_time_s": "seconds a step",
            "data_time_s": "seconds waiting for data per step, if printed",
            "epoch_step_time_s": "mean seconds a step since the epoch began, if printed",
            "epoch_data_time_s": "mean seconds waiting for data per step since the epoch began, if printed",
            "compute_time_s": "seconds of compute per step, if printed",
            "comm_time_s": "seconds of communication per step, if printed",
            "loss_scale": "fp16 loss scale",
            "skipped": "iterations skipped because of overflow, if printed",
            "nan_iterations": "iterations counted as NaN, if printed",
            "reward": "mean reward (GRPO, PPO) or reward margin (DPO)",
            "objective": "sft, dpo, grpo, ppo ... if recognizable by the keys",
            "split": "train (default) or eval",
            "at_exit": "True for a bar right below a traceback, if it is on a line of its own: processes draw theirs when they exit",
            "framework": "parser's id of the framework",
            "ordinal": "number of points before it in its series; set only if the series was thinned to limit memory",
            "run_part": "0 for the first run of the process; incremented when steps start over",
        },
    ),
    "other_progress": EventKind(
        "a logged step of a log that was set aside because another log has different losses at the same steps",
        {"step": "optimizer step", "loss": "training loss in that log"},
    ),
    "other_run": EventKind(
        "another run in the inputs: a job or a log that was set aside, or a log that looks like a run of its own",
        {"job": "its job, if known", "used": "whether its lines count in this verdict"},
    ),
    "parent_progress": EventKind(
        "a logged step of the run that this one continues; fields as progress",
        {"step": "optimizer step", "loss": "training loss", "epoch": "epochs", "lr": "learning rate"},
    ),
    "earlier_progress": EventKind(
        "a logged step of an earlier run in the same file; fields as progress",
        {"step": "optimizer step", "loss": "training loss", "epoch": "epochs", "lr": "learning rate"},
    ),
    "rank_progress": EventKind(
        "one rank's own timing of a step, if several ranks print theirs",
        {
            "step": "optimizer step",
            "step_time_s": "seconds a step",
            "data_time_s": "seconds waiting for data",
            "compute_time_s": "seconds of compute",
            "comm_time_s": "seconds of communication",
            "relative_time": "the rank's own time for a step in an unknown unit: usable only for ratios",
        },
    ),
    "training_plan": EventKind(
        "the training plan printed before training",
        {
            "total_steps": "optimizer steps planned",
            "epochs": "epochs planned",
            "examples": "training examples",
            "batch_size": "total batch size",
            "save_steps": "steps between checkpoints",
            "log_steps": "steps between progress lines",
            "framework": "parser's id",
        },
    ),
    "training_start": EventKind("the training loop starts", {"framework": "parser's id"}),
    "training_end": EventKind(
        "the job reports that training ended",
        {
            "status": "success or aborted",
            "reason": "why it was aborted, if in the line: not_finite",
            "bare": "true if the line says only that something is done, or sums it up",
            "sums_up": "true if it gives the time taken or a last result",
            "by_save": "true if it says only that a model was saved",
            "evaluation": "true if only an evaluation ended",
            "all_exited": "true if the line is the launcher's about the last of its processes, all of which succeeded",
            "steps": "steps done",
            "planned": "steps planned, if derived from a printed rate",
            "train_loss": "mean loss from the framework's summary",
            "seconds": "duration as printed",
            "framework": "parser's id",
        },
    ),
    "full_bar": EventKind(
        "a progress bar at its end: of the training if it counts as many steps as are planned",
        {"steps": "its count"},
    ),
    "counted_lines": EventKind(
        "the last loop of a log: alike lines that count up and show figures that change, in its last 64 KiB",
        {
            "count": "the last count",
            "total": "the total that the line names",
            "done": "true if the count reached its total, or other lines follow, and none speaks of trouble",
            "at_work": "true if an error or the end of the log comes soon below",
        },
    ),
    "work_bar": EventKind(
        "the progress bar right above a traceback, if it prepares no data: what the program had done, training or not",
        {"count": "its count", "total": "its length", "elapsed_s": "seconds since its loop began"},
    ),
    "checkpoint_saved": EventKind(
        "a checkpoint was written",
        {"step": "step", "path": "as printed", "seconds": "duration as printed"},
    ),
    "checkpoint_loaded": EventKind(
        "training state was restored (a resume, not the loading of base weights)",
        {"step": "step from which training continues", "path": "as printed"},
    ),
    "checkpoint_missing": EventKind(
        "no checkpoint was found; training starts from random or base weights",
        {
            "path": "as printed",
            "what": "what was missing",
            "requested": "whether the library prints it only if the program asked it to load one",
        },
    ),
    "checkpoint_skipped": EventKind("a save or load was skipped", {"path": "as printed", "why": "as printed"}),
    "resume_requested": EventKind(
        "an argument, printed option or message requests a resume", {"path": "as printed", "by": "argument or message"}
    ),
    "loss_scale_cut": EventKind(
        "gradients overflowed: dynamic loss scaling skipped a step and reduced its scale",
        {"before": "scale before", "after": "scale after"},
    ),
    "evaluation": EventKind(
        "one evaluation",
        {
            "step": "step",
            "epoch": "epoch",
            "batch": "batch of the evaluation, if the value is the mean up to it",
            "metric": "name as printed",
            "value": "value",
            "loss": "eval loss",
        },
    ),
    "evaluation_progress": EventKind(
        "how far an evaluation has come",
        {
            "batch": "batch, counted from 0",
            "batches": "batches of the evaluation",
            "left_s": "seconds left, as estimated",
        },
    ),
    "score": EventKind(
        "a score of the model at some point of training, in a line that prints no training loss",
        {"step": "step", "epoch": "epoch", "metric": "name as printed, with the split", "value": "value"},
    ),
    "program_start": EventKind(
        "what a launcher or a program prints when it starts",
        {
            "sign": "banner (of a launcher), prompt (of a shell, with a command), once (of the first process), supervisor (of a sweep), arguments, environment, accelerator, threads, tracker or first_lines"
        },
    ),
    "unread_error": EventKind(
        "a line that looks like an error and that no parser read",
        {
            "severe": "true if the line gives its level as error or fatal, states an error as the log's last words, or ends a traceback without its "
            "exception",
            "parting_lines": "how many lines below it end the log, which say no more than that the program exits",
            "in_traceback": "true for the last line of a traceback that the log cuts off before its exception",
            "frame": "of such a traceback, the innermost frame outside site-packages and the standard library: file:line in function",
        },
    ),
    # -- exceptions
    "exception": EventKind(
        "a printed exception: one event per traceback of Python, for its last exception; also panics of Rust and a program's own report that it failed",
        {
            "type": "class name as printed, e.g. torch.OutOfMemoryError",
            "message": "message, first 2,000 characters, continuation lines kept",
            "lines": "lines of the message, those that are not kept included; not set for one",
            "chain": "types of the exceptions before it in a chain, oldest first, ';' between",
            "root_type": "type of the oldest exception in the chain (same as type without a chain)",
            "root_message": "its message",
            "frame": "innermost frame: file:line in function",
            "user_frame": "innermost frame outside site-packages and the standard library",
            "user_code": "source line of user_frame, if printed",
            "frames": "all function frames 'file:line in f', ';' between, at most 40",
            "wrapper": "true for launcher and wrapper exceptions (ChildFailedError, CalledProcessError, SignalException)",
            "about": "application, oom, cuda, collective, rendezvous, checkpoint, storage, dataloader, host_memory, interrupt, signal, wrapper: the subject, by type, message and frames",
            "in_summary": "true if it was printed in a launcher's failure summary",
            "logged": "true if a logger printed it (a level precedes the Traceback line)",
            "pid": "process id, if printed",
            "task": LABELED,
        },
    ),
    "python_fatal": EventKind(
        "faulthandler's 'Fatal Python error'",
        {"what": "e.g. Segmentation fault", "frame": "innermost frame", "task": LABELED},
    ),
    "cuda_oom": EventKind(
        "GPU memory exhausted: PyTorch (old, new, misspelled), TensorFlow, JAX/XLA, cuBLAS/cuDNN alloc failure",
        {
            "requested_bytes": "size of the failed request",
            "task": LABELED,
            "total_bytes": "capacity of the GPU",
            "free_bytes": "free on the GPU",
            "allocated_bytes": "allocated by this process",
            "reserved_bytes": "reserved by the caching allocator (reserved but unallocated added where split)",
            "other_process_bytes": "used by other processes, if printed",
            "gpu": "device index",
            "backend": "torch, tensorflow, jax, cublas, ...",
            "phase": "load, forward, backward, optimizer, unknown (from the frames)",
        },
    ),
    "cuda_error": EventKind(
        "a CUDA runtime, driver or library error",
        {
            "code": "e.g. 719",
            "name": "e.g. illegal memory access",
            "library": "cuda, cublas, cudnn, nccl",
            "task": LABELED,
        },
    ),
    # -- processes and launchers
    "launcher_failure": EventKind(
        "one failed worker in a launcher's summary (torchrun, accelerate, DeepSpeed, mpirun)",
        {
            "launcher": "torchrun, deepspeed, accelerate, mpirun, spawn, torch.distributed.launch, composer, pals, aprun",
            "global_rank": "rank in the summary",
            "local_rank": "local rank",
            "exit_code": "positive exit code",
            "signal": "signal number",
            "signal_name": "e.g. SIGKILL",
            "host": "host as printed",
            "pid": "process id",
            "first": "true if the summary calls it the first observed failure",
            "error_file": "as printed",
        },
    ),
    "launcher_restart": EventKind(
        "the launcher restarts its workers", {"attempt": "1 for the first restart", "launcher": "id"}
    ),
    "process_exit": EventKind(
        "a task or process ended, as reported by srun, slurmstepd, a shell or a launcher",
        {
            "source": "srun, slurmstepd, bash, time, kubectl, pdsh, deepspeed, mpirun, ray, torchrun, kernel, lsf, flux",
            "task": "task number or list as printed",
            "exit_code": "exit code",
            "signal": "signal number",
            "signal_name": "e.g. SIGSEGV",
            "pid": "process id",
            "core": "true if a core was dumped",
            "comm": "process name, if the kernel prints it",
        },
        ("log", "kernel"),
    ),
    "signal_received": EventKind(
        "a process reports that it received a signal (SIGTERM handlers, SignalException, SIGUSR1 self-requeue)",
        {
            "signal": "number",
            "signal_name": "name",
            "pid": "process id",
            "by": "who printed it",
            "sender_pid": "process id of the sender",
            "sender_uid": "its user id",
            "unix_time": "when it came, as a number of seconds since 1970",
            "task": LABELED,
        },
    ),
    "user_interrupt": EventKind(
        "Ctrl-C: KeyboardInterrupt or SIGINT, or a program's words that a person stopped it",
        {"by": "who printed it", "by_hand": "true if the words name no interrupt, only that a person stopped it"},
    ),
    "requeue_requested": EventKind("the application requeues itself", {"by": "who printed it"}),
    "dataloader_death": EventKind(
        "a DataLoader worker died",
        {
            "pid": "pid or list",
            "signal": "number",
            "signal_name": "name",
            "reason": "killed, bus_error, shm, exited, segfault",
            "task": LABELED,
        },
    ),
    "oom_kill": EventKind(
        "a process was killed because host memory ran out",
        {
            "scope": "cgroup, host, slurm, ray, container, kubelet",
            "pid": "victim",
            "comm": "victim's name",
            "rss_bytes": "victim's resident size",
            "limit_bytes": "limit, if printed",
            "cgroup": "cgroup path",
            "step": "Slurm step id",
            "count": "events reported",
        },
        ("log", "kernel", "scheduler"),
    ),
    # -- distributed startup and collectives
    "distributed_init": EventKind("a rank enters process-group or rendezvous set-up", {"world_size": "ranks"}),
    "distributed_ready": EventKind(
        "a process group or communicator is up",
        {"world_size": "ranks", "backend": "nccl, gloo, mpi", "nnodes": "nodes"},
    ),
    "rendezvous_failure": EventKind(
        "startup between ranks failed",
        {
            "reason": "dns, refused, unreachable, timeout, port_in_use, duplicate_rank, duplicate_gpu, interface, bootstrap, closed; peer_refused, peer_unreachable: by another rank, not by the coordinator",
            "address": "host:port as printed",
            "retry": "true for a warning that is followed by a retry",
        },
    ),
    "collective_timeout": EventKind(
        "a rank waited too long in a collective (NCCL watchdog, gloo, monitored barrier)",
        {
            "op": "ALLREDUCE, BROADCAST, ...",
            "seq": "sequence number",
            "timeout_s": "configured timeout",
            "elapsed_s": "how long it waited",
            "last_enqueued": "last enqueued work",
            "last_completed": "last completed work",
            "group": "process group",
            "backend": "nccl, gloo",
            "missing_ranks": "ranks that did not arrive, if named in the text, ',' between",
        },
    ),
    "collective_state": EventKind(
        "a rank's position in its collectives as it reports it, with or without a timeout. Enqueued equal to "
        "completed means that it never entered the collective in which the others wait",
        {
            "last_enqueued": "last enqueued work",
            "last_completed": "last completed work",
            "seq": "work that timed out on this rank, if any",
            "group": "process group",
            "backend": "nccl",
        },
    ),
    "peer_lost": EventKind(
        "a rank saw another one go away (connection closed or reset, remote process exited)",
        {"address": "peer as printed", "backend": "gloo, nccl, tcpstore"},
    ),
    "stack": EventKind(
        "one thread's Python stack of a running process (by py-spy, from the agent or a dump)",
        {
            "pid": "process or thread id as printed",
            "tid": "thread id, if pid is the process",
            "thread": "thread's name",
            "top": "innermost function",
            "place": "innermost frame of the job's own code, as file:line in function",
            "collective": "the collective call in the stack, if any",
            "waits": "gpu, if it waits for GPU work or for a backward pass",
            "frames": "functions, innermost first, ';' between, at most 40",
            "native": "native functions inside the innermost Python frame, ';' between",
            "job": "job",
            "resumed_s": "the process continued so many seconds after its output had stopped",
        },
        ("trace",),
    ),
    "process_state": EventKind(
        "one process as listed by ps or the agent",
        {
            "pid": "process id",
            "state": "first letter of STAT: R running, S asleep, D uninterruptible, Z zombie, T stopped",
            "comm": "command",
            "waits_in": "kernel function in which it sleeps",
            "syscall": "number of the current system call",
            "cores": "CPU time per second, if measured",
            "job": "job",
            "resumed_s": "the process continued so many seconds after its output had stopped",
        },
        ("trace",),
    ),
    "heartbeat_lost": EventKind(
        "the watchdog's or the agent's own heartbeat stopped", {"what": "as printed", "seconds": "limit"}
    ),
    "collective_mismatch": EventKind("ranks entered different collectives or shapes", {"detail": "as printed"}),
    "nccl_error": EventKind(
        "NCCL returned an error",
        {"code": "ncclSystemError, ncclRemoteError, ...", "detail": "last error line", "peer": "as printed"},
    ),
    "nccl_warn": EventKind("an NCCL WARN line not covered by another kind", {"detail": "as printed"}),
    "nccl_transport": EventKind(
        "the transport NCCL chose",
        {
            "transport": "socket, ib, ofi, ucx; no_ib: it found no InfiniBand device",
            "device": "as printed",
            "nnodes": "nodes",
            "nranks": "ranks",
        },
    ),
    "nccl_init": EventKind(
        "NCCL communicator set-up",
        {"nranks": "ranks", "nnodes": "nodes", "complete": "true if finished", "busid": "GPU"},
    ),
    "env_flag": EventKind(
        "an environment variable that is in effect according to the log", {"name": "name", "value": "value"}
    ),
    # -- storage
    "storage_fault": EventKind(
        "a file system error",
        {
            "reason": "full, quota, read_only, stale, io_error, unreachable, frozen",
            "path": "as printed",
            "errno": "number",
        },
        ("log", "kernel"),
    ),
    # -- hardware, from the kernel or the job
    "xid": EventKind(
        "NVIDIA Xid",
        {"xid": "number", "pci": "bus id", "pid": "process", "process": "name", "detail": "rest of the line"},
        ("kernel", "log"),
    ),
    "sxid": EventKind(
        "NVSwitch SXid",
        {"sxid": "number", "pci": "bus id", "fatal": "true for fatal", "detail": "text"},
        ("kernel", "log"),
    ),
    "gpu_lost": EventKind(
        "a GPU can no longer be reached", {"pci": "bus id", "detail": "as printed"}, ("kernel", "log")
    ),
    "machine_check": EventKind(
        "MCE, EDAC or PCIe AER report",
        {"what": "mce, edac, aer", "severity": "corrected, uncorrected, fatal", "detail": "text"},
        ("kernel",),
    ),
    "kernel_crash": EventKind(
        "the kernel of a node crashed or met its own error", {"what": "panic, oops", "detail": "text"}, ("kernel",)
    ),
    "link_down": EventKind(
        "a network or InfiniBand link changed", {"device": "as printed", "state": "down or up"}, ("kernel",)
    ),
    "hung_task": EventKind(
        "the kernel reports a blocked task", {"comm": "task", "pid": "pid", "seconds": "blocked for"}, ("kernel",)
    ),
    "kernel_log": EventKind(
        "one per kernel log of a node, whatever it contains",
        _LOG,
        ("kernel",),
    ),
    "boot": EventKind("the kernel starts", {"version": "kernel"}, ("kernel",)),
    # -- scheduler, from notices in the output or its own logs
    "scheduler_notice": EventKind(
        "the scheduler reports why work ends or moves",
        {
            "reason": "time_limit, preemption, requeue, node_failure, cancelled, unkillable, out_of_memory, launch_failure, dependency, deadline, drain, resource_limit; step_ended and revoked (teardown)",
            "job": "job id",
            "step": "step id",
            "by": "uid or user, if printed",
            "signal": "number",
        },
        ("log", "scheduler"),
    ),
    "job_report": EventKind(
        "a batch system's report of a job's end, as it stands in the job's output",
        {
            "source": "lsf, pbs, grid_engine, htcondor, flux, kubernetes, sagemaker, seff, slurm_mail",
            "job": "job id",
            "name": "job name",
            "user": "user who submitted it",
            "state": "base state, as in records of jobs",
            "cancelled_by": "user who canceled it",
            "exit_code": "exit code",
            "signal": "signal number; 0 when none",
            "reason": "reason as printed",
            "submit": "time",
            "start": "time",
            "end": "time",
            "elapsed_s": "seconds",
            "time_limit_s": "seconds",
            "hosts": "node names, ',' between",
            "max_rss_bytes": "largest resident size",
            "req_mem_bytes": "memory requested",
            "above": "true if the job's output is above the report, false if it is below",
            "lines": "lines of the report",
        },
    ),
    "node_state": EventKind(
        "the controller changes or reports a node's state",
        {"state": "down, drain, up, not_responding, rebooted", "reason": "as printed", "job": "job id"},
        ("scheduler", "log"),
    ),
    "job_state": EventKind(
        "the controller reports a step in a job's life cycle",
        {
            "job": "job id",
            "state": "submitted, waiting, started, suspended, resumed, updated, completed, failed, cancelled, requeued, timeout, preempted, node_fail, out_of_memory, deadline, boot_fail, revoked",
            "exit_code": "status",
            "signal": "number",
            "nodes": "node list",
            "reason": "why it is pending, or what was updated",
        },
        ("scheduler",),
    ),
    # -- sources that did not answer
    "source_unanswered": EventKind(
        "a server or command that was queried for the run's data did not answer",
        {"source": "the source that was queried", "reason": "why it returned nothing, or not everything"},
        ("log", "metric", "scheduler", "kernel", "collective", "trace"),
    ),
    # -- the log itself
    "log_activity": EventKind(
        "one per log file, created by the scan",
        {
            **_LOG,
            "rank_dir": "rank in the folder's name",
            "attempt": "attempt in the folder's name",
        },
        ("log",),
    ),
    "host": EventKind(
        "the log names its host, launcher or world",
        {
            "world_size": "ranks",
            "nnodes": "nodes",
            "local_world_size": "ranks a node",
            "job": "job id",
            "command": "command line as echoed",
        },
    ),
    "advice": EventKind("a library's hint", {"about": "what"}),
}
"""kind -> its definition"""


def last_line_of(report: Event) -> int:
    """The last line of a ``job_report`` or an exception, by its field ``lines``."""
    lines = report.get("lines")
    return report.at.line + (lines - 1 if isinstance(lines, int) else 0)
