"""Which libraries a log names in passing, so that a bare dict or bar can be put down to the right one."""

from __future__ import annotations

from trackside.logs.line import Line
from trackside.logs.pattern import Parser, Pattern

_NOTE = "frameworks"


def named(line: Line) -> set[str]:
    """Frameworks that this file's lines have named so far."""
    seen: set[str] = line.notes(_NOTE).setdefault("named", set())
    return seen


def _names(framework: str, regex: bytes) -> Pattern:
    def parse(line: Line) -> None:
        named(line).add(framework)

    return Pattern(framework, regex, parse, "Only remembers the name; gives no event.")


_PACKAGES = {
    "lightning": rb"(?:packages/|dist-packages/|[ \"'])(?:pytorch_)?lightning/(?:pytorch|fabric|trainer|utilities)/",
    "deepspeed": rb"packages/deepspeed/",
    "axolotl": rb"axolotl[/.](?:train|cli|utils|core|integrations)",
    "unsloth": rb"Unsloth(?: Zoo)?:? (?:20[0-9]{2}|- [0-9]|will|[a-zA-Z]{3,12})",
    "trl": rb"packages/trl/",
    "llama-factory": rb"llamafactory\.",
    "nemo": rb"\[NeMo [IWE] ",
    "keras": rb"packages/(?:tf_)?keras/",
}
_BANNERS = {
    "lightning": rb"(?:GPU available: (?:True|False)|Sanity Checking|LOCAL_RANK: [0-9]{1,4} - CUDA_VISIBLE_DEVICES)",
    "deepspeed": rb"(?:DeepSpeed info: |\[launch\.py:[0-9]|\[runner\.py:[0-9]|DeepSpeedEngine|deepspeed\.launcher)",
    "accelerate": rb"(?:Distributed environment: |distributed_type: )(?:DistributedType\.)?[A-Z]{2}",
    "unsloth": rb"==\(\(====\)\)==",
    "megatron": rb"(?:using world size: [0-9]{1,6}, data-parallel|setting training iterations to|building GPT model)",
}

PARSER = Parser("frameworks", "Libraries that a log names", "framework")
PARSER.patterns.extend(_names(name, regex) for name, regex in (*_PACKAGES.items(), *_BANNERS.items()))
