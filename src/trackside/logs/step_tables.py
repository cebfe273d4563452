"""Tables of figures under a header that names a loss, and a step or an epoch unless the columns are separated by tabs.

``step,loss,lr`` with rows ``1,6.31,0.001``; columns of blanks, each line perhaps behind a time and a level; columns
between bars, plain or drawn; headers that are printed again for each epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trackside.logs.line import Line
from trackside.logs.numbers import LAST_RANK, as_whole, field_meaning, number, whole_number
from trackside.model import Event

MAX_ROWS = 20_000
"""Lines below a header that are read."""
MAX_OTHER_LINES = 40
"""Lines between two rows, such as those of an evaluation."""
MAX_ODD_LINES = 3
"""The same in a table of separated cells, such as warnings."""
MIN_ROWS = 3
"""Rows from which on a table without a position shows logged steps, not results."""
MAX_CELLS = 60
"""Columns of a table."""

GROUPS = "||"
"""Separator of columns of blanks whose groups are divided by bars."""
_NAME = re.compile(r"(?:\d[dD]_)?[A-Za-z][\w/.\-% ]{0,60}")
_BARS = re.compile(r" {0,9}[|\u2502\u2503\u2551] {0,9}")
"""Plain and drawn bars between columns; a header and its rows may have different ones."""
_BLANKS = re.compile(r"\t+|\s{2,}")
_BARS_AND_BLANKS = re.compile(r"\s{0,40}[|\u2502\u2503\u2551]\s{0,40}|\s{2,}")
_GROUP_OF_EVALUATION = re.compile(r"\b(?:val|valid|validation|dev|te?st|eval)\b", re.IGNORECASE)
_OF = re.compile(r"(\d{1,12})/(\d{1,12})")
_FIGURE = re.compile(r"(?:^|\s)[-+]?\d+(?:[./]\d+)?$")
"""A cell that is a figure or ends in one: its line is a row, or names its figures itself."""
_EVALUATION = re.compile(r"(?:val|valid|validation|dev|te?st|eval)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StepColumns:
    """The columns of a table; indexes count from a row's end, because a time and a level may be before the row."""

    separator: str | None
    count: int
    fields: dict[str, int]
    """field of ``progress`` -> index of its cell"""

    def cells(self, text: str) -> list[str] | None:
        """The cells of a row, or None if the line is no row of this table."""
        if self.separator == GROUPS:
            cells = _BARS_AND_BLANKS.split(text.strip(" |"))
            return cells if len(cells) == self.count else None
        cells = _split_at_bars(text) if self.separator == "|" else text.rstrip("\t").split(self.separator)
        if self.separator is not None and len(cells) != self.count:
            return None
        return cells[-self.count :] if len(cells) >= self.count else None


def _split_at_bars(text: str) -> list[str]:
    """The cells of a line with bars; bars at its ends are its frame."""
    cells = _BARS.split(text.strip())
    first, last = int(cells[0] == ""), len(cells) - int(cells[-1] == "")
    return cells[first:last]


def _group_columns(header: str, groups: str) -> list[str] | None:
    """The names of columns of blanks in groups that bars divide, those of an evaluation's group empty; None for any other
    header. The line above may name the ``groups``."""
    pieces, titles = header.strip(" |").split("|"), groups.strip(" |").split("|")
    if len(pieces) < 3 or not any(_BLANKS.search(piece.strip()) for piece in pieces):
        return None
    titles = ([""] * len(pieces) + titles)[-len(pieces) :]
    names = []
    for piece, title in zip(pieces, titles, strict=True):
        is_evaluation = _GROUP_OF_EVALUATION.search(title) is not None
        names += ["" if is_evaluation else name for name in _BLANKS.split(piece.strip())]
    return names


def columns_of(header: str, groups: str = "") -> StepColumns | None:
    """The columns that a header names, or None if it names no loss, or no position between columns that are no tabs; the
    line above it may name ``groups`` of columns."""
    separator = next((character for character in (",", ";") if character in header), None)
    if separator is None and len(_split_at_bars(header)) > 2 and "%" not in header:
        grouped = _group_columns(header, groups)
        separator, pieces = ("|", _split_at_bars(header)) if grouped is None else (GROUPS, grouped)
    else:
        pieces = header.split(separator) if separator else _BLANKS.split(header.strip())
    names = [piece.strip().strip("\"'") for piece in pieces]
    if separator == "," and names[0] == "" and "loss" in names:  # the index of a table that pandas wrote
        names[0] = "epoch"
    if names[:2] == ["E", "#"]:  # spaCy
        names[:2] = ["epoch", "step"]
    if separator is None:  # a time and a level may be before the first name
        while names and not _NAME.fullmatch(names[0]):
            names.pop(0)
    if not 2 <= len(names) <= MAX_CELLS or any(_FIGURE.search(name) for name in names):
        return None
    ranks: dict[str, int] = {}
    fields: dict[str, int] = {}
    for index, name in enumerate(names):
        field = field_meaning(name) if _NAME.fullmatch(name) else None
        if name.lower() == "total":
            field = ("loss", LAST_RANK)
        if field is not None and field[1] < ranks.get(field[0], LAST_RANK + 1):
            ranks[field[0]], fields[field[0]] = field[1], index - len(names)
    has_position = not fields.keys().isdisjoint({"step", "epoch"})
    has_tabs = separator is None and "\t" in header.strip() and all(map(_NAME.fullmatch, names))
    if "loss" not in fields or not (has_position or has_tabs):
        return None
    return StepColumns("\t" if separator is None and "\t" in header.strip() else separator, len(names), fields)


def table_points(line: Line) -> Iterator[Event]:
    """The rows under a header, up to the next header."""
    columns = columns_of(line.text, next((above.text for above in line.preceding(1)), ""))
    if columns is None:
        return
    other_lines = 0
    unpositioned: list[Event] | None = [] if columns.fields.keys().isdisjoint({"step", "epoch"}) else None
    for row in line.following(MAX_ROWS):
        cells = None if "%|" in row.text else columns.cells(row.text)  # the row of a bar has another reader
        point = None if cells is None else _point(row, columns, cells)
        if point is not None:
            other_lines = 0
            if unpositioned is None:
                yield point
                continue
            unpositioned.append(point)
            if len(unpositioned) == MIN_ROWS:
                yield from unpositioned
                unpositioned = None
        elif row.text.strip():
            other_lines += 1
            is_frame = columns.separator in ("|", GROUPS) and not any(character.isalnum() for character in row.text)
            if other_lines > MAX_OTHER_LINES or columns_of(row.text) is not None:
                return
            if columns.separator is not None and not is_frame and other_lines > MAX_ODD_LINES:
                return


def _point(row: Line, columns: StepColumns, cells: Sequence[str]) -> Event | None:
    """The logged step of a row; None for a row of an evaluation, and for any other line."""
    fields = columns.fields
    numeric = sum(1 for cell in cells if number(cell) is not None)
    if 2 * numeric <= len(cells) or any(_EVALUATION.fullmatch(cell.strip()) for cell in cells):
        return None
    step, steps = _read_count(cells[fields["step"]]) if "step" in fields else (None, None)
    epoch = number(cells[fields["epoch"]]) if "epoch" in fields else None
    loss = number(cells[fields["loss"]])
    has_position = step is not None or epoch is not None
    if loss is None or not (
        has_position
        or ("step" not in fields and "epoch" not in fields and numeric == len(cells) and "." in cells[fields["loss"]])
    ):
        return None
    whole_epoch = as_whole(epoch)
    return row.event(
        "progress",
        step=step,
        epoch=epoch if whole_epoch is None else whole_epoch,
        epoch_steps=steps if epoch is not None else None,
        total_steps=steps if epoch is None else None,
        loss=loss,
        lr=number(cells[fields["lr"]]) if "lr" in fields else None,
        grad_norm=number(cells[fields["grad_norm"]]) if "grad_norm" in fields else None,
        framework="custom",
    )


def _read_count(cell: str) -> tuple[int | None, int | None]:
    """(count, of how many) of a cell such as ``120/165`` or ``120``."""
    match = _OF.fullmatch(cell.strip())
    return (int(match[1]), int(match[2])) if match else (whole_number(cell), None)
