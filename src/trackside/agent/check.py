"""``trackside agent check``: what works on this node, what does not and why, and what would change that."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trackside.agent.config import Config
from trackside.agent.out.identity import Identity
from trackside.agent.out.loki_push import LokiPush
from trackside.agent.out.receiver import ReceiverOptions
from trackside.agent.out.remote_write import RemoteWrite
from trackside.agent.out.shipping import IMPOSSIBLE, Wire
from trackside.agent.out.spool import InUse, Spool
from trackside.agent.owners import Owners
from trackside.agent.runner import OPEN_S, Outlet, Running
from trackside.agent.source import Reading
from trackside.agent.user import capabilities_in_words
from trackside.http.client import HttpClient
from trackside.http.unavailable import CHECK_IDENTITY, SourceUnavailable

SLURM_COMMANDS = ("scontrol", "squeue", "sinfo", "sdiag")
SLURM_FILES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")
LIBRARIES = (("nvidia-ml-py", "pynvml"), ("hyperscan", "hyperscan"), ("cramjam", "cramjam"))
"""Packages that some part uses, and what they are imported as."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at. ``state``: works, partly, off, unavailable, fails, hangs. ``asked``: somebody wants
    it, so that its not working is a fault."""

    id: str
    state: str
    text: str = ""
    remedy: str = ""
    asked: bool = False

    @property
    def bad(self) -> bool:
        """Whether it is a fault."""
        return self.state in ("fails", "hangs") or (self.asked and self.state == "unavailable")


@dataclass(frozen=True, slots=True)
class Report:
    """All that was looked at."""

    node: str
    sources: list[Line] = field(default_factory=list)
    outputs: list[Line] = field(default_factory=list)
    surroundings: list[Line] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all that was asked for works."""
        return not any(line.bad for line in (*self.sources, *self.outputs, *self.surroundings))

    def text(self) -> str:
        """For people: a line each."""
        parts = [f"node {self.node}"]
        for title, lines in (("sources", self.sources), ("outputs", self.outputs), ("surroundings", self.surroundings)):
            parts += ["", title]
            width = max((len(line.id) for line in lines), default=0)
            for line in lines:
                remedy = f" ({line.remedy})" if line.remedy else ""
                parts.append(f"  {line.id:{width}}  {line.state:11}  {line.text}{remedy}".rstrip())
        partly = ", some of it in part" if any(line.state == "partly" for line in self.sources) else ""
        parts += ["", f"all that is asked for works{partly}" if self.ok else "not all that is asked for works"]
        return "\n".join(parts)

    def json(self) -> str:
        """For programs."""
        return json.dumps({**asdict(self), "ok": self.ok}, indent=2)


class _Counted(Outlet):
    """How much each source gave. It is looked at by itself: none stands back for another."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int]] = {}

    def take(self, source: str, reading: Reading) -> bool:
        self.counts[source] = len(reading.samples), len(reading.lines)
        return False


def check(config: Config, owners: Owners) -> Report:
    """Look at everything once."""
    return Report(config.node.name, _sources(config, owners), list(_outputs(config)), _surroundings())


def read_once(running: list[Running]) -> None:
    """Have each source read once, or fail to."""
    for each in running:
        each.start()
    until = time.monotonic() + max((max(OPEN_S, each.collection.timeout_s) + 1 for each in running), default=0.0)
    pause = threading.Event()
    while any(each.health.state == "starting" for each in running) and time.monotonic() < until:
        pause.wait(0.02)
        for each in running:
            each.watch()
    for each in running:
        each.stop()
    until = time.monotonic() + 2.0
    for each in running:
        each.join(until - time.monotonic())


def _sources(config: Config, owners: Owners) -> list[Line]:
    counted = _Counted()
    said: list[str] = []
    running = [Running(each, config.node, owners, counted, said.append) for each in config.collections if each.on]
    read_once(running)
    found: dict[str, Line] = {}
    for each in running:
        notes = [text.removeprefix(f"{each.id}: ") for text in said if text.startswith(f"{each.id}: ")]
        found[each.id] = _source(each, *counted.counts.get(each.id, (0, 0)), notes)
    for other in config.collections:
        if not other.on:
            source = other.source
            needs = f"; it needs {source.needs}" if source.needs else ""
            found[source.id] = Line(source.id, "off", f"{source.title} ({other.origin}{needs})")
    return [found[id_] for id_ in sorted(found)]


def _source(running: Running, samples: int, lines: int, notes: Sequence[str]) -> Line:
    """How one did; ``notes``: what it said of it."""
    health, collection = running.health, running.collection
    asked, needs = collection.origin != "default", collection.source.needs
    if health.state == "works":
        got = f"{samples:,} samples, {lines:,} lines in {health.seconds:.3f} s"
        return Line(running.id, "partly" if notes else "works", "; ".join((got, *notes)), "", asked)
    remedy = health.remedy or (f"it needs {needs}" if needs and health.state == "unavailable" else "")
    return Line(running.id, health.state, health.reason, remedy, asked)


def _outputs(config: Config) -> list[Line]:
    identity = Identity(config.node.name)
    found = [_listening(config)]
    if config.remote_write is not None:
        found.append(_receiver(RemoteWrite(identity), config.remote_write.receiver))
    if config.loki is not None:
        found.append(_receiver(LokiPush(identity, config.loki.tenant), config.loki.receiver))
    if config.remote_write is None and config.loki is None:
        found.append(Line("send", "off", "no [send.remote_write] and no [send.loki]"))
    else:
        found.append(_spool(config))
    return found


def _listening(config: Config) -> Line:
    if not config.agent.listen:
        return Line("/metrics", "off", "agent.listen is empty")
    host, port = config.agent.address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if _is_agent(host, port):
            return Line("/metrics", "works", f"an agent serves it at {config.agent.listen}")
        return Line("/metrics", "unavailable", f"{config.agent.listen}: {error.strerror}", "set agent.listen", True)
    return Line("/metrics", "works", f"can be served at {config.agent.listen}")


def _is_agent(host: str, port: int) -> bool:
    """Whether it is an agent that listens there."""
    connection = http.client.HTTPConnection(host, port, timeout=2.0)
    try:
        connection.request("GET", "/-/healthy")
        return "trackside-agent" in (connection.getresponse().getheader("Server") or "")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _receiver(wire: Wire, options: ReceiverOptions) -> Line:
    """Whether a receiver takes an empty body."""
    try:
        client = HttpClient(options.at(wire.path))
    except ValueError as error:
        return Line(wire.name, "unavailable", str(error), "", True)
    body, headers = wire.body([])
    try:
        answer = client.request("POST", "", body=body, headers=headers)
    except SourceUnavailable as error:
        if error.status in IMPOSSIBLE:  # some won't take nothing
            return Line(wire.name, "works", f"{client.name} answers {error.status}", "", True)
        if not error.status:
            return Line(wire.name, "unavailable", str(error), "", True)
        words = f": {error.words}" if error.words else ""
        remedy = CHECK_IDENTITY if error.kind == "unauthorized" else ""
        return Line(wire.name, "unavailable", f"{client.name} answers {error.status}{words}", remedy, True)
    finally:
        client.close()
    return Line(wire.name, "works", f"{client.name} answers {answer.status}", "", True)


def _spool(config: Config) -> Line:
    folder = config.spool_folder
    said: list[str] = []
    with suppress(InUse):
        Spool(folder / "check", config.spool, said.append).close()
    if said:
        remedy = "give a folder that it may write: spool.path or agent.state"
        return Line("spool", "unavailable", said[0], remedy, True)
    free = shutil.disk_usage(folder).free
    room = f"{free / 2**30:.1f} GiB free, {config.spool.most_bytes / 2**30:.2f} GiB at most for each receiver"
    shutil.rmtree(folder / "check", ignore_errors=True)
    return Line("spool", "works", f"{folder}: {room}", "", True)


def _surroundings() -> list[Line]:
    found = [_slurm()]
    groups = " ".join(map(str, sorted(os.getgroups())))
    found.append(Line("privileges", "works", f"uid {os.geteuid()}, groups {groups}; {capabilities_in_words()}"))
    for package, module in LIBRARIES:
        if importlib.util.find_spec(module) is not None:
            found.append(Line(package, "works", "installed"))
        else:
            found.append(Line(package, "unavailable", "not installed", "pip install 'trackside[agent]'"))
    return found


def _slurm() -> Line:
    """Whether Slurm's commands are there."""
    commands = [name for name in SLURM_COMMANDS if shutil.which(name)]
    file = os.environ.get("SLURM_CONF") or next((each for each in SLURM_FILES if Path(each).is_file()), "")
    if not commands:
        return Line("slurm", "unavailable", f"no commands in the path; {file or 'no slurm.conf'}")
    return Line("slurm", "works", ", ".join([*commands, *filter(None, [file])]))
