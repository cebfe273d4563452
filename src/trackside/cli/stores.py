"""The commands that look at inputs, and keep them in a store."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from trackside.cli.exits import EXIT_NOTHING, fail
from trackside.cli.live import site_of
from trackside.cli.terminal import PATHS, STORE, bar, console, output
from trackside.ingest import SAME
from trackside.ingest import ingest as take
from trackside.runs.listing import Listed, listing
from trackside.session.paths import load
from trackside.show.document import InputDoc, encode
from trackside.show.inert import shown
from trackside.show.runs import runs_table
from trackside.show.text import inputs_table
from trackside.stores.embedded import retention
from trackside.stores.embedded.layout import Directory
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.writer import Writer


@click.command()
@PATHS
def inputs(paths: Sequence[str]) -> None:
    """Say what each file is taken for, and why."""
    with bar(paths) as on_progress:
        rows = load(paths, on_progress).inputs
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
    with bar(paths) as on_progress:
        done = take(paths, store, on_progress)
    for row in done.inputs:
        if row.status not in ("read", "empty"):
            click.echo(shown(f"{row.path}: {row.status}: {row.note}"), err=True)
    for row in done.skipped:
        if row.note != SAME:
            click.echo(shown(f"{row.path}: skipped: {row.note}"), err=True)
    click.echo(
        f"{store}: inputs read: {len(done.inputs):,} ({len(done.replaced):,} of them again, as they had changed),"
        f" skipped: {len(done.skipped):,}; new rows: {done.rows:,}, samples: {done.samples:,}"
    )


@click.command()
@click.option("--store", metavar="DIR", type=click.Path(), help="The store's folder.")
@click.option("--archive", metavar="URL", help="The archive of verdicts: sqlite:///FILE or postgresql://...")
@click.option("--config", metavar="FILE", type=click.Path(dir_okay=False), help="The site's trackside.toml.")
@click.option("--most", metavar="N", type=click.IntRange(1), default=1000, help="Of an archive, the last N; 1000.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def runs(store: str | None, archive: str | None, config: str | None, most: int, as_json: bool) -> None:
    """List the runs of a store, or of the archive of verdicts.

    Without --store and --archive, those that trackside.toml or TRACKSIDE_... variables name (docs/site.md): the archive
    (metadata.url), else the store (store.path).
    """
    if store is not None and archive is not None:
        raise click.UsageError("give --store DIR or --archive URL, not both")
    if store is None and archive is None:
        site = site_of({"config": config} if config is not None else {})
        archive, store = site.metadata or None, None if site.metadata else site.store or None
    if archive is not None:
        rows = _archived(archive, most)
    elif store is not None:
        rows = _stored(store)
    else:
        raise click.UsageError("give --store DIR or --archive URL, or set metadata.url or store.path in trackside.toml")
    with output():
        if as_json:
            sys.stdout.buffer.write(encode(rows))
        else:
            runs_table(rows, console())


def _stored(store: str) -> list[Listed]:
    with Snapshot.open(store) as snapshot:
        return listing(snapshot)


def _archived(url: str, most: int) -> list[Listed]:
    """The last runs of an archive, those that began first first, as those of a store are listed."""
    try:
        from trackside.stores.metadata.archive import MAX_PAGE_ROWS, Archive  # the extra "serve"
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: pip install 'trackside[serve]'")
    found: list[Listed] = []
    more: str | None = None
    with Archive.open(url) as archive:
        while len(found) < most:
            page = archive.runs(limit=min(MAX_PAGE_ROWS, most - len(found)), after=more)
            for run in page.runs:
                certainty = f"({run.certainty})" if run.certainty else None
                verdict = " ".join(filter(None, (run.family, run.variant, certainty)))
                nodes = tuple(run.nodes)
                found.append(
                    Listed(run.job, run.name, run.state, run.started, run.ended, nodes, run.n_gpus, verdict=verdict)
                )
            more = page.next
            if more is None:
                break
    if more is not None:
        click.echo(f"trackside: the last {most:,} runs; --most N lists more", err=True)
    return found[::-1]


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
    if raw_days is not None and minute_days is not None and minute_days < raw_days:
        fail("--minute-days must not be less than --raw-days")
    Directory(store).read_newest()  # a store that isn't there is not made
    with Writer.open(store) as writer:
        lost = retention.drop_damaged(writer) if drop_damaged else retention.CompactionResult()
        done = retention.compact(writer, time.time(), raw_days, minute_days)
    for name in lost.damaged:
        click.echo(shown(f"{name}: damaged, taken out"), err=True)
    for path in lost.lost:
        click.echo(shown(f"{path}: ingest it again"), err=True)
    click.echo(
        f"{store}: segments before: {done.before:,}, now: {done.after:,}; days rewritten: {done.days:,}"
        f" ({done.thinned:,} of them to minutes); samples and minutes deleted for their age: {done.forgotten:,}"
    )
