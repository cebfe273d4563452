"""``trackside agent check``: what works on this node, what does not and why, and how to change that."""

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

from trackside.agent.config import Config
from trackside.agent.delivery.identity import Identity
from trackside.agent.delivery.loki_push import LokiPush
from trackside.agent.delivery.receiver import ReceiverOptions
from trackside.agent.delivery.remote_write import RemoteWrite
from trackside.agent.delivery.shipping import REFUSED_STATUSES, Encoder
from trackside.agent.delivery.spool import Spool, SpoolBusy
from trackside.agent.owners import Owners
from trackside.agent.runner import MIN_OPEN_TIMEOUT_S, Outlet, SourceThread
from trackside.agent.slurm.configuration import find_conf
from trackside.agent.source import Reading
from trackside.agent.user import capabilities, capabilities_in_words
from trackside.extras import install_command
from trackside.http.client import HttpClient
from trackside.http.unavailable import CHECK_IDENTITY, SourceUnavailable

SLURM_COMMANDS = ("scontrol", "squeue", "sinfo", "sdiag")
LIBRARIES = (("nvidia-ml-py", "pynvml"), ("hyperscan", "hyperscan"), ("cramjam", "cramjam"))
"""Optional packages, and the modules they are imported as."""
READS_GPUS = {"gpu", "dcgm_exporter"}
"""The sources of GPU metrics."""


@dataclass(frozen=True, slots=True)
class CheckItem:
    """One checked item. ``state``: works, partly, off, unavailable, fails, hangs. ``is_requested``: the settings
    request it, so it is a problem if it does not work."""

    id: str
    state: str
    text: str = ""
    remedy: str = ""
    is_requested: bool = False

    @property
    def is_problem(self) -> bool:
        """Whether it fails or hangs, or is unavailable although the settings request it."""
        return self.state in ("fails", "hangs") or (self.is_requested and self.state == "unavailable")


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All checked items."""

    node: str
    sources: list[CheckItem] = field(default_factory=list)
    outputs: list[CheckItem] = field(default_factory=list)
    environment: list[CheckItem] = field(default_factory=list)
    """The node's environment: Slurm, privileges, optional packages."""

    @property
    def ok(self) -> bool:
        """Whether everything that is requested works."""
        return not any(line.is_problem for line in (*self.sources, *self.outputs, *self.environment))

    def text(self) -> str:
        """The report for people, one line per item."""
        parts = [f"node {self.node}"]
        for title, lines in (("sources", self.sources), ("outputs", self.outputs), ("environment", self.environment)):
            parts += ["", title]
            width = max((len(line.id) for line in lines), default=0)
            for line in lines:
                remedy = f" ({line.remedy})" if line.remedy else ""
                parts.append(f"  {line.id:{width}}  {line.state:11}  {line.text}{remedy}".rstrip())
        return "\n".join([*parts, "", self._conclusion()])

    def _conclusion(self) -> str:
        """The last line: whether it works, and which sources do not although they are on by default."""
        if problems := [line.id for line in (*self.sources, *self.outputs, *self.environment) if line.is_problem]:
            return f"requested, but not working: {', '.join(problems)}"
        partly = ", some sources in part" if any(line.state == "partly" for line in self.sources) else ""
        unavailable = [line.id for line in self.sources if line.state == "unavailable"]
        rest = f"; not available on this node, and not requested: {', '.join(unavailable)}" if unavailable else ""
        states = {line.id: line.state for line in self.sources}
        blind = not any(states.get(name) in ("works", "partly") for name in READS_GPUS)
        no_gpus = "; no source reads GPUs on this node" if blind and READS_GPUS & set(unavailable) else ""
        return f"all requested sources and outputs work{partly}{rest}{no_gpus}"

    def json(self) -> str:
        """The report for programs."""
        report = asdict(self)
        report["surroundings"] = report.pop("environment")  # the published name, as "asked" below
        for line in (*report["sources"], *report["outputs"], *report["surroundings"]):
            line["asked"] = line.pop("is_requested")
        return json.dumps({**report, "ok": self.ok}, indent=2)


class _ReadingCounts(Outlet):
    """Samples and lines of each source. Each source is checked alone: none leaves its samples to another."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int]] = {}

    def accept(self, source: str, reading: Reading) -> bool:
        self.counts[source] = len(reading.samples), len(reading.lines)
        return False


def check(config: Config, owners: Owners) -> CheckReport:
    """Check everything once."""
    return CheckReport(
        config.node.name, _source_items(config, owners), list(_output_items(config)), _environment_items()
    )


def read_once(running: list[SourceThread]) -> None:
    """Start each source, wait until it was read once or failed, and stop it."""
    for source in running:
        source.start()
    deadline = time.monotonic() + max(
        (max(MIN_OPEN_TIMEOUT_S, source.settings.timeout_s) + 1 for source in running), default=0.0
    )
    pause = threading.Event()
    while any(source.health.state == "starting" for source in running) and time.monotonic() < deadline:
        pause.wait(0.02)
        for source in running:
            source.watch()
    for source in running:
        source.stop()
    deadline = time.monotonic() + 2.0
    for source in running:
        source.join(deadline - time.monotonic())


def _source_items(config: Config, owners: Owners) -> list[CheckItem]:
    counts = _ReadingCounts()
    messages: list[str] = []
    running_sources = [
        SourceThread(settings, config.node, owners, counts, messages.append)
        for settings in config.sources
        if settings.on
    ]
    read_once(running_sources)
    lines: dict[str, CheckItem] = {}
    for running_source in running_sources:
        notes = [
            text.removeprefix(f"{running_source.id}: ")
            for text in messages
            if text.startswith(f"{running_source.id}: ")
        ]
        lines[running_source.id] = _source_item(running_source, *counts.counts.get(running_source.id, (0, 0)), notes)
    for settings in config.sources:
        if not settings.on:
            source = settings.source
            needs = f"; needs {source.needs}" if source.needs else ""
            origin = {"default": "off by default", "--only": "not in --only"}.get(settings.origin, settings.origin)
            lines[source.id] = CheckItem(source.id, "off", f"{source.title}; {origin}{needs}")
    return [lines[id_] for id_ in sorted(lines)]


def _source_item(running: SourceThread, samples: int, lines: int, notes: Sequence[str]) -> CheckItem:
    """The state of one source; ``notes``: its log messages and warnings."""
    health, settings = running.health, running.settings
    is_requested, needs = settings.origin != "default", settings.source.needs
    if health.state == "works":
        counts = f"samples: {samples:,}, lines: {lines:,}, in {health.seconds:.3f} s"
        if missing := [name for name in settings.source.capabilities if name not in capabilities()]:
            whose = f"only of processes and files of uid {os.geteuid()}; those of other users need"
            notes = [f"{whose} {' and '.join(missing)}", *notes]
        return CheckItem(running.id, "partly" if notes else "works", "; ".join((counts, *notes)), "", is_requested)
    remedy = health.remedy or (f"needs {needs}" if needs and health.state == "unavailable" else "")
    return CheckItem(running.id, health.state, health.reason, remedy, is_requested)


def _output_items(config: Config) -> list[CheckItem]:
    identity = Identity(config.node.name)
    lines = [_metrics_item(config)]
    if config.remote_write is not None:
        lines.append(_receiver_item(RemoteWrite(identity), config.remote_write.receiver))
    if config.loki is not None:
        lines.append(_receiver_item(LokiPush(identity, config.loki.tenant), config.loki.receiver))
    if config.remote_write is None and config.loki is None:
        lines.append(CheckItem("send", "off", "no [send.remote_write] or [send.loki] in the settings"))
    else:
        lines.append(_spool_item(config))
    return lines


def _metrics_item(config: Config) -> CheckItem:
    if not config.agent.listen:
        return CheckItem("/metrics", "off", "agent.listen is empty")
    host, port = config.agent.address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if _is_agent(host, port):
            return CheckItem("/metrics", "works", f"already served by an agent at {config.agent.listen}")
        return CheckItem(
            "/metrics", "unavailable", f"{config.agent.listen}: {error.strerror}", "change agent.listen", True
        )
    return CheckItem("/metrics", "works", f"can be served at {config.agent.listen}")


def _is_agent(host: str, port: int) -> bool:
    """Whether the process that listens there is an agent."""
    connection = http.client.HTTPConnection(host, port, timeout=2.0)
    try:
        connection.request("GET", "/-/healthy")
        return "trackside-agent" in (connection.getresponse().getheader("Server") or "")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _receiver_item(protocol: Encoder, options: ReceiverOptions) -> CheckItem:
    """Whether a receiver accepts an empty body."""
    try:
        client = HttpClient(options.with_path(protocol.path))
    except ValueError as error:
        return CheckItem(protocol.name, "unavailable", str(error), "", True)
    body, headers = protocol.body([])
    try:
        answer = client.request("POST", "", body=body, headers=headers)
    except SourceUnavailable as error:
        if error.status in REFUSED_STATUSES:  # some refuse an empty body
            return CheckItem(protocol.name, "works", f"{client.name} answers {error.status}", "", True)
        if not error.status:
            return CheckItem(protocol.name, "unavailable", str(error), "", True)
        message = f": {error.message}" if error.message else ""
        remedy = CHECK_IDENTITY if error.kind == "unauthorized" else ""
        return CheckItem(protocol.name, "unavailable", f"{client.name} answers {error.status}{message}", remedy, True)
    finally:
        client.close()
    return CheckItem(protocol.name, "works", f"{client.name} answers {answer.status}", "", True)


def _spool_item(config: Config) -> CheckItem:
    folder = config.spool_folder
    messages: list[str] = []
    with suppress(SpoolBusy):
        Spool(folder / "check", config.spool, messages.append).close()
    if messages:
        remedy = "set spool.path or agent.state to a folder that the agent may write"
        return CheckItem("spool", "unavailable", messages[0], remedy, True)
    free = shutil.disk_usage(folder).free
    space = f"{free / 2**30:.1f} GiB free, {config.spool.max_disk_bytes / 2**30:.2f} GiB at most for each receiver"
    shutil.rmtree(folder / "check", ignore_errors=True)
    return CheckItem("spool", "works", f"{folder}: {space}", "", True)


def _environment_items() -> list[CheckItem]:
    lines = [_slurm_item()]
    groups = " ".join(map(str, sorted(os.getgroups()))) or "none"
    lines.append(CheckItem("privileges", "works", f"uid {os.geteuid()}, groups {groups}; {capabilities_in_words()}"))
    for package, module in LIBRARIES:
        if importlib.util.find_spec(module) is not None:
            lines.append(CheckItem(package, "works", "installed"))
        else:
            lines.append(CheckItem(package, "unavailable", "not installed", install_command("agent")))
    return lines


def _slurm_item() -> CheckItem:
    """Whether Slurm's commands are on the path."""
    commands = [name for name in SLURM_COMMANDS if shutil.which(name)]
    conf = find_conf()
    if not commands:
        return CheckItem("slurm", "unavailable", f"no Slurm commands on the path; {conf or 'no readable slurm.conf'}")
    if conf is None:
        return CheckItem("slurm", "partly", f"{', '.join(commands)} are installed; no readable slurm.conf")
    return CheckItem("slurm", "works", f"{', '.join(commands)} are installed; {conf}")
