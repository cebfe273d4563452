"""What a run held and what its fault cost, as a verdict publishes it: each figure with its formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec

from trackside.evidence import Cite
from trackside.finding import Cost, WastedTime
from trackside.settings.price import NO_PRICE, Price
from trackside.show.wording import clause, worded

ROUNDED = 0.0005
"""GPU-hours by which a figure may be off for being told to the thousandth."""
Number = Callable[[Iterable[Cite]], list[str]]
"""Gives citations their ids."""


class LossDoc(msgspec.Struct, frozen=True):
    """One part of what the fault cost; parts do not overlap."""

    kind: str
    """attempt, startup, work, stopped, paused, slow, spoilt, repeated or all"""
    what: str
    gpu_hours: float
    formula: str
    assumption: str
    cites: list[str]
    cost: float | None = None
    at_most: bool = False
    """Whether it can have been less, by what is taken for granted."""


class WasteDoc(msgspec.Struct, frozen=True):
    """What the run held, and what its fault cost of it. Money is GPU-hours times the price that was given, or null."""

    gpu_hours: float
    cost: float | None
    currency: str | None
    formula: str = ""
    assumption: str = ""
    cites: list[str] = []
    lost: list[LossDoc] = []
    lost_gpu_hours: float | None = None
    """Of all parts together; null where none can be told. With ``unknown`` parts it is the least that was lost."""
    lost_cost: float | None = None
    price: float | None = None
    """Of a GPU-hour."""
    cost_formula: str = ""
    lost_formula: str = ""
    lost_at_most: bool = False
    """Whether one of the parts can have been less (see ``at_most``)."""
    unknown: list[str] = []
    """What can't be told, and why."""


def waste(cost: Cost | None, number: Number, price: Price = NO_PRICE) -> WasteDoc | None:
    """None where not even what the run held is known (see :func:`untold`)."""
    if cost is None or cost.held_hours is None or not isinstance(cost.held_hours.value, (int, float)):
        return None
    held, lost = cost.held_hours.number, [_loss(each, number, price) for each in cost.wasted]
    total = round(math.fsum(each.gpu_hours for each in lost), 3)
    if held - total <= ROUNDED * (len(lost) + 1):  # each is rounded by itself
        total = held
    known = bool(lost) or not (cost.unknown or cost.missing)
    priced = bool(price.price_per_gpu_hour)
    return WasteDoc(
        gpu_hours=held,
        cost=price.of(held),
        currency=price.currency if priced else None,
        formula="" if cost.formula is None else clause(cost.formula),
        assumption="" if cost.assumption is None else worded(cost.assumption),
        cites=number(cost.held_hours.cites),
        lost=lost,
        lost_gpu_hours=total if known else None,
        lost_cost=price.of(total) if known else None,
        price=price.price_per_gpu_hour if priced else None,
        cost_formula=price.formula(held),
        lost_formula=price.formula(total) if known and lost else "",
        lost_at_most=any(each.at_most for each in lost),
        unknown=untold(cost),
    )


def untold(cost: Cost | None) -> list[str]:
    """What of the cost can't be told, and why: one sentence each."""
    if cost is None:
        return []
    unknown = [clause(claim) for claim in cost.unknown]
    return [f"unable to tell {what}" for what in ([cost.missing, *unknown] if cost.missing else unknown)]


def in_brief(doc: WasteDoc | None) -> str:
    """In a few words: ``3.313 GPU-hours (8.28 EUR), 2.9 of them lost (7.25 EUR)``; empty where nothing is known."""
    if doc is None:
        return ""
    held = f"{doc.gpu_hours:g} GPU-hours"
    money = "" if doc.cost is None else f" ({doc.cost:,.2f} {doc.currency})"
    if not doc.lost_gpu_hours:
        return held + money
    how = f"{bound(doc)} " if bound(doc) else ""
    share = f", {how}{'all' if doc.lost_gpu_hours >= doc.gpu_hours else f'{doc.lost_gpu_hours:g}'} of them lost"
    return held + share + ("" if doc.lost_cost is None else f" ({how}{doc.lost_cost:,.2f} {doc.currency})")


def bound(doc: WasteDoc) -> str:
    """How what was lost is to be taken: ``up to`` it, ``at least`` it, ``about`` it where both would hold; or empty."""
    if doc.lost_at_most:
        return "about" if doc.unknown else "up to"
    return "at least" if doc.unknown else ""


def in_lines(doc: WasteDoc | None, unknown: Iterable[str] = ()) -> list[str]:
    """The whole and each part, with formula and assumption; then what can't be told: ``unknown`` where nothing can."""
    if doc is None:
        return [text[:1].upper() + text[1:] for text in unknown]
    money = f"; {doc.cost_formula}" if doc.cost_formula else ""
    told = [f"Held: {doc.formula}{money}"]
    for part in doc.lost:
        price = "" if part.cost is None else f"; that is {part.cost:,.2f} {doc.currency}"
        what = f"{part.what}, at most" if part.at_most else part.what
        told.append(f"{what}: {part.formula}{price}. {part.assumption}")
    if doc.lost_formula:
        told.append(f"Lost{f', {bound(doc)}' if bound(doc) else ''}: {doc.lost_formula}")
    return [*told, *(text[:1].upper() + text[1:] for text in doc.unknown)]


def _loss(loss: WastedTime, number: Number, price: Price) -> LossDoc:
    cites = dict.fromkeys((*loss.gpu_hours.cites, *loss.formula.cites, *loss.what.cites, *loss.assumption.cites))
    return LossDoc(
        kind=loss.kind,
        what=worded(loss.what),
        gpu_hours=loss.gpu_hours.number,
        formula=clause(loss.formula),
        assumption=worded(loss.assumption),
        cites=number(cites),
        cost=price.of(loss.gpu_hours.number),
        at_most=loss.at_most,
    )
