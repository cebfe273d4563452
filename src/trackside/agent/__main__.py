"""``python -m trackside.agent``: the agent's own command line, of the standard library alone, and its commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from trackside.agent.check import check, read_once
from trackside.agent.config import Config, load
from trackside.agent.daemon import Agent, Outlets
from trackside.agent.jobs.processes import ProcessMap
from trackside.agent.out.exposition import Board, line_text
from trackside.agent.out.identity import Identity
from trackside.agent.owners import Owners
from trackside.agent.runner import Outlet, Running
from trackside.agent.source import LogLine, Reading, Sample, sources
from trackside.agent.state import state_folder
from trackside.settings import ConfigError, Given, nearest
from trackside.settings.shown import as_toml

EXIT_USAGE = 2
CONTROLLER = "controller"
ONCE_S = 30.0
"""How long a single reading may take to be sent."""


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
    each = kinds.add_parser("run", parents=[flags], help="collect and send until it is told to end (the default)")
    each.add_argument("--once", action="store_true", help="one reading of each source, then end")
    each.add_argument("--print", action="store_true", help="show what is read, send nothing")
    each.set_defaults(command=lambda given: run(given.config, settings(given), given.once, given.print))
    each = kinds.add_parser("check", parents=[flags], help="say what works on this node, what does not, and why")
    each.add_argument("--json", action="store_true", help="for programs")
    each.set_defaults(command=lambda given: look(given.config, settings(given), given.json))
    each = kinds.add_parser("config", parents=[flags], help="show the settings in force and where each comes from")
    each.set_defaults(command=lambda given: show_settings(given.config, settings(given)))
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
    for id_, (on, flag) in switches(given.only, given.without, given.controller, given.trace).items():
        put(f"collect.{id_}.on", on, flag)
    return found


def switches(
    only: Sequence[str] | None, without: Sequence[str] | None, controller: bool, trace: str | None
) -> dict[str, tuple[bool, str]]:
    """Source -> whether a flag switches it on or off, and which flag. Raises ConfigError for one that is not known."""
    found: dict[str, tuple[bool, str]] = {}
    if only:
        found |= dict.fromkeys(sources(), (False, "--only"))
    if controller:
        found[CONTROLLER] = True, "--controller"
    for flag, ids, on in (
        ("--trace", _split([trace] if trace else []), True),
        ("--only", _split(only), True),
        ("--without", _split(without), False),
    ):
        found |= dict.fromkeys(ids, (on, flag))
    for id_, (_, flag) in found.items():
        if id_ not in sources():
            raise ConfigError(f"{flag}: there is no source {id_!r}{nearest(id_, sources())}")
    return found


def _split(ids: Sequence[str] | None) -> list[str]:
    return [part for each in ids or () for part in each.split(",") if part]


def owners_of(config: Config) -> Owners:
    """Whose processes and GPUs are, as of now; the source ``processes`` renews it."""
    made = ProcessMap(config.node)
    with suppress(OSError):  # that source says so
        made.renew()
    return made


def show_settings(path: str | None, flags: Mapping[str, Given]) -> int:
    """Show the settings in force."""
    print(as_toml(_loaded(path, flags).settings))
    return 0


def _loaded(path: str | None, flags: Mapping[str, Given]) -> Config:
    found = load(path, flags)
    for warning in found.warnings:
        say(warning)
    return found


def say(text: str) -> None:
    """A line of the agent's own log."""
    sys.stderr.write(f"trackside agent: {text}\n")  # at once: several threads have something to say
    sys.stderr.flush()


def run(path: str | None, flags: Mapping[str, Given], once: bool, shown: bool) -> int:
    """Collect and send, until it is told to end or, with ``once``, a reading of each source long."""
    found = _loaded(path, flags)
    if shown:
        return _shown(found)
    if once:
        return _once(found)
    agent = Agent(found, owners_of(found), lambda: load(path, flags), say)
    where = [f"/metrics at {found.agent.listen}"] if found.agent.listen else []
    where += [f"{each.protocol.name} to {each.url}" for each in agent.outlets.shipping]
    on = sum(each.on for each in found.collections)
    say(f"node {found.node.name}, {on} sources; {', '.join(where) or 'nowhere to send to'}")
    agent.run()
    return 0


def look(path: str | None, flags: Mapping[str, Given], as_json: bool) -> int:
    """Say what works on this node and what does not."""
    found = _loaded(path, flags)
    report = check(found, owners_of(found))
    print(report.json() if as_json else report.text())
    return 0 if report.ok else 1


class Shown(Outlet):
    """Readings of once, to be printed: what a source gave stays, as all is of one moment."""

    def __init__(self, identity: Identity) -> None:
        self.board, self.identity, self.lines = Board(identity), identity, list[LogLine]()

    def take(self, source: str, reading: Reading) -> bool:
        self.board.take(source, reading)
        self.lines += reading.lines
        return False

    def newest(self) -> Mapping[str, Sequence[Sample]]:
        return self.board.newest()


def _read(found: Config, outlet: Outlet) -> int:
    """One reading of each source that is on; 1 where not all could be read."""
    owners, state = owners_of(found), state_folder(found.state)
    running = [Running(each, found.node, owners, outlet, say, state=state) for each in found.collections if each.on]
    read_once(running)
    return 0 if all(each.health.state == "works" for each in running) else 1


def _shown(found: Config) -> int:
    shown = Shown(Identity(found.node.name, found.agent.job, found.agent.labels))
    status = _read(found, shown)
    sys.stdout.write(shown.board.text())
    for line in shown.lines:
        print(line_text(line, shown.identity))
    return status


def _once(found: Config) -> int:
    outlets = Outlets(found, say)
    try:
        for each in outlets.shipping:
            each.start()
        return _read(found, outlets)
    finally:
        outlets.close(ONCE_S)


if __name__ == "__main__":
    raise SystemExit(main())
