"""Hugging Face accelerate: what it prints of its distributed environment."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.logs.line import Line
from trackside.logs.pattern import Parser, Pattern
from trackside.model import Event, Role

_ENVIRONMENT = re.compile(r"Distributed environment: (?:DistributedType\.)?(\w{1,30})(?:\s+Backend: (\w{1,20}))?")
_COUNT = re.compile(r"^\s*Num processes: (\d{1,6})")


def _environment(line: Line) -> Iterator[Event]:
    found = _ENVIRONMENT.search(line.text)
    if found is None or found[1] == "NO":
        return
    world = None
    for near in line.following(6):
        if near.label == line.label and (count := _COUNT.match(near.text)):
            world = int(count[1])
            break
    yield line.event("distributed_ready", Role.FACT, world_size=world, backend=found[2])
    if world is not None:
        yield line.event("host", Role.FACT, world_size=world)


PARSER = Parser(
    id="accelerate",
    title="accelerate",
    kind="system",
    patterns=(
        Pattern(
            "environment",
            rb"Distributed environment: ",
            _environment,
            "A single process prints DistributedType.NO: nothing was set up.",
            matches=(
                "Distributed environment: DistributedType.MULTI_GPU  Backend: nccl",
                "INFO:__main__:Distributed environment: MULTI_GPU  Backend: nccl",
                "Distributed environment: DistributedType.FSDP  Backend: nccl",
            ),
            avoids=(
                "Distributed environment: DistributedType.NO",
                "The distributed environment: variables are missing",
            ),
        ),
    ),
)
