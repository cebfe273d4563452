"""A rule of :mod:`trackside.facts.logs.fault_rules`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

FaultClass = Literal["data", "config", "env", "asset", "code"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Matches if every given pattern is found."""

    fault: FaultClass
    id: str
    text: str = ""
    """Pattern for the lines "type: message" of the last and the oldest exception, and the types between."""
    place: str = ""
    """Pattern for the frames "file:line in function", one per line, and the user's source line."""
    unless: str = ""
    """Veto pattern for the same lines as ``text``."""

    def fits(self, text: str, place: str) -> bool:
        """Whether all patterns match and the veto does not."""
        matches = re.search(self.text, text, re.MULTILINE) and re.search(self.place, place, re.MULTILINE)
        return bool(matches) and not (self.unless and re.search(self.unless, text, re.MULTILINE))


data, config, env = partial(Rule, "data"), partial(Rule, "config"), partial(Rule, "env")
asset, code = partial(Rule, "asset"), partial(Rule, "code")
