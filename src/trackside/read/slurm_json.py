"""Slurm's JSON output: the document, its lists of objects, and which command wrote it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from trackside.catalog.slurm.fields import SlurmValue
from trackside.catalog.slurm.values import dig
from trackside.model import Position, Record
from trackside.read.format import InputSource

Object = dict[str, Any]


def document(source: InputSource) -> Object:
    """The JSON document. Raises ValueError if it is not a JSON object."""
    data = source.whole()
    try:
        document_ = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            document_ = msgspec.json.decode(data.decode("utf-8", "replace").encode())
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"broken JSON: {error}") from error
    if not isinstance(document_, dict):
        raise ValueError("JSON, but not from Slurm")
    return document_


def objects(answer: Object, key: str) -> list[Object]:
    """A list of objects in the document. Raises ValueError if it is empty because the command failed."""
    objects_ = [item for item in answer.get(key) or () if isinstance(item, dict)]
    if not objects_ and (errors := answer.get("errors")):
        first_error = errors[0] if isinstance(errors, list) else errors
        description = (
            first_error.get("description") or first_error.get("error") if isinstance(first_error, dict) else first_error
        )
        raise ValueError(f"the command failed: {str(description)[:200]}; run it again when the daemon answers")
    return objects_


def looks_like(source: InputSource, key: str, *keys: str) -> bool:
    """Whether the head starts a JSON object that contains this list and one of these keys."""
    head = source.text.lstrip("\ufeff \t\r\n")
    if not head.startswith("{"):
        return False
    return re.search(rf'"{key}"\s*:\s*\[', head) is not None and any(f'"{key_}"' in head for key_ in keys)


def getter(row: Object) -> Callable[[str], Any]:
    """A function that returns a value of an object by its path, such as ``time.start``."""
    return lambda path: dig(row, *path.split("."))


def record(kind: str, path: str, ordinal: int, fields: dict[str, SlurmValue]) -> Record:
    """The record of a job or step. ``ordinal``: its 1-based number in the document."""
    text = f"{kind} {fields.get('id')} {fields.get('state')}"
    return Record(kind, Position(path, ordinal), "scheduler", fields, text)
