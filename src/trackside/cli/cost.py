"""The price of a GPU-hour: from the command line, otherwise from the site's settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import click

from trackside.cli.exit_codes import fail
from trackside.settings import ConfigError
from trackside.settings.price import Price
from trackside.show.sanitize import replace_unsafe
from trackside.site.file import find

PRICE = click.option(
    "--price",
    metavar="AMOUNT",
    help="Price of a GPU-hour, to show costs in money: 2.50, '2.50 EUR' or €2.50 (default currency USD).",
)
_NAME = r"[^\W\d_]{2,12}|[$€£¥₹]"
_PRICE = re.compile(rf"(?P<before>{_NAME})?\s*(?P<amount>\d{{1,9}}(?:\.\d{{1,6}})?)\s*(?P<after>{_NAME})?")
_NAMES = {"$": "USD", "€": "EUR", "£": "GBP", "₹": "INR"}
"""Currency sign -> ISO code; other names are kept as given."""
_SECTION = "TRACKSIDE_COST_"


def price_flags(text: str | None) -> dict[str, object]:
    """The settings that ``--price`` sets, by dotted name. Exits if the text is not a price."""
    if text is None:
        return {}
    match = _PRICE.fullmatch(text.strip())
    names = {_NAMES.get(name, name) for name in match.group("before", "after") if name} if match is not None else set()
    if match is None or len(names) > 1:
        fail(f"--price {text!r} is not a price of a GPU-hour; write 2.50, '2.50 EUR' or '$2.50'")
    currency = {"cost.currency": names.pop()} if names else {}
    return {"cost.price_per_gpu_hour": float(match["amount"]), **currency}


def price_of(flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Price:
    """The price for a command that asks no site. The site's settings are read only for the price, if they exist.

    ``flags``: the result of :func:`price_flags`.
    """
    if find(None, environ, []) is not None or any(name.startswith(_SECTION) for name in environ):
        from trackside.site.config import load  # imports the HTTP client

        try:
            return load(None, flags, environ).price
        except ConfigError as error:
            click.echo(replace_unsafe(f"trackside: the settings and their price are ignored: {error}"), err=True)
    fields: dict[str, Any] = {name.removeprefix("cost."): value for name, value in flags.items()}
    return Price(**fields)
