"""The states of a node in Slurm's words: a base state and flags, as scontrol, sinfo and their JSON write them."""

from __future__ import annotations

from collections.abc import Iterable

_NODE_STATES = {
    "alloc": "allocated",
    "mix": "mixed",
    "comp": "allocated",
    "completing": "allocated",
    "drng": "allocated",
    "draining": "allocated",
    "drain": "idle",
    "drained": "idle",
    "plnd": "idle",
    "planned": "idle",
    "maint": "idle",
    "resv": "idle",
    "reserved": "idle",
    "fail": "idle",
    "failg": "allocated",
    "failing": "allocated",
    "err": "error",
    "futr": "future",
    "unk": "unknown",
    "boot": "down",
    "reboot": "down",
}
"""sinfo's compact words (man sinfo, NODE STATE CODES) -> base state; some name a flag as well."""
_NODE_FLAGS = {
    "drng": "drain",
    "draining": "drain",
    "drain": "drain",
    "drained": "drain",
    "fail": "fail",
    "failg": "fail",
    "failing": "fail",
    "comp": "completing",
    "completing": "completing",
    "maint": "maint",
    "resv": "reserved",
    "reserved": "reserved",
    "plnd": "planned",
    "planned": "planned",
    "boot": "reboot",
    "reboot": "reboot",
}
_NODE_BASES = frozenset({"idle", "allocated", "mixed", "down", "error", "future", "unknown"})
_NODE_SUFFIXES = {
    "*": "not_responding",
    "~": "powered_down",
    "#": "powering_up",
    "!": "power_down",
    "%": "powering_down",
    "$": "maint",
    "@": "reboot_requested",
    "^": "reboot_issued",
    "-": "planned",
}


def node_state_of(text: str | Iterable[str] | None) -> tuple[str | None, tuple[str, ...]]:
    """(base state, flags) of ``DOWN*+DRAIN``, ``mixed-``, ``drng`` or ``["IDLE", "DRAIN"]``."""
    words = text.split("+") if isinstance(text, str) else list(text or ())
    base: str | None = None
    flags: list[str] = []
    for word in words:
        bare = word.strip().lower()
        while bare and bare[-1] in _NODE_SUFFIXES:
            flags.append(_NODE_SUFFIXES[bare[-1]])
            bare = bare[:-1]
        state = _NODE_STATES.get(bare, bare)
        if base is None and state in _NODE_BASES:
            base = state
            bare = _NODE_FLAGS.get(bare, "")
        bare = _NODE_FLAGS.get(bare, bare)
        if bare:
            flags.append(bare)
    return base, tuple(dict.fromkeys(flags))
