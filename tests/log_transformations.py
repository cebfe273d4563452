"""What happens to a log between the program and the reader: one function per transformation, a whole text in, a text out.

A transformed log says the same or less. Tests hold every scenario's log and one traceback against each.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator

from trackside.logs.stamp import find_time

Transformation = Callable[[str], str]

BAR = " 45%|####5     | 45/100 [00:12<00:15,  3.61it/s]"
FIRST_TIME = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC).timestamp()

PREFIXES: dict[str, Transformation] = {}
"""Transformations that put something in front of every line."""
LAYOUTS: dict[str, Transformation] = {}
"""Transformations that change lines in another way and lose nothing."""
CUTS: dict[str, Transformation] = {}
"""Transformations that lose something, or add what is not the run's."""


def _declared(table: dict[str, Transformation]) -> Callable[[Transformation], Transformation]:
    def declare(transformation: Transformation) -> Transformation:
        table[transformation.__name__] = transformation
        return transformation

    return declare


def in_each_line(text: str, prefix: Callable[[float], str], end: str = "") -> str:
    """The text with a prefix before each line; the prefix gets the line's time, which goes on where lines have none."""
    lines = text.splitlines() if "\r" not in text else text.removesuffix("\n").split("\n")
    return "".join(f"{prefix(time)}{line}{end}\n" for time, line in zip(times(lines), lines, strict=True))


def times(lines: Iterable[str]) -> Iterator[float]:
    """A time for each line: its own, or a millisecond after the one above."""
    own_times = [find_time(line, 2026) for line in lines]
    time = next((own for own in own_times if own is not None), FIRST_TIME)
    for own in own_times:
        time = max(time + 0.001, own or 0)
        yield time


def _utc(time: float, form: str) -> str:
    return dt.datetime.fromtimestamp(time, dt.UTC).strftime(form)


@_declared(PREFIXES)
def kubectl_timestamps(text: str) -> str:
    return in_each_line(text, lambda time: _utc(time, "%Y-%m-%dT%H:%M:%S.%f123Z "))


@_declared(PREFIXES)
def containerd(text: str) -> str:
    return in_each_line(text, lambda time: _utc(time, "%Y-%m-%dT%H:%M:%S.%f123Z stderr F "))


@_declared(PREFIXES)
def docker_json(text: str) -> str:
    def record(time: float, line: str) -> str:
        return json.dumps({"log": f"{line}\n", "stream": "stdout", "time": _utc(time, "%Y-%m-%dT%H:%M:%S.%f123Z")})

    lines = text.removesuffix("\n").split("\n")
    return "".join(f"{record(time, line)}\n" for time, line in zip(times(lines), lines, strict=True))


@_declared(PREFIXES)
def compose(text: str) -> str:
    return in_each_line(text, lambda _: "trainer-1  | ")


@_declared(PREFIXES)
def pdsh(text: str) -> str:
    return in_each_line(text, lambda _: "gpu-03: ")


@_declared(PREFIXES)
def sagemaker(text: str) -> str:
    return in_each_line(text, lambda _: "[1,mpirank:0,algo-1]<stderr>:")


@_declared(PREFIXES)
def journald(text: str) -> str:
    return in_each_line(text, lambda time: _utc(time, "%b %d %H:%M:%S gpu03 python3[4711]: "))


@_declared(PREFIXES)
def ts(text: str) -> str:
    return in_each_line(text, lambda time: _utc(time, "%b %d %H:%M:%S "))


@_declared(PREFIXES)
def ts_in_brackets(text: str) -> str:
    return in_each_line(text, lambda time: _utc(time, "[%Y-%m-%d %H:%M:%S] "))


@_declared(PREFIXES)
def ray(text: str) -> str:
    return in_each_line(text, lambda _: "\x1b[36m(WorkerDict pid=7, ip=10.0.0.2)\x1b[0m ")


@_declared(PREFIXES)
def mpirun(text: str) -> str:
    return in_each_line(text, lambda _: "[1,0]<stderr>:")


@_declared(PREFIXES)
def srun(text: str) -> str:
    return in_each_line(text, lambda _: "0: ")


@_declared(PREFIXES)
def line_numbers(text: str) -> str:
    return "".join(f"{number:6}\t{line}\n" for number, line in enumerate(text.removesuffix("\n").split("\n"), 1))


@_declared(PREFIXES)
def grep_numbers(text: str) -> str:
    return "".join(f"{number}:{line}\n" for number, line in enumerate(text.removesuffix("\n").split("\n"), 1))


@_declared(PREFIXES)
def quoted(text: str) -> str:
    return in_each_line(text, lambda _: "> ")


@_declared(PREFIXES)
def indented(text: str) -> str:
    return in_each_line(text, lambda _: "    ")


@_declared(PREFIXES)
def colored(text: str) -> str:
    return in_each_line(text, lambda _: "\x1b[31m", "\x1b[0m")


@_declared(PREFIXES)
def compose_under_kubectl(text: str) -> str:
    return kubectl_timestamps(compose(text))


@_declared(PREFIXES)
def mpirun_under_pdsh_with_numbers(text: str) -> str:
    return line_numbers(pdsh(mpirun(text)))


@_declared(PREFIXES)
def quoted_journal_in_color(text: str) -> str:
    return quoted(journald(colored(text)))


@_declared(LAYOUTS)
def wrapped_at_80(text: str) -> str:
    """Copied from a terminal, which shows the last drawing of each bar."""
    lines = (line.rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(line[at : at + 80] for line in lines for at in range(0, max(1, len(line)), 80))


@_declared(LAYOUTS)
def carriage_returns(text: str) -> str:
    return text.replace("\n", "\r\n")


@_declared(LAYOUTS)
def blank_lines(text: str) -> str:
    return text.replace("\n", "\n\n")


@_declared(LAYOUTS)
def behind_a_bar(text: str) -> str:
    """The last error, behind a bar that was not ended by a newline."""
    return re.sub(
        r"\n(?=(?:Traceback \(most recent|[\w.]+(?:Error|Interrupt|Exception)\b).*(?:\n|$))", f"\n{BAR}", text
    )


OTHER_VERDICT = """\
Ran out of GPU memory (torch.OutOfMemoryError: CUDA out of memory): 2.00 GiB with 79.1 GiB in use · rank 3
owner: the job · B1 cuda-oom · certainty: established
run 4242 lm · FAILED, exit 1 · 1 node · 8 ranks · 2026-03-02 08:00:00 UTC, 12 min

evidence    Rank 3 raised torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. [slurm-4242.out:812]
            slurmstepd: error: *** JOB 4242 ON gpu-07 CANCELLED AT 2026-03-02T08:12:00 DUE TO TIME LIMIT ***
do          Reduce the batch size.
11 other families ruled out, 11 undecided. Details: --verbose, trackside explain B1
"""
SHORT_VERDICT = (
    "Killed by the kernel: host memory ran out · rank 1. Owner: the job. A2 signal-kill (host memory), certainty: "
    "established. oom-kill: Killed process 41 (python). Do: Raise --mem.\n"
)


@_declared(LAYOUTS)
def verdict_of_another_run_below(text: str) -> str:
    document = json.dumps({"schema": "trackside.verdict/1", "primary": {"headline": "ECC error: Xid 48"}}, indent=2)
    break_ = "" if text.endswith("\n") or not text else "\n"
    return f"{text}{break_}{OTHER_VERDICT}{SHORT_VERDICT}{document}\n"


@_declared(LAYOUTS)
def german_shell(text: str) -> str:
    for word, translated in GERMAN.items():
        text = text.replace(word, translated)
    return text


GERMAN = {
    "Segmentation fault (core dumped)": "Speicherzugriffsfehler (Speicherabzug geschrieben)",
    "Segmentation fault": "Speicherzugriffsfehler",
    "Aborted": "Abgebrochen",
    "Killed": "Getötet",
    "Terminated": "Beendet",
    "Bus error": "Bus-Zugriffsfehler",
    "(core dumped)": "(Speicherabzug geschrieben)",
}


@_declared(CUTS)
def without_head(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[len(lines) * 3 // 10 :])


@_declared(CUTS)
def without_tail(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[: len(lines) * 7 // 10])


@_declared(CUTS)
def middle(text: str) -> str:
    return without_tail(without_head(text))


@_declared(CUTS)
def last_lines(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[-30:])


@_declared(CUTS)
def half_a_first_line(text: str) -> str:
    return text[min(len(text) // 3, 500) :]


@_declared(CUTS)
def behind_an_earlier_attempt(text: str) -> str:
    return f"{EARLIER_ATTEMPT}{text}"


@_declared(CUTS)
def in_two_halves(text: str) -> str:
    """The log, without a few lines in its middle."""
    lines = text.splitlines(keepends=True)
    return "".join(lines[: len(lines) // 2 - 1] + lines[len(lines) // 2 + 1 :])


EARLIER_ATTEMPT = """nohup: ignoring input
reading the settings of the experiment from settings/base.yaml
Traceback (most recent call last):
  File "/home/user/project/train.py", line 12, in <module>
    settings = parse(path)
  File "/home/user/project/settings.py", line 40, in parse
    raise LookupError(f"no section {name}")
LookupError: no section optimizer
nohup: ignoring input
"""

ENCODINGS: dict[str, Callable[[str], bytes]] = {
    "utf_16": lambda text: text.encode("utf-16"),
    "latin_1": lambda text: text.encode("latin-1", "replace"),
    "byte_order_mark": lambda text: text.encode("utf-8-sig"),
    "nul_tail": lambda text: text.encode() + b"\0" * 4096,
}


def torn(writers: list[list[str]], chance: random.Random) -> str:
    """What several processes write at once, a few pieces at a time."""
    text = ""
    while any(writers):
        writer = chance.choice([writer for writer in writers if writer])
        count = chance.choice((1, 1, 2, 3))
        text += "".join(writer[:count])
        del writer[:count]
    return text


TIMED = frozenset(
    {
        "kubectl_timestamps",
        "containerd",
        "docker_json",
        "journald",
        "ts",
        "ts_in_brackets",
        "compose_under_kubectl",
        "quoted_journal_in_color",
    }
)
"""Prefixes that give each line a time."""
ALL: dict[str, Callable[[str], bytes]] = {
    **{
        name: lambda text, transformation=transformation: transformation(text).encode()
        for table in (PREFIXES, LAYOUTS, CUTS)
        for name, transformation in table.items()
    },
    **ENCODINGS,
}
