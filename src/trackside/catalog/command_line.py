"""Errors, without a traceback, with which a program rejects its command line."""

from __future__ import annotations

COMMAND_LINE_ERRORS = ("argparse.ArgumentError", "click.UsageError", "absl.flags.Error")
"""Types of the errors of argparse, click and absl; the program exits at once."""
