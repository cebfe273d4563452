"""Crash at startup.

Meaning
-------
The job fails before training begins, because of its own error: data that cannot be read (data), a wrong option
or an invalid combination of options (configuration), a missing or incompatible package, library or architecture
(environment), a model, tokenizer or file that is not available (file or model), or a bug in the script (code). A job
that works without training as far as the log shows (an evaluation, a conversion) counts here, too: its variant is
work, and the headline does not say "at startup".

What it looks like
------------------
A Python exception that is not a launcher's wrapper, with no logged step before or after it, and a non-zero
exit. Usually every rank raises the same one: that is one fault, not many. The GPUs ran no kernel, and none used
more memory than a CUDA context needs. Without Python: a command that is not found, a usage error, a container
that cannot be started, an output file that cannot be opened.

Not this family when
--------------------
- Steps were logged before the exception: then it is an exception during training (H2). Steps after it show that it
  was handled.
- The GPUs had worked for a long time, whatever the log printed.
- The exception is about GPU memory, a rendezvous, a checkpoint that cannot be loaded, or storage: those have families
  of their own.
- A signal killed a process without a traceback: that is a signal kill.

Impact
------
Seconds to minutes of the allocation; the same mistake hits every rank and every retry.

Do next
-------
Fix what the exception names and resubmit. Nothing points at the nodes.

What it cannot decide
---------------------
Whether the GPUs were used at all, if no GPU metric was given.

References
----------
- [PyTorch: error propagation of torchrun](https://docs.pytorch.org/docs/stable/elastic/errors.html)
- [Slurm: job exit codes](https://slurm.schedmd.com/job_exit_code.html)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trackside.evidence import Missing, Value, derived
from trackside.facts.gpus import gpus_of_ranks, nodes_of
from trackside.facts.logs.ending import CUT_SHORT, Ending
from trackside.facts.logs.error_remedies import ErrorPlace, error_remedy, folder_to_create
from trackside.facts.logs.exceptions import Exceptions, asserted, error_in_brief, is_raised, source_line
from trackside.facts.logs.fault_rules import classify
from trackside.facts.logs.fault_rules.rule import FaultClass
from trackside.facts.logs.startup_errors import StartupErrors
from trackside.facts.logs.unread_errors import UnreadErrors, unread_finding
from trackside.facts.training.last_loop import LastLoop
from trackside.facts.training.learning import place_of
from trackside.facts.training.phase import NO_STEP_BEFORE, Phase
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Event, Run
from trackside.remedies import CHECK_PLACE, CODE_OR, PROGRAMMING_ERRORS


@dataclass(frozen=True)
class Limits:
    """When a failure counts as startup if only the exit code is known."""

    startup_s: float = 600.0
    """A job without a readable logged step and without an exception fails within seconds; ten minutes leave time for a
    container image and a model to load."""
    worked_s: float = 180.0
    """Seconds of GPU work or of a loop: initializing weights and a first warm-up take less; longer work was no
    startup."""


LAUNCH_CODES: dict[int, FaultClass] = {126: "env", 127: "env", 2: "config"}
"""Exit codes with a fixed meaning: a shell's (126 not executable, 127 not found), argparse's and getopt's 2."""
OUTPUT_FILE_SIGNAL, PROLOG_SIGNAL = 53, 54
"""Slurm's ExitCode 0:53 and 0:54."""
OUTPUT_FILE = re.compile(r"Could not open std(?:out|err|in) file (?P<path>/[^:\n]{1,300}): (?P<reason>[^:\n]{1,80})")
PROLOG = re.compile(r"\bprolog\b.{0,20}fail", re.IGNORECASE)
"""Slurm's words for a failed prolog."""

CRASHED = Sentence("crashed at startup: {error}")
CRASHED_IN_WORK = Sentence("crashed: {error}")
CRASHED_IN_WORK_AT = Sentence("crashed in {place}: {error}")
"""Headlines of an error after other work than training, such as a long loop or an evaluation."""
WORKED = Sentence("the job had worked before it failed; whether it trained is not known")
RAISED_IN_WORK = Sentence("an error: {error}")
RAISED_IN_WORK_AT = Sentence("an error in {place}: {error}")
RAISED = Sentence("an error at startup: {error}")
RAISED_AT = Sentence("an error at startup in {place}: {error}")
"""Headline of an error that is not the answer: it did not end the run, or is only a part of its end."""
CRASHED_AT = Sentence("crashed at startup in {place}: {error}")
HEADLINES = {
    (False, False): (CRASHED, RAISED),
    (False, True): (CRASHED_AT, RAISED_AT),
    (True, False): (CRASHED_IN_WORK, RAISED_IN_WORK),
    (True, True): (CRASHED_IN_WORK_AT, RAISED_IN_WORK_AT),
}
"""(Whether the job had worked, whether the place is known) -> the headline of the answer, and of another finding."""
TITLE_AFTER_WORK = "Crash without a training step"
ARGUMENTS_REJECTED = Sentence("the program rejected its command-line arguments: {line}")
COMMAND_FAILED = Sentence("the command could not be run: {line}")
STEP_NOT_LAUNCHED = Sentence("the Slurm step could not be launched: {line}")
OUTPUT_NOT_OPENED = Sentence("Slurm could not open the job's output file (Slurm exit code {code})")
OUTPUT_FOLDER_MISSING = Sentence("the folder of --output or --error does not exist: {folder}")
OUTPUT_FILE_REFUSED = Sentence("Slurm could not open the job's output file {path}: {reason}")
OUTPUT_NOT_OPENED_BY = Sentence("Slurm could not open the job's output file: {line}")
PROLOG_FAILED_BY = Sentence("the node's prolog failed: {line}")
PROLOG_FAILED = Sentence("the prolog failed on the node (Slurm exit code {code})")
FAILED_WITHIN_MINUTES = Sentence(
    "the job failed within minutes with exit code {code}, before any training step and without a traceback"
)
FAILED_AT_STARTUP = Sentence("the run failed during startup")
NODE_DIFFERS = Sentence("something differs on that node: compare its packages and files with another node's")
FAILED_ON_EVERY_RANK = Sentence(
    "the run failed during startup on every rank: a rerun without a change will most likely fail in the same way"
)
ONLY_ON_NODE = Sentence("all ranks of node {node} raised it, and no rank of another node")
BEFORE_PYTHON = Sentence("the launch failed before the training program ran")
CLASS_MEANINGS = {
    "data": Sentence("the code that raised it, or a library, rejects its input: a file, a data set or computed values"),
    "config": Sentence("an option, or a combination of options, is wrong"),
    "env": Sentence("a package, library, driver or container setting is missing or does not fit"),
    "asset": Sentence("a model, tokenizer or other file is not available"),
    "code": Sentence("the job's own code raised it: a bug, or a setting or an input that the code rejects"),
}
FOLDER_MISSING = Sentence("the folder of a file that the program writes does not exist")
CLASS_REMEDIES = {
    "data": Sentence("check the input that the error is about, for example by loading it in one process, and resubmit"),
    "config": Sentence("correct the setting that the error is about, and resubmit"),
    "env": Sentence(
        "correct what the error is about in the job's environment (a package, library, module, permission or driver), "
        "and resubmit"
    ),
    "asset": Sentence(
        "make the file, folder, image or repository that the error is about available to the job, and resubmit"
    ),
    "code": Sentence("fix the code that the traceback leads to, and resubmit"),
}
FOLLOW_ERROR = Sentence("fix what the error message says, and resubmit; the log has no traceback of it")
NO_START_WITHOUT_OUTPUT = Sentence("Slurm does not start a job whose output file it cannot open")
CREATE_OUTPUT_FOLDER = Sentence("create the folder that --output names, writable from the nodes, and resubmit")
NODE_AT_FAULT = Sentence("the node's prolog failed before the job began; the job is not at fault")
CHECK_PROLOG = Sentence("check the prolog and slurmd's log on the node, and resubmit on other nodes")
RAISES_ITSELF = Sentence(
    "{place} raises this error itself: correct the setting, input or resource request that it rejects, and resubmit"
)
FOLLOW_MESSAGE = Sentence('do what the message says ("{advice}"), or fix {place} or what it calls, and resubmit')
ADVISES = re.compile(r"(?i:\bplease\b|\bmake sure\b|\bensure\b|\btry\b|\binstall\b|\binvestigate\b|\bconsider\b)")
"""A message that says what to do."""
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")
WARNS = re.compile(r"[Ww]arning|deprecated")
"""What may be printed right below a traceback, and is none of its message."""
FIX_PLACE = Sentence("fix {place} or what it calls, and resubmit")
MEET_CONDITION = Sentence(
    '{place} checks "{condition}": correct the setting or input that does not meet it, and resubmit'
)
MIN_REPORTS = 100
"""Error lines of one run from which on they lead to the cause of an exception that no line of the job's code raised."""
SEE_REPORTS = Sentence(
    "start with the error lines that the log repeats, not with the traceback, which shows no line of the job's own code"
)
FIX_SYNTAX = Sentence("correct {place}, which Python cannot parse, and resubmit")
SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
IMPORT_ERRORS = ("ModuleNotFoundError", "ImportError")
TRY_PLACE = Sentence("fix {place} or what it calls, and try it on one GPU first")
ONLY_EXIT_CODE_KNOWN = Sentence("the job failed at its start; the exit code alone does not say why")
RUN_SCRIPT = (ShellCommand("SLURM_ARRAY_TASK_ID={array_task} bash -x {script}"), ShellCommand("bash -x {script}"))
RUN_BY_HAND = Sentence("run the job script by hand, read its standard error, and fix what it reports")
GPU_USE_UNKNOWN = Sentence("whether the GPUs were used before the failure: no GPU metric was given")
LOGGED_BUT_ENDED_WELL = Sentence("{type} was logged, and the run ended normally: {line}")
RAISED_AFTER_STEP = Sentence("training had started before {type}: the log reaches {point}")
RAISED_AFTER_GPU_WORK = Sentence("the GPUs had computed for {seconds} before {type}")
RAISED_IN_LOOP = Sentence("the job was at work before {type}: {line}")
RAISED_AFTER_TRAINING = Sentence("the training was over before {type}: {line}")
TRAINING_STARTED = Sentence("training started: the log shows {point}")


def judge(
    errors: StartupErrors, exceptions: Exceptions, ending: Ending, phase: Phase, unread: UnreadErrors, loop: LastLoop,
    run: Run, limits: Limits,
) -> Finding | Missing:  # fmt: skip
    """The first of the job's own exceptions without a logged step before or after it; else a launch that never
    reached Python; else an error line of any kind that ends the log."""
    if (cause := errors.cause) is not None:
        if ending.completed is not None and all(row.get("logged") for row in errors.unhandled):
            return absent(LOGGED_BUT_ENDED_WELL(type=errors.type, line=ending.completed))
        if (point := phase.last_position(cause)) is not None:
            return absent(RAISED_AFTER_STEP(type=errors.type, point=point))
        if (work_s := phase.use.trained(limits.worked_s)) is not None:
            return absent(RAISED_AFTER_GPU_WORK(type=errors.type, seconds=work_s))
        if (line := ending.summary_before(cause)) is not None:
            return absent(RAISED_AFTER_TRAINING(type=errors.type, line=line))
        if (line := loop.work_before(cause)) is not None:
            return absent(RAISED_IN_LOOP(type=errors.type, line=line))
        return _exception_finding(errors, cause, ending, phase, unread, run, limits.worked_s)
    if not isinstance(phase.trajectory, Missing) and phase.trajectory.points:
        return absent(TRAINING_STARTED(point=place_of(phase.trajectory.progress, phase.trajectory.points[0])))
    if unread.rows and (line := loop.work_before(unread.rows[-1])) is not None:
        return absent(TRAINING_STARTED(point=line))
    launch = None if errors.other_cause else next(_failed_launches(errors, ending, phase, limits), None)
    if launch is not None:
        return _launch_finding(launch, errors, ending, phase)
    if not errors.other_cause and unread.rows:
        work = phase.work_before(unread.rows[-1], errors.frame, limits.worked_s)
        if (unread_end := unread_finding(unread, CRASHED if work is None else CRASHED_IN_WORK)) is not None:
            return unread_end if work is None else replace(unread_end, shows=(*unread_end.shows, work))
    if errors.missing_log is not None:
        return Missing("no job log was given")
    return absent(exceptions.none_of_job)


def _exception_finding(
    errors: StartupErrors, cause: Event, ending: Ending, phase: Phase, unread: UnreadErrors, run: Run, worked_s: float
) -> Finding:
    """The finding about an exception."""
    kind = classify(errors.announced or cause)
    bad_end, idle = ending.bad_end, phase.use.untouched
    error, place = error_in_brief(errors.frame, cause), source_line(errors.frame, cause)
    shows, meaning = list(errors.claims), _affected_ranks(run, errors.rank_numbers)
    own_nodes: tuple[str, ...] = ()
    if meaning.sentence is NODE_DIFFERS and errors.ranks is not None:
        own_nodes = nodes_of(gpus_of_ranks(run, errors.rank_numbers))
        node = own_nodes[0]
        shows.insert(1, ONLY_ON_NODE(node=derived(node, errors.ranks)))
    if place is None and kind in ("code", "data") and len(unread.rows) >= MIN_REPORTS:
        shows += unread.claims
    if not isinstance(phase.trajectory, Missing):
        shows.append(NO_STEP_BEFORE(count=phase.trajectory.count))
    shows += [*idle, *([] if bad_end is None else [bad_end])]
    work = phase.work_before(cause, errors.frame, worked_s)
    shows[1:1] = [] if work is None else [work]
    values = {"error": error} if place is None else {"error": error, "place": place}
    headline, secondary = HEADLINES[work is not None, place is not None]
    return present(
        _certainty(cause, ending),
        "job",
        shows,
        headline=headline(**values),
        secondary_headline=secondary(**values),
        variant=None if work is None else "work",
        title="" if work is None else TITLE_AFTER_WORK,
        implies=[
            meaning if work is None else WORKED(),
            _class_meaning(errors.announced or cause, kind, _is_guess(cause, kind)),
        ],
        cannot_decide=[] if idle or phase.use.work_s is not None or _needs_no_gpu(cause) else [GPU_USE_UNKNOWN()],
        actions=[_remedy(errors, cause, kind, place, unread, run, meaning)],
        since=cause.time,
        at=cause.at,
        ranks=errors.rank_numbers,
        nodes=tuple(sorted({row.node for row in errors.copies if row.node} | set(own_nodes)))
        or ending.first_failed_node,
        exception=(str(cause.get("type")), str(cause.get("message") or "")),
        fault_class=kind,
    )


def _class_meaning(source: Event, kind: FaultClass, is_guess: bool) -> Claim:
    """What an error of this class means."""
    if folder_to_create(source) is not None:
        return FOLDER_MISSING()
    return (CODE_OR if is_guess else CLASS_MEANINGS)[kind]()


def _needs_no_gpu(cause: Event) -> bool:
    """Whether an error occurs before a program uses a GPU: in an import, in Python's syntax, on the command line."""
    return not is_raised(cause) or str(cause.get("type")) in (*IMPORT_ERRORS, *SYNTAX_ERRORS)


def _certainty(cause: Event, ending: Ending) -> Certainty:
    """How sure it is that this exception ended the run: hardly, if the run went on to its time limit."""
    if ending.limit_notices:
        return Certainty.POSSIBLE
    return Certainty.SUPPORTED if ending.bad_end is None or cause.get("about") == "cuda" else Certainty.ESTABLISHED


def _remedy(
    errors: StartupErrors, cause: Event, kind: FaultClass, place: Value | None, unread: UnreadErrors, run: Run,
    meaning: Claim,
) -> Action:  # fmt: skip
    """What to change: as the message shows it, else at the line of the job's own code."""
    text, message = str(cause.get("message") or ""), errors.frame.value(cause, "message")
    where, node = ErrorPlace(len(run.nodes)), None
    if meaning.sentence is NODE_DIFFERS and errors.ranks is not None:
        node = derived(nodes_of(gpus_of_ranks(run, errors.rank_numbers))[0], errors.ranks)
        where = ErrorPlace(len(run.nodes), node)
    if (remedy := error_remedy(errors.frame, errors.announced or cause, kind, where)) is not None:
        return remedy
    if place is not None and _is_guess(cause, kind):
        return action(CHECK_PLACE[kind], place=place)
    if place is not None and str(cause.get("type")) in SYNTAX_ERRORS:
        return action(FIX_SYNTAX, place=derived(str(place.value).removesuffix(" in <source>"), place))
    if kind == "config" and place is not None and str(cause.get("user_code") or "").startswith("raise "):
        return action(RAISES_ITSELF, place=place)
    if kind == "code" and place is not None:
        advice = next((one for one in SENTENCE_END.split(text) if ADVISES.search(one) and not WARNS.search(one)), None)
        if advice is not None:
            return action(FOLLOW_MESSAGE, place=place, advice=derived(advice.strip(), message))
        if (condition := asserted(errors.frame, cause)) is not None:
            return action(MEET_CONDITION, place=place, condition=condition)
        if str(cause.get("user_code") or "").startswith(("raise ", "assert ")):
            return action(RAISES_ITSELF, place=place)
        return action(TRY_PLACE if (run.n_ranks or run.n_gpus or 1) > 1 else FIX_PLACE, place=place)
    if kind in ("code", "data") and len(unread.rows) >= MIN_REPORTS:
        return action(SEE_REPORTS)
    if place is not None and kind in ("config", "data"):
        return action(CHECK_PLACE[kind], place=place)
    return action(FOLLOW_ERROR if kind == "code" and not cause.get("frames") else CLASS_REMEDIES[kind])


def _is_guess(cause: Event, kind: FaultClass) -> bool:
    """Whether the class is a guess, because wrong code raises the same."""
    return kind != "code" and str(cause.get("type")).rpartition(".")[2] in PROGRAMMING_ERRORS


def _affected_ranks(run: Run, ranks: tuple[int, ...]) -> Claim:
    """Whether all ranks, one node's ranks or some ranks report the error; slower ranks may not have reported it."""
    world = run.n_ranks or (len(run.gpus) if run.gpus_by not in (None, "all") else 0)
    if 1 < world <= len(ranks):
        return FAILED_ON_EVERY_RANK()
    gpus = set(gpus_of_ranks(run, ranks))
    nodes = nodes_of(gpus)
    node_gpus = {gpu for gpu in run.gpus if nodes_of((gpu,)) == nodes}
    return NODE_DIFFERS() if len(nodes) == 1 < len(run.nodes) and gpus == node_gpus else FAILED_AT_STARTUP()


@dataclass(frozen=True, slots=True)
class FailedLaunch:
    """Evidence that the job was not launched, and what follows from it."""

    claim: Claim
    kind: FaultClass
    meaning: Sentence
    remedy: Sentence
    row: Event | None = None
    certainty: Certainty | None = None
    """None if it is as certain as the end is."""
    by_site: bool = False
    python_ran: bool = False
    """Whether the training program may have started."""


def _failed_launches(errors: StartupErrors, ending: Ending, phase: Phase, limits: Limits) -> Iterator[FailedLaunch]:
    """The message of a shell or a container, Slurm's message, its special exit codes, or a quick non-zero exit; the
    best first."""
    job, exits = ending.job, ending.exits
    for row in exits.events if job is None or job.get("state") not in CUT_SHORT else ():
        kind = LAUNCH_CODES.get(_code(row.get("exit_code")))
        if kind is not None and row.get("signal") is None:
            sentence = ARGUMENTS_REJECTED if kind == "config" else COMMAND_FAILED
            yield FailedLaunch(
                sentence(line=exits.value(row, "text")), kind, CLASS_MEANINGS[kind], CLASS_REMEDIES[kind], row
            )
    for row in ending.notices.events:
        if row.get("reason") == "launch_failure":
            launch = _noticed_launch(row, ending.notices.value(row, "text"))
            if not launch.by_site or (ending.completed is None and not ending.running):  # else another node ran it
                yield launch
    if job is None or job.get("state") != "FAILED":
        return
    number, code, likely = job.get("signal"), _code(job.get("exit_code")), Certainty.SUPPORTED
    if number == OUTPUT_FILE_SIGNAL:
        claim = OUTPUT_NOT_OPENED(code=derived(f"{code}:{number}", ending.jobs.value(job, "signal")))
        yield FailedLaunch(claim, "config", NO_START_WITHOUT_OUTPUT, CREATE_OUTPUT_FOLDER, certainty=likely)
    if number == PROLOG_SIGNAL:
        claim = PROLOG_FAILED(code=derived(f"{code}:{number}", ending.jobs.value(job, "signal")))
        yield FailedLaunch(claim, "env", NODE_AT_FAULT, CHECK_PROLOG, certainty=likely, by_site=True)
    quick = ending.elapsed is not None and ending.elapsed.number <= limits.startup_s
    unseen = errors.missing_log is not None and not phase.use.untouched
    died = any(row.get("signal") is not None for row in exits.events)
    if code and not number and quick and not unseen and not ending.launchers and not died:
        claim, kind = FAILED_WITHIN_MINUTES(code=ending.jobs.value(job, "exit_code")), LAUNCH_CODES.get(code, "code")
        yield FailedLaunch(
            claim, kind, ONLY_EXIT_CODE_KNOWN, RUN_BY_HAND, certainty=Certainty.POSSIBLE, python_ran=True
        )


def _noticed_launch(row: Event, line: Value) -> FailedLaunch:
    """What Slurm's message on a failed launch says: the output file, the prolog, else the step."""
    if (match := OUTPUT_FILE.search(row.text)) is not None:
        if match["reason"].startswith("No such file"):
            claim = OUTPUT_FOLDER_MISSING(folder=derived(match["path"].rpartition("/")[0], line))
        else:
            claim = OUTPUT_FILE_REFUSED(
                path=derived(match["path"], line), reason=derived(match["reason"].strip(), line)
            )
        return FailedLaunch(claim, "config", NO_START_WITHOUT_OUTPUT, CREATE_OUTPUT_FOLDER, row)
    if row.get("signal") == OUTPUT_FILE_SIGNAL:
        claim = OUTPUT_NOT_OPENED_BY(line=line)
        return FailedLaunch(claim, "config", NO_START_WITHOUT_OUTPUT, CREATE_OUTPUT_FOLDER, row)
    if row.get("signal") == PROLOG_SIGNAL or PROLOG.search(row.text):
        return FailedLaunch(PROLOG_FAILED_BY(line=line), "env", NODE_AT_FAULT, CHECK_PROLOG, row, by_site=True)
    return FailedLaunch(STEP_NOT_LAUNCHED(line=line), "env", CLASS_MEANINGS["env"], CLASS_REMEDIES["env"], row)


def _code(value: object) -> int:
    """An exit code as an integer; 0 if unknown."""
    return value if isinstance(value, int) else 0


def _launch_finding(launch: FailedLaunch, errors: StartupErrors, ending: Ending, phase: Phase) -> Finding:
    """The finding about a launch that never reached Python."""
    bad_end = ending.bad_end
    sure = Certainty.ESTABLISHED if bad_end is not None else Certainty.SUPPORTED
    return present(
        launch.certainty or sure,
        "infrastructure" if launch.by_site else "job",
        [launch.claim, *phase.use.untouched, *([] if bad_end is None else [bad_end])],
        headline=launch.claim,
        implies=[*([] if launch.python_ran else [BEFORE_PYTHON()]), launch.meaning()],
        actions=[action(launch.remedy, *(RUN_SCRIPT if launch.remedy is RUN_BY_HAND else ()))],
        since=None if launch.row is None else launch.row.time,
        at=None if launch.row is None else launch.row.at,
        fault_class=launch.kind if errors.missing_log is None or not launch.python_ran else None,
    )


FAMILY = Family(
    code="A1",
    id="startup-crash",
    title="Crash at startup",
    example=("startup-config", "timeline"),
    judge=judge,
    limits=Limits(),
    explains=("C1", "C2", "F3"),
    rivals=("B1", "C1", "E2", "H2", "A2"),
    collect=(
        "the job's whole output, standard error included",
        "sacct -P -j JOB_ID --format=JobID,State,ExitCode,Start,End,NodeList",
    ),
)
