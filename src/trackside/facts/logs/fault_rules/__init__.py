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
DATA_READER = re.compile(r"torch/utils/data/_utils/(?:worker|fetch|collate)|arrow_dataset|webdataset|nvidia/dali")
"""Frames of libraries that call the job's own code to read or to transform data."""


def classify(event: Event) -> FaultClass:
    """The class of an ``exception`` event; ``code`` if no rule matches."""
    text, place = _text(event), _place(event)
    return next((rule.fault for rule in RULES if rule.fits(text, place)), "code")


def _place(event: Event) -> str:
    """The frames from the last one of the job's own code on, those of libraries that read data, and the line of code.

    The frames above say how the program was started (hydra, a script named after a data set), not what failed.
    """
    frames, own = str(event.get("frames") or "").split(";"), event.get("user_frame")
    last_own = len(frames) - 1 - frames[::-1].index(own) if own in frames else 0
    readers = (frame for frame in frames[:last_own] if DATA_READER.search(frame))
    return "\n".join((*readers, *frames[last_own:], str(event.get("user_code") or "")))


def _text(event: Event) -> str:
    """Lines "type: message": last exception, then the oldest, then the types between; module paths of builtins off."""
    lines = [f"{event.get('type') or ''}: {event.get('message') or ''}"]
    if event.get("chain"):
        lines.append(f"{event.get('root_type') or ''}: {event.get('root_message') or ''}")
        lines.append(str(event.get("chain")).replace(";", "\n"))
    return ADVICE.sub("", "\n".join(lines)).removeprefix("builtins.").removeprefix("exceptions.")
