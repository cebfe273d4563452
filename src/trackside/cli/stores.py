"""The commands that look at inputs, and keep them in a store."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from trackside.cli.terminal import EXIT_NOTHING, EXIT_USAGE, PATHS, STORE, bar, console, errors, fail, output


@click.command()
@PATHS
def inputs(paths: Sequence[str]) -> None:
    """Say what each file is taken for, and why."""
    from trackside import api
    from trackside.show.document import InputDoc
    from trackside.show.text import inputs_table

    with errors(), bar(paths) as tick:
        rows = api.load(paths, tick).inputs
    with output():
        inputs_table([InputDoc(row.path, row.format, row.status, row.note, row.rows) for row in rows], console())
    if not any(row.status in ("read", "partial") for row in rows):
        sys.exit(EXIT_NOTHING)


@click.command()
@PATHS
@STORE
def ingest(paths: Sequence[str], store: str) -> None:
    """Read files, folders or archives into a store, which is made where there is none.

    What the store has already is skipped; a file that has changed since replaces what was read of it. Safe to stop and
    to repeat.
    """
    from trackside.ingest import SAME
    from trackside.ingest import ingest as take

    with errors(), bar(paths) as tick:
        done = take(paths, store, tick)
    for row in done.inputs:
        if row.status not in ("read", "empty"):
            click.echo(f"{row.path}: {row.status}: {row.note}", err=True)
    for row in done.skipped:
        if row.note != SAME:
            click.echo(f"{row.path}: skipped: {row.note}", err=True)
    click.echo(
        f"{store}: inputs read: {len(done.inputs):,} ({len(done.replaced):,} of them again, as they had changed),"
        f" skipped: {len(done.skipped):,}; new rows: {done.rows:,}, samples: {done.samples:,}"
    )


@click.command()
@STORE
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def runs(store: str, as_json: bool) -> None:
    """List the runs of a store."""
    from trackside.runs.listing import listing
    from trackside.show.runs import runs_table
    from trackside.stores.embedded.snapshot import Snapshot

    with errors(), Snapshot.open(store) as snapshot:
        rows = listing(snapshot)
    with output():
        if as_json:
            import msgspec

            sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
        else:
            runs_table(rows, console())


@click.command()
@STORE
@click.option(
    "--raw-days",
    metavar="DAYS",
    type=click.FloatRange(0),
    help="Of older samples keep the minutes alone: min, max, sum, count, last.",
)
@click.option("--minute-days", metavar="DAYS", type=click.FloatRange(0), help="Of older samples keep nothing.")
@click.option("--drop-damaged", is_flag=True, help="Take out segments that can't be read; says what to ingest again.")
def compact(store: str, raw_days: float | None, minute_days: float | None, drop_damaged: bool) -> None:
    """Merge a store's small segments, and thin or delete old samples. Readers go on meanwhile."""
    import time

    from trackside.stores.embedded import retention
    from trackside.stores.embedded.layout import Directory
    from trackside.stores.embedded.writer import Writer

    if raw_days is not None and minute_days is not None and minute_days < raw_days:
        fail("--minute-days must not be less than --raw-days", EXIT_USAGE)
    with errors():
        Directory(store).newest()  # a store that isn't there is not made
        with Writer.open(store) as writer:
            lost = retention.drop_damaged(writer) if drop_damaged else retention.Compacted()
            done = retention.compact(writer, time.time(), raw_days, minute_days)
    for name in lost.damaged:
        click.echo(f"{name}: damaged, taken out", err=True)
    for path in lost.lost:
        click.echo(f"{path}: ingest it again", err=True)
    click.echo(
        f"{store}: segments before: {done.before:,}, now: {done.after:,}; days rewritten: {done.days:,}"
        f" ({done.thinned:,} of them to minutes); samples and minutes deleted for their age: {done.forgotten:,}"
    )
