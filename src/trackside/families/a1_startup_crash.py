"""Startup crash: bad data, configuration, environment or asset ends the run before its first step.

Meaning
-------
The job fails before training begins, because of an error of its own: data that cannot be read (data), a wrong
option or an invalid combination of options (config), a missing or unsuitable package, library or architecture
(env), a model, tokenizer or file that cannot be had (asset), or a defect of the script (code).

What it looks like
------------------
A Python exception that is no launcher's wrapper, with no training point before it and none after it, and a
non-zero exit. Usually every rank raises the same one: that is one fault, not many. The GPUs ran no kernel, and none
held more than a CUDA context. Without Python: a command that is not found, a usage error, a container that cannot be
started, an output file that cannot be opened.

Not this when
-------------
Training points came before it (an exception in mid-run), or the GPUs had worked for long, whatever the log printed;
points came after it (it was handled). Out of GPU memory is its own family, and so are a failed rendezvous, a
checkpoint that cannot be loaded and storage that gives out. A process that died of a signal without a traceback is
a signal kill.

Impact
------
Seconds to minutes of the allocation; the same mistake hits every rank and every retry.

Do next
-------
Mend what the exception names and resubmit. Nothing points at the nodes.

What it cannot tell
-------------------
Whether the GPUs were touched at all, where no GPU metric was given.

References
----------
PyTorch elastic, error propagation; Slurm, exit codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trackside.evidence import Evidence, Value
from trackside.facts.gpu.signals import ACTIVITY, nodes_of
from trackside.facts.gpu.startup import LAUNCHED, UNTOUCHED, untouched, worked_s
from trackside.facts.gpus import of_ranks
from trackside.facts.hardware.memory import GPU_MEMORY
from trackside.facts.logs.ending import CUT_SHORT, ENDING, abnormal_end, completed, last_job
from trackside.facts.logs.exceptions import unhandled
from trackside.facts.logs.fault_class import classify
from trackside.facts.logs.order import points_before
from trackside.facts.ranks import failed_beside, named
from trackside.facts.training.learning import training_points
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Role, Run
from trackside.query import events


@dataclass(frozen=True)
class Limits:
    """What still counts as start-up where nothing but the exit code tells."""

    startup_s: float = 600.0
    """A job without a readable training point and without an exception fails 'within seconds' (the catalogue's
    A1); ten minutes leave room for a container image and a model to load."""
    worked_s: float = 180.0
    """Of GPU work: initialising weights and a first warm-up take less, what worked for longer was training."""


ABOUT = (None, "application", "cuda", "dataloader", "host_memory")
"""What the exceptions of this family speak of; the other topics are families of their own."""
KILLED_WORKER = (4, 6, 8, 9, 11)
"""Signals of a DataLoader worker that make it a signal kill; a bus error at start-up is too small a /dev/shm."""
LAUNCH_CODES = {126: "env", 127: "env", 2: "config"}
"""Exit codes with a fixed meaning: a shell's (126 not executable, 127 not found), argparse's and getopt's 2."""
NO_OUTPUT_FILE, PROLOG_FAILED = 53, 54
"""Slurm's ExitCode 0:53 and 0:54."""
COLLECT = (
    "the job's whole output, standard error included",
    "sacct -P -j <id> --format=JobID,State,ExitCode,Start,End,NodeList",
)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """The first exception of the job's own that no training point precedes or follows."""
    frame = evidence["exceptions"]
    points = training_points(evidence["progress"])
    went_on = [*points, *evidence["saves"].events, *evidence["evaluations"].events]
    ours = [row for row in frame.events if row.get("about") in ABOUT and not _killed_worker(row, evidence)]
    own = unhandled(ours, went_on)
    if own and (well := completed(evidence)) is not None and all(row.get("logged") for row in own):
        return absent(claim("went_on", type=frame.value(own[0], "type"), line=well))
    if own:
        before = points_before(points, own[0])
        if before:
            row = before[-1]
            return absent(claim("steps_before", type=frame.value(own[0], "type"), point=_point(evidence, row)))
        worked = worked_s(evidence, run)
        if worked is not None and worked.number >= limits.worked_s:
            return absent(claim("worked", type=frame.value(own[0], "type"), seconds=worked))
        return _raised(evidence, run, own)
    if points:
        return absent(claim("trained", point=_point(evidence, points[0])))
    bare = _without_traceback(evidence, run, limits)
    if bare is not None:
        return bare
    if not evidence.has("exceptions"):
        return unknown(["no job log was given"], COLLECT)
    return absent(claim("none", count=frame.reduce("count")))


def _killed_worker(row: Event, evidence: Evidence) -> bool:
    if row.get("about") != "dataloader":
        return False
    deaths = [death for death in evidence["workers"].events if death.get("signal") in KILLED_WORKER]
    return any(death.at.path == row.at.path for death in deaths)


def _raised(evidence: Evidence, run: Run, own: Sequence[Event]) -> Finding:
    frame, cause = evidence["exceptions"], own[0]
    name, same = str(cause.get("type")), [row for row in own if row.get("type") == cause.get("type")]
    type_, message = frame.value(cause, "type"), frame.value(cause, "message")
    ranks = named(frame, same) or failed_beside(same, evidence["launchers"])
    shows = [claim("raised", type=type_, message=message)]
    if ranks is not None:
        shows = [claim("raised_on", type=type_, message=message, ranks=ranks)]
    if cause.get("root_type") not in (None, cause.get("type")):
        values = {"type": frame.value(cause, "root_type"), "message": frame.value(cause, "root_message")}
        shows.append(claim("rooted", **values))
    if cause.get("user_frame") is not None:
        shows.append(claim("where", frame=frame.value(cause, "user_frame")))
    if evidence.has("progress"):
        shows.append(claim("no_point", count=evidence["progress"].reduce("count")))
    idle = untouched(evidence, run)
    shows += idle
    bad = abnormal_end(evidence)
    if bad is not None:
        shows.append(claim("ended", line=bad))
    kind = classify(cause).fault
    told = ranks.value if ranks is not None and isinstance(ranks.value, tuple) else ()
    numbers = tuple(int(str(rank)) for rank in told)
    return found(
        Certainty.SUPPORTED if bad is None or cause.get("about") == "cuda" else Certainty.ESTABLISHED,
        "job",
        shows,
        implies=[_who(run, numbers), claim(f"class_{kind}")],
        cannot_decide=[] if idle or worked_s(evidence, run) is not None else [claim("gpu_memory")],
        actions=[action(f"mend_{kind}")],
        since=cause.time,
        at=cause.at,
        ranks=numbers,
        nodes=tuple(sorted({row.node for row in same if row.node})),
        exception=(name, str(cause.get("message") or "")),
        fault_class=kind,
    )


def _who(run: Run, ranks: Sequence[int]) -> Claim:
    """Whose mistake it is, as far as words tell: every rank's, or that of one node's; others may have been slower."""
    world = run.n_ranks or (len(run.gpus) if run.gpus_by not in (None, "all") else 0)
    if 1 < world <= len(ranks):
        return claim("at_startup")
    gpus = set(of_ranks(run, ranks))
    homes = nodes_of(gpus)
    there = {gpu for gpu in run.gpus if nodes_of((gpu,)) == homes}
    return claim("at_startup_there" if len(homes) == 1 < len(run.nodes) and gpus == there else "at_startup_some")


def _without_traceback(evidence: Evidence, run: Run, limits: Limits) -> Finding | None:
    """A launch that never reached Python: a shell's, a container's or Slurm's word, or a quick non-zero exit."""
    if evidence["faults"] or any(row.role is Role.ROOT for row in evidence["exceptions"].events):
        return None
    job = last_job(evidence["jobs"])
    ended = job is not None and job.get("state") in CUT_SHORT
    exits, notices = evidence["exits"], evidence["notices"]
    for row in exits.events:
        code = row.get("exit_code")
        if code in LAUNCH_CODES and row.get("signal") is None and not ended:
            kind = LAUNCH_CODES[int(str(code))]
            return _launch(
                row, exits.value(row, "text"), kind, "usage" if kind == "config" else "command", evidence, run
            )
    for row in notices.events:
        if row.get("reason") == "launch_failure":
            return _launch(row, notices.value(row, "text"), "env", "launch", evidence, run)
    if job is None or job.get("state") != "FAILED":
        return None
    jobs, code, number = evidence["jobs"], job.get("exit_code"), job.get("signal")
    if number in (NO_OUTPUT_FILE, PROLOG_FAILED):
        key = "output" if number == NO_OUTPUT_FILE else "prolog"
        kind = "config" if number == NO_OUTPUT_FILE else "env"
        return _launch(None, jobs.value(job, "signal"), kind, key, evidence, run, Certainty.SUPPORTED)
    start, end, seconds = job.get("start"), job.get("end"), job.get("elapsed_s")
    if seconds is None and isinstance(start, (int, float)) and isinstance(end, (int, float)):
        seconds = end - start
    quick = isinstance(seconds, (int, float)) and seconds <= limits.startup_s
    told = evidence.has("exceptions") or bool(untouched(evidence, run))
    died = any(row.get("signal") is not None for row in exits.events)
    if code and not number and quick and told and not evidence["launchers"] and not died:
        kind = LAUNCH_CODES.get(int(str(code)), "code")
        return _launch(None, jobs.value(job, "exit_code"), kind, "quick", evidence, run, Certainty.POSSIBLE)
    return None


def _launch(
    row: Event | None,
    line: Value,
    kind: str,
    key: str,
    evidence: Evidence,
    run: Run,
    certainty: Certainty | None = None,
) -> Finding:
    shows: list[Claim] = [claim(key, line=line), *untouched(evidence, run)]
    bad = abnormal_end(evidence)
    if bad is not None:
        shows.append(claim("ended", line=bad))
    why = {"output": "no_output", "prolog": "site", "quick": "code_only"}.get(key, f"class_{kind}")
    ran = key == "quick"  # the training program may have begun
    return found(
        certainty or (Certainty.ESTABLISHED if bad is not None else Certainty.SUPPORTED),
        "infrastructure" if key == "prolog" else "job",
        shows,
        implies=[claim(why)] if ran else [claim("before_python"), claim(why)],
        actions=[action(f"mend_{key if key in ('output', 'prolog', 'quick') else kind}")],
        since=None if row is None else row.time,
        at=None if row is None else row.at,
        fault_class=kind if evidence.has("exceptions") or not ran else None,
    )


def _point(evidence: Evidence, row: Event) -> Value:
    return evidence["progress"].value(row, "text")


FAMILY = Family(
    code="A1",
    id="startup-crash",
    title="Startup crash: bad data, config, environment or asset",
    pictured=("startup-config", "timeline"),
    asks={
        **ENDING,
        "exceptions": events("exception"),
        "progress": events("progress"),
        "saves": events("checkpoint_saved"),
        "evaluations": events("evaluation"),
        "workers": events("dataloader_death"),
        "faults": events("cuda_oom"),
        **GPU_MEMORY,
        **ACTIVITY,
        **LAUNCHED,
    },
    needs=(("exceptions", "jobs"),),
    limits=Limits(),
    explains=("C1", "C2", "F3"),
    rivals=("B1", "C1", "E2", "H2", "A2"),
    collect=COLLECT,
    says={
        **UNTOUCHED,
        "worked": "{type} came after the GPUs had worked for {seconds}",
        "raised": "the job raised {type}: {message}",
        "raised_on": "{ranks} raised {type}: {message}",
        "rooted": "it began with {type}: {message}",
        "where": "the job's own code stood at {frame}",
        "no_point": "the log holds {count:training points}",
        "ended": "the run ended badly: {line}",
        "usage": "the program refused its command line: {line}",
        "command": "the command could not be run: {line}",
        "launch": "the step could not be launched: {line}",
        "output": "Slurm could not open the job's output file (special signal {line} in its exit code)",
        "prolog": "the prolog failed on the node (special signal {line} in its exit code)",
        "quick": "the job ended within minutes with exit code {line}, without a traceback and without a training point",
        "at_startup_some": "the run died while it was being set up; every retry meets the same mistake",
        "at_startup_there": "the run died while it was being set up; all ranks of one node say so and none elsewhere, "
        "which points to what that node has or lacks",
        "at_startup": "the run died while it was being set up; the same mistake hits every rank and every retry",
        "before_python": "the launch failed before the training program ran",
        "class_data": "the data set cannot be read as the job expects it",
        "class_config": "an option, or a combination of options, is wrong",
        "class_env": "a package, library, driver or container setting is missing or does not fit",
        "class_asset": "a model, tokenizer or other file cannot be had",
        "class_code": "the script itself is at fault",
        "gpu_memory": "whether the GPUs were used before it: no metric of theirs tells",
        "mend_data": "repair the data set, check it by loading it once on one process, and resubmit",
        "mend_config": "correct the option that the message names and resubmit",
        "mend_env": "install or align what the message names in the job's environment and resubmit",
        "mend_asset": "check the path or repository name, the access token and the network of the compute nodes",
        "no_output": "without its output file Slurm does not start the job",
        "code_only": "it failed at its start; an exit code alone does not tell what at",
        "site": "the node failed the job before it began; the job is not at fault",
        "mend_output": "create the folder that --output names where the nodes can write it, and resubmit",
        "mend_quick": "run the job script by hand with its standard error in view, and mend what it says",
        "mend_prolog": "have the node and its prolog looked at, and resubmit on other nodes",
        "mend_code": "fix the script where the traceback ends and try it on one GPU first",
        "went_on": "{type} was logged, and the run ended well: {line}",
        "steps_before": "{type} came after training had begun: {point}",
        "trained": "training began: {point}",
        "none": "of {count:exceptions} in the log none is the job's own before its first step",
    },
    judge=judge,
)
