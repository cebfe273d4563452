"""Checks of numbers in options; an error names the key and its value."""

from __future__ import annotations


def check_at_least(minimum: float, options: object, *keys: str) -> None:
    """Raise ValueError if an option is less than ``minimum``."""
    for key in keys:
        if (value := getattr(options, key)) < minimum:
            raise ValueError(f"{key} = {value:g} is too small: it must be at least {minimum:g}")


def check_positive(options: object, *keys: str) -> None:
    """Raise ValueError if an option is 0 or less."""
    for key in keys:
        if (value := getattr(options, key)) <= 0:
            raise ValueError(f"{key} = {value:g} is too small: it must be more than 0")
