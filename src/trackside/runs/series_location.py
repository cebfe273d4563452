"""Completes the labels of series for a run: their node, GPU and job, in the run's own spelling.

A series may lack its node (a file of nvidia-smi) or its GPU's index (an exporter that knows only UUIDs). Both are taken
from other series or from the file's path; if neither has them, they stay empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from trackside.catalog.streams import host_of
from trackside.model import Series
from trackside.stores.metric_backend import SeriesInfo

NodeGpu = tuple[str, str]
"""(node, index); the node is empty if unknown."""
Unit = tuple[str, str, str]
"""(node, index, MIG instance): what a job can hold. The instance is empty for a whole GPU."""


class LocatedSeries(NamedTuple):
    """A series with the labels that say what it measures, completed for this run; empty where unknown."""

    info: SeriesInfo
    node: str
    gpu: str
    mig: str
    job: str
    rank: str

    @property
    def series(self) -> Series:
        """The series with node and GPU completed."""
        return self.info.series

    @property
    def unit(self) -> Unit:
        """The GPU, or the MIG instance, that the series measures."""
        return self.node, self.gpu, self.mig


def locate_series(infos: Iterable[SeriesInfo], nodes: Sequence[str]) -> list[LocatedSeries]:
    """Every series with its node and GPU completed; ``nodes``: the run's, whose spelling is used."""
    infos = list(infos)
    names = NodeNames(nodes)
    keys = [_location_key(info.series) for info in infos]  # all metrics of a GPU have the same
    distinct = {key: dict(key[0]) for key in reversed(keys)}
    devices = _Devices(reversed(distinct.values()), names)
    paths = _nodes_by_path([(path, distinct[labels, path]) for labels, path in keys if path is not None], names)
    completed = {key: _complete(key, names, devices, paths) for key in distinct}
    return [_locate(info, completed[key]) for info, key in zip(infos, keys, strict=True)]


_Labels = tuple[tuple[str, str], ...]


def _location_key(series: Series) -> tuple[_Labels, str | None]:
    """The labels and the file of a series, which determine its location; no file if the labels name a node."""
    return series.labels, None if series.get("node") is not None else series.at.path


def _locate(info: SeriesInfo, completed: tuple[_Labels, tuple[str, ...]]) -> LocatedSeries:
    """The series with the labels and fields that :func:`_complete` returned for its key."""
    labels, fields = completed
    if labels is not info.series.labels:
        info = replace(info, series=replace(info.series, labels=labels))
    return LocatedSeries(info, *fields)


def _complete(
    key: tuple[_Labels, str | None], names: NodeNames, devices: _Devices, paths: Mapping[str, str]
) -> tuple[_Labels, tuple[str, ...]]:
    """The labels with node and GPU (unchanged if nothing is added), and the label fields of :class:`LocatedSeries`."""
    original, path = key
    labels = dict(original)
    device = devices.find(labels) if "gpu" not in labels or "node" not in labels else None
    if "gpu" not in labels and device is not None:
        labels["gpu"] = device[1]
    node = (
        labels.get("node")
        or (device[0] if device is not None else "")
        or (paths.get(path, "") if path is not None else "")
    )
    node = names.canonical(node) or names.only
    if node:
        labels["node"] = node
    get = labels.get
    fields = node, get("gpu", ""), get("mig", ""), get("job", ""), get("rank", "")
    is_changed = len(labels) != len(original) or labels.get("node") != dict(original).get("node")
    return tuple(sorted(labels.items())) if is_changed else original, fields


class NodeNames:
    """The run's node names, found by any spelling of them."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._short: dict[str, str] = {}
        for node in reversed(nodes):
            self._short[host_of(node)] = node
        self._exact = frozenset(nodes)
        self.only = nodes[0] if len(nodes) == 1 else ""
        """The run's node, if it has exactly one."""
        self._known: dict[str, str] = {}

    def canonical(self, node: str) -> str:
        """A node as the scheduler spells it; unchanged if it is not one of the run's."""
        if node in self._exact or not node:
            return node
        name = self._known.get(node)
        if name is None:
            name = self._known[node] = self._short.get(host_of(node), node)
        return name

    def node_named_in(self, path: str) -> str:
        """The one node that a path names; empty if it names none, or several."""
        nodes = {self._short[part] for part in _possible_names(path) if part in self._short} if self._short else set()
        return nodes.pop() if len(nodes) == 1 else ""


_MAX_NAME_PIECES = 12
"""Pieces of a word between hyphens of which names are built."""


def _possible_names(path: str) -> Iterable[str]:
    """Pieces of a path that may be a host name: ``gpu-3``, ``nvidia-smi``, ``smi`` ... of ``nvidia-smi_gpu-3.csv``."""
    for word in re.split(r"[^a-z0-9-]+", path.lower()):
        pieces = word.split("-")[:_MAX_NAME_PIECES]
        for first in range(len(pieces)):
            for last in range(first + 1, len(pieces) + 1):
                yield "-".join(pieces[first:last])


def _nodes_by_path(unnamed: Sequence[tuple[str, Mapping[str, str]]], names: NodeNames) -> Mapping[str, str]:
    """Path -> node, for files whose series (path, labels) name none: a node of the run, else a folder that looks like
    a host if there are several such, else the file itself if the UUIDs in it show several machines."""
    distinct = list(dict.fromkeys(path for path, _ in unnamed))
    by_node_name = {path: names.node_named_in(path) for path in distinct}
    if any(by_node_name.values()) or len(distinct) < 2:
        return by_node_name
    hosts = {path: _host_folder(path) for path in distinct}
    if all(hosts.values()) and len(set(hosts.values())) > 1:
        return hosts
    return {path: _file_stem(path) for path in distinct} if _show_several_machines(unnamed) else by_node_name


def _show_several_machines(unnamed: Iterable[tuple[str, Mapping[str, str]]]) -> bool:
    """Whether one index has different UUIDs in different files."""
    devices: dict[str, tuple[str, str]] = {}
    for path, labels in unnamed:
        if "gpu" in labels and "gpu_uuid" in labels:
            first = devices.setdefault(labels["gpu"], (path, labels["gpu_uuid"]))
            if first[0] != path and first[1] != labels["gpu_uuid"]:
                return True
    return False


def _file_stem(path: str) -> str:
    """The name of a file without its extensions."""
    return re.split(r"[/!]", path)[-1].partition(".")[0] or path


_HOST_NAME = re.compile(r"(?=[^/]*\d)[a-z][a-z0-9-]{1,62}", re.IGNORECASE)
_NO_HOST_NAME = re.compile(
    r"(?:attempt|batch|case|day|epoch|exp|experiment|gpu|hour|job|log|metrics|month|part|rank|run|slurm|step|task|test|"
    r"trial|v|version|week|worker)s?-?\d+",
    re.IGNORECASE,
)


def _host_folder(path: str) -> str:
    """The name of the nearest folder that looks like a host: a letter first, a number somewhere. Empty without one."""
    for part in reversed(re.split(r"[/!]", path)[:-1]):
        name = part.partition(".")[0]
        if _HOST_NAME.fullmatch(name) and not _NO_HOST_NAME.fullmatch(name):
            return name
    return ""


class _Devices:
    """Maps a UUID or a PCI address to node and index, from the series that carry both."""

    def __init__(self, labels: Iterable[Mapping[str, str]], names: NodeNames) -> None:
        self._names = names
        self._by_uuid: dict[str, NodeGpu] = {}
        self._by_pci: dict[tuple[str, str], str] = {}
        for series_labels in labels:
            gpu, uuid, pci = series_labels.get("gpu"), series_labels.get("gpu_uuid"), series_labels.get("pci")
            node = names.canonical(series_labels.get("node", ""))
            if gpu is not None and uuid is not None and (node or _normalize_uuid(uuid) not in self._by_uuid):
                self._by_uuid[_normalize_uuid(uuid)] = node, gpu
            if gpu is not None and pci is not None:
                self._by_pci[node, pci] = gpu

    def find(self, labels: Mapping[str, str]) -> NodeGpu | None:
        """(node, index) of a series by its UUID or PCI address; one of these stands for an unknown index."""
        uuid = labels.get("gpu_uuid")
        device = self._by_uuid.get(_normalize_uuid(uuid)) if uuid is not None else None
        if device is not None or "gpu" in labels:
            return device
        node, pci = self._names.canonical(labels.get("node", "")), labels.get("pci")
        if pci is not None and (node, pci) in self._by_pci:
            return node, self._by_pci[node, pci]
        name = uuid if uuid is not None else pci
        return None if name is None else (node, name)


def _normalize_uuid(uuid: str) -> str:
    """A UUID in lower case, without nvidia-smi's prefix."""
    return uuid.lower().removeprefix("gpu-")
