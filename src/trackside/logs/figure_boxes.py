"""Boxes of figures, a name and a number a row: the loggers of OpenAI Baselines and Spinning Up, and tables of rich.

| loss       | 0.0152   |
| step       | 1.92e+04 |
"""

from __future__ import annotations

import re
from itertools import islice, takewhile

from trackside.logs.figures import LineFigures
from trackside.logs.line import Line
from trackside.logs.line_positions import LinePosition
from trackside.logs.loss_points import loss_point
from trackside.logs.numbers import LAST_RANK, NUMBER, as_whole, field_meaning, number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("figure-boxes", "boxes of names and figures", "framework", generic=True, precedence=610)

_ROW = re.compile(
    rf"^\s{{0,8}}[|\u2502\u2503]\s{{1,40}}(?P<name>[A-Za-z][\w/.()-]{{0,40}})\s{{0,60}}[|\u2502\u2503]\s{{1,40}}(?P<value>{NUMBER})\s{{0,40}}[|\u2502\u2503]\s*$"
)
_TITLE = re.compile(r"^\W{0,60}(?P<name>step|epoch|iter(?:ation)?) #?(?P<value>\d{1,9})\W{0,60}$", re.IGNORECASE)
_EDGE = re.compile(r"^[^|\u2502\u2503]*$")
"""A line outside the box, or its frame."""
MAX_ROWS = 60
"""Rows above and below a loss."""
MAX_TITLE_LINES = 4
"""Lines above the rows in which their title is."""
_COUNTERS = frozenset({"nupdates", "n_updates", "itr", "totalenvinteracts"})
_LIKELIHOOD = re.compile(r"(?:train[_/])?(?:mean_)?nll$")


@PARSER.pattern(
    rb"(?:[lL]oss[a-zA-Z_]{0,12}|nll) {0,60}(?:\x1b\[[0-9;]{1,8}m {0,2}){0,3}(?:\||\xe2\x94\x82)(?:\x1b\[[0-9;]{1,8}m {0,2}){0,3} {0,40}-?[0-9naif]",
    safety="Only in a box that also names a step or an epoch, in a row or as its title; the most specific loss counts.",
    matches=(
        "-------------------------\n| grad_norm  | 167      |\n| loss       | 0.0152   |\n| loss_q0    | 0.021    |\n| samples    | 3.06e+05 |\n| step       | 1.92e+04 |\n-------------------------",
        "          Step 4          \n┏━━━━━━━━┳━━━━━━━━┓\n┃ Metric ┃ Value  ┃\n┡━━━━━━━━╇━━━━━━━━┩\n│ num_loss_tokens │ 164 │\n│ train_mean_nll │ 0.3397 │\n└────────┴────────┘",
        "---------------------------------------\n|             Epoch |               3 |\n|      AverageEpRet |            -123 |\n|            LossPi |          0.0131 |\n---------------------------------------",
    ),
    avoids=(
        "| metric | value |\n|--------|-------|\n| loss | 0.31 |\n| acc | 0.92 |",
        "| loss_weight | 0.5 |\n| step | 10 |",
        "| eval_loss | 0.5 |\n| step | 10 |",
        "| test/nll | 0.5 |\n| step | 10 |",
    ),
)
def _progress(line: Line) -> Event | None:
    own = _ROW.match(line.text)
    if own is None:
        return None
    above, title = _rows_above(line)
    below = [row for other in takewhile(_is_inside, line.following(MAX_ROWS)) if (row := _ROW.match(other.text))]
    figures = LineFigures()
    is_rounded = False
    losses: list[tuple[int, str]] = []
    for row in [*above, own, *below]:
        name, value = row["name"].rpartition("/")[2].lower(), number(row["value"])
        field = ("step", LAST_RANK) if name in _COUNTERS else field_meaning(row["name"])
        field = ("loss", LAST_RANK) if _LIKELIHOOD.match(row["name"].lower()) else field
        if field is None or value is None or (field[0] == "step" and as_whole(value) is None):
            continue
        is_rounded = is_rounded or (field[0] == "step" and "e" in row["value"])
        figures.add(*field, value)
        if field[0] == "loss":
            losses.append((field[1], row["name"]))
    if title is not None:
        figures.add(*(field_meaning(title["name"]) or ("step", 0)), float(title["value"]))
    if not losses or min(losses, key=lambda loss: loss[0])[1] != own["name"]:
        return None
    if not figures.values.keys() & {"step", "epoch"}:
        return None
    step = None if is_rounded else figures.whole_value("step")
    epoch = figures.whole_value("epoch") if step is None else None
    return loss_point(line, figures, LinePosition(step, epoch))


def _is_inside(line: Line) -> bool:
    """Whether a line is a row of a box."""
    return _EDGE.match(line.text) is None


def _rows_above(line: Line) -> tuple[list[re.Match[str]], re.Match[str] | None]:
    """The rows above a row, from the top, and the title of their box."""
    rows: list[re.Match[str]] = []
    lines = line.preceding(MAX_ROWS + MAX_TITLE_LINES)
    for other in lines:
        if not _is_inside(other):
            break
        if row := _ROW.match(other.text):
            rows.append(row)
    titles = (_TITLE.match(other.text) for other in islice(lines, MAX_TITLE_LINES))
    return rows[::-1], next(filter(None, titles), None)
