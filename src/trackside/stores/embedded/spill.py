"""Samples beyond what memory should hold, in a store that goes with the process."""

from __future__ import annotations

import weakref

from trackside.model import Input, Samples
from trackside.stores.embedded.duck import DuckCurves
from trackside.stores.embedded.rows import Kept
from trackside.stores.embedded.writer import Writer
from trackside.stores.memory_curves import MemoryCurves


class Spill:
    """Takes over from curves in memory that have become too large."""

    def __init__(self, memory: MemoryCurves) -> None:
        self._writer = Writer.temporary()
        self._end = weakref.finalize(self, _remove, self._writer)
        self._input = self._writer.begin()
        for block in memory.drained():
            self.add(block)

    def add(self, samples: Samples) -> None:
        self._writer.samples(self._input, samples)

    def curves(self) -> DuckCurves:
        """All that was kept; when nobody can ask it any more, the store is removed."""
        self._writer.end(Kept(self._input, Input("", None, "read")))
        self._writer.commit()
        return DuckCurves(self._writer.snapshot(), owner=self)


def _remove(writer: Writer) -> None:
    writer.close()
    writer.remove()
