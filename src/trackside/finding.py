"""Findings of families and the verdict: sentences filled with cited values."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from string import Formatter
from typing import Literal

from trackside.catalog.job_states import is_active
from trackside.evidence import Cite, Value
from trackside.model import Input, Plane, Position, Run, TimeRange
from trackside.wording import capitalize, fill_template

Culprit = Literal["job", "infrastructure", "scheduler", "none", "unknown"]
Role = Literal["fault", "health", "disposition", "last_resort"]
"""The role of a family. disposition: it only says how the run ended, and is never primary if a cause is found.
last_resort: primary if nothing else is found."""


class Outcome(enum.StrEnum):
    """The possible answers of a family."""

    FOUND = "found"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Certainty(enum.StrEnum):
    """How strong the evidence is. Established: one strong witness, or two planes. Supported: one plane. Possible: a
    hint."""

    ESTABLISHED = "established"
    SUPPORTED = "supported"
    POSSIBLE = "possible"

    @property
    def strength(self) -> int:
        """2 for established, 1 for supported, 0 for possible."""
        return {"established": 2, "supported": 1, "possible": 0}[self.value]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a verdict: a template (:mod:`trackside.wording`) with placeholders for
    cited values, so it contains no digit. A constant next to the code that states it.
    """

    text: str
    running: str = ""
    """The template for a run that has not ended."""

    def __call__(self, **values: Value) -> Claim:
        """The sentence with its values: one for each placeholder, and values that it cites without printing them, such
        as the count of zero behind *no exception in the log*. Raises TypeError if a placeholder has no value."""
        if missing := self.placeholders - values.keys():
            raise TypeError(f"no value for {', '.join(sorted(missing))} of the sentence {self.text!r}")
        return Claim(self, values)

    @property
    def placeholders(self) -> frozenset[str]:
        """The names of the values that the templates contain."""
        return _placeholders(self.text, self.running)

    def template(self, running: bool = False) -> str:
        """The template: of a run that has not ended if ``running``, else of one that has."""
        return self.running or self.text if running else self.text


@cache
def _placeholders(*templates: str) -> frozenset[str]:
    return frozenset(name for text in templates for _, name, _, _ in Formatter().parse(text) if name)


class ShellCommand(Sentence):
    """A shell command of an action. It may contain digits, because it states nothing about the run."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence, and the values that fill it or that it cites without printing them. No decision depends on which
    sentence it is."""

    sentence: Sentence
    values: Mapping[str, Value] = field(default_factory=dict)

    @property
    def cites(self) -> tuple[Cite, ...]:
        """The distinct citations of all values, in order."""
        return tuple(dict.fromkeys(cite for value in self.values.values() for cite in value.cites))

    def __str__(self) -> str:
        """The sentence with its figures, for a run that has ended."""
        return claim_sentence(self)


def clause(claim: Claim, running: bool = False, zoned: bool = True) -> str:
    """The text of a claim as part of a longer sentence. ``running``: use the template for a run that has not ended."""
    return fill_template(claim.sentence.template(running), claim.values, zoned)


def claim_sentence(claim: Claim, running: bool = False, zoned: bool = True) -> str:
    """The text of a claim as a sentence: capitalized, unless it begins with a value. ``running``: use the template for
    a run that has not ended; ``zoned``: whether the time zone of its times is known."""
    template, text = claim.sentence.template(running), clause(claim, running, zoned)
    begins_with_word = not template.startswith("{") or template.startswith("{ranks}")  # a value may be a file name
    return capitalize(text) if begins_with_word else text


@dataclass(frozen=True, slots=True)
class Action:
    """What to do next: a sentence, and shell commands of which the first that can be filled is shown.

    Both are filled by ``values`` and by the names of the run (:class:`trackside.facts.run_names.RunNames`).
    """

    sentence: Sentence
    values: Mapping[str, Value] = field(default_factory=dict)
    commands: tuple[ShellCommand, ...] = ()

    def __str__(self) -> str:
        """The sentence, and below it the command."""
        claims = [Claim(sentence, self.values) for sentence in (self.sentence, *self.commands[:1])]
        return "\n$ ".join([str(claims[0]), *(clause(claim).strip() for claim in claims[1:])])


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one family for one run.

    FOUND has ``shows``; ABSENT has ``because`` (the reasons); UNKNOWN has ``missing`` and ``collect``. The
    engine sets ``family``, ``id`` and ``role``, and ``title`` if the family set none.
    """

    outcome: Outcome
    family: str = ""
    id: str = ""
    title: str = ""
    certainty: Certainty | None = None
    culprit: Culprit = "unknown"
    variant: str | None = None
    fault_class: str | None = None
    since: float | None = None
    until: float | None = None
    at: Position | None = None
    """Position of the first cause, for ordering events that have no time."""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    """As ``node:index`` where metrics name them, else the PCI address of the kernel log."""
    exception: tuple[str, str] | None = None
    """(type, message)"""
    signal: tuple[str, int] | None = None
    """(name, number)"""
    shows: tuple[Claim, ...] = ()
    implies: tuple[Claim, ...] = ()
    cannot_decide: tuple[Claim, ...] = ()
    actions: tuple[Action, ...] = ()
    because: tuple[Claim, ...] = ()
    missing: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    latent: bool = False
    """Whether it is a condition worth flagging that did not end this run: a warning, never the primary."""
    planes: tuple[Plane, ...] = ()
    confidence: float | None = None
    role: Role = "fault"
    headline: Claim | None = None
    """What happened, in one clause: the answer itself, to which its ranks, GPUs, nodes and time are added. None: the
    title is the headline."""
    secondary_headline: Claim | None = None
    """The headline if another finding is primary and this one did not end the run or only shows how it ended. None: the
    same."""

    def answer(self, running: bool = False, zoned: bool = True) -> str:
        """What happened, in one clause: the headline, else the title; what is merely possible says so. ``running``,
        ``zoned``: see :func:`claim_sentence`."""
        if self.headline is None:
            return self.title
        if self.certainty is Certainty.POSSIBLE and self.role == "fault":
            return f"Possibly {clause(self.headline, running, zoned)}"
        return claim_sentence(self.headline, running, zoned)


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run before the last one in the same file: its first and last line, and its primary finding."""

    first: int
    last: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Progress:
    """The training trajectory as read from the log, with all its attempts; ``points`` counts the logged steps."""

    framework: str | None
    points: int
    first: tuple[float | None, float | None]
    last: tuple[float | None, float | None]
    """(step, loss): the first and the last logged step that have a loss, as printed."""
    planned_steps: int | None = None
    last_run: Progress | None = None
    """That of the last run only, if its file holds several; its count is 0 if it logged no step."""


@dataclass(frozen=True, slots=True)
class LastAttempt:
    """How far the last attempt got, from the figures in the evidence."""

    place: Value | None
    """The last step or epoch."""
    points: Value
    """Number of its logged steps or epochs with a loss; if none prints a loss, number of all logged steps or
    epochs."""
    first_loss: float | None
    last_loss: float | None
    is_one_of_several: bool
    """Whether the log has an earlier attempt."""
    medians: tuple[float, float] | None = None
    """Of the first and of the last losses, if the first or the last loss is a spike that hides which way they went."""


@dataclass(frozen=True, slots=True)
class PlottedMetric:
    """One metric over the run, for a plot: evenly spaced ``values`` in ``window`` (POSIX seconds), None where nothing
    was sampled; the median of several series."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    unit: str
    series: int
    window: TimeRange
    values: tuple[float | None, ...]
    query: str


@dataclass(frozen=True, slots=True)
class WastedTime:
    """GPU-hours that a fault cost, as one part of several that do not overlap.

    ``kind``: attempt, startup, work, stopped, paused, slow, spoilt, repeated or all; ``what`` describes it,
    ``formula`` shows how the figure is computed, ``assumption`` what it assumes.
    """

    kind: str
    gpu_hours: Value
    what: Claim
    formula: Claim
    assumption: Claim
    at_most: bool = False
    """Whether it may have been less, depending on the assumption."""


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU-hours allocated to a run, and how many its fault wasted. ``unknown``: costs that cannot be computed, and why;
    ``missing``: why not even the allocated GPU-hours are known."""

    allocated_hours: Value | None = None
    formula: Claim | None = None
    assumption: Claim | None = None
    wasted: tuple[WastedTime, ...] = ()
    unknown: tuple[Claim, ...] = ()
    missing: str = ""
    at_least: bool = False
    """Whether ``allocated_hours`` is a lower bound: the time that the log's timestamps show."""


@dataclass(frozen=True, slots=True)
class PendingEvidence:
    """Why a verdict is not final: more evidence may still come. ``until``: when to diagnose again, POSIX seconds; None:
    after the job's end."""

    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer: one primary finding, what it explains, and the answer of every other family.

    ``headline`` says what happened, ``primary.culprit`` who has to act, ``primary.shows`` the evidence and
    ``primary.actions`` what to do; claims and actions print as sentences. ``preflight``: cautions, what limits the
    verdict. ``consequences``: other faults that the primary one caused; ``warnings``: those that did not end the run.
    ``ruled_out`` and ``unknown``: the other families, with the reasons. ``inputs``: what was read, and the result.
    """

    run: Run
    """The run: job id, nodes, ranks, start, end."""
    primary: Finding
    """The root cause, or that the run is healthy, or that no cause was found."""
    consequences: tuple[Finding, ...] = ()
    """Other faults that the primary one caused."""
    warnings: tuple[Finding, ...] = ()
    """Other faults, which did not end the run."""
    ruled_out: tuple[Finding, ...] = ()
    """The families that are ruled out, with the reasons."""
    unknown: tuple[Finding, ...] = ()
    """The families that are undecided, with what is missing."""
    preflight: tuple[Claim, ...] = ()
    """Cautions: what limits this verdict."""
    progress: Progress | None = None
    """The training progress; None if no logged step was recognized."""
    last_attempt: LastAttempt | None = None
    """How far the last attempt got; None if it logged no step."""
    earlier: tuple[EarlierRun, ...] = ()
    """Earlier runs in the run's log (``run.appended``), in order; of many, the last ones."""
    cost: Cost | None = None
    """The GPU-hours that the run was allocated and lost; None if they were not computed."""
    curves: tuple[PlottedMetric, ...] = ()
    """Plots of the metrics that the primary finding cites."""
    inputs: tuple[Input, ...] = ()
    """Every file, server and command that was read, and the result."""
    version: str = ""
    """The version of Trackside that made it."""
    unsettled: PendingEvidence | None = None
    """Why it is not final; None if it is, as far as known."""
    pattern: tuple[str, ...] = ()
    """The kind of evidence, from coarse to fine: kinds of data, letter of the family, certainty, and so on.
    ``confidence`` is how often verdicts on evidence of the same kind were right. Empty if no cause was found."""
    paths: tuple[str, ...] = ()
    """The inputs as they were given to :func:`trackside.diagnose`; empty if the verdict was made otherwise."""

    @property
    def headline(self) -> str:
        """What happened, in one clause, as the first line of the screen has it before place and time. What is merely
        possible says so: *Possibly stopped by SIGTERM; its sender is unknown*."""
        return self.primary.answer(is_active(self.run.disposition), self.run.has_time_zone)

    @property
    def family(self) -> str:
        """Code of the primary family, such as ``B1``."""
        return self.primary.family

    @property
    def gpu_hours(self) -> Value | None:
        """The GPU-hours allocated to the run; None if the allocation is not known."""
        return None if self.cost is None else self.cost.allocated_hours

    @property
    def confidence(self) -> float | None:
        """How often verdicts with similar evidence were right on runs that were unseen when judged, 0 to 1; None if no
        cause was found."""
        return self.primary.confidence


# -- what a family's judge() returns


def present(
    certainty: Certainty,
    culprit: Culprit,
    shows: Iterable[Claim],
    *,
    headline: Claim | None = None,
    secondary_headline: Claim | None = None,
    implies: Iterable[Claim] = (),
    cannot_decide: Iterable[Claim] = (),
    actions: Iterable[Action] = (),
    since: float | None = None,
    until: float | None = None,
    at: Position | None = None,
    variant: str | None = None,
    fault_class: str | None = None,
    ranks: tuple[int, ...] = (),
    nodes: tuple[str, ...] = (),
    gpus: tuple[str, ...] = (),
    exception: tuple[str, str] | None = None,
    signal: tuple[str, int] | None = None,
    latent: bool = False,
    title: str = "",
) -> Finding:
    """The fault is there. At least one claim of ``shows`` must cite; its citations give the planes."""
    shows = tuple(shows)
    if not any(claim.cites for claim in shows):
        raise ValueError("a finding needs at least one cited claim")
    planes: tuple[Plane, ...] = tuple(dict.fromkeys(cite.plane for claim in shows for cite in claim.cites))
    return Finding(
        Outcome.FOUND,
        certainty=certainty,
        culprit=culprit,
        headline=headline,
        secondary_headline=secondary_headline,
        shows=shows,
        implies=tuple(implies),
        cannot_decide=tuple(cannot_decide),
        actions=tuple(actions),
        since=since,
        until=until,
        at=at,
        variant=variant,
        fault_class=fault_class,
        ranks=ranks,
        nodes=nodes,
        gpus=gpus,
        exception=exception,
        signal=signal,
        latent=latent,
        title=title,
        planes=planes,
    )


def absent(*because: Claim) -> Finding:
    """The fault is ruled out, for these cited reasons."""
    if not any(claim.cites for claim in because):
        raise ValueError("ruling out needs a cited reason")
    return Finding(Outcome.ABSENT, because=because)


def unknown(missing: Iterable[str], collect: Iterable[str] = ()) -> Finding:
    """Undecided: what is missing, and what to collect."""
    return Finding(Outcome.UNKNOWN, missing=tuple(missing), collect=tuple(collect))


def action(sentence: Sentence, *commands: ShellCommand, **values: Value) -> Action:
    """A next step: its sentence and, optionally, shell commands, the best first."""
    return Action(sentence, values, commands)
