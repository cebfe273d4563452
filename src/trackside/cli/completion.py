"""``trackside completion``: the completion of commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from trackside.cli.exit_codes import fail

VARIABLE = "_TRACKSIDE_COMPLETE"
"""The variable by which the script asks ``trackside`` for completions, as click reads it."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in a SHELL.

    \b
    bash   eval "$(trackside completion bash)"          in ~/.bashrc
    zsh    eval "$(trackside completion zsh)"           in ~/.zshrc
    fish   trackside completion fish | source           in ~/.config/fish/config.fish
    """
    script_class = get_completion_class(shell)
    if script_class is None:
        fail(f"no completion for {shell}")
    command = click.get_current_context().find_root().command
    click.echo(script_class(command, {}, "trackside", VARIABLE).source())
