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
    """The ranks, GPUs and nodes that it names, each node once: ``rank 5 (gpu001:5)``; may be empty."""
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


def answer(finding: FindingDoc) -> str:
    """What happened, in one clause."""
    return finding.title if finding.headline is None else finding.headline.text


def headline(finding: FindingDoc) -> str:
    """What happened, where, and when it began."""
    time = "" if finding.began is None else moment(finding.began)
    place_and_time = ", ".join(filter(None, (where(finding), time)))
    return f"{answer(finding)} \N{EM DASH} {place_and_time}" if place_and_time else answer(finding)


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
