"""``trackside bundle``: write a bundle, and check and list one."""

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
from trackside.bundle.write import BundleOptions, WrittenBundle, write
from trackside.cli.exit_codes import EXIT_OUTPUT, EXIT_USAGE, fail
from trackside.cli.live import site_flags, site_of
from trackside.cli.terminal import bar, job_flag
from trackside.cli.verdicts import time_of
from trackside.read.bundle import BundleManifest, DamagedBundle, NotABundle, open_bundle
from trackside.session import PathsRequest, Request, SiteRequest, StoreRequest, open_session
from trackside.show.sanitize import replace_unsafe
from trackside.wording import word


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(readable=False))
@click.option(
    "-o", "--output", "out", metavar="FILE", type=click.Path(dir_okay=False), help="File to write (default run.tsb)."
)
@job_flag("pack")
@click.option("--store", metavar="DIR", type=click.Path(), help="Read the job from this store; PATHS add to it.")
@site_flags
@click.option(
    "--now", metavar="TIME", help="Present time for a job that still runs (default: now); ISO 8601 or POSIX seconds."
)
@click.option(
    "--slice", "sliced", is_flag=True, help="Keep only the parts of large logs and metrics that the verdict needs."
)
@click.option(
    "--redact", is_flag=True, help="Replace user and host names, addresses, tokens and keys with placeholders."
)
@click.option(
    "--redact-also", metavar="WORD", multiple=True,
    help="With --redact: also replace this word, such as a project name; repeatable.",
)  # fmt: skip
@click.option(
    "--mapping", metavar="FILE", type=click.Path(dir_okay=False),
    help="With --redact: write the original of each placeholder to this file; do not share it.",
)  # fmt: skip
@click.option(
    "--despite-differences", "despite", is_flag=True,
    help="With --store, or --job without PATHS: write the bundle even if its verdict differs from that of its source.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite an existing bundle and mapping.")
@click.option(
    "--check", is_flag=True, help="Check that the bundles given as PATHS are unchanged, and list their contents."
)
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
    """Pack a run's evidence and its verdict into one file to share.

    The bundle is a zip file that 'trackside diagnose' reads (docs/bundle.md). Before it is saved, the bundle is
    diagnosed again; it is not written if its verdict differs from that of its inputs.

    With --job alone, or with --store, the evidence is read from the site or the store, as for 'diagnose'.
    """
    if check:
        if not paths:
            raise click.UsageError("give the bundle to check")
        _check(paths)
        return
    live = bool(site) or store is not None or (not paths and job is not None)
    if not paths and not live:
        raise click.UsageError("give the PATHS of a run's evidence, or --job ID, with or without --store")
    if site and job is None:
        raise click.UsageError("give --job ID: a site is queried for one job")
    if despite and not live:
        raise click.UsageError("--despite-differences needs --store, or --job without PATHS")
    if (redact_also or mapping) and not redact:
        raise click.UsageError("--redact-also and --mapping need --redact")
    options = BundleOptions(
        out=out or "run.tsb",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        job=job,
        sliced=sliced,
        redacted=redact,
        extra_words=tuple(redact_also),
        force=force,
        despite=despite,
    )
    for path in (options.out, mapping):
        if path is not None and os.path.lexists(path) and not force:
            fail(f"{path} already exists; use --force to overwrite it")
    as_of = time_of(now)
    written = _write_live(paths, options, store, site, as_of) if live else _write_files(paths, options, as_of)
    if mapping is not None:
        _write_mapping(mapping, written, force)
    _print_summary(options.out, written)


def _write_files(paths: Sequence[str], options: BundleOptions, as_of: float | None) -> WrittenBundle:
    with bar(paths) as on_progress, open_session(PathsRequest(paths, options.job, as_of, on_progress)) as session:
        session.verdict()
    with _exit_on_error(options.out), bar(paths) as on_progress:
        return write(session, paths, options, on_progress)


def _write_live(
    paths: Sequence[str], options: BundleOptions, store: str | None, site: Mapping[str, Any], as_of: float | None
) -> WrittenBundle:
    """Write what a site or a store has of a job, and PATHS in addition."""
    request: Request
    with copies() as copied:
        if site or store is None:
            request = SiteRequest(site_of(site), options.job, paths, store, as_of, on_source=copied.copy)
        else:
            request = StoreRequest(store, options.job, paths, as_of)
        with bar(paths) as on_progress, open_session(replace(request, on_progress=on_progress)) as session:
            session.verdict()
            if store is not None:
                copied.copy_stored_files(store, session)
                copied.copy_files(paths, session)
                if session.loaded.metric_backend is not None:
                    copied.export_metrics(session.loaded.metric_backend, session)
            for server in session.servers:
                copied.export_metrics(server, session)
        with _exit_on_error(options.out):
            return write_live(session, copied, options)


@contextmanager
def _exit_on_error(out: str) -> Iterator[None]:
    """Exit with one line if the bundle cannot be written."""
    try:
        yield
    except FileExistsError:
        fail(f"{out} already exists; use --force to overwrite it")
    except OSError as error:
        status = EXIT_OUTPUT if os.path.isdir(os.path.dirname(os.path.abspath(out))) else EXIT_USAGE
        fail(f"cannot write {error.filename or out}: {error.strerror}", status)


def _write_mapping(path: str, written: WrittenBundle, force: bool) -> None:
    """Write the originals of the redacted names, readable by the owner only."""
    data = json.dumps(written.mapping, indent=1, ensure_ascii=False).encode("utf-8", "surrogateescape")
    try:
        if force and os.path.lexists(path):
            os.unlink(path)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data + b"\n")
    except OSError as error:
        fail(f"cannot write the mapping {path}: {error.strerror}; the bundle was written", EXIT_OUTPUT)


def _print_summary(out: str, written: WrittenBundle) -> None:
    first = written.verdict.primary
    click.echo(f"{out}: {written.size:,} bytes; verdict {first.family} {first.id}, the same as from its inputs")
    click.echo(f"sha256 {written.sha256}")
    _list(written.manifest, err=written.manifest.redacted)
    if written.remaining:
        click.echo("These words look random and were left; replace secrets among them with --redact-also:", err=True)
        for text in written.remaining:
            click.echo(replace_unsafe(f"  {text}"), err=True)
    if written.manifest.redacted:
        click.echo(
            f"Read the files of the bundle before you send it (unzip {replace_unsafe(out)} into a new folder);"
            " docs/bundle.md lists what redaction does not recognize.",
            err=True,
        )


def _list(manifest: BundleManifest, err: bool = False) -> None:
    """Print what was left out, bundled in part or in another form, and replaced. ``err``: print to stderr."""
    for doc in manifest.inputs:
        if doc.member is None:
            click.echo(replace_unsafe(f"left out: {doc.path}: {doc.because}"), err=err)
        elif doc.excerpt:
            click.echo(replace_unsafe(f"bundled: {doc.path}: {doc.excerpt}"), err=err)
    if manifest.replaced:
        counts = ", ".join(word(count, kind) for kind, count in manifest.replaced.items())
        click.echo(f"replaced: {counts}", err=err)
    elif manifest.redacted:
        click.echo("replaced: nothing (no names, addresses or secrets were found)", err=err)
    for note in manifest.notes:
        click.echo(replace_unsafe(f"note: {note}"), err=err)


def _check(paths: Sequence[str]) -> None:
    """Verify each bundle's checksums, and list its members."""
    for path in paths:
        if not os.path.lexists(path):
            fail(f"no such file or folder: {path}")
        if os.path.isdir(path):
            fail(f"{path} is a folder, not a bundle")
        try:
            with bar([path]) as on_progress, open_bundle(path) as opened_bundle:
                opened_bundle.check(on_progress)
                manifest = opened_bundle.manifest
        except NotABundle as error:
            fail(f"{path} is not a bundle: {error}", EXIT_OUTPUT)
        except DamagedBundle as error:
            if isinstance(error.__cause__, OSError):  # nothing was read that could be damaged
                fail(f"cannot read {path}: {error}", EXIT_OUTPUT)
            fail(f"{path}: damaged or changed: {error}", EXIT_OUTPUT)
        click.echo(
            replace_unsafe(f"{path}: unchanged since {manifest.created}, written by Trackside {manifest.trackside}")
        )
        for member in manifest.members:
            click.echo(replace_unsafe(f"{member.sha256}  {member.size:>14,}  {member.name}"))
        _list(manifest)
