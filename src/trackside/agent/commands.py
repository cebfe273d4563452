"""What the agent's commands do."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from trackside.agent.check import check as look_at
from trackside.agent.check import read_once
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

CONTROLLER = "controller"
ONCE_S = 30.0
"""How long a single reading may take to be sent."""


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


def config(path: str | None, flags: Mapping[str, Given]) -> int:
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


def check(path: str | None, flags: Mapping[str, Given], as_json: bool) -> int:
    """Say what works on this node and what does not."""
    found = _loaded(path, flags)
    report = look_at(found, owners_of(found))
    print(report.json() if as_json else report.text())
    return 0 if report.ok else 1


class Shown:
    """Readings of once, to be printed."""

    def __init__(self, identity: Identity) -> None:
        self.board, self.identity, self.lines = Board(identity), identity, list[LogLine]()

    def take(self, source: str, reading: Reading) -> bool:
        """Keep it."""
        self.board.take(source, reading)
        self.lines += reading.lines
        return False

    def forget(self, source: str) -> None:
        """It stays: all is of one moment."""

    def newest(self) -> Mapping[str, Sequence[Sample]]:
        """See :meth:`Board.newest`."""
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
