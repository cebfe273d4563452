"""The verdict on one screen of a terminal: the answer, its strongest evidence, what to do, what it cost.

It fits 24 lines of 100 columns for nearly every run. :mod:`trackside.show.text` prints everything (``--verbose``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from trackside.show import citations, heading
from trackside.show.document import ActionDoc, ClaimDoc, SecondaryDoc, VerdictDoc
from trackside.show.text import trimmed
from trackside.show.waste import in_brief
from trackside.show.wording import with_stop

MAX_LINES = 24
MAX_FACTS, MIN_FACTS = 5, 3
MAX_ACTIONS = 4
MAX_OTHERS = 2
"""Cautions, consequences and warnings, each."""
MAX_COSTS = 2
FACT_LINES = 2
"""Lines of one fact or caution; the rest of a longer one is left to ``--verbose``."""
MAX_WORD_CHARS = 16
"""Characters up to which a word is left out rather than cut."""
LABEL_WIDTH = 8
OWNERS = {
    "job": ("the job", "bold yellow"),
    "infrastructure": ("the infrastructure", "bold red"),
    "scheduler": ("the scheduler", "bold cyan"),
    "none": ("nobody", "bold green"),
    "unknown": ("not clear yet", "bold"),
}
"""Culprit -> who has to act, in words, and its style."""
Rows = list[tuple[str, Text]]
_SERVER_URL = re.compile(r"https?://[^\s/]*[^\s/:;,]")


def render(doc: VerdictDoc, console: Console) -> None:
    """Print the answer, with fewer facts if it would be longer than the screen."""
    head = Group(
        Text(heading.headline(doc.primary), style="bold"), _classification(doc), Text(heading.run(doc), style="dim"), ""
    )
    for facts in range(MAX_FACTS, MIN_FACTS - 1, -1):
        screen = Group(head, _table(doc, console.width, facts), Text(_more(doc, facts), style="dim"))
        if len(console.render_lines(screen)) <= MAX_LINES:
            break
    with trimmed(console):
        console.print(screen)


def _table(doc: VerdictDoc, console_width: int, facts: int) -> Table:
    width = max(20, console_width - LABEL_WIDTH - 1)
    defects = [claim for claim in doc.preflight if claim.cites]
    rows = [
        *_labeled("caution", [_defect(claim, width) for claim in defects[:MAX_OTHERS]]),
        *_labeled("why", [_fact(claim, doc, width) for claim in doc.shows[:facts]]),
        *_labeled("do", [line for action in doc.actions[:MAX_ACTIONS] for line in _action(action)]),
        *_labeled("then", [_other(finding, width) for finding in doc.consequences[:MAX_OTHERS]]),
        *_labeled("warning", [_other(finding, width) for finding in doc.warnings[:MAX_OTHERS]]),
        *_labeled("cost", _cost(doc, width)),
        *_labeled("unknown", _unknown(doc, width)),
    ]
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=LABEL_WIDTH, style="dim", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for label, line in rows:
        table.add_row(label, line)
    return table


def paragraph(doc: VerdictDoc) -> str:
    """The answer in one paragraph, for a chat or a job's comment."""
    owner, _ = OWNERS.get(doc.primary.culprit, OWNERS["unknown"])
    parts = [
        with_stop(heading.headline(doc.primary)),
        f"Owner: {owner} ({heading.family(doc.primary)}, {heading.confidence(doc.primary)}).",
        *(with_stop(claim.text) for claim in doc.shows[:1]),
        *(f"Do: {with_stop(_sentence(action.text))}" for action in doc.actions[:1]),
        *([f"Cost: {in_brief(doc.waste)}."] if doc.waste is not None else []),
    ]
    return " ".join(parts)


def _labeled(label: str, lines: Iterable[Text]) -> Rows:
    """Lines of one group: the label stands before the first."""
    return [(label if position == 0 else "", line) for position, line in enumerate(lines)]


def _classification(doc: VerdictDoc) -> Text:
    """Who has to act, the family, how sure it is."""
    primary = doc.primary
    owner, style = OWNERS.get(primary.culprit, OWNERS["unknown"])
    text = Text("owner: ").append(owner, style=style).append(f" \N{MIDDLE DOT} {heading.family(primary)}")
    if primary.fault_class:
        text.append(f", {primary.fault_class}")
    return text.append(f" \N{MIDDLE DOT} confidence {heading.confidence(primary)}")


def _fact(claim: ClaimDoc, doc: VerdictDoc, width: int) -> Text:
    """A sentence and the first place that it cites, in at most :data:`FACT_LINES` lines."""
    places = citations.by_location(claim.cites, doc.cites)
    place = f" [{places[0][0]}] {places[0][1]}" if places else ""
    room = max(width // 2, FACT_LINES * width - len(place) - width // 8)  # lines break before their end
    return Text(_cut(with_stop(claim.text), room)).append(place, style="dim")


def _defect(claim: ClaimDoc, width: int) -> Text:
    """What makes evidence of this run incomplete or doubtful. A server's URL stands once, so that the reason fits."""
    text = claim.text
    if server := _SERVER_URL.search(text):
        text = text[: server.end()] + text[server.end() :].replace(server[0], "")
    return Text(_cut(with_stop(_sentence(text)), FACT_LINES * width - width // 8), style="yellow")


def _action(action: ActionDoc) -> list[Text]:
    lines = [Text(with_stop(_sentence(action.text)))]
    return lines if action.command is None else [*lines, Text(f"  $ {action.command}", style="cyan")]


def _other(finding: SecondaryDoc, width: int) -> Text:
    """A consequence or a warning, in one line."""
    return Text(_cut(f"{heading.headline(finding)} ({finding.family}, {finding.certainty})", width))


def _cost(doc: VerdictDoc, width: int) -> list[Text]:
    """How the money is computed, or why it can't be; only if a price is given: GPU-hours stand in the run's line."""
    if not doc.priced:
        return []
    lines = doc.waste_unknown if doc.waste is None else [doc.waste.cost_formula, doc.waste.lost_formula]
    return [Text(_cut(with_stop(_sentence(line)), width)) for line in dict.fromkeys(lines[:MAX_COSTS]) if line]


def _unknown(doc: VerdictDoc, width: int) -> Sequence[Text]:
    """What can't be decided, and what to collect to decide it: one line each."""
    lines = [Text(_cut(with_stop(_sentence(claim.text)), width)) for claim in doc.cannot_decide[:1]]
    absent = [claim.text for claim in doc.preflight if not claim.cites]
    if absent:
        lines.append(Text(_cut(" ".join(map(with_stop, absent)), width)))
    if doc.primary.outcome != "found" or doc.primary.certainty == "possible":
        collect = list(dict.fromkeys(item for family in doc.unknown for item in family.collect))
        lines += [Text(_cut(f"Collect {item}", width)) for item in collect[:2]]
    return lines


def _more(doc: VerdictDoc, n_facts: int) -> str:
    """What was left out, and how to see it."""
    facts = len(doc.shows) - n_facts
    others = max(0, len(doc.consequences) - MAX_OTHERS) + max(0, len(doc.warnings) - MAX_OTHERS)
    defects = sum(bool(claim.cites) for claim in doc.preflight) - MAX_OTHERS
    parts = [f"{defects} more cautions" if defects > 1 else "1 more caution"] if defects > 0 else []
    parts += [f"{facts} more facts" if facts > 1 else "1 more fact"] if facts > 0 else []
    parts += [f"{others} more findings" if others > 1 else "1 more finding"] if others else []
    parts.append(f"{len(doc.ruled_out)} causes ruled out, {len(doc.unknown)} open")
    return f"{', '.join(parts)}: --verbose. About this kind of fault: trackside explain {doc.primary.family}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cut(text: str, length: int) -> str:
    """A text of at most so many characters, cut at a word; inside a long one, such as a path."""
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    words, _, last = text[: length - 1].rpartition(" ")
    return (words if len(last) < MAX_WORD_CHARS else f"{words} {last}") + "\N{HORIZONTAL ELLIPSIS}"
