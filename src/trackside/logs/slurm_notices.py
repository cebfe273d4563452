"""What srun and slurmstepd write into a job's output, and slurmd into its own log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.catalog.signals import SLURM_SIGNALS, Exit, read_code, signal_number
from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.logs.stamp import find_time
from trackside.model import Event, EventRole

_REASONS = (
    ("TIME LIMIT", "time_limit"),
    ("PREEMPT", "preemption"),
    ("REQUEUE", "requeue"),
    ("NODE FAIL", "node_failure"),
    ("NOT ENDING WITH SIGNALS", "unkillable"),
    ("MEMORY", "out_of_memory"),
    ("DEADLINE", "deadline"),
    ("DEPENDENCY", "dependency"),
)
_DETECTED = re.compile(r"Detected (\d{1,6}) oom[-_]kill event(?:\(s\)|s)? in (?:StepId=|step )?([\w.+]{1,60})")
_EXCEEDED = re.compile(
    r"(?:(?P<new>StepId=)|Step |Job )(?P<step>[\w.+]{1,60}) exceeded memory limit \((?P<used>\d{1,"
    r"20}) > (?P<limit>\d{1,20})\)"
)
_STEP = re.compile(r"StepId=([\w.+]{1,60})|(?:job )?step ([\d._]{1,40})", re.IGNORECASE)
MAX_LINES_AHEAD = 40
"""Lines after a step's cancellation in which srun or the scheduler can give the reason."""

PARSER = Parser("slurm", "srun, slurmstepd and slurmd", "system", planes=("log", "scheduler"))


@PARSER.pattern(
    rb"( CANCELLED AT | STEPD TERMINATED ON |\(non-zero exit code or other failure mode\) \*\*\*)",
    r"\*\*\* (?P<what>JOB|STEP|STEPID=|JobId=|StepId=) ?(?P<id>[\w.+\[\]-]{1,60})(?: STEPD "
    r"TERMINATED)?(?: ON (?P<node>[^\s*]{1,120}))?"
    r"(?: CANCELLED)?(?: AT (?P<at>[\d:T.+-]{8,40}))?(?: DUE [Tt][Oo] (?P<why>[^*\n]{1,120}?))? ?\*\*\*",
    safety="The scheduler's own notice; a bare cancellation after srun ended a step is teardown.",
    matches=(
        "slurmstepd: error: *** JOB 19 ON n1 CANCELLED AT 2026-11-21T08:18:28 DUE TO TIME LIMIT ***",
        (
            "slurmstepd-n1: error: *** STEP 19.0 ON n1 CANCELLED AT 2026-11-21T08:18:28 DUE TO NODE "
            "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
        ),
        (
            " 45%|####  | 9/20 [00:09<00:11, 1.0it/s]slurmstepd: error: *** JOB 20 ON a1 CANCELLED AT "
            "2026-11-21T08:18:28 DUE TO PREEMPTION ***"
        ),
        (
            "slurmstepd-n4: error: *** JOB 26 STEPD TERMINATED ON n4 AT 2026-11-21T08:02:14 DUE TO JOB "
            "NOT ENDING WITH SIGNALS ***"
        ),
        "slurmstepd: error: *** JOB 27 ON g1 CANCELLED AT 2026-11-21T08:02:40 DUE TO JOB REQUEUE ***",
        "3: slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-21T07:54:27 ***",
        "slurmd[n1]: *** JOB 5 CANCELLED AT 2015-01-01T10:00:00 DUE TO TIME LIMIT ***",
    ),
    avoids=("the concert was CANCELLED AT noon", "ORDER 7 CANCELLED AT 10:00 ***"),
)
def _cancellation(line: Line, match: re.Match[str]) -> Event:
    cause = (match["why"] or "").upper()
    reason = next((reason for text, reason in _REASONS if text in cause), "cancelled")
    step = "." in match["id"] or match["what"].upper().startswith("STEP")
    role = EventRole.ROOT
    if reason == "cancelled" and (exits.ending_reason(line) or (step and _is_explained(line))):
        role = EventRole.TEARDOWN
    exits.note_ending(line, reason)
    return line.event(
        "scheduler_notice",
        role,
        node=match["node"],
        time=find_time(match["at"] or ""),
        reason=reason,
        job=match["id"].split(".")[0],
        step=match["id"] if step else None,
    )


def _is_explained(line: Line) -> bool:
    """Whether lines right after say that srun ended the step itself, or name the scheduler's reason."""
    for neighbor in line.following(MAX_LINES_AHEAD):
        if "Terminating StepId" in neighbor.text or "Terminating job step" in neighbor.text:
            return True
        if "CANCELLED AT" in neighbor.text and " DUE TO " in neighbor.text:
            return True
    return False


@PARSER.pattern(
    rb"error: [^ \n\r:]{1,120}: tasks? [0-9,\-]{1,200}: [A-Z]",
    rf"(?:srun: error: |error: )(?P<host>[^\s:]{{1,120}}): tasks? (?P<tasks>[\d,\-]{{1,2000}}): "
    rf"(?:Exited with exit code (?P<code>\d{{1,5}})|(?P<death>(?i:{exits.SIGNAL_TEXTS}|out of "
    rf"memory))(?P<core> \(core dumped\))?|(?P<other>Unable to|Exited))",
    safety="Role by signal: Terminated is teardown, a plain exit code confirms.",
    matches=(
        "srun: error: gpu017: task 0: Exited with exit code 1",
        "srun: error: n2: tasks 2-3: Terminated",
        "srun: error: n1: task 3: Killed",
        "srun: error: n1: tasks 0-3: Segmentation fault (core dumped)",
        "srun: error: g2: task 2: Out Of Memory",
        "srun: error: n1: tasks 0,2-5: Aborted (core dumped)",
    ),
    avoids=("error: worker: task 3: Retrying", "srun: error: n1: task list is empty"),
)
def _task_exit(line: Line, match: re.Match[str]) -> Iterator[Event]:
    if match["other"]:
        return
    host = match["host"]
    if match["death"] and match["death"].lower() == "out of memory":
        yield line.event("oom_kill", EventRole.ROOT, node=host, scope="slurm")
        end = Exit(signal=9)
    elif match["death"]:
        end = Exit(signal=signal_number(match["death"]))
    else:
        end = read_code(int(match["code"]))
    core = True if match["core"] else None
    yield exits.process_exit(line, end, "srun", node=host, task=match["tasks"], core=core)


@PARSER.pattern(
    rb"(oom[-_]kill event|xceeded (job|step) memory limit|exceeded memory limit \()",
    safety="Says that processes were killed, but not which; a limit reached 'at some point' only confirms.",
    matches=(
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=49148.batch. Some of the step tasks "
            "have been OOM Killed."
        ),
        (
            "slurmstepd: error: Detected 2 oom-kill event(s) in step 9.batch cgroup. Some of your "
            "processes may have been killed by the cgroup out-of-memory handler."
        ),
        "slurmstepd-h1: error: StepId=1.batch exceeded memory limit (515248128 > 62914560), being killed",
        "slurmstepd-h1: error: Exceeded job memory limit",
        "slurmstepd: error: Exceeded step memory limit at some point.",
    ),
    avoids=("Detected 0 oom_kill events in StepId=1.0", "the model exceeded memory limits"),
)
def _oom_kill(line: Line) -> Event | None:
    if match := _DETECTED.search(line.text):
        count, step = int(match[1]), match[2].rstrip(".")
        return line.event("oom_kill", EventRole.ROOT, scope="slurm", step=step, count=count) if count else None
    if match := _EXCEEDED.search(line.text):
        exits.note_ending(line, "out_of_memory")
        unit = 1 if match["new"] else 1024  # releases before StepId= print KiB
        return line.event(
            "oom_kill",
            EventRole.ROOT,
            scope="slurm",
            step=match["step"],
            rss_bytes=int(match["used"]) * unit,
            limit_bytes=int(match["limit"]) * unit,
        )
    if "memory limit" in line.text:
        # 'at some point' reports a limit that was reached, not a kill
        role = EventRole.CONFIRMATION if "at some point" in line.text else EventRole.ROOT
        return line.event("oom_kill", role, scope="slurm")
    return None


@PARSER.pattern(
    rb"srun: error: Node failure on ",
    r"srun: error: Node failure on ([^\s,]{1,120})",
    safety="srun names the node that the controller gave up.",
    matches=("srun: error: Node failure on n3",),
    avoids=("Node failure on the test bench",),
)
def _node_failure(line: Line, match: re.Match[str]) -> Event:
    exits.note_ending(line, "node_failure")
    return line.event("scheduler_notice", EventRole.ROOT, node=match[1], reason="node_failure")


@PARSER.pattern(
    rb"(Job step aborted: Waiting up to|Terminating StepId|Terminating job step|Force Terminated "
    rb"(StepId|job step)|Job allocation [0-9]{1,12} has been revoked)",
    safety="Teardown: srun itself causes what follows in this step.",
    matches=(
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "srun: launch/slurm: _step_signal: Terminating StepId=8.0",
        "srun: Terminating StepId=10.0",
        "srun: Force Terminated StepId=8.0",
        "srun: Force Terminated job step 8.0",
        "salloc: Job allocation 123 has been revoked.",
    ),
    avoids=("Terminating StepId=8.0 by hand",),
)
def _step_end(line: Line) -> Event | None:
    if not line.text.lstrip().startswith(("srun: ", "salloc: ", "slurmstepd")):
        return None
    match = _STEP.search(line.text)
    step = (match[1] or match[2]) if match else None
    reason = "revoked" if "has been revoked" in line.text else "step_ended"
    if reason == "step_ended":
        exits.note_ending(line, "step_ended")
    return line.event("scheduler_notice", EventRole.TEARDOWN, reason=reason, step=step)


@PARSER.pattern(
    rb"error: Container [0-9]{1,12} in cgroup plugin has [0-9]{1,9} processes, giving up",
    safety="What Slurm does after it has ended a job whose processes stay.",
    matches=("slurmstepd-n3: error: Container 31374 in cgroup plugin has 1 processes, giving up after 191 sec",),
    avoids=("error: Container 31374 has no processes",),
)
def _leftover_processes(line: Line) -> Event:
    return line.event("scheduler_notice", EventRole.TEARDOWN, reason="unkillable")


@PARSER.pattern(
    rb"(srun|salloc|sbatch|slurmstepd|slurmd)[^:\n\r ]{0,80}: error: (Unable to|Task launch|"
    rb"Application launch|Job submit|execve|pyxis|Invalid --|couldn't chdir to /tmp either|Could not open std|"
    rb"_fork_all|Container|Unspecified)",
    r"(?P<who>srun|salloc|sbatch|slurmstepd|slurmd)[^:\s]{0,80}: error: (?P<what>Unable to (?:create|confirm|allocate)"
    r"|Task launch for |Application launch failed|Job submit/allocate failed|execve\(\): |pyxis: |Invalid --"
    r"|couldn't chdir to /tmp either|Could not open std|_fork_all_tasks|Container (?!\d+ in cgroup)|Unable to resolve|Unspecified error)",
    safety="The step or container never ran; another pattern reads a task's exit. A step that cannot enter its folder "
    "goes on in /tmp.",
    matches=(
        "slurmstepd-n1: error: couldn't chdir to /tmp either. dying.",
        "srun: error: Unable to create step for job 123: Job/step already completing or completed",
        "slurmstepd-n1: error: execve(): bad interpreter(/no/such/shell): No such file or directory",
        "srun: error: pyxis: could not add mount entry: data:/data",
        "srun: error: Task launch for StepId=1.0 failed on node n2: Job credential expired",
        "srun: error: Invalid --container-mounts argument: x:/y",
    ),
    avoids=(
        "srun: error: Unable to find the exit",
        "slurmstepd: error: Unable to unlink domain socket",
        "slurmstepd: error: couldn't chdir to `/workspace': No such file or directory: going to /tmp instead",
        "error: Unable to create step",
    ),
)
def _launch_failure(line: Line, _: re.Match[str]) -> Event:
    match = _STEP.search(line.text)
    return line.event("scheduler_notice", EventRole.ROOT, reason="launch_failure", step=match[1] if match else None)


@PARSER.pattern(
    rb"srun: (sending Ctrl-C to|interrupt \(one more within|forcing job termination)",
    safety="The user pressed Ctrl-C; srun forwards it.",
    matches=(
        "srun: sending Ctrl-C to StepId=5.0",
        "srun: interrupt (one more within 1 sec to abort)",
        "srun: forcing job termination",
    ),
    avoids=("press srun: interrupt (one more within reach)",),
)
def _interrupt(line: Line) -> Event | None:
    if not line.text.lstrip().startswith("srun: "):
        return None
    exits.note_ending(line, "interrupt")
    return line.event("user_interrupt", EventRole.ROOT, by="srun")


@PARSER.pattern(
    rb"\] error: Could not open std(out|err|in) file ",
    safety="slurmd's own log; slurmstepd's line in the output is another pattern's.",
    matches=(
        "[2026-11-21T08:12:04.1] [77.batch] error: Could not open stdout file /scratch/no/77.out: No such file or directory",
    ),
    avoids=("error: Could not open stdout file /scratch/no/77.out: No such file or directory",),
)
def _unopened_output(line: Line) -> Event:
    return line.event("scheduler_notice", EventRole.ROOT, reason="launch_failure")


@PARSER.pattern(
    rb"get_exit_code task [0-9]{1,6} died by signal: ",
    r"died by signal: (\d{1,2})",
    safety="slurmd's own log: only Slurm's own numbers, such as 53 for an output file that could not be opened.",
    matches=("[2026-11-21T08:12:04.1] [77.batch] get_exit_code task 0 died by signal: 53",),
    avoids=("[77.batch] get_exit_code task 0 died by signal: 9",),
)
def _slurm_signal(line: Line, match: re.Match[str]) -> Event | None:
    number = int(match[1])
    if number in SLURM_SIGNALS:  # the job's own output and the records report the others
        return line.event("scheduler_notice", EventRole.ROOT, reason="launch_failure", signal=number)
    return None
