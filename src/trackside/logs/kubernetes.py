"""Kubernetes and Docker: a container killed for memory, as their tools show it."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

PARSER = Parser("kubernetes", "Kubernetes and Docker", "system")


@PARSER.pattern(
    rb"OOMKilled",
    r'(?:Reason:\s{0,40}|\d/\d\s{1,40}|[Tt]erminated[:\s(]{1,20})OOMKilled\b|"OOMKilled": ?true',
    safety="Only as a container's state: the field's name alone, or false, says nothing.",
    matches=(
        "      Reason:       OOMKilled",
        "train-llama-0   0/1     OOMKilled   0          5m",
        '"OOMKilled": true,',
    ),
    avoids=('"OOMKilled": false,', "raise the limit if you see OOMKilled"),
)
def _oom_kill(line: Line, _: re.Match[str]) -> Event:
    return line.event("oom_kill", EventRole.ROOT, scope="container")
