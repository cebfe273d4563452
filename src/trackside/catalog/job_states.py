"""Slurm's job states, and groups of states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Stage = Literal["unknown", "going", "ended", "settled"]
"""Stage of a job. ``ended``: over, but accounting does not show it yet, which takes some seconds; ``settled``:
accounting has the end, or will never have it."""
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
    "OO": "OUT_OF_MEMORY",  # truncated in the default columns
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
WAITING_STATES = frozenset({"PENDING", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""Not on its nodes yet: start and end are forecasts."""
ACTIVE_STATES = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "RESIZING", "SIGNALING", "STOPPED"})
"""On its nodes: the end is a forecast."""
ENDING_STATES = frozenset({"STAGE_OUT", "COMPLETING"})
"""Over, but its nodes are not free yet: the end is known, the final state is not."""


def is_active(state: str | None) -> bool:
    """Whether a job in this state is on its nodes, so that its recorded end is the present rather than a real end."""
    return state in ACTIVE_STATES


def is_over(state: str) -> bool:
    """Whether a job in this state, or this attempt of it, has ended for good."""
    return state not in WAITING_STATES | ACTIVE_STATES | ENDING_STATES


def state_in_words(state: str) -> str:
    """A state in plain words: whether the job has started, is running or is over, and Slurm's state."""
    if state in WAITING_STATES:
        return f"not started ({state})"
    if state in ACTIVE_STATES:
        return f"still running ({state})" if state == "RUNNING" else f"not over ({state})"
    return f"ending ({state})" if state in ENDING_STATES else state
