"""The last loop of a log, whatever its lines say: alike lines that count up, and what follows them.

It shows no step and no loss, so it says nothing about how the run learned. But a program that counts to its own total, or
goes on to other lines, did its work; and one that raises an exception right below such lines had been at work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trackside.logs.bars import read_bar
from trackside.logs.line import FileContext, Line
from trackside.logs.localized import to_english
from trackside.model import Event

MIN_REPEATS = 4
"""Lines that are alike, from which on they are a loop."""
MIN_ALIKE = 3
"""Lines that are alike, from which on none of them is a closing line."""
MAX_LINES = 1_000
"""Lines at the end that are compared."""
MAX_CLOSING_LINES = 100
"""Lines with text behind the loop, at most: more are another part of the program."""
MIN_CLOSING_LINES_IF_CUT = 2
"""Lines with text behind the loop of a log that ends within a line: that line may be one of the loop."""
MAX_LINE_BYTES = 800
"""Bytes of a line that are read."""
MAX_ROWS = 60
"""Lines of a loop that are read, the last ones."""
MAX_LINES_BEFORE_ERROR = 30
"""Lines with text between a loop and an error, at most: more may be another start of the program."""
MIN_FIGURES = 2
"""Figures with decimals that change from line to line, as losses and scores do, in lines that say neither what they count
nor how many there are: one may be a duration without a unit."""

MIN_BAR_S = 300
"""Seconds from which on a bar without a name and without figures is the program's work."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?|\b(?:nan|inf)\b", re.IGNORECASE)
_NO_FIGURE = re.compile(
    r"(?<=%)\|[^|]{0,200}\||\[[^\[\]]{0,80}(?:it/s|s/it|\?it)\b[^\[\]]{0,80}\]|\d{1,4}([-/.])\d{1,2}\1\d{1,4}|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|\b(?:mon|tue|wed|thu|fri|sat|sun)\w*\b",
    re.IGNORECASE,
)
"""Dates, times, a drawn bar and its pace."""
_LINE, _SAYS_ANYTHING = re.compile(rb"[^\r\n]+"), re.compile(rb"[0-9A-Za-z\x80-\xff]")
"""A line or redraw, and that it has a letter or a digit."""
_NO_LETTERS = re.compile(rb"[^A-Za-z\x80-\xff]+|\b(?:nan|inf)\b|\xe2[\x94-\x96][\x80-\xbf]")
"""What may differ in alike lines: all but letters, and the blocks of a bar."""
_FIGURE = re.compile(rb"[0-9.]+")
_TOTAL = re.compile(r"\s?(?:/|of|out of|von|sur|из|de)\s?(\d{1,9})(?![\d.])")
_UNIT_OF_TIME = re.compile(r"\s?(?:[mun]?s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?)\b")
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
    spans = (match.span() for match in _LINE.finditer(tail))
    spots = [
        (start, min(stop, start + MAX_LINE_BYTES)) for start, stop in spans if _SAYS_ANYTHING.search(tail, start, stop)
    ]
    spots = spots[-MAX_LINES:]
    groups: dict[bytes, list[int]] = {}
    for index, (start, stop) in enumerate(spots):
        groups.setdefault(_words(tail[start:stop]), []).append(index)
    end = max((indexes[-1] for indexes in groups.values() if len(indexes) >= MIN_ALIKE), default=-1)
    loops = [indexes for indexes in groups.values() if len(indexes) >= MIN_REPEATS]

    def lines(indexes: Iterable[int]) -> list[Line]:
        spans = (spots[index] for index in indexes)
        numbers = ((lines_before_end - tail.count(b"\n", start) + 1, start, stop) for start, stop in spans)
        return [Line(tail, start, stop, number, base + start, context) for number, start, stop in numbers]

    for indexes in sorted(loops, key=lambda indexes: indexes[-1], reverse=True):
        loop = lines(indexes[-MAX_ROWS:])
        last = loop[-1]
        if last.number <= context.quoted_until or _ITEM_OF_MODEL.match(last.text):
            continue
        if (count := _count([line.text for line in loop])) is None or not (count.is_training or _is_long_bar(last)):
            continue
        last.parser = "scan"
        closing_lines = lines(range(end + 1, min(len(spots), end + 2 + MAX_CLOSING_LINES)))
        below = lines(range(indexes[-1] + 1, min(len(spots), indexes[-1] + 2 + MAX_LINES_BEFORE_ERROR)))
        return last.event(
            "counted_lines",
            count=count.last,
            total=count.total,
            done=_is_done(count, last, closing_lines, is_cut=not tail.endswith((b"\n", b"\r"))) or None,
            at_work=_is_near(below) or None,
        )
    return None


def _words(raw: bytes) -> bytes:
    """What alike lines have in common: their words, or the number of figures if there are no words."""
    return _NO_LETTERS.sub(b" ", raw).strip() or b"#" * len(_FIGURE.findall(raw))


def _is_long_bar(last: Line) -> bool:
    """Whether a loop is a bar without a name that ran for long: most of those that load or convert are named or short."""
    bar = read_bar(last.text)
    return bar is not None and not bar.description.strip() and (bar.elapsed_s or 0) >= MIN_BAR_S


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


def _is_time(number: re.Match[str]) -> bool:
    """Whether a number has a unit of time: a duration is printed of any work."""
    return _UNIT_OF_TIME.match(number.string, number.end()) is not None


def _count(texts: Sequence[str]) -> _Count | None:
    """The number that counts up in alike lines; None if none does."""
    rows = [list(_NUMBER.finditer(_NO_FIGURE.sub(" ", text))) for text in texts]
    rows = [row for row in rows if len(row) == len(rows[-1])]
    columns = list(zip(*rows, strict=True))
    with_total_first = sorted(
        enumerate(columns), key=lambda item: _TOTAL.match(item[1][-1].string, item[1][-1].end()) is None
    )
    for index, column in with_total_first:
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
        with_decimals = sum(any("." in match[0] and not _is_time(match) for match in other) for other in changing)
        needed = 0 if _TRAINING_COUNT.search(to_english(text[:start])) else MIN_FIGURES if total is None else 1
        is_training = bool(changing) and with_decimals >= needed
        return _Count(different[-1], None if total is None else int(total[1]), is_training)
    return None
