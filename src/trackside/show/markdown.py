"""The verdict as Markdown, for a ticket or a chat: GitHub's dialect, readable as it stands where none is known.

What logs say is escaped: it makes no heading, link, picture or mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trackside.show import citations, heading
from trackside.show.document import CiteDoc, ClaimDoc, SecondaryDoc, TextDoc, VerdictDoc
from trackside.show.sanitize import shown
from trackside.show.waste import in_lines
from trackside.show.wording import with_stop

LONGEST_QUOTE = 300
"""Characters of a cited line."""
_MARKS = re.compile(r"([\\`*_\[\]<>#|~$&])")
_LIST = re.compile(r"^(?=[-+=]|\d+(?=[.)]\s))(\d*)")
_MENTION = re.compile(r"@(?=\w)")
_LINK = re.compile(r"(?i)\b(https?|ftp|mailto|www)(?=[:.])")
_APART = "\N{ZERO WIDTH SPACE}"


def render(doc: VerdictDoc) -> str:
    """The whole verdict, ended by a line end."""
    first = doc.primary
    where = heading.where(first)
    blocks = [
        f"### {escaped(heading.family(first))} \N{EM DASH} culprit: {first.culprit}, confidence: "
        + escaped(heading.confidence(first)),
        f"**{escaped(first.title)}**" + (f" \N{EM DASH} {escaped(where)}" if where else ""),
        escaped(heading.run(doc)),
        _section("What limits this verdict", _sentences(doc.preflight)),
        _section("What the data shows", _sentences(doc.shows)),
        _section("What it implies, and what to do", [*_sentences(doc.implies), *_actions(doc)]),
        _section("What it cannot decide", _sentences(doc.cannot_decide)),
        _section("Consequences", map(_secondary, doc.consequences)),
        _section("Warnings", map(_secondary, doc.warnings)),
        _section("What it cost", _costs(doc)),
        _section("Evidence", [_evidence(name, doc.cites[name]) for name in citations.of_verdict(doc)]),
        _families(doc),
        f"trackside {escaped(doc.version)}",
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line: no heading, list, link, picture, mention or formula."""
    text = _MARKS.sub(r"\\\1", " ".join(shown(text).split()))
    text = _LINK.sub(lambda found: found[1] + _APART, _MENTION.sub("@" + _APART, text))
    return _LIST.sub(r"\1\\", text)


def code(text: str) -> str:
    """Text as a code span, whatever ticks it holds."""
    text = " ".join(shown(text).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}" if text else "` `"


def _section(title: str, lines: Iterable[str]) -> str:
    told = "\n".join(f"- {line}" for line in lines)
    return f"**{title}**\n\n{told}" if told else ""


def _sentences(claims: Iterable[ClaimDoc | TextDoc]) -> list[str]:
    return [escaped(claim.text) + _numbers(claim.cites) for claim in claims]


def _numbers(names: Iterable[str]) -> str:
    told = ", ".join(map(citations.number, names))
    return f" [{told}]" if told else ""


def _actions(doc: VerdictDoc) -> list[str]:
    return [
        f"**{escaped(action.text)}**" + (f" {code(action.command)}" if action.command else "") for action in doc.actions
    ]


def _secondary(finding: SecondaryDoc) -> str:
    said = "; ".join(_sentences(finding.shows))
    return f"{finding.family} {finding.id} ({finding.certainty}): {said}"


def _evidence(name: str, cite: CiteDoc) -> str:
    """Its number, where to look, and what stands there."""
    over = citations.window(cite)
    place = f"[{citations.number(name)}] {code(citations.place(cite))}" + (f", {escaped(over)}" if over else "")
    if line := citations.line(cite):
        cut = line if len(line) <= LONGEST_QUOTE else line[: LONGEST_QUOTE - 1] + "\N{HORIZONTAL ELLIPSIS}"
        return f"{place}: {code(cut)}"
    return f"{place} = {escaped(citations.figure(cite))}"


def _costs(doc: VerdictDoc) -> list[str]:
    """What it held and lost, with the formulas: where a price was given, or something was lost."""
    lost = doc.waste is not None and doc.waste.lost
    return [escaped(with_stop(text)) for text in in_lines(doc.waste, doc.waste_unknown)] if doc.priced or lost else []


def _families(doc: VerdictDoc) -> str:
    rows = [(f.family, f.id, "ruled out", f.because) for f in doc.ruled_out]
    rows += [(f.family, f.id, "unknown", "; ".join(f.missing)) for f in doc.unknown]
    lines = [f"| {family} | {slug} | {what} | {escaped(why)} |" for family, slug, what, why in sorted(rows)]
    head = ["**All families**", "", "| family | | | why |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *lines]) if lines else ""
