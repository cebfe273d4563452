"""NVIDIA's GPU performance monitoring (GPM) through NVML: activity of SMs, tensor cores, memory and links."""

from __future__ import annotations

import time
from ctypes import byref
from typing import Any

from trackside.agent.nvml.gpu_labels import GpuLabels
from trackside.agent.nvml.library import NO_PERMISSION, UNUSABLE_CODES, GpuDevice, Library
from trackside.agent.preferred_source import SeriesKey, dcgm_exporter_series, series_key
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Labels, Reading

_PERCENT, _MIB = 0.01, float(1 << 20)
METRICS: dict[int, tuple[str, Labels, float]] = {
    1: ("gpu_engine_active_ratio", (), _PERCENT),
    2: ("gpu_sm_active_ratio", (), _PERCENT),
    3: ("gpu_sm_occupancy_ratio", (), _PERCENT),
    5: ("gpu_tensor_active_ratio", (), _PERCENT),
    10: ("gpu_dram_active_ratio", (), _PERCENT),
    4: ("gpu_pipe_active_ratio", (("kind", "int"),), _PERCENT),
    6: ("gpu_pipe_active_ratio", (("kind", "tensor_double"),), _PERCENT),
    7: ("gpu_pipe_active_ratio", (("kind", "tensor_half"),), _PERCENT),
    9: ("gpu_pipe_active_ratio", (("kind", "tensor_int"),), _PERCENT),
    11: ("gpu_pipe_active_ratio", (("kind", "fp64"),), _PERCENT),
    12: ("gpu_pipe_active_ratio", (("kind", "fp32"),), _PERCENT),
    13: ("gpu_pipe_active_ratio", (("kind", "fp16"),), _PERCENT),
    20: ("gpu_pcie_tx_bytes_per_second", (), _MIB),
    21: ("gpu_pcie_rx_bytes_per_second", (), _MIB),
    60: ("gpu_nvlink_rx_bytes_per_second", (), _MIB),
    61: ("gpu_nvlink_tx_bytes_per_second", (), _MIB),
}
"""NVML's metric number -> metric, labels, and the factor from percent or MiB/s."""
MIN_INTERVAL_S = 0.1
"""Minimum time between two samples that NVML requires."""


class _GpuSamples:
    """The last sample of one GPU, and the buffer for the next."""

    def __init__(self, api: Any, device: GpuDevice, labels: GpuLabels) -> None:
        self.device, self.labels = device, labels
        self.last, self.next = api.nvmlGpmSampleAlloc(), api.nvmlGpmSampleAlloc()
        self.sampled_at = 0.0
        """Monotonic time of the last sample; 0: there is none."""


class _Monitor(Collector):
    def __init__(self, context: Context, library: Library, devices: list[GpuDevice]) -> None:
        self._context = context
        self._library, self._api, self._error = library, library.api, library.error
        self._gpus = [_GpuSamples(self._api, device, GpuLabels(context.owners, device)) for device in devices]
        self._answer = self._api.c_nvmlGpmMetricsGet_t(
            version=self._api.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(METRICS)
        )
        for index, number in enumerate(METRICS):
            self._answer.metrics[index].metricId = number

    def collect(self, reading: Reading) -> None:
        preferred = dcgm_exporter_series(self._context)
        for gpu in self._gpus:
            gpu.labels.renew()
            try:
                self._read(gpu, reading, preferred)
            except self._error as error:
                gpu.sampled_at = 0.0
                if error.value in UNUSABLE_CODES:
                    raise AgentSourceUnavailable(f"NVML is no longer available: {error}") from None
                reading.warnings.append(f"GPU {gpu.device.index}: no performance sample: {error}")

    def _read(self, gpu: _GpuSamples, reading: Reading, preferred: frozenset[SeriesKey]) -> None:
        """Add the activity since the last sample; the first one gives nothing."""
        if preferred and all(
            series_key(metric, gpu.labels.labels(metric_labels)) in preferred
            for metric, metric_labels, _ in METRICS.values()
        ):
            gpu.sampled_at = 0.0
            return
        now = time.monotonic()
        if gpu.sampled_at and now - gpu.sampled_at < MIN_INTERVAL_S:
            return
        self._api.nvmlGpmSampleGet(gpu.device.handle, gpu.next)
        had_sample, gpu.sampled_at = bool(gpu.sampled_at), now
        gpu.last, gpu.next = gpu.next, gpu.last
        if not had_sample:
            return
        answer = self._answer
        answer.sample1, answer.sample2 = gpu.next, gpu.last
        code = self._api.nvmlLib.nvmlGpmMetricsGet(byref(answer))
        if code:
            raise self._error(code)
        for metric_value, (metric, metric_labels, scale) in zip(answer.metrics, METRICS.values(), strict=False):
            value = metric_value.value * scale
            if metric_value.nvmlReturn == 0 and value >= 0 and (scale != _PERCENT or value <= 1.1):
                gpu.labels.add(reading, preferred, metric, metric_labels, value)

    def close(self) -> None:
        for gpu in self._gpus:
            for sample in (gpu.last, gpu.next):
                self._api.nvmlGpmSampleFree(sample)
        self._library.close()


def _open(context: Context) -> Collector:
    library = Library()
    supported, permission_error = [], ""
    for device in library.devices:
        if device.handle is None or device.mig:
            continue  # MIG instances have their own samples, for which there is no metric
        try:
            if library.api.nvmlGpmQueryDeviceSupport(device.handle).isSupportedDevice:
                supported.append(device)
        except library.error as error:
            permission_error = str(error) if error.value == NO_PERMISSION else permission_error
    if supported:
        return _Monitor(context, library, supported)
    is_split = any(device.mig for device in library.devices)
    library.close()
    if permission_error:
        raise AgentSourceUnavailable(
            f"this user has no permission to profile GPUs: {permission_error}",
            "give the agent CAP_SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
        )
    if is_split:
        raise AgentSourceUnavailable(
            "the GPUs are split into MIG instances", "use dcgm-exporter, which reports activity per instance"
        )
    raise AgentSourceUnavailable(
        "these GPUs have no performance monitoring that NVML can read (available since Hopper)",
        "use dcgm-exporter with its DCGM_FI_PROF_ fields, which gives SM activity on Volta to Ada",
    )


SOURCE = AgentSource(
    id="gpm",
    title="activity of GPU SMs, tensor cores, memory and links (NVML performance monitoring)",
    open=_open,
    metrics=tuple(dict.fromkeys(metric for metric, _, _ in METRICS.values())),
    interval_s=10.0,
    needs="CAP_SYS_ADMIN if the driver restricts profiling to administrators",
)
