"""Which libraries a log mentions, so that a bare dict or bar is attributed to the right one."""

from __future__ import annotations

from trackside.logs.line import Line
from trackside.logs.pattern import Parser, Pattern

_NOTE = "frameworks"


def named_frameworks(line: Line) -> set[str]:
    """Frameworks that this file's lines have mentioned so far."""
    names: set[str] = line.notes(_NOTE).setdefault("named", set())
    return names


def _mention_pattern(framework: str, regex: bytes) -> Pattern:
    def parse(line: Line) -> None:
        named_frameworks(line).add(framework)

    return Pattern(framework, regex, parse, "Only remembers the name; yields no event.")


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

PARSER = Parser("frameworks", "names of libraries in a log", "framework")
PARSER.patterns.extend(_mention_pattern(name, regex) for name, regex in (*_PACKAGES.items(), *_BANNERS.items()))
