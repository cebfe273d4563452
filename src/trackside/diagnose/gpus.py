"""Which GPU a curve, a rank or a kernel message belongs to. Pure.

A GPU is named as ``node:index``, as in :attr:`trackside.model.Run.gpus`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trackside.model import Run, Series
from trackside.query import Grid

if TYPE_CHECKING:  # only runs with metrics need numpy
    import numpy as np
    from numpy.typing import NDArray


def name_of(series: Series) -> str:
    """``node:index``."""
    return f"{series.get('node') or ''}:{series.get('gpu') or ''}"


def names(grid: Grid | None) -> list[str]:
    """The GPU of every series."""
    return [] if grid is None else [name_of(each) for each in grid.series]


def all_names(*grids: Grid | None) -> tuple[str, ...]:
    """Every GPU that any of these grids shows, in the order in which they come."""
    return tuple(dict.fromkeys(name for grid in grids for name in names(grid)))


def aligned(grid: Grid | None, gpus: Sequence[str], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The grid's values for these GPUs at these window ends: (GPUs, windows), NaN where it has none.

    Of several series of one GPU (its MIG instances) the largest counts.
    """
    import numpy as np

    out = np.full((len(gpus), len(times)), np.nan)
    if grid is None or not len(times) or not len(grid.times):
        return out
    columns = np.searchsorted(grid.times, times)
    known = columns < len(grid.times)
    known[known] = grid.times[columns[known]] == times[known]
    place = {name: row for row, name in enumerate(gpus)}
    for row, name in enumerate(names(grid)):
        if name in place:
            values = grid.values[row, columns[known]]
            out[place[name], known] = np.fmax(out[place[name], known], values)
    return out


def of_gpu(grid: Grid, gpu: str) -> Grid:
    """What the grid holds of one GPU."""
    node, _, index = gpu.rpartition(":")
    return grid.where(**({"node": node} if node else {}), gpu=index)


def of_ranks(run: Run, ranks: Iterable[int]) -> tuple[str, ...]:
    """The GPUs of these ranks, where the run has one GPU a rank; none where that isn't told."""
    if not run.gpus or run.n_ranks != len(run.gpus):
        return ()
    return tuple(run.gpus[rank] for rank in ranks if 0 <= rank < len(run.gpus))


def ranks_at(run: Run, gpus: Iterable[str]) -> tuple[int, ...]:
    """The ranks on these GPUs, where the run has one GPU a rank; none where that isn't told."""
    if not run.gpus or run.n_ranks != len(run.gpus):
        return ()
    place = {name: rank for rank, name in enumerate(run.gpus)}
    return tuple(sorted(place[gpu] for gpu in gpus if gpu in place))


def at_bus(pci: str, node: str | None, grids: Iterable[Grid | None]) -> frozenset[str]:
    """The GPUs at a PCI address, of one node or of all, by the addresses that curves carry."""
    wanted = bus(pci)
    held = (each for grid in grids if grid is not None for each in grid.series)
    return frozenset(
        name_of(each)
        for each in held
        if each.get("pci") and bus(str(each.get("pci"))) == wanted and (node is None or each.get("node") == node)
    )


def bus(pci: str) -> tuple[str, ...]:
    """An address as it can be compared: without its function, the domain's leading zeros and the letters' case."""
    parts = pci.lower().partition(".")[0].split(":")
    return tuple(part.lstrip("0") for part in (["0", *parts] if len(parts) == 2 else parts))


def ours(pci: str, node: str | None, grids: Sequence[Grid | None], run: Run) -> bool:
    """Whether a GPU at an address can be the run's: not where all GPUs of the run are known and it is none of them."""
    held = [each for grid in grids if grid is not None for each in grid.series]
    told = {(name_of(each), bus(str(each.get("pci")))) for each in held if each.get("pci")}
    here = {address for name, address in told if node is None or name.rpartition(":")[0] == node}
    complete = run.n_gpus is not None and len(run.gpus) == run.n_gpus == len({name for name, _ in told})
    return not complete or not here or bus(pci) in here
