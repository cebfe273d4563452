"""``trackside agent``: passes its arguments to the agent's own command line."""

from __future__ import annotations

import click

from trackside.agent.__main__ import main


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def agent(arguments: tuple[str, ...]) -> None:
    """Collect a node's metrics and logs and send them to a server (docs/agent.md).

    \b
    trackside agent check                        which sources work on this node, and why others do not
    trackside agent --remote-write URL --loki URL
    """
    raise SystemExit(main(arguments, "trackside agent"))
