"""Long hostile lines: eight times the length may cost about eight times the time, not sixty-four.

Each parse gets a few kinds of hostile text; with FUZZ=full in the environment it gets all of them (minutes).
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import trackside
from trackside.logs.line import FileContext, Line
from trackside.logs.pattern import Parser, Pattern, parsers
from trackside.logs.scan import scan
from trackside.read.detect import formats
from trackside.read.format import HEAD_BYTES, CollectingSink, Format, InputSource

pytestmark = pytest.mark.fuzz

SHORT, LONG = 8 << 10, 64 << 10
CHEAP_S = 0.25
"""A parse of 64 KB that takes less is fast enough, whatever its growth."""
GROWTH = 24
"""Highest accepted ratio of times for 8 times the length: linear is 8, quadratic 64."""
FULL = os.environ.get("FUZZ") == "full"
FILLERS = [
    "a",
    " ",
    "[",
    "1",
    "|",
    ":",
    "{'",
    "a: ",
    "a.",
    "1.",
    "/a",
    "=1 ",
    ", ",
    "\t",
    "(",
    "Error",
    "Traceback (most recent call last): ",
    "step 1 loss 2 ",
    "rank ",
    "\x1b]",
    "\x1b[1",
    "[rank1]: ",
    "0: ",
]
FEW = ["a", " ", "1", "[", "a: ", "/a", "1.", "Error"]


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def excess_growth(run: Callable[[int], object]) -> str:
    """Why a run over ``length`` characters is not linear; empty if it is. Times are the best of several."""
    if seconds(lambda: run(SHORT)) < CHEAP_S / 64:  # were it quadratic, it would still be cheap at LONG
        return ""
    long = seconds(lambda: run(LONG))
    if long < CHEAP_S:
        return ""
    long = min(long, *(seconds(lambda: run(LONG)) for _ in range(2)))
    short = min(seconds(lambda: run(SHORT)) for _ in range(3))
    if long < CHEAP_S or long < GROWTH * max(short, CHEAP_S / GROWTH):
        return ""
    return f"{short * 1e3:.1f} ms for {SHORT} characters, {long * 1e3:.1f} ms for {LONG}"


def line_of(text: str) -> Line:
    buffer = text.encode("utf-8", "replace") + b"\n"
    return Line(buffer, 0, len(buffer) - 1, 1, 0, FileContext("a.log"))


def parse(pattern: Pattern, text: str) -> None:
    result = pattern.parse(line_of(text))
    if result is not None and not hasattr(result, "kind"):
        list(result)


def prefixes(pattern: Pattern) -> list[str]:
    """The pattern's own examples, so that hostile text follows a prefix that its parse accepts."""
    examples = [example.split("\n", 1)[0] for example in pattern.matches[:1]]
    return ["", *examples] if FULL else examples or [""]


@pytest.mark.parametrize("parser", parsers(), ids=lambda parser: parser.id)
def test_parses_are_linear(parser: Parser) -> None:
    complaints = []
    for pattern in parser.patterns:
        for example in prefixes(pattern):
            half = example[: len(example) // 2]
            for filler in FILLERS if FULL else FEW:
                for shape in ("{p}{f}", "{h}{f}{p}"):

                    def run(length: int, shape: str = shape, example: str = example, half: str = half) -> None:
                        text = filler * (length // len(filler))  # noqa: B023 - called at once
                        parse(pattern, shape.format(p=example, h=half, f=text))  # noqa: B023

                    if reason := excess_growth(run):
                        complaints.append(f"{pattern.name}: {filler!r} in {shape} with {example[:60]!r}: {reason}")
    assert not complaints, "\n".join(complaints[:20])


@pytest.mark.parametrize("filler", FILLERS)
def test_lines_are_linear(filler: str) -> None:
    assert not excess_growth(lambda length: line_of(filler * (length // len(filler))))


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("end", ["", "\n", "\r"])
def test_the_scan_is_linear(filler: str, end: str) -> None:
    """A file of hostile text: one line, many lines or many redraws."""

    def run(length: int) -> None:
        data = (filler + end).encode() * (length // len(filler))
        scan(io.BytesIO(data), lambda _: None, FileContext("a.log"))

    assert not excess_growth(run)


@pytest.mark.parametrize("reader", formats(), ids=lambda reader: reader.id)
def test_sniffs_are_linear(reader: Format) -> None:
    complaints = []
    for filler in [*FILLERS, '{"a":', "[{", "JobID|", "JobId=1 ", "\n", "a\n", "Nov 21 08:00:01 n1 k", "1,1,1,-;"]:

        def run(length: int) -> None:
            data = (filler.encode() * (length // len(filler)))[:HEAD_BYTES]  # noqa: B023
            reader.sniff(InputSource("a", data, io.BytesIO(data)))

        if reason := excess_growth(run):
            complaints.append(f"{filler!r}: {reason}")
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("reader", formats(), ids=lambda reader: reader.id)
def test_reads_are_linear(reader: Format) -> None:
    complaints = []
    for filler in [*FILLERS, "JobId=1 ", "a\n", "a|b\n", "1|COMPLETED|0:0\n", "Nov 21 08:00:01 n1 kernel: a\n"]:
        for head in (
            "",
            "JobID|State|ExitCode\n",
            "JobId=1 JobName=a\n",
            "epoch,step,train_loss\n",
            '{"log_history": [',
        ):

            def run(length: int, head: str = head) -> None:
                data = (head + filler * (length // len(filler))).encode()  # noqa: B023
                source = InputSource("a", data[:HEAD_BYTES], io.BufferedReader(io.BytesIO(data)))  # type: ignore[arg-type]
                if reader.sniff(source) is None:
                    return
                with suppress(ValueError, OSError, RecursionError):
                    reader.read(source, CollectingSink())

            if reason := excess_growth(run):
                complaints.append(f"{head!r} {filler!r}: {reason}")
    assert not complaints, "\n".join(complaints)


def test_a_verdict_over_many_points_is_linear(tmp_path: Path) -> None:
    """Families work on tens of thousands of points: four times the points must not take ten times as long."""
    durations_s = []
    for points in (5_000, 20_000):
        log = tmp_path / f"{points}.log"
        log.write_text("".join(f"step {k + 1} loss {3 / (1 + k / 1000) + 1:.4f}\n" for k in range(points)))
        start_s = time.process_time()
        assert trackside.diagnose(log).progress is not None
        durations_s.append(time.process_time() - start_s)
    assert durations_s[1] < 10 * durations_s[0]
