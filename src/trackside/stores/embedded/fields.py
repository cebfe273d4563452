"""Fields of rows as JSON text that restores every value exactly: type, sign, tuple or list.

A value that JSON cannot express is an object with one member: ``{"float": "nan"}``,
``{"int": "18446744073709551616"}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from trackside.model import Scalar

Fields = Mapping[str, Scalar | tuple[Scalar, ...]]
_INT64_LIMIT = 1 << 63


class _NonJsonNumber(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A number that JSON cannot express."""

    float: str = ""
    int: str = ""


_Plain = str | int | float | bool | None | _NonJsonNumber
_decode = msgspec.json.Decoder(dict[str, _Plain | tuple[_Plain, ...]], strict=True).decode
_encode = msgspec.json.Encoder().encode
_labels = msgspec.json.Decoder(dict[str, str]).decode


def fields_text(fields: Fields) -> str:
    """Fields as JSON text."""
    return _encode({name: _to_json(value) for name, value in fields.items()}).decode()


def fields_of(text: str) -> dict[str, Any]:
    """Fields from their JSON text. Raises ValueError for other text."""
    fields: dict[str, Any] = _decode(text)
    if '{"' in text[1:]:
        return {name: _from_json(value) for name, value in fields.items()}
    return fields


def _to_json(value: Scalar | tuple[Scalar, ...]) -> object:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -_INT64_LIMIT <= value < _INT64_LIMIT:
        return {"int": str(value)}
    return value


def _from_json(value: object) -> object:
    if isinstance(value, _NonJsonNumber):
        return float(value.float) if value.float else int(value.int)
    if isinstance(value, tuple):
        return tuple(_from_json(item) for item in value)
    return value


def clean(text: str) -> str:
    """Text that UTF-8 can encode: a lone surrogate, which no file decodes to, becomes a question mark."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def labels_text(labels: tuple[tuple[str, str], ...]) -> str:
    """Labels as a JSON object, in their order."""
    return _encode({clean(name): clean(value) for name, value in labels}).decode()


def labels_of(text: str) -> tuple[tuple[str, str], ...]:
    """Labels from their JSON text."""
    return tuple(_labels(text).items())
