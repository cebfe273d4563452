"""The node's slurmd: whether it runs, and its log, as configured in slurm.conf."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.slurm.configuration import find_conf, setting
from trackside.agent.slurm.daemon_log import DaemonLog
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Reading

UNIT = "slurmd"
_PID_FILE = "/var/run/slurmd.pid"
"""slurmd's default pid file."""


@dataclass(frozen=True, slots=True)
class SlurmNodeOptions:
    """The table ``[collect.slurm_node]``."""

    conf: str = ""
    """Path of slurm.conf; empty: ``$SLURM_CONF``, else the first of the usual paths."""
    log: str = ""
    """Path of slurmd's log; empty: as in slurm.conf. If slurm.conf has none, slurmd writes to the journal."""


class _SlurmNode(Collector):
    def __init__(self, proc: Path, pid_file: Path, log: DaemonLog | None) -> None:
        self._proc, self._pid_file, self._log = proc, pid_file, log
        self._pid = ""
        """The process found last."""

    def collect(self, reading: Reading) -> None:
        if (is_running := self._is_running()) is not None:
            reading.sample("slurm_daemon_up", is_running, daemon=UNIT)
        if self._log is not None:
            self._log.collect(reading)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _is_running(self) -> bool | None:
        """Whether slurmd runs: by its pid file, or, as it writes none under systemd, by the names of the processes;
        None if these cannot be listed."""
        try:
            return self._is_daemon(self._pid_file.read_text("ascii")[:20].strip())
        except FileNotFoundError:
            pass
        except (OSError, ValueError):
            return False
        if self._is_daemon(self._pid):
            return True
        try:
            self._pid = next(filter(self._is_daemon, os.listdir(self._proc)), "")
        except OSError:
            return None
        return bool(self._pid)

    def _is_daemon(self, pid: str) -> bool:
        """Whether this process is slurmd: after a crash of the node, the file remains."""
        try:
            with open(self._proc / pid / "comm", encoding="utf-8") as file:
                return pid.isdecimal() and file.read(64).strip() == UNIT
        except (OSError, ValueError):
            return False


def _open(context: Context) -> Collector:
    options: SlurmNodeOptions = context.options
    conf = find_conf(options.conf)
    if conf is None:
        raise AgentSourceUnavailable(
            "no slurm.conf found: this node is not in a Slurm cluster", "if it is, set collect.slurm_node.conf"
        )
    node = context.node.name
    try:
        log = options.log or setting(conf, "SlurmdLogFile", node)
        pid_file = setting(conf, "SlurmdPidFile", node) or _PID_FILE
    except OSError as error:
        raise AgentSourceUnavailable(f"{conf} cannot be read: {error.strerror}") from error
    return _SlurmNode(context.node.proc, Path(pid_file), DaemonLog(Path(log), UNIT) if log else None)


SOURCE = AgentSource(
    id="slurm_node",
    title="slurmd: whether it is running, and its log",
    open=_open,
    metrics=("slurm_daemon_up",),
    lines="slurmd's log",
    needs="read access to slurmd's log",
    options=SlurmNodeOptions,
)
