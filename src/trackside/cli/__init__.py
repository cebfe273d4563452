"""The command line. Thin: every command wires rooms together and prints."""

from __future__ import annotations

import gc

import click

from trackside.cli import agent, bundle, compare, knowledge, live, stores, verdicts


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


for command in (
    verdicts.diagnose, verdicts.verify, bundle.bundle, compare.compare, knowledge.explain, knowledge.families,
    stores.inputs, knowledge.schema, knowledge.simulate, stores.ingest, stores.runs, stores.compact, live.serve,
    live.config, agent.agent,
):  # fmt: skip
    main.add_command(command)
