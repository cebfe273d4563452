"""Trackside: a cited verdict on why a GPU training run ended as it did.

>>> import trackside
>>> verdict = trackside.diagnose(["run/"])            # doctest: +SKIP
>>> verdict.primary.family, verdict.confidence        # doctest: +SKIP
('B1', 0.97)
"""

# Imported at once, and before anything of the room of that name can be: a sub-package binds its name here when it is
# first loaded, and `trackside.diagnose` is the function.
from trackside.api import diagnose
from trackside.model import Verdict

__all__ = ["Verdict", "diagnose"]
