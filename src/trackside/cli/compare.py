"""``trackside compare``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click

from trackside.cli.cost import PRICE, price_flags, price_of
from trackside.cli.exit_codes import EXIT_FAULT, fail
from trackside.cli.terminal import bar, console, output
from trackside.compare.compare import compare as compare_runs
from trackside.compare.settings import settings
from trackside.compare.side import Side
from trackside.errors import SeveralRuns
from trackside.session import StoreRequest, open_session, request_of
from trackside.show.comparison import comparison, render
from trackside.show.document import encode


@click.command()
@click.argument("run_a", type=click.Path(readable=False))
@click.argument("run_b", type=click.Path(readable=False))
@click.option(
    "--store", metavar="DIR", type=click.Path(), help="Look up RUN_A and RUN_B as jobs in this store; paths also work."
)
@click.option("--job-a", metavar="ID", help="Job to use if RUN_A holds several.")
@click.option("--job-b", metavar="ID", help="Job to use if RUN_B holds several.")
@PRICE
@click.option(
    "--json", "as_json", is_flag=True, help="Print the comparison as JSON (schema: 'trackside schema comparison')."
)
@click.option("-v", "--verbose", is_flag=True, help="Also show equal values, every rule and every citation.")
@click.option("--exit-code", is_flag=True, help="Exit 0 if no difference was found, 10 if one was.")
def compare(
    run_a: str, run_b: str, store: str | None, job_a: str | None, job_b: str | None, price: str | None, as_json: bool,
    verbose: bool, exit_code: bool,
) -> None:  # fmt: skip
    """Compare two runs, such as the last good one and the bad one.

    RUN_A and RUN_B are files, folders or archives; with --store also ids of its jobs. Shows the differences in outcome,
    hardware, setup and training, and where the runs first diverge (docs/compare.md).
    """
    price_settings = price_flags(price)
    with _side("RUN_A", run_a, job_a, store) as a, _side("RUN_B", run_b, job_b, store) as b:
        result = compare_runs(a, b)
        same_input = _same_input(run_a, run_b) and a.run.id == b.run.id
        doc = comparison(result, ([run_a], [run_b]), price_of(price_settings), same_input)
    with output():
        if as_json:
            sys.stdout.buffer.write(encode(doc))
        else:
            render(doc, console(), verbose)
    if exit_code and result.differing:
        sys.exit(EXIT_FAULT)


@contextmanager
def _side(name: str, path: str, job: str | None, store: str | None) -> Iterator[Side]:
    """One run, judged; its metrics can be queried until the end."""
    try:
        yield from _judged_side(path, job, store)
    except SeveralRuns as error:
        flag = f"--job-{name[-1].lower()}"
        fail(f"{name} holds {len(error.jobs)} jobs: {', '.join(error.jobs[:20])}; choose one with {flag} ID")


def _judged_side(path: str, job: str | None, store: str | None) -> Iterator[Side]:
    if store is not None and not os.path.lexists(path):
        with open_session(StoreRequest(store, path)) as session:
            session.verdict()
            yield Side(session)
        return
    if not os.path.lexists(path):
        fail(f"{path}: no such file or folder; to compare jobs of a store, give --store DIR")
    with bar([path]) as on_progress, open_session(request_of([path], job, on_progress=on_progress)) as session:
        session.verdict()
        side = Side(session)
        if session.files:  # a store keeps the parsed events of a log, not its lines
            side = replace(side, settings=settings([path], side.run.log_paths, _first_training_lines(side)))
        yield side


def _same_input(path_a: str, path_b: str) -> bool:
    """Whether both name the same file or folder, or the same job of a store."""
    both_exist = os.path.lexists(path_a) and os.path.lexists(path_b)
    return os.path.realpath(path_a) == os.path.realpath(path_b) if both_exist else path_a == path_b


def _first_training_lines(side: Side) -> dict[str, int]:
    """The line number of the first logged step in each log, by path."""
    lines: dict[str, int] = {}
    for row in side.progress.events:
        lines[row.at.path] = min(row.at.line, lines.get(row.at.path, row.at.line))
    return lines
