"""Slurm's daemon of this node: whether it runs, and what it writes to its log, as slurm.conf tells where."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.slurm.daemon_log import DaemonLog
from trackside.agent.source import Collector, Context, Reading, Source, Unavailable

UNIT = "slurmd"
_PID_FILE = "/var/run/slurmd.pid"
"""Where slurmd writes its number unless it is told otherwise."""


PLACES = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
)
"""Where slurm.conf lies: as a rule, and where slurmd keeps one that it was sent."""
_MOST = 4 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """The table ``[collect.slurm_node]``."""

    conf: str = ""
    """slurm.conf; empty: ``$SLURM_CONF``, or where it usually is."""
    log: str = ""
    """slurmd's log; empty: as slurm.conf has it. Where that is none, slurmd writes to the journal."""


class _SlurmNode(Collector):
    def __init__(self, proc: Path, pid_file: Path, log: DaemonLog | None) -> None:
        self._proc, self._pid_file, self._log = proc, pid_file, log

    def collect(self, reading: Reading) -> None:
        reading.sample("slurm_daemon_up", self._runs(), daemon=UNIT)
        if self._log is not None:
            self._log.collect(reading)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _runs(self) -> bool:
        """Whether the process of its number is slurmd: a node that crashed left the file behind."""
        try:
            pid = self._pid_file.read_text("ascii")[:20].strip()
            with open(self._proc / pid / "comm", encoding="utf-8") as file:
                return pid.isdecimal() and file.read(64).strip() == UNIT
        except (OSError, ValueError):
            return False


def find(given: str = "", environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that holds on this node."""
    wanted = [given] if given else [environ.get("SLURM_CONF", ""), *PLACES]
    return next((Path(path) for path in wanted if path and os.access(path, os.R_OK)), None)


def value(path: Path, name: str, node: str) -> str | None:
    """A setting with ``%n`` and ``%h`` filled in; None where it isn't set. Raises OSError."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(_MOST)
    found = re.search(rf"(?im)^[ \t]*{re.escape(name)}[ \t]*=[ \t]*\"?([^\s#\"]+)", text)
    return None if found is None else found[1].replace("%n", node).replace("%h", os.uname().nodename)


def _open(context: Context) -> Collector:
    options: Options = context.options
    conf = find(options.conf)
    if conf is None:
        raise Unavailable(
            "no slurm.conf: this is no node of a Slurm cluster", "set collect.slurm_node.conf where it is one"
        )
    node = context.node.name
    try:
        log = options.log or value(conf, "SlurmdLogFile", node)
        pid_file = value(conf, "SlurmdPidFile", node) or _PID_FILE
    except OSError as error:
        raise Unavailable(f"{conf} can't be read: {error.strerror}") from error
    if log and not os.access(log, os.R_OK):
        context.say(f"slurm_node: {log} can't be read, and is left out: let the agent's user read it")
    return _SlurmNode(context.node.proc, Path(pid_file), DaemonLog(Path(log), UNIT) if log else None)


SOURCE = Source(
    id="slurm_node",
    title="slurmd: whether it runs, and its log",
    open=_open,
    metrics=("slurm_daemon_up",),
    lines="slurmd's log",
    needs="read access to slurmd's log",
    options=Options,
)
