"""NVIDIA GPUs through NVML: memory, utilization, clocks, temperature, power, errors, links, processes, and Xids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from trackside.agent.nvml.fields import FIELDS
from trackside.agent.nvml.gpu import GpuUnreachable, NvmlGpu
from trackside.agent.nvml.gpu_labels import GpuLabels
from trackside.agent.nvml.library import GpuDevice, Library
from trackside.agent.nvml.probes import FAULTY_LINKS, PROBES, THROUGHPUT
from trackside.agent.nvml.xids import XidEvents
from trackside.agent.preferred_source import SeriesKey, dcgm_exporter_series, is_kernel_read, series_key
from trackside.agent.source import AgentSource, Collector, Context, Reading

MAX_PROCESSES = 256
"""Maximum per GPU."""
IDLE_RATIO = 0.0025
"""Share of a GPU's memory below which no process can have a context. If more is used and no process is listed, the list
is hidden, as in a container, so nothing is known about processes."""


class _SampledGpu:
    """One GPU, its labels, and the series that it gave at the last reading."""

    def __init__(self, library: Library, device: GpuDevice, context: Context) -> None:
        self.device, self.labels = device, GpuLabels(context.owners, device)
        self.series: dict[str, set[SeriesKey]] = {}
        self.gpu: NvmlGpu | None = None
        with suppress(GpuUnreachable):
            self.gpu = NvmlGpu(library, device)

    def skipped_metrics(self, preferred: frozenset[SeriesKey]) -> set[str]:
        """Metrics that need not be read, because another source sends all their series of this GPU."""
        if not preferred:
            return set()
        # Used memory is always read: it shows whether the list of processes is complete.
        return {metric for metric, keys in self.series.items() if keys <= preferred} - {"gpu_memory_used_bytes"}


class _Gpus(Collector):
    def __init__(self, context: Context) -> None:
        self._context = context
        self._library = library = Library()
        self._api: Any = library.api
        self._sampled_gpus = [_SampledGpu(library, device, context) for device in library.devices]
        self._xids = XidEvents(library, library.devices)
        self._last_xid = dict.fromkeys(range(len(self._sampled_gpus)), 0)
        split = [str(device.index) for device in library.devices if device.mig]
        if split:
            context.say(
                f"GPU {', '.join(split)}: split into MIG instances; memory, temperature and errors are those of the "
                "whole GPU, and the driver reports no utilization"
            )

    def collect(self, reading: Reading) -> None:
        preferred = dcgm_exporter_series(self._context)
        self._read_xids(reading)
        for sampled_gpu in self._sampled_gpus:
            sampled_gpu.labels.renew()
            error = self._read(sampled_gpu, reading, preferred)
            reading.sample(
                "gpu_present", 0 if error else 1, driver=self._library.driver, **dict(sampled_gpu.labels.labels())
            )
            if sampled_gpu.device.index in self._xids.watched or self._last_xid[sampled_gpu.device.index]:
                sampled_gpu.labels.add(reading, preferred, "gpu_xid_last", (), self._last_xid[sampled_gpu.device.index])
            if error:
                reading.warnings.append(_lost_message(sampled_gpu.device, error))
        reading.sample("gpu_visible_gpus", len(self._sampled_gpus))

    def _read(self, sampled_gpu: _SampledGpu, reading: Reading, preferred: frozenset[SeriesKey]) -> str:
        """Read one GPU; the reason if it is lost, else empty. A lost GPU does not affect the others."""
        gpu, labels = sampled_gpu.gpu, sampled_gpu.labels
        if gpu is None:
            return "it could not be identified when the agent started"
        values: dict[str, float] = {}
        series: dict[str, set[SeriesKey]] = {}
        try:
            for metric, metric_labels, value in gpu.read(sampled_gpu.skipped_metrics(preferred)):
                labels.add(reading, preferred, metric, metric_labels, value)
                series.setdefault(metric, set()).add(series_key(metric, labels.labels(metric_labels)))
                values[metric] = value
            self._read_processes(sampled_gpu, reading, values)
        except GpuUnreachable as error:
            return str(error)
        finally:
            sampled_gpu.series.update(series)
        reading.warnings.extend(f"GPU {sampled_gpu.device.index}: {failure}" for failure in gpu.failures)
        return ""

    def _read_processes(self, sampled_gpu: _SampledGpu, reading: Reading, values: dict[str, float]) -> None:
        processes = self._running_processes(sampled_gpu, reading)
        if processes is None:
            return
        owners, index = self._context.owners, str(sampled_gpu.device.index)
        owners.set_gpu_pids(index, [process.pid for process in processes])
        device = {name: value for name, value in sampled_gpu.labels.labels() if name not in ("job", "user")}
        for process in processes:
            if process.usedGpuMemory is None:
                continue
            owner = owners.of_pid(process.pid)
            owner_labels = {} if owner is None else {"job": owner.job, "rank": owner.rank, "user": owner.user}
            mig_instance = process.gpuInstanceId if process.gpuInstanceId != _NO_INSTANCE else None
            labels = {**device, "pid": process.pid, "mig": mig_instance, **owner_labels}
            reading.sample("gpu_process_memory_used_bytes", process.usedGpuMemory, **labels)
        used, total = values.get("gpu_memory_used_bytes", 0.0), values.get("gpu_memory_total_bytes", 0.0)
        if processes or used <= IDLE_RATIO * total:
            sampled_gpu.labels.add(reading, frozenset(), "gpu_processes", (), len(processes))
            sampled_gpu.labels.add(reading, frozenset(), "trackside_gpu_process_attached", (), min(len(processes), 1))

    def _running_processes(self, sampled_gpu: _SampledGpu, reading: Reading) -> list[Any] | None:
        """Processes with a context, up to MAX_PROCESSES; None if the driver does not report them."""
        assert sampled_gpu.gpu is not None
        api, handle = self._api, sampled_gpu.device.handle
        try:
            try:
                processes = api.nvmlDeviceGetComputeRunningProcesses_v3(handle)
            except api.NVMLError_FunctionNotFound:  # drivers before 510
                processes = api.nvmlDeviceGetComputeRunningProcesses_v2(handle)
        except self._library.error as error:
            sampled_gpu.gpu.check(error.value, "nvmlDeviceGetComputeRunningProcesses")
            return None
        if len(processes) > MAX_PROCESSES:
            reading.lost["gpu processes"] += len(processes) - MAX_PROCESSES
        return list(processes[:MAX_PROCESSES])

    def _read_xids(self, reading: Reading) -> None:
        for index, xid in self._xids.new_events(self._library.devices):
            self._last_xid[index] = xid
            # The kernel's own line has more detail: process and location. An Xid reported twice would count as two, so
            # the NVML event becomes a line, in the format that readers know, only if the kernel log is not read here.
            if not is_kernel_read(self._context):
                pci = self._sampled_gpus[index].device.pci
                reading.line(
                    f"NVRM: Xid (PCI:{pci}): {xid}, reported by NVML: the kernel log is not read", unit="kernel"
                )

    def close(self) -> None:
        self._xids.close()
        self._library.close()


_NO_INSTANCE = 0xFFFFFFFF


def _lost_message(device: GpuDevice, reason: str) -> str:
    return (
        f"GPU {device.index} ({device.pci or 'address unknown'}): {reason}. Drain the node; then stop the agent and "
        f"reset the GPU (nvidia-smi --gpu-reset -i {device.index}), or reboot"
    )


def _metrics() -> Iterator[str]:
    for probe in (*PROBES, *THROUGHPUT, FAULTY_LINKS):
        yield from probe.metrics
    yield from (field.metric for field in FIELDS)
    yield from (
        "gpu_present",
        "gpu_visible_gpus",
        "gpu_xid_last",
        "gpu_processes",
        "gpu_process_memory_used_bytes",
        "trackside_gpu_process_attached",
    )


SOURCE = AgentSource(
    id="gpu",
    title="NVIDIA GPUs, through NVML",
    open=_Gpus,
    metrics=tuple(dict.fromkeys(_metrics())),
    lines="Xids, if the kernel log is not read",
    interval_s=10.0,
    needs="read and write access to /dev/nvidiactl and /dev/nvidia*",
)
