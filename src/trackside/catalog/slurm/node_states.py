"""The states of a node in Slurm's words: a base state and flags, as scontrol, sinfo and their JSON write them."""

from __future__ import annotations

from collections.abc import Iterable

_WORDS = {
    word: (base, flag)
    for base, flag, words in (
        ("allocated", "", "alloc"),
        ("allocated", "completing", "comp completing"),
        ("allocated", "drain", "drng draining"),
        ("allocated", "fail", "failg failing"),
        ("mixed", "", "mix"),
        ("idle", "drain", "drain drained"),
        ("idle", "planned", "plnd planned"),
        ("idle", "maint", "maint"),
        ("idle", "reserved", "resv reserved"),
        ("idle", "fail", "fail"),
        ("down", "reboot", "boot reboot"),
        ("error", "", "err"),
        ("future", "", "futr"),
        ("unknown", "", "unk"),
    )
    for word in words.split()
}
"""sinfo's compact words (man sinfo, NODE STATE CODES) -> base state and flag"""
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
        state, flag = _WORDS.get(bare, (bare, bare))
        if base is None and state in _NODE_BASES:
            base, bare = state, "" if state == bare else flag
        else:
            bare = flag or bare
        if bare:
            flags.append(bare)
    return base, tuple(dict.fromkeys(flags))
