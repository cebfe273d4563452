"""NVIDIA's performance monitor through NVML: what share of time SMs, tensor cores, memory and links did work."""

from __future__ import annotations

import time
from ctypes import byref
from typing import Any

from trackside.agent.nvml.library import GONE, NO_PERMISSION, Device, Library
from trackside.agent.nvml.whose import Whose
from trackside.agent.source import Collector, Context, Labels, Reading, Source, Unavailable
from trackside.agent.taken_over import Curve, curve, taken_over

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
"""NVML's number -> metric, labels, and the factor from its per cent or MiB/s."""
LEAST_S = 0.1
"""NVML asks for this much time between two samples."""


class _Monitored:
    """One GPU's last sample, and the buffer for the next."""

    def __init__(self, api: Any, device: Device, whose: Whose) -> None:
        self.device, self.whose = device, whose
        self.last, self.next = api.nvmlGpmSampleAlloc(), api.nvmlGpmSampleAlloc()
        self.taken = 0.0
        """When the last was; 0: there is none."""


class _Monitor(Collector):
    def __init__(self, context: Context, library: Library, devices: list[Device]) -> None:
        self._context = context
        self._library, self._api, self._error = library, library.api, library.error
        self._gpus = [_Monitored(self._api, device, Whose(context.owners, device)) for device in devices]
        self._answer = self._api.c_nvmlGpmMetricsGet_t(
            version=self._api.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(METRICS)
        )
        for place, number in enumerate(METRICS):
            self._answer.metrics[place].metricId = number

    def collect(self, reading: Reading) -> None:
        others = taken_over(self._context)
        for gpu in self._gpus:
            gpu.whose.renew()
            try:
                self._read(gpu, reading, others)
            except self._error as error:
                gpu.taken = 0.0
                if error.value in GONE:
                    raise Unavailable(f"NVML went away: {error}") from None
                reading.warnings.append(f"GPU {gpu.device.index}: no performance sample: {error}")

    def _read(self, gpu: _Monitored, reading: Reading, others: frozenset[Curve]) -> None:
        """What it did since the last sample. The first one gives nothing."""
        if others and all(curve(metric, gpu.whose.labels(own)) in others for metric, own, _ in METRICS.values()):
            gpu.taken = 0.0
            return
        now = time.monotonic()
        if gpu.taken and now - gpu.taken < LEAST_S:
            return
        self._api.nvmlGpmSampleGet(gpu.device.handle, gpu.next)
        had, gpu.taken = bool(gpu.taken), now
        gpu.last, gpu.next = gpu.next, gpu.last
        if not had:
            return
        answer = self._answer
        answer.sample1, answer.sample2 = gpu.next, gpu.last
        code = self._api.nvmlLib.nvmlGpmMetricsGet(byref(answer))
        if code:
            raise self._error(code)
        for given, (metric, own, scale) in zip(answer.metrics, METRICS.values(), strict=False):
            value = given.value * scale
            if given.nvmlReturn == 0 and value >= 0 and (scale != _PERCENT or value <= 1.1):
                gpu.whose.add(reading, others, metric, own, value)

    def close(self) -> None:
        for gpu in self._gpus:
            for sample in (gpu.last, gpu.next):
                self._api.nvmlGpmSampleFree(sample)
        self._library.close()


def _open(context: Context) -> Collector:
    library = Library()
    able, refused = [], ""
    for device in library.devices:
        if device.handle is None or device.mig:
            continue  # instances of a split GPU have samples of their own, of which there is no metric here
        try:
            if library.api.nvmlGpmQueryDeviceSupport(device.handle).isSupportedDevice:
                able.append(device)
        except library.error as error:
            refused = str(error) if error.value == NO_PERMISSION else refused
    if able:
        return _Monitor(context, library, able)
    split = any(device.mig for device in library.devices)
    library.close()
    if refused:
        raise Unavailable(
            f"the driver does not let this user profile: {refused}",
            "give the agent CAP_SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
        )
    if split:
        raise Unavailable("the GPUs are split into instances (MIG)", "dcgm-exporter gives the activity of each")
    raise Unavailable(
        "these GPUs have no performance monitor that NVML can read (Hopper is the first that has)",
        "dcgm-exporter with its DCGM_FI_PROF_ fields gives SM activity on Volta to Ada",
    )


SOURCE = Source(
    id="gpm",
    title="activity of NVIDIA GPUs' SMs, tensor cores, memory and links, through NVML's performance monitor",
    open=_open,
    metrics=tuple(dict.fromkeys(metric for metric, _, _ in METRICS.values())),
    interval_s=10.0,
    needs="CAP_SYS_ADMIN where the driver restricts profiling to administrators",
)
