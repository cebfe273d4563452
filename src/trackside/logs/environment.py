"""Environment variables that change what a run does, if the log shows that they are set."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

NAMES = (
    "CUDA_LAUNCH_BLOCKING",
    "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_BLOCKING_WAIT",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_NET",
    "NCCL_SOCKET_IFNAME",
    "TORCH_DISTRIBUTED_DEBUG",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)
_NAME = "|".join(NAMES)
_SET = re.compile(rf"(?:^|[\s;&'\"{{(]|\bexport )(?P<name>{_NAME})(?:=|['\"]?: ?)['\"]?(?P<value>[\w.,:^=-]{{1,80}})")
_ADVICE = re.compile(
    r"(?i:consider|passing|\btry\b|\bset(?:ting)?\b|\buse\b|recommend|\byou\b|debug(?:ging)?,|"
    r"should|e\.g\.|suggest|hint|rerun|re-run|with CUDA_LAUNCH)"
)

PARSER = Parser("environment", "environment variables", "system")


@PARSER.pattern(
    b"(" + _NAME.encode() + b")(=|['\"]{0,1}: ?['\"]{0,1}[0-9A-Za-z])",
    safety="PyTorch's hint to pass CUDA_LAUNCH_BLOCKING=1 is advice: it does not mean that the variable is set.",
    matches=(
        "CUDA_LAUNCH_BLOCKING=1",
        "export CUDA_LAUNCH_BLOCKING=1",
        "+ CUDA_LAUNCH_BLOCKING=1",
        "+ env CUDA_LAUNCH_BLOCKING=1 python train.py",
        "environ({'HOME': '/home/u', 'CUDA_LAUNCH_BLOCKING': '1'})",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "NCCL_IB_DISABLE=1",
    ),
    avoids=("CUDA_LAUNCH_BLOCKING is unset", "MY_CUDA_LAUNCH_BLOCKING=1", "CUDA_LAUNCH_BLOCKING=None"),
)
def _variable(line: Line) -> Event | None:
    text = line.text
    match = _SET.search(text)
    if _ADVICE.search(text) and not re.match(r"\s*\+* ?(?:export |env )?(?:\w+=\S* )*(?:" + _NAME + ")=", text):
        name = re.search(_NAME, text)
        return line.event("advice", EventRole.ADVICE, about=name[0]) if name else None
    if match is None or match["value"].lower() in ("none", "unset", "null"):
        return None
    return line.event("env_flag", EventRole.OBSERVATION, name=match["name"], value=match["value"])
