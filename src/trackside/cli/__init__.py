"""The command line. Thin: every command opens a session, or one room, and prints."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from importlib import import_module

import click

from trackside.cli.exits import errors

COMMANDS: Mapping[str, tuple[str, str]] = {
    "agent": ("agent", "Collect what a node gives off, and send it on (docs/agent.md)."),
    "bundle": ("bundle", "Put a run's evidence and the verdict on it into one file, to hand to somebody else."),
    "compact": ("stores", "Merge a store's small segments, and thin or delete old samples."),
    "compare": ("compare", "Put two runs beside each other: the last good one and the bad one, say."),
    "config": ("live", "Show the settings in force and where each comes from; secrets are hidden."),
    "diagnose": ("verdicts", "Read files, folders or archives, or a job of a store, and print the verdict."),
    "explain": ("knowledge", "Print a family's page; FAMILY is a code or an id, such as b1 or cuda-oom."),
    "families": ("knowledge", "List the failure families."),
    "ingest": ("stores", "Read files, folders or archives into a store, which is made where there is none."),
    "inputs": ("stores", "Say what each file is taken for, and why."),
    "runs": ("stores", "List the runs of a store, or of the archive of verdicts."),
    "schema": ("knowledge", "Print the JSON Schema of what 'diagnose --json' or 'compare --json' writes."),
    "serve": ("live", "Receive metrics and logs into a store, and answer for its runs over HTTP."),
    "simulate": (
        "knowledge",
        "Simulate a run of SCENARIO: its files go to DIR/run, the right answer to DIR/truth.json.",
    ),
    "verify": ("verdicts", "Ask every citation of VERDICT.json again; exit 1 if one no longer gives the same value."),
}
"""Command -> its module here and the first sentence of its help. A module is imported when its command is run, so that
``trackside --help`` loads nothing that diagnoses."""


class Commands(click.Group):
    """The commands, and what their errors exit with."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"trackside.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=text).get_short_help_str(limit))
                    for name, (_, text) in COMMANDS.items()
                ]
            )

    def invoke(self, ctx: click.Context) -> object:
        with errors():
            return super().invoke(ctx)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
