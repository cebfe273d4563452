"""What one source gives in place of others: a GPU's values are sent once, whoever can read them.

A source that takes values over says so after each of its readings; the others leave these out until it stops saying
so. Values are told apart as curves are: by metric and labels, without those that only describe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from functools import lru_cache

from trackside.agent.source import Labels
from trackside.catalog.metrics import DESCRIPTIVE

Curve = tuple[str, Labels]
XID_LINES: Curve = ("xid lines", ())
"""No curve: what the kernel's log says of Xids."""


@lru_cache(maxsize=1 << 14)
def curve(metric: str, labels: Labels) -> Curve:
    """Which curve a sample belongs to."""
    return metric, tuple(pair for pair in labels if pair[0] not in DESCRIPTIVE)


class TakenOver:
    """Curves that a source gives in place of others. Any thread may ask and say."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._curves: dict[str, tuple[frozenset[Curve], float]] = {}

    def give(self, source: str, curves: Iterable[Curve], seconds: float) -> None:
        """``source`` gives these from now on; anew each time. After ``seconds`` without a word they are free again,
        should it hang."""
        with self._lock:
            self._curves = {**self._curves, source: (frozenset(curves), time.monotonic() + seconds)}

    def free(self, source: str) -> None:
        """It gives nothing any more."""
        with self._lock:
            self._curves = {name: held for name, held in self._curves.items() if name != source}

    def curves(self) -> frozenset[Curve]:
        """All that others need not give now."""
        now = time.monotonic()
        held = [curves for curves, until in self._curves.values() if until > now]
        return held[0] if len(held) == 1 else frozenset().union(*held)


TAKEN_OVER = TakenOver()
"""Of this agent, which is one process."""
