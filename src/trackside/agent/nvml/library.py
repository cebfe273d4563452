"""The driver's library and its GPUs. nvidia-ml-py is imported only when a source is opened."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from trackside.agent.source import AgentSourceUnavailable
from trackside.catalog.labels import pci_address
from trackside.extras import install_command

NOT_SUPPORTED_CODES = frozenset({2, 3, 4, 13, 22, 25})
"""Codes for what this GPU, driver or user cannot have: invalid argument (a field of newer drivers), not supported, no
permission, function not found, no ECC on a vGPU, version mismatch of an argument."""
NO_PERMISSION = 4
TIMEOUT = 10
LOST_CODES = frozenset({15, 16})
"""The GPU is lost, or needs a reset."""
UNUSABLE_CODES = frozenset({1, 9, 18})
"""The library itself is unusable: uninitialized, driver not loaded, driver and library differ."""
MAX_GPUS = 64

_REMEDIES = {
    4: "give the agent access to /dev/nvidiactl and /dev/nvidia*",
    9: "load the driver (modprobe nvidia) and check the kernel log (dmesg)",
    12: "install NVIDIA's driver; in a container, use NVIDIA's runtime with NVIDIA_DRIVER_CAPABILITIES=utility",
    18: "reload the driver or reboot the node: the driver was updated while loaded",
}


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU. ``handle``: NVML's handle, None for a GPU that was already lost when NVML was opened."""

    index: int
    handle: Any
    uuid: str = ""
    model: str = ""
    pci: str = ""
    mig: bool = False
    """Whether it is split into MIG instances."""


class Library:
    """NVML, initialized. Each source initializes NVML and shuts it down for itself: the library counts references."""

    def __init__(self) -> None:
        """Raises AgentSourceUnavailable if there is no library, no driver, or no GPU."""
        try:
            self.api: Any = importlib.import_module("pynvml")
        except ImportError:
            raise AgentSourceUnavailable("nvidia-ml-py is not installed", install_command("agent")) from None
        self.error: Any = self.api.NVMLError
        try:
            self.api.nvmlInit()
        except self.error as error:
            raise AgentSourceUnavailable(f"NVML cannot be used: {error}", _REMEDIES.get(error.value, "")) from None
        try:
            self.driver = str(self.api.nvmlSystemGetDriverVersion())
            self.devices = self._devices()
        except self.error as error:
            self.close()
            raise AgentSourceUnavailable(f"NVML cannot be used: {error}", _REMEDIES.get(error.value, "")) from None
        if not self.devices:
            self.close()
            raise AgentSourceUnavailable("NVML finds no GPU", "check the kernel log for messages of the driver (dmesg)")

    def _devices(self) -> tuple[GpuDevice, ...]:
        return tuple(self._device(index) for index in range(min(self.api.nvmlDeviceGetCount(), MAX_GPUS)))

    def _device(self, index: int) -> GpuDevice:
        api = self.api
        try:
            handle = api.nvmlDeviceGetHandleByIndex(index)
            pci = pci_address(_text(api.nvmlDeviceGetPciInfo(handle).busId))
            uuid, model = _text(api.nvmlDeviceGetUUID(handle)), _text(api.nvmlDeviceGetName(handle))
        except self.error as error:
            if error.value in UNUSABLE_CODES:
                raise
            return GpuDevice(index, None)
        try:
            mig = bool(api.nvmlDeviceGetMigMode(handle)[0])
        except self.error:
            mig = False
        return GpuDevice(index, handle, uuid, model, pci, mig)

    def close(self) -> None:
        """Shut NVML down."""
        try:
            self.api.nvmlShutdown()
        except self.error:
            return  # the driver is already gone


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
