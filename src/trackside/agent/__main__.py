"""``python -m trackside.agent``: the agent's command line (standard library only) and its commands."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from trackside.agent.check import check, read_once
from trackside.agent.config import Config, load
from trackside.agent.daemon import Agent, Outlets
from trackside.agent.delivery.exposition import LatestSamples, line_text
from trackside.agent.delivery.identity import Identity
from trackside.agent.jobs.processes import ProcessMap
from trackside.agent.owners import Owners
from trackside.agent.runner import Outlet, SourceThread
from trackside.agent.source import LogLine, Reading, Sample, sources
from trackside.agent.state import state_folder
from trackside.settings import ConfigError, SettingValue, nearest
from trackside.settings.shown import as_toml

EXIT_USAGE = 2
RUN_HELP = "Collect and send until stopped (default command)."
CHECK_HELP = "Show which sources work on this node, which do not, and why."
CONFIG_HELP = "Show the settings in effect and the source of each."
COMMANDS = ("run", "check", "config")
CONTROLLER = "controller"
_UNKNOWN_COMMAND = re.compile(r"argument COMMAND: invalid choice: '([^']*)'")
MAX_SEND_S = 30.0
"""Time to send a single reading before the process ends."""


def main(arguments: Sequence[str] | None = None, program: str = "python -m trackside.agent") -> int:
    """Run a command and return its exit status."""
    namespace = parser(program).parse_args(
        _with_default_command(sys.argv[1:] if arguments is None else list(arguments))
    )
    try:
        return int(namespace.command(namespace))
    except ConfigError as error:
        print(f"trackside agent: {error}", file=sys.stderr)
        return EXIT_USAGE


def _with_default_command(arguments: list[str]) -> list[str]:
    """Prepend ``run`` if no command is named."""
    has_no_command = not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help"))
    return ["run", *arguments] if has_no_command else arguments


class _HelpFormatter(argparse.HelpFormatter):
    """Help in the form of the other commands, which click prints."""

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: ")

    def start_section(self, heading: str | None) -> None:
        super().start_section({"options": "Options", "positional arguments": "Commands"}.get(heading or "", heading))


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _HelpFormatter, "add_help": False, **options})
        self.add_argument("-h", "--help", action="help", help="Show this message and exit.")

    def error(self, message: str) -> NoReturn:
        """Report a usage error in one line, as all commands do."""
        text = message.replace("unrecognized arguments: ", "no such argument: ")
        if (command := _UNKNOWN_COMMAND.match(text)) is not None:
            text = f"no command '{command[1]}'{nearest(command[1], COMMANDS)}"
        hint = "" if text.endswith("?") else f"; '{self.prog} --help' shows how to use it"
        self.exit(EXIT_USAGE, f"trackside agent: {text}{hint}\n")


def parser(program: str) -> argparse.ArgumentParser:
    """The parser of the command line."""
    flags: Any = argparse.ArgumentParser(add_help=False)
    add = flags.add_argument
    add("--config", metavar="FILE", help="Settings file (default /etc/trackside/agent.toml, if it exists).")
    add(
        "--node",
        metavar="NAME",
        help="Node name to attach to all samples and lines (default: Slurm's node name, else the host name).",
    )
    add("--job", metavar="ID", help="Job id for samples and lines without one.")
    add("--controller", action="store_true", help="Also collect from the Slurm controller (run on its host).")
    add("--trace", metavar="LIBRARIES", help="Trace calls of these libraries by eBPF: cuda, nccl or cuda,nccl.")
    add("--only", metavar="ID", nargs="+", action="extend", help="Run only these sources ('agent check' lists them).")
    add("--without", metavar="ID", nargs="+", action="extend", help="Switch these sources off.")
    add("--listen", metavar="HOST:PORT", help="Address of /metrics (default 127.0.0.1:9481); '' turns it off.")
    add("--remote-write", metavar="URL", help="Send samples to this URL by Prometheus remote write.")
    add("--loki", metavar="URL", help="Send log lines to this URL by the Loki push API.")
    add("--spool", metavar="DIR", help="Folder for data that waits to be sent (default: spool in the state folder).")

    top = _Parser(
        prog=program,
        usage="%(prog)s [OPTIONS] [COMMAND]",
        parents=[flags],
        description="Collect a node's metrics and logs and send them to a server (docs/agent.md). Without a command:"
        " 'run', with these options.",
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def new_command(name: str, text: str) -> argparse.ArgumentParser:
        usage = f"{program} {name} [OPTIONS]"
        return commands.add_parser(name, parents=[flags], help=text, description=text, usage=usage)

    command = new_command("run", RUN_HELP)
    command.add_argument(
        "--once",
        action="store_true",
        help="Read each source once, send the readings and exit; status 1 if one failed, or is "
        "not available although the settings request it.",
    )
    command.add_argument(
        "--print", action="store_true", help="Read each source once and print the readings; send nothing."
    )
    command.set_defaults(
        command=lambda arguments: run(arguments.config, settings(arguments), arguments.once, arguments.print)
    )
    command = new_command("check", CHECK_HELP)
    command.add_argument("--json", action="store_true", help="Print JSON.")
    command.set_defaults(command=lambda arguments: print_check(arguments.config, settings(arguments), arguments.json))
    command = new_command("config", CONFIG_HELP)
    command.set_defaults(command=lambda arguments: show_settings(arguments.config, settings(arguments)))
    return top


def settings(arguments: argparse.Namespace) -> dict[str, SettingValue]:
    """The settings that the flags stand for. Raises ConfigError."""
    settings_by_name: dict[str, SettingValue] = {}

    def put(name: str, value: object, flag: str) -> None:
        if value is not None:
            settings_by_name[name] = SettingValue(value, flag, os.getcwd(), isinstance(value, str))

    put("agent.node", arguments.node, "--node")
    put("agent.job", arguments.job, "--job")
    put("agent.listen", arguments.listen, "--listen")
    put("send.remote_write.url", arguments.remote_write, "--remote-write")
    put("send.loki.url", arguments.loki, "--loki")
    put("spool.path", arguments.spool, "--spool")
    for id_, (on, flag) in switches(arguments.only, arguments.without, arguments.controller, arguments.trace).items():
        put(f"collect.{id_}.on", on, flag)
    return settings_by_name


TRACEABLE_LIBRARIES = ("cuda", "nccl")
"""The libraries that ``--trace`` accepts; each is a source too."""


def switches(
    only: Sequence[str] | None, without: Sequence[str] | None, controller: bool, trace: str | None
) -> dict[str, tuple[bool, str]]:
    """Source -> whether a flag switches it on or off, and which flag. Raises ConfigError for an unknown source."""
    states: dict[str, tuple[bool, str]] = {}
    if only:
        states |= dict.fromkeys(sources(), (False, "--only"))
    if controller:
        states[CONTROLLER] = True, "--controller"
    for flag, ids, on in (
        ("--trace", _split([trace] if trace else []), True),
        ("--only", _split(only), True),
        ("--without", _split(without), False),
    ):
        states |= dict.fromkeys(ids, (on, flag))
    for id_, (_, flag) in states.items():
        if flag == "--trace" and id_ not in TRACEABLE_LIBRARIES:
            raise ConfigError(f"--trace: unknown library {id_!r}; known: {', '.join(TRACEABLE_LIBRARIES)}")
        if id_ not in sources():
            raise ConfigError(f"{flag}: unknown source {id_!r}{nearest(id_, sources())}")
    return states


def _split(ids: Sequence[str] | None) -> list[str]:
    return [part for argument in ids or () for part in argument.split(",") if part]


def owners_of(config: Config) -> Owners:
    """The owners of processes and GPUs, as of now; the source ``processes`` renews them."""
    process_map = ProcessMap(config.node)
    with suppress(OSError):  # the source "processes" reports it
        process_map.renew()
    return process_map


def show_settings(path: str | None, flags: Mapping[str, SettingValue]) -> int:
    """Show the settings in effect."""
    print(as_toml(_load_config(path, flags).settings))
    return 0


def _load_config(path: str | None, flags: Mapping[str, SettingValue]) -> Config:
    config = load(path, flags)
    for warning in config.warnings:
        log_line(warning)
    return config


def log_line(text: str) -> None:
    """Write a line to the agent's own log."""
    sys.stderr.write(f"trackside agent: {text}\n")  # one write per line because several threads log
    sys.stderr.flush()


def run(path: str | None, flags: Mapping[str, SettingValue], once: bool, print_only: bool) -> int:
    """Collect and send until stopped; with ``once`` or ``print_only``, one reading of each source."""
    config = _load_config(path, flags)
    if print_only:
        return _print_once(config)
    if once:
        return _send_once(config)
    agent = Agent(config, owners_of(config), lambda: load(path, flags), log_line)
    destinations = [f"/metrics at {config.agent.listen}"] if config.agent.listen else []
    destinations += [f"{sender.protocol.name} to {sender.url}" for sender in agent.outlets.senders]
    sources_on = sum(source_settings.on for source_settings in config.sources)
    noun = "source" if sources_on == 1 else "sources"
    log_line(
        f"node {config.node.name}, {sources_on} {noun}; {', '.join(destinations) or 'no destination: nothing is sent'}"
    )
    agent.run()
    return 0


def print_check(path: str | None, flags: Mapping[str, SettingValue], as_json: bool) -> int:
    """Print which sources work on this node, and which do not."""
    config = _load_config(path, flags)
    report = check(config, owners_of(config))
    print(report.json() if as_json else report.text())
    return 0 if report.ok else 1


class PrintedReadings(Outlet):
    """Collects one reading of each source to be printed; samples are kept until they are printed."""

    def __init__(self, identity: Identity) -> None:
        self.latest, self.identity, self.lines = LatestSamples(identity), identity, list[LogLine]()

    def accept(self, source: str, reading: Reading) -> bool:
        self.latest.replace(source, reading)
        self.lines += reading.lines
        return False

    def newest(self) -> Mapping[str, Sequence[Sample]]:
        return self.latest.newest()


def _read(config: Config, outlet: Outlet) -> int:
    """Read each enabled source once; 1 if any failed, or is not available although the settings request it."""
    owners, state = owners_of(config), state_folder(config.state)
    running = [
        SourceThread(source_settings, config.node, owners, outlet, log_line, state=state)
        for source_settings in config.sources
        if source_settings.on
    ]
    read_once(running)
    absent = ("works", "unavailable")  # a node without InfiniBand is no error
    return (
        0
        if all(
            source.health.state in (("works",) if source.settings.origin != "default" else absent) for source in running
        )
        else 1
    )


def _print_once(config: Config) -> int:
    printed = PrintedReadings(Identity(config.node.name, config.agent.job, config.agent.labels))
    status = _read(config, printed)
    sys.stdout.write(printed.latest.text())
    for line in printed.lines:
        print(line_text(line, printed.identity))
    return status


def _send_once(config: Config) -> int:
    outlets = Outlets(config, log_line)
    try:
        for sender in outlets.senders:
            sender.start()
        return _read(config, outlets)
    finally:
        outlets.close(MAX_SEND_S)


if __name__ == "__main__":
    raise SystemExit(main())
