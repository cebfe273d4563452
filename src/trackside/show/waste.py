"""The GPU-hours that a run was allocated and that its fault wasted, each figure with its formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec

from trackside.evidence import Cite
from trackside.finding import Cost, WastedTime, claim_sentence, clause
from trackside.settings.price import NO_PRICE, Price
from trackside.wording import capitalize, word

MAX_ROUNDING_GPU_HOURS = 0.0005
"""Largest rounding error of a figure: GPU-hours are rounded to three decimals."""
CiteNumberer = Callable[[Iterable[Cite]], list[str]]
"""Returns the ids of citations."""


class LossDoc(msgspec.Struct, frozen=True):
    """One part of the wasted GPU-hours; parts do not overlap."""

    kind: str
    """attempt, startup, work, stopped, paused, slow, spoilt, repeated or all; docs/cost.md describes them."""
    what: str
    """What was lost, as a sentence."""
    gpu_hours: float
    """GPU-hours lost."""
    formula: str
    """How the figure is computed, with its numbers."""
    assumption: str
    """What the figure assumes, as a sentence; empty if nothing."""
    cites: list[str]
    """Keys of the document's ``cites``."""
    cost: float | None = None
    """GPU-hours times the price; null without a price."""
    at_most: bool = False
    """Whether the figure is an upper bound under its ``assumption``."""


class WasteDoc(msgspec.Struct, frozen=True):
    """GPU-hours allocated to the run, and those wasted by its fault. Money is GPU-hours times the given price, or
    null."""

    gpu_hours: float
    """GPU-hours allocated to the run."""
    cost: float | None
    """Allocated GPU-hours times the price; null without a price."""
    currency: str | None
    """Currency of the price, such as EUR; null without a price."""
    formula: str = ""
    """How the allocated GPU-hours are computed."""
    assumption: str = ""
    """What that assumes, as a sentence; empty if nothing."""
    cites: list[str] = []
    """Keys of the document's ``cites``, for the allocated GPU-hours."""
    lost: list[LossDoc] = []
    """The lost GPU-hours in parts that do not overlap."""
    lost_gpu_hours: float | None = None
    """Sum of the parts; null if no part is known. A lower bound if ``unknown`` is not empty."""
    lost_cost: float | None = None
    """Lost GPU-hours times the price; null without a price."""
    price: float | None = None
    """Price of a GPU-hour; null if none was given."""
    cost_formula: str = ""
    """How ``cost`` is computed; empty without a price."""
    lost_formula: str = ""
    """How ``lost_gpu_hours`` is computed; empty if nothing was lost."""
    lost_at_most: bool = False
    """Whether at least one part is an upper bound."""
    unknown: list[str] = []
    """Parts that could not be computed, and why, a sentence each."""
    at_least: bool = False
    """Whether ``gpu_hours`` is a lower bound: the time from the first to the last timestamp in the log."""


def waste(cost: Cost | None, number: CiteNumberer, price: Price = NO_PRICE, zoned: bool = True) -> WasteDoc | None:
    """The published cost of a run; None if not even its allocation is known (see :func:`unknown_costs`). ``zoned``: as
    for :func:`trackside.wording.moment`."""
    if cost is None or cost.allocated_hours is None or not isinstance(cost.allocated_hours.value, (int, float)):
        return None
    allocated, lost = cost.allocated_hours.number, [_loss(part, number, price, zoned) for part in cost.wasted]
    total = round(math.fsum(part.gpu_hours for part in lost), 3)
    if allocated - total <= MAX_ROUNDING_GPU_HOURS * (len(lost) + 1):  # each part is rounded by itself
        total = allocated
    known = bool(lost) or not (cost.unknown or cost.missing)
    priced = bool(price.price_per_gpu_hour)
    return WasteDoc(
        gpu_hours=allocated,
        cost=price.of(allocated),
        currency=price.currency if priced else None,
        formula="" if cost.formula is None else clause(cost.formula, zoned=zoned),
        assumption="" if cost.assumption is None else claim_sentence(cost.assumption),
        cites=number(cost.allocated_hours.cites),
        lost=lost,
        lost_gpu_hours=total if known else None,
        lost_cost=price.of(total) if known else None,
        price=price.price_per_gpu_hour if priced else None,
        cost_formula=price.formula(allocated),
        lost_formula=price.formula(total) if known and lost else "",
        lost_at_most=any(part.at_most for part in lost),
        unknown=unknown_costs(cost),
        at_least=cost.at_least,
    )


def unknown_costs(cost: Cost | None) -> list[str]:
    """The parts of the cost that are not known, and why: a sentence each."""
    if cost is None:
        return []
    unknown = [clause(claim) for claim in cost.unknown]
    return [_unknown_cost_text(text) for text in ([cost.missing, *unknown] if cost.missing else unknown)]


def _unknown_cost_text(text: str) -> str:
    """``the slowdown: the reason`` as ``The slowdown is not known: the reason``."""
    subject, colon, reason = text.partition(": ")
    return capitalize(f"{subject} is not known{colon}{reason}")


def in_brief(doc: WasteDoc | None) -> str:
    """One phrase: ``3.313 GPU-hours allocated, 2.9 lost (7.25 EUR)``; empty if nothing is known."""
    if doc is None:
        return ""
    money = "" if doc.cost is None else f"{doc.cost:,.2f} {doc.currency}"
    allocated = f"{'at least ' if doc.at_least else ''}{word(doc.gpu_hours, 'GPU-hours')} allocated"
    note = "first to last timestamp in the log" if doc.at_least else ""
    details = ", ".join(filter(None, (note, "" if doc.lost_gpu_hours else money)))
    allocated += f" ({details})" if details else ""
    if doc.lost_gpu_hours is None:
        return f"{allocated}; lost: unknown"
    if not doc.lost_gpu_hours:
        return allocated
    qualifier = f"{bound_phrase(doc)} " if bound_phrase(doc) else ""
    lost = word(doc.lost_gpu_hours)
    if doc.lost_gpu_hours >= doc.gpu_hours and not doc.unknown:
        qualifier, lost = ("possibly ", "all") if doc.lost_at_most else ("", "all")
    share = f", {qualifier}{lost} lost"
    return allocated + share + ("" if doc.lost_cost is None else f" ({qualifier}{doc.lost_cost:,.2f} {doc.currency})")


def bound_phrase(doc: WasteDoc) -> str:
    """How to read the lost GPU-hours: ``up to``, ``at least``, or ``about`` if both apply; empty if they are exact."""
    is_lower_bound = bool(doc.unknown) or doc.at_least
    if doc.lost_at_most:
        return "about" if is_lower_bound else "up to"
    return "at least" if is_lower_bound else ""


def in_lines(doc: WasteDoc | None, unknown: Iterable[str] = ()) -> list[str]:
    """The allocated GPU-hours and each lost part, with formula and assumption, then the unknown parts. ``unknown``: the
    lines to use if ``doc`` is None."""
    if doc is None:
        return list(unknown)
    money = "" if doc.cost is None else f", at {doc.price:,.10g} {doc.currency} each: {doc.cost:,.2f} {doc.currency}"
    lines = [
        f"Allocated, at least: {doc.formula}{money}. {doc.assumption}"
        if doc.at_least
        else f"Allocated: {doc.formula}{money}"
    ]
    for part in doc.lost:
        price = "" if part.cost is None else f"; that is {part.cost:,.2f} {doc.currency}"
        label = f"{part.what}, at most" if part.at_most else part.what
        lines.append(f"{label}: {part.formula}{price}. {part.assumption}")
    if doc.lost_formula:
        lines.append(f"Lost{f', {bound_phrase(doc)}' if bound_phrase(doc) else ''}: {doc.lost_formula}")
    return [*lines, *doc.unknown]


def _loss(loss: WastedTime, number: CiteNumberer, price: Price, zoned: bool) -> LossDoc:
    cites = dict.fromkeys((*loss.gpu_hours.cites, *loss.formula.cites, *loss.what.cites, *loss.assumption.cites))
    return LossDoc(
        kind=loss.kind,
        what=claim_sentence(loss.what, zoned=zoned),
        gpu_hours=loss.gpu_hours.number,
        formula=clause(loss.formula, zoned=zoned),
        assumption=claim_sentence(loss.assumption, zoned=zoned),
        cites=number(cites),
        cost=price.of(loss.gpu_hours.number),
        at_most=loss.at_most,
    )
