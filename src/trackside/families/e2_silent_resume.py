"""Resume failed: the checkpoint was not loaded, silently or with a crash.

Meaning
-------
A run that was to continue from a checkpoint started from scratch without saying so, or died while it loaded
the checkpoint. The first wastes all that its parent had computed and looks healthy.

What it looks like
------------------
Silent: the run depends on, was requeued after or restarts another one, yet no marker of a load is printed,
the steps start over and the loss is back at the parent's first value instead of its last.
A library's warning that the checkpoint asked for is not there and that training starts from random.
Crash: an exception in the load: size mismatch, missing keys, a truncated archive, an empty folder.

Not this when
-------------
Fine-tuning loads base weights: that is no resume. The warning that no checkpoint exists is normal on a first
run. A dependency on a job that did not train says nothing. The loss or the steps continue where the parent
stopped. A write of a checkpoint failed: that is storage.

Impact
------
Silent: the parent's whole computation is spent again. Crash: nothing runs until it is mended.

Do next
-------
Silent: point the resume argument at the parent's last checkpoint and rerun. Corrupt: take the checkpoint
before it. Mismatch: use the base, the vocabulary and the sizes that the checkpoint was made with.

What it cannot tell
-------------------
Whether the run was meant to resume, where neither the scheduler nor an argument says so.

References
----------
Megatron-LM checkpointing.py; DeepSpeed engine.load_checkpoint; torch.serialization.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.evidence import Evidence, Value, derived
from trackside.facts.logs.exceptions import unhandled
from trackside.facts.logs.order import followed_by
from trackside.facts.training.learning import Curve, curve, number
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Run
from trackside.query import events, record


@dataclass(frozen=True)
class Limits:
    """What counts as starting over."""

    back_share: float = 0.5
    """A first loss that gives back at least this share of what the parent learned is a fresh start. A true
    resume gives back a few per cent (optimiser state and data order differ)."""
    same_loss_share: float = 0.02
    """First losses this near to each other are the same start: same seed, same initial weights."""


SAVING = re.compile(r"\b(save|saving|saved|write|writing|writer)\b|inline_container|PytorchStreamWriter|No space", re.I)
MISMATCH = re.compile(r"size mismatch|shape|Missing key|Unexpected key|loading state_dict|not match|incompatib", re.I)
CORRUPT = re.compile(
    r"central directory|zip archive|unexpected EOF|Ran out of input|EOFError|corrupt|truncat|deserializ"
    r"|invalid load key|unpickl|PytorchStreamReader|invalid header|HeaderTooSmall|MetadataIncomplete",
    re.I,
)
ABSENT = re.compile(
    r"no such file|not found|does not exist|doesn't exist|no valid|can't find|cannot find|couldn't|empty", re.I
)

COLLECT = (
    "the parent run's output next to this one's",
    "the run's command line or configuration with its resume argument",
    "sacct with SubmitLine, Restarts and all attempts (-D)",
)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """A crash at the load is plain; a silent start needs the parent, a request or a library's word."""
    crash = _crash(evidence)
    if crash is not None:
        return crash
    loaded = _loaded(evidence)
    if loaded is not None:
        return absent(claim("loaded", line=loaded))
    compared = _against_parent(evidence, run, limits)
    if compared is not None:
        return compared
    return _told_missing(evidence, run) or _nothing_asked(evidence, run)


# -- crash


def _crash(evidence: Evidence) -> Finding | None:
    frame = evidence["exceptions"]
    for row in unhandled(frame.events, evidence["progress"].events):
        said = f"{row.get('type')}: {row.get('message')}"
        if row.get("about") != "checkpoint" or SAVING.search(said) or _in_save(row):
            continue
        root = f"{said} {row.get('root_type')}: {row.get('root_message')}"
        kind = "mismatch" if MISMATCH.search(root) else "corrupt" if CORRUPT.search(root) else "absent"
        kind = kind if kind != "absent" or ABSENT.search(root) else "unreadable"
        ranks = tuple(sorted({r.rank for r in frame.events if r.rank is not None and r.get("type") == row.get("type")}))
        return found(
            Certainty.ESTABLISHED,
            "job",
            [claim("crash", type=frame.value(row, "type"), message=frame.value(row, "message"))],
            implies=[claim(f"crash_{kind}")],
            actions=[action(f"mend_{kind}")],
            since=row.time,
            at=row.at,
            variant="crash",
            fault_class="config" if kind == "mismatch" else "asset",
            ranks=ranks,
            exception=(str(row.get("type")), str(row.get("message") or "")[:500]),
        )
    return None


def _in_save(row: Event) -> bool:
    """Whether the innermost frames are those of a save."""
    return bool(re.search(r"\b_?save\w*$", str(row.get("frame") or ""))) or bool(
        re.search(r" in (_?save|save_checkpoint|_save\w*)(;|$)", str(row.get("frames") or ""))
    )


# -- silent


def _loaded(evidence: Evidence) -> Value | None:
    """The marker of a load that no later line takes back."""
    loads = evidence["loads"]
    for row in loads.events:
        if followed_by(row, evidence["absences"].events) is None:
            return loads.value(row, "text")
    return None


def _against_parent(evidence: Evidence, run: Run, limits: Limits) -> Finding | None:
    """Hold the first points of this run, or of its last life, against those of the one before."""
    mine, parent = curve(evidence["progress"]), _before(evidence, run)
    if parent is None or not mine.finite or len(parent.finite) < 2 or parent.finite[-1] >= parent.finite[0]:
        return None
    start, was, left = mine.finite[0], parent.finite[0], parent.finite[-1]
    first, head, tail = mine.loss(0), parent.loss(0), parent.loss(-1)
    step, reached = number(mine.rows[0], "step"), number(parent.rows[-1], "step")
    begun = number(parent.rows[0], "step")
    over = step is not None and reached is not None and begun is not None and step <= max(begun, 0.2 * reached)
    went_on = step is not None and reached is not None and reached > 1 and step >= 0.8 * reached
    back = start - left >= limits.back_share * (was - left)
    if not back or (went_on and not over):
        return absent(claim("continued", first=first, last=tail))
    shows = [claim("loss_restarted", first=first, head=head, tail=tail)]
    if over:
        shows.append(claim("steps_restarted", step=mine.place(0), reached=parent.place(-1)))
    shows += [*_requests(evidence), claim("no_marker", count=evidence["loads"].reduce("count"))]
    if run.parent_by == "order" and not evidence["requests"]:
        return _silent(evidence, mine.rows[0], shows, Certainty.POSSIBLE, latent=True)
    same = abs(start - was) <= limits.same_loss_share * abs(was)
    return _silent(evidence, mine.rows[0], shows, Certainty.ESTABLISHED if same and over else Certainty.SUPPORTED)


def _before(evidence: Evidence, run: Run) -> Curve | None:
    """The curve of the parent, or of the life of the same run before its launcher restarted it."""
    if run.parent is not None and evidence["parent"]:
        return curve(evidence["parent"])
    progress = evidence["progress"]
    parts = {number(row, "run_part") or 0.0 for row in progress.events}
    if len(parts) < 2 or not (evidence["restarts"] or len(run.attempts) > 1) or not evidence["saves"]:
        return None
    return curve(progress.where(lambda row: row.get("run_part") != max(parts)))


def _told_missing(evidence: Evidence, run: Run) -> Finding | None:
    """A library says that the checkpoint it was to load is not there."""
    absences = evidence["absences"]
    mine = curve(evidence["progress"])
    restarted = _history(evidence, run)
    if not absences.events or _late_start(mine):
        return None
    row = absences.events[0]
    shows = [claim("missing", line=absences.value(row, "text")), *_requests(evidence), *restarted]
    if restarted:
        return _silent(evidence, row, shows, Certainty.SUPPORTED)
    # Without a parent it may as well be a first run with its load and save folders the same.
    return _silent(evidence, row, shows, Certainty.POSSIBLE, latent=bool(mine.points))


def _first_steps(mine: Curve) -> list[float]:
    return [step for row in mine.points[:2] if (step := number(row, "step")) is not None]


def _late_start(mine: Curve) -> bool:
    """Whether the first printed step is far beyond one logging interval: the run did not begin at zero."""
    steps = _first_steps(mine)
    return len(steps) == 2 and steps[0] > 2 * max(1.0, steps[1] - steps[0])


def _history(evidence: Evidence, run: Run) -> list[Claim]:
    """What says that the run had a life before this one."""
    shows = []
    jobs, restarts = evidence["jobs"], evidence["restarts"]
    for row in jobs.records[-1:]:
        if isinstance(row.get("restarts"), int) and row.get("restarts"):
            shows.append(claim("restarted", restarts=jobs.value(row, "restarts")))
        elif run.parent is not None and row.get("dependency"):
            shows.append(claim("depends", dependency=jobs.value(row, "dependency")))
        elif run.parent is not None:
            shows.append(claim("continues", id=jobs.value(row, "id")))
    shows += [claim("relaunched", line=restarts.value(row, "text")) for row in restarts.events[:1]]
    return shows


def _requests(evidence: Evidence) -> list[Claim]:
    frame = evidence["requests"]
    return [claim("requested", line=frame.value(row, "text")) for row in frame.events[:1]]


def _silent(evidence: Evidence, row: Event, shows: list[Claim], certainty: Certainty, latent: bool = False) -> Finding:
    return found(
        certainty,
        "job",
        shows,
        implies=[claim("from_scratch")],
        cannot_decide=[] if certainty is Certainty.ESTABLISHED else [claim("meant")],
        actions=[action("point_at")],
        since=row.time,
        at=row.at,
        variant="silent",
        latent=latent,
    )


def _nothing_asked(evidence: Evidence, run: Run) -> Finding:
    """No word of a missing checkpoint: was a resume asked for, and did the steps start over?"""
    requests, mine = evidence["requests"], curve(evidence["progress"])
    asked = [row for row in requests.events if str(row.get("path")).lower() not in ("none", "false", "", "null")]
    if asked and mine.points:
        steps = _first_steps(mine)
        if _late_start(mine):
            return absent(claim("went_on", step=mine.frame.value(mine.points[0], "step")))
        if steps and steps[0] <= max(1.0, steps[-1] - steps[0]):
            shows = [claim("requested", line=requests.value(asked[0], "text"))]
            shows.append(claim("steps_begin", step=mine.frame.value(mine.points[0], "step")))
            shows.append(claim("no_marker", count=evidence["loads"].reduce("count")))
            named = asked[0].get("by") == "argument" and "/" in str(asked[0].get("path")) and not evidence["absences"]
            return _silent(evidence, asked[0], shows, Certainty.POSSIBLE, latent=not named)
    if asked or (run.parent is not None and mine.points and not evidence["parent"]):
        return unknown(["whether the checkpoint was loaded: no marker, and nothing to compare with"], COLLECT)
    return absent(claim("not_asked", count=derived(0, requests.reduce("count"), evidence["absences"].reduce("count"))))


FAMILY = Family(
    code="E2",
    id="silent-resume",
    title="Resume failed: the checkpoint was not loaded",
    pictured=("silent-resume", "learning"),
    asks={
        "progress": events("progress"),
        "parent": events("parent_progress"),
        "loads": events("checkpoint_loaded"),
        "absences": events("checkpoint_missing"),
        "requests": events("resume_requested"),
        "saves": events("checkpoint_saved"),
        "restarts": events("launcher_restart"),
        "exceptions": events("exception"),
        "jobs": record("job"),
    },
    needs=("exceptions",),
    says={
        "crash": "loading the checkpoint raised {type}: {message}",
        "crash_mismatch": "the checkpoint was made with other sizes or names than the model that loads it",
        "crash_corrupt": "the checkpoint file is cut off or damaged, as an interrupted write leaves it",
        "crash_absent": "there is no valid checkpoint where the run looked for one",
        "crash_unreadable": "the checkpoint cannot be read",
        "mend_mismatch": "resume with the base model, vocabulary and sizes that the checkpoint was made with",
        "mend_corrupt": "resume from the checkpoint before it, and check that there was space to write it",
        "mend_absent": "point the resume argument at a complete checkpoint",
        "mend_unreadable": "check the file, and resume from the checkpoint before it",
        "loaded": "a checkpoint was loaded: {line}",
        "continued": "the first loss {first} continues the parent's last {last}",
        "went_on": "the first point is step {step}, not a fresh start",
        "loss_restarted": "the first loss is {first}; the parent began at {head} and had come to {tail}",
        "steps_restarted": "the first point is at {step}; the parent had reached {reached}",
        "steps_begin": "the first point is step {step}",
        "no_marker": "the log holds {count:markers} of a loaded checkpoint",
        "requested": "a resume was asked for: {line}",
        "missing": "the log says that nothing was loaded: {line}",
        "restarted": "restarts by the scheduler: {restarts}",
        "depends": "the job was submitted with dependency {dependency}",
        "continues": "job {id} continues an earlier one",
        "relaunched": "the launcher restarted its workers: {line}",
        "from_scratch": "the run trained from scratch, and what the run before it had computed is lost or spent again",
        "meant": "whether this was meant as a resume or is a first run",
        "point_at": "point the resume argument at the last complete checkpoint and rerun",
        "not_asked": "requests for a resume and missing checkpoints seen: {count}",
    },
    judge=judge,
    loses="repeat",
    limits=Limits(),
    explains=("A1", "H2"),
    rivals=("A1", "E1"),
    collect=COLLECT,
)
