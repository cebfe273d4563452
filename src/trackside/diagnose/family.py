"""What a family declares, and its contract. One family = one file in ``families/`` that defines ``FAMILY``."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from trackside.catalog.job_states import goes_on
from trackside.model import (
    Action,
    Certainty,
    Claim,
    Culprit,
    Finding,
    Outcome,
    Plane,
    Position,
    Run,
    Value,
)
from trackside.query import Frame, Grid, Missing, Query

HEADINGS = ("Meaning", "What it looks like", "Not this when", "Impact", "Do next", "What it cannot tell", "References")
"""The sections of every family's docstring, in order; it is the docs page and ``trackside explain``."""


@dataclass(frozen=True)
class Evidence:
    """The answers to one family's asks. Asking for a name that wasn't declared is a programming error."""

    answers: Mapping[str, Frame | Grid | Missing]

    def __getitem__(self, name: str) -> Frame:
        """The rows of an ask; an empty frame where it is Missing (see :meth:`missing` before concluding)."""
        answer = self.answers[name]
        return answer if isinstance(answer, Frame) else Frame(answer.query, "none")

    def grid(self, name: str) -> Grid | None:
        """The curves of a metric ask; None where it is Missing. A grid that is given holds at least one series."""
        answer = self.answers[name]
        return answer if isinstance(answer, Grid) else None

    def missing(self, name: str) -> Missing | None:
        """Why an ask has no answer, or None if it has one."""
        answer = self.answers[name]
        return answer if isinstance(answer, Missing) else None

    def has(self, name: str) -> bool:
        """Whether the ask was answered, be it with no rows."""
        return self.missing(name) is None


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


@cache
def families() -> tuple[Family, ...]:
    """All families, by code."""
    room = importlib.import_module("trackside.diagnose.families")  # trackside.diagnose itself is the function
    found = []
    for module in pkgutil.iter_modules(room.__path__):
        content = importlib.import_module(f"{room.__name__}.{module.name}")
        family: Family = content.FAMILY
        found.append(replace(family, doc=content.__doc__ or ""))
    return tuple(sorted(found, key=lambda family: family.code))


def find_family(name: str) -> Family | None:
    """A family by code or id, in any case."""
    wanted = name.lower().replace("_", "-")
    return next((f for f in families() if wanted in (f.code.lower(), f.id)), None)


# -- what judge() returns


def found(
    certainty: Certainty,
    culprit: Culprit,
    shows: Iterable[Claim],
    *,
    implies: Iterable[Claim] = (),
    cannot_decide: Iterable[Claim] = (),
    actions: Iterable[Action] = (),
    since: float | None = None,
    at: Position | None = None,
    **more: Any,
) -> Finding:
    """The fault is there. ``shows`` must cite; the planes that agree are read off its citations."""
    shows = tuple(shows)
    if not any(claim.cites for claim in shows):
        raise ValueError("a finding needs at least one cited claim")
    planes: tuple[Plane, ...] = tuple(dict.fromkeys(cite.plane for claim in shows for cite in claim.cites))
    return Finding(
        Outcome.FOUND,
        certainty=certainty,
        culprit=culprit,
        shows=shows,
        implies=tuple(implies),
        cannot_decide=tuple(cannot_decide),
        actions=tuple(actions),
        since=since,
        at=at,
        planes=planes,
        **more,
    )


def absent(*because: Claim) -> Finding:
    """The fault is not there, for these cited reasons (the counterfactual)."""
    if not any(claim.cites for claim in because):
        raise ValueError("ruling out needs a cited reason")
    return Finding(Outcome.ABSENT, because=because)


def unknown(missing: Iterable[str], collect: Iterable[str] = ()) -> Finding:
    """Can't be told: what is missing, and what to collect."""
    return Finding(Outcome.UNKNOWN, missing=tuple(missing), collect=tuple(collect))


def claim(key: str, **values: Value) -> Claim:
    """A sentence: the key of a template in ``says``, and its values."""
    return Claim(key, values)


def action(key: str, command: str | None = None, **values: Value) -> Action:
    """A next step: template keys of its sentence and, optionally, of a shell command."""
    return Action(key, values, command)
