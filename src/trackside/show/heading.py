"""The head of every rendering: family, confidence, location, and the run in one line."""

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
    number = "" if finding.confidence is None else f"{finding.confidence:.2f} "
    return f"{number}({finding.certainty or finding.outcome})"


def where(finding: FindingDoc) -> str:
    """The ranks, nodes and GPUs of a finding; may be empty."""
    parts = []
    if finding.ranks:
        parts.append(f"rank{'s' if len(finding.ranks) > 1 else ''} {ranges(finding.ranks)}")
    if finding.nodes:
        parts.append(f"node{'s' if len(finding.nodes) > 1 else ''} {word(tuple(finding.nodes))}")
    if finding.gpus:
        parts.append(f"GPU {word(tuple(gpu.removeprefix(':') for gpu in finding.gpus))}")
    return "; ".join(parts)


def headline(finding: FindingDoc) -> str:
    """The title of a finding, and its location."""
    location = where(finding)
    return finding.title + (f" \N{EM DASH} {location}" if location else "")


def ending(run: RunDoc) -> str:
    """The state of the run, with its exit code and signal: ``failed, exit 1``; empty if unknown."""
    if not run.disposition:
        return ""
    code = f", exit {run.exit_code}" if run.exit_code else ""
    return in_words(run.disposition) + code + (f", signal {run.signal}" if run.signal else "")


def elapsed_s(run: RunDoc) -> float | None:
    """Seconds from the run's start to its end, or to the present; None if either is unknown."""
    end = run.as_of if run.end is None else run.end
    return end - run.start if run.start is not None and end is not None and end >= run.start else None


def progress(doc: ProgressDoc) -> str:
    """``20 training points, loss 4.2 \N{RIGHTWARDS ARROW} 3.1``."""
    text = word(doc.points, "training points")
    if doc.points < 2 or doc.first.loss is None:
        return text
    last = "not printed" if doc.last.loss is None else doc.last.loss
    return f"{text}, loss {doc.first.loss} \N{RIGHTWARDS ARROW} {last}"


def run(doc: VerdictDoc) -> str:
    """The run in one line: id, name, state, size, time, framework, progress and GPU-hours. Empty if nothing is
    known."""
    run = doc.run
    parts = [" ".join(part for part in (f"run {run.id}" if run.id else "run", run.name) if part)]
    parts.append(ending(run))
    if run.nodes:
        parts.append(word(len(run.nodes), "nodes"))
    if run.n_ranks:
        parts.append(word(run.n_ranks, "ranks"))
    if run.start is not None and (seconds := elapsed_s(run)) is not None:
        so_far = " so far" if run.end is None else ""
        parts.append(f"{moment(run.start)}, {duration(seconds)}{so_far}")
    since = doc.primary.since
    if run.as_of is not None and since is not None and since < run.as_of:  # for an ended run, the claims say when
        parts.append(f"in this state for {duration(run.as_of - since)}, since {moment(since)}")
    if run.framework:
        parts.append(run.framework)
    if doc.progress is not None:
        parts.append(progress(doc.progress))
    if doc.waste is not None:
        parts.append(in_brief(doc.waste))
    parts = [part for part in parts if part]
    return "" if parts == ["run"] else " \N{MIDDLE DOT} ".join(parts)
