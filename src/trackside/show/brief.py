"""The verdict on one screen of a terminal: the answer, its strongest evidence, what to do, what it cost.

It fits 24 lines of 100 columns for nearly every run. :mod:`trackside.show.text` prints everything (``--verbose``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from trackside.catalog.excerpt import ELLIPSIS, GAP, cut
from trackside.families import find_family
from trackside.show import citations, heading
from trackside.show.document import ActionDoc, ClaimDoc, SecondaryDoc, VerdictDoc
from trackside.show.text import classification, command_lines, trim_trailing_spaces
from trackside.show.waste import in_brief
from trackside.wording import capitalize, with_stop

MAX_LINES = 24
MAX_FACTS, MIN_FACTS = 5, 3
MAX_ACTIONS = 4
MAX_CAUTIONS = 4
MAX_OTHERS = 2
"""Consequences and warnings, each."""
MAX_EARLIER = 3
"""Earlier runs in the log."""
MAX_COSTS = 2
FACT_LINES = 2
"""Lines of one fact; the rest of a longer one is left to ``--verbose``."""
CAUTION_LINES = 3
LABEL_WIDTH = 11
LabeledLines = list[tuple[str, Text]]
_SERVER_URL = re.compile(r"https?://[^\s/]*[^\s/:;,]")


def render(doc: VerdictDoc, console: Console) -> None:
    """Print the answer, with fewer facts if it would be longer than the screen."""
    lines = [Text(heading.headline(doc.primary, doc.run), style="bold")]
    lines.append(classification(doc.primary, heading.certainty(doc.primary)))
    if run_line := heading.run(doc):
        lines.append(Text(run_line, style="dim"))
    if unsettled := heading.unsettled(doc):
        lines.append(Text(unsettled, style="yellow"))
    head = Group(*lines, "")
    for facts in range(MAX_FACTS, MIN_FACTS - 1, -1):
        screen = Group(head, *_sections(doc, console.width, facts), Text(_more(doc, facts), style="dim"))
        if len(console.render_lines(screen)) <= MAX_LINES:
            break
    with trim_trailing_spaces(console):
        console.print(screen, crop=False)  # a command may be wider than the console


def _sections(doc: VerdictDoc, console_width: int, facts: int) -> Iterator[Table | Text]:
    """The labeled lines as tables, and between them the commands, which no table may wrap."""
    width = max(20, console_width - LABEL_WIDTH - 1)
    rows = [
        *_label_lines(heading.EVIDENCE, [_fact(claim, doc, width) for claim in doc.shows[:facts]]),
        *_label_lines(heading.CAUTIONS, _cautions(doc, width)),
        *_label_lines(heading.ACTIONS, _actions(doc, console_width)),
        *_label_lines(heading.CONSEQUENCES, [_other(finding, doc, width) for finding in doc.consequences[:MAX_OTHERS]]),
        *_label_lines(heading.WARNINGS, _warnings(doc, console_width)),
        *_label_lines(heading.EARLIER, _earlier(doc, width)),
        *_label_lines(heading.COST, _cost(doc, width)),
        *_label_lines(heading.UNDECIDED, _undecided(doc, width)),
    ]
    for is_command, part in groupby(rows, key=lambda row: bool(row[1].no_wrap)):
        if is_command:
            yield from (line for _, line in part)
            continue
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(width=LABEL_WIDTH, style="dim", no_wrap=True)
        table.add_column(ratio=1, overflow="fold")
        for label, line in part:
            table.add_row(label, line)
        yield table


def paragraph(doc: VerdictDoc) -> str:
    """The answer in one paragraph, for a chat or a job's comment."""
    first, defects = doc.primary, [claim for claim in doc.preflight if claim.cites]
    parts = [
        with_stop(heading.headline(first, doc.run)),
        f"Owner: {heading.owner(first)}.",
        f"{', '.join(filter(None, (heading.kind(first), heading.certainty(first))))}.",
        *filter(None, [heading.unsettled(doc)]),
        *(with_stop(claim.text) for claim in doc.shows[:1]),
        *(f"Caution: {_without_repeated_url(claim)}" for claim in defects[:1]),
        *(f"Do: {with_stop(action.text)}" for action in doc.actions[:1]),
        *(f"Command: `{action.command}`." for action in doc.actions[:1] if action.command),
        *([f"Cost: {in_brief(doc.waste)}."] if doc.waste is not None else []),
    ]
    return " ".join(parts)


def _label_lines(section: heading.VerdictSection, lines: Iterable[Text]) -> LabeledLines:
    """Lines of one section: its label stands before the first."""
    return [(section.label if position == 0 else "", line) for position, line in enumerate(lines)]


def _fact(claim: ClaimDoc, doc: VerdictDoc, width: int) -> Text:
    """A sentence and the location of its figure, in at most :data:`FACT_LINES` lines, and one more if only the location
    does not fit. Without the numbers of its citations, because the list of citations is not printed."""
    location = f" [{citations.main_location(claim, doc.cites)}]" if claim.cites else ""
    lines = FACT_LINES + (GAP in claim.text)  # what is left of a long line is what matters
    text, max_chars = with_stop(claim.text), lines * width - width // 8  # lines break before their end
    if len(text) > max_chars:
        max_chars = max(width // 2, max_chars - len(location))
    return Text(_cut(text, max_chars)).append(location, style="dim")


def _cautions(doc: VerdictDoc, width: int) -> list[Text]:
    """What makes the evidence incomplete or doubtful, a line each; then the inputs that are missing, in one."""
    defects = [claim for claim in doc.preflight if claim.cites]
    text = ""
    for claim in doc.preflight:
        longer = f"{text} {with_stop(claim.text)}".lstrip()
        if not claim.cites and len(longer) <= CAUTION_LINES * width - width // 8:
            text = longer
    return [
        *(_defect(claim, width) for claim in defects[:MAX_CAUTIONS]),
        *([Text(text, style="yellow")] if text else []),
    ]


def _defect(claim: ClaimDoc, width: int) -> Text:
    """What makes evidence of this run incomplete or doubtful."""
    return Text(_cut(_without_repeated_url(claim), CAUTION_LINES * width - width // 8), style="yellow")


def _without_repeated_url(claim: ClaimDoc) -> str:
    """The sentence with a server's URL only once, so that the reason fits."""
    text = claim.text
    if server := _SERVER_URL.search(text):
        text = text[: server.end()] + text[server.end() :].replace(f"{server[0]} ", "").replace(server[0], "")
    return with_stop(text)


def _actions(doc: VerdictDoc, console_width: int) -> list[Text]:
    """What to do; what to collect, if the cause is not certain."""
    width = max(20, console_width - LABEL_WIDTH - 1)
    lines = [line for action in doc.actions[:MAX_ACTIONS] for line in _action(action, console_width)]
    return lines + [Text(_cut(text, FACT_LINES * width - width // 8)) for text in heading.collect_actions(doc)]


def _action(action: ActionDoc, console_width: int) -> list[Text]:
    lines = [Text(with_stop(action.text))]
    return lines + ([] if action.command is None else command_lines(action.command, LABEL_WIDTH + 3, console_width))


def _other(finding: SecondaryDoc, doc: VerdictDoc, width: int) -> Text:
    """A consequence or a warning; if it is too long, its family and certainty remain."""
    label = f" ({finding.family}, {finding.certainty})"
    return Text(_cut(heading.headline(finding, doc.run), FACT_LINES * width - width // 8 - len(label)) + label)


def _warnings(doc: VerdictDoc, console_width: int) -> list[Text]:
    """Warnings; of a healthy run, each with its first action."""
    width = max(20, console_width - LABEL_WIDTH - 1)
    match = find_family(doc.primary.family)
    n_actions = 1 if match is not None and match.role == "health" else 0
    return [
        line
        for finding in doc.warnings[:MAX_OTHERS]
        for line in (
            _other(finding, doc, width),
            *(line for action in finding.actions[:n_actions] for line in _action(action, console_width)),
        )
    ]


def _earlier(doc: VerdictDoc, width: int) -> list[Text]:
    """The earlier runs in the log, a line each."""
    return [Text(_cut(line, width)) for line in heading.earlier_runs(doc, MAX_EARLIER)]


def _cost(doc: VerdictDoc, width: int) -> list[Text]:
    """How the money is computed, or why it cannot be; only if a price is given: GPU-hours stand in the run's line."""
    if not doc.priced:
        return []
    lines = doc.waste_unknown if doc.waste is None else [doc.waste.cost_formula, doc.waste.lost_formula]
    return [Text(_cut(with_stop(line), width)) for line in dict.fromkeys(lines[:MAX_COSTS]) if line]


def _undecided(doc: VerdictDoc, width: int) -> Sequence[Text]:
    """The first question that the evidence leaves open."""
    return [Text(_cut(with_stop(claim.text), FACT_LINES * width - width // 8)) for claim in doc.cannot_decide[:1]]


def _more(doc: VerdictDoc, n_lines: int) -> str:
    """What was left out, and how to see it."""
    lines = len(doc.shows) - n_lines
    others = max(0, len(doc.consequences) - MAX_OTHERS) + max(0, len(doc.warnings) - MAX_OTHERS)
    defects = sum(bool(claim.cites) for claim in doc.preflight) - MAX_CAUTIONS
    parts = [f"{defects} more cautions" if defects > 1 else "1 more caution"] if defects > 0 else []
    parts += [f"{lines} more lines of evidence" if lines > 1 else "1 more line of evidence"] if lines > 0 else []
    parts += [f"{others} more findings" if others > 1 else "1 more finding"] if others else []
    actions, questions = len(doc.actions) - MAX_ACTIONS, len(doc.cannot_decide) - 1
    parts += [f"{actions} more actions" if actions > 1 else "1 more action"] if actions > 0 else []
    parts += [f"{questions} more open questions" if questions > 1 else "1 more open question"] if questions > 0 else []
    outcomes = {"ruled out": len(doc.ruled_out), "undecided": len(doc.unknown)}
    counts = [(number, outcome) for outcome, number in outcomes.items() if number]
    for position, (number, outcome) in enumerate(counts):
        noun = "" if position else "other family " if number == 1 else "other families "
        parts.append(f"{number} {noun}{outcome}")
    return f"{capitalize(', '.join(parts))}. Details: --verbose, trackside explain {doc.primary.family}"


def _cut(text: str, length: int) -> str:
    """A text of at most so many characters, cut at a word; inside a long one, such as a path."""
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    begin, gap, end = text.rpartition(GAP)
    if gap and len(end) < length // 2:  # the end of a quoted line was kept because the reason stands there
        return cut(begin, length - len(gap + end)).removesuffix(ELLIPSIS) + gap + end
    return cut(text, length) + ('"' if text.rstrip(".").endswith('"') else "")  # a quoted line was cut
