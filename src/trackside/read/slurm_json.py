"""The shapes that values take in Slurm's JSON, from openapi v0.0.37 (21.08) to data_parser v0.0.45 (26.05)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from trackside.read import slurm
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


def command(answer: Object) -> str | None:
    """The program that wrote the answer, where ``meta`` says so (23.02 on)."""
    called = dig(answer, "meta", "command")
    return str(called[0]).rsplit("/", 1)[-1] if isinstance(called, list) and called else None


def dig(value: Any, *keys: str) -> Any:
    """A value deep in objects; None where a level is missing."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def number(value: Any) -> int | None:
    """A whole number: plain, or ``{"set": true, "infinite": false, "number": 5}``."""
    if isinstance(value, dict):
        if value.get("infinite") is True or value.get("set") is False:
            return None
        value = value.get("number")
    if isinstance(value, str) and value.isdecimal() and len(value) <= 18:
        return int(value)
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def when(value: Any) -> float | None:
    """A time; None for 0 and for NO_VAL."""
    seconds = number(value)
    return None if seconds is None or seconds in slurm.UNSET_TIMES else float(seconds)


def minutes(value: Any) -> float | None:
    """A time limit in seconds."""
    limit = number(value)
    return None if limit is None or limit in slurm.UNSET_TIMES else limit * 60.0


def text(value: Any) -> str | None:
    """A string that says something."""
    return slurm.known(value) if isinstance(value, str) else None


def words(value: Any) -> list[str]:
    """State and flags: one string, or a list of them."""
    listed = value if isinstance(value, list) else [value]
    return [each for each in listed if isinstance(each, str) and each]


def exit_of(value: Any) -> tuple[int | None, int | None]:
    """(exit code, signal) of an exit_code object, or of the plain wait status of old squeue."""
    if not isinstance(value, dict) or "return_code" not in value:
        status = number(value)
        return slurm.exit_of_status(status) if status is not None and 0 <= status < 1 << 16 else (None, None)
    held = value.get("signal")
    signal = number(dig(held, "id")) or number(dig(held, "signal_id")) or 0
    code = number(value.get("return_code"))
    return (0 if signal else code), (signal if signal or code is not None else None)


def job_ids(number_: Any, array: Any, task: Any, tasks: Any, het: Any, offset: Any) -> dict[str, slurm.Field]:
    """A job's ``id`` as users write it, ``raw_id`` and ``array_id``, from its numbers."""
    raw, array_id, het_id = number(number_), number(array), number(het)
    task_id, part = number(task), number(offset)
    ids: dict[str, slurm.Field] = {} if raw is None else {"id": str(raw), "raw_id": str(raw)}
    if array_id and task_id is not None:
        return {**ids, "id": f"{array_id}_{task_id}", "array_id": str(array_id)}
    if array_id and text(tasks):
        return {**ids, "id": f"{array_id}_[{text(tasks)}]", "array_id": str(array_id)}
    if het_id and part is not None:
        return {**ids, "id": f"{het_id}+{part}"}
    return ids


def nodes(value: Any) -> tuple[str, ...]:
    """Node names: a hostlist string, or an object with ``list``, ``range`` or ``nodes``."""
    if isinstance(value, dict):
        value = value.get("list") or value.get("nodes") or value.get("range")
    if isinstance(value, list):
        return tuple(name for each in value if isinstance(each, str) for name in slurm.nodes_of(each))
    return slurm.nodes_of(value) if isinstance(value, str) else ()


def tres(value: Any) -> Iterator[tuple[str, str, int]]:
    """(type, name, count) of a TRES list."""
    for each in value if isinstance(value, list) else ():
        count = number(dig(each, "count"))
        if count is not None:
            yield str(dig(each, "type") or ""), str(dig(each, "name") or ""), count


def gpus(value: Any) -> int | None:
    """GPUs in a TRES list: the plain count, or the sum over types."""
    held = {name: count for kind, name, count in tres(value) if kind == "gres" and name.split(":")[0] == "gpu"}
    return held.get("gpu", sum(held.values())) if held else None
