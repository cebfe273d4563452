"""A citation as text: its number, its location, and the value or line found there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trackside.catalog.streams import is_stream
from trackside.catalog.throttle import REASONS, reasons_in
from trackside.show.document import CiteDoc, ClaimDoc, TextDoc, VerdictDoc
from trackside.wording import duration, metric_phrase, moment, parse_query, span, word

_DETAILS = re.compile(r"(?::| \().*")
MAX_VALUE_CHARS, MAX_PART_CHARS = 300, 40
"""Characters of a value that are shown, and by which a line is searched for it."""
TIMES = ("submit", "eligible", "start", "end")


def number(name: str) -> str:
    """The number that readers see: ``c12`` gives 12."""
    return name.removeprefix("c")


def is_measured(cite: CiteDoc) -> bool:
    """Whether it cites samples. The plane does not show that: an unavailable metric server is an event in the metric
    plane."""
    return cite.query.startswith("metric(")


def location(cite: CiteDoc) -> str:
    """Where to look: ``slurm-42.out:19``, ``sacct.txt:2 State``, or which metric of which GPU. A line of a pushed log
    stream carries no time of its own, so its time is appended."""
    if is_measured(cite):
        return metric_phrase(cite.query)[0]
    pushed = cite.window is not None and is_stream(cite.where.rpartition(":")[0])
    return f"{cite.where}, {moment(cite.window[0])}" if pushed and cite.window else cite.where


def figure(cite: CiteDoc) -> str:
    """The cited value with its unit; times and durations of records in readable form."""
    if is_measured(cite):
        unit = metric_phrase(cite.query)[1]
        if unit == "flags" and isinstance(cite.value, (int, float)):
            return _flags(int(cite.value))
        return word(cite.value, unit and (cite.unit or unit))
    query = parse_query(cite.query)
    if query is not None and query.reducer == "count" and isinstance(cite.value, (int, float)):
        return word(cite.value, cite.unit if query.reduced else f"{query.kind.replace('_', ' ')} entries")
    field = cite.where.rpartition(" ")[2]
    if isinstance(cite.value, float) and (field in TIMES or field.endswith("_time")):
        return moment(cite.value)
    if isinstance(cite.value, float) and field.endswith("_s"):
        return duration(cite.value)
    return f"{cite.value} {cite.unit}".rstrip()


def _flags(bits: int) -> str:
    """Throttle reasons as ``0x48 (hardware slowdown, hardware thermal slowdown)``."""
    titles = [_DETAILS.sub("", REASONS[name].title) for name in reasons_in(bits)]
    return f"{bits:#x} ({', '.join(dict.fromkeys(titles))})" if titles else f"{bits:#x}"


def window(cite: CiteDoc) -> str:
    """The time span of a measurement; empty for anything else."""
    return "" if cite.window is None or not is_measured(cite) else span(cite.window)


def line(cite: CiteDoc) -> str:
    """The cited log line. Empty for a measurement, and for a field of a record: its row adds nothing to the value."""
    text = " ".join(cite.text.split())
    if is_measured(cite) or (cite.plane == "scheduler" and " ".join(str(cite.value).split()) != text):
        return ""
    return text


def values_not_in_line(line: str, cites: Iterable[CiteDoc]) -> list[str]:
    """The cited words that the line itself does not contain, such as the first exception of a chain."""
    words = [" ".join(str(cite.value).split()) for cite in cites if isinstance(cite.value, str)]
    missing = dict.fromkeys(text for text in words if text and text[:MAX_PART_CHARS].casefold() not in line.casefold())
    return [
        text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
        for text in missing
    ]


def claims(doc: VerdictDoc) -> list[ClaimDoc | TextDoc]:
    """The sentences of the verdict itself, without those about families ruled out and about the cost."""
    own: list[ClaimDoc | TextDoc] = [*doc.preflight, *doc.shows, *doc.implies, *doc.cannot_decide]
    return own + [claim for finding in (*doc.consequences, *doc.warnings) for claim in finding.shows]


def of_verdict(doc: VerdictDoc) -> list[str]:
    """The citations of the verdict itself, in order; without those of families ruled out and of the cost."""
    cited = {name for claim in claims(doc) for name in claim.cites}
    return [name for name in doc.cites if name in cited]


def main_location(claim: ClaimDoc, cites: Mapping[str, CiteDoc]) -> str:
    """Where the claim's figure stands: the location of the first measurement whose value the sentence contains, else of
    the first citation. Counts of lines are passed over, since they have no line of their own. Of a record's fields, the
    one with the longest value that the sentence contains. A measurement's location is its metric's name."""
    cited = [cites[name] for name in claim.cites]
    cited = [cite for cite in cited if not is_count(cite)] or cited
    main = next((cite for cite in cited if is_measured(cite) and _states(claim.text, figure(cite))), cited[0])
    if main.plane == "scheduler":
        stated = [cite for cite in cited if cite.plane == "scheduler" and _states(claim.text, figure(cite))]
        main = max(stated, key=lambda cite: len(figure(cite)), default=main)
    query = parse_query(main.query) if is_measured(main) else None
    return main.where if query is None else query.kind


def is_count(cite: CiteDoc) -> bool:
    """Whether it cites how many lines there are."""
    query = parse_query(cite.query)
    return query is not None and query.reducer == "count" and not is_measured(cite)


def _states(sentence: str, text: str) -> bool:
    """Whether a sentence contains a figure, not only as part of a longer one."""
    return bool(re.search(rf"(?<![\w.,:]){re.escape(text)}(?![\w:])", sentence))
