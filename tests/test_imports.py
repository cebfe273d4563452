"""No module imports itself indirectly; import contracts are in pyproject.toml."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp


def test_there_is_no_import_cycle() -> None:
    graph = grimp.build_graph("trackside", cache_dir=None)
    sorter = TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules})
    try:
        sorter.prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from error
    assert len(graph.modules) > 500
