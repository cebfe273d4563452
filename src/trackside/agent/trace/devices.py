"""Which GPU a process works on, as far as the host can tell."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from trackside.agent.owners import Owner, Owners

_NODE = re.compile(r"nvidia(\d{1,3})\Z")
AGAIN_S = 10.0


class Devices:
    """GPUs by what their driver says (:meth:`Owners.of_gpu`); else by the device that the process chose."""

    def __init__(self, dev: Path, owners: Owners) -> None:
        self._dev, self._owners = dev, owners
        self._at = -AGAIN_S
        self._by_owner: dict[tuple[str, int], str] = {}

    def of(self, owner: Owner | None, visible: tuple[str, ...] | None, chosen: int) -> tuple[str | None, str | None]:
        """(index, UUID) of a process's GPU; None where it isn't known, or there are several.

        ``visible``: CUDA_VISIBLE_DEVICES. ``chosen``: bits of the devices it chose among these.
        """
        if owner is not None and owner.job is not None and owner.rank is not None:
            index = self._held().get((owner.job, owner.rank))
            if index is not None:
                return index or None, None
        numbers = [number for number in range(64) if chosen >> number & 1]
        local = owner.local_rank if owner is not None else None
        if len(numbers) > 1 and local in numbers:
            numbers = [local]
        if len(numbers) != 1:
            return None, None
        if visible is None:
            return str(numbers[0]), None
        if numbers[0] >= len(visible):
            return None, None
        name = visible[numbers[0]].strip()
        if name.startswith("GPU-"):
            return None, name
        # Within a job's devices cgroup these count from 0 whichever they are: only a full list tells.
        return (name, None) if name.isdecimal() and len(visible) == len(self._nodes()) else (None, None)

    def _held(self) -> dict[tuple[str, int], str]:
        """(job, rank) -> index of the one GPU that it holds; empty where it holds several."""
        now = time.monotonic()
        if now - self._at >= AGAIN_S:
            self._at = now
            found: dict[tuple[str, int], str] = {}
            for index in self._nodes():
                owner = self._owners.of_gpu(str(index))
                if owner is not None and owner.job is not None and owner.rank is not None:
                    key = (owner.job, owner.rank)
                    found[key] = "" if key in found else str(index)
            self._by_owner = found
        return self._by_owner

    def _nodes(self) -> list[int]:
        try:
            return sorted(int(found[1]) for name in os.listdir(self._dev) if (found := _NODE.match(name)))
        except OSError:
            return []
