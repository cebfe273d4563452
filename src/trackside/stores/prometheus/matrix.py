"""Decodes the JSON answers of Prometheus-compatible servers fast: millions of points per second.

A point is ``[time,"value"]``. Most answers hold a value for each requested window, so their times need not be decoded.
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
_PUNCTUATION = b'[]"'


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


class RawSeries(NamedTuple):
    """One series of an answer: its labels and its points, both as raw JSON."""

    labels: bytes
    points: bytes


def data_of(body: bytes, endpoint: str, partial: bool = False) -> bytes:
    """The data of an answer. Raises SourceUnavailable if the answer reports a failure, or (unless ``partial``) is
    incomplete."""
    try:
        answer = _ANSWER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = f"{endpoint} sent {error_message(body)[:60]!r} instead of a Prometheus API answer; is it the right URL?"
        raise SourceUnavailable("broken", text) from None
    if answer.status != "success":
        raise SourceUnavailable(
            "refused", f"{endpoint}: {plain(answer.error) or 'it reports neither success nor an error'}"
        )
    # Prometheus 2.48 to 2.55 list hints about the query among the warnings.
    warnings = [warning for warning in answer.warnings or () if not warning.startswith("PromQL info")]
    if not partial and (answer.isPartial or warnings):
        reason = plain(warnings[0]) if warnings else "it could not reach all of its storage nodes"
        raise SourceUnavailable("partial", f"{endpoint} gave only a part of the answer: {reason}")
    return bytes(answer.data)


def series_of(data: bytes, endpoint: str) -> Iterator[RawSeries]:
    """The series of a matrix or a vector. Raises SourceUnavailable for anything else."""
    for series in _decode(_RESULT, data, endpoint).result:
        points = bytes(series.values)
        yield RawSeries(bytes(series.metric), points if points != b"null" else b"[" + bytes(series.value) + b"]")


def labels_of(raw_labels: bytes, endpoint: str) -> dict[str, str]:
    """The labels of a series, without its name."""
    labels = _decode(_LABELS, raw_labels, endpoint)
    labels.pop("__name__", None)
    return labels


def windows(points: bytes, start_ms: int, step_ms: int, width: int, endpoint: str) -> Values:
    """(width,) values of the windows that end at start + step, start + 2 step ...; NaN where there is no point.

    Points before and after are ignored; of several points for one window the last is used. Raises SourceUnavailable if
    points lie between window ends, or none has a requested time, so that a wrong answer does not pass as an empty one.
    """
    texts = points.split(b'"')[1::2]
    if len(texts) == width and _first(points) == start_ms + step_ms and _last(points) == start_ms + width * step_ms:
        return _numbers(b",".join(texts), endpoint)
    out = np.full(width, np.nan)
    times, values = samples(points, endpoint)
    window, remainder = np.divmod(times - start_ms, step_ms)
    in_range = (remainder == 0) & (window >= 1) & (window <= width)
    if remainder.any() or (len(times) and not in_range.any()):
        raise SourceUnavailable(
            "broken",
            f"{endpoint} answered for other times than requested, in steps of {step_ms / 1000:g} s; does a proxy move"
            " them?",
        )
    out[window[in_range] - 1] = values[in_range]
    return out


def samples(points: bytes, endpoint: str) -> tuple[Times, Values]:
    """Times in ms and values of all points."""
    flat = _numbers(points.translate(None, _PUNCTUATION), endpoint)
    if len(flat) % 2 or not np.isfinite(flat[::2]).all() or (np.abs(flat[::2]) > 1e13).any():
        raise _invalid_answer(endpoint)
    return np.rint(flat[::2] * 1000).astype(np.int64), flat[1::2]


def value_of(points: bytes, endpoint: str) -> float | None:
    """The value of a series of a vector; None if it has none or several."""
    _, _, after_quote = points.partition(b'"')
    text, _, end = after_quote.partition(b'"')
    if end == b"]]":
        try:
            return float(text)
        except ValueError:
            raise _invalid_answer(endpoint) from None
    _, values = samples(points, endpoint)
    return float(values[0]) if len(values) == 1 else None


def _numbers(text: bytes, endpoint: str) -> Values:
    """Numbers between commas. NaN and infinities, which JSON lacks, take a slower way."""
    try:
        return np.frombuffer(array("d", _NUMBERS.decode(b"[" + text + b"]")))
    except msgspec.MsgspecError:
        pass
    try:
        return np.array([float(number) for number in text.split(b",")])
    except ValueError:
        raise _invalid_answer(endpoint) from None


def _first(points: bytes) -> int:
    return _time(points[2 : points.find(b",", 0, 32)])


def _last(points: bytes) -> int:
    begin = points.rfind(b"[", max(0, len(points) - 80)) + 1
    return _time(points[begin : points.find(b",", begin)])


def _time(text: bytes) -> int:
    """Milliseconds; -1 for text that is not a number."""
    try:
        return round(float(text) * 1000)
    except (ValueError, OverflowError):
        return -1


def names_of(data: bytes, endpoint: str) -> list[str]:
    """A list of texts. Raises SourceUnavailable for anything else."""
    return _decode(_NAMES, data, endpoint)


def label_sets_of(data: bytes, endpoint: str) -> list[dict[str, str]]:
    """A list of label sets. Raises SourceUnavailable for anything else."""
    return _decode(_SETS, data, endpoint)


def _decode(decoder: msgspec.json.Decoder[T], data: bytes, endpoint: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _invalid_answer(endpoint) from None


def _invalid_answer(endpoint: str) -> SourceUnavailable:
    return SourceUnavailable(
        "broken", f"{endpoint} sent an answer that is not of Prometheus' API; is it the right URL?"
    )
