"""``trackside agent``: the agent's own command line, which needs nothing of this one's."""

from __future__ import annotations

import click

from trackside.agent.__main__ import main


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def agent(arguments: tuple[str, ...]) -> None:
    """Collect what a node gives off, and send it on (docs/agent.md).

    \b
    trackside agent check                        what works on this node, and why not
    trackside agent --remote-write URL --loki URL
    """
    raise SystemExit(main(arguments, "trackside agent"))
