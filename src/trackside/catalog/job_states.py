"""The states of a job in Slurm's words, and what each group of them means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Stage = Literal["unknown", "going", "ended", "settled"]
"""How far a job has come. ``ended``: over, and accounting has yet to say so, as it does some seconds later;
``settled``: accounting has the end, or cannot have it."""
STATES: Mapping[str, str] = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "OO": "OUT_OF_MEMORY",  # as the default columns cut it
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "S": "SUSPENDED",
    "SE": "SPECIAL_EXIT",
    "SI": "SIGNALING",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
    "TO": "TIMEOUT",
    "LF": "LAUNCH_FAILED",
    "EX": "EXPEDITING",
}
"""squeue's short codes -> states (man squeue, JOB STATE CODES)"""
ALL_STATES = frozenset(STATES.values())
WAITING = frozenset({"PENDING", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""Not on its nodes: its start and end are forecasts."""
ALIVE = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "RESIZING", "SIGNALING", "STOPPED"})
"""On its nodes: its end is a forecast."""
CLEARING = frozenset({"STAGE_OUT", "COMPLETING"})
"""Over, with its nodes not yet free: its end is known, its last state is not."""


def goes_on(state: str | None) -> bool:
    """Whether a job of this state is on its nodes: what is called its end is then the present, and none of its own."""
    return state in ALIVE


def is_over(state: str) -> bool:
    """Whether a job of this state has ended for good, or this attempt of it."""
    return state not in WAITING | ALIVE | CLEARING


def in_words(state: str) -> str:
    """A state as it is said of a job: whether it has begun, goes on or is over, and Slurm's word."""
    if state in WAITING:
        return f"not begun ({state})"
    if state in ALIVE:
        return f"still running ({state})" if state == "RUNNING" else f"not over ({state})"
    return f"ending ({state})" if state in CLEARING else state
