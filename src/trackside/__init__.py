"""Trackside: a cited verdict on why a GPU training run ended as it did.

>>> import trackside
>>> verdict = trackside.diagnose(["run/"])            # doctest: +SKIP
>>> verdict.primary.family, verdict.confidence        # doctest: +SKIP
('B1', 0.97)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trackside.api import diagnose as diagnose
    from trackside.model import Verdict as Verdict

__all__ = ["Verdict", "diagnose"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``trackside --help`` starts fast."""
    if name == "diagnose":
        from trackside.api import diagnose

        return diagnose
    if name == "Verdict":
        from trackside.model import Verdict

        return Verdict
    raise AttributeError(f"module 'trackside' has no attribute {name!r}")
