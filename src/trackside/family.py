"""The contract of a failure family: each file in ``families/`` defines one, as ``FAMILY``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from trackside.evidence import Evidence, Missing
from trackside.facts.fact import FactParameter, parameters
from trackside.finding import Finding, Role
from trackside.model import Run

HEADINGS = (
    "Meaning",
    "What it looks like",
    "Not this family when",
    "Impact",
    "Do next",
    "What it cannot decide",
    "References",
)
"""The sections of every family's docstring, in order; it is the docs page and ``trackside explain``."""


Judge = Callable[..., Finding | Missing]
CostKind = Literal["work", "stopped", "slow", "paused", "spoilt", "repeated", "all", "unknown", "nothing"]
"""How a fault loses GPU-hours; most are also kinds of :class:`trackside.finding.WastedTime`. work: it ends the run, and
unsaved work is lost. stopped: GPUs stay allocated and idle until the end. slow: the same work takes longer. paused:
training stops for a while, then continues. spoilt: the work after it is useless. repeated: work is done again. all: the
run produced nothing. unknown: no cause was found. nothing: no fault."""


@dataclass(frozen=True)
class Family:
    """One failure family, as data and one pure function.

    The parameters of ``judge`` are the required and optional inputs: the run, facts, and ``limits``
    (:mod:`trackside.facts.fact`). If a required fact is missing, or ``judge`` returns Missing, the engine answers
    UNKNOWN instead, with ``collect``.
    ``explains``: codes of families that this fault causes.
    """

    code: str
    id: str
    title: str
    judge: Judge
    limits: object = None
    explains: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    """What to collect for a decision, as sentences; shown when the answer is UNKNOWN."""
    cost_kind: CostKind = "work"
    role: Role = "fault"
    absence_based: bool = False
    """Whether the evidence is what a log does not contain: an incomplete log cannot show it."""
    often_from_start: bool = False
    """Whether runs may have the fault from their start: then ``since`` is only the start of the period that the
    evidence covers."""
    example: tuple[str, str] | None = None
    """A typical case: (scenario of the simulator, chart that shows it best)."""
    doc: str = field(default="", compare=False)

    @cached_property
    def parameters(self) -> Mapping[str, FactParameter]:
        """The parameters of ``judge``, without ``limits``."""
        return parameters(self.judge)

    @property
    def facts(self) -> tuple[type, ...]:
        """The facts that ``judge`` takes, required or optional."""
        return tuple(parameter.kind for parameter in self.parameters.values() if parameter.kind not in (Evidence, Run))

    def sections(self) -> dict[str, str]:
        """The docstring's sections by heading."""
        sections: dict[str, str] = {}
        heading = ""
        for line in inspect.cleandoc(self.doc).splitlines()[1:]:
            if line.rstrip() in HEADINGS:
                heading = line.rstrip()
                sections[heading] = ""
            elif heading and set(line) != {"-"}:
                sections[heading] += line + "\n"
        return {name: text.strip() for name, text in sections.items()}
