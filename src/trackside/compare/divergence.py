"""From where on do two series differ by more than their own noise? Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trackside.facts import maths

LEAST = 5
"""Points of both, below which nothing is said."""
HISTORY = 32
"""Earlier points that tell a series' noise."""
WIDTHS = 4.0
"""Standard deviations of the noise of both."""
LASTING = 3
"""Points in a row; one is a spike."""
FAR = 0.5
"""Of their level: at the end of what both tell, fewer points will do that are so far apart."""


def rule(share: float, what: str = "points") -> str:
    """The rule in words."""
    return (
        f"they part where {LASTING} {what} in a row are further apart than {WIDTHS:g} times the noise of both runs' "
        f"own {HISTORY} {what} before, and {share:.0%} of their level; at the end of both, {FAR:.0%} and fewer will do"
    )


def parting(a: Sequence[float], b: Sequence[float], share: float) -> int | None:
    """The first place from which two series of equal length stay apart, or None; what is no number is apart from what
    is one, at once."""
    run = 0
    for place in range(len(a)):
        if math.isfinite(a[place]) != math.isfinite(b[place]):
            return place - run
        run = run + 1 if _apart(a, b, place - run, place, share) else 0
        if run == LASTING:
            return place - run + 1
    begun = len(a) - run
    far = all(abs(x - y) > FAR * max(abs(x), abs(y)) for x, y in zip(a[begun:], b[begun:], strict=True))
    return begun if run and (far or not begun) else None


def _apart(a: Sequence[float], b: Sequence[float], begun: int, place: int, share: float) -> bool:
    """Whether two places are, by the noise before they began to be."""
    one, other = a[place], b[place]
    if not math.isfinite(one):
        return False
    start = max(0, begun - HISTORY)
    before = slice(start, max(begun, min(place, LEAST)))
    wide = math.hypot(maths.roughness(a[before]), maths.roughness(b[before]))
    return abs(one - other) > max(WIDTHS * wide, share * max(abs(one), abs(other)))
