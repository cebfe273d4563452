"""What is simulated: a cluster, a job, its telemetry, and what goes wrong. Every default is realistic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trackside.errors import UsageError

PLANES = ("gpu", "host", "tracer", "logs", "scheduler", "kernel")
"""What a folder can contain, in the order in which it is written."""
_LENGTH = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0)


class ScenarioError(UsageError, ValueError):
    """A scenario that cannot be read; says where, which key, and which values are valid."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The machines. Nodes are named ``prefix`` plus a number with ``digits`` digits, counted from ``first``."""

    name: str = "alpha"
    nodes: int = 2
    gpus_per_node: int = 8
    gpu: str = "H100-80GB"
    prefix: str = "gpu"
    first: int = 1
    digits: int = 3
    cores: int = 112
    memory_gib: float = 1024.0
    inlet_celsius: float = 26.0
    power_limit_watts: float = 0.0
    """0: the model's own limit."""
    driver: str = "550.90.07"
    fabric: str = "infiniband"
    """infiniband or ethernet: the network for collectives between nodes."""
    zone_hours: float = 0.0
    """Offset of the local time that Slurm and the logs write."""
    partition: str = "batch"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A training job. Names that end in ``_s`` are seconds and also accept text such as "10m" or "1h30m"."""

    id: str = "48213"
    name: str = "pretrain"
    user: str = "user"
    account: str = "research"
    framework: str = "hf-trainer"
    launcher: str = "torchrun"
    """torchrun, srun (one task per rank) or python (no launcher)."""
    layout: str = "slurm"
    """slurm: one slurm-ID.out; tree: also torchrun's --log-dir tree; ranks: one file per rank."""
    nodes: int = 0
    """0: all nodes of the cluster."""
    gpus_per_node: int = 0
    """0: all GPUs of a node."""
    first_gpu: int = 0
    start: str = "2026-03-02T08:00:00Z"
    queue_s: float = 40.0
    time_limit_s: float = 0.0
    """0: four times the duration of the run."""
    steps: int = 0
    """0: as many as fit into ``duration_s``."""
    duration_s: float = 1800.0
    planned_steps: int = 0
    """The total that the log prints, if it is not ``steps``."""
    step_s: float = 3.0
    compute_share: float = 0.86
    data_share: float = 0.015
    gap_share: float = 0.025
    """Shares of a step: kernels running; waiting for data; nothing queued. The rest is communication that is not
    hidden."""
    stage_compute: tuple[float, ...] = ()
    """Relative compute of the pipeline's stages; ranks are assigned to stages in blocks."""
    launch_s: float = 6.0
    import_s: float = 18.0
    rendezvous_s: float = 4.0
    load_s: float = 35.0
    compile_s: float = 0.0
    first_step_factor: float = 4.0
    log_every: int = 10
    eval_every: int = 0
    eval_s: float = 20.0
    checkpoint_every: int = 0
    checkpoint_s: float = 12.0
    shuffle_every: int = 0
    shuffle_s: float = 15.0
    memory_share: float = 0.82
    weights_share: float = 0.28
    sm_active: float = 0.82
    tensor_active: float = 0.46
    """While kernels run."""
    launches_per_step: int = 2600
    collectives_per_step: int = 48
    loader_workers: int = 4
    rss_gib: float = 9.0
    """Host memory of a rank with its loader workers."""
    load_rss_gib: float = 6.0
    """Additional host memory while weights are loaded."""
    loss_start: float = 10.9
    loss_floor: float = 2.6
    learning_rate: float = 3e-4
    tokens_per_step: int = 524288
    epochs: int = 1
    watchdog_s: float = 600.0
    """Timeout of NCCL's watchdog; 0: off."""
    nccl_debug: bool = False
    nccl_channels: int = 4
    """Thread blocks, and so SMs, that a waiting collective occupies."""
    transport: str = ""
    """NCCL's NET line: IB or Socket; empty: according to the fabric."""
    tracer_ranks: bool = True
    """Whether the tracer knows the rank of a process."""


@dataclass(frozen=True, slots=True)
class TelemetryGap:
    """Missing samples: of a node ('*': all) and a plane ('*': all that are sampled)."""

    at: str = "50%"
    length_s: float = 120.0
    node: str = "*"
    plane: str = "*"


@dataclass(frozen=True, slots=True)
class ExporterRestart:
    """An exporter that restarts: sticky values and its own counters start over."""

    at: str = "50%"
    node: str = "*"
    plane: str = "gpu"


@dataclass(frozen=True, slots=True)
class TelemetrySpec:
    """How the run was observed."""

    planes: tuple[str, ...] = PLANES
    interval_s: float = 15.0
    host_interval_s: float = 0.0
    """0: the same as ``interval_s``."""
    jitter_ms: float = 4.0
    lead_s: float = 120.0
    tail_s: float = 120.0
    profiling: bool = True
    fields: str = "full"
    """full, or default: what dcgm-exporter serves without configuration (no SM activity, no ECC, no throttle
    reasons)."""
    dialect: str = "dcgm"
    """dcgm, or lower: the same names in lower case."""
    training: bool = False
    """Whether the job exports training_* metrics."""
    job_label: bool = True
    mig: str = ""
    """Profile such as 3g.40gb: every GPU is one slice."""
    missing_nodes: tuple[str, ...] = ()
    clock_skew: Mapping[str, float] = field(default_factory=dict)
    """node -> seconds that its clock is ahead."""
    logs_in_utc: bool = False
    """Whether the job's containers write UTC, whatever the cluster's zone."""
    gaps: tuple[TelemetryGap, ...] = ()
    restarts: tuple[ExporterRestart, ...] = ()


@dataclass(frozen=True, slots=True)
class NeighborJob:
    """Another user's job on other GPUs of the same nodes."""

    node: str = "*"
    gpus: tuple[int, ...] = ()
    job: str = "48777"
    """Empty: no job label."""
    activity: str = "busy"
    """busy, idle, spin or leftover (memory in use, but no process of a job)."""
    memory_share: float = 0.6
    xid: int = 0
    xid_at: str = "50%"
    ecc: int = 0
    """Uncorrectable errors that its GPU counts at ``xid_at``."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A complete scenario. ``faults`` are tables with a ``kind``; their other keys are fields of that fault. The
    field ``neighbors`` has the name of its key in scenario files."""

    name: str = "healthy"
    title: str = ""
    seed: int = 1
    cluster: ClusterSpec = field(default_factory=ClusterSpec)
    job: JobSpec = field(default_factory=JobSpec)
    telemetry: TelemetrySpec = field(default_factory=TelemetrySpec)
    neighbors: tuple[NeighborJob, ...] = ()
    faults: tuple[Mapping[str, Any], ...] = ()


def seconds(value: object) -> float | None:
    """Seconds from a number or from text such as "1h30m"; None if the value is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if (
        isinstance(value, str)
        and value
        and (match := _LENGTH.fullmatch(value.replace(" ", "")))
        and any(match.groups())
    ):
        return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part)
    return None
