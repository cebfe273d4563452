"""Holds the samples that exceed memory in a temporary store, which is removed with the process."""

from __future__ import annotations

import weakref

from trackside.model import Input, Samples
from trackside.stores.embedded.duck import DuckBackend
from trackside.stores.embedded.rows import StoredInput
from trackside.stores.embedded.writer import Writer
from trackside.stores.memory_backend import MemoryBackend


class Spill:
    """Takes over from a backend in memory that has become too large."""

    def __init__(self, memory: MemoryBackend) -> None:
        self._writer = Writer.temporary()
        self._end = weakref.finalize(self, _remove, self._writer)
        self._input = self._writer.begin()
        for block in memory.drain():
            self.add(block)

    def add(self, samples: Samples) -> None:
        self._writer.samples(self._input, samples)

    def backend(self) -> DuckBackend:
        """A backend over all samples; the store is removed when nothing refers to it any more."""
        self._writer.end(StoredInput(self._input, Input("", None, "read")))
        self._writer.commit()
        return DuckBackend(self._writer.snapshot(), owner=self)


def _remove(writer: Writer) -> None:
    writer.close()
    writer.remove()
