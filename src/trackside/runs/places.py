"""Whose is a curve: node, GPU and job of a series, in the run's own spelling.

A series may lack its node (a file of nvidia-smi) or its GPU's index (an exporter that knows UUIDs only). Both are
found from what other series or the file's path tell; what nothing tells stays out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from trackside.model import Series
from trackside.stores.metric_backend import SeriesInfo

Gpu = tuple[str, str]
"""(node, index); the node is empty where nothing tells it."""
Unit = tuple[str, str, str]
"""(node, index, MIG instance): what a job can hold. The instance is empty for a whole GPU."""


class Placed(NamedTuple):
    """A series as it stands for this run, with the labels that say whose it is; empty where it has none."""

    held: SeriesInfo
    node: str
    gpu: str
    mig: str
    job: str
    rank: str

    @property
    def series(self) -> Series:
        """With node and GPU completed."""
        return self.held.series

    @property
    def unit(self) -> Unit:
        """The GPU, or the instance of it, that this is a curve of."""
        return self.node, self.gpu, self.mig


def placed(held: Iterable[SeriesInfo], nodes: Sequence[str]) -> list[Placed]:
    """Every series with its node and GPU completed; ``nodes`` are the run's, whose spelling holds."""
    held = list(held)
    names = Names(nodes)
    marks = [_mark(each.series) for each in held]  # all metrics of a GPU have the same
    distinct = {mark: dict(mark[0]) for mark in reversed(marks)}
    known = _Devices(reversed(distinct.values()), names)
    paths = _by_path([(path, distinct[labels, path]) for labels, path in marks if path is not None], names)
    completed = {mark: _completed(mark, names, known, paths) for mark in distinct}
    return [_placed(each, completed[mark]) for each, mark in zip(held, marks, strict=True)]


_Labels = tuple[tuple[str, str], ...]


def _mark(series: Series) -> tuple[_Labels, str | None]:
    """What a series' place is told by: its labels, and its file where these name no node."""
    return series.labels, None if series.get("node") is not None else series.at.path


def _placed(held: SeriesInfo, place: tuple[_Labels, tuple[str, ...]]) -> Placed:
    labels, words = place
    if labels is not held.series.labels:
        held = replace(held, series=replace(held.series, labels=labels))
    return Placed(held, *words)


def _completed(
    mark: tuple[_Labels, str | None], names: Names, known: _Devices, paths: Mapping[str, str]
) -> tuple[_Labels, tuple[str, ...]]:
    """The labels with node and GPU, as they were where nothing is to be added; and the words of :class:`Placed`."""
    given, path = mark
    labels = dict(given)
    device = known.of(labels) if "gpu" not in labels or "node" not in labels else None
    if "gpu" not in labels and device is not None:
        labels["gpu"] = device[1]
    node = (
        labels.get("node")
        or (device[0] if device is not None else "")
        or (paths.get(path, "") if path is not None else "")
    )
    node = names.spelled(node) or names.only
    if node:
        labels["node"] = node
    get = labels.get
    words = node, get("gpu", ""), get("mig", ""), get("job", ""), get("rank", "")
    changed = len(labels) != len(given) or labels.get("node") != dict(given).get("node")
    return tuple(sorted(labels.items())) if changed else given, words


class Names:
    """The run's node names, found by any spelling of them."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._short: dict[str, str] = {}
        for node in reversed(nodes):
            self._short[host_of(node)] = node
        self._exact = frozenset(nodes)
        self.only = nodes[0] if len(nodes) == 1 else ""
        """The run's node, where it has but one."""
        self._known: dict[str, str] = {}

    def spelled(self, node: str) -> str:
        """A node as the scheduler spells it; as given where it is none of the run's."""
        if node in self._exact or not node:
            return node
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._short.get(host_of(node), node)
        return found

    def within(self, path: str) -> str:
        """The one node that a path names; empty where it names none, or several."""
        found = {self._short[part] for part in _parts(path) if part in self._short} if self._short else set()
        return found.pop() if len(found) == 1 else ""


def host_of(node: str) -> str:
    """A node as nodes are compared: its short name; an address whole."""
    return node if re.fullmatch(r"[0-9.]+", node) else node.partition(".")[0].lower()


_MOST_PIECES = 12


def _parts(path: str) -> Iterable[str]:
    """What of a path could be a host's name: ``nvidia-smi_gpu-3.csv`` holds ``gpu-3``, ``nvidia-smi``, ``smi``..."""
    for word in re.split(r"[^a-z0-9-]+", path.lower()):
        pieces = word.split("-")[:_MOST_PIECES]
        for first in range(len(pieces)):
            for last in range(first + 1, len(pieces) + 1):
                yield "-".join(pieces[first:last])


def _by_path(unnamed: Sequence[tuple[str, Mapping[str, str]]], names: Names) -> Mapping[str, str]:
    """Path -> node, for files whose series (path, labels) name none: a node of the run, else a folder that looks like
    a host where there are several such, else the file itself where the UUIDs in it tell of another machine."""
    distinct = list(dict.fromkeys(path for path, _ in unnamed))
    found = {path: names.within(path) for path in distinct}
    if any(found.values()) or len(distinct) < 2:
        return found
    hosts = {path: _hostlike(path) for path in distinct}
    if all(hosts.values()) and len(set(hosts.values())) > 1:
        return hosts
    return {path: _stem(path) for path in distinct} if _several_machines(unnamed) else found


def _several_machines(unnamed: Iterable[tuple[str, Mapping[str, str]]]) -> bool:
    """Whether one index stands for different GPUs in different files."""
    devices: dict[str, tuple[str, str]] = {}
    for path, labels in unnamed:
        if "gpu" in labels and "gpu_uuid" in labels:
            known = devices.setdefault(labels["gpu"], (path, labels["gpu_uuid"]))
            if known[0] != path and known[1] != labels["gpu_uuid"]:
                return True
    return False


def _stem(path: str) -> str:
    return re.split(r"[/!]", path)[-1].partition(".")[0] or path


_HOST = re.compile(r"(?=[^/]*\d)[a-z][a-z0-9-]{1,62}", re.IGNORECASE)
_NO_HOST = re.compile(
    r"(?:attempt|batch|case|day|epoch|exp|experiment|gpu|hour|job|log|metrics|month|part|rank|run|slurm|step|task|test|"
    r"trial|v|version|week|worker)s?-?\d+",
    re.IGNORECASE,
)


def _hostlike(path: str) -> str:
    """The folder next to the file that looks like a host's: letters, then a number somewhere."""
    for part in reversed(re.split(r"[/!]", path)[:-1]):
        name = part.partition(".")[0]
        if _HOST.fullmatch(name) and not _NO_HOST.fullmatch(name):
            return name
    return ""


class _Devices:
    """Which node and index a UUID or a PCI address stands for, by the series that carry both."""

    def __init__(self, labels: Iterable[Mapping[str, str]], names: Names) -> None:
        self._names = names
        self._by_uuid: dict[str, Gpu] = {}
        self._by_pci: dict[tuple[str, str], str] = {}
        for each in labels:
            gpu, uuid, pci = each.get("gpu"), each.get("gpu_uuid"), each.get("pci")
            node = names.spelled(each.get("node", ""))
            if gpu is not None and uuid is not None and (node or _plain(uuid) not in self._by_uuid):
                self._by_uuid[_plain(uuid)] = node, gpu
            if gpu is not None and pci is not None:
                self._by_pci[node, pci] = gpu

    def of(self, labels: Mapping[str, str]) -> Gpu | None:
        """(node, index) of a series by its UUID or address; the UUID itself stands in for an index nobody tells."""
        uuid = labels.get("gpu_uuid")
        found = self._by_uuid.get(_plain(uuid)) if uuid is not None else None
        if found is not None or "gpu" in labels:
            return found
        node, pci = self._names.spelled(labels.get("node", "")), labels.get("pci")
        if pci is not None and (node, pci) in self._by_pci:
            return node, self._by_pci[node, pci]
        name = uuid if uuid is not None else pci
        return None if name is None else (node, name)


def _plain(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")
