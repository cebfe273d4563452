"""What is to be simulated: a cluster, a job, how it is watched, what goes wrong. Every default is a realistic one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trackside.errors import UsageError

PLANES = ("gpu", "host", "tracer", "logs", "scheduler", "kernel")
"""What a folder can hold, in the order it is written."""
_LENGTH = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0)


class ScenarioError(UsageError, ValueError):
    """A scenario that can't be read: says where, which key, and what would do."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines. Nodes are called ``prefix`` and a number of ``digits`` digits from ``first`` on."""

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
    """0: the model's own."""
    driver: str = "550.90.07"
    fabric: str = "infiniband"
    """infiniband or ethernet: what collectives between nodes go over."""
    zone_hours: float = 0.0
    """Offset of the local time that Slurm and the logs write."""
    partition: str = "batch"


@dataclass(frozen=True, slots=True)
class Job:
    """A training job. Names that end in ``_s`` are seconds and also take text such as "10m" or "1h30m"."""

    id: str = "48213"
    name: str = "pretrain"
    user: str = "user"
    account: str = "research"
    framework: str = "hf-trainer"
    launcher: str = "torchrun"
    """torchrun, srun (a task a rank) or python (no launcher)."""
    layout: str = "slurm"
    """slurm: one slurm-ID.out; tree: torchrun's --log-dir tree beside it; ranks: one file a rank."""
    nodes: int = 0
    """0: all of the cluster."""
    gpus_per_node: int = 0
    """0: all of a node."""
    first_gpu: int = 0
    start: str = "2026-03-02T08:00:00Z"
    queue_s: float = 40.0
    time_limit_s: float = 0.0
    """0: four times what the run takes."""
    steps: int = 0
    """0: as many as fit into ``duration_s``."""
    duration_s: float = 1800.0
    planned_steps: int = 0
    """What the log calls the total, where that is not ``steps``."""
    step_s: float = 3.0
    compute_share: float = 0.86
    data_share: float = 0.015
    gap_share: float = 0.025
    """Of a step: kernels running; waiting for data; nothing queued. The rest is communication that isn't hidden."""
    stage_compute: tuple[float, ...] = ()
    """Compute of the pipeline's stages against each other; ranks are dealt out in blocks."""
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
    """More of it while weights are loaded."""
    loss_start: float = 10.9
    loss_floor: float = 2.6
    learning_rate: float = 3e-4
    tokens_per_step: int = 524288
    epochs: int = 1
    watchdog_s: float = 600.0
    """Of NCCL's watchdog; 0: off."""
    nccl_debug: bool = False
    nccl_channels: int = 4
    """Thread blocks, thus SMs, that a waiting collective keeps resident."""
    transport: str = ""
    """NET line of NCCL: IB or Socket; empty: what the fabric gives."""
    tracer_ranks: bool = True
    """Whether the tracer knows the rank of a process."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Samples that are missing: of a node ('*': all) and a plane ('*': all that are sampled)."""

    at: str = "50%"
    length_s: float = 120.0
    node: str = "*"
    plane: str = "*"


@dataclass(frozen=True, slots=True)
class Restart:
    """An exporter that starts again: sticky values and its own counters begin anew."""

    at: str = "50%"
    node: str = "*"
    plane: str = "gpu"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """How the run was watched."""

    planes: tuple[str, ...] = PLANES
    interval_s: float = 15.0
    host_interval_s: float = 0.0
    """0: as ``interval_s``."""
    jitter_ms: float = 4.0
    lead_s: float = 120.0
    tail_s: float = 120.0
    profiling: bool = True
    fields: str = "full"
    """full, or default: what dcgm-exporter serves out of the box (no SM activity, no ECC, no throttle reasons)."""
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
    """The job's containers write UTC, whatever the cluster's zone is."""
    gaps: tuple[Gap, ...] = ()
    restarts: tuple[Restart, ...] = ()


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Somebody else's job on other GPUs of the same nodes."""

    node: str = "*"
    gpus: tuple[int, ...] = ()
    job: str = "48777"
    """Empty: no job label."""
    activity: str = "busy"
    """busy, idle, spin or leftover (memory held, no process of a job)."""
    memory_share: float = 0.6
    xid: int = 0
    xid_at: str = "50%"
    ecc: int = 0
    """Uncorrectable errors that its GPU counts at ``xid_at``."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """All of it. ``faults`` are tables with a ``kind``; what else they hold is the fault's own business."""

    name: str = "healthy"
    title: str = ""
    seed: int = 1
    cluster: Cluster = field(default_factory=Cluster)
    job: Job = field(default_factory=Job)
    telemetry: Telemetry = field(default_factory=Telemetry)
    neighbours: tuple[Neighbour, ...] = ()
    faults: tuple[Mapping[str, Any], ...] = ()


def seconds(value: object) -> float | None:
    """Seconds from a number or from text such as "1h30m"; None if it is neither."""
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
