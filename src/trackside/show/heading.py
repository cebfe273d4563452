"""What every telling of a verdict begins with: family, confidence, where, and the run in one line."""

from __future__ import annotations

from trackside.catalog.job_states import in_words
from trackside.show.document import FindingDoc, ProgressDoc, RunDoc, VerdictDoc
from trackside.show.waste import in_brief
from trackside.show.wording import duration, moment, ranges, word


def family(finding: FindingDoc) -> str:
    """``D2 throughput-bound (interconnect)``."""
    variant = f" ({finding.variant})" if finding.variant not in (None, finding.id) else ""
    return f"{finding.family} {finding.id}{variant}"


def confidence(finding: FindingDoc) -> str:
    """``0.96 (established)``."""
    told = "" if finding.confidence is None else f"{finding.confidence:.2f} "
    return f"{told}({finding.certainty or finding.outcome})"


def where(finding: FindingDoc) -> str:
    """The ranks, nodes and GPUs that it names; may be empty."""
    told = []
    if finding.ranks:
        told.append(f"rank{'s' if len(finding.ranks) > 1 else ''} {ranges(finding.ranks)}")
    if finding.nodes:
        told.append(f"node{'s' if len(finding.nodes) > 1 else ''} {word(tuple(finding.nodes))}")
    if finding.gpus:
        told.append(f"GPU {word(tuple(gpu.removeprefix(':') for gpu in finding.gpus))}")
    return "; ".join(told)


def headline(finding: FindingDoc) -> str:
    """What it was, and where."""
    place = where(finding)
    return finding.title + (f" \N{EM DASH} {place}" if place else "")


def ending(run: RunDoc) -> str:
    """How it ended, or how it stands: ``failed, exit 1``; empty where nothing tells."""
    if not run.disposition:
        return ""
    ended = f", exit {run.exit_code}" if run.exit_code else ""
    return in_words(run.disposition) + ended + (f", signal {run.signal}" if run.signal else "")


def lasted(run: RunDoc) -> float | None:
    """Seconds from its start to its end, or to the present; None where either is not known."""
    end = run.as_of if run.end is None else run.end
    return end - run.start if run.start is not None and end is not None and end >= run.start else None


def progress(doc: ProgressDoc) -> str:
    """``20 training points, loss 4.2 \N{RIGHTWARDS ARROW} 3.1``."""
    told = word(doc.points, "training points")
    if doc.points < 2 or doc.first.loss is None:
        return told
    last = "not printed" if doc.last.loss is None else doc.last.loss
    return f"{told}, loss {doc.first.loss} \N{RIGHTWARDS ARROW} {last}"


def run(doc: VerdictDoc) -> str:
    """Which run, how it ended, how large, when, what it trained, what it held."""
    run = doc.run
    parts = [" ".join(part for part in (f"run {run.id}" if run.id else "run", run.name) if part)]
    parts.append(ending(run))
    if run.nodes:
        parts.append(word(len(run.nodes), "nodes"))
    if run.n_ranks:
        parts.append(word(run.n_ranks, "ranks"))
    if run.start is not None and (seconds := lasted(run)) is not None:
        so_far = " so far" if run.end is None else ""
        parts.append(f"{moment(run.start)}, {duration(seconds)}{so_far}")
    since = doc.primary.since
    if run.as_of is not None and since is not None and since < run.as_of:  # of a run that is over, the claims say it
        parts.append(f"so for {duration(run.as_of - since)}, since {moment(since)}")
    if run.framework:
        parts.append(run.framework)
    if doc.progress is not None:
        parts.append(progress(doc.progress))
    if doc.waste is not None:
        parts.append(in_brief(doc.waste))
    return " \N{MIDDLE DOT} ".join(filter(None, parts))
