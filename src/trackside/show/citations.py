"""A citation in words: its number, where to look, and what stands there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trackside.catalog.streams import is_stream
from trackside.show.document import CiteDoc, ClaimDoc, TextDoc, VerdictDoc
from trackside.show.wording import duration, measured, moment, parsed, ranges, span, word

TIMES = ("submit", "eligible", "start", "end")
QUOTED = 80
"""Characters by which a quotation in a claim is recognised."""


def number(name: str) -> str:
    """``c12`` as readers see it: 12."""
    return name.removeprefix("c")


def is_measured(cite: CiteDoc) -> bool:
    """Of what a server of metrics failed to say an event tells, in the same plane."""
    return cite.query.startswith("metric(")


def place(cite: CiteDoc) -> str:
    """Where to look: ``slurm-42.out:19``, ``sacct.txt:2 State``, or what was measured of whom. A line that was sent has
    its time beside it, not in it."""
    if is_measured(cite):
        return measured(cite.query)[0]
    sent = cite.window is not None and is_stream(cite.where.rpartition(":")[0])
    return f"{cite.where}, {moment(cite.window[0])}" if sent and cite.window else cite.where


def figure(cite: CiteDoc) -> str:
    """A measurement's value with its unit; a record's value, its times and durations readable."""
    if is_measured(cite):
        unit = measured(cite.query)[1]
        return word(cite.value, unit and (cite.unit or unit))
    field = cite.where.rpartition(" ")[2]
    if isinstance(cite.value, float) and (field in TIMES or field.endswith("_time")):
        return moment(cite.value)
    if isinstance(cite.value, float) and field.endswith("_s"):
        return duration(cite.value)
    return f"{cite.value} {cite.unit}".rstrip()


def window(cite: CiteDoc) -> str:
    """Over which time it was measured; empty for what has one moment."""
    return "" if cite.window is None or not is_measured(cite) else span(cite.window)


def line(cite: CiteDoc) -> str:
    """The line of a log that is cited; empty for a measurement, and for a record's field, whose row says less."""
    text = " ".join(cite.text.split())
    if is_measured(cite) or (cite.plane == "scheduler" and " ".join(str(cite.value).split()) != text):
        return ""
    return text


def unquoted(claim: ClaimDoc, cites: Mapping[str, CiteDoc]) -> str:
    """The first cited line, where the claim does not quote it itself."""
    lines = [line(cites[name]) for name in claim.cites]
    first = next(filter(None, lines), "")
    return "" if any(each and each[:QUOTED] in claim.text for each in lines) else first


def of_verdict(doc: VerdictDoc) -> list[str]:
    """The citations of what is said of the run, in their order: not those of what was ruled out, and of the cost."""
    claims: list[ClaimDoc | TextDoc] = [*doc.preflight, *doc.shows, *doc.implies, *doc.cannot_decide]
    claims += [claim for finding in (*doc.consequences, *doc.warnings) for claim in finding.shows]
    told = {name for claim in claims for name in claim.cites}
    return [name for name in doc.cites if name in told]


def by_place(names: Iterable[str], cites: Mapping[str, CiteDoc]) -> list[tuple[str, str]]:
    """The numbers of citations, as ranges, with each place that they point to: of a measurement its metric's name."""
    places: dict[str, list[int]] = {}
    for name in names:
        cite = cites[name]
        where = cite.where
        if is_measured(cite):
            asked = parsed(cite.query)
            where = cite.query if asked is None else asked.kind
        places.setdefault(where, []).append(int(number(name)))
    return [(ranges(numbers).replace(" ", ""), where) for where, numbers in places.items()]
