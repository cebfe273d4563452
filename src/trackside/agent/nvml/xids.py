"""Xids as NVML's events tell them: at once, without the right to read the kernel's log, but without its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any

from trackside.agent.nvml.library import LOST, TIMEOUT, Device, Library

MOST_EVENTS = 256
"""Taken at one reading; the rest waits."""
_WAIT_MS = 1
"""0 means "for ever" to some bindings: not worth the doubt."""


class Xids:
    """Waits for Xids of these GPUs. Those of before it began are unknown."""

    def __init__(self, library: Library, devices: Sequence[Device]) -> None:
        self._api, self._error = library.api, library.error
        self._set: Any = None
        self._indices: dict[int | None, int] = {}
        self.watched: frozenset[int] = frozenset()
        """GPUs whose Xids come."""
        self._register(devices)

    def _register(self, devices: Sequence[Device]) -> None:
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
                continue  # lost, or one that has no events
        self.watched = frozenset(watched)

    def come(self, devices: Sequence[Device]) -> Iterator[tuple[int, int]]:
        """(GPU, Xid) of each that came since the last time."""
        for _ in range(MOST_EVENTS):
            if self._set is None or not self.watched:
                return
            try:
                event = self._api.nvmlEventSetWait_v2(self._set, _WAIT_MS)
            except self._error as error:
                if error.value in LOST:
                    # From now on every wait would say so and nothing of other GPUs: begin anew without this one.
                    self.close()
                    self._register(devices)
                elif error.value != TIMEOUT:
                    self.watched = frozenset()
                return
            index = self._indices.get(cast(event.device, c_void_p).value)
            if index is not None and event.eventType == self._api.nvmlEventTypeXidCriticalError:
                yield index, int(event.eventData)

    def close(self) -> None:
        """Wait no more."""
        if self._set is not None:
            with suppress(self._error):
                self._api.nvmlEventSetFree(self._set)
            self._set = None
