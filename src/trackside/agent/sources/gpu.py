"""NVIDIA GPUs through NVML: memory, use, clocks, heat, power, faults, links, processes, and Xids as they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from trackside.agent.nvml.fields import FIELDS
from trackside.agent.nvml.gpu import Gpu, Lost
from trackside.agent.nvml.library import Device, Library
from trackside.agent.nvml.probes import FAULTY_LINKS, PROBES, THROUGHPUT
from trackside.agent.nvml.whose import Whose
from trackside.agent.nvml.xids import Xids
from trackside.agent.source import Collector, Context, Reading, Source
from trackside.agent.taken_over import Curve, curve, is_kernel_read, taken_over

MOST_PROCESSES = 256
"""Of one GPU."""
IDLE_SHARE = 0.0025
"""Share of a GPU's memory below which no process can have a context. With more in use and none listed, the list is
hidden, as it is from within a container: it says nothing."""


class _Card:
    """One GPU, whose it is, and what of it others gave at the last reading."""

    def __init__(self, library: Library, device: Device, context: Context) -> None:
        self.device, self.whose = device, Whose(context.owners, device)
        self.curves: dict[str, set[Curve]] = {}
        self.gpu: Gpu | None = None
        with suppress(Lost):
            self.gpu = Gpu(library, device)

    def spared(self, others: frozenset[Curve]) -> set[str]:
        """Metrics that need not be asked for: all that this GPU gives of them, another source gives."""
        if not others:
            return set()
        # How much memory is in use is asked all the same: it tells whether the list of processes is whole.
        return {metric for metric, curves in self.curves.items() if curves <= others} - {"gpu_memory_used_bytes"}


class _Gpus(Collector):
    def __init__(self, context: Context) -> None:
        self._context = context
        self._library = library = Library()
        self._api: Any = library.api
        self._cards = [_Card(library, device, context) for device in library.devices]
        self._xids = Xids(library, library.devices)
        self._last_xid = dict.fromkeys(range(len(self._cards)), 0)
        split = [str(device.index) for device in library.devices if device.mig]
        if split:
            context.say(
                f"GPU {', '.join(split)}: split into instances (MIG); memory, heat and faults are those of the whole "
                "GPU, and the driver tells no utilisation"
            )

    def collect(self, reading: Reading) -> None:
        others = taken_over(self._context)
        self._take_xids(reading)
        for card in self._cards:
            card.whose.renew()
            lost = self._read(card, reading, others)
            reading.sample("gpu_present", 0 if lost else 1, driver=self._library.driver, **dict(card.whose.labels()))
            if card.device.index in self._xids.watched or self._last_xid[card.device.index]:
                card.whose.add(reading, others, "gpu_xid_last", (), self._last_xid[card.device.index])
            if lost:
                reading.warnings.append(_lost(card.device, lost))
        reading.sample("gpu_visible_gpus", len(self._cards))

    def _read(self, card: _Card, reading: Reading, others: frozenset[Curve]) -> str:
        """All of one GPU; why it is lost, if it is. It costs the others nothing."""
        gpu, whose = card.gpu, card.whose
        if gpu is None:
            return "it did not say what it is when the agent began"
        seen: dict[str, float] = {}
        curves: dict[str, set[Curve]] = {}
        try:
            for metric, own, value in gpu.read(card.spared(others)):
                whose.add(reading, others, metric, own, value)
                curves.setdefault(metric, set()).add(curve(metric, whose.labels(own)))
                seen[metric] = value
            self._take_processes(card, reading, seen)
        except Lost as lost:
            return str(lost)
        finally:
            card.curves.update(curves)
        reading.warnings.extend(f"GPU {card.device.index}: {failure}" for failure in gpu.failures)
        return ""

    def _take_processes(self, card: _Card, reading: Reading, seen: dict[str, float]) -> None:
        listed = self._listed(card, reading)
        if listed is None:
            return
        owners, index = self._context.owners, str(card.device.index)
        owners.hold(index, [process.pid for process in listed])
        device = {name: value for name, value in card.whose.labels() if name not in ("job", "user")}
        for process in listed:
            if process.usedGpuMemory is None:
                continue
            owner = owners.of_pid(process.pid)
            whose = {} if owner is None else {"job": owner.job, "rank": owner.rank, "user": owner.user}
            part = process.gpuInstanceId if process.gpuInstanceId != _NO_INSTANCE else None
            labels = {**device, "pid": process.pid, "mig": part, **whose}
            reading.sample("gpu_process_memory_used_bytes", process.usedGpuMemory, **labels)
        used, total = seen.get("gpu_memory_used_bytes", 0.0), seen.get("gpu_memory_total_bytes", 0.0)
        if listed or used <= IDLE_SHARE * total:
            card.whose.add(reading, frozenset(), "gpu_processes", (), len(listed))
            card.whose.add(reading, frozenset(), "trackside_gpu_process_attached", (), min(len(listed), 1))

    def _listed(self, card: _Card, reading: Reading) -> list[Any] | None:
        """Processes with a context, the first of many; None where the driver doesn't tell."""
        assert card.gpu is not None
        api, handle = self._api, card.device.handle
        try:
            try:
                found = api.nvmlDeviceGetComputeRunningProcesses_v3(handle)
            except api.NVMLError_FunctionNotFound:  # drivers before 510
                found = api.nvmlDeviceGetComputeRunningProcesses_v2(handle)
        except self._library.error as error:
            card.gpu.heed(error.value, "nvmlDeviceGetComputeRunningProcesses")
            return None
        if len(found) > MOST_PROCESSES:
            reading.lost["gpu processes"] += len(found) - MOST_PROCESSES
        return list(found[:MOST_PROCESSES])

    def _take_xids(self, reading: Reading) -> None:
        for index, xid in self._xids.come(self._library.devices):
            self._last_xid[index] = xid
            # The kernel's own line says more: process and place. Told twice an Xid would be two, so NVML's word becomes
            # a line, in the form that readers know, only while nobody here reads the kernel's log.
            if not is_kernel_read(self._context):
                pci = self._cards[index].device.pci
                reading.line(f"NVRM: Xid (PCI:{pci}): {xid}, told by NVML: the kernel's log is not read", unit="kernel")

    def close(self) -> None:
        self._xids.close()
        self._library.close()


_NO_INSTANCE = 0xFFFFFFFF


def _lost(device: Device, why: str) -> str:
    return (
        f"GPU {device.index} ({device.pci or 'address unknown'}): {why}. Drain the node; then stop the agent and reset "
        f"the GPU (nvidia-smi --gpu-reset -i {device.index}), or reboot"
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


SOURCE = Source(
    id="gpu",
    title="NVIDIA GPUs, through NVML",
    open=_Gpus,
    metrics=tuple(dict.fromkeys(_metrics())),
    lines="Xids, where the kernel's log is not read",
    interval_s=10.0,
    needs="read and write access to /dev/nvidiactl and /dev/nvidia*",
)
