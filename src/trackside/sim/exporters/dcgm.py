"""dcgm-exporter: one sample per GPU and scrape of every field that it is configured to serve."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.sim import physics
from trackside.sim.exposition import Array, MetricSink, Style
from trackside.sim.physics import GpuSignals
from trackside.sim.simulation import Simulation
from trackside.sim.watch import Tenant, restarts, scrapes, tenants, track_of

FieldValues = Callable[["NodeSignals"], Array]


@dataclass(slots=True)
class NodeSignals:
    """What fields are computed from: the signals of a node's GPUs, and the faults that changed its counters."""

    sim: Simulation
    name: str
    times: Array
    signals: GpuSignals

    def fault_counter(self, metric: str) -> Array:
        """A counter that only faults increase; shape (GPUs, scrapes)."""
        counter = np.zeros((len(self.signals.memory), len(self.times)))
        for gpu in range(len(counter)):
            for change in self.sim.changes.get((self.name, gpu), ()):
                if change.metric == metric:
                    counter[gpu] += np.where(self.times >= change.time, change.amount, 0.0)
        return counter

    def fault_level(self, metric: str) -> Array:
        """A level that only faults set: 0 before, and 0 again after an exporter restart if the exporter keeps it."""
        level = np.zeros((len(self.signals.memory), len(self.times)))
        for gpu in range(len(level)):
            for change in sorted(self.sim.changes.get((self.name, gpu), ()), key=lambda c: c.time):
                if change.metric == metric and change.to is not None:
                    level[gpu, self.times >= change.time] = change.to
                    if metric == "xid":
                        for restarted_at in restarts(self.sim, self.name, "gpu"):
                            if restarted_at > change.time:
                                level[gpu, self.times >= restarted_at] = 0.0
        return level


@dataclass(frozen=True, slots=True)
class DcgmField:
    """One field of DCGM. ``by_default``: the exporter serves it without a custom counters file."""

    name: str
    kind: str
    help: str
    style: Style
    values_of: FieldValues
    by_default: bool = True
    profiling: bool = False


def _zero(node: NodeSignals) -> Array:
    return np.zeros_like(node.signals.memory)


def _free(node: NodeSignals) -> Array:
    return node.sim.model.memory_mib - node.sim.model.reserved_mib - node.signals.memory


def _constant(value_of: Callable[[Simulation], float]) -> FieldValues:
    return lambda node: np.full_like(node.signals.memory, value_of(node.sim))


def _links(node: NodeSignals) -> Array:
    bytes_per_s: Array = (node.signals.activity[physics.NVLINK] * 2 / 1e6).astype(np.float64)
    return bytes_per_s


def _lifetime_ecc(node: NodeSignals) -> Array:
    return node.fault_counter("ecc_uncorrectable") + node.fault_counter("ecc_uncorrectable_before")


def _gauge(name: str, text: str, values_of: FieldValues, default: bool = True, style: Style = "whole") -> DcgmField:
    return DcgmField(f"DCGM_FI_{name}", "gauge", text, style, values_of, default)


def _counter(name: str, text: str, values_of: FieldValues, default: bool = True) -> DcgmField:
    return DcgmField(f"DCGM_FI_{name}", "counter", text, "whole", values_of, default)


def _profiling_field(name: str, text: str, row: int, default: bool = True, style: Style = "ratio") -> DcgmField:
    return DcgmField(f"DCGM_FI_{name}", "gauge", text, style, lambda node: node.signals.activity[row], default, True)


# fmt: off
FIELDS: Sequence[DcgmField] = (
    _gauge("DEV_SM_CLOCK", "SM clock frequency (in MHz).", lambda n: n.signals.clock),
    _gauge("DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", lambda n: n.signals.memory_clock),
    _gauge("DEV_MEMORY_TEMP", "Memory temperature (in C).", lambda n: n.signals.memory_temperature),
    _gauge("DEV_GPU_TEMP", "GPU temperature (in C).", lambda n: n.signals.temperature),
    _gauge("DEV_POWER_USAGE", "Power draw (in W).", lambda n: n.signals.power, style="decimal"),
    _counter("DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", lambda n: n.signals.energy * 1000),
    _counter("DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", lambda n: n.fault_counter("pcie_replay")),
    _gauge("DEV_GPU_UTIL", "GPU utilization (in %).", lambda n: n.signals.utilization),
    _gauge("DEV_MEM_COPY_UTIL", "Memory utilization (in %).", lambda n: n.signals.copy_utilization),
    _gauge("DEV_ENC_UTIL", "Encoder utilization (in %).", _zero),
    _gauge("DEV_DEC_UTIL", "Decoder utilization (in %).", _zero),
    _gauge("DEV_XID_ERRORS", "Value of the last XID error encountered.", lambda n: n.fault_level("xid")),
    _counter("DEV_POWER_VIOLATION", "Throttling duration due to power constraints (in ns).", lambda n: n.signals.throttled_ns[0].astype(np.float64), False),
    _counter("DEV_THERMAL_VIOLATION", "Throttling duration due to thermal constraints (in ns).", lambda n: n.signals.throttled_ns[1].astype(np.float64), False),
    _gauge("DEV_CLOCK_THROTTLE_REASONS", "Current clock throttle reasons (bitmask).", lambda n: n.signals.reasons.astype(np.float64), False),
    _gauge("DEV_PSTATE", "Performance state (P-State) 0-15. 0=highest.", lambda n: n.signals.pstate, False),
    _gauge("DEV_POWER_MGMT_LIMIT", "Current power limit (in W).", _constant(lambda sim: sim.power_limit), False, "decimal"),
    _gauge("DEV_FB_FREE", "Framebuffer memory free (in MiB).", _free),
    _gauge("DEV_FB_USED", "Framebuffer memory used (in MiB).", lambda n: n.signals.memory),
    _gauge("DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", _constant(lambda sim: sim.model.reserved_mib)),
    _gauge("DEV_FB_TOTAL", "Total frame buffer of the GPU (in MiB).", _constant(lambda sim: sim.model.memory_mib), False),
    _counter("DEV_ECC_SBE_VOL_TOTAL", "Total number of single-bit volatile ECC errors.", lambda n: n.fault_counter("ecc_correctable"), False),
    _counter("DEV_ECC_DBE_VOL_TOTAL", "Total number of double-bit volatile ECC errors.", lambda n: n.fault_counter("ecc_uncorrectable"), False),
    _counter("DEV_ECC_DBE_AGG_TOTAL", "Total number of double-bit persistent ECC errors.", _lifetime_ecc, False),
    _counter("DEV_UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors", lambda n: n.fault_counter("rows_uncorrectable")),
    _counter("DEV_CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors", lambda n: n.fault_counter("rows_correctable")),
    _gauge("DEV_ROW_REMAP_PENDING", "Whether remapping of rows is pending", lambda n: n.fault_level("remap_pending"), False),
    _gauge("DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed", lambda n: n.fault_level("remap_failure")),
    _counter("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "Total number of NVLink flow-control CRC errors.", lambda n: n.fault_counter("nvlink_crc"), False),
    _counter("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "Total number of NVLink retries.", lambda n: n.fault_counter("nvlink_replay"), False),
    _counter("DEV_NVLINK_BANDWIDTH_TOTAL", "Total number of NVLink bandwidth counters for all lanes", _links),
    _gauge("DEV_VGPU_LICENSE_STATUS", "vGPU License status", _zero),
    _profiling_field("PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", physics.ENGINE),
    _profiling_field("PROF_SM_ACTIVE", "The ratio of cycles an SM has at least 1 warp assigned.", physics.SM, False),
    _profiling_field("PROF_SM_OCCUPANCY", "The ratio of number of warps resident on an SM.", physics.OCCUPANCY, False),
    _profiling_field("PROF_PIPE_TENSOR_ACTIVE", "Ratio of time the tensor (HMMA) pipe is active.", physics.TENSOR),
    _profiling_field("PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is sending or receiving data.", physics.DRAM),
    _profiling_field("PROF_PCIE_TX_BYTES", "Total number of bytes transmitted through PCIe TX via NVML.", physics.PCIE_TX, style="whole"),
    _profiling_field("PROF_PCIE_RX_BYTES", "Total number of bytes received through PCIe RX via NVML.", physics.PCIE_RX, style="whole"),
    _profiling_field("PROF_NVLINK_TX_BYTES", "Rate of data sent over NVLink (in bytes per second).", physics.NVLINK, False, "whole"),
    _profiling_field("PROF_NVLINK_RX_BYTES", "Rate of data received over NVLink (in bytes per second).", physics.NVLINK, False, "whole"),
)
# fmt: on


def write(sim: Simulation, node: str, sink: MetricSink) -> None:
    """Write everything that a node's exporter served."""
    telemetry = sim.scenario.telemetry
    times, is_answered = scrapes(sim, node, "gpu")
    if not len(times):
        return
    gpus = range(sim.scenario.cluster.gpus_per_node)
    gpu_tenants = [tenants(sim, node, gpu) for gpu in gpus]
    tracks = [track_of(sim, node, gpu, gpu_tenants[gpu]) for gpu in gpus]
    previous_time = float(times[0]) - telemetry.interval_s
    node_signals = NodeSignals(sim, node, times, physics.gpu_signals(sim, node, tracks, times, previous_time))
    spans = [_spans(sim, node, gpu, gpu_tenants[gpu], times, is_answered) for gpu in gpus]
    times_ms = np.rint(times * 1000).astype(np.int64)
    stamps = [[times_ms[rows] for _, rows in spans[gpu]] for gpu in gpus]
    for field in FIELDS:
        if (field.profiling and not telemetry.profiling) or not (field.by_default or telemetry.fields == "full"):
            continue
        if "NVLINK" in field.name and not sim.model.nvlinks:
            continue
        values = field.values_of(node_signals)
        sink.begin_metric(field.name, field.kind, field.help)
        for gpu in gpus:
            for (labels, rows), stamp in zip(spans[gpu], stamps[gpu], strict=True):
                sink.series(labels, stamp, values[gpu][rows], field.style)


def _spans(
    sim: Simulation, node: str, gpu: int, gpu_tenants: list[Tenant], times: Array, is_answered: NDArray[np.bool_]
) -> list[tuple[dict[str, str], NDArray[np.intp]]]:
    """(labels, scrape indices) of a GPU: the job's label comes and goes."""
    usable = is_answered & (times < sim.lost_gpus.get((node, gpu), math.inf))
    labels = gpu_labels(sim, node, gpu)
    spans: list[tuple[dict[str, str], NDArray[np.intp]]] = []
    unlabeled = usable.copy()
    if sim.scenario.telemetry.job_label:
        for tenant in gpu_tenants:
            if tenant.job:
                during = usable & (times >= tenant.start) & (times < tenant.end)
                spans.append(({**labels, "hpc_job": tenant.job}, np.flatnonzero(during)))
                unlabeled &= ~during
    return [(labels, np.flatnonzero(unlabeled)), *spans]


def gpu_labels(sim: Simulation, node: str, gpu: int) -> dict[str, str]:
    """The labels that a GPU always has."""
    labels = {
        "gpu": str(gpu),
        "UUID": uuid(sim, node, gpu),
        "pci_bus_id": sim.pci(gpu),
        "device": f"nvidia{gpu}",
        "modelName": sim.model.name,
    }
    if sim.scenario.telemetry.mig:
        labels |= {"GPU_I_PROFILE": sim.scenario.telemetry.mig, "GPU_I_ID": "1"}
    return labels | {"Hostname": node, "DCGM_FI_DRIVER_VERSION": sim.scenario.cluster.driver}


def uuid(sim: Simulation, node: str, gpu: int) -> str:
    """The GPU's UUID; the same in every run of that cluster."""
    text = hashlib.sha256(f"{sim.scenario.cluster.name}/{node}/{gpu}".encode()).hexdigest()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"
