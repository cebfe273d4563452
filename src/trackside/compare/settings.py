"""Reads a run's settings from its log, before training begins: arguments, versions, environment."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping

from trackside.compare.side import RunSetting
from trackside.model import Position
from trackside.read.format import InputSource
from trackside.read.walk import walk

MAX_LINES, MAX_BYTES, MAX_SETTINGS = 4000, 2 << 20, 600
"""Maximum lines and bytes read of each log, and maximum number of settings."""
MAX_VALUE_CHARS = 200
"""Maximum characters of a value."""
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


def settings(paths: Collection[str], logs: Collection[str], until: Mapping[str, int]) -> dict[str, RunSetting]:
    """The settings that the logs print, by name; the first value of each counts. ``until``: the line of each log at
    which training begins. Files that can no longer be read are skipped."""
    by_name: dict[str, RunSetting] = {}
    for source in walk([*paths]):
        if isinstance(source, InputSource) and source.path in logs:
            for name, setting in _read(source, until.get(source.path, MAX_LINES)):
                if len(by_name) >= MAX_SETTINGS:
                    return by_name
                by_name.setdefault(name.lower().replace("-", "_"), setting)
    return by_name


def _read(source: InputSource, until: int) -> Iterator[tuple[str, RunSetting]]:
    for line, offset, text in source.lines(64 << 10):
        if line >= until or line > MAX_LINES or offset > MAX_BYTES:
            return
        for name, value in _settings_in(text):
            if not _VOLATILE.search(name) and value:
                position = Position(source.path, line, offset, len(text))
                yield name, RunSetting(value[:MAX_VALUE_CHARS], position, text.strip()[:400])


def _settings_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of each setting in a line."""
    if ":::MLL" in text:
        yield from _mllog(text)
    elif (call := _CALL.search(text)) is not None:
        yield from ((match[1], _unquote(match[2])) for match in _ARGUMENT.finditer(call[1]))
    elif (dotted := _DOTTED.match(text)) is not None:
        yield dotted[1], dotted[2].strip()
    elif (options := [(match[1], _unquote(match[2])) for match in _OPTION.finditer(text)]) or (
        options := [(match[1].lower() + " version", match[2]) for match in _VERSION.finditer(text)]
    ):
        yield from options
    elif (pair := _EXPORT.match(text) or _PAIR.match(text)) is not None and len(pair[2]) <= MAX_VALUE_CHARS:
        yield pair[1], _unquote(pair[2])


def _mllog(text: str) -> Iterator[tuple[str, str]]:
    start = text.find("{")
    try:
        row = json.loads(text[start : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        return
    if isinstance(row, dict) and isinstance(row.get("key"), str) and row.get("event_type") == "POINT_IN_TIME":
        yield row["key"], str(row.get("value"))


def _unquote(value: str) -> str:
    return value.strip().strip("\"',")
