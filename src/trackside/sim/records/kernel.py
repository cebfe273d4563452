"""A node's kernel log, as dmesg --time-format iso prints it, with lines that any machine prints."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from trackside.sim.simulation import Simulation

_ROUTINE = (
    "perf: interrupt took too long (2511 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    "systemd-journald[812]: Data hash table of /run/log/journal has a fill level at 75.0, suggesting rotation.",
    "TCP: request_sock_TCP: Possible SYN flooding on port 9400. Sending cookies.  Check SNMP counters.",
    'audit: type=1400 audit(1772438400.123:88): apparmor="STATUS" operation="profile_replace" profile="unconfined" pid=2711',
    "mlx5_core 0000:1b:00.0: mlx5_pcie_event:301:(pid 4120): Detected insufficient power on the PCIe slot (27W).",
)
_BOOT = (
    "Linux version 5.15.0-105-generic (buildd@lcy02-amd64-007) (gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0) #115-Ubuntu SMP",
    "Command line: BOOT_IMAGE=/boot/vmlinuz-5.15.0-105-generic root=UUID=5e1f ro quiet",
    "nvidia: loading out-of-tree module taints kernel.",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
)


def write(sim: Simulation, folder: Path) -> None:
    """Write one file per node."""
    folder_of_logs = folder / "kernel"
    folder_of_logs.mkdir(exist_ok=True)
    first, last = sim.observed_span()
    for node in sim.nodes:
        if node in sim.scenario.telemetry.missing_nodes:
            continue
        rng = sim.rng(f"kernel/{node}")
        entries = [
            (first + float(rng.random()) * (last - first), _ROUTINE[i % len(_ROUTINE)]) for i in rng.permutation(5)[:3]
        ]
        down, back = sim.down_nodes.get(node, (float("inf"), float("inf")))
        entries = [entry for entry in entries if not down <= entry[0] < back]
        if back < float("inf"):
            entries += [(back - 45 + 0.2 * i, text) for i, text in enumerate(_BOOT)]
        entries += [(time, text) for time, line_node, text in sim.kernel if line_node == node]
        lines = []
        for time, text in sorted(entries, key=lambda entry: entry[0]):
            stamp = _iso(sim, time + sim.clock_skew(node))
            lines += [f"{stamp} {line}" for line in text.split("\n")]
        (folder_of_logs / f"{node}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _iso(sim: Simulation, time: float) -> str:
    zone = dt.timezone(dt.timedelta(hours=sim.scenario.cluster.zone_hours))
    return dt.datetime.fromtimestamp(round(time, 6), zone).isoformat(sep="T", timespec="microseconds").replace(".", ",")
