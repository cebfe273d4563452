"""The catalog of metrics: unit, kind, labels, meaning. :mod:`trackside.catalog.dialects` maps foreign names to these.

Names follow the Prometheus conventions: base units, ``_total`` for counters, ``_ratio`` for 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

MetricKind = Literal["gauge", "counter", "sticky", "flags"]
"""gauge: a level. counter: only rises, but restarts at 0. sticky: keeps its last value until the exporter restarts, so
only changes are meaningful. flags: bits of an integer."""

DESCRIPTIVE_LABELS = frozenset({"job", "gpu_uuid", "gpu_model", "pci", "source", "user", "driver"})
"""Labels that describe a series at a time, such as its job; all other labels are part of its identity."""

COMMON_LABELS = frozenset({"node", "gpu", "mig", "rank", "pid"}) | DESCRIPTIVE_LABELS
"""Labels that any metric may have; metrics of hosts and scrapes have only :data:`HOST_LABELS`."""
HOST_LABELS = frozenset({"node", "job", "user", "source"})

Bounds = tuple[float, float]

BOUNDS: Mapping[str, Bounds] = {
    "ratio": (0.0, 1.1),  # counters read at slightly different times give a little more than 1
    "B/s": (0.0, 1e14),
    "C": (-60.0, 200.0),
    "W": (0.0, 2e4),
    "Hz": (0.0, 1e11),
    "s": (0.0, 1e12),
    "time": (0.0, 1e11),
    "bool": (0.0, 1.0),
    "state": (0.0, 15.0),
    "": (-math.inf, math.inf),
}
"""unit -> (smallest, largest) plausible value; other units have :data:`DEFAULT_BOUNDS`"""
DEFAULT_BOUNDS: Bounds = (0.0, 1e18)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``labels``: those that it may have in addition to :data:`COMMON_LABELS`. ``collect``: how to enable it, if it is
    often missing.

    ``bounds``: (smallest, largest) plausible value, if not that of the unit. ``diverges``: NaN and infinities are
    measurements, not missing values: all are stored as +inf, which can be compared and written to any file.
    """

    unit: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    collect: str = ""
    bounds: Bounds | None = None
    diverges: bool = False

    @property
    def low(self) -> float:
        """The smallest plausible value, in its unit."""
        return (self.bounds or BOUNDS.get(self.unit, DEFAULT_BOUNDS))[0]

    @property
    def high(self) -> float:
        """The largest plausible value, in its unit."""
        return (self.bounds or BOUNDS.get(self.unit, DEFAULT_BOUNDS))[1]


_LISTED = "dcgm-exporter exports it if its counters file lists {}"
_PROFILING = _LISTED + " (its default file does not)"
_PROFILING_DEFAULT = _LISTED + ", as its default file does, where the GPU has profiling fields"
"""By etc/default-counters.csv of dcgm-exporter."""
_MOUNTSTATS = "node_exporter exports it with --collector.mountstats"
_AGENT = "the Trackside agent exports it if Slurm puts jobs in cgroups"


def _profiling_ratio(field: str, meaning: str) -> Metric:
    is_default = field in (
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_DRAM_ACTIVE",
    )
    return Metric("ratio", "gauge", meaning, collect=(_PROFILING_DEFAULT if is_default else _PROFILING).format(field))


def _dcgm_listed(unit: str, kind: MetricKind, field: str, meaning: str, *labels: str) -> Metric:
    return Metric(unit, kind, meaning, labels, _LISTED.format(field))


def _cgroup_metric(unit: str, kind: MetricKind, meaning: str, *labels: str) -> Metric:
    """A metric of a job, step or task on one node: ``cgroup`` is ``job_42/step_0/task_3``; other labels repeat its parts."""
    return Metric(unit, kind, meaning, ("cgroup", "step", "task", *labels), _AGENT)


METRICS: Mapping[str, Metric] = {
    # -- a GPU's work
    "gpu_engine_active_ratio": _profiling_ratio(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "share of time any kernel was resident; a busy-wait counts as well"
    ),
    "gpu_utilization_ratio": Metric(
        "ratio", "gauge", "NVML utilization: share of time with a kernel resident; not proof of work"
    ),
    "gpu_sm_active_ratio": _profiling_ratio(
        "DCGM_FI_PROF_SM_ACTIVE", "share of SM cycles with at least one warp assigned: the measure of work"
    ),
    "gpu_sm_occupancy_ratio": _profiling_ratio("DCGM_FI_PROF_SM_OCCUPANCY", "resident warps relative to the maximum"),
    "gpu_tensor_active_ratio": _profiling_ratio("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "share of cycles the tensor pipe was busy"),
    "gpu_pipe_active_ratio": Metric(
        "ratio", "gauge", "share of cycles a pipe was busy: fp16, fp32, fp64, int, or a kind of tensor product",
        ("kind",), _PROFILING.format("DCGM_FI_PROF_PIPE_FP16_ACTIVE and the like"),
    ),
    "gpu_dram_active_ratio": _profiling_ratio("DCGM_FI_PROF_DRAM_ACTIVE", "share of cycles device memory moved data"),
    "gpu_memory_utilization_ratio": Metric(
        "ratio", "gauge", "NVML memory utilization: share of time device memory was read or written; not how full it is"
    ),
    "gpu_encoder_utilization_ratio": Metric("ratio", "gauge", "share of time the video encoders were busy"),
    "gpu_decoder_utilization_ratio": Metric("ratio", "gauge", "share of time the video decoders were busy"),
    "gpu_media_utilization_ratio": Metric(
        "ratio", "gauge", "share of time a media engine was busy: jpeg, optical_flow", ("kind",)
    ),
    # -- its memory
    "gpu_memory_used_bytes": Metric("bytes", "gauge", "device memory in use by all processes"),
    "gpu_memory_free_bytes": Metric("bytes", "gauge", "device memory not in use"),
    "gpu_memory_reserved_bytes": Metric("bytes", "gauge", "device memory reserved by driver and firmware; not included in used or free"),
    "gpu_memory_total_bytes": _dcgm_listed("bytes", "gauge", "DCGM_FI_DEV_FB_TOTAL", "total device memory"),
    "gpu_memory_used_ratio": Metric("ratio", "gauge", "device memory in use relative to the usable memory"),
    "gpu_bar1_used_bytes": Metric("bytes", "gauge", "BAR1 aperture in use"),
    "gpu_bar1_free_bytes": Metric("bytes", "gauge", "BAR1 aperture not in use"),
    "gpu_bar1_total_bytes": Metric("bytes", "gauge", "total BAR1 aperture"),
    # -- heat, power, clocks
    "gpu_temperature_celsius": Metric("C", "gauge", "GPU core temperature; the hot spot if only that is reported"),
    "gpu_memory_temperature_celsius": Metric("C", "gauge", "device memory temperature"),
    "gpu_temperature_margin_celsius": _dcgm_listed(
        "C", "gauge", "DCGM_FI_DEV_GPU_TEMP_LIMIT", "degrees left until clocks are reduced because of heat"
    ),
    "gpu_temperature_limit_celsius": _dcgm_listed(
        "C", "gauge", "DCGM_FI_DEV_SLOWDOWN_TEMP",
        "temperature limits: slowdown, shutdown, operating, memory_operating", "kind",
    ),
    "gpu_fan_speed_ratio": Metric("ratio", "gauge", "fan speed relative to the rated speed", bounds=(0.0, 3.0)),
    "gpu_power_watts": Metric("W", "gauge", "power draw"),
    "gpu_power_instant_watts": Metric("W", "gauge", "instantaneous power draw, where gpu_power_watts is an average"),
    "gpu_power_limit_watts": Metric("W", "gauge", "power limit in force", collect=_LISTED.format("DCGM_FI_DEV_POWER_MGMT_LIMIT")),
    "gpu_power_limit_range_watts": Metric("W", "gauge", "possible power limits: default, min, max", ("kind",)),
    "gpu_energy_joules_total": Metric("J", "counter", "energy since the driver was loaded"),
    "gpu_sm_clock_hertz": Metric("Hz", "gauge", "SM clock"),
    "gpu_sm_clock_max_hertz": _dcgm_listed("Hz", "gauge", "DCGM_FI_DEV_MAX_SM_CLOCK", "highest SM clock of this GPU"),
    "gpu_sm_clock_requested_hertz": _dcgm_listed("Hz", "gauge", "DCGM_FI_DEV_APP_SM_CLOCK", "SM clock set for applications"),
    "gpu_memory_clock_hertz": Metric("Hz", "gauge", "memory clock"),
    "gpu_memory_clock_max_hertz": Metric("Hz", "gauge", "highest memory clock of this GPU"),
    "gpu_clock_hertz": Metric("Hz", "gauge", "any other clock: graphics, video, fabric", ("kind",)),
    "gpu_clock_max_hertz": Metric("Hz", "gauge", "highest value of any other clock", ("kind",)),
    "gpu_throttle_reasons": _dcgm_listed(
        "flags", "flags", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS (DCGM_FI_DEV_CLOCK_THROTTLE_REASONS before DCGM 4)",
        "why clocks are reduced: the bits of NVML's clocks event reasons",
    ),
    "gpu_throttle_active": Metric(
        "bool", "gauge", "whether clocks are reduced for one reason", ("reason",)
    ),
    "gpu_throttle_ratio": Metric("ratio", "gauge", "share of time clocks were reduced", ("reason",)),
    "gpu_throttle_seconds_total": _dcgm_listed(
        "s", "counter", "DCGM_FI_DEV_POWER_VIOLATION, DCGM_FI_DEV_THERMAL_VIOLATION", "time clocks were reduced", "reason"
    ),
    "gpu_throttle_events": _dcgm_listed(
        "events", "gauge", "DCGM_EXP_CLOCK_EVENTS_COUNT", "samples with reduced clocks in the last few minutes", "reason"
    ),
    "gpu_pstate": Metric("state", "gauge", "performance state, 0 the highest"),
    # -- faults
    "gpu_xid_last": Metric("code", "sticky", "last Xid since the exporter started; 0 for none"),
    "gpu_xid_events": _dcgm_listed(
        "events", "gauge", "DCGM_EXP_XID_ERRORS_COUNT", "how often one Xid occurred in the last few minutes", "xid"
    ),
    "gpu_ecc_correctable_total": _dcgm_listed(
        "errors", "counter", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "correctable ECC errors since the driver was loaded"
    ),
    "gpu_ecc_uncorrectable_total": _dcgm_listed(
        "errors", "counter", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "uncorrectable ECC errors since the driver was loaded"
    ),
    "gpu_ecc_correctable_lifetime_total": _dcgm_listed(
        "errors", "counter", "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "correctable ECC errors over the GPU's lifetime"
    ),
    "gpu_ecc_uncorrectable_lifetime_total": _dcgm_listed(
        "errors", "counter", "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "uncorrectable ECC errors over the GPU's lifetime"
    ),
    "gpu_ecc_location_total": Metric(
        "errors", "counter",
        "ECC errors by location (l1, l2, dram, register, texture, sram...) and kind (correctable, uncorrectable; with "
        "_lifetime over the GPU's lifetime)",
        ("location", "kind"),
    ),
    "gpu_sram_threshold_exceeded": Metric("bool", "gauge", "SRAM errors exceeded the limit: the GPU should be replaced"),
    "gpu_rows_remapped_correctable_total": Metric("rows", "counter", "memory rows remapped for correctable errors"),
    "gpu_rows_remapped_uncorrectable_total": Metric("rows", "counter", "memory rows remapped for uncorrectable errors"),
    "gpu_row_remap_pending": _dcgm_listed("bool", "gauge", "DCGM_FI_DEV_ROW_REMAP_PENDING", "a remapping is pending until a reset"),
    "gpu_row_remap_failed": Metric("bool", "gauge", "a remapping failed: the GPU must be replaced"),
    "gpu_row_remap_banks": Metric(
        "banks", "gauge", "memory banks by how many spare rows they have: max, high, partial, low, none", ("level",)
    ),
    "gpu_pages_retired_total": _dcgm_listed(
        "pages", "counter", "DCGM_FI_DEV_RETIRED_SBE, DCGM_FI_DEV_RETIRED_DBE",
        "memory pages retired; cause: single_bit, double_bit", "cause",
    ),
    "gpu_pages_pending": Metric("pages", "gauge", "memory pages pending retirement until a reboot; 1 if only yes or no is reported"),
    "gpu_recovery_action": Metric(
        "code", "gauge", "action that the driver requests: 0 nothing, 1 GPU reset, 2 reboot, 3 drain P2P, 4 drain and reset"
    ),
    "gpu_health": _dcgm_listed(
        "code", "gauge", "DCGM_EXP_GPU_HEALTH_STATUS", "health roll-up of the monitor: 0 pass, 10 warn, 20 fail", "kind"
    ),
    "gpu_healthy": Metric("bool", "gauge", "whether the monitor reports the GPU as healthy"),
    "gpu_ras_event_last": Metric("code", "sticky", "AMD: field identifier of the last RAS event"),
    "gpu_index": Metric("", "gauge", "index of a GPU whose other series have only its UUID"),
    "gpu_present": Metric("bool", "gauge", "1 for a GPU that the monitor sees; has index, UUID and PCI address as labels"),
    "gpu_visible_gpus": Metric("GPUs", "gauge", "GPUs that the monitor sees on the node"),
    "gpu_processes": Metric("processes", "gauge", "processes with a context on the GPU"),
    "gpu_process_memory_used_bytes": Metric("bytes", "gauge", "device memory of one process"),
    "gpu_process_utilization_ratio": Metric("ratio", "gauge", "share of time a process had a kernel resident"),
    "gpu_process_memory_utilization_ratio": Metric("ratio", "gauge", "share of time a process read or wrote device memory"),
    # -- links
    "gpu_nvlink_errors_total": _dcgm_listed(
        "errors", "counter", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL and the like",
        "NVLink errors; kind: crc_flit, crc_data, replay, recovery and others; without link: all links together",
        "kind", "link",
    ),
    "gpu_nvlink_bit_error_ratio": Metric(
        "ratio", "gauge", "bit error ratio of NVLink; kind: symbol, effective", ("kind", "link"), bounds=(0.0, 1.0)
    ),
    "gpu_nvlink_bytes_per_second": Metric("B/s", "gauge", "NVLink bytes sent and received together", ("link",)),
    "gpu_nvlink_tx_bytes_per_second": Metric(
        "B/s", "gauge", "NVLink bytes sent", ("link",), _PROFILING.format("DCGM_FI_PROF_NVLINK_TX_BYTES")
    ),
    "gpu_nvlink_rx_bytes_per_second": Metric(
        "B/s", "gauge", "NVLink bytes received", ("link",), _PROFILING.format("DCGM_FI_PROF_NVLINK_RX_BYTES")
    ),
    "gpu_nvlink_tx_bytes_total": Metric("bytes", "counter", "bytes sent over NVLink or XGMI", ("link",)),
    "gpu_nvlink_rx_bytes_total": Metric("bytes", "counter", "bytes received over NVLink or XGMI", ("link",)),
    "gpu_pcie_tx_bytes_per_second": Metric("B/s", "gauge", "PCIe bytes sent by the GPU"),
    "gpu_pcie_rx_bytes_per_second": Metric("B/s", "gauge", "PCIe bytes received by the GPU"),
    "gpu_pcie_bytes_per_second": Metric("B/s", "gauge", "PCIe bytes sent and received together"),
    "gpu_pcie_tx_bytes_total": Metric("bytes", "counter", "PCIe bytes sent by the GPU"),
    "gpu_pcie_rx_bytes_total": Metric("bytes", "counter", "PCIe bytes received by the GPU"),
    "gpu_io_bytes_total": Metric("bytes", "counter", "bytes in and out of the GPU; direction: transmit, receive", ("direction",)),
    "gpu_pcie_replays_total": Metric("replays", "counter", "PCIe packets retransmitted"),
    "gpu_pcie_errors_total": Metric("errors", "counter", "PCIe errors: correctable, nack_sent, nack_received", ("kind",)),
    "gpu_pcie_link_generation": Metric("generation", "gauge", "PCIe generation in use; drops when idle"),
    "gpu_pcie_link_generation_max": Metric("generation", "gauge", "highest PCIe generation of GPU and slot"),
    "gpu_pcie_link_width": Metric("lanes", "gauge", "PCIe lanes in use"),
    "gpu_pcie_link_width_max": Metric("lanes", "gauge", "maximum PCIe lanes of GPU and slot"),
    "gpu_fabric_state": Metric("code", "gauge", "NVLink fabric registration: 3 is completed"),
    # -- the host
    "host_cpu_seconds_total": Metric("s", "counter", "CPU time of all cores by mode", ("mode", "cpu")),
    "host_cpu_busy_ratio": Metric("ratio", "gauge", "share of CPU time not idle"),
    "host_cpus": Metric("cpus", "gauge", "logical CPUs"),
    "host_cpu_throttles_total": Metric("events", "counter", "times a CPU was throttled because of heat", ("device", "cpu")),
    "host_load1": Metric("tasks", "gauge", "run queue and uninterruptible tasks, 1-minute average"),
    "host_tasks_blocked": Metric("tasks", "gauge", "tasks in uninterruptible sleep: waiting for storage, mostly"),
    "host_memory_total_bytes": Metric("bytes", "gauge", "total host memory"),
    "host_memory_available_bytes": Metric("bytes", "gauge", "host memory available to a new process"),
    "host_memory_free_bytes": Metric("bytes", "gauge", "unused host memory, without caches"),
    "host_swap_free_bytes": Metric("bytes", "gauge", "swap not in use"),
    "host_swap_total_bytes": Metric("bytes", "gauge", "total swap"),
    "host_shm_bytes": Metric("bytes", "gauge", "shared memory, /dev/shm included"),
    "host_major_faults_total": Metric("faults", "counter", "page faults that read from storage"),
    "host_oom_kills_total": Metric("kills", "counter", "processes killed by the kernel because of low memory"),
    "host_memory_errors_total": Metric("errors", "counter", "host memory errors seen by EDAC: correctable, uncorrectable", ("device", "kind")),
    "host_pressure_seconds_total": Metric("s", "counter", "time tasks stalled; level: some, full", ("resource", "level")),
    "host_disk_busy_seconds_total": Metric("s", "counter", "time a disk was busy", ("device",)),
    "host_disk_read_bytes_total": Metric("bytes", "counter", "bytes read from a disk", ("device",)),
    "host_disk_written_bytes_total": Metric("bytes", "counter", "bytes written to a disk", ("device",)),
    "host_disk_operations_total": Metric("operations", "counter", "reads and writes completed by a disk", ("device", "op")),
    "host_disk_operation_seconds_total": Metric(
        "s", "counter", "time of a disk's reads and writes, each from queueing to completion", ("device", "op")
    ),
    "host_disk_requests": Metric("requests", "gauge", "disk requests in progress", ("device",)),
    "host_filesystem_free_bytes": Metric("bytes", "gauge", "free space", ("mountpoint",)),
    "host_filesystem_total_bytes": Metric("bytes", "gauge", "total space", ("mountpoint",)),
    "host_filesystem_files_free": Metric("inodes", "gauge", "free inodes", ("mountpoint",)),
    "host_filesystem_read_only": Metric("bool", "gauge", "whether it is mounted read-only", ("mountpoint",)),
    "host_filesystem_error": Metric("bool", "gauge", "whether querying its state failed: usually a stale mount", ("mountpoint",)),
    "host_nfs_calls_total": Metric("calls", "counter", "RPC calls of the NFS client"),
    "host_nfs_retransmissions_total": Metric("calls", "counter", "RPC calls retransmitted by the NFS client"),
    "host_nfs_read_bytes_total": Metric("bytes", "counter", "bytes read over NFS", ("mountpoint",), _MOUNTSTATS),
    "host_nfs_written_bytes_total": Metric("bytes", "counter", "bytes written over NFS", ("mountpoint",), _MOUNTSTATS),
    "host_nfs_operations_total": Metric("calls", "counter", "NFS operations by kind", ("mountpoint", "op"), _MOUNTSTATS),
    "host_nfs_operation_seconds_total": Metric(
        "s", "counter", "time of NFS operations, from queueing to response", ("mountpoint", "op"), _MOUNTSTATS
    ),
    "host_nfs_round_trip_seconds_total": Metric(
        "s", "counter", "time of NFS operations between request and response", ("mountpoint", "op"), _MOUNTSTATS
    ),
    "host_nfs_resent_total": Metric("calls", "counter", "NFS requests retransmitted on a mount", ("mountpoint",), _MOUNTSTATS),
    "host_nfs_timeouts_total": Metric(
        "calls", "counter", "NFS requests not answered after all retries", ("mountpoint",), _MOUNTSTATS
    ),
    "host_nfs_backlog_total": Metric(
        "requests", "counter", "requests waiting for a slot, summed at every request sent", ("mountpoint",), _MOUNTSTATS
    ),
    "host_network_tx_bytes_total": Metric("bytes", "counter", "bytes sent", ("device",)),
    "host_network_rx_bytes_total": Metric("bytes", "counter", "bytes received", ("device",)),
    "host_network_errors_total": Metric(
        "packets", "counter", "packets in error or dropped: tx_errors, rx_errors, tx_dropped, rx_dropped", ("device", "kind")
    ),
    "host_network_up": Metric("bool", "gauge", "whether the link is up", ("device",)),
    "host_network_speed_bytes_per_second": Metric("B/s", "gauge", "speed of the link", ("device",), bounds=(0.0, 1e14)),
    "host_tcp_retransmissions_total": Metric("segments", "counter", "TCP segments retransmitted"),
    "host_infiniband_tx_bytes_total": Metric("bytes", "counter", "bytes sent on a port", ("device", "port")),
    "host_infiniband_rx_bytes_total": Metric("bytes", "counter", "bytes received on a port", ("device", "port")),
    "host_infiniband_errors_total": Metric(
        "errors", "counter", "port errors: symbol, receive, link_recovery, local_integrity, discards and others",
        ("device", "port", "kind"),
    ),
    "host_infiniband_link_downs_total": Metric("events", "counter", "times a port's link went down", ("device", "port")),
    "host_infiniband_waits_total": Metric("ticks", "counter", "ticks in which a port had data but no credit to send", ("device", "port")),
    "host_infiniband_state": Metric("code", "gauge", "logical state of a port: 4 is active", ("device", "port")),
    "host_infiniband_rate_bytes_per_second": Metric("B/s", "gauge", "speed of a port", ("device", "port")),
    "host_temperature_celsius": Metric("C", "gauge", "temperature of a sensor of the host", ("device", "sensor")),
    "host_power_watts": Metric("W", "gauge", "power draw of the host or a part", ("device",), bounds=(0.0, 2e5)),
    "host_energy_joules_total": Metric("J", "counter", "energy of the host or a part", ("device",)),
    "host_errors_total": Metric("errors", "counter", "errors of a part of the host", ("device", "component", "kind")),
    "host_boot_time_seconds": Metric("time", "gauge", "POSIX time of the last boot"),
    "host_time_seconds": Metric("time", "gauge", "the node's clock at the time of the sample"),
    "host_clock_offset_seconds": Metric("s", "gauge", "offset of the node's clock according to NTP", bounds=(-1e9, 1e9)),
    # -- a job's share of the host
    "host_cgroup_cpu_seconds_total": _cgroup_metric("s", "counter", "CPU time of a cgroup: user, system", "mode"),
    "host_cgroup_cpu_throttled_seconds_total": _cgroup_metric("s", "counter", "time a cgroup was throttled at its CPU quota"),
    "host_cgroup_memory_used_bytes": _cgroup_metric("bytes", "gauge", "memory that counts toward the limit, including caches"),
    "host_cgroup_memory_peak_bytes": _cgroup_metric("bytes", "gauge", "peak memory of a cgroup"),
    "host_cgroup_memory_limit_bytes": _cgroup_metric("bytes", "gauge", "memory limit of a cgroup"),
    "host_cgroup_memory_bytes": _cgroup_metric("bytes", "gauge", "memory of a cgroup by kind: anon, file, shmem", "kind"),
    "host_cgroup_memory_events_total": _cgroup_metric(
        "events", "counter", "times a cgroup reached its memory limits: low, high, max, oom, oom_kill, oom_group_kill", "kind"
    ),
    "host_cgroup_pressure_seconds_total": _cgroup_metric(
        "s", "counter", "time a cgroup's tasks stalled; level: some, full", "resource", "level"
    ),
    "host_cgroup_tasks": _cgroup_metric("tasks", "gauge", "processes and threads of a cgroup"),
    # -- the monitors themselves
    "scrape_up": Metric("bool", "gauge", "whether the exporter responded", ("target",)),
    "scrape_seconds": Metric("s", "gauge", "time the exporter took to respond", ("target",)),
    "scrape_samples": Metric("samples", "gauge", "samples that the exporter returned", ("target",)),
    "exporter_success": Metric("bool", "gauge", "whether a part of an exporter worked", ("collector",)),
    # -- the scheduler
    "slurm_controller_up": Metric("bool", "gauge", "whether slurmctld answered the last query"),
    "slurm_daemon_up": Metric("bool", "gauge", "whether a Slurm daemon runs on the node: slurmd", ("daemon",)),
    "slurm_jobs": Metric("jobs", "gauge", "pending and running jobs; each array task counts", ("state", "partition")),
    "slurm_jobs_pending": Metric("jobs", "gauge", "pending jobs by reason", ("reason", "partition")),
    "slurm_pending_oldest_seconds": Metric(
        "s", "gauge", "longest waiting time of a job since it became eligible", ("partition",)
    ),
    "slurm_job_events_total": Metric(
        "jobs", "counter", "jobs submitted, started, completed, canceled, failed; since midnight", ("event",)
    ),
    "slurm_nodes": Metric("nodes", "gauge", "nodes by state: idle, mixed, allocated, draining, drain, down and others", ("state",)),
    "slurm_node_available": Metric("bool", "gauge", "whether a node accepts work: neither down nor drained"),
    "slurm_node_state_seconds_total": Metric("s", "counter", "observed time of a node in a state", ("state",)),
    "slurm_server_threads": Metric("threads", "gauge", "busy request threads of slurmctld, at most 256"),
    "slurm_agent_queue": Metric("messages", "gauge", "messages from slurmctld to nodes not yet sent"),
    "slurm_accounting_queue": Metric("messages", "gauge", "messages from slurmctld to accounting not yet sent"),
    "slurm_schedule_cycle_seconds": Metric(
        "s", "gauge", "duration of a scheduling cycle: main or backfill; last, mean, max", ("scheduler", "statistic")
    ),
    "slurm_schedule_cycles_total": Metric("cycles", "counter", "scheduling cycles; since midnight", ("scheduler",)),
    "slurm_schedule_queue_jobs": Metric("jobs", "gauge", "jobs that the last cycle considered", ("scheduler",)),
    "slurm_backfilled_jobs_total": Metric("jobs", "counter", "jobs that backfill started"),
    "slurm_rpcs_total": Metric("requests", "counter", "requests that slurmctld answered, by kind", ("rpc",)),
    "slurm_rpc_seconds_total": Metric("s", "counter", "time spent on these requests", ("rpc",)),
    # -- training
    "training_loss": Metric("", "gauge", "training loss; inf if it was not finite", diverges=True),
    "training_validation_loss": Metric("", "gauge", "loss on held-out data"),
    "training_perplexity": Metric("", "gauge", "perplexity"),
    "training_loss_spike": Metric("bool", "gauge", "whether the trainer reports a loss spike"),
    "training_convergence_velocity": Metric("", "gauge", "how fast the loss falls, as computed by the trainer; negative if it rises"),
    "training_gradient_norm": Metric("", "gauge", "gradient norm; inf if it was not finite", diverges=True),
    "training_learning_rate": Metric("", "gauge", "learning rate"),
    "training_step": Metric("steps", "gauge", "steps done"),
    "training_epoch": Metric("epochs", "gauge", "epochs done"),
    "training_step_seconds": Metric("s", "gauge", "wall time of a step; with rank, of that rank's own work"),
    "training_samples_per_second": Metric("samples/s", "gauge", "throughput"),
    "training_tokens_per_second": Metric("tokens/s", "gauge", "throughput"),
    "training_data_loading_ratio": Metric("ratio", "gauge", "share of a step spent waiting for data"),
    "training_data_loading_seconds": Metric("s", "gauge", "time of a step spent waiting for data"),
    "training_model_flops_utilization_ratio": Metric("ratio", "gauge", "model FLOPs relative to the hardware's peak"),
    "training_batch_efficiency_ratio": Metric("ratio", "gauge", "share of a batch that is not padding"),
    "training_all_reduce_seconds": Metric("s", "gauge", "time of gradient synchronization per step"),
    "training_checkpoint_seconds": Metric("s", "gauge", "time of the last checkpoint"),
    "training_memory_allocated_bytes": Metric("bytes", "gauge", "device memory of live tensors, as counted by the framework"),
    "training_memory_reserved_bytes": Metric("bytes", "gauge", "device memory that the framework's allocator holds"),
    "training_memory_peak_bytes": Metric(
        "bytes", "gauge", "peak since the start or the last reset: active, allocated, reserved", ("kind",)
    ),
    "training_memory_retries_total": Metric("events", "counter", "allocations that succeeded only after the cache was emptied"),
    "training_memory_ooms_total": Metric("events", "counter", "allocations that failed because device memory ran out"),
    # -- what the agent traces
    "trackside_cuda_kernel_launches_total": Metric("launches", "counter", "kernel launches since the tracer probed the process's libraries"),
    "trackside_cuda_api_seconds_total": Metric("s", "counter", "time in CUDA API calls", ("api",)),
    "trackside_cuda_api_calls_total": Metric("calls", "counter", "CUDA API calls", ("api",)),
    "trackside_cuda_memcpy_bytes_total": Metric("bytes", "counter", "bytes copied: h2d, d2h, d2d, p2p, h2h; default: direction unknown", ("direction",)),
    "trackside_nccl_collectives_started_total": Metric("collectives", "counter", "collectives started", ("op", "comm")),
    "trackside_nccl_collectives_completed_total": Metric("collectives", "counter", "collectives completed", ("op", "comm")),
    "trackside_nccl_collective_seconds_total": Metric("s", "counter", "time in collectives", ("op", "comm")),
    "trackside_nccl_collectives_in_flight": Metric(
        "collectives", "gauge", "collectives started but not completed", ("op", "comm")
    ),
    "trackside_nccl_oldest_in_flight_seconds": Metric(
        "s", "gauge", "age of the oldest collective in flight; 0 if none is in flight", ("comm",)
    ),
    "trackside_nccl_enqueue_seconds_total": Metric(
        "s", "counter", "host time in calls that enqueue collectives", ("op", "comm")
    ),
    "trackside_nccl_communicators": Metric("communicators", "gauge", "live communicators"),
    "trackside_gpu_process_attached": Metric("bool", "gauge", "1 while a process holds a CUDA context"),
    "trackside_job_processes": Metric("processes", "gauge", "processes of a job on the node"),
    "trackside_job_ranks": Metric("ranks", "gauge", "ranks of a job with a process on the node"),
    "trackside_owner_processes": Metric(
        "processes", "gauge", "processes of a rank or container; has step, task, local rank, container and pod as labels",
        ("step", "task", "local_rank", "container", "pod"),
    ),
    "trackside_unread_processes": Metric(
        "processes", "gauge", "processes of jobs whose environment cannot be read, so their ranks are unknown"
    ),
    "trackside_tracer_attached": Metric("bool", "gauge", "whether this process is traced", ("collector",)),
    "trackside_tracer_lost_events_total": Metric("events", "counter", "events lost by the tracer", ("collector",)),
    "trackside_collector_success": Metric("bool", "gauge", "whether a collector worked", ("collector",)),
    "trackside_collector_seconds": Metric("s", "gauge", "time a collector took", ("collector",)),
    "trackside_collector_failures": Metric("readings", "gauge", "failed readings since the last successful one", ("collector",)),
    "trackside_collector_last_success_time": Metric("time", "gauge", "POSIX time of a collector's last successful reading", ("collector",)),
    "trackside_collector_lost_total": Metric(
        "items", "counter", "data that a collector lost, by kind: lines, bytes, events", ("collector", "kind")
    ),
    "trackside_agent_memory_bytes": Metric("bytes", "gauge", "resident memory of the agent"),
    "trackside_agent_cpu_seconds_total": Metric("s", "counter", "CPU time of the agent"),
    "trackside_agent_start_time": Metric("time", "gauge", "POSIX time of the agent's start"),
    "trackside_send_success": Metric("bool", "gauge", "whether the last attempt to send succeeded: remote_write, loki", ("receiver",)),
    "trackside_send_last_success_time": Metric("time", "gauge", "POSIX time of the last successful send", ("receiver",)),
    "trackside_send_sent_total": Metric("items", "counter", "samples or lines that a receiver accepted", ("receiver",)),
    "trackside_send_failures_total": Metric("requests", "counter", "requests that failed and were retried", ("receiver",)),
    "trackside_send_waiting": Metric("items", "gauge", "samples or lines waiting to be sent", ("receiver",)),
    "trackside_send_waiting_bytes": Metric("bytes", "gauge", "bytes waiting in the spool: on disk, in memory", ("receiver", "kind")),
    "trackside_send_lost_total": Metric(
        "items", "counter",
        "samples or lines that were not sent: refused, spool_full, memory_full, damaged, blocked", ("receiver", "reason"),
    ),
}  # fmt: skip
"""name -> metric"""


@cache
def labels_of(name: str) -> frozenset[str]:
    """The labels that a metric may have."""
    common = HOST_LABELS if name.startswith(("host_", "scrape_", "exporter_", "slurm_")) else COMMON_LABELS
    return common.union(METRICS[name].labels)
