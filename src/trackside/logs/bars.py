"""tqdm's progress bar as text: ``desc:  12%|███   | 5/40 [00:01<00:09, 4.9it/s, loss=2.34]``."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trackside.logs.numbers import LAST_RANK, NUMBER, field_meaning, function_loss, number

_BAR = re.compile(
    r"(?:\||\d%) *(\d{1,12})(?:\.\d{1,2})?/(\d{1,12}|\?) \[([^\n\r]*)|(?:^|: |\s)(\d{1,12})(it) \[([^\n\r]*)"
)
"""The count behind a drawn bar or behind the percentage alone; with decimals where tqdm scales units."""
_PERCENT = re.compile(r"\d{1,3}%(?:\||(?= *\d{1,12}/))")
_RATE = re.compile(r"([\d.]{1,12}) ?(s/)?([A-Za-z]{1,12})(/s)?")
_FIGURE = re.compile(rf"([A-Za-z_][\w./ -]{{0,60}}?)(?:\s?[=:]\s?'?|(?<=loss)\s)({NUMBER})")
_EPOCH = re.compile(r"\b[Ee]p(?:och)?s?\W{0,3}(\d{1,7})(?: ?(?:/|of) ?(\d{1,7}))?")
EVALUATION = re.compile(
    r"\b(?:[vV]al(?:id(?:ation|ating)?)?|VAL|[eE]val(?:uat\w+)?|[tT]est(?:ing)?|[sS]anity|[pP]redict\w*)\b"
)

PREPARATION = re.compile(
    r"\W*(?:load|read|cach|prepar|download|process|tokeni|extract|generat|comput|build|creat|convert|scan|collect|encod|pars"
    r"|index|copy|check|pad)\w*\b(?!.*\b(?:epochs?|steps?|iter\w*)\b)",
    re.IGNORECASE,
)
"""Descriptions of bars that prepare the data of a training: ``Loading train split``."""
_ELAPSED = re.compile(r"(?:(\d{1,4}):)?(\d{2}):(\d{2})<")


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """One drawing of a bar: ``total`` is None if tqdm does not know it; ``figures`` come from its postfix and
    description."""

    description: str
    count: int
    total: int | None
    brackets: str
    """The text in the bar's brackets: times, rate and postfix."""
    figures: dict[str, tuple[float, int]]
    """field of ``progress`` -> (value, rank of the printed name)"""

    @property
    def is_evaluation(self) -> bool:
        """Whether the description names an evaluation loop, not a training loop."""
        return EVALUATION.search(self.description) is not None

    @property
    def epoch(self) -> tuple[int, int | None] | None:
        """(epoch as printed, planned number of epochs) from the description."""
        match = _EPOCH.search(self.description)
        return None if match is None else (int(match[1]), int(match[2]) if match[2] else None)

    @property
    def elapsed_s(self) -> int | None:
        """Seconds since the loop began, as drawn."""
        match = _ELAPSED.match(self.brackets)
        return None if match is None else int(match[1] or 0) * 3_600 + int(match[2]) * 60 + int(match[3])

    @property
    def rate(self) -> tuple[float, str] | None:
        """(units per second, unit) as drawn."""
        for part in self.brackets.split(",")[1:2]:
            match = _RATE.match(part.strip())
            if match and (match[2] or match[4]):
                value = float(match[1]) if match[1].count(".") < 2 and match[1] != "." else 0.0
                unit = match[3]
                if value:
                    return (1 / value if match[2] else value, f"{unit}/s")
        return None


def read_bar(text: str) -> ProgressBar | None:
    """The last bar drawn in a segment; None if there is none."""
    match = _last_match(_BAR.finditer(text))
    if match is None:
        return None
    head = text[: match.start()]
    percent = _last_match(_PERCENT.finditer(head))
    description = head[: percent.start()] if percent else head.rstrip(" |█▏▎▍▌▋▊▉#0123456789")
    rest = match[3] if match[3] is not None else match[6] or ""
    brackets = rest.rpartition("]")[0] or rest  # a bar that is cut at the terminal's width has no closing bracket
    if match[1] is not None:
        count, total = int(match[1]), int(match[2]) if match[2] != "?" else None
    else:
        count, total = int(match[4]), None
    _, _, postfix = brackets.partition(", ")
    figures = best_figures(_FIGURE.findall(description)) | best_figures(_FIGURE.findall(postfix))
    if not figures.keys() & {"loss", "eval_loss"} and (
        function := function_loss(postfix) or function_loss(description)
    ):
        figures["loss"] = float(function["value"]), LAST_RANK
    return ProgressBar(description.strip(), count, total, brackets, figures)


def _last_match(matches: Iterator[re.Match[str]]) -> re.Match[str] | None:
    """The last of these matches, or None."""
    return next(iter(deque(matches, maxlen=1)), None)


def best_figures(printed: Iterable[tuple[str, str]]) -> dict[str, tuple[float, int]]:
    """field of ``progress`` -> (value, rank of the printed name), from the most specific printed name of each field."""
    figures: dict[str, tuple[float, int]] = {}
    for key, text in printed:
        field, value = field_meaning(key), number(text)
        if field is None or value is None:
            continue
        if field[0] not in figures or field[1] < figures[field[0]][1]:
            figures[field[0]] = (value, field[1])
    return figures
