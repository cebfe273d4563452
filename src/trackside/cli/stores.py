"""The commands ``inputs``, ``ingest``, ``runs`` and ``compact``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import click

from trackside.cli.exit_codes import EXIT_NOTHING, fail
from trackside.cli.live import site_of
from trackside.cli.pipes import read_pipes
from trackside.cli.terminal import PATHS, STORE, bar, console, output
from trackside.extras import install_command
from trackside.ingest import ALREADY_STORED
from trackside.ingest import ingest as import_inputs
from trackside.runs.listing import RunSummary, list_runs
from trackside.session import StoreRequest, open_session
from trackside.session.paths import load
from trackside.show.document import InputDoc, encode
from trackside.show.heading import input_status
from trackside.show.runs import runs_table
from trackside.show.sanitize import replace_unsafe
from trackside.show.text import inputs_table
from trackside.stores.embedded import retention
from trackside.stores.embedded.layout import ARCHIVE_NAME, Directory
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.writer import Writer


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(readable=False), callback=read_pipes)
def inputs(paths: Sequence[str]) -> None:
    """Show the detected format of each file, and the reason."""
    with bar(paths) as on_progress:
        rows = load(paths, on_progress).inputs
    if not rows:
        fail(f"no files in {', '.join(paths)}", EXIT_NOTHING)
    with output():
        inputs_table([InputDoc(row.path, row.format, row.status, row.note, row.rows) for row in rows], console())
    if not any(row.status in ("read", "partial") for row in rows):
        sys.exit(EXIT_NOTHING)


@click.command()
@PATHS
@STORE
def ingest(paths: Sequence[str], store: str) -> None:
    """Import files, folders or archives into a store; creates the store if it does not exist.

    A file that the store already holds is skipped; a file that has changed since replaces its earlier import. The
    command can be stopped and repeated safely.
    """
    with bar(paths) as on_progress:
        result = import_inputs(paths, store, on_progress)
    for row in result.inputs:
        if row.status == "empty":
            click.echo(replace_unsafe(f"{row.path}: nothing was imported: {row.note or 'no rows'}"), err=True)
        elif row.status != "read":
            click.echo(replace_unsafe(f"{row.path}: {input_status(row.status)}: {row.note}"), err=True)
    for row in result.skipped:
        if row.note != ALREADY_STORED:
            click.echo(replace_unsafe(f"{row.path}: skipped: {row.note}"), err=True)
    statuses = [row.status for row in result.inputs]
    n_read, n_empty = statuses.count("read") + statuses.count("partial"), statuses.count("empty")
    n_unread = len(statuses) - n_read - n_empty
    unread = (f", {n_empty:,} without rows" if n_empty else "") + (f", {n_unread:,} not read" if n_unread else "")
    click.echo(
        f"{store}: {_count(n_read, 'input')} read{unread}, {len(result.replaced):,} replaced,"
        f" {len(result.skipped):,} skipped; {_count(result.rows, 'new row')}, {_count(result.samples, 'new sample')}"
    )


@click.command()
@click.option("--store", metavar="DIR", type=click.Path(), help="Folder of the store.")
@click.option(
    "--archive", metavar="URL", help="List the runs of this verdict archive: sqlite:///FILE or postgresql://..."
)
@click.option(
    "--config", metavar="FILE", type=click.Path(dir_okay=False), help="Settings file (default: trackside.toml)."
)
@click.option(
    "--limit", "max_runs", metavar="N", type=click.IntRange(1), default=1000,
    help="Maximum number of archived runs to list, the most recent ones (default 1000).",
)  # fmt: skip
@click.option(
    "--verdicts", is_flag=True,
    help="Diagnose each run of a store that has no archived verdict; takes about a second for each.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def runs(
    store: str | None, archive: str | None, config: str | None, max_runs: int, verdicts: bool, as_json: bool
) -> None:
    """List the runs in a store or in the verdict archive, with their latest verdicts.

    Without --store and --archive, lists those named in trackside.toml or TRACKSIDE_... variables (docs/site.md): the
    archive (metadata.url) if set, otherwise the store (store.path).
    """
    if store is not None and archive is not None:
        raise click.UsageError("give --store DIR or --archive URL, not both")
    if store is None and archive is None:
        site = site_of({"config": config} if config is not None else {})
        archive, store = site.metadata or None, None if site.metadata else site.store or None
    if archive is not None:
        rows = _archived_runs(archive, max_runs)
    elif store is not None:
        rows = _stored_runs(store, max_runs, verdicts)
    else:
        raise click.UsageError("give --store DIR or --archive URL, or set metadata.url or store.path in trackside.toml")
    with output():
        if as_json:
            sys.stdout.buffer.write(encode(rows))
        else:
            runs_table(rows, console())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _stored_runs(store: str, max_runs: int, verdicts: bool) -> list[RunSummary]:
    """The runs of a store, with the verdicts that its receiver archived; ``verdicts``: and with new ones."""
    with Snapshot.open(store) as snapshot:
        rows = list_runs(snapshot)
    archive = os.path.join(os.path.abspath(store), ARCHIVE_NAME)
    archived = {}
    if os.path.exists(archive) and find_spec("sqlalchemy") is not None:  # else the list is complete without verdicts
        archived = {row.id: row.verdict for row in _archived_runs(f"sqlite:///{archive}", max_runs)}
    rows = [replace(row, verdict=archived.get(row.id)) for row in rows]
    return [replace(row, verdict=row.verdict or _new_verdict(store, row.id)) for row in rows] if verdicts else rows


def _new_verdict(store: str, job: str) -> str:
    """A verdict on a run of a store, in short."""
    with open_session(StoreRequest(store, job)) as session:
        primary = session.verdict().primary
    return _verdict_text(primary.family, primary.variant, primary.certainty)


def _verdict_text(family: str | None, variant: str | None, certainty: str | None) -> str:
    return " ".join(filter(None, (family, variant, f"({certainty})" if certainty else "")))


def _archived_runs(url: str, max_runs: int) -> list[RunSummary]:
    """The last ``max_runs`` runs of an archive, the oldest first, as for a store."""
    try:
        from trackside.stores.metadata.archive import MAX_PAGE_ROWS, Archive  # the extra "serve"
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: {install_command('serve')}")
    rows: list[RunSummary] = []
    cursor: str | None = None
    with Archive.open(url, create=False) as archive:
        while len(rows) < max_runs:
            page = archive.runs(limit=min(MAX_PAGE_ROWS, max_runs - len(rows)), after=cursor)
            for run in page.runs:
                verdict = _verdict_text(run.family, run.variant, run.certainty)
                nodes = tuple(run.nodes)
                rows.append(
                    RunSummary(run.job, run.name, run.state, run.started, run.ended, nodes, run.n_gpus, verdict=verdict)
                )
            cursor = page.next
            if cursor is None:
                break
    if cursor is not None:
        click.echo(f"trackside: only the last {max_runs:,} runs are listed; use --limit N to list more", err=True)
    return rows[::-1]


@click.command()
@STORE
@click.option(
    "--raw-days",
    metavar="DAYS",
    type=click.FloatRange(0),
    help="Downsample samples older than this to one-minute aggregates: min, max, sum, count, last (default: never).",
)
@click.option(
    "--minute-days", metavar="DAYS", type=click.FloatRange(0),
    help="Delete samples and aggregates older than this (default: never).",
)  # fmt: skip
def compact(store: str, raw_days: float | None, minute_days: float | None) -> None:
    """Merge a store's small segments, and downsample or delete old samples. Readers are not blocked."""
    if raw_days is not None and minute_days is not None and minute_days < raw_days:
        fail("--minute-days must not be less than --raw-days")
    Directory(store).read_newest()  # raises if the store does not exist: compact must not create one
    with Writer.open(store) as writer:
        done = retention.compact(writer, time.time(), raw_days, minute_days)
    click.echo(
        f"{store}: segments: {done.before:,} before, {done.after:,} now; days rewritten: {done.days:,}"
        f" ({done.thinned:,} of them downsampled to minutes); expired samples and one-minute aggregates deleted:"
        f" {done.forgotten:,}"
    )
