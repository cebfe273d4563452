"""The commands that say what Trackside knows, without any run."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import click

from trackside.cli.exits import EXIT_OUTPUT, fail
from trackside.families import families as all_families
from trackside.families import find_family
from trackside.show import comparison
from trackside.show.document import json_schema
from trackside.show.inert import shown
from trackside.sim import load_scenario, scenario_titles
from trackside.sim import simulate as play


@click.command()
@click.argument("family")
def explain(family: str) -> None:
    """Print a family's page; FAMILY is a code or an id, such as b1 or cuda-oom."""
    found = find_family(family)
    if found is None:
        like = [each for each in all_families() if family.lower() in f"{each.id} {each.title}".lower()]
        known = ", ".join(f"{each.code} {each.id}" for each in like or all_families())
        fail(f"no family {family!r}; {'did you mean' if like else 'known'}: {known}")
    click.echo(f"{found.code} {found.id}\n\n{inspect.cleandoc(found.doc)}")
    if found.pictured is not None:
        click.echo("\nA typical case\n--------------")
        click.echo(f"trackside simulate {found.pictured[0]} -o example")
        click.echo("trackside diagnose example/run --html example.html")


@click.command()
def families() -> None:
    """List the failure families."""
    for family in all_families():
        click.echo(f"{family.code}  {family.id:<24} {family.title}")


@click.command()
@click.argument("document", type=click.Choice(["verdict", "comparison"]), default="verdict")
def schema(document: str) -> None:
    """Print the JSON Schema of what 'diagnose --json' or 'compare --json' writes."""
    told = json_schema() if document == "verdict" else json_schema(comparison.SCHEMA, comparison.ComparisonDoc)
    click.echo(json.dumps(told, indent=2))


@click.command()
@click.argument("scenario", required=False)
@click.option("-o", "--output", metavar="DIR", type=click.Path(file_okay=False), help="Folder to write.")
@click.option("--seed", type=click.IntRange(0), help="Seed to use instead of the scenario's own.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change one key, such as job.step_s=2.5.")
@click.option("--metrics", type=click.Choice(["text", "parquet"]), default="text", help="Format of the metrics.")
@click.option("--list", "listing", is_flag=True, help="List the built-in scenarios and faults.")
def simulate(
    scenario: str | None, output: str | None, seed: int | None, changes: tuple[str, ...], metrics: str, listing: bool
) -> None:
    """Simulate a run of SCENARIO: its files go to DIR/run, the right answer to DIR/truth.json.

    SCENARIO is a name from --list or a TOML file (docs/simulator.md).
    """
    if listing:
        for name, title in scenario_titles():
            click.echo(f"{name:<28} {title}")
        return
    if scenario is None or output is None:
        fail("give a SCENARIO and -o DIR, or --list")
    try:
        truth = play(load_scenario(scenario, changes, seed), Path(output), metrics=metrics)
    except OSError as error:
        fail(f"{output} can't be written: {error.strerror}", EXIT_OUTPUT)
    what = f"{truth.family} {truth.variant or ''}".strip()
    told = f"{output}/run: job {truth.job}, {truth.disposition}, injected: {what}; answers in {output}/truth.json"
    click.echo(shown(told))
