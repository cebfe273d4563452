"""What a family declares, and its contract. One family = one file in ``families/`` that defines ``FAMILY``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from trackside.evidence import Evidence, Missing
from trackside.facts.fact import Parameter, parameters
from trackside.finding import Finding, Role
from trackside.model import Run

HEADINGS = ("Meaning", "What it looks like", "Not this when", "Impact", "Do next", "What it cannot tell", "References")
"""The sections of every family's docstring, in order; it is the docs page and ``trackside explain``."""


Judge = Callable[..., Finding | Missing]
CostKind = Literal["work", "standstill", "pace", "pause", "result", "repeat", "all", "nothing"]
"""What a fault costs. work: it ends the run, and what was not saved is gone. standstill: GPUs are held that do nothing,
until the end. pace: the same work takes longer. pause: a while, and then it goes on. result: what is worked out after
it is of no use. repeat: work is done again. all: the run gave nothing. nothing: no fault."""


@dataclass(frozen=True)
class Family:
    """One failure family, as data and one pure function.

    The parameters of ``judge`` are what the family needs and wants: the run, facts, and ``limits``
    (:mod:`trackside.facts.fact`). If a fact that it needs is missing, or it returns Missing, the engine answers UNKNOWN
    in the author's stead, with ``collect``.
    ``explains`` names family codes that this fault brings about.
    """

    code: str
    id: str
    title: str
    judge: Judge
    limits: object = None
    explains: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    """What to collect to settle it, as sentences; shown when the answer is UNKNOWN."""
    cost_kind: CostKind = "work"
    role: Role = "fault"
    absence_based: bool = False
    """A log shows it by what it no longer says, or by how little: one that did not wholly come can't."""
    often_from_start: bool = False
    """Runs may have it from their start on: then ``since`` is only where the judged stretch begins."""
    example: tuple[str, str] | None = None
    """A typical case: the simulator's scenario, and the chart that shows it best."""
    doc: str = field(default="", compare=False)

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """What ``judge`` takes, ``limits`` left out."""
        return parameters(self.judge)

    @property
    def facts(self) -> tuple[type, ...]:
        """The facts that it needs or wants."""
        return tuple(one.kind for one in self.parameters.values() if one.kind not in (Evidence, Run))

    def sections(self) -> dict[str, str]:
        """The docstring's sections by heading."""
        found: dict[str, str] = {}
        heading = ""
        for line in inspect.cleandoc(self.doc).splitlines()[1:]:
            if line.rstrip() in HEADINGS:
                heading = line.rstrip()
                found[heading] = ""
            elif heading and set(line) != {"-"}:
                found[heading] += line + "\n"
        return {name: text.strip() for name, text in found.items()}
