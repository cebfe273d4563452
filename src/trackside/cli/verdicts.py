"""The commands ``diagnose`` and ``verify``."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import click
import msgspec

from trackside.catalog.job_states import ACTIVE_STATES, Stage, state_in_words
from trackside.cli.cost import PRICE, price_flags, price_of
from trackside.cli.exit_codes import (
    EXIT_CODES_HELP,
    EXIT_FAULT,
    EXIT_HEALTHY,
    EXIT_NOTHING,
    EXIT_UNDECIDED,
    fail,
)  # fmt: skip
from trackside.cli.live import site_flags, site_of
from trackside.cli.pipes import GIVEN_PATHS, read_pipes
from trackside.cli.report import HTML, PageWriter
from trackside.cli.terminal import bar, console, job_flag, output
from trackside.extras import install_command
from trackside.families import families
from trackside.finding import Verdict
from trackside.logs.stamp import find_time
from trackside.read.bundle import DamagedBundle, is_bundle_file, open_bundle
from trackside.session import Request, Session, open_session, request_of
from trackside.settings.price import Price
from trackside.show import brief, heading, markdown, text
from trackside.show.document import VerdictDoc, decode, document, encode, missing_citations
from trackside.show.sanitize import replace_unsafe
from trackside.stores.metadata.errors import ArchiveError
from trackside.verify import check

SLURM_OUTPUT = re.compile(r"slurm-[0-9]+(_[0-9]+)?\.out")
"""Name that Slurm gives a job's output."""
OutputForm = Literal["text", "short", "json", "markdown"]
MAX_TIME_S = 253402300800.0
"""POSIX time of the year 10000; ``--now`` must lie before it."""


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("paths", nargs=-1, type=click.Path(readable=False), callback=read_pipes)
@job_flag("diagnose")
@click.option("--store", metavar="DIR", type=click.Path(), help="Read the job from this store; PATHS add to it.")
@partial(
    site_flags,
    archive_help="Also record the verdict in this archive: sqlite:///FILE or postgresql://... (default: none).",
)
@click.option(
    "--watch", is_flag=True,
    help="Diagnose again until the job has ended; print a line for each change, then the last verdict in full.",
)  # fmt: skip
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until no more evidence is expected: the job has ended, and its lines and metrics have arrived.",
)
@click.option(
    "--interval", metavar="SECONDS", type=click.FloatRange(1), default=30.0,
    help="Seconds between checks with --watch and --wait (default 30).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON (schema: 'trackside schema').")
@click.option("--short", is_flag=True, help="Print the verdict as one paragraph, for a chat.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the verdict as Markdown, for a ticket.")
@HTML
@PRICE
@click.option(
    "-v", "--verbose", is_flag=True, help="Show all evidence: citations with their queries, other families, inputs."
)
@click.option("--exit-code", is_flag=True, help="Exit 0 if healthy, 10 for a fault, 11 if undecided or only possible.")
@click.option(
    "--now", metavar="TIME", help="Present time for a job that still runs (default: now); ISO 8601 or POSIX seconds."
)
def diagnose(
    paths: Sequence[str],
    job: str | None,
    store: str | None,
    site: Mapping[str, Any],
    watch: bool,
    wait: bool,
    interval: float,
    as_json: bool,
    short: bool,
    as_markdown: bool,
    html: str | None,
    price: str | None,
    verbose: bool,
    exit_code: bool,
    now: str | None,
) -> None:
    """Diagnose a run from files, folders or archives, or from a store, and print the verdict.

    PATHS may be pipes; - is standard input.

    With --job alone the site is queried: the local Slurm, and the servers named in trackside.toml, in TRACKSIDE_...
    variables or by options (docs/site.md). With PATHS or --store the site is queried only
    if --metrics-url, --logs-url, --slurm, --archive, --cluster or --config is given.
    """
    at_site = bool(site) or not (paths or store is not None)
    if at_site and not paths and store is None and job is None:
        raise click.UsageError(f"give PATHS, --store DIR, or --job ID of a job at this site{_suggestion()}")
    if watch and not at_site:
        raise click.UsageError(
            "--watch follows a job of a live site: leave out PATHS and --store, or add a site option, such as"
            " --slurm auto"
        )
    if watch and wait:
        raise click.UsageError("give only one of --watch and --wait")
    if wait and now is not None:
        raise click.UsageError("--wait waits for the present, so it cannot be given with --now")
    as_of, price_settings = time_of(now), price_flags(price)
    if as_json + as_markdown + short > 1:
        raise click.UsageError("give only one of --json, --markdown and --short")
    form: OutputForm = "json" if as_json else "markdown" if as_markdown else "short" if short else "text"
    page = PageWriter(html)
    input_paths = [*([store] if store else []), *click.get_current_context().meta[GIVEN_PATHS]]
    if at_site:
        settings = site_of(site, price_settings)
        request = request_of(paths, job, as_of, store=store, site=settings)
        diagnosis = _Diagnosis(request, input_paths, settings.price, page, settings.metadata, only_settled=wait)
    else:
        request = request_of(paths, job, as_of, store=store)
        diagnosis = _Diagnosis(request, input_paths, price_of(price_settings), page, only_settled=wait)
    if watch:
        last = _watch(diagnosis, interval, form, verbose)
    elif wait:
        last = _wait(diagnosis, interval)
        _print(last, form, verbose)
    else:
        with bar(paths) as on_progress:
            last, _ = diagnosis.diagnose(on_progress)
        _print(last, form, verbose)
    if exit_code:
        sys.exit(_exit_code(last.primary.family, last.primary.certainty))


def _suggestion() -> str:
    """The command that was probably meant, inside of a Slurm job or in a folder with a job's output."""
    job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID", "")
    task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if job.isdecimal():
        return f"; this is job {job}: 'trackside diagnose --job {job}{f'_{task}' if task.isdecimal() else ''}'"
    try:
        logs = [entry for entry in os.scandir() if entry.is_file() and SLURM_OUTPUT.fullmatch(entry.name)]
        newest = max(logs, key=lambda entry: entry.stat().st_mtime, default=None)
    except OSError:
        return ""
    return "" if newest is None else f"; the newest output of a job here: 'trackside diagnose {newest.name}'"


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    """What to diagnose, and where the verdict goes. ``paths``: the inputs as the document names them; ``archive``: the
    URL of the verdict archive, or empty; ``only_settled``: a verdict that is not final goes nowhere."""

    request: Request
    paths: Sequence[str]
    price: Price
    page: PageWriter
    archive: str = ""
    only_settled: bool = False

    def diagnose(self, on_progress: Callable[[int], None] | None = None) -> tuple[VerdictDoc, Stage]:
        """Diagnose, write the HTML page and archive the verdict. Returns the document and the stage of the job."""
        with open_session(replace(self.request, on_progress=on_progress)) as session:
            verdict = session.verdict()
            doc = document(verdict, self.paths, session.queried, self.price)
            is_wanted = doc.unsettled is None or not self.only_settled
            if is_wanted:
                self.page(doc, session)
        if self.archive and is_wanted:
            _record(self.archive, verdict, doc, self.request.job)
        return doc, session.stage


def _print(doc: VerdictDoc, form: OutputForm, verbose: bool) -> None:
    with output():
        match form:
            case "json":
                sys.stdout.buffer.write(encode(doc))
            case "markdown":
                sys.stdout.write(markdown.render(doc))
            case "text":
                if verbose:
                    text.render(doc, console())
                else:
                    brief.render(doc, console())
            case "short":
                click.echo(replace_unsafe(brief.paragraph(doc)))


def _record(url: str, verdict: Verdict, doc: VerdictDoc, job: str | None) -> None:
    """Archive a verdict. If the archive is unavailable, print one line; the verdict is still shown."""
    try:
        from trackside.stores.metadata.archive import Archive  # the extra "serve"
    except ModuleNotFoundError as error:
        click.echo(
            f"trackside: the verdict was not archived: {error.name} is not installed: {install_command('serve')}",
            err=True,
        )
        return
    try:
        with Archive.open(url) as archive:
            archive.record(verdict, encode(doc), job=job)
    except ArchiveError as error:
        click.echo(replace_unsafe(f"trackside: the verdict was not archived: {error}"), err=True)


def _watch(diagnosis: _Diagnosis, interval: float, form: OutputForm, verbose: bool) -> VerdictDoc:
    """Diagnose until the job has ended. As text: print a line for each change, then the last verdict in full. As JSON
    or Markdown: print a document for each change. Returns the last verdict."""
    from trackside.watch.follow import follow  # imports the HTTP client

    stage: Stage = "unknown"
    failing: set[str] = set()

    def notify(text: str) -> None:
        click.echo(replace_unsafe(f"{_clock()}  {text}"), err=True)

    def check_job() -> VerdictDoc:
        nonlocal stage, failing
        doc, stage = diagnosis.diagnose()
        failing_now = {f"{row.path}: {row.note}" for row in doc.inputs if row.status == "unreadable"}
        for failure in sorted(failing_now - failing):
            notify(failure)
        if failing and not failing_now:
            notify("all sources answer again")
        failing = failing_now
        return doc

    def print_change(doc: VerdictDoc) -> None:
        if form != "text":
            _print(doc, form, verbose)
            return
        finding = ", ".join(filter(None, (heading.family(doc.primary), heading.certainty(doc.primary))))
        state = f"  {state_in_words(doc.run.disposition)}" if doc.run.disposition else ""
        click.echo(replace_unsafe(f"{_clock()}{state}  {finding}"))

    outcome = follow(check_job, lambda: stage, print_change, notify, interval_s=interval)
    if outcome.verdict is None:
        fail("stopped before the first verdict", EXIT_NOTHING)
    if form == "text":
        click.echo()
        _print(outcome.verdict, form, verbose)
    return outcome.verdict


def _wait(diagnosis: _Diagnosis, interval: float) -> VerdictDoc:
    """Diagnose until the verdict is final, or until Ctrl-C; returns the last verdict."""
    from trackside.watch.settle import wait_until_settled  # imports the HTTP client

    def notify(text: str) -> None:
        click.echo(replace_unsafe(f"{_clock()}  {text}"), err=True)

    verdict = wait_until_settled(lambda: diagnosis.diagnose()[0], notify, interval_s=interval)
    if verdict is None:
        fail("stopped before the first verdict", EXIT_NOTHING)
    return verdict


def _clock() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


@click.command()
@click.argument("verdict", type=click.Path(readable=False))
@click.argument("paths", nargs=-1, type=click.Path(readable=False), callback=read_pipes)
@click.option("--job", metavar="ID", help="Job to use if the verdict names none: the one given to 'diagnose'.")
@site_flags
def verify(verdict: str, paths: Sequence[str], job: str | None, site: Mapping[str, Any]) -> None:
    """Re-run every citation of a verdict; exit 1 if a value has changed.

    VERDICT is the output of 'diagnose --json', or a bundle. Checks the cited values only; to check the wording, run
    'diagnose' again.

    PATHS are the inputs (default: those named in the verdict); the first may be a store. If the verdict was made from a
    site's servers, give the same site options as for 'diagnose'. A bundle contains both the verdict and its inputs.
    """
    doc, paths = _load_verdict(verdict, paths)
    with _reopen(doc, paths, job, site) as session:
        checked = list(check(doc.cites, session.store))
    broken = [result for result in checked if not result.holds]
    dangling = missing_citations(doc)
    click.echo(f"{len(checked) - len(broken)} of {len(checked) + len(dangling)} citations verified")
    if broken and doc.run.disposition in ACTIVE_STATES:
        click.echo("The job was still running when the verdict was made, so values may have changed since.")
    for failed in broken:
        now = failed.problem or ("no longer found" if failed.now is None else f"now {failed.now!r}")
        click.echo(
            replace_unsafe(
                f"{failed.id}: {failed.cite.where}: was {failed.cite.value!r}, {now}\n    {failed.cite.query}"
            )
        )
    for name in dangling:
        click.echo(replace_unsafe(f"{name}: a sentence cites it, but the document has no such citation"))
    sys.exit(1 if broken or dangling else 0)


def _load_verdict(verdict: str, paths: Sequence[str]) -> tuple[VerdictDoc, Sequence[str]]:
    """The document of a verdict file or bundle, and the paths of its inputs."""
    try:
        if is_bundle_file(verdict):
            with open_bundle(verdict) as bundle:
                bundle.check()
                return decode(bundle.verdict()), paths or [verdict]
        with open(verdict, "rb") as file:
            return decode(file.read()), paths
    except FileNotFoundError:
        fail(f"no such file or folder: {verdict}")
    except IsADirectoryError:
        fail(f"{verdict} is a folder; VERDICT is the output of 'trackside diagnose --json', or a bundle")
    except OSError as error:
        fail(f"cannot read {verdict}: {error.strerror}")
    except DamagedBundle as error:
        fail(f"{verdict} is damaged or changed: {error}")
    except msgspec.MsgspecError as error:
        reason = "the file is empty" if os.path.getsize(verdict) == 0 else str(error)
        fail(f"{verdict} is not a verdict document: {reason}; give the output of 'trackside diagnose --json'")


@contextmanager
def _reopen(doc: VerdictDoc, paths: Sequence[str], job: str | None, site: Mapping[str, Any]) -> Iterator[Session]:
    """A session on the inputs of a verdict, as of its time."""
    input_paths = paths or doc.paths
    missing_paths = [] if paths else [path for path in input_paths if not os.path.lexists(path)]
    if missing_paths:
        fail(f"input {missing_paths[0]} of the verdict not found from this folder; give the PATHS of the inputs")
    job, as_of = doc.run.id or job, doc.run.as_of or doc.run.end
    at_site = bool(site or doc.sources)
    if not input_paths and not at_site:
        fail("the verdict names no inputs; give the PATHS of the inputs")
    request = request_of(input_paths, job, as_of, site=site_of(site) if at_site else None)
    with bar(input_paths) as on_progress, open_session(replace(request, on_progress=on_progress)) as session:
        missing_sources = [name for name in doc.sources if name not in session.queried]
        if missing_sources:
            source = missing_sources[0]
            fail(f"the verdict was made with {source}, which is not configured here; give its option or --config")
        yield session


def _exit_code(code: str, certainty: str | None) -> int:
    """The status of ``--exit-code`` for a primary finding."""
    role = next((family.role for family in families() if family.code == code), "fault")
    if role == "last_resort" or certainty in (None, "possible"):
        return EXIT_UNDECIDED
    return EXIT_HEALTHY if role == "health" else EXIT_FAULT


def time_of(text: str | None) -> float | None:
    """The time of ``--now`` in POSIX seconds; None if not given. Exits if the text is not a time."""
    if text is None:
        return None
    try:
        time_s: float | None = float(text)
    except ValueError:
        time_s = find_time(text)
    if time_s is None or not 0 < time_s < MAX_TIME_S:
        fail(f"--now {text!r} is not a time; write 2026-11-21T08:00:00Z or POSIX seconds")
    return time_s
