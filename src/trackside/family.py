"""What a family declares, and its contract. One family = one file in ``families/`` that defines ``FAMILY``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trackside.catalog.job_states import goes_on
from trackside.evidence import Evidence
from trackside.finding import Finding
from trackside.model import Run
from trackside.query import Query

HEADINGS = ("Meaning", "What it looks like", "Not this when", "Impact", "Do next", "What it cannot tell", "References")
"""The sections of every family's docstring, in order; it is the docs page and ``trackside explain``."""


Judge = Callable[[Evidence, Run, Any], Finding]
Loses = Literal["work", "standstill", "pace", "pause", "result", "repeat", "all", "nothing"]
"""What a fault costs. work: it ends the run, and what was not saved is gone. standstill: GPUs are held that do nothing,
until the end. pace: the same work takes longer. pause: a while, and then it goes on. result: what is worked out after
it is of no use. repeat: work is done again. all: the run gave nothing. nothing: no fault."""


@dataclass(frozen=True)
class Family:
    """One failure family, as data and one pure function.

    ``needs`` names asks that must be answered; a tuple among them means any one of these. Where they are
    not, the engine answers UNKNOWN in the author's stead, with ``collect``.
    ``says`` holds the sentence templates (``str.format`` with the names of a claim's values); no digits in
    them: every figure comes from a cited value.
    ``going`` holds those that are said in their place of a run that goes on: it has not ended, nor does it end badly.
    ``explains`` names family codes and event kinds that this fault brings about.
    """

    code: str
    id: str
    title: str
    asks: Mapping[str, Query]
    needs: tuple[str | tuple[str, ...], ...]
    says: Mapping[str, str]
    judge: Judge
    limits: object = None
    explains: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    """What to collect to settle it, as sentences; shown when the answer is UNKNOWN."""
    going: Mapping[str, str] = field(default_factory=dict)
    loses: Loses = "work"
    by_silence: bool = False
    """A log shows it by what it no longer says, or by how little: one that did not wholly come can't."""
    pictured: tuple[str, str] | None = None
    """A typical case: the simulator's scenario, and the chart that shows it best."""
    doc: str = field(default="", compare=False)

    def sentences(self, run: Run) -> Mapping[str, str]:
        """The templates for what is said of this run."""
        return {**self.says, **self.going} if goes_on(run.disposition) else self.says

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
