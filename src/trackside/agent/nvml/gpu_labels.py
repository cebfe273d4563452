"""The labels of a GPU's samples: which GPU it is, its job and its user."""

from __future__ import annotations

from trackside.agent.nvml.library import GpuDevice
from trackside.agent.owners import Owners
from trackside.agent.preferred_source import SeriesKey, series_key
from trackside.agent.source import Labels, Reading, Sample, pairs


class GpuLabels:
    """Labels of one GPU's samples, cached while the owner stays the same.

    They do not contain the rank. A rank identifies a series and ends with its process: a counter that increases when
    the process dies would start a new series in which it never increased. Readers join the rank by node and GPU.
    """

    def __init__(self, owners: Owners, device: GpuDevice) -> None:
        self._owners, self._device = owners, device
        self._owner: tuple[str | None, str | None] = None, None
        self._cache: dict[Labels, Labels] = {}
        self._base = self._labels(None, None)

    def renew(self) -> None:
        """Update the owner."""
        owner = self._owners.of_gpu(str(self._device.index))
        owner_names = (owner.job, owner.user) if owner is not None else (None, None)
        if owner_names != self._owner:
            self._owner, self._base = owner_names, self._labels(*owner_names)
            self._cache.clear()

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

    def labels(self, metric_labels: Labels = ()) -> Labels:
        """The GPU's labels together with a metric's own labels."""
        if not metric_labels:
            return self._base
        labels = self._cache.get(metric_labels)
        if labels is None:
            labels = self._cache[metric_labels] = tuple(sorted({**dict(self._base), **dict(metric_labels)}.items()))
        return labels

    def add(
        self, reading: Reading, preferred: frozenset[SeriesKey], metric: str, metric_labels: Labels, value: float
    ) -> None:
        """Add a sample, unless its series is in ``preferred``, which another source sends."""
        labels = self.labels(metric_labels)
        if not preferred or series_key(metric, labels) not in preferred:
            reading.samples.append(Sample(metric, labels, float(value)))
