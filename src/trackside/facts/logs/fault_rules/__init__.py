"""Which class of fault an exception of the job's own is: data, config, env, asset or code.

The rules look at the exception's type and message, those of the oldest one in its chain, the types between, and at the
places it passed through: which sentences, types and places speak of which class. Order counts: the first rule that fits
wins. Rules that know a sentence come before those that know only a type, and those before the ones that know only where
the exception was raised. One row a cause.
"""

from __future__ import annotations

import re

from trackside.facts.logs.fault_rules import assets, code, config, data, environment
from trackside.facts.logs.fault_rules.rule import Fault
from trackside.model import Event

RULES = (*environment.RULES, *assets.RULES, *data.RULES, *config.RULES, *code.RULES)
ADVICE = re.compile(
    r"(?:CUDA|HIP) kernel errors might be asynchronously reported.*|For debugging consider passing \w+=\d.*"
    r"|(?:Compile|Device-side assertion tracking was not enabled).{0,60}`?TORCH_USE_\w+_DSA`?.*"
)
"""What PyTorch adds to every error of a device: its words (device-side assertions) are no part of the error."""


def classify(event: Event) -> Fault:
    """The class of an ``exception`` event; ``code`` where no rule knows it."""
    text = _text(event)
    place = f"{event.get('frames') or ''}\n{event.get('user_code') or ''}".replace(";", "\n")
    return next((rule.fault for rule in RULES if rule.fits(text, place)), "code")


def _text(event: Event) -> str:
    """Lines "type: message": last exception, then the oldest, then the types between; module paths of builtins off."""
    lines = [f"{event.get('type') or ''}: {event.get('message') or ''}"]
    if event.get("chain"):
        lines.append(f"{event.get('root_type') or ''}: {event.get('root_message') or ''}")
        lines.append(str(event.get("chain")).replace(";", "\n"))
    return ADVICE.sub("", "\n".join(lines)).removeprefix("builtins.").removeprefix("exceptions.")
