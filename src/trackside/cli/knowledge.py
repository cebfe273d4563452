"""The commands that need no run: ``explain``, ``families``, ``schema`` and ``simulate``."""

from __future__ import annotations

import inspect
import json
import re
from difflib import get_close_matches
from pathlib import Path

import click

from trackside.cli.exit_codes import EXIT_OUTPUT, fail
from trackside.families import families as all_families
from trackside.families import find_family
from trackside.show import comparison
from trackside.show.document import json_schema
from trackside.show.sanitize import replace_unsafe
from trackside.sim import load_scenario, scenario_titles
from trackside.sim import simulate as run_simulation
from trackside.sim.truth import InjectedFault

_LINK = re.compile(r"\[([^\]]+)\]\((https://[^)\s]+)\)")
"""A Markdown link; on a terminal it is its title and its address."""


@click.command()
@click.argument("family")
def explain(family: str) -> None:
    """Explain a failure family; FAMILY is a code or an id, such as b1 or cuda-oom."""
    match = find_family(family)
    if match is None:
        close_ids = get_close_matches(family.lower(), [entry.id for entry in all_families()], 1, 0.6)
        similar = [
            f"{entry.code} {entry.id}"
            for entry in all_families()
            if family.lower() in f"{entry.id} {entry.title}".lower() or entry.id in close_ids
        ]
        hint = f"did you mean {' or '.join(similar)}?" if similar else "'trackside families' lists them"
        fail(f"no family {family!r}; {hint}")
    _, _, text = _LINK.sub(r"\1: \2", inspect.cleandoc(match.doc)).partition("\n")  # its first line is the title
    click.echo(f"{match.code} {match.id}: {match.title}\n\n{text.lstrip()}")
    if match.example is not None:
        click.echo("\nTry an example\n--------------")
        click.echo(f"trackside simulate {match.example[0]} -o example")
        click.echo("trackside diagnose example/run --html example.html")


@click.command()
def families() -> None:
    """List the failure families."""
    for family in all_families():
        click.echo(f"{family.code}  {family.id:<24} {family.title}")


@click.command()
@click.argument("document", metavar="[DOCUMENT]", type=click.Choice(["verdict", "comparison"]), default="verdict")
def schema(document: str) -> None:
    """Print the JSON Schema of the output of 'diagnose --json' or 'compare --json'.

    DOCUMENT is verdict (default) or comparison.
    """
    json_schema_doc = (
        json_schema() if document == "verdict" else json_schema(comparison.SCHEMA, comparison.ComparisonDoc)
    )
    click.echo(json.dumps(json_schema_doc, indent=2))


@click.command()
@click.argument("scenario", required=False)
@click.option("-o", "--output", metavar="DIR", type=click.Path(file_okay=False), help="Folder to write to [required].")
@click.option("--seed", type=click.IntRange(0), help="Random seed (default: the scenario's own).")
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE",
    help="Override a scenario key, such as job.step_s=2.5; repeatable.",
)  # fmt: skip
@click.option(
    "--metrics", type=click.Choice(["text", "parquet"]), default="text", help="Format of the metrics (default text)."
)
@click.option("--list", "listing", is_flag=True, help="List the built-in scenarios and faults, and exit.")
def simulate(
    scenario: str | None, output: str | None, seed: int | None, changes: tuple[str, ...], metrics: str, listing: bool
) -> None:
    """Simulate a run: write its logs and metrics to DIR/run and the expected verdict to DIR/truth.json.

    SCENARIO is a name from --list or a TOML file (docs/simulator.md).
    """
    if listing:
        titles = scenario_titles()
        width = max(len(name) for name, _ in titles)
        for name, title in titles:
            click.echo(f"{name:<{width}}  {title.replace('``', '')}")
        return
    if scenario is None:
        fail("give a SCENARIO, or --list to see them")
    loaded = load_scenario(scenario, changes, seed)
    if output is None:
        fail("-o DIR is missing: the folder to write to")
    try:
        truth = run_simulation(loaded, Path(output), metrics=metrics)
    except OSError as error:
        fail(f"cannot write {output}: {error.strerror}", EXIT_OUTPUT)
    faults = [f"{fault.family} {fault.variant or ''}".strip() for fault in truth.injected if _is_fault(fault)]
    injected = f"injected fault{'s' if len(faults) > 1 else ''}: {', '.join(faults) or 'none'}"
    click.echo(
        replace_unsafe(
            f"{output}/run: job {truth.job}, {truth.disposition}, {injected}; expected verdict in {output}/truth.json"
        )
    )


def _is_fault(injected: InjectedFault) -> bool:
    """Whether it shows in the verdict as a fault: neither latent nor, as a correct resume, healthy."""
    family = find_family(injected.family)
    return not injected.latent and (family is None or family.role != "health")
