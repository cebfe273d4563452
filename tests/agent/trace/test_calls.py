"""Counts of CUDA calls at two levels, of which one calls the other."""

from __future__ import annotations

import pytest

from trackside.agent.trace import calls, functions

TABLE = functions.cuda()
NUMBER = {each.name: number for number, each in TABLE.items()}


def made(**cells: tuple[int, int, int]) -> calls.Calls:
    return calls.Calls({(NUMBER[name], 0): cell for name, cell in cells.items()})


@pytest.mark.parametrize(
    ("runtime", "driver", "launches"),
    [(100, 100, 100), (100, 150, 150), (100, 0, 100), (0, 50, 50), (100, 20, 100)],
    ids=["driver sees all", "and direct ones", "no driver probed", "driver alone", "driver sees direct ones only"],
)
def test_a_launch_is_counted_once(runtime: int, driver: int, launches: int) -> None:
    assert made(cudaLaunchKernel=(runtime, 0, 0), cuLaunchKernel=(driver, 0, 0)).launches(TABLE) == launches


def test_time_of_the_driver_within_the_runtime_is_not_given_twice() -> None:
    spent = made(cudaStreamSynchronize=(10, 1000, 0), cuStreamSynchronize=(10, 900, 0)).totals(TABLE)
    assert {api: (each.calls, each.ns) for api, each in spent.items()} == {"cudaStreamSynchronize": (10, 1000)}


def test_direct_calls_of_the_driver_are_given_beside_the_runtimes() -> None:
    spent = made(cudaLaunchKernel=(100, 1000, 0), cuLaunchKernel=(100, 900, 0), cuLaunchKernelEx=(60, 700, 0)).totals(
        TABLE
    )
    assert spent["cudaLaunchKernel"].calls == 100
    assert spent["cuLaunchKernel"].calls + spent["cuLaunchKernelEx"].calls in (59, 60)
    assert spent["cuLaunchKernel"].ns + spent["cuLaunchKernelEx"].ns in (599, 600)


def test_variants_of_a_function_are_one() -> None:
    spent = made(cudaLaunchKernel=(5, 1, 0), cudaLaunchKernel_ptsz=(7, 2, 0)).totals(TABLE)
    assert (spent["cudaLaunchKernel"].calls, spent["cudaLaunchKernel"].ns) == (12, 3)


def test_bytes_are_of_the_level_that_saw_more() -> None:
    runtime, driver = NUMBER["cudaMemcpyAsync"], NUMBER["cuMemcpyHtoDAsync_v2"]
    both = calls.Calls({(runtime, 1): (3, 0, 300), (driver, 1): (5, 0, 500)})
    assert both.bytes_copied(TABLE) == {"h2d": 500}
    assert calls.Calls({(runtime, 4): (3, 0, 300), (driver, 1): (1, 0, 100)}).bytes_copied(TABLE) == {"default": 300}


def test_nothing_made_says_nothing() -> None:
    assert calls.Calls().launches(TABLE) is None
    assert calls.Calls().totals(TABLE) == {}
    assert calls.Calls().bytes_copied(TABLE) == {}
