"""The command ``check``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from trackside.cli.terminal import STORE, bar_of
from trackside.show.sanitize import replace_unsafe
from trackside.stores.embedded.damage import DamagedSegment, find_damage, rebuild
from trackside.stores.embedded.layout import Directory, TableSegment
from trackside.stores.embedded.rows import SERIES_PATH
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.writer import Writer

MAX_PATHS = 20
"""Inputs listed for one damaged file."""


@click.command()
@STORE
@click.option(
    "--repair", is_flag=True, help="Rebuild the store from what is intact, and list the inputs to ingest again."
)
def check(store: str, repair: bool) -> None:
    """Check that a store's files are as they were written, and rebuild it if one is damaged.

    Reads every file and compares it with its checksums. Exits with 1 if a file is damaged and --repair is not given.
    Readers are not blocked; --repair needs a store that nobody writes to.
    """
    if repair:
        Directory(store).read_newest()  # raises if the store does not exist: a repair must not create one
        with Writer.open(store) as writer:
            _repair(store, writer)
        return
    with Snapshot.open(store) as snapshot:
        segments = snapshot.manifest.segments
        with bar_of(_bytes(segments)) as on_progress:
            damaged_segments = find_damage(snapshot, on_progress)
    for damaged in damaged_segments:
        click.echo(replace_unsafe(_damage_text(damaged)))
        _list_paths(damaged.paths, "  ")
    n_plain = sum(not segment.checksums for segment in segments)
    plain = f"; {n_plain:,} of them have no checksums yet: 'trackside compact' adds them" if n_plain else ""
    if damaged_segments:
        verb = "is" if len(damaged_segments) == 1 else "are"
        click.echo(
            f"{store}: {len(damaged_segments):,} of {len(segments):,} files {verb} damaged{plain}; restore them from a"
            f" copy, or 'trackside check --store {store} --repair' rebuilds the store from the rest"
        )
        sys.exit(1)
    click.echo(f"{store}: all {len(segments):,} files ({_bytes(segments):,} bytes) are intact{plain}")


def _repair(store: str, writer: Writer) -> None:
    with bar_of(_bytes(writer.manifest.segments)) as on_progress:
        result = rebuild(writer, on_progress)
    if not result.damaged:
        click.echo(f"{store}: all {len(writer.manifest.segments):,} files are intact; nothing was changed")
        return
    for damaged in result.damaged:
        click.echo(replace_unsafe(f"{_damage_text(damaged)}: taken out"))
    ingestible = [path for path in result.paths if not path.startswith(f"{SERIES_PATH}/")]
    click.echo(
        f"{store}: rebuilt; {result.kept_rows:,} rows of the damaged files are kept, {result.lost_rows:,} are lost"
        + ("; ingest again:" if ingestible else "")
    )
    for path in ingestible:
        click.echo(replace_unsafe(f"  {path}"))
    if len(ingestible) < len(result.paths):
        days = ", ".join(path.removeprefix(f"{SERIES_PATH}/") for path in result.paths if path not in ingestible)
        click.echo(replace_unsafe(f"samples that were pushed cannot be ingested again; some are lost of: {days}"))


def _damage_text(damaged: DamagedSegment) -> str:
    segment = damaged.segment
    return f"{segment.name} is {damaged.fault}; it had {segment.rows:,} rows of the table {segment.table}"


def _list_paths(paths: Sequence[str], indent: str) -> None:
    for path in paths[:MAX_PATHS]:
        click.echo(replace_unsafe(f"{indent}{path}"))
    if len(paths) > MAX_PATHS:
        click.echo(f"{indent}and {len(paths) - MAX_PATHS:,} other inputs")


def _bytes(segments: Sequence[TableSegment]) -> int:
    return sum(segment.bytes for segment in segments)
