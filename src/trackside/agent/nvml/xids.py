"""Xids from NVML events: immediate, and without permission to read the kernel log, but without its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any

from trackside.agent.nvml.library import LOST_CODES, TIMEOUT, GpuDevice, Library

MAX_EVENTS = 256
"""Maximum events per reading; the rest waits."""
_WAIT_MS = 1
"""0 means "forever" in some bindings, so it is avoided."""


class XidEvents:
    """Receives XidEvents of these GPUs. Earlier XidEvents are not reported."""

    def __init__(self, library: Library, devices: Sequence[GpuDevice]) -> None:
        self._api, self._error = library.api, library.error
        self._set: Any = None
        self._indices: dict[int | None, int] = {}
        self.watched: frozenset[int] = frozenset()
        """GPUs whose XidEvents are received."""
        self._register(devices)

    def _register(self, devices: Sequence[GpuDevice]) -> None:
        watched = set()
        try:
            self._set = self._api.nvmlEventSetCreate()
        except self._error:
            return
        for device in devices:
            if device.handle is None:
                continue
            self._indices[cast(device.handle, c_void_p).value] = device.index
            try:
                self._api.nvmlDeviceRegisterEvents(device.handle, self._api.nvmlEventTypeXidCriticalError, self._set)
                watched.add(device.index)
            except self._error:
                continue  # lost, or without event support
        self.watched = frozenset(watched)

    def new_events(self, devices: Sequence[GpuDevice]) -> Iterator[tuple[int, int]]:
        """(GPU index, Xid) of each event since the last call."""
        for _ in range(MAX_EVENTS):
            if self._set is None or not self.watched:
                return
            try:
                event = self._api.nvmlEventSetWait_v2(self._set, _WAIT_MS)
            except self._error as error:
                if error.value in LOST_CODES:
                    # From now on every wait would return this error and hide events of other GPUs: start again without
                    # this GPU.
                    self.close()
                    self._register(devices)
                elif error.value != TIMEOUT:
                    self.watched = frozenset()
                return
            index = self._indices.get(cast(event.device, c_void_p).value)
            if index is not None and event.eventType == self._api.nvmlEventTypeXidCriticalError:
                yield index, int(event.eventData)

    def close(self) -> None:
        """Release the event set."""
        if self._set is not None:
            with suppress(self._error):
                self._api.nvmlEventSetFree(self._set)
            self._set = None
