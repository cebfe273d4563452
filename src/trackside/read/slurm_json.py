"""Slurm's JSON: an answer, its lists of objects, and what says whose answer it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from trackside.catalog.slurm.fields import Value
from trackside.catalog.slurm.values import dig
from trackside.model import Position, Record
from trackside.read.format import Source

Object = dict[str, Any]


def document(source: Source) -> Object:
    """The whole answer. Raises ValueError where it is no JSON object, or says only that the command failed."""
    data = source.whole()
    try:
        answer = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            answer = msgspec.json.decode(data.decode("utf-8", "replace").encode())
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"broken JSON: {error}") from error
    if not isinstance(answer, dict):
        raise ValueError("JSON, but no answer of Slurm")
    return answer


def objects(answer: Object, key: str) -> list[Object]:
    """A list of objects in the answer. Raises ValueError where it is empty because the command failed."""
    found = [each for each in answer.get(key) or () if isinstance(each, dict)]
    if not found and (errors := answer.get("errors")):
        said = errors[0] if isinstance(errors, list) else errors
        words = said.get("description") or said.get("error") if isinstance(said, dict) else said
        raise ValueError(f"the command failed: {str(words)[:200]}; run it again when the daemon answers")
    return found


def looks_like(source: Source, key: str, *words: str) -> bool:
    """Whether the head opens a JSON object with this list and one of these words in it."""
    head = source.text.lstrip("\ufeff \t\r\n")
    if not head.startswith("{"):
        return False
    return re.search(rf'"{key}"\s*:\s*\[', head) is not None and any(f'"{word}"' in head for word in words)


def getter(row: Object) -> Callable[[str], Any]:
    """What finds a value by its path in an object: ``time.start``."""
    return lambda path: dig(row, *path.split("."))


def record(kind: str, path: str, ordinal: int, fields: dict[str, Value]) -> Record:
    """The record of a job or step, by its number in the answer."""
    text = f"{kind} {fields.get('id')} {fields.get('state')}"
    return Record(kind, Position(path, ordinal), "scheduler", fields, text)
