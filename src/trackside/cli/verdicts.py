"""The commands that make a verdict, and that ask its citations again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import click
import msgspec

from trackside.catalog.job_states import ALIVE, Stage, in_words
from trackside.cli.cost import PRICE, price_flags, price_of
from trackside.cli.exits import EXIT_NOTHING, fail
from trackside.cli.live import site_flags, site_of
from trackside.cli.report import HTML, Page
from trackside.cli.terminal import JOB, bar, console, output
from trackside.finding import Verdict
from trackside.logs.stamp import find_time
from trackside.read.bundle import DamagedBundle, is_bundle_file, open_bundle
from trackside.session import Request, Session, open_session, request_of
from trackside.settings.price import Price
from trackside.show import markdown
from trackside.show.document import VerdictDoc, decode, document, encode, uncited
from trackside.show.inert import shown
from trackside.show.text import render
from trackside.stores.metadata.errors import ArchiveError
from trackside.verify import check

EXIT_HEALTHY, EXIT_FAULT, EXIT_UNDECIDED = 0, 10, 11
Form = Literal["text", "json", "markdown"]
LATEST = 253402300800.0
"""The year 10000: what calls itself a time must lie before it."""


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(readable=False))
@JOB
@click.option("--store", metavar="DIR", type=click.Path(), help="Take the job from this store; PATHS add to it.")
@site_flags
@click.option("--watch", is_flag=True, help="Ask again until the job has ended; print each new verdict.")
@click.option("--interval", metavar="SECONDS", type=click.FloatRange(1), default=30.0, help="Of --watch; 30.")
@click.option("--json", "as_json", is_flag=True, help="Print the published JSON document instead of text.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for a ticket or a chat.")
@HTML
@PRICE
@click.option("-v", "--verbose", is_flag=True, help="All evidence: every citation with its query, every input.")
@click.option("--exit-code", is_flag=True, help="Exit 0 healthy, 10 a fault, 11 undecided.")
@click.option(
    "--now", metavar="TIME", help="Take this as the present, for a run still going (ISO 8601 or POSIX seconds)."
)
def diagnose(
    paths: Sequence[str],
    job: str | None,
    store: str | None,
    site: Mapping[str, Any],
    watch: bool,
    interval: float,
    as_json: bool,
    as_markdown: bool,
    html: str | None,
    price: str | None,
    verbose: bool,
    exit_code: bool,
    now: str | None,
) -> None:
    """Read files, folders or archives, or a job of a store, and print the verdict.

    With --job alone the site is asked: Slurm here, and the servers that trackside.toml, TRACKSIDE_... variables or the
    flags name (docs/site.md). With PATHS or --store it is asked only where such a flag is given.
    """
    at_site = bool(site) or not (paths or store is not None)
    if at_site and not paths and store is None and job is None:
        raise click.UsageError("give PATHS, --store DIR, or --job ID of a job of this site")
    if watch and not at_site:
        raise click.UsageError("--watch asks a site again and again; files and stores are as they are")
    as_of, of_an_hour = time_of(now), price_flags(price)
    if as_json and as_markdown:
        raise click.UsageError("give --json or --markdown, not both")
    form: Form = "json" if as_json else "markdown" if as_markdown else "text"
    page = Page(html)
    named = [*([store] if store else []), *paths]
    if at_site:
        settings = site_of(site, of_an_hour)
        request = request_of(paths, job, as_of, store=store, site=settings)
        question = _Question(request, named, settings.price, page, settings.metadata)
    else:
        request = request_of(paths, job, as_of, store=store)
        question = _Question(request, named, price_of(of_an_hour), page)
    if watch:
        last = _watched(question, interval, form, verbose)
    else:
        with bar(paths) as on_progress:
            last, _ = question.ask(on_progress)
        _print(last, form, verbose)
    if exit_code:
        sys.exit(_status(last.primary.family, last.primary.certainty))


@dataclass(frozen=True, slots=True)
class _Question:
    """What is diagnosed, and where its verdict goes. ``paths``: as the document names them; ``archive``: its URL."""

    request: Request
    paths: Sequence[str]
    price: Price
    page: Page
    archive: str = ""

    def ask(self, on_progress: Callable[[int], None] | None = None) -> tuple[VerdictDoc, Stage]:
        """The verdict as of now, kept in the archive and written as a page, and whether the job goes on."""
        with open_session(replace(self.request, on_progress=on_progress)) as session:
            verdict = session.verdict()
            doc = document(verdict, self.paths, session.asked, self.price)
            self.page(doc, session)
        if self.archive:
            _record(self.archive, verdict, doc, self.request.job)
        return doc, session.stage


def _print(doc: VerdictDoc, form: Form, verbose: bool) -> None:
    with output():
        match form:
            case "json":
                sys.stdout.buffer.write(encode(doc))
            case "markdown":
                sys.stdout.write(markdown.render(doc))
            case "text":
                render(doc, console(), verbose)


def _record(url: str, verdict: Verdict, doc: VerdictDoc, job: str | None) -> None:
    """Keep it; a verdict is none the worse for an archive that is down."""
    try:
        from trackside.stores.metadata.archive import Archive  # the extra "serve"
    except ModuleNotFoundError as error:
        click.echo(f"trackside: not archived: {error.name} is not installed: pip install 'trackside[serve]'", err=True)
        return
    try:
        with Archive.open(url) as archive:
            archive.record(verdict, encode(doc), job=job)
    except ArchiveError as error:
        click.echo(shown(f"trackside: not archived: {error}"), err=True)


def _watched(question: _Question, interval: float, form: Form, verbose: bool) -> VerdictDoc:
    """Ask until the job has ended: a line for each change, then the last verdict in full; where a whole document is
    wanted, one for each change."""
    from trackside.watch.follow import follow  # the HTTP client comes with it

    stage: Stage = "unknown"
    silent: set[str] = set()

    def say(text: str) -> None:
        click.echo(shown(f"{_clock()}  {text}"), err=True)

    def ask() -> VerdictDoc:
        nonlocal stage, silent
        doc, stage = question.ask()
        failing = {f"{row.path}: {row.note}" for row in doc.inputs if row.status == "unreadable"}
        for text in sorted(failing - silent):
            say(text)
        if silent and not failing:
            say("all that was asked answered again")
        silent = failing
        return doc

    def changed(doc: VerdictDoc) -> None:
        if form != "text":
            _print(doc, form, verbose)
            return
        first = doc.primary
        certainty = f" ({first.certainty}, {first.confidence:.2f})" if first.certainty and first.confidence else ""
        variant = f" {first.variant}" if first.variant else ""
        state = f"  {in_words(doc.run.disposition)}" if doc.run.disposition else ""
        click.echo(shown(f"{_clock()}{state}  {first.family} {first.id}{variant}{certainty}"))

    followed = follow(ask, lambda: stage, changed, say, interval_s=interval)
    if followed.verdict is None:
        fail("stopped before there was a verdict", EXIT_NOTHING)
    if form == "text":
        click.echo()
        _print(followed.verdict, form, verbose)
    return followed.verdict


def _clock() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


@click.command()
@click.argument("verdict", type=click.Path(readable=False))
@click.argument("paths", nargs=-1, type=click.Path(readable=False))
@click.option("--job", metavar="ID", help="Which job, where the verdict names none: what 'diagnose' was given.")
@site_flags
def verify(verdict: str, paths: Sequence[str], job: str | None, site: Mapping[str, Any]) -> None:
    """Ask every citation of VERDICT.json again; exit 1 if one no longer gives the same value.

    It checks the figures and where they come from, not the words around them: those are 'diagnose' again.

    PATHS are the inputs, the first of which may be a store; without them, those that the verdict names. Where it was
    made from a site's servers, these are asked again: give the flags that 'diagnose' was given. VERDICT may be a
    bundle, which holds both.
    """
    doc, paths = _saved(verdict, paths)
    with _reopened(doc, paths, job, site) as session:
        checked = list(check(doc.cites, session.store))
    broken = [one for one in checked if not one.holds]
    for one in broken:
        now = one.problem or ("is no longer there" if one.now is None else f"now {one.now!r}")
        click.echo(shown(f"{one.id}: {one.cite.where}: was {one.cite.value!r}, {now}\n    {one.cite.query}"))
    dangling = uncited(doc)
    for name in dangling:
        click.echo(shown(f"{name}: a sentence cites it, and the document holds no such citation"))
    if broken and doc.run.disposition in ALIVE:
        click.echo("The job was still going when the verdict was made: what has changed since is no fault of it.")
    click.echo(f"{len(checked) - len(broken)} of {len(checked) + len(dangling)} citations give the same value")
    sys.exit(1 if broken or dangling else 0)


def _saved(verdict: str, paths: Sequence[str]) -> tuple[VerdictDoc, Sequence[str]]:
    """A verdict's document, and the paths of its inputs: a bundle holds both."""
    try:
        if is_bundle_file(verdict):
            with open_bundle(verdict) as bundle:
                bundle.check()
                return decode(bundle.verdict()), paths or [verdict]
        with open(verdict, "rb") as file:
            return decode(file.read()), paths
    except OSError as error:
        fail(f"{verdict} can't be read: {error.strerror}")
    except DamagedBundle as error:
        fail(f"{verdict} is not as it was written: {error}")
    except msgspec.MsgspecError as error:
        fail(f"{verdict} is no verdict document: {error}; give what 'trackside diagnose --json' wrote")


@contextmanager
def _reopened(doc: VerdictDoc, paths: Sequence[str], job: str | None, site: Mapping[str, Any]) -> Iterator[Session]:
    """A session on the inputs of a verdict, as of its time."""
    given = paths or doc.paths
    gone = [] if paths else [path for path in given if not os.path.lexists(path)]
    if gone:
        fail(f"the verdict's input {gone[0]} is not at that path from here; give the inputs' PATHS")
    job, as_of = doc.run.id or job, doc.run.as_of or doc.run.end
    at_site = bool(site or doc.asked)
    if not given and not at_site:
        fail("the verdict names no inputs; give their PATHS")
    request = request_of(given, job, as_of, site=site_of(site) if at_site else None)
    with bar(given) as on_progress, open_session(replace(request, on_progress=on_progress)) as session:
        missing = [name for name in doc.asked if name not in session.asked]
        if missing:
            fail(f"the verdict was made with {missing[0]}, which is not set here; give its flag or --config")
        yield session


def _status(code: str, certainty: str | None) -> int:
    from trackside.families import families

    role = next((family.role for family in families() if family.code == code), "fault")
    if role == "health":
        return EXIT_HEALTHY
    return EXIT_UNDECIDED if role == "last_resort" or certainty in (None, "possible") else EXIT_FAULT


def time_of(text: str | None) -> float | None:
    """What ``--now`` says, in POSIX seconds; ends the command where it is no time."""
    if text is None:
        return None
    try:
        found: float | None = float(text)
    except ValueError:
        found = find_time(text)
    if found is None or not 0 < found < LATEST:
        fail(f"--now {text!r} is no time; write 2026-11-21T08:00:00Z or POSIX seconds")
    return found
