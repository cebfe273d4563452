"""How was a run set up, as its log says before training begins: arguments, versions, environment."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping

from trackside.compare.side import Setting
from trackside.model import Position
from trackside.read.format import Source
from trackside.read.walk import walk

MOST_LINES, MOST_BYTES, MOST = 4000, 2 << 20, 600
"""Of each log, and settings in all."""
LONGEST = 200
"""Characters of a value."""
_NAME = r"[A-Za-z][\w.-]{1,60}"
_DOTTED = re.compile(rf"^\s*(?:\d+:\s*)?({_NAME}) \.{{3,}} (\S.*)$")  # Megatron's list of arguments
_OPTION = re.compile(rf"(?<!\S)--({_NAME})(?:=|\s+)([^\s-]\S*)")
_EXPORT = re.compile(r"^\s*(?:\++ )?(?:export )?([A-Z][A-Z0-9_]{2,60})=(\S.*)$")
_PAIR = re.compile(rf"^[\s\-*]*[\"']?({_NAME})[\"']?\s*[:=]\s*(\S.*?),?\s*$")
_CALL = re.compile(r"(?:Namespace|Config|Arguments|Args)\w*\((.*)\)\s*$")
_ARGUMENT = re.compile(rf"\b({_NAME})=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[^\s,()]+)")
_VERSION = re.compile(
    r"(?i)\b(torch|pytorch|cuda|nccl|transformers|deepspeed|lightning|python|driver)\s+(?:version:?\s*)?v?(\d+\.\d[\w.+]*)"
)
_VOLATILE = re.compile(
    r"(?i)time|date|(?:^|_)(?:pid|port|host|hostname|addr|address|ip|id|rank|jobid|job_id|uuid|hash|dir|path|file|log)s?$|"
    r"^(?:info|warning|error|debug|traceback|file|line|exception|step|epoch|iter|iteration|loss|lr|elapsed|eta|mem|"
    r"memory|note|https?|usage)$|accuracy|loss$|score|throughput|perplexity|elapsed|duration"
)


def settings(paths: Collection[str], logs: Collection[str], until: Mapping[str, int]) -> dict[str, Setting]:
    """The settings that the logs print, by name, the first value of each. ``until``: the line of each log at which
    training begins. Files that can't be read any more have none."""
    found: dict[str, Setting] = {}
    for source in walk([*paths]):
        if isinstance(source, Source) and source.path in logs:
            for name, setting in _read(source, until.get(source.path, MOST_LINES)):
                if len(found) >= MOST:
                    return found
                found.setdefault(name.lower().replace("-", "_"), setting)
    return found


def _read(source: Source, until: int) -> Iterator[tuple[str, Setting]]:
    for line, offset, text in source.lines(64 << 10):
        if line >= until or line > MOST_LINES or offset > MOST_BYTES:
            return
        for name, value in _told(text):
            if not _VOLATILE.search(name) and value:
                at = Position(source.path, line, offset, len(text))
                yield name, Setting(value[:LONGEST], at, text.strip()[:400])


def _told(text: str) -> Iterator[tuple[str, str]]:
    """(name, value) of all settings in a line."""
    if ":::MLL" in text:
        yield from _mllog(text)
    elif (call := _CALL.search(text)) is not None:
        yield from ((each[1], _bare(each[2])) for each in _ARGUMENT.finditer(call[1]))
    elif (dotted := _DOTTED.match(text)) is not None:
        yield dotted[1], dotted[2].strip()
    elif (options := [(each[1], _bare(each[2])) for each in _OPTION.finditer(text)]) or (
        options := [(each[1].lower() + " version", each[2]) for each in _VERSION.finditer(text)]
    ):
        yield from options
    elif (pair := _EXPORT.match(text) or _PAIR.match(text)) is not None and len(pair[2]) <= LONGEST:
        yield pair[1], _bare(pair[2])


def _mllog(text: str) -> Iterator[tuple[str, str]]:
    start = text.find("{")
    try:
        row = json.loads(text[start : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        return
    if isinstance(row, dict) and isinstance(row.get("key"), str) and row.get("event_type") == "POINT_IN_TIME":
        yield row["key"], str(row.get("value"))


def _bare(value: str) -> str:
    return value.strip().strip("\"',")
