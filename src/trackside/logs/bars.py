"""tqdm's progress bar as text: ``desc:  12%|███   | 5/40 [00:01<00:09, 4.9it/s, loss=2.34]``."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trackside.logs.numbers import NUMBER, meaning, number

_BAR = re.compile(r"\| *(\d{1,12})/(\d{1,12}|\?) \[([^\n\r]*)|(?:^|: |\s)(\d{1,12})(it) \[([^\n\r]*)")
_PERCENT = re.compile(r"\d{1,3}%\|")
_RATE = re.compile(r"([\d.]{1,12}) ?(s/)?([A-Za-z]{1,12})(/s)?")
_FIGURE = re.compile(rf"([A-Za-z_][\w./ -]{{0,60}}?)\s?[=:]\s?'?({NUMBER})")
_EPOCH = re.compile(r"\b[Ee]p(?:och)?s?\W{0,3}(\d{1,7})(?: ?(?:/|of) ?(\d{1,7}))?")
_EVALUATION = re.compile(
    r"\b(?:[vV]al(?:id(?:ation|ating)?)?|VAL|[eE]val(?:uat\w+)?|[tT]est(?:ing)?|[sS]anity|[pP]redict\w*)\b"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One drawing of a bar. ``total`` is None where tqdm doesn't know it; ``figures`` is what its postfix and description say."""

    description: str
    count: int
    total: int | None
    inside: str
    figures: dict[str, tuple[float, int]]
    """field of ``progress`` -> (value, rank of the printed name)"""

    @property
    def evaluates(self) -> bool:
        """Whether the description says that this is no training loop."""
        return _EVALUATION.search(self.description) is not None

    @property
    def epoch(self) -> tuple[int, int | None] | None:
        """(epoch as printed, epochs planned) of the description."""
        found = _EPOCH.search(self.description)
        return None if found is None else (int(found[1]), int(found[2]) if found[2] else None)

    @property
    def rate(self) -> tuple[float, str] | None:
        """(units a second, unit) as drawn."""
        for part in self.inside.split(",")[1:2]:
            found = _RATE.match(part.strip())
            if found and (found[2] or found[4]):
                value = float(found[1]) if found[1].count(".") < 2 and found[1] != "." else 0.0
                unit = found[3]
                if value:
                    return (1 / value if found[2] else value, f"{unit}/s")
        return None


def read_bar(text: str) -> Bar | None:
    """The last bar that a segment draws, or None."""
    found = _last(_BAR.finditer(text))
    if found is None:
        return None
    head = text[: found.start()]
    percent = _last(_PERCENT.finditer(head))
    description = head[: percent.start()] if percent else head.rstrip(" |█▏▎▍▌▋▊▉#0123456789")
    inside = (found[3] if found[3] is not None else found[6] or "").rpartition("]")[0]
    if found[1] is not None:
        count, total = int(found[1]), int(found[2]) if found[2] != "?" else None
    else:
        count, total = int(found[4]), None
    _, _, postfix = inside.partition(", ")
    figures = best_figures(_FIGURE.findall(description)) | best_figures(_FIGURE.findall(postfix))
    return Bar(description.strip(), count, total, inside, figures)


def _last(matches: Iterator[re.Match[str]]) -> re.Match[str] | None:
    return next(iter(deque(matches, maxlen=1)), None)


def best_figures(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[float, int]]:
    """field of ``progress`` -> (value, rank of the printed name) of printed names and numbers, the most telling name's."""
    figures: dict[str, tuple[float, int]] = {}
    for key, text in pairs:
        known, value = meaning(key), number(text)
        if known is None or value is None:
            continue
        if known[0] not in figures or known[1] < figures[known[0]][1]:
            figures[known[0]] = (value, known[1])
    return figures
