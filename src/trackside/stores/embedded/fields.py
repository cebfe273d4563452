"""Fields of rows as JSON text, from which every value comes back as it was: type, sign, tuple or not.

What JSON has no word for is an object with one member: ``{"float": "nan"}``, ``{"int": "18446744073709551616"}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from trackside.model import Scalar

Fields = Mapping[str, Scalar | tuple[Scalar, ...]]
_WORD = 1 << 63


class _Other(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A number that JSON can't hold."""

    float: str = ""
    int: str = ""


_Plain = str | int | float | bool | None | _Other
_decode = msgspec.json.Decoder(dict[str, _Plain | tuple[_Plain, ...]], strict=True).decode
_encode = msgspec.json.Encoder().encode
_labels = msgspec.json.Decoder(dict[str, str]).decode


def fields_text(fields: Fields) -> str:
    """The text of some fields."""
    return _encode({name: _told(value) for name, value in fields.items()}).decode()


def fields_of(text: str) -> dict[str, Any]:
    """The fields back. Raises ValueError for other text."""
    fields: dict[str, Any] = _decode(text)
    if '{"' in text[1:]:
        return {name: _back(value) for name, value in fields.items()}
    return fields


def _told(value: Scalar | tuple[Scalar, ...]) -> object:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, tuple):
        return [_told(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -_WORD <= value < _WORD:
        return {"int": str(value)}
    return value


def _back(value: object) -> object:
    if isinstance(value, _Other):
        return float(value.float) if value.float else int(value.int)
    if isinstance(value, tuple):
        return tuple(_back(each) for each in value)
    return value


def clean(text: str) -> str:
    """Text that can be written as UTF-8: half a surrogate pair, which no file decodes to, becomes a question mark."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def labels_text(labels: tuple[tuple[str, str], ...]) -> str:
    """Labels as a JSON object, in their order."""
    return _encode({clean(name): clean(value) for name, value in labels}).decode()


def labels_of(text: str) -> tuple[tuple[str, str], ...]:
    """The labels back."""
    return tuple(_labels(text).items())
