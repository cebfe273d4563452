"""What every telling of a verdict begins with: family, confidence, where, and the run in one line."""

from __future__ import annotations

from trackside.catalog.job_states import in_words
from trackside.show.document import FindingDoc, VerdictDoc
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


def run(doc: VerdictDoc) -> str:
    """Which run, how it ended, how large, when, what it trained, what it held."""
    run = doc.run
    parts = [" ".join(part for part in (f"run {run.id}" if run.id else "run", run.name) if part)]
    if run.disposition:
        ended = f", exit {run.exit_code}" if run.exit_code else ""
        parts.append(in_words(run.disposition) + ended + (f", signal {run.signal}" if run.signal else ""))
    if run.nodes:
        parts.append(f"{len(run.nodes)} node{'s' if len(run.nodes) > 1 else ''}")
    if run.n_ranks:
        parts.append(f"{run.n_ranks} rank{'s' if run.n_ranks > 1 else ''}")
    end = run.as_of if run.end is None else run.end
    if run.start is not None and end is not None and end >= run.start:
        so_far = " so far" if run.end is None else ""
        parts.append(f"{moment(run.start)}, {duration(end - run.start)}{so_far}")
    since = doc.primary.since
    if run.as_of is not None and since is not None and since < run.as_of:  # of a run that is over, the claims say it
        parts.append(f"so for {duration(run.as_of - since)}, since {moment(since)}")
    if run.framework:
        parts.append(run.framework)
    if doc.progress is not None:
        first, last = doc.progress.first, doc.progress.last
        told = ["not printed" if point.loss is None else str(point.loss) for point in (first, last)]
        losses = f", loss {told[0]} \N{RIGHTWARDS ARROW} {told[1]}" if first.loss is not None else ""
        count = doc.progress.points
        parts.append(f"{count} training point{'' if count == 1 else 's'}{losses if count > 1 else ''}")
    if doc.waste is not None:
        parts.append(in_brief(doc.waste))
    return " \N{MIDDLE DOT} ".join(parts)
