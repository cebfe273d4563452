"""What a Slurm command says of one thing: a row of a table, or a block of ``Key=Value``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trackside.model import Position


@dataclass(frozen=True, slots=True)
class Row:
    """Where it starts, its text (a block's first line), and its values by column in lower case, or by key."""

    line: int
    offset: int
    text: str
    values: Mapping[str, str]

    @property
    def length(self) -> int:
        """Bytes of the text."""
        return len(self.text.encode())

    def at(self, path: str) -> Position:
        """Its place in the input of this path."""
        return Position(path, self.line, self.offset, self.length)

    def get(self, *names: str) -> str | None:
        """The first of these values that is there and isn't empty."""
        return next((value for name in names if (value := self.values.get(name))), None)
