"""All cases of the lab, in the order in which they run."""

from __future__ import annotations

from lab.case import LabCase
from lab.cases import custom_startup, endings, hangs, healthy, rendezvous, scheduled, signals, startup, training

CASES: tuple[LabCase, ...] = (
    *custom_startup.CASES,
    *startup.CASES,
    *signals.CASES,
    *rendezvous.CASES,
    *hangs.CASES,
    *training.CASES,
    *endings.CASES,
    *healthy.CASES,
    *scheduled.CASES,
)
