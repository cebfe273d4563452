"""Counts of CUDA calls at two levels: the runtime calls the driver."""

from __future__ import annotations

import pytest

from trackside.agent.trace import calls, functions

TABLE = functions.cuda()
NUMBER = {function.name: number for number, function in TABLE.items()}


def calls_of(**cells: tuple[int, int, int]) -> calls.Calls:
    return calls.Calls({(NUMBER[name], 0): cell for name, cell in cells.items()})


@pytest.mark.parametrize(
    ("runtime", "driver", "launches"),
    [(100, 100, 100), (100, 150, 150), (100, 0, 100), (0, 50, 50), (100, 20, 100)],
    ids=["driver sees all", "and direct ones", "no driver probed", "driver alone", "driver sees direct ones only"],
)
def test_a_launch_is_counted_once(runtime: int, driver: int, launches: int) -> None:
    assert calls_of(cudaLaunchKernel=(runtime, 0, 0), cuLaunchKernel=(driver, 0, 0)).launches(TABLE) == launches


def test_driver_time_within_the_runtime_is_not_counted_twice() -> None:
    totals = calls_of(cudaStreamSynchronize=(10, 1000, 0), cuStreamSynchronize=(10, 900, 0)).totals(TABLE)
    assert {api: (total.calls, total.ns) for api, total in totals.items()} == {"cudaStreamSynchronize": (10, 1000)}


def test_direct_driver_calls_are_counted_in_addition_to_the_runtimes() -> None:
    totals = calls_of(
        cudaLaunchKernel=(100, 1000, 0), cuLaunchKernel=(100, 900, 0), cuLaunchKernelEx=(60, 700, 0)
    ).totals(TABLE)
    assert totals["cudaLaunchKernel"].calls == 100
    assert totals["cuLaunchKernel"].calls + totals["cuLaunchKernelEx"].calls in (59, 60)
    assert totals["cuLaunchKernel"].ns + totals["cuLaunchKernelEx"].ns in (599, 600)


def test_variants_of_a_function_are_added_up() -> None:
    totals = calls_of(cudaLaunchKernel=(5, 1, 0), cudaLaunchKernel_ptsz=(7, 2, 0)).totals(TABLE)
    assert (totals["cudaLaunchKernel"].calls, totals["cudaLaunchKernel"].ns) == (12, 3)


def test_bytes_are_those_of_the_level_with_more_calls() -> None:
    runtime, driver = NUMBER["cudaMemcpyAsync"], NUMBER["cuMemcpyHtoDAsync_v2"]
    both = calls.Calls({(runtime, 1): (3, 0, 300), (driver, 1): (5, 0, 500)})
    assert both.bytes_copied(TABLE) == {"h2d": 500}
    assert calls.Calls({(runtime, 4): (3, 0, 300), (driver, 1): (1, 0, 100)}).bytes_copied(TABLE) == {"default": 300}


def test_without_calls_there_are_no_metrics() -> None:
    assert calls.Calls().launches(TABLE) is None
    assert calls.Calls().totals(TABLE) == {}
    assert calls.Calls().bytes_copied(TABLE) == {}
