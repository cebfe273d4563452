"""What faults act on: the cluster, the job's starts, and everything that befalls machines beside them."""

from __future__ import annotations

import datetime as dt
import re
import zlib
from dataclasses import dataclass, replace

import numpy as np

from trackside.sim.act import Act, Place
from trackside.sim.hardware import MODELS, GpuModel
from trackside.sim.scenario import Scenario, ScenarioError, seconds
from trackside.sim.truth import Injected

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Regime:
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

    def holds(self, rank: int, time: float) -> bool:
        """Whether it is in force for a rank."""
        return self.start <= time < self.end and (self.ranks is None or rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Pause:
    """Between two steps nothing goes on: ``ranks`` are blocked on the host, the others wait for them."""

    start: float
    length: float
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class Throttle:
    """Clocks of a GPU held at ``factor`` of their top; ``resistance``: how much worse the cooling is."""

    node: str
    gpu: int
    start: float
    end: float
    factor: float
    reasons: int
    resistance: float = 1.0
    thermal: float = 0.0
    """Celsius that the core is held at; 0: as power and cooling give."""


@dataclass(frozen=True, slots=True)
class Change:
    """A counter rises by ``amount``, or a level (``to``) is set."""

    time: float
    metric: str
    amount: float = 0.0
    to: float | None = None


@dataclass(frozen=True, slots=True)
class HostEffect:
    """Something that a node does beside the job. Cores busy, bytes a second, share of time that tasks stall."""

    node: str
    start: float
    end: float
    cores: float = 0.0
    memory_gib: float = 0.0
    """Taken at ``end``, rising evenly from none at ``start``; given back after."""
    stalled_io: float = 0.0
    stalled_cpu: float = 0.0
    stalled_memory: float = 0.0
    blocked_tasks: float = 0.0
    network: float = 0.0
    disk: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What Slurm notes of a node."""

    time: float
    node: str
    state: str
    reason: str


class Stage:
    """The scenario in motion. Faults change it; writers read it."""

    def __init__(self, scenario: Scenario) -> None:
        cluster, job = scenario.cluster, scenario.job
        self.scenario = scenario
        self.model: GpuModel = MODELS[cluster.gpu]
        if scenario.telemetry.mig:
            self.model = _slice(self.model, scenario.telemetry.mig)
        self.power_limit = cluster.power_limit_watts or self.model.tdp
        self.nodes = tuple(f"{cluster.prefix}{cluster.first + i:0{cluster.digits}d}" for i in range(cluster.nodes))
        per_node = job.gpus_per_node or cluster.gpus_per_node - job.first_gpu
        used = self.nodes[: job.nodes or cluster.nodes]
        self.places = tuple(
            Place(n * per_node + i, node, job.first_gpu + i, i) for n, node in enumerate(used) for i in range(per_node)
        )
        self.start = _time(job.start)
        self.acts: list[Act] = []
        self.regimes: list[Regime] = []
        self.pauses: list[Pause] = []
        self.steps = job.steps
        """0: as many as fit."""
        self.throttles: list[Throttle] = []
        self.changes: dict[tuple[str, int], list[Change]] = {}
        self.host_effects: list[HostEffect] = []
        self.oom_kills: list[tuple[float, str]] = []
        """(time, node)"""
        self.gone: dict[tuple[str, int], float] = {}
        """GPUs that fell off the bus."""
        self.down: dict[str, tuple[float, float]] = {}
        """Nodes that didn't answer, from when to when."""
        self.kernel: list[tuple[float, str, str]] = []
        """(time, node, text)"""
        self.node_changes: list[NodeChange] = []
        self.injected: list[Injected] = []
        self.time_limit = 0.0
        self.transport = job.transport or ("IB" if cluster.fabric == "infiniband" else "Socket")
        """What NCCL uses between nodes."""
        self.environment: dict[str, str] = {}
        """Variables that the batch script prints."""
        self.reference: Act

    @property
    def act(self) -> Act:
        """The job's last start: what faults strike unless they say otherwise."""
        return self.acts[-1]

    @property
    def ranks(self) -> range:
        return range(len(self.places))

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers that depend on the seed and the purpose, not on who asked before."""
        return np.random.default_rng([self.scenario.seed, zlib.crc32(purpose.encode())])

    def when(self, at: str | float, whose: str = "at") -> float:
        """A moment: "40%" of the run as it would go without faults, "step 300", "12m" or seconds from its start."""
        plain = self.reference
        if isinstance(at, str) and (text := at.strip()).endswith("%"):
            try:
                return plain.start + (plain.end - plain.start) * float(text[:-1]) / 100
            except ValueError:
                pass
        elif isinstance(at, str) and at.strip().startswith("step "):
            number = at.strip()[5:].strip()
            if number.isdigit():
                done = int(number) - plain.first_step
                if not 1 <= done <= len(plain.step_ends):
                    raise ScenarioError(f"{whose}: {at!r}: the run has {len(plain.step_ends)} steps")
                return float(plain.step_ends[done - 1])
        elif (offset := seconds(at)) is not None:
            return plain.start + offset
        raise ScenarioError(f'{whose}: {at!r} is no moment; write "40%", "step 300", "12m" or seconds from the start')

    def node_name(self, node: str, whose: str) -> str:
        """A node of the cluster by name, or by its index in text."""
        if node in self.nodes:
            return node
        if node.isdigit() and int(node) < len(self.nodes):
            return self.nodes[int(node)]
        raise ScenarioError(f"{whose}: {node!r} is no node; there are {self.nodes[0]} to {self.nodes[-1]}")

    def change(
        self, node: str, gpu: int, time: float, metric: str, amount: float = 0.0, to: float | None = None
    ) -> None:
        """A GPU's counter rises or a level is set."""
        self.changes.setdefault((node, gpu), []).append(Change(time, metric, amount, to))

    def log_kernel(self, time: float, node: str, text: str) -> None:
        """A line of a node's kernel log."""
        self.kernel.append((time, node, text))

    def pid(self, act: Act, rank: int) -> int:
        """Process id of a rank."""
        place = act.places[rank]
        return 40_000 + zlib.crc32(f"{act.job}/{act.restarts}/{place.node}".encode()) % 20_000 + 7 * place.local

    def pci(self, gpu: int) -> str:
        """PCI address as DCGM writes it."""
        bus = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)
        return f"00000000:{bus[gpu] if gpu < len(bus) else 0x10 + 2 * gpu:02X}:00.0"

    def horizon(self) -> tuple[float, float]:
        """From when to when it is watched."""
        telemetry = self.scenario.telemetry
        first = min(act.start for act in self.acts)
        return first - telemetry.lead_s, max(act.end for act in self.acts) + telemetry.tail_s

    def local(self, time: float) -> dt.datetime:
        """The cluster's local time, naive."""
        zone = dt.timedelta(hours=self.scenario.cluster.zone_hours)
        return dt.datetime.fromtimestamp(time, dt.UTC).replace(tzinfo=None) + zone

    def node_clock(self, node: str | None) -> float:
        """Seconds that a node's own clock is ahead."""
        return self.scenario.telemetry.clock_skew.get(node or "", 0.0)

    def wall(self, time: float, node: str | None = None) -> dt.datetime:
        """What a process of the job on a node prints for a moment: naive, by the node's clock."""
        zone = 0.0 if self.scenario.telemetry.logs_in_utc else self.scenario.cluster.zone_hours
        at = dt.datetime.fromtimestamp(time + self.node_clock(node), dt.UTC).replace(tzinfo=None)
        return at + dt.timedelta(hours=zone)

    def edges(self) -> tuple[float, ...]:
        """Moments at which a step's cost changes, or steps pause."""
        edges = {edge for regime in self.regimes for edge in (regime.start, regime.end) if edge != FOREVER}
        return tuple(sorted(edges | {pause.start for pause in self.pauses}))


def _slice(model: GpuModel, profile: str) -> GpuModel:
    """A slice of a GPU such as 3g.40gb: its share of the memory."""
    found = re.fullmatch(r"\d\w*\.(\d+)gb", profile)
    if found is None:
        raise ScenarioError(f"telemetry.mig: {profile!r} is no profile; write 3g.40gb")
    return replace(model, memory_mib=min(model.memory_mib, int(found[1]) * 1000), reserved_mib=60)


def _time(text: str) -> float:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ScenarioError(f"job.start: {text!r} is no time; write 2026-03-02T08:00:00Z") from None
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()
