"""Where a program may start again in one file: appended attempts, arrays, `nohup` twice into the same log.

A mark is a line that a launcher or a program prints when it starts, or the file's own first lines printed again.
Several processes of one program print the same marks, and a program may print one again while it runs: which of them
begins another run is decided in :mod:`trackside.runs.appended`, where the lines around it are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, Position

BANNER, PROMPT, ONCE, SUPERVISOR, FIRST_LINES, FIRST_LINE = (
    "banner",
    "prompt",
    "once",
    "supervisor",
    "first_lines",
    "first_line",
)
"""Signs of a launcher, which prints its line at once and before the program; of a shell's prompt with a command; of one process of a program, which prints
it once, when it starts; of a program that starts others one after the other, all of which are one run; of a repeated
beginning; and of its repeated first line, if an error follows it at once.
The other signs are printed by each process, or late, from a buffer."""
SIGNS = (
    ("arguments", "Namespace("), ("arguments", "Configuration Arguments"), ("accelerator", "ds_accelerator"),
    ("tracker", "wandb"), ("threads", "OMP_NUM_THREADS"), ("environment", "nvironment"),
)  # fmt: skip
"""Sign -> what its line contains; the first that fits."""
MIN_NEEDLE_BYTES, MAX_NEEDLE_BYTES = 20, 120
"""Length of the piece of a line that is looked for."""
MAX_APART_BYTES = 4_000
"""Bytes within which the file's first two lines are printed again."""
MAX_TEXT_BYTES = 500
"""Bytes of a mark's line that are kept."""
_ERROR = re.compile(rb"Traceback|File \"|Error|ERROR|[Ff]ailed|[Kk]ill|[Aa]bort|[Ss]ignal")
"""A file that begins with a failure does not show how a program begins."""
_ANY_ERROR = re.compile(rb"\b(?:an? )?(?:error|exception)(?: occurred)?:", re.IGNORECASE)
_START = re.compile(
    rb"^(?!.*\b(?:epoch|step|iteration|fold|trial|batch))(?=.*\b(?:start(?:ing|ed)?|launching|beginning)\b)",
    re.IGNORECASE,
)
"""A line that announces the start of a program, not of a part of its work."""
_WITHOUT_FIGURES = re.compile(rb"[^0-9\x00-\x1f]+")

PARSER = Parser("program-starts", "starts of programs", "system")


@PARSER.pattern(
    rb"(?:nohup: [^\n]|The following values were not passed to `accelerate launch`|\[runner\.py:[0-9]{1,5}:main\] cmd = "
    rb"|wandb: Starting wandb agent)",
    r"\A(?!nohup: (?:failed|cannot|missing))(?:nohup: |.*(?:values were not|runner\.py|wandb agent))",
    safety="Lines that a launcher prints once, before the program.",
    matches=(
        "nohup: ignoring input",
        "nohup: ignoring input and appending output to 'nohup.out'",
        "nohup: 忽略输入",
        "[2026-01-01 10:00:00,000] [INFO] [runner.py:555:main] cmd = /usr/bin/python3 -u -m deepspeed.launcher.launch train.py",
    ),
    avoids=(
        "start it with nohup to ignore input",
        "nohup: failed to run command 'pyhton': No such file or directory",
    ),
)
def _launcher_start(line: Line, _: re.Match[str]) -> Event:
    return line.event("program_start", sign=BANNER)


@PARSER.pattern(
    rb"(?:Namespace\([A-Za-z_]|Setting ds_accelerator to|Setting OMP_NUM_THREADS environment variable for each process|wandb: Tracking run with wandb version|Configuration Arguments ="
    rb"|Environment [Ii]nfo|System environment:)",
    r"\A(?:[^'\"]{0,160}(?<![\w.])Namespace\([A-Za-z_]\w*=|.*(?:Setting (?:ds_|OMP_)|wandb: Tracking)|.*= *\w* *Configuration Arguments ="
    r"|[^'\"]{0,80}(?:Environment [Ii]nfo(?:rmation)?(?:-{4,}|:)?\s*|System environment:\s*)\Z)",
    safety="What programs print of their arguments and surroundings before they begin; not a mention in a sentence.",
    matches=(
        "Namespace(batch_size=32, lr=0.0001, seed=42)",
        "2026-01-01 10:00:00 INFO train: Namespace(config='a.yaml')",
        "[2026-01-01 10:00:00,000] [INFO] [real_accelerator.py:158:get_accelerator] Setting ds_accelerator to cuda (auto detect)",
        "W0101 10:00:00.000000 4711 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each "
        "process to be 1 in default, to avoid your system being overloaded.",
        "wandb: Tracking run with wandb version 0.17.0",
        "============================================================ Model Configuration Arguments ==========",
        "------------Environment Information-------------",
        "[01/01 10:00:00] detectron2 INFO: Environment info:",
        "System environment:",
    ),
    avoids=(
        "TypeError: unsupported operand type(s): 'Namespace' and 'int'",
        "Environment information is collected every minute",
    ),
)
def _program_start(line: Line, _: re.Match[str]) -> Event:
    return line.event("program_start", sign=next(sign for sign, text in SIGNS if text in line.text))


@PARSER.pattern(
    rb"(?:Rank of current process: 0|\] {1,2}Parameters:)",
    r"\A(?:\[[^\]\[]{4,40}\]:? ?){1,2}(?:\S{1,40} INFO: )?(?:Rank of current process: 0\b|Parameters:\s*\Z)",
    safety="What detectron2's first process and the work flow of ST-GCN print once, when they start.",
    matches=(
        "[01/02 10:00:00] detectron2 INFO: Rank of current process: 0. World size: 4",
        "[01/02 10:00:00 detectron2]: Rank of current process: 0. World size: 1",
        "[ Mon Jan  2 10:00:00 2026 ] Parameters:",
        "[01.02.26|10:00:00] Parameters:",
    ),
    avoids=(
        "[01/02 10:00:00] detectron2 INFO: Rank of current process: 3. World size: 4",
        "[01/02 10:00:00] Model Parameters:",
        "[01/02 10:00:00] Parameters: 25557032",
    ),
)
def _start_of_first_process(line: Line, _: re.Match[str]) -> Event:
    return line.event("program_start", sign=ONCE)


@PARSER.pattern(
    rb"[\w.-]@[\w.-]{1,80}(?::[^\n]{0,200}|[ ][^\n]{0,80}\])[$#] [^\s]",
    r"\A(?:\([\w.-]{1,60}\) ){0,2}\[?[\w.-]{1,40}@[\w.-]{1,80}(?::[~/][^$#]{0,200}| [^\]$#]{1,80}\])[$#] +[^\s^]",
    safety="A shell's prompt with a command, in what a terminal showed.",
    matches=(
        "(env) ann@gpu-box:~/project$ bash train.sh",
        "root@4f1c:/workspace# python train.py",
        "[ann@login1 project]$ sbatch train.sh",
    ),
    avoids=(
        "ann@gpu-box:~/project$ ",
        "(env) ann@gpu-box:~/project$ ^C",
        "mail ann@example.org: paid $ 5",
    ),
)
def _command_at_prompt(line: Line, _: re.Match[str]) -> Event:
    return line.event("program_start", sign=PROMPT)


@PARSER.pattern(
    rb"wandb_agent - INFO - About to run command",
    safety="The agent of a sweep, before each trial.",
    matches=(
        "2026-01-01 10:00:00,000 - wandb.wandb_agent - INFO - About to run command: /usr/bin/env python train.py --lr=0.1",
    ),
    avoids=("wandb.wandb_agent - INFO - Running runs: []",),
)
def _trial_start(line: Line) -> Event:
    return line.event("program_start", sign=SUPERVISOR)


@dataclass(frozen=True, slots=True)
class Opening:
    """What the file's first two lines hold besides figures."""

    first: bytes
    second: bytes | None
    """None if the first one announces a start and the second one is an error."""
    end: int
    """Offset of the end of the last of them."""

    def repetitions(self, buffer: bytes, begin: int, end: int, base: int, number: int, path: str) -> Iterator[Event]:
        """A mark where these lines are printed again, one below the other, in [begin, end) of the buffer. ``number``: of the
        line at ``begin``; ``base``: offset of the buffer in the file."""
        sign = FIRST_LINES if self.second is not None else FIRST_LINE
        counted = begin
        position = buffer.find(self.first, begin, end)
        while position >= 0:
            is_later = base + position >= self.end
            if is_later and (
                self.second is None or buffer.find(self.second, position, position + MAX_APART_BYTES) >= 0
            ):
                number += buffer.count(b"\n", counted, position)
                counted = position
                start = buffer.rfind(b"\n", begin, position) + 1 or begin
                text = buffer[start : start + MAX_TEXT_BYTES].partition(b"\n")[0].strip(b"\r")
                yield Event(
                    "program_start",
                    Position(path, number, base + start, len(text)),
                    "log",
                    text.decode("utf-8", "replace"),
                    parser=PARSER.id,
                    fields={"sign": sign},
                )
            position = buffer.find(self.first, position + len(self.first), end)


def opening_of(head: bytes, first_sign: int | None) -> Opening | None:
    """The first two lines of a file, by their longest piece without figures; None if they are too short or equal, or
    not printed before ``first_sign``, the offset of the first line that shows a program at work. If the first one
    announces a start and the next one is an error, the first one is enough."""
    needles: list[bytes] = []
    last = 0
    for match in re.finditer(rb"[^\n]+", head):
        if len(needles) == 1 and _START.search(needles[0]) and _ANY_ERROR.search(match[0]):
            return None if _ERROR.search(head, 0, last) else Opening(needles[0], None, last)
        if first_sign is not None and match.end() > first_sign:
            return None
        pieces = _WITHOUT_FIGURES.findall(match[0].rpartition(b"\r")[2])
        piece = max(pieces, key=len, default=b"").strip()[:MAX_NEEDLE_BYTES]
        if piece in needles:
            continue
        if len(piece) >= MIN_NEEDLE_BYTES:
            needles.append(piece)
            last = match.end()
        if len(needles) == 2:
            break
    if len(needles) < 2 or _ERROR.search(head, 0, last):
        return None
    return Opening(needles[0], needles[1], last)
