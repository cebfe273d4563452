"""The last loop of a log, whatever its lines say: alike lines that count up, and what follows them.

It shows no step and no loss, so it says nothing about how the run learned. But a program that counts to its own total, or
goes on to other lines, did its work; and one that raises an exception right below such lines had been at work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trackside.logs.line import FileContext, Line
from trackside.logs.localized import to_english
from trackside.model import Event

MIN_REPEATS = 4
"""Lines that are alike, from which on they are a loop."""
MIN_ALIKE = 3
"""Lines that are alike, from which on none of them is a closing line."""
MAX_LINES = 1_000
"""Lines at the end that are looked at."""
MAX_CLOSING_LINES = 100
"""Lines with text behind the loop, at most: more are another part of the program."""
MIN_CLOSING_LINES_IF_CUT = 2
"""Lines with text behind the loop of a log that ends within a line: that line may be one of the loop."""
MAX_TEXT_CHARS = 400
"""A longer line is a dump."""
MAX_LINES_BEFORE_ERROR = 30
"""Lines with text between a loop and an error, at most: more may be another start of the program."""
MIN_FIGURES = 2
"""Figures with decimals that change from line to line, as losses and scores do, in lines that say neither what they count
nor how many there are: one may be a duration."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?|\b(?:nan|inf)\b", re.IGNORECASE)
_NO_FIGURE = re.compile(
    r"\[[^\[\]]{0,80}(?:it/s|s/it|\?it)\b[^\[\]]{0,80}\]|\d{1,4}([-/.])\d{1,2}\1\d{1,4}|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|\b(?:mon|tue|wed|thu|fri|sat|sun)\w*\b",
    re.IGNORECASE,
)
"""Dates, times and a bar's pace."""
_BETWEEN_WORDS = re.compile(r"[^\w#]+")
_TOTAL = re.compile(r"\s?(?:/|of|out of|von|sur|из|de)\s?(\d{1,9})(?![\d.])")
_ITEM_OF_MODEL = re.compile(r"^\s*\(\w+\): |^\s*\d+[.)] ")
"""A line of a printed model or list."""
_TRAINING_COUNT = re.compile(
    r"(?:\b(?:epoch|iter(?:ation)?|step|round|episode|update|generation|trial|fold)s?|\b(?:ep|e|it|gen))\s{0,2}\W{0,4}$",
    re.IGNORECASE,
)
"""What stands before a count of training."""
_TROUBLE = re.compile(
    r"\b(?:nan|inf|error\w*|exception\w*|fail\w*|refused|disconnect\w*|broken|closed by|limit|retry\w*|overflow|oops|assert\w*|"
    r"abort\w*|kill\w*|interrupt\w*|cancel\w*|stop(?:ped|ping) container|(?:returned|exit(?: code| status)?:?|code) [1-9]|division|timeout|timed out)\b",
    re.IGNORECASE,
)
"""Words by which a loop, or what follows it, may not have gone well."""
_ERROR_BELOW = re.compile(
    r"Traceback \(most recent call last\)|^\s*File \"|(?:Error|Exception)\b|\b(?:ERROR|FATAL|CRITICAL)\b"
)
_COUNTS_OTHER_THINGS = re.compile(
    r"(?:gpu|cuda|device|rank|worker|node|host|process|thread|port|shard|layer|block|conv\w*|weights?|bias|params?|linear|norm|encoder|"
    r"decoder|embed\w*|head|class|categor(?:y|ies)|labels?|retry|retries|attempt|wait\w*|sleep\w*|version|line|job|pid)\W{0,4}$"
    r"|\b(?:down)?load(?:ing|ed)\b|\b(?:extract|unzip|install|collect|tokeniz|cach|prepar|preprocess|convert)ing\b",
    re.IGNORECASE,
)
"""What stands before a count of machines, of parts of a model, or of what is prepared: it is not the program's work."""


@dataclass(frozen=True, slots=True)
class _Count:
    """A number that grows by the same amount from line to line."""

    last: int
    total: int | None
    is_training: bool
    """Whether they name what training counts, or show figures as training does."""


def counted_lines(tail: bytes, base: int, lines_before_end: int, context: FileContext) -> Event | None:
    """The event about a log's last loop; None if its lines count nothing.

    ``tail``: the log's last bytes, of which the first is at ``base`` of the file; ``lines_before_end``: its line ends.
    """
    lines = list(_last_lines(tail, base, lines_before_end, context))
    shapes = [_shape(line.text) for line in lines]
    occurrences: dict[str, list[int]] = {}
    for index, shape in enumerate(shapes):
        occurrences.setdefault(shape, []).append(index)
    end = max((indexes[-1] for indexes in occurrences.values() if len(indexes) >= MIN_ALIKE), default=-1)
    loops = [indexes for shape, indexes in occurrences.items() if len(indexes) >= MIN_REPEATS and "#" in shape]
    for indexes in sorted(loops, key=lambda indexes: indexes[-1], reverse=True):
        last = lines[indexes[-1]]
        count = None if _ITEM_OF_MODEL.match(last.text) else _count([lines[index].text for index in indexes])
        if count is None or not count.is_training:
            continue
        last.parser = "scan"
        return last.event(
            "counted_lines",
            count=count.last,
            total=count.total,
            alike=len(indexes),
            done=_is_done(count, last, lines[end + 1 :], is_cut=not tail.endswith((b"\n", b"\r"))) or None,
            at_work=_is_near(lines[indexes[-1] + 1 :]) or None,
        )
    return None


def _is_done(count: _Count, last: Line, closing_lines: Sequence[Line], *, is_cut: bool) -> bool:
    """Whether a loop reached its total, or other lines follow it, none of which speaks of trouble."""
    if len(closing_lines) > MAX_CLOSING_LINES or any(_TROUBLE.search(line.text) for line in (last, *closing_lines)):
        return False
    is_complete = count.total is not None and count.last >= count.total
    return is_complete or len(closing_lines) >= (MIN_CLOSING_LINES_IF_CUT if is_cut else 1)


def _is_near(lines_below: Sequence[Line]) -> bool:
    """Whether the end of the log, or an error, comes soon below a loop."""
    return len(lines_below) <= MAX_LINES_BEFORE_ERROR or any(
        _ERROR_BELOW.search(line.text) for line in lines_below[:MAX_LINES_BEFORE_ERROR]
    )


def _last_lines(tail: bytes, base: int, lines_before_end: int, context: FileContext) -> Iterator[Line]:
    """The last lines and redraws with a letter or digit, in order."""
    spots = [
        match.span() for match in re.finditer(rb"[^\r\n]+", tail) if match.end() - match.start() <= MAX_TEXT_CHARS * 4
    ][-MAX_LINES:]
    for start, end in spots:
        number = lines_before_end - tail.count(b"\n", start) + 1
        line = Line(tail, start, end, number, base + start, context)
        if number > context.quoted_until and len(line.text) <= MAX_TEXT_CHARS and re.search(r"\w", line.text):
            yield line


def _shape(text: str) -> str:
    """The words of a line; each number is ``#``."""
    return _BETWEEN_WORDS.sub(" ", _NUMBER.sub("#", _NO_FIGURE.sub(" ", text.replace("#", " ")))).strip()


def _count(texts: Sequence[str]) -> _Count | None:
    """The number that counts up in alike lines; None if none does."""
    rows = [list(_NUMBER.finditer(_NO_FIGURE.sub(" ", text))) for text in texts]
    columns = list(zip(*rows, strict=True))
    for index, column in enumerate(columns):
        values = [int(match[0]) for match in column if match[0].isdecimal() and len(match[0]) <= 9]
        if len(values) != len(column):
            continue
        different = [values[0], *(after for before, after in pairwise(values) if after != before)]
        gaps = {after - before for before, after in pairwise(different)}
        if len(different) < MIN_REPEATS or len(gaps) != 1 or min(gaps) <= 0:
            continue
        text, start, end = column[-1].string, column[-1].start(), column[-1].end()
        if _COUNTS_OTHER_THINGS.search(text[:start]):
            continue
        total = _TOTAL.match(text, end)
        others = (other for at, other in enumerate(columns) if at != index)
        changing = [other for other in others if len({match[0] for match in other}) >= MIN_ALIKE]
        with_decimals = sum(any("." in match[0] for match in other) for other in changing)
        needed = 0 if _TRAINING_COUNT.search(to_english(text[:start])) else MIN_FIGURES if total is None else 1
        is_training = bool(changing) and with_decimals >= needed
        return _Count(different[-1], None if total is None else int(total[1]), is_training)
    return None
