"""Python stacks of living processes: the text of ``py-spy dump``, one or many, joined in one file."""

from __future__ import annotations

import re

from trackside.model import Event, Position
from trackside.read.format import Format, Match, Result, Sink, Source

_THREAD = re.compile(r'\s*Thread (?:0x)?([0-9A-Fa-f]{1,16}) \([\w+ ]{1,40}\)(?:: "([^"\n]{0,100})")?\s*$')
_FRAME = re.compile(r"\s+(\S{1,200}) \((\S{1,500}?)(?::\d{1,7})?\)\s*$")
_COLLECTIVE = re.compile(
    r"(?:monitored_)?barrier|all_?reduce\w*|all_?gather\w*|reduce_?scatter\w*|broadcast\w*|all_?to_?all\w*|wait_for_everyone"
)
MAX_FRAMES = 40


def _sniff(source: Source) -> Match | None:
    lines = source.text.splitlines()
    threads = sum(1 for line in lines if _THREAD.match(line))
    frames = sum(1 for line in lines if _FRAME.match(line))
    if threads and frames and threads + frames >= 0.5 * sum(1 for line in lines if line.strip()):
        return Match(0.85, f"{threads} Python stacks of py-spy")
    return None


def _read(source: Source, sink: Sink) -> Result:
    stacks = 0
    head: tuple[Position, str, str] | None = None
    frames: list[str] = []
    for number, offset, text in source.lines():
        if found := _THREAD.match(text):
            stacks += _give(sink, head, frames)
            head, frames = (Position(source.path, number, offset, len(text)), text.strip(), found[1]), []
        elif head is not None and len(frames) < MAX_FRAMES and (frame := _FRAME.match(text)):
            frames.append(frame[1])
    stacks += _give(sink, head, frames)
    return Result(stacks)


def _give(sink: Sink, head: tuple[Position, str, str] | None, frames: list[str]) -> int:
    if head is None or not frames:
        return 0
    at, text, pid = head
    inside = next((name for name in frames if _COLLECTIVE.fullmatch(name)), None)
    fields = {"pid": pid, "top": frames[0], "collective": inside, "frames": ";".join(frames)}
    told = {name: value for name, value in fields.items() if value is not None}
    sink.event(Event("stack", at, "trace", text=f"{text} in {frames[0]}", parser="py-spy", fields=told))
    return 1


FORMAT = Format("py-spy-dump", "Python stacks of living processes (py-spy dump)", "trace", _sniff, _read)
