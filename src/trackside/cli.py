"""The command line. Thin: every command wires rooms together and prints."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from rich.console import Console

EXIT_USAGE = 2
EXIT_NOTHING = 3
EXIT_OUTPUT = 1
EXIT_HEALTHY, EXIT_FAULT, EXIT_UNDECIDED = 0, 10, 11
LATEST = 253402300800.0
"""The year 10000: what calls itself a time must lie before it."""
BAR_FROM = 64 << 20
"""Bytes of input from which a progress bar is worth showing."""

PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(readable=False))
STORE = click.option("--store", required=True, metavar="DIR", type=click.Path(), help="The store's folder.")
JOB = click.option("--job", metavar="ID", help="Which job, where the inputs hold several (42, 60_3, 73+0).")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="trackside")
def main() -> None:
    """Say why a GPU training run ended as it did, from what it left behind.

    \b
    trackside diagnose slurm-123.out             one log
    trackside diagnose run/                      logs, sacct, scontrol, dmesg: what there is
    trackside diagnose run.tar.gz --json         for programs
    trackside explain cuda-oom                   what a family means and what to do
    """
    gc.set_threshold(200_000)  # hundreds of thousands of rows that live to the end, and hardly a cycle among them


@main.command()
@click.argument("paths", nargs=-1, type=click.Path(readable=False))
@JOB
@click.option("--store", metavar="DIR", type=click.Path(), help="Take the job from this store; PATHS add to it.")
@click.option("--json", "as_json", is_flag=True, help="Print the published JSON document instead of text.")
@click.option("-v", "--verbose", is_flag=True, help="All evidence: every citation with its query, every input.")
@click.option("--exit-code", is_flag=True, help="Exit 0 healthy, 10 a fault, 11 undecided.")
@click.option(
    "--now", metavar="TIME", help="Take this as the present, for a run still going (ISO 8601 or POSIX seconds)."
)
def diagnose(
    paths: Sequence[str],
    job: str | None,
    store: str | None,
    as_json: bool,
    verbose: bool,
    exit_code: bool,
    now: str | None,
) -> None:
    """Read files, folders or archives, or a job of a store, and print the verdict."""
    from trackside import api
    from trackside.show.document import document, encode

    if not paths and store is None:
        raise click.UsageError("give PATHS, or --store DIR")
    with _errors(), _bar(paths) as tick:
        if store is not None:
            verdict = api.diagnose_stored(store, job, paths, now=_time(now), tick=tick)
        else:
            verdict = api.diagnose(paths, job=job, now=_time(now), tick=tick)
    doc = document(verdict, [os.fspath(path) for path in ([store, *paths] if store is not None else paths)])
    with _output():
        if as_json:
            sys.stdout.buffer.write(encode(doc))
        else:
            from trackside.show.text import render

            render(doc, _console(), verbose)
    if exit_code:
        sys.exit(_status(doc.primary.family, doc.primary.certainty))


@main.command()
@click.argument("verdict", type=click.Path(readable=False))
@click.argument("paths", nargs=-1, type=click.Path(readable=False))
@click.option("--job", metavar="ID", help="Which job, where the verdict names none: what 'diagnose' was given.")
def verify(verdict: str, paths: Sequence[str], job: str | None) -> None:
    """Ask every citation of VERDICT.json again; exit 1 if one no longer gives the same value.

    It checks the figures and where they come from, not the words around them: those are 'diagnose' again.

    PATHS are the inputs, the first of which may be a store; without them, those that the verdict names.
    """
    import msgspec

    from trackside import api
    from trackside.show.document import decode, uncited
    from trackside.verify import check

    with _errors():
        try:
            with open(verdict, "rb") as file:
                doc = decode(file.read())
        except OSError as error:
            _fail(f"{verdict} can't be read: {error.strerror}")
        except msgspec.MsgspecError as error:
            _fail(f"{verdict} is no verdict document: {error}; give what 'trackside diagnose --json' wrote")
        given = paths or doc.paths
        if not given:
            _fail("the verdict names no inputs; give their PATHS", EXIT_USAGE)
        gone = [] if paths else [path for path in given if not os.path.lexists(path)]
        if gone:
            _fail(f"the verdict's input {gone[0]} is not at that path from here; give the inputs' PATHS", EXIT_USAGE)
        with _bar(given) as tick, api.opened(given, doc.run.id or job, tick) as loaded:
            _, store = api.select(loaded, loaded.job)
            checked = list(check(doc.cites, store))
    broken = [one for one in checked if not one.holds]
    for one in broken:
        now = one.problem or ("is no longer there" if one.now is None else f"now {one.now!r}")
        click.echo(f"{one.id}: {one.cite.where}: was {one.cite.value!r}, {now}\n    {one.cite.query}")
    dangling = uncited(doc)
    for name in dangling:
        click.echo(f"{name}: a sentence cites it, and the document holds no such citation")
    click.echo(f"{len(checked) - len(broken)} of {len(checked) + len(dangling)} citations give the same value")
    sys.exit(1 if broken or dangling else 0)


@main.command()
@click.argument("family")
def explain(family: str) -> None:
    """Print a family's page; FAMILY is a code or an id, such as b1 or cuda-oom."""
    import inspect

    from trackside.diagnose.family import families, find_family

    found = find_family(family)
    if found is None:
        known = ", ".join(f"{each.code} {each.id}" for each in families())
        _fail(f"no family {family!r}; known: {known}", EXIT_USAGE)
    click.echo(f"{found.code} {found.id}\n\n{inspect.cleandoc(found.doc)}")


@main.command()
def families() -> None:
    """List the failure families."""
    from trackside.diagnose.family import families as all_families

    for family in all_families():
        click.echo(f"{family.code}  {family.id:<24} {family.title}")


@main.command()
@PATHS
def inputs(paths: Sequence[str]) -> None:
    """Say what each file is taken for, and why."""
    from trackside import api
    from trackside.show.document import InputDoc
    from trackside.show.text import inputs_table

    with _errors(), _bar(paths) as tick:
        rows = api.load(paths, tick).inputs
    with _output():
        inputs_table([InputDoc(row.path, row.format, row.status, row.note, row.rows) for row in rows], _console())
    if not any(row.status in ("read", "partial") for row in rows):
        sys.exit(EXIT_NOTHING)


@main.command()
def schema() -> None:
    """Print the JSON Schema of the verdict document."""
    import json

    from trackside.show.document import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@main.command()
@click.argument("scenario", required=False)
@click.option("-o", "--output", metavar="DIR", type=click.Path(file_okay=False), help="Folder to write.")
@click.option("--seed", type=click.IntRange(0), help="In place of the scenario's own.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change one key, such as job.step_s=2.5.")
@click.option("--metrics", type=click.Choice(["text", "parquet"]), default="text", help="Format of the metrics.")
@click.option("--list", "listing", is_flag=True, help="List the scenarios and faults that come along.")
def simulate(
    scenario: str | None, output: str | None, seed: int | None, changes: tuple[str, ...], metrics: str, listing: bool
) -> None:
    """Write what a run of SCENARIO would leave behind: DIR/run, and DIR/truth.json beside it.

    SCENARIO is a name of --list or a TOML file (docs/simulator.md).
    """
    from pathlib import Path

    from trackside.sim import Scenario, catalogue
    from trackside.sim import simulate as play
    from trackside.sim.scenario import ScenarioError

    if listing:
        for name, title in catalogue():
            click.echo(f"{name:<28} {title}")
        return
    if scenario is None or output is None:
        _fail("give a SCENARIO and -o DIR, or --list")
    try:
        truth = play(Scenario.load(scenario, changes, seed), Path(output), metrics=metrics)
    except ScenarioError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{output} can't be written: {error.strerror}", EXIT_OUTPUT)
    what = f"{truth.family} {truth.variant or ''}".strip()
    click.echo(f"{output}/run: job {truth.job}, {truth.disposition}, injected: {what}; answers in {output}/truth.json")


@main.command()
@PATHS
@STORE
def ingest(paths: Sequence[str], store: str) -> None:
    """Read files, folders or archives into a store, which is made where there is none.

    What the store has already is skipped; a file that has changed since replaces what was read of it. Safe to stop and
    to repeat.
    """
    from trackside.ingest import SAME
    from trackside.ingest import ingest as take

    with _errors(), _bar(paths) as tick:
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


@main.command()
@STORE
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def runs(store: str, as_json: bool) -> None:
    """List the runs of a store."""
    from trackside.runs.listing import listing
    from trackside.show.runs import runs_table
    from trackside.stores.snapshot import Snapshot

    with _errors(), Snapshot.open(store) as snapshot:
        rows = listing(snapshot)
    with _output():
        if as_json:
            import msgspec

            sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
        else:
            runs_table(rows, _console())


@main.command()
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

    from trackside.stores import retention
    from trackside.stores.layout import Directory
    from trackside.stores.writer import Writer

    if raw_days is not None and minute_days is not None and minute_days < raw_days:
        _fail("--minute-days must not be less than --raw-days", EXIT_USAGE)
    with _errors():
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


def _status(family: str, certainty: str | None) -> int:
    if family == "G1":
        return EXIT_HEALTHY
    return EXIT_UNDECIDED if family == "U0" or certainty in (None, "possible") else EXIT_FAULT


def _time(text: str | None) -> float | None:
    if text is None:
        return None
    from trackside.logs.stamp import find_time

    try:
        found: float | None = float(text)
    except ValueError:
        found = find_time(text)
    if found is None or not 0 < found < LATEST:
        _fail(f"--now {text!r} is no time; write 2026-11-21T08:00:00Z or POSIX seconds", EXIT_USAGE)
    return found


@contextmanager
def _errors() -> Iterator[None]:
    """Turn what a user can mend into one line on stderr and the documented exit status."""
    from trackside.api import NothingReadable
    from trackside.runs.resolve import NoSuchRun, SeveralRuns
    from trackside.stores.layout import StoreError

    try:
        yield
    except NothingReadable as error:
        _fail(str(error), EXIT_NOTHING)
    except (FileNotFoundError, SeveralRuns, NoSuchRun, StoreError) as error:
        _fail(str(error), EXIT_USAGE)


@contextmanager
def _output() -> Iterator[None]:
    """Write what standard output can show; a full disk behind it is one line on stderr, a closed pipe is none."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal or locale without the characters
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # click ends quietly
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails once more at its end
        _fail(f"standard output can't be written: {error.strerror}", EXIT_OUTPUT)


def _fail(message: str, status: int = EXIT_USAGE) -> NoReturn:
    click.echo(f"trackside: {message}", err=True)
    sys.exit(status)


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120
    return Console(width=width, highlight=False, soft_wrap=False)


@contextmanager
def _bar(paths: Sequence[str]) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on stderr for long reads, on a terminal; yields what takes the bytes just read."""
    total = sum(_bytes(path) for path in paths) if sys.stderr.isatty() else 0
    if total < BAR_FROM:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress("reading", *columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=total)
        yield lambda read: progress.advance(task, read)


def _bytes(path: str) -> int:
    try:
        if not os.path.isdir(path):
            return os.stat(path).st_size
        return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)
    except OSError:
        return 0
