"""The agent's settings: ``agent.toml``, ``TRACKSIDE_AGENT_...`` variables and flags, as the options of each part."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trackside.agent.delivery.loki_push import LokiOptions
from trackside.agent.delivery.receiver import NOT_CONFIGURABLE, ReceiverOptions
from trackside.agent.delivery.remote_write import RemoteWriteOptions
from trackside.agent.delivery.spool import SpoolOptions
from trackside.agent.node import LocalNode, hostname
from trackside.agent.source import AgentSource, sources
from trackside.settings import ConfigError, Index, Section, Settings, SettingValue
from trackside.settings.shown import EffectiveSetting, effective_settings, exposure_warnings

PREFIX = "TRACKSIDE_AGENT_"
FILE = Path("/etc/trackside/agent.toml")
STATE = "/var/lib/trackside-agent"
COLLECT, SEND = "collect.", "send."
OWN_LABELS = frozenset({"node", "gpu", "gpu_uuid", "rank", "pid", "job", "slurm_job_id", "filename", "stream", "unit"})
"""Labels that the agent sets itself; ``labels`` may not override them."""
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The table ``[agent]``. Raises ValueError for invalid values."""

    node: str = ""
    """The node's name on everything sent; empty: Slurm's node name, else the host name."""
    job: str = ""
    """The job of everything whose job is not known otherwise: for a machine that runs one job without a scheduler."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels added to all samples and lines."""
    state: str = ""
    """A folder that outlives the agent; empty: systemd's state directory, else ``/var/lib/trackside-agent``."""
    proc: str = "/proc"
    sys: str = "/sys"
    dev: str = "/dev"
    """The host's /proc, /sys and /dev; a container may have them mounted elsewhere."""
    listen: str = "127.0.0.1:9481"
    """The address of ``/metrics``; empty: not served."""

    def __post_init__(self) -> None:
        for name in self.labels:
            if not _NAME.match(name):
                raise ValueError(f"labels: {name!r} is not a valid label name: use letters, digits and _")
            if name in OWN_LABELS:
                raise ValueError(f"labels: {name!r} is set by the agent itself on samples and lines")
        if self.listen:
            host, colon, port = self.listen.rpartition(":")
            if not host or not colon or not port.isdecimal() or int(port) > 65535:
                raise ValueError(f"listen: {self.listen!r} is not HOST:PORT; for example 127.0.0.1:9481 or [::1]:9481")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of ``/metrics``."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Whether, how often and with which options one source runs: its table ``[collect.ID]``."""

    source: AgentSource
    on: bool
    interval_s: float
    timeout_s: float
    options: Any
    """An instance of the source's ``options``, or None."""
    origin: str
    """What switched it on or off: a line of the file, a variable, a flag, or ``default``."""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of the agent. A receiver that is None gets nothing."""

    agent: AgentOptions
    node: LocalNode
    state: Path
    sources: tuple[SourceSettings, ...]
    remote_write: RemoteWriteOptions | None
    loki: LokiOptions | None
    spool: SpoolOptions
    file: str = ""
    """The file that was read; empty: none."""
    settings: tuple[EffectiveSetting, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def spool_folder(self) -> Path:
        """The folder for data that is waiting to be sent."""
        return Path(self.spool.path) if self.spool.path else self.state / "spool"


def sections() -> list[Section]:
    """Every table of the file. Each key is declared once, as a field of the options class of its part."""
    tables = [Section("agent", (AgentOptions,), prefix="TRACKSIDE_")]
    for source in sources().values():
        fields = [
            ("on", bool, source.on),
            ("interval_s", float, source.interval_s),
            ("timeout_s", float, source.timeout_s),
        ]
        run_options = dataclasses.make_dataclass("Run", fields, frozen=True)
        parts = (run_options,) if source.options is None else (run_options, source.options)
        tables.append(Section(COLLECT + source.id, parts, prefix=PREFIX))
    for name, part in (("send.remote_write", RemoteWriteOptions), ("send.loki", LokiOptions)):
        tables.append(Section(name, (part, ReceiverOptions), NOT_CONFIGURABLE, inner="receiver", prefix=PREFIX))
    tables.append(Section("spool", (SpoolOptions,), prefix=PREFIX))
    return tables


def load(
    path: str | os.PathLike[str] | None = None,
    flags: Mapping[str, SettingValue] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """Read the settings: flags override the environment, the environment overrides the file, the file overrides
    defaults.

    ``path``: the file, which must exist; None: ``$TRACKSIDE_AGENT_CONFIG``, which must exist too if set, else
    ``/etc/trackside/agent.toml`` if it exists. ``flags``: ``{"agent.node": ...}``. Raises ConfigError.
    """
    file = _file(path or environ.get(f"{PREFIX}CONFIG"))
    settings, warnings = Settings(sections()), list[str]()
    if file is not None:
        settings.read_file(file)
    settings.read_environment({name: value for name, value in environ.items() if name != f"{PREFIX}CONFIG"})
    for name, value in (flags or {}).items():
        section, _, key = name.rpartition(".")
        settings.set(section, key, value)
    if file is not None:
        warnings += exposure_warnings(file, settings)

    def build(name: str, constructor: Any) -> Any:
        index: Index = (name, 0)
        try:
            return constructor(settings.values(index, environ, warnings))
        except ConfigError:
            raise
        except (ValueError, TypeError) as error:
            raise settings.error_at(index, str(error)) from None

    def receiver_options(name: str) -> Any:
        return build(name, settings.sections[name].build) if settings.indices(name) else None

    agent = build("agent", lambda values: AgentOptions(**values))
    node = LocalNode(agent.node or hostname(), Path(agent.proc), Path(agent.sys), Path(agent.dev))
    return Config(
        agent=agent,
        node=node,
        state=Path(agent.state or environ.get("STATE_DIRECTORY", "").partition(":")[0] or STATE),
        sources=tuple(
            build(COLLECT + source.id, lambda values, source=source: _source_settings(source, values, settings))
            for source in sources().values()
        ),
        remote_write=receiver_options("send.remote_write"),
        loki=receiver_options("send.loki"),
        spool=build("spool", lambda values: SpoolOptions(**values)),
        file=str(file or ""),
        settings=tuple(effective_settings(settings, ("send.remote_write", "send.loki"))),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _file(path: str | os.PathLike[str] | None) -> Path | None:
    """The named file, else the default one if it exists."""
    if path:
        return Path(path)
    return FILE if FILE.is_file() else None


def _source_settings(source: AgentSource, values: dict[str, Any], settings: Settings) -> SourceSettings:
    """How a source runs. Raises ValueError."""
    keys = settings.set_values.get((COLLECT + source.id, 0), {})
    on, interval_s = values.pop("on", source.on), values.pop("interval_s", source.interval_s)
    timeout_s = values.pop("timeout_s", source.timeout_s)
    if not 0.1 <= interval_s <= 86_400:
        raise ValueError(f"interval_s is {interval_s:g}; it must be 0.1 to 86400")
    if not 0.1 <= timeout_s <= 3600:
        raise ValueError(f"timeout_s is {timeout_s:g}; it must be 0.1 to 3600")
    options = source.options(**values) if source.options is not None else None
    return SourceSettings(source, on, interval_s, timeout_s, options, keys["on"].origin if "on" in keys else "default")
