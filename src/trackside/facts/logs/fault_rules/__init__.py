"""Which class of fault one of the job's own exceptions is: data, config, env, asset or code.

The rules match the type and message of the exception and of the oldest one in its chain, the types between, and the
source locations in the traceback. The first matching rule wins: rules for a message come before rules for a type only,
and those before rules for a location only. One row per cause.
"""

from __future__ import annotations

import re

from trackside.facts.logs.fault_rules import assets, code, config, data, environment
from trackside.facts.logs.fault_rules.rule import FaultClass
from trackside.model import Event

RULES = (*environment.RULES, *assets.RULES, *data.RULES, *config.RULES, *code.RULES)
ADVICE = re.compile(
    r"(?:CUDA|HIP) kernel errors might be asynchronously reported.*|For debugging consider passing \w+=\d.*"
    r"|(?:Compile|Device-side assertion tracking was not enabled).{0,60}`?TORCH_USE_\w+_DSA`?.*"
)
"""Text that PyTorch adds to every device error; its words (device-side assertions) are not part of the error."""


def classify(event: Event) -> FaultClass:
    """The class of an ``exception`` event; ``code`` if no rule matches."""
    text = _text(event)
    location = f"{event.get('frames') or ''}\n{event.get('user_code') or ''}".replace(";", "\n")
    return next((rule.fault for rule in RULES if rule.fits(text, location)), "code")


def _text(event: Event) -> str:
    """Lines "type: message": last exception, then the oldest, then the types between; module paths of builtins off."""
    lines = [f"{event.get('type') or ''}: {event.get('message') or ''}"]
    if event.get("chain"):
        lines.append(f"{event.get('root_type') or ''}: {event.get('root_message') or ''}")
        lines.append(str(event.get("chain")).replace(";", "\n"))
    return ADVICE.sub("", "\n".join(lines)).removeprefix("builtins.").removeprefix("exceptions.")
