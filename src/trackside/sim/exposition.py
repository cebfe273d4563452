"""Prometheus text, written one series at a time and fast: labels once, numbers in bulk."""

from __future__ import annotations

from collections.abc import Mapping
from operator import add
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Style = Literal["whole", "ratio", "decimal", "short"]
"""whole: integers. ratio: 0..1 with six decimals. decimal: thousandths, written with six decimals. short: the fewest
digits."""


class MetricSink(Protocol):
    """Where series are written: text or columns."""

    def begin_metric(self, name: str, kind: str, help_text: str) -> None:
        """Start a new metric."""

    def series(self, labels: Mapping[str, str], times_ms: NDArray[np.int64], values: Array, style: Style) -> None:
        """Write one series of the metric."""


class Exposition:
    """A file of Prometheus text with timestamps. Use as a context manager."""

    def __init__(self, path: Path, lower_case: bool = False) -> None:
        self._file = path.open("wb")
        self._lower_case = lower_case
        self._name = ""
        self._stamps: tuple[int, list[str]] = (0, [])
        self.samples = 0

    def __enter__(self) -> Exposition:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def begin_metric(self, name: str, kind: str, help_text: str) -> None:
        """Write HELP and TYPE."""
        self._name = name.lower() if self._lower_case else name
        self._file.write(f"# HELP {self._name} {help_text}\n# TYPE {self._name} {kind}\n".encode())

    def series(self, labels: Mapping[str, str], times_ms: NDArray[np.int64], values: Array, style: Style) -> None:
        """Write the samples of one series, in order of time."""
        if not len(values):
            return
        head = f"{self._name}{labels_text(labels)} "
        lines = head.join(map(add, numbers(values, style), self._timestamps(times_ms)))
        self._file.write((head + lines).encode())
        self.samples += len(values)

    def _timestamps(self, times_ms: NDArray[np.int64]) -> list[str]:
        """The end of each line: timestamp and newline; cached, because all series of a node share them."""
        key = hash(times_ms.tobytes())
        if self._stamps[0] != key or len(self._stamps[1]) != len(times_ms):
            self._stamps = key, [f" {stamp}\n" for stamp in times_ms.tolist()]
        return self._stamps[1]


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels in braces; empty if there are none."""
    pairs = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def escape(text: str) -> str:
    """A label's value, escaped as the format requires."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") if not text.isalnum() else text


def numbers(values: Array, style: Style) -> list[str]:
    """The values as text."""
    if len(values) > 1 and values[0] == values[-1] and bool((values == values[0]).all()):
        return numbers(values[:1], style) * len(values)
    if style == "whole":
        return list(map(str, np.rint(values).astype(np.int64).tolist()))
    if style == "ratio":
        return _digits(np.clip(np.rint(values * 1e6).astype(np.int64), 0, 9_999_999))
    if style == "decimal":
        return [f"{value:.3f}000" for value in np.round(values, 3).tolist()]
    return list(map(repr, values.tolist()))


def _digits(millionths: NDArray[np.int64]) -> list[str]:
    """0.123456 from 123456, eight characters each, all at once."""
    text = np.empty((len(millionths), 8), dtype=np.uint32)
    remaining = millionths
    for column in (7, 6, 5, 4, 3, 2, 0):
        remaining, digit = np.divmod(remaining, 10)
        text[:, column] = digit
    text += ord("0")
    text[:, 1] = ord(".")
    texts: list[str] = text.view("<U8").ravel().tolist()
    return texts
