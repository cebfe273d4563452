"""Python stacks of running processes: the text of one or more ``py-spy dump`` runs in one file."""

from __future__ import annotations

import re

from trackside.catalog.hang_lines import MAX_FRAMES
from trackside.catalog.python_stack import Call
from trackside.model import Event, Position
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.stacks import stack_fields

_THREAD = re.compile(r'\s*Thread (?:0x)?([0-9A-Fa-f]{1,16}) \([\w+ ]{1,40}\)(?:: "([^"\n]{0,100})")?\s*$')
_FRAME = re.compile(r"\s+(\S{1,200}) \((\S{1,500}?)(?::(\d{1,7}))?\)\s*$")
_LIBRARY = re.compile(r"\.so(?:\.\d+)*\Z")


def _sniff(source: InputSource) -> Match | None:
    lines = source.text.splitlines()
    threads = sum(1 for line in lines if _THREAD.match(line))
    frames = sum(1 for line in lines if _FRAME.match(line))
    if threads and frames and threads + frames >= 0.5 * sum(1 for line in lines if line.strip()):
        return Match(0.85, f"{threads} Python stacks from py-spy")
    return None


def _read(source: InputSource, sink: Sink) -> Result:
    stacks = 0
    head: tuple[Position, str, str, str | None] | None = None
    calls: list[Call] = []
    for number, offset, text in source.lines():
        if match := _THREAD.match(text):
            stacks += _emit_stack(sink, head, calls)
            head, calls = (Position(source.path, number, offset, len(text)), text.strip(), match[1], match[2]), []
        elif head is not None and len(calls) < MAX_FRAMES and (frame := _FRAME.match(text)):
            calls.append(Call(frame[1], frame[2], int(frame[3] or 0)))
    stacks += _emit_stack(sink, head, calls)
    return Result(stacks)


def _emit_stack(sink: Sink, head: tuple[Position, str, str, str | None] | None, calls: list[Call]) -> int:
    if head is None or not calls:
        return 0
    position, text, pid, thread = head
    # --native adds frames of shared libraries before and between Python frames
    python = [call for call in calls if not _LIBRARY.search(call.file)]
    native = calls[: calls.index(python[0])] if python else []
    fields = {"pid": pid, "thread": thread, **stack_fields(python or calls, [call.name for call in native])}
    known_fields = {name: value for name, value in fields.items() if value is not None}
    sink.event(
        Event("stack", position, "trace", text=f"{text} in {calls[0].name}", parser="py-spy", fields=known_fields)
    )
    return 1


FORMAT = Format("py-spy-dump", "Python stacks of running processes (py-spy dump)", "trace", _sniff, _read)
