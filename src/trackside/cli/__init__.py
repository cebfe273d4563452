"""The command line. Each command opens a session, or calls one package, and prints the result."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from trackside.cli.encoding import use_ascii_fallback
from trackside.cli.exit_codes import errors
from trackside.settings import nearest

COMMANDS: Mapping[str, tuple[str, str]] = {
    "agent": ("agent", "Collect a node's metrics and logs and send them to a server (docs/agent.md)."),
    "bundle": ("bundle", "Pack a run's evidence and its verdict into one file to share."),
    "check": ("check", "Check that a store's files are as they were written, and rebuild it if one is damaged."),
    "compact": ("stores", "Merge a store's small segments, and downsample or delete old samples."),
    "compare": ("compare", "Compare two runs, such as the last good one and the bad one."),
    "completion": ("completion", "Print the script that completes commands and options in a SHELL."),
    "config": ("live", "Show the settings in effect and the source of each; secrets are hidden."),
    "diagnose": ("verdicts", "Diagnose a run from files, folders or archives, or from a store, and print the verdict."),
    "explain": ("knowledge", "Explain a failure family; FAMILY is a code or an id, such as b1 or cuda-oom."),
    "families": ("knowledge", "List the failure families."),
    "ingest": ("stores", "Import files, folders or archives into a store; creates the store if it does not exist."),
    "inputs": ("stores", "Show the detected format of each file, and the reason."),
    "runs": ("stores", "List the runs in a store or in the verdict archive, with their latest verdicts."),
    "schema": ("knowledge", "Print the JSON Schema of the output of 'diagnose --json' or 'compare --json'."),
    "serve": ("live", "Receive metrics and logs into a store, and serve verdicts over HTTP."),
    "simulate": (
        "knowledge",
        "Simulate a run: write its logs and metrics to DIR/run and the expected verdict to DIR/truth.json.",
    ),
    "verify": ("verdicts", "Re-run every citation of a verdict; exit 1 if a value has changed."),
    "version": ("version", "Print the version of Trackside."),
}
"""Command -> (its module in this package, the first sentence of its help). A module is imported when its command runs,
so ``trackside --help`` loads nothing heavy."""


class CommandGroup(click.Group):
    """The command group: imports a command on demand, and maps its errors to exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"trackside.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        use_ascii_fallback()
        with errors():
            return super().invoke(ctx)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="trackside")
def main() -> None:
    """Find out why a GPU training run failed or ran slowly, from its logs, metrics and scheduler records.

    \b
    trackside diagnose slurm-123.out             one log
    trackside diagnose run/                      logs, sacct, scontrol, dmesg, metrics
    srun train.sh 2>&1 | trackside diagnose -    the output of a command
    trackside diagnose run.tar.gz --json         JSON for programs
    trackside explain cuda-oom                   what a failure family means and what to do
    """
    gc.set_threshold(200_000)  # hundreds of thousands of rows stay alive to the end, and few of them form cycles
