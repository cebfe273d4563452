"""The price of a GPU-hour: of the command line, else of the site's settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import click

from trackside.cli.exits import fail
from trackside.settings import ConfigError
from trackside.settings.price import Price
from trackside.show.inert import shown
from trackside.site.file import find

PRICE = click.option(
    "--price",
    metavar="AMOUNT",
    help="Of a GPU-hour, to say what the run cost: 2.50, '2.50 EUR' or €2.50 (USD unless named).",
)
_NAME = r"[^\W\d_]{1,12}|[$€£¥₹]"
_PRICE = re.compile(rf"(?P<before>{_NAME})?\s*(?P<amount>\d{{1,9}}(?:\.\d{{1,6}})?)\s*(?P<after>{_NAME})?")
_NAMES = {"$": "USD", "€": "EUR", "£": "GBP", "₹": "INR"}
"""Sign -> currency; others stand as they are."""
_SECTION = "TRACKSIDE_COST_"


def price_flags(text: str | None) -> dict[str, object]:
    """The settings that ``--price`` stands for. Ends the command where it can't be meant."""
    if text is None:
        return {}
    told = _PRICE.fullmatch(text.strip())
    names = {_NAMES.get(name, name) for name in told.group("before", "after") if name} if told is not None else set()
    if told is None or len(names) > 1:
        fail(f"--price {text!r}: write an amount of money for a GPU-hour, 2.50, '2.50 EUR' or '$2.50'")
    currency = {"cost.currency": names.pop()} if names else {}
    return {"cost.price_per_gpu_hour": float(told["amount"]), **currency}


def price_of(flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Price:
    """The price where no site is asked: its settings are read for this alone, and only where there are some.

    ``flags``: what :func:`price_flags` gave.
    """
    if find(None, environ, []) is not None or any(name.startswith(_SECTION) for name in environ):
        from trackside.site.config import load  # the HTTP client comes with it

        try:
            return load(None, flags, environ).price
        except ConfigError as error:
            click.echo(shown(f"trackside: the settings are left out, and with them the price: {error}"), err=True)
    given: dict[str, Any] = {name.removeprefix("cost."): value for name, value in flags.items()}
    return Price(**given)
