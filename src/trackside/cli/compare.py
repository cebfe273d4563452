"""The command that puts two runs beside each other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click

from trackside.cli.cost import PRICE, price_flags, price_of
from trackside.cli.exits import fail
from trackside.cli.terminal import bar, console, output
from trackside.compare.compare import compare as compared
from trackside.compare.settings import settings
from trackside.compare.side import Side
from trackside.session import StoreRequest, open_session, request_of
from trackside.show.comparison import comparison, render
from trackside.show.document import encode


@click.command()
@click.argument("run_a", type=click.Path(readable=False))
@click.argument("run_b", type=click.Path(readable=False))
@click.option(
    "--store", metavar="DIR", type=click.Path(), help="RUN_A and RUN_B are jobs of this store, or ID and path."
)
@click.option("--job-a", metavar="ID", help="Which job, where RUN_A holds several.")
@click.option("--job-b", metavar="ID", help="Which job, where RUN_B holds several.")
@PRICE
@click.option("--json", "as_json", is_flag=True, help="Print the published JSON document instead of text.")
@click.option("-v", "--verbose", is_flag=True, help="What is the same as well, every rule and every citation.")
@click.option("--exit-code", is_flag=True, help="Exit 0 where no difference was found, 10 where one was.")
def compare(
    run_a: str, run_b: str, store: str | None, job_a: str | None, job_b: str | None, price: str | None, as_json: bool,
    verbose: bool, exit_code: bool,
) -> None:  # fmt: skip
    """Put two runs beside each other: the last good one and the bad one, say.

    RUN_A and RUN_B are files, folders or archives; with --store also ids of its jobs. It says what differs in how they
    ended, ran, were set up and trained, and the first point where they part (docs/compare.md).
    """
    of_an_hour = price_flags(price)
    with _side(run_a, job_a, store) as a, _side(run_b, job_b, store) as b:
        found = compared(a, b)
        doc = comparison(found, ([run_a], [run_b]), price_of(of_an_hour), _same(run_a, run_b) and a.run.id == b.run.id)
    with output():
        if as_json:
            sys.stdout.buffer.write(encode(doc))
        else:
            render(doc, console(), verbose)
    if exit_code and found.differing:
        sys.exit(10)


@contextmanager
def _side(path: str, job: str | None, store: str | None) -> Iterator[Side]:
    """One run, judged; its metrics can be asked until the end."""
    if store is not None and not os.path.lexists(path):
        with open_session(StoreRequest(store, path)) as session:
            session.verdict()
            yield Side(session)
        return
    if not os.path.lexists(path):
        fail(f"there is no file or folder {path}; to compare jobs of a store, give --store DIR")
    with bar([path]) as on_progress, open_session(request_of([path], job, on_progress=on_progress)) as session:
        session.verdict()
        side = Side(session)
        if session.files:  # a store keeps what logs tell, not their lines
            side = replace(side, settings=settings([path], side.run.log_paths, _begun(side)))
        yield side


def _same(one: str, other: str) -> bool:
    """Whether both are the same file or folder, or the same job of a store."""
    there = os.path.lexists(one) and os.path.lexists(other)
    return os.path.realpath(one) == os.path.realpath(other) if there else one == other


def _begun(side: Side) -> dict[str, int]:
    """The line of each log at which training begins."""
    found: dict[str, int] = {}
    for row in side.progress.events:
        found[row.at.path] = min(row.at.line, found.get(row.at.path, row.at.line))
    return found
