"""Hugging Face accelerate: the distributed environment that it prints."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_COUNT = re.compile(r"^\s*Num processes: (\d{1,6})")

PARSER = Parser("accelerate", "accelerate", "system")


@PARSER.pattern(
    rb"Distributed environment: ",
    r"Distributed environment: (?:DistributedType\.)?(\w{1,30})(?:\s+Backend: (\w{1,20}))?",
    safety="A single process prints DistributedType.NO: nothing was set up.",
    matches=(
        "Distributed environment: DistributedType.MULTI_GPU  Backend: nccl",
        "INFO:__main__:Distributed environment: MULTI_GPU  Backend: nccl",
        "Distributed environment: DistributedType.FSDP  Backend: nccl",
    ),
    avoids=(
        "Distributed environment: DistributedType.NO",
        "The distributed environment: variables are missing",
    ),
)
def _environment(line: Line, match: re.Match[str]) -> Iterator[Event]:
    if match[1] == "NO":
        return
    world = None
    for neighbor in line.following(6):
        if neighbor.label == line.label and (count := _COUNT.match(neighbor.text)):
            world = int(count[1])
            break
    yield line.event("distributed_ready", EventRole.OBSERVATION, world_size=world, backend=match[2])
    if world is not None:
        yield line.event("host", EventRole.OBSERVATION, world_size=world)
