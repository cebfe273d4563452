"""The state of a simulated run: the cluster, the job's attempts, and what happens to the machines. Faults change it,
writers read it."""

from __future__ import annotations

import datetime as dt
import re
import zlib
from dataclasses import dataclass, replace

import numpy as np

from trackside.sim.attempt import JobAttempt, Placement
from trackside.sim.hardware import MODELS, GpuModel
from trackside.sim.scenario import Scenario, ScenarioError, seconds
from trackside.sim.truth import InjectedFault

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class StepCostRule:
    """A change in what a step costs, for some ranks (None: all), while it lasts. Factors multiply, seconds add."""

    start: float
    end: float = FOREVER
    ranks: frozenset[int] | None = None
    compute: float = 1.0
    communication: float = 1.0
    data_s: float = 0.0
    gap_s: float = 0.0
    save_s: float = 0.0
    """A checkpoint after every step."""
    blocking: float = 0.0

    def applies_to(self, rank: int, time: float) -> bool:
        """Whether the rule applies to a rank at a time."""
        return self.start <= time < self.end and (self.ranks is None or rank in self.ranks)


@dataclass(frozen=True, slots=True)
class StepPause:
    """Between two steps nothing happens: ``ranks`` are blocked on the host, the others wait for them."""

    start: float
    length: float
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class ThrottlePeriod:
    """A GPU's clocks are held at ``factor`` of their maximum; ``resistance``: how much worse the cooling is."""

    node: str
    gpu: int
    start: float
    end: float
    factor: float
    reasons: int
    resistance: float = 1.0
    thermal: float = 0.0
    """Core temperature limit in Celsius; 0: as power and cooling give."""


@dataclass(frozen=True, slots=True)
class GpuChange:
    """A counter rises by ``amount``, or a level is set (``to``)."""

    time: float
    metric: str
    amount: float = 0.0
    to: float | None = None


@dataclass(frozen=True, slots=True)
class HostEffect:
    """Load of a node that is not the job's: busy cores, bytes per second, shares of time in which tasks stall."""

    node: str
    start: float
    end: float
    cores: float = 0.0
    memory_gib: float = 0.0
    """Memory in use at ``end``, rising evenly from 0 at ``start``; released afterwards."""
    stalled_io: float = 0.0
    stalled_cpu: float = 0.0
    stalled_memory: float = 0.0
    blocked_tasks: float = 0.0
    network: float = 0.0
    disk: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeStateChange:
    """What Slurm records about a node."""

    time: float
    node: str
    state: str
    reason: str


class Simulation:
    """The scenario while it is played. Faults change it; writers read it."""

    def __init__(self, scenario: Scenario) -> None:
        cluster, job = scenario.cluster, scenario.job
        self.scenario = scenario
        self.model: GpuModel = MODELS[cluster.gpu]
        if scenario.telemetry.mig:
            self.model = _slice(self.model, scenario.telemetry.mig)
        self.power_limit = cluster.power_limit_watts or self.model.tdp
        self.nodes = tuple(f"{cluster.prefix}{cluster.first + i:0{cluster.digits}d}" for i in range(cluster.nodes))
        per_node = job.gpus_per_node or cluster.gpus_per_node - job.first_gpu
        job_nodes = self.nodes[: job.nodes or cluster.nodes]
        self.placements = tuple(
            Placement(n * per_node + i, node, job.first_gpu + i, i)
            for n, node in enumerate(job_nodes)
            for i in range(per_node)
        )
        self.start = _time(job.start)
        self.attempts: list[JobAttempt] = []
        self.cost_rules: list[StepCostRule] = []
        self.pauses: list[StepPause] = []
        self.steps = job.steps
        """0: as many as fit."""
        self.throttles: list[ThrottlePeriod] = []
        self.changes: dict[tuple[str, int], list[GpuChange]] = {}
        self.host_effects: list[HostEffect] = []
        self.oom_kills: list[tuple[float, str]] = []
        """(time, node)"""
        self.lost_gpus: dict[tuple[str, int], float] = {}
        """(node, GPU index) -> when it fell off the bus."""
        self.down_nodes: dict[str, tuple[float, float]] = {}
        """Node -> (start, end) of the time in which it did not answer."""
        self.kernel: list[tuple[float, str, str]] = []
        """(time, node, text)"""
        self.node_changes: list[NodeStateChange] = []
        self.injected: list[InjectedFault] = []
        self.time_limit = 0.0
        self.transport = job.transport or ("IB" if cluster.fabric == "infiniband" else "Socket")
        """What NCCL uses between nodes."""
        self.environment: dict[str, str] = {}
        """Variables that the batch script prints."""
        self.reference: JobAttempt

    @property
    def attempt(self) -> JobAttempt:
        """The job's last start: the one that faults hit unless they say otherwise."""
        return self.attempts[-1]

    @property
    def ranks(self) -> range:
        return range(len(self.placements))

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers that depend only on the seed and the purpose, not on the order of calls."""
        return np.random.default_rng([self.scenario.seed, zlib.crc32(purpose.encode())])

    def time_of(self, at: str | float, key: str = "at") -> float:
        """A time: "40%" of the run without faults, "step 300", "12m", or seconds from its start. ``key`` is named in
        errors."""
        reference = self.reference
        if isinstance(at, str) and (text := at.strip()).endswith("%"):
            try:
                return reference.start + (reference.end - reference.start) * float(text[:-1]) / 100
            except ValueError:
                pass
        elif isinstance(at, str) and at.strip().startswith("step "):
            number = at.strip()[5:].strip()
            if number.isdigit():
                done = int(number) - reference.first_step
                if not 1 <= done <= len(reference.step_ends):
                    raise ScenarioError(f"{key}: {at!r}: the run has {len(reference.step_ends)} steps")
                return float(reference.step_ends[done - 1])
        elif (offset := seconds(at)) is not None:
            return reference.start + offset
        raise ScenarioError(f'{key}: {at!r} is not a time; write "40%", "step 300", "12m" or seconds from the start')

    def node_name(self, node: str, key: str) -> str:
        """A node of the cluster, by name or by its index as text."""
        if node in self.nodes:
            return node
        if node.isdigit() and int(node) < len(self.nodes):
            return self.nodes[int(node)]
        raise ScenarioError(f"{key}: {node!r} is not a node; the nodes are {self.nodes[0]} to {self.nodes[-1]}")

    def change(
        self, node: str, gpu: int, time: float, metric: str, amount: float = 0.0, to: float | None = None
    ) -> None:
        """A GPU's counter rises, or a level is set."""
        self.changes.setdefault((node, gpu), []).append(GpuChange(time, metric, amount, to))

    def log_kernel(self, time: float, node: str, text: str) -> None:
        """Add a line to a node's kernel log."""
        self.kernel.append((time, node, text))

    def pid(self, attempt: JobAttempt, rank: int) -> int:
        """The process id of a rank."""
        placement = attempt.placements[rank]
        return (
            40_000
            + zlib.crc32(f"{attempt.job}/{attempt.restarts}/{placement.node}".encode()) % 20_000
            + 7 * placement.local_rank
        )

    def pci(self, gpu: int) -> str:
        """The PCI address as DCGM writes it."""
        bus = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)
        return f"00000000:{bus[gpu] if gpu < len(bus) else 0x10 + 2 * gpu:02X}:00.0"

    def observed_span(self) -> tuple[float, float]:
        """(start, end) of the time in which the run is observed."""
        telemetry = self.scenario.telemetry
        first = min(attempt.start for attempt in self.attempts)
        return first - telemetry.lead_s, max(attempt.end for attempt in self.attempts) + telemetry.tail_s

    def local_time(self, time: float) -> dt.datetime:
        """The cluster's local time, naive."""
        zone = dt.timedelta(hours=self.scenario.cluster.zone_hours)
        return dt.datetime.fromtimestamp(time, dt.UTC).replace(tzinfo=None) + zone

    def clock_skew(self, node: str | None) -> float:
        """Seconds that a node's own clock is ahead."""
        return self.scenario.telemetry.clock_skew.get(node or "", 0.0)

    def wall_clock(self, time: float, node: str | None = None) -> dt.datetime:
        """The time that a process of the job on a node prints: naive, by the node's clock."""
        zone = 0.0 if self.scenario.telemetry.logs_in_utc else self.scenario.cluster.zone_hours
        moment = dt.datetime.fromtimestamp(time + self.clock_skew(node), dt.UTC).replace(tzinfo=None)
        return moment + dt.timedelta(hours=zone)

    def edges(self) -> tuple[float, ...]:
        """Times at which a step's cost changes, or steps pause."""
        edges = {edge for rule in self.cost_rules for edge in (rule.start, rule.end) if edge != FOREVER}
        return tuple(sorted(edges | {pause.start for pause in self.pauses}))


def _slice(model: GpuModel, profile: str) -> GpuModel:
    """A slice of a GPU such as 3g.40gb: its share of the memory."""
    match = re.fullmatch(r"\d\w*\.(\d+)gb", profile)
    if match is None:
        raise ScenarioError(f"telemetry.mig: {profile!r} is not a MIG profile; write for example 3g.40gb")
    return replace(model, memory_mib=min(model.memory_mib, int(match[1]) * 1000), reserved_mib=60)


def _time(text: str) -> float:
    try:
        parsed = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ScenarioError(f"job.start: {text!r} is not a time; write for example 2026-03-02T08:00:00Z") from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)).timestamp()
