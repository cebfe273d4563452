"""The JSON in which Prometheus-compatible servers answer, taken apart fast: millions of points a second.

A point is ``[time,"value"]``. Most answers hold a value for each window asked for: then the times need not be read.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from trackside.http.unavailable import SourceUnavailable, error_message, plain

T = TypeVar("T")
Values = NDArray[np.float64]
Times = NDArray[np.int64]
_NUMBERS = msgspec.json.Decoder(list[float])
_LABELS = msgspec.json.Decoder(dict[str, str])
_NAMES = msgspec.json.Decoder(list[str])
_SETS = msgspec.json.Decoder(list[dict[str, str]])
_NONE = msgspec.Raw(b"null")
_FRAME = b'[]"'


class _Series(msgspec.Struct):
    metric: msgspec.Raw
    values: msgspec.Raw = _NONE
    value: msgspec.Raw = _NONE


class _Result(msgspec.Struct):
    result: list[_Series]


class _Answer(msgspec.Struct):
    status: str = ""
    data: msgspec.Raw = _NONE
    error: str = ""
    isPartial: bool = False
    warnings: list[str] | None = None


_ANSWER, _RESULT = msgspec.json.Decoder(_Answer), msgspec.json.Decoder(_Result)


class Found(NamedTuple):
    """One series of an answer: its labels as they stand there, and its points; both JSON."""

    labels: bytes
    points: bytes


def data_of(body: bytes, where: str, partial: bool = False) -> bytes:
    """What an answer holds. Raises SourceUnavailable where it says that it failed, or (unless ``partial``) is not whole."""
    try:
        answer = _ANSWER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SourceUnavailable("broken", f"{where} sent {error_message(body)[:60]!r} where an answer of Prometheus' API was due; "
                         "is it the right URL?") from None  # fmt: skip
    if answer.status != "success":
        raise SourceUnavailable("refused", f"{where}: {plain(answer.error) or 'it says neither success nor error'}")
    # Prometheus 2.48 to 2.55 list what they would have us know of our query among the warnings.
    warnings = [each for each in answer.warnings or () if not each.startswith("PromQL info")]
    if not partial and (answer.isPartial or warnings):
        why = plain(warnings[0]) if warnings else "it could not reach all of its storage nodes"
        raise SourceUnavailable("partial", f"{where} gave a part of the answer: {why}")
    return bytes(answer.data)


def series_of(data: bytes, where: str) -> Iterator[Found]:
    """The series of a matrix or a vector. Raises SourceUnavailable where it is neither."""
    for each in _decoded(_RESULT, data, where).result:
        points = bytes(each.values)
        yield Found(bytes(each.metric), points if points != b"null" else b"[" + bytes(each.value) + b"]")


def labels_of(found: bytes, where: str) -> dict[str, str]:
    """The labels of a series, without its name."""
    labels = _decoded(_LABELS, found, where)
    labels.pop("__name__", None)
    return labels


def windows(points: bytes, start_ms: int, step_ms: int, width: int, where: str) -> Values:
    """(width,) values of the windows that end at start + step, start + 2 step ...; NaN where there is no point.

    Points before and after are ignored; of several for one window the last holds. Raises SourceUnavailable where there are
    points, but in between, or none of what was asked for: what they say must not pass for nothing.
    """
    texts = points.split(b'"')[1::2]
    if len(texts) == width and _first(points) == start_ms + step_ms and _last(points) == start_ms + width * step_ms:
        return _numbers(b",".join(texts), where)
    out = np.full(width, np.nan)
    times, values = samples(points, where)
    place, off = np.divmod(times - start_ms, step_ms)
    good = (off == 0) & (place >= 1) & (place <= width)
    if off.any() or (len(times) and not good.any()):
        raise SourceUnavailable("broken", f"{where} answered for other times than asked, in steps of {step_ms / 1000:g} s; is "
                         "there a proxy that moves them?")  # fmt: skip
    out[place[good] - 1] = values[good]
    return out


def samples(points: bytes, where: str) -> tuple[Times, Values]:
    """Times in ms and values of all points."""
    flat = _numbers(points.translate(None, _FRAME), where)
    if len(flat) % 2 or not np.isfinite(flat[::2]).all() or (np.abs(flat[::2]) > 1e13).any():
        raise _broken(where)
    return np.rint(flat[::2] * 1000).astype(np.int64), flat[1::2]


def value_of(points: bytes, where: str) -> float | None:
    """The value of a series of a vector; None where it has none, or several."""
    _, _, rest = points.partition(b'"')
    text, _, end = rest.partition(b'"')
    if end == b"]]":
        try:
            return float(text)
        except ValueError:
            raise _broken(where) from None
    _, values = samples(points, where)
    return float(values[0]) if len(values) == 1 else None


def _numbers(text: bytes, where: str) -> Values:
    """Numbers between commas. NaN and infinities, which JSON has not, take a slower way."""
    try:
        return np.frombuffer(array("d", _NUMBERS.decode(b"[" + text + b"]")))
    except msgspec.MsgspecError:
        pass
    try:
        return np.array([float(each) for each in text.split(b",")])
    except ValueError:
        raise _broken(where) from None


def _first(points: bytes) -> int:
    return _time(points[2 : points.find(b",", 0, 32)])


def _last(points: bytes) -> int:
    begin = points.rfind(b"[", max(0, len(points) - 80)) + 1
    return _time(points[begin : points.find(b",", begin)])


def _time(text: bytes) -> int:
    """Milliseconds; -1 for what is no number."""
    try:
        return round(float(text) * 1000)
    except (ValueError, OverflowError):
        return -1


def names_of(data: bytes, where: str) -> list[str]:
    """A list of texts. Raises SourceUnavailable where it is none."""
    return _decoded(_NAMES, data, where)


def sets_of(data: bytes, where: str) -> list[dict[str, str]]:
    """A list of label sets. Raises SourceUnavailable where it is none."""
    return _decoded(_SETS, data, where)


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes, where: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _broken(where) from None


def _broken(where: str) -> SourceUnavailable:
    return SourceUnavailable("broken", f"{where} sent an answer that is none of Prometheus' API; is it the right URL?")
