"""The command that makes, lists and checks the file that a run is handed over in."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from trackside.bundle.live import copies, write_live
from trackside.bundle.write import Options, WrittenBundle, write
from trackside.cli.exits import EXIT_OUTPUT, fail
from trackside.cli.live import site_flags, site_of
from trackside.cli.terminal import JOB, bar
from trackside.cli.verdicts import time_of
from trackside.read.bundle import DamagedBundle, Manifest, open_bundle
from trackside.session import PathsRequest, Request, SiteRequest, StoreRequest, open_session
from trackside.show.inert import shown


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(readable=False))
@click.option("-o", "--output", "out", metavar="FILE", type=click.Path(dir_okay=False), help="The bundle; run.tsb.")
@JOB
@click.option("--store", metavar="DIR", type=click.Path(), help="Take the job from this store; PATHS add to it.")
@site_flags
@click.option("--now", metavar="TIME", help="Take this as the present, for a run still going, as 'diagnose' does.")
@click.option("--slice", "sliced", is_flag=True, help="Of large logs and metrics keep what concerns the verdict.")
@click.option("--redact", is_flag=True, help="Replace names of users and hosts, addresses, tokens and keys.")
@click.option("--redact-also", metavar="WORD", multiple=True, help="Replace this word too, such as a project's name.")
@click.option("--mapping", metavar="FILE", type=click.Path(dir_okay=False), help="Write the key; keep it.")
@click.option("--despite-differences", "despite", is_flag=True, help="Of a live run: although the verdict differs.")
@click.option("--force", is_flag=True, help="Overwrite the bundle, and the mapping.")
@click.option("--check", is_flag=True, help="Compare the bundle PATHS with what was written, and list what it holds.")
def bundle(
    paths: Sequence[str],
    out: str | None,
    job: str | None,
    store: str | None,
    site: Mapping[str, Any],
    now: str | None,
    sliced: bool,
    redact: bool,
    redact_also: Sequence[str],
    mapping: str | None,
    despite: bool,
    force: bool,
    check: bool,
) -> None:
    """Put a run's evidence and the verdict on it into one file, to hand to somebody else.

    It is a zip that anybody can open, and that 'trackside diagnose' reads (docs/bundle.md). What was written is judged
    again before it is kept: a bundle that would say something else than its inputs is not made.

    With --job alone, or with --store, the evidence is what 'diagnose' would ask the site or the store for.
    """
    if check:
        if not paths:
            raise click.UsageError("give the bundle")
        _check(paths)
        return
    live = bool(site) or store is not None or (not paths and job is not None)
    if not paths and not live:
        raise click.UsageError("give the PATHS of a run's evidence, or --job ID, with or without --store")
    if site and job is None:
        raise click.UsageError("give --job ID: the site is asked for one job")
    if despite and not live:
        raise click.UsageError("--despite-differences is of --store and of --job alone: PATHS are written as they are")
    if (redact_also or mapping) and not redact:
        raise click.UsageError("--redact-also and --mapping go with --redact")
    options = Options(
        out=out or "run.tsb",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        job=job,
        sliced=sliced,
        redacted=redact,
        also=tuple(redact_also),
        force=force,
        despite=despite,
    )
    for path in (options.out, mapping):
        if path is not None and os.path.lexists(path) and not force:
            fail(f"{path} is there already; --force overwrites it")
    as_of = time_of(now)
    written = _live(paths, options, store, site, as_of) if live else _written(paths, options, as_of)
    if mapping is not None:
        _write_mapping(mapping, written, force)
    _tell(options.out, written)


def _written(paths: Sequence[str], options: Options, as_of: float | None) -> WrittenBundle:
    with bar(paths) as on_progress, open_session(PathsRequest(paths, options.job, as_of, on_progress)) as session:
        session.verdict()
    with _failing(options.out), bar(paths) as on_progress:
        return write(session, paths, options, on_progress)


def _live(
    paths: Sequence[str], options: Options, store: str | None, site: Mapping[str, Any], as_of: float | None
) -> WrittenBundle:
    """What a site or a store has of a job, and PATHS beside it."""
    request: Request
    with copies() as taken:
        if site or store is None:
            request = SiteRequest(site_of(site), options.job, paths, store, as_of, on_source=taken.copy)
        else:
            request = StoreRequest(store, options.job, paths, as_of)
        with bar(paths) as on_progress, open_session(replace(request, on_progress=on_progress)) as session:
            session.verdict()
            if store is not None:
                taken.copy_stored_files(store, session)
                taken.copy_files(paths, session)
                if session.loaded.curves is not None:
                    taken.export_metrics(session.loaded.curves, session)
            for server in session.servers:
                taken.export_metrics(server, session)
        with _failing(options.out):
            return write_live(session, taken, options)


@contextmanager
def _failing(out: str) -> Iterator[None]:
    """Ends the command where no bundle can be written."""
    try:
        yield
    except FileExistsError:
        fail(f"{out} is there already; --force overwrites it")
    except OSError as error:
        fail(f"{error.filename or out}: {error.strerror}", EXIT_OUTPUT)


def _write_mapping(path: str, written: WrittenBundle, force: bool) -> None:
    """The key to the redacted names, for its owner's eyes alone."""
    data = json.dumps(written.mapping, indent=1, ensure_ascii=False).encode("utf-8", "surrogateescape")
    try:
        if force and os.path.lexists(path):
            os.unlink(path)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data + b"\n")
    except OSError as error:
        fail(f"{path}: {error.strerror}; the bundle was written", EXIT_OUTPUT)


def _tell(out: str, written: WrittenBundle) -> None:
    first = written.verdict.primary
    click.echo(f"{out}: {written.size:,} bytes; verdict {first.family} {first.id}, as of the inputs")
    click.echo(f"sha256 {written.sha256}")
    _list(written.manifest, err=written.manifest.redacted)
    if written.manifest.redacted:
        click.echo(
            f"Read it before you send it: unzip it, or 'trackside bundle --check {shown(out)}' lists what is in it;"
            " docs/bundle.md says what is not recognised.",
            err=True,
        )


def _list(manifest: Manifest, err: bool = False) -> None:
    """What is in it, and what isn't. ``err``: to whoever looks on, not into a pipe."""
    for doc in manifest.inputs:
        if doc.member is None:
            click.echo(shown(f"left out: {doc.path}: {doc.because}"), err=err)
        elif doc.kept:
            click.echo(shown(f"in part: {doc.path}: {doc.kept}"), err=err)
    if manifest.replaced:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in manifest.replaced.items())
        click.echo(f"replaced: {counts}", err=err)
    elif manifest.redacted:
        click.echo("replaced: nothing was found that had to be", err=err)
    for note in manifest.notes:
        click.echo(shown(f"note: {note}"), err=err)


def _check(paths: Sequence[str]) -> None:
    for path in paths:
        try:
            with bar([path]) as on_progress, open_bundle(path) as found:
                found.check(on_progress)
                manifest = found.manifest
        except DamagedBundle as error:
            fail(f"{path}: not as it was written: {error}", EXIT_OUTPUT)
        click.echo(shown(f"{path}: as it was written on {manifest.created} by Trackside {manifest.trackside}"))
        for member in manifest.members:
            click.echo(shown(f"{member.sha256}  {member.size:>14,}  {member.name}"))
        _list(manifest)
