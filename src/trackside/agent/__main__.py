"""``python -m trackside.agent``: the agent's own command line, of the standard library alone."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from trackside.agent import commands
from trackside.settings import ConfigError, Given

EXIT_FAILED, EXIT_USAGE = 1, 2


def main(arguments: Sequence[str] | None = None, program: str = "python -m trackside.agent") -> int:
    """Run a command; its exit status."""
    given = parser(program).parse_args(_with_command(sys.argv[1:] if arguments is None else list(arguments)))
    try:
        return int(given.command(given))
    except ConfigError as error:
        print(f"trackside agent: {error}", file=sys.stderr)
        return EXIT_USAGE


def _with_command(arguments: list[str]) -> list[str]:
    """``run`` is what is meant where no command is named."""
    if arguments and arguments[0] in ("run", "check", "config", "-h", "--help"):
        return arguments
    return ["run", *arguments]


def parser(program: str) -> argparse.ArgumentParser:
    """The command line's."""
    flags = argparse.ArgumentParser(add_help=False)
    add = flags.add_argument
    add("--config", metavar="FILE", help="settings; /etc/trackside/agent.toml if there is one")
    add("--node", metavar="NAME", help="the node's name in all that is sent")
    add("--job", metavar="ID", help="whose all is that nothing says otherwise of")
    add("--controller", action="store_true", help="collect what only the Slurm controller's host can tell")
    add("--trace", metavar="WHAT", help="cuda, nccl or both with a comma: trace these libraries' calls by eBPF")
    add("--only", "--source", metavar="ID", nargs="+", action="extend", help="these sources and no others")
    add("--without", metavar="ID", nargs="+", action="extend", help="all but these")
    add("--listen", metavar="HOST:PORT", help="where /metrics is served; '' for nowhere")
    add("--remote-write", metavar="URL", help="send samples there by Prometheus remote write")
    add("--loki", metavar="URL", help="send lines there by Loki's push")
    add("--spool", metavar="DIR", help="where waits what can't be sent yet")

    top = argparse.ArgumentParser(prog=program, description="Collects what a node gives off, and sends it on.")
    kinds = top.add_subparsers(metavar="COMMAND", required=True)
    run = kinds.add_parser("run", parents=[flags], help="collect and send until it is told to end (the default)")
    run.add_argument("--once", action="store_true", help="one reading of each source, then end")
    run.add_argument("--print", action="store_true", help="show what is read, send nothing")
    run.set_defaults(command=lambda given: commands.run(given.config, settings(given), given.once, given.print))
    check = kinds.add_parser("check", parents=[flags], help="say what works on this node, what does not, and why")
    check.add_argument("--json", action="store_true", help="for programs")
    check.set_defaults(command=lambda given: commands.check(given.config, settings(given), given.json))
    config = kinds.add_parser("config", parents=[flags], help="show the settings in force and where each comes from")
    config.set_defaults(command=lambda given: commands.config(given.config, settings(given)))
    return top


def settings(given: argparse.Namespace) -> dict[str, Given]:
    """Flags as the settings that they are. Raises ConfigError."""
    found: dict[str, Given] = {}

    def put(name: str, value: object, flag: str) -> None:
        if value is not None:
            found[name] = Given(value, flag, os.getcwd(), isinstance(value, str))

    put("agent.node", given.node, "--node")
    put("agent.job", given.job, "--job")
    put("agent.listen", given.listen, "--listen")
    put("send.remote_write.url", given.remote_write, "--remote-write")
    put("send.loki.url", given.loki, "--loki")
    put("spool.path", given.spool, "--spool")
    for id_, (on, flag) in commands.switches(given.only, given.without, given.controller, given.trace).items():
        put(f"collect.{id_}.on", on, flag)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
