"""The verdict as GitHub-flavored Markdown, for a ticket; readable as plain text as well.

Text from logs is escaped, so that it cannot create headings, links, images or mentions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from trackside.show import citations, heading
from trackside.show.document import ActionDoc, CiteDoc, ClaimDoc, SecondaryDoc, TextDoc, VerdictDoc
from trackside.show.sanitize import replace_unsafe
from trackside.show.waste import in_lines
from trackside.wording import ranges, with_stop

MAX_QUOTE_CHARS = 300
"""Characters shown of a cited line."""
_MARKS = re.compile(r"([\\`*_\[\]<>#|~$&])")
_LIST = re.compile(r"^(?=[-+=]|\d+(?=[.)]\s))(\d*)")
_MENTION = re.compile(r"@(?=\w)")
_LINK = re.compile(r"(?i)\b(https?|ftp|mailto|www)(?=[:.])")
_SEPARATOR = "\N{ZERO WIDTH SPACE}"


def render(doc: VerdictDoc) -> str:
    """The whole verdict as Markdown, with a final line end."""
    first = doc.primary
    classification = (f"owner: {heading.owner(first)}", heading.kind(first), heading.confidence(first))
    blocks = [
        f"### {escape(heading.headline(first, doc.run))}",
        escape(heading.SEPARATOR.join(filter(None, classification))),
        escape(heading.run(doc)),
        escape(heading.unsettled(doc)),
        _section(heading.EVIDENCE.title, _sentences(doc.shows)),
        _section(heading.CAUTIONS.title, _sentences(doc.preflight)),
        _section(heading.MEANING.title, _sentences(doc.implies)),
        _section(heading.ACTIONS.title, _actions(doc)),
        _section(heading.CONSEQUENCES.title, [_secondary(finding, doc) for finding in doc.consequences]),
        _section(heading.WARNINGS.title, [_warning(finding, doc) for finding in doc.warnings]),
        _section(heading.EARLIER.title, [escape(text) for text in heading.earlier_runs(doc)]),
        _section(heading.COST.title, _costs(doc)),
        _section(heading.UNDECIDED.title, _sentences(doc.cannot_decide)),
        _section("Citations", _citations(doc)),
        _families(doc),
        f"trackside {escape(doc.version)}",
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def escape(text: str) -> str:
    """Text escaped for one line of Markdown: it creates no heading, list, link, image, mention or formula."""
    text = _MARKS.sub(r"\\\1", " ".join(replace_unsafe(text).split()))
    text = _LINK.sub(lambda match: match[1] + _SEPARATOR, _MENTION.sub("@" + _SEPARATOR, text))
    return _LIST.sub(r"\1\\", text)


def code_span(text: str) -> str:
    """Text as a code span, fenced by more backticks than the text contains in a row."""
    text = " ".join(replace_unsafe(text).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}" if text else "` `"


def _section(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(f"- {line}" for line in lines)
    return f"**{title}**\n\n{body}" if body else ""


def _sentences(claims: Iterable[ClaimDoc | TextDoc]) -> list[str]:
    return [escape(with_stop(claim.text)) + _numbers(claim.cites) for claim in claims]


def _numbers(names: Sequence[str]) -> str:
    numbers = ranges([int(citations.number(name)) for name in names])
    return f" [{numbers}]" if names else ""


def _actions(doc: VerdictDoc) -> list[str]:
    return [*map(_action, doc.actions), *(f"**{escape(with_stop(text))}**" for text in heading.collect_actions(doc))]


def _action(action: ActionDoc) -> str:
    return f"**{escape(with_stop(action.text))}**" + (f"\n  {code_span(action.command)}" if action.command else "")


def _secondary(finding: SecondaryDoc, doc: VerdictDoc) -> str:
    head = f"{escape(heading.headline(finding, doc.run))} ({finding.family} {finding.id}, {finding.certainty})"
    return "\n  - ".join([head, *_sentences(heading.own_evidence(finding, doc))])


def _warning(finding: SecondaryDoc, doc: VerdictDoc) -> str:
    """A warning with its actions; a consequence needs none, because it ends with the fault."""
    lines = [_action(action).replace("\n", "\n  ") for action in finding.actions]
    return "\n  - ".join([_secondary(finding, doc), *lines])


def _citations(doc: VerdictDoc) -> list[str]:
    """The citations, in order. Lines of one log that the same sentences cite are one entry, with the first line."""
    claims_by_name: dict[str, list[int]] = defaultdict(list)
    for number, claim in enumerate(citations.claims(doc)):
        for name in claim.cites:
            claims_by_name[name].append(number)

    def source(name: str) -> tuple[object, ...]:
        cite = doc.cites[name]
        path, _, line = cite.where.rpartition(":")
        return (path, *claims_by_name[name]) if line.isdecimal() and citations.line(cite) else (name,)

    groups = (list(names) for _, names in groupby(citations.of_verdict(doc), key=source))
    return [_citation(names, [doc.cites[name] for name in names]) for names in groups]


def _citation(names: Sequence[str], cites: Sequence[CiteDoc]) -> str:
    """One citation, or several lines of one log: numbers, location, and the value or the first line found there."""
    cite = cites[0]
    window, location = citations.window(cite), citations.location(cite)
    several_lines = len({other.where for other in cites}) > 1
    if several_lines:
        path, _, _ = cite.where.rpartition(":")
        location = f"{path}:{ranges([int(other.where.rpartition(':')[2]) for other in cites])}"
    numbers = ranges([int(citations.number(name)) for name in names])
    head = f"[{numbers}] {code_span(location)}" + (f", {escape(window)}" if window else "")
    head += ", the first line" if several_lines else ""
    if line := citations.line(cite):
        quote = line if len(line) <= MAX_QUOTE_CHARS else line[: MAX_QUOTE_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
        return f"{head}: {code_span(quote)}"
    return f"{head} = {escape(citations.figure(cite))}"


def _costs(doc: VerdictDoc) -> list[str]:
    """GPU-hours allocated and lost, with the formulas; empty unless a price was given or GPU-hours were lost."""
    lost = doc.waste is not None and doc.waste.lost
    return [escape(with_stop(text)) for text in in_lines(doc.waste, doc.waste_unknown)] if doc.priced or lost else []


def _families(doc: VerdictDoc) -> str:
    rows = [(f.family, f.id, "ruled out", f.because) for f in doc.ruled_out]
    rows += [(f.family, f.id, "undecided", "; ".join(f.missing)) for f in doc.unknown]
    lines = [f"| {family} | {slug} | {state} | {escape(reason)} |" for family, slug, state, reason in sorted(rows)]
    head = [f"**{heading.FAMILIES.title}**", "", "| family | id | result | reason |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *lines]) if lines else ""
