"""What a rule of :mod:`trackside.facts.logs.fault_rules` is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trackside.finding import Certainty

Fault = Literal["data", "config", "env", "asset", "code"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Fits where every pattern given is found. ``certainty`` is that of the class, not of the exception."""

    id: str
    fault: Fault
    certainty: Certainty
    text: str = ""
    """In the lines "type: message" of the last and of the oldest exception, and the types between."""
    place: str = ""
    """In the frames "file:line in function", one a line, and the user's source line."""
    unless: str = ""
    """Veto, in the same lines as ``text``."""


SURE, LIKELY, HINT = Certainty.ESTABLISHED, Certainty.SUPPORTED, Certainty.POSSIBLE
