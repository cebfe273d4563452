"""Which GPU a series, a rank or a kernel message belongs to. Pure functions.

A GPU is named ``node:index``, as in :attr:`trackside.model.Run.gpus`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid, Value, derived
from trackside.finding import Finding
from trackside.model import Run, Series
from trackside.query import Reducer


def gpu_name(series: Series) -> str:
    """``node:index``."""
    return f"{series.get('node') or ''}:{series.get('gpu') or ''}"


def gpu_names(grid: Grid | None) -> list[str]:
    """The GPU of every series."""
    return [] if grid is None else [gpu_name(series) for series in grid.series]


def nodes_of(gpus: Iterable[str]) -> tuple[str, ...]:
    """The nodes of these GPUs, each once."""
    return tuple(dict.fromkeys(node for gpu in gpus if (node := gpu.rpartition(":")[0])))


def all_names(*grids: Grid | None) -> tuple[str, ...]:
    """Every GPU in any of these grids, in order of first appearance."""
    return tuple(dict.fromkeys(name for grid in grids for name in gpu_names(grid)))


def align(
    grid: Grid | None, gpus: Sequence[str], times: NDArray[np.float64], series_gpus: Sequence[str] | None = None
) -> NDArray[np.float64]:
    """The grid's values for these GPUs at these window ends: (GPUs, windows), NaN where it has none.

    Of several series of one GPU (its MIG instances) the largest counts. ``series_gpus``: the GPU of each series, if its
    labels do not show it.
    """
    values_of_gpus = np.full((len(gpus), len(times)), np.nan)
    if grid is None or not len(times) or not len(grid.times):
        return values_of_gpus
    columns = np.searchsorted(grid.times, times)
    has_column = columns < len(grid.times)
    has_column[has_column] = grid.times[columns[has_column]] == times[has_column]
    row_of = {name: row for row, name in enumerate(gpus)}
    for row, name in enumerate(gpu_names(grid) if series_gpus is None else series_gpus):
        if name in row_of:
            values = grid.values[row, columns[has_column]]
            values_of_gpus[row_of[name], has_column] = np.fmax(values_of_gpus[row_of[name], has_column], values)
    return values_of_gpus


def value_or_none(grid: Grid | None, reducer: Reducer, unit: str | None = None) -> Value | None:
    """All of a grid reduced to one value; None if nothing was sampled."""
    value = None if grid is None else grid.value(reducer, unit)
    return None if value is None or value.value is None else value


def count_of(count: int, what: str, *sources: Value) -> Value:
    """A number of GPUs or nodes, derived from these values."""
    return derived(count, *sources, unit=what if count == 1 else f"{what}s")


def grid_of_gpu(grid: Grid, gpu: str) -> Grid:
    """The part of a grid that belongs to one GPU."""
    node, _, index = gpu.rpartition(":")
    return grid.where(**({"node": node} if node else {}), gpu=index)


def gpus_of_ranks(run: Run, ranks: Iterable[int]) -> tuple[str, ...]:
    """The GPUs of these ranks, one GPU per rank as launchers place them; empty if the run is known to differ."""
    if not _one_rank_per_gpu(run):
        return ()
    return tuple(run.gpus[rank] for rank in ranks if 0 <= rank < len(run.gpus))


def ranks_of_gpus(run: Run, gpus: Iterable[str]) -> tuple[int, ...]:
    """The ranks on these GPUs, one rank per GPU as launchers place them; empty if the run is known to differ."""
    if not _one_rank_per_gpu(run):
        return ()
    rank_of_gpu = {name: rank for rank, name in enumerate(run.gpus)}
    return tuple(sorted(rank_of_gpu[gpu] for gpu in gpus if gpu in rank_of_gpu))


def nodes_of_ranks(run: Run, ranks: Iterable[int]) -> tuple[str, ...]:
    """The nodes of these ranks, if their GPUs are known."""
    return tuple(dict.fromkeys(gpu.rpartition(":")[0] for gpu in gpus_of_ranks(run, ranks)))


def _one_rank_per_gpu(run: Run) -> bool:
    return run.gpus_by != "all" and run.n_ranks in (None, len(run.gpus))


def with_location(finding: Finding, run: Run) -> Finding:
    """A finding with its missing node, GPU or rank filled in from the others."""
    gpus, ranks, nodes = finding.gpus, finding.ranks, finding.nodes
    if gpus and not any(":" in gpu for gpu in gpus):  # a bare index, as a process counts its own GPUs
        gpus = gpus_of_ranks(run, ranks) or gpus
    ranks = ranks or ranks_of_gpus(run, gpus)
    nodes = nodes or tuple(dict.fromkeys(node for gpu in gpus if (node := gpu.rpartition(":")[0]) in run.nodes))
    return replace(finding, gpus=gpus, ranks=ranks, nodes=nodes)


def gpus_at_address(pci: str, node: str | None, grids: Iterable[Grid | None]) -> frozenset[str]:
    """The GPUs at a PCI address, on one node or on all, by the addresses in series labels."""
    key = address_key(pci)
    all_series = (series for grid in grids if grid is not None for series in grid.series)
    return frozenset(
        gpu_name(series)
        for series in all_series
        if series.get("pci")
        and address_key(str(series.get("pci"))) == key
        and (node is None or series.get("node") == node)
    )


def address_key(pci: str) -> tuple[str, ...]:
    """A PCI address in comparable form: without its function, leading zeros of the domain, and case."""
    parts = pci.lower().partition(".")[0].split(":")
    return tuple(part.lstrip("0") for part in (["0", *parts] if len(parts) == 2 else parts))


def distinct_gpus(pairs: Iterable[tuple[str | None, str]], run: Run) -> tuple[str, ...]:
    """Each GPU once, from (node, GPU) pairs that contain ``node:index`` or the kernel's PCI address.

    Addresses without a series are dropped on nodes that have no more of them than GPUs with series.
    """
    indices: dict[str, None] = {}
    addresses: dict[tuple[str | None, tuple[str, ...]], str] = {}
    for node, gpu in pairs:
        if gpu in run.gpus or (node is not None and gpu.startswith(f"{node}:")):
            indices[gpu] = None
        else:
            addresses.setdefault((node, address_key(gpu)), gpu.partition(".")[0])
    names = set(indices)
    for node, _ in addresses:
        node_addresses = [name for key, name in addresses.items() if key[0] == node]
        node_indices = [name for name in indices if node is None or name.rpartition(":")[0] == node]
        names |= set(node_addresses) if len(node_addresses) > len(node_indices) else set()
    return tuple(sorted(names))


def may_belong_to_run(pci: str, node: str | None, grids: Sequence[Grid | None], run: Run) -> bool:
    """Whether the GPU at an address may belong to the run: False only if all GPUs of the run are known and it is none
    of them."""
    all_series = [series for grid in grids if grid is not None for series in grid.series]
    addresses = {(gpu_name(series), address_key(str(series.get("pci")))) for series in all_series if series.get("pci")}
    node_addresses = {address for name, address in addresses if node is None or name.rpartition(":")[0] == node}
    complete = run.n_gpus is not None and len(run.gpus) == run.n_gpus == len({name for name, _ in addresses})
    return not complete or not node_addresses or address_key(pci) in node_addresses
