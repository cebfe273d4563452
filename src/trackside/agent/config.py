"""The agent's settings: ``agent.toml``, ``TRACKSIDE_AGENT_...`` variables and flags, as the options of each part."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trackside.agent.node import Node, hostname
from trackside.agent.out.loki_push import LokiOptions
from trackside.agent.out.receiver import FIXED, ReceiverOptions
from trackside.agent.out.remote_write import RemoteWriteOptions
from trackside.agent.out.spool import SpoolOptions
from trackside.agent.source import Source, sources
from trackside.settings import ConfigError, Index, Section, Settings, SettingValue
from trackside.settings.shown import Setting, exposed, in_force

PREFIX = "TRACKSIDE_AGENT_"
FILE = Path("/etc/trackside/agent.toml")
STATE = "/var/lib/trackside-agent"
COLLECT, SEND = "collect.", "send."
OWN = frozenset({"node", "gpu", "gpu_uuid", "rank", "pid", "job", "slurm_job_id", "filename", "stream", "unit"})
"""Labels that tell whose something is."""
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The table ``[agent]``. Raises ValueError for what can't be meant."""

    node: str = ""
    """The node's name in all that is sent; empty: Slurm's, else the host's."""
    job: str = ""
    """Whose all of this is that nothing says otherwise of: for a machine that runs one job and no scheduler."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Added to all samples and lines."""
    state: str = ""
    """A folder that outlives the agent; empty: what systemd gives it, else ``/var/lib/trackside-agent``."""
    proc: str = "/proc"
    sys: str = "/sys"
    dev: str = "/dev"
    """Where the host's are, as in a container that has them mounted elsewhere."""
    listen: str = "127.0.0.1:9481"
    """Where ``/metrics`` is served; empty: nowhere."""

    def __post_init__(self) -> None:
        for name in self.labels:
            if not _NAME.match(name):
                raise ValueError(f"labels: {name!r} can't be the name of a label: letters, digits and _")
            if name in OWN:
                raise ValueError(f"labels: {name!r} is said by the agent itself, of each sample and line")
        if self.listen:
            host, colon, port = self.listen.rpartition(":")
            if not host or not colon or not port.isdecimal() or int(port) > 65535:
                raise ValueError(f"listen: {self.listen!r} is no HOST:PORT; give 127.0.0.1:9481, or [::1]:9481")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of ``/metrics``."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Collection:
    """How one source is run: its table ``[collect.ID]``."""

    source: Source
    on: bool
    interval_s: float
    timeout_s: float
    options: Any
    """An instance of the source's ``options``, or None."""
    origin: str
    """Who switched it on or off: a file's line, a variable, a flag, or ``default``."""


@dataclass(frozen=True, slots=True)
class Config:
    """All that the agent is told. None: not sent there."""

    agent: AgentOptions
    node: Node
    state: Path
    collections: tuple[Collection, ...]
    remote_write: RemoteWriteOptions | None
    loki: LokiOptions | None
    spool: SpoolOptions
    file: str = ""
    """The file that was read; empty: none."""
    settings: tuple[Setting, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def spool_folder(self) -> Path:
        """Where what is not sent yet waits."""
        return Path(self.spool.path) if self.spool.path else self.state / "spool"


def sections() -> list[Section]:
    """Every table of the file. A key is a field of the options that the part itself takes, and declared there alone."""
    found = [Section("agent", (AgentOptions,), prefix="TRACKSIDE_")]
    for source in sources().values():
        fields = [
            ("on", bool, source.on),
            ("interval_s", float, source.interval_s),
            ("timeout_s", float, source.timeout_s),
        ]
        run = dataclasses.make_dataclass("Run", fields, frozen=True)
        parts = (run,) if source.options is None else (run, source.options)
        found.append(Section(COLLECT + source.id, parts, prefix=PREFIX))
    for name, part in (("send.remote_write", RemoteWriteOptions), ("send.loki", LokiOptions)):
        found.append(Section(name, (part, ReceiverOptions), FIXED, inner="receiver", prefix=PREFIX))
    found.append(Section("spool", (SpoolOptions,), prefix=PREFIX))
    return found


def load(
    path: str | os.PathLike[str] | None = None,
    flags: Mapping[str, SettingValue] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """Read the settings: ``flags`` over the environment over the file over the defaults.

    ``path``: the file, which must be there; None: ``$TRACKSIDE_AGENT_CONFIG``, which must too, or
    ``/etc/trackside/agent.toml`` if it is. ``flags``: ``{"agent.node": ...}``. Raises ConfigError.
    """
    file = _file(path or environ.get(f"{PREFIX}CONFIG"))
    settings, warnings = Settings(sections()), list[str]()
    if file is not None:
        settings.read_file(file)
    settings.read_environment({name: value for name, value in environ.items() if name != f"{PREFIX}CONFIG"})
    for name, given in (flags or {}).items():
        section, _, key = name.rpartition(".")
        settings.set(section, key, given)
    if file is not None:
        warnings += exposed(file, settings)

    def built(name: str, make: Any) -> Any:
        index: Index = (name, 0)
        try:
            return make(settings.values(index, environ, warnings))
        except ConfigError:
            raise
        except (ValueError, TypeError) as error:
            raise settings.where(index, str(error)) from None

    def sent(name: str) -> Any:
        return built(name, settings.sections[name].build) if settings.indices(name) else None

    agent = built("agent", lambda values: AgentOptions(**values))
    node = Node(agent.node or hostname(), Path(agent.proc), Path(agent.sys), Path(agent.dev))
    return Config(
        agent=agent,
        node=node,
        state=Path(agent.state or environ.get("STATE_DIRECTORY", "").partition(":")[0] or STATE),
        collections=tuple(
            built(COLLECT + source.id, lambda values, source=source: _collection(source, values, settings))
            for source in sources().values()
        ),
        remote_write=sent("send.remote_write"),
        loki=sent("send.loki"),
        spool=built("spool", lambda values: SpoolOptions(**values)),
        file=str(file or ""),
        settings=tuple(in_force(settings, ("send.remote_write", "send.loki"))),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _file(named: str | os.PathLike[str] | None) -> Path | None:
    """The one that is named, else the usual one if it is there."""
    if named:
        return Path(named)
    return FILE if FILE.is_file() else None


def _collection(source: Source, values: dict[str, Any], settings: Settings) -> Collection:
    """How a source is run. Raises ValueError."""
    given = settings.set_values.get((COLLECT + source.id, 0), {})
    on, interval_s = values.pop("on", source.on), values.pop("interval_s", source.interval_s)
    timeout_s = values.pop("timeout_s", source.timeout_s)
    if not 0.1 <= interval_s <= 86_400:
        raise ValueError(f"interval_s is {interval_s:g}: 0.1 to 86400 can be meant")
    if not 0.1 <= timeout_s <= 3600:
        raise ValueError(f"timeout_s is {timeout_s:g}: 0.1 to 3600 can be meant")
    options = source.options(**values) if source.options is not None else None
    return Collection(source, on, interval_s, timeout_s, options, given["on"].origin if "on" in given else "default")
