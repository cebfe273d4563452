"""``trackside version``: the same as ``trackside --version``."""

from __future__ import annotations

from importlib.metadata import version as installed_version

import click


@click.command()
def version() -> None:
    """Print the version of Trackside."""
    click.echo(f"trackside, version {installed_version('trackside')}")
