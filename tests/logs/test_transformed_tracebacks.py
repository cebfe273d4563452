"""One traceback after every transformation: behind prefixes, broken at a terminal's width, glued to a bar, torn between ranks.

Whatever happens to the lines, the exception keeps its type, or none is read; never does another type appear.
"""

from __future__ import annotations

import random
import re

import pytest

from tests.log_transformations import LAYOUTS, PREFIXES, Transformation, torn
from trackside.logs.scan import scan_text
from trackside.model import Event

NOT_FOR_TEXT = {"docker_json", "srun"}
"""A format of files, and a label that a longer text shows."""

FRAMES = """Traceback (most recent call last):
  File "/home/user/project/train.py", line 88, in <module>
    main(parse_args())
  File "/home/user/project/src/engine/loop.py", line 412, in train_one_epoch
    batch = collate(next(loader))
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 630, in __next__
    data = self._next_data()
"""
LAST_LINES = {
    "ValueError": ": a batch of 7 rows cannot be split over 4 ranks, and this loader does not pad",
    "KeyError": ": 'rope_scaling'",
    "torch.OutOfMemoryError": ": CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 22.48 GiB memory in use.",
    "RuntimeError": ": Error(s) in loading state_dict for Net:\n\tsize mismatch for head.weight: copying a param with shape "
    "torch.Size([10, 8]) from checkpoint, the shape in current model is torch.Size([12, 8]).",
    "FileNotFoundError": ": [Errno 2] No such file or directory: '/data/set/shard-0007.tar'",
    "KeyboardInterrupt": "",
}
BAR = " 45%|####5     | 45/100 [00:12<00:15,  3.61it/s, loss=0.512]"
LAST = re.compile(r"((?:\w+\.)*\w*(?:Error|Interrupt))(: )?(.*)$")


def prefixed(prefix: str) -> Transformation:
    return lambda text: "".join(f"{prefix}{line}\n" for line in text.splitlines())


def broken(width: int, *, trimmed: bool = False) -> Transformation:
    def transformation(text: str) -> str:
        pieces = (line[at : at + width] for line in text.splitlines() for at in range(0, max(1, len(line)), width))
        return "".join((piece.rstrip() if trimmed else piece) + "\n" for piece in pieces)

    return transformation


def between(other: str) -> Transformation:
    return lambda text: "".join(f"{line}\n{other if at % 2 else ''}" for at, line in enumerate(text.splitlines()))


def then(other: str) -> Transformation:
    return lambda text: text + other


TRANSFORMATIONS: dict[str, Transformation] = {
    **{name: transformation for name, transformation in (PREFIXES | LAYOUTS).items() if name not in NOT_FOR_TEXT},
    "rank": prefixed("[rank3]: "),
    "torchrun": prefixed("[default3]:"),
    "logger": prefixed("2026-01-02 03:04:05,123 - root - ERROR - "),
    "behind a bar": lambda text: BAR + text,
    "behind a redrawn bar": lambda text: f"{BAR}\r{text}",
    "behind another bar": lambda text: f"[Training] 45/100 [===>....] - ETA: 8:54  [ loss=1.44 ]{text}",
    "last line behind a bar": lambda text: re.sub(r"\n(?=[\w.]+(?:Error|Interrupt))", f"\n{BAR}", text),
    "bars between": between(f"{BAR}\n"),
    "bars drawn between": between(f"\r{BAR}\r"),
    "log lines between": between("2026-01-02 03:04:05 INFO step 7 loss 0.5\n"),
    "one string": lambda text: '{"log": "' + text.replace('"', '\\"').replace("\n", "\\n") + '"}\n',
    "without header": lambda text: text.split("\n", 1)[1],
    "native log": then("[I ProcessGroupNCCL.cpp:844] [Rank 0] NCCL watchdog thread terminated normally\n"),
    "newer native log": then("[W102 03:04:05.678901234 ProcessGroupNCCL.cpp:1250] Warning: NOT been destroyed\n"),
    "launcher": then("[2026-01-02 03:04:05,678] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 9776\n"),
    "holes": then("\0" * 40),
    **{f"{width} columns": broken(width) for width in (60, 72, 79, 80, 100, 120, 132, 160)},
    **{f"{width} columns, trimmed": broken(width, trimmed=True) for width in (60, 80, 100, 120)},
}
CUTS: dict[str, Transformation] = {
    "without last line": lambda text: FRAMES,
    "last line alone": lambda text: text.removeprefix(FRAMES),
    "numbered": lambda text: "".join(f"{at:6}\t{line}\n" for at, line in enumerate(text.splitlines())),
    "half a header": lambda text: text[20:],
}


def exceptions(text: str) -> list[Event]:
    return [event for event in scan_text(text) if event.kind == "exception"]


def traceback(name: str) -> str:
    return f"{FRAMES}{name}{LAST_LINES[name]}\n"


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("name", LAST_LINES)
def test_a_transformed_traceback_is_the_same_exception(name: str, transformation: str) -> None:
    (plain,) = exceptions(traceback(name))
    events = exceptions(TRANSFORMATIONS[transformation](traceback(name)))
    assert {event.get("type") for event in events} == {name}
    assert {event.get("about") for event in events} == {plain.get("about")}
    assert {event.role for event in events} == {plain.role}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", LAST_LINES)
def test_a_cut_traceback_is_the_same_exception_or_none(name: str, cut: str) -> None:
    assert {event.get("type") for event in exceptions(CUTS[cut](traceback(name)))} <= {name}


def writes(text: str, chance: random.Random) -> list[str]:
    """What a rank writes at once: whole lines, or the parts that Python prints one by one."""
    parts: list[str] = []
    for line in text.splitlines():
        if match := LAST.match(line):
            parts += [part for part in match.groups() if part]
        elif chance.random() < 0.5:
            parts += [line]
        else:
            parts += [line[:4], line[4:]]
        parts.append("\n")
    return parts


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", LAST_LINES)
def test_ranks_that_write_into_each_others_lines_raise_nothing_else(name: str, seed: int) -> None:
    chance = random.Random(seed)
    ranks = [writes(traceback(name), chance) for _ in range(chance.choice((2, 3, 4, 8)))]
    assert {event.get("type") for event in exceptions(torn(ranks, chance))} <= {name}
