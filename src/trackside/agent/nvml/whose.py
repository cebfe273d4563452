"""The labels of what a GPU tells: which one it is, and whose."""

from __future__ import annotations

from trackside.agent.nvml.library import Device
from trackside.agent.owners import Owners
from trackside.agent.source import Labels, Reading, Sample, pairs
from trackside.agent.taken_over import Curve, curve


class Whose:
    """Labels of one GPU's samples, made once for as long as it is somebody's.

    There is no rank among them. A rank is part of what tells one curve from another, and goes with its process: a
    counter that rises as the process dies would begin a new curve, in which it never rose. Readers join the rank by
    node and GPU.
    """

    def __init__(self, owners: Owners, device: Device) -> None:
        self._owners, self._device = owners, device
        self._of: tuple[str | None, str | None] = None, None
        self._made: dict[Labels, Labels] = {}
        self._base = self._labels(None, None)

    def renew(self) -> None:
        """Look whose it is now."""
        owner = self._owners.of_gpu(str(self._device.index))
        of = (owner.job, owner.user) if owner is not None else (None, None)
        if of != self._of:
            self._of, self._base = of, self._labels(*of)
            self._made.clear()

    def _labels(self, job: str | None, user: str | None) -> Labels:
        device = self._device
        return pairs(
            {
                "gpu": device.index,
                "gpu_uuid": device.uuid,
                "gpu_model": device.model,
                "pci": device.pci,
                "job": job,
                "user": user,
            }
        )

    def labels(self, own: Labels = ()) -> Labels:
        """With those of a metric's own."""
        if not own:
            return self._base
        found = self._made.get(own)
        if found is None:
            found = self._made[own] = tuple(sorted({**dict(self._base), **dict(own)}.items()))
        return found

    def add(self, reading: Reading, others: frozenset[Curve], metric: str, own: Labels, value: float) -> None:
        """Add a sample, unless its curve is among those that others give."""
        labels = self.labels(own)
        if not others or curve(metric, labels) not in others:
            reading.samples.append(Sample(metric, labels, float(value)))
