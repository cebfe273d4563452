"""What every rendering has in common: the names and the order of its sections, and its head (headline, owner, family,
confidence, and the run in one line).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from trackside.catalog.job_states import state_in_words
from trackside.families import find_family
from trackside.show.document import ClaimDoc, FindingDoc, InputDoc, RunDoc, SecondaryDoc, VerdictDoc
from trackside.show.waste import in_brief
from trackside.wording import duration, moment, ranges, with_stop, word


@dataclass(frozen=True, slots=True)
class VerdictSection:
    """A section of a verdict. ``title``: its heading; ``label``: the same word on one screen, before its first line."""

    title: str
    label: str


EVIDENCE = VerdictSection("Evidence", "evidence")
CAUTIONS = VerdictSection("Cautions", "caution")
"""What limits the verdict. It comes after the evidence, so that the first thing read is the answer and why."""
MEANING = VerdictSection("What it means", "meaning")
ACTIONS = VerdictSection("What to do", "do")
CONSEQUENCES = VerdictSection("Consequences", "consequence")
WARNINGS = VerdictSection("Warnings", "warning")
EARLIER = VerdictSection("Earlier runs in the log", "earlier")
COST = VerdictSection("Cost", "cost")
UNDECIDED = VerdictSection("Open questions", "open")
"""What the evidence for the answer leaves open; *undecided* is the outcome of a family."""
FAMILIES = VerdictSection("Other families", "families")
OWNERS = {
    "job": ("the job", "its code, data or settings"),
    "infrastructure": ("the infrastructure", "hardware, network, storage or system software"),
    "scheduler": ("the scheduler", "it followed its rules or a user's request"),
    "none": ("nobody", ""),
    "unknown": ("unknown", ""),
}
"""Published culprit -> the owner who has to act, and a few more words."""
FAULT_CLASSES = {
    "code": "code",
    "config": "configuration",
    "env": "environment",
    "data": "data",
    "asset": "file or model",
}
"""Published class of a fault -> its words: where the error is."""
OUTCOMES = {"unknown": "undecided"}
"""Published outcome -> the word that readers see, if it is another."""
STATUSES = {"unrecognised": "not recognized", "empty": "no rows"}
"""Published status of an input -> the words that readers see, if they are others."""
MAX_COLLECT = 2
_STEP = re.compile(r"step ([\d,]+)")
_JOB_ID = re.compile(r"\d+(?:[_+]\d+)?")
SEPARATOR = " \N{MIDDLE DOT} "
STYLES = {
    "job": "bold yellow", "infrastructure": "bold red", "scheduler": "bold cyan", "unknown": "bold"
}  # fmt: skip
"""Published culprit -> the owner's style on a terminal."""


def input_status(status: str) -> str:
    """The status of an input in words: ``read``, ``not recognized``."""
    return STATUSES.get(status, status)


def inputs_read(inputs: Sequence[InputDoc]) -> str:
    """How many inputs were read: ``2 of 3 inputs read, 1 of them in part``."""
    statuses = [row.status for row in inputs]
    n_partial = statuses.count("partial")
    n_read = statuses.count("read") + n_partial
    in_part = "" if not n_partial else ", in part" if len(inputs) == 1 else f", {n_partial:,} of them in part"
    return f"{n_read:,} of {word(len(inputs), 'inputs')} read{in_part}"


def owner(finding: FindingDoc) -> str:
    """Who has to act: ``the job``, ``nobody``."""
    return OWNERS.get(finding.culprit, OWNERS["unknown"])[0]


def kind(finding: FindingDoc) -> str:
    """The family, with its variant and the class of the fault: ``E2 silent-resume (crash, file or model)``."""
    fault_class = FAULT_CLASSES.get(finding.fault_class or "", finding.fault_class)
    if not fault_class:
        return family(finding)
    name = family(finding)
    return f"{name.removesuffix(')')}, {fault_class})" if name.endswith(")") else f"{name} ({fault_class})"


def family(finding: FindingDoc) -> str:
    """``D2 throughput-bound (interconnect)``; a variant that the id contains is not repeated."""
    variant = f" ({finding.variant})" if finding.variant and finding.variant not in finding.id else ""
    return f"{finding.family} {finding.id}{variant}"


def is_cause(finding: FindingDoc) -> bool:
    """Whether it names a cause: if no family fits, the finding has no certainty that says anything."""
    match = find_family(finding.family)
    return match is None or match.role != "last_resort"


def certainty(finding: FindingDoc) -> str:
    """``certainty: established``; empty if no cause was found."""
    return (
        f"certainty: {finding.certainty or OUTCOMES.get(finding.outcome, finding.outcome)}" if is_cause(finding) else ""
    )


def confidence(finding: FindingDoc) -> str:
    """The certainty, and how often such verdicts were right; empty if no cause was found."""
    text = certainty(finding)
    if not text or finding.confidence is None:
        return text
    return f"{text} (right in {finding.confidence:.0%} of unseen runs like it)"


def collect(doc: VerdictDoc) -> list[tuple[str, Sequence[str]]]:
    """(what to collect, the families that it would decide); what decides most families first."""
    families_by_text: dict[str, list[str]] = {}
    for unknown in doc.unknown:
        for text in unknown.collect:
            families_by_text.setdefault(text.replace("JOB_ID", doc.run.id or "JOB_ID"), []).append(unknown.family)
    return sorted(families_by_text.items(), key=lambda entry: -len(entry[1]))


def collect_actions(doc: VerdictDoc) -> list[str]:
    """What to collect first, as actions, if a cause is not certain: what its family needs most, and what would decide
    those that look like it. Without any cause, the verdict's own action names all inputs."""
    if doc.primary.outcome == "found" and (doc.primary.certainty != "possible" or not is_cause(doc.primary)):
        return []
    match = find_family(doc.primary.family)
    if match is None or match.role == "health":  # health names what it lacks itself
        own, texts = [], []
    else:
        own = [text for text in match.collect if not text.startswith("sacct")][:1]
        texts = [text for text, families in collect(doc) if set(match.rivals).intersection(families)]
    texts = list(dict.fromkeys([*own, *texts]))
    if not doc.run.id and doc.run.disposition is None:  # as far as known, no job of Slurm
        texts = [text for text in texts if "sacct" not in text and "slurm" not in text]
    if doc.run.disposition is None and doc.run.id and _JOB_ID.fullmatch(doc.run.id):
        record = f"Slurm's record (sacct -j {doc.run.id} -P --format=ALL > sacct.txt)"
        texts = [record, *(text for text in texts if not text.startswith("sacct"))]
    return [with_stop(f"Collect {text}") for text in texts[:MAX_COLLECT]]


def where(finding: FindingDoc, n_ranks: int | None = None) -> str:
    """The ranks, GPUs and nodes that it names, each node once: ``rank 5 (gpu001:5)``; may be empty. ``n_ranks``: the
    ranks of the run, so that all of them are not listed."""
    if len(finding.ranks) > 1 and len(finding.ranks) == n_ranks:
        return "both ranks" if n_ranks == 2 else f"all {n_ranks} ranks"
    ranks = f"rank{'s' if len(finding.ranks) > 1 else ''} {ranges(finding.ranks)}" if finding.ranks else ""
    names = [gpu.removeprefix(":") for gpu in finding.gpus]
    indices_only = all(name.isdecimal() for name in names)
    gpus = "" if not names else ranges([int(name) for name in names]) if indices_only else word(tuple(names))
    noun = "GPU" if len(names) == 1 else "GPUs"
    with_gpus = {gpu.rpartition(":")[0] for gpu in finding.gpus}
    others = tuple(node for node in finding.nodes if node not in with_gpus)
    nodes = f"node{'s' if len(others) > 1 else ''} {word(others)}" if others else ""
    if ranks and gpus:
        ranks, gpus = f"{ranks} ({f'{noun} {gpus}' if indices_only else gpus})", ""
    return ", ".join(filter(None, (ranks, f"{noun} {gpus}" if gpus else "", nodes)))


def own_evidence(finding: SecondaryDoc, doc: VerdictDoc) -> list[ClaimDoc]:
    """The evidence of a consequence or a warning that does not already stand under the answer."""
    known = {claim.text for claim in doc.shows}
    return [claim for claim in finding.shows if claim.text not in known]


def answer(finding: FindingDoc) -> str:
    """What happened, in one clause."""
    return finding.title if finding.headline is None else finding.headline.text


def headline(finding: FindingDoc, run: RunDoc) -> str:
    """What happened, where, and when it began: ``Out of GPU memory \N{MIDDLE DOT} rank 5 (gpu001:5) \N{MIDDLE DOT}
    2026-03-02 08:14:40 UTC``."""
    time = "" if finding.began is None else moment(finding.began, run.has_time_zone)
    return SEPARATOR.join(filter(None, (answer(finding), where(finding, run.n_ranks), time)))


def ending(run: RunDoc) -> str:
    """The state of the run, with its exit code and signal: ``failed, exit 1``; empty if unknown."""
    if not run.disposition:
        return ""
    code = f", exit {run.exit_code}" if run.exit_code else ""
    return state_in_words(run.disposition) + code + (f", signal {run.signal}" if run.signal else "")


def elapsed_s(run: RunDoc) -> float | None:
    """Seconds from the run's start to its end, or to the present; None if either is unknown."""
    end = run.as_of if run.end is None else run.end
    return end - run.start if run.start is not None and end is not None and end >= run.start else None


def appended(doc: VerdictDoc) -> str:
    """That the log holds several runs: ``last of 5 runs in nohup.out, from line 812``; empty if it does not."""
    runs = doc.appended
    if runs is None:
        return ""
    file = runs.path.rpartition("/")[2]
    count = f"more than {runs.runs:,}" if runs.more else f"{runs.runs:,}"
    text = f"last of {count} runs in {file}, from line {runs.first_line:,}"
    return text if runs.started is None else f"{text}; one more starts at line {runs.started:,} and shows nothing yet"


def earlier_runs(doc: VerdictDoc, limit: int | None = None) -> list[str]:
    """The earlier runs in the log, the newest first, those that ended alike in one line, at most ``limit`` lines; and
    how many more there are."""
    if doc.appended is None:
        return []
    alike = [list(runs) for _, runs in groupby(doc.appended.earlier[::-1], lambda run: (run.family, run.text))][:limit]
    lines = []
    for runs in alike:
        count = f", {len(runs):,} runs" if len(runs) > 1 else ""
        family = ", ".join(filter(None, (runs[0].family, runs[0].certainty)))
        first, last = runs[-1].first_line, runs[0].last_line
        place = f"line {first:,}" if first == last else f"lines {first:,} to {last:,}"
        lines.append(f"{place}{count} ({family}): {runs[0].text}")
    others = doc.appended.runs - 1 - sum(map(len, alike))
    return [*lines, f"and {others:,} more run{'s' if others > 1 else ''}"] if others and lines else lines


def progress(doc: VerdictDoc) -> str:
    """Of the last attempt in the log, by the figures of the evidence: ``step 200 of 574, loss 4.2 to 3.1 in 20 logged
    steps``, with an arrow.

    Without the planned steps if the run completed: the last logged step is rarely the last step.
    """
    if doc.progress is None:
        return ""
    attempt, planned = doc.last_attempt, (doc.progress.last_run or doc.progress).planned_steps
    if attempt is None:
        return "no step recognized"
    place, text = attempt.place, word(attempt.points, attempt.unit)
    step = _STEP.fullmatch(place or "")
    if step is not None and planned and doc.run.disposition != "COMPLETED" and int(step[1].replace(",", "")) <= planned:
        place = f"{place} of {planned:,}"
    if attempt.first_median is not None and attempt.last_median is not None:
        text = f"loss {word(attempt.first_median)} \N{RIGHTWARDS ARROW} {word(attempt.last_median)} (medians) in {text}"
    elif attempt.points > 1 and attempt.first_loss is not None and attempt.last_loss is not None:
        text = f"loss {word(attempt.first_loss)} \N{RIGHTWARDS ARROW} {word(attempt.last_loss)} in {text}"
    if attempt.is_one_of_several:
        counter = "epoch" if "epoch" in attempt.unit else "step"
        text += " (last attempt)" if len(doc.run.attempts) > 1 else f" (since the {counter} counter last fell)"
    return text if place is None else f"{place}, {text}"


def unsettled(doc: VerdictDoc) -> str:
    """Why the verdict is not final, and when to ask again: ``Not settled yet: ...; ask again after 08:15:00 UTC.``;
    empty if it is final."""
    if doc.unsettled is None:
        return ""
    time = "the end of the job" if doc.unsettled.until is None else moment(math.ceil(doc.unsettled.until))[11:]
    return f"Not settled yet: {doc.unsettled.reason}; ask again after {time}."


def run(doc: VerdictDoc) -> str:
    """The run in one line: id, name, state, size, time, framework, progress and GPU-hours. Empty if nothing is
    known."""
    run = doc.run
    parts = [" ".join(filter(None, ("run" if run.id or run.name else "", run.id, run.name)))]
    if run.other_jobs:
        count = len(run.other_jobs)
        jobs = "job" if count == 1 else f"{count} jobs:"
        parts.append(f"its log also names {jobs} {word(tuple(run.other_jobs))}")
    parts.append(appended(doc))
    parts.append(ending(run))
    if run.nodes:
        parts.append(word(len(run.nodes), "nodes"))
    if run.n_ranks:
        parts.append(word(run.n_ranks, "ranks"))
    if run.start is not None and (seconds := elapsed_s(run)) is not None:
        so_far = " so far" if run.end is None else ""
        attempt = f"attempt {run.attempts[-1].number} from " if len(run.attempts) > 1 else ""
        parts.append(f"{attempt}{moment(run.start, run.has_time_zone)}, {duration(seconds)}{so_far}")
    since = doc.primary.since
    if run.as_of is not None and since is not None and since < run.as_of:  # for an ended run, the claims say when
        parts.append(f"in this state for {duration(run.as_of - since)}, since {moment(since, run.has_time_zone)}")
    if not run.has_time_zone and (run.start is not None or doc.primary.began is not None):
        parts.append("time zone not given")
    if run.framework:
        parts.append(run.framework)
    parts.append(progress(doc))
    if doc.waste is not None:
        parts.append(in_brief(doc.waste))
    return SEPARATOR.join(filter(None, parts))
