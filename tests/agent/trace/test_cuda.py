"""Calls of stub libraries, counted by the kernel: real programs, real probes, counts that are known."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.readings import conform
from tests.agent.trace.callers import Caller, Jobs, calling, collected, context, need_bpf, total, value
from tests.services import wait_until
from trackside.agent.jobs.processes import ProcessMap
from trackside.agent.node import LocalNode
from trackside.agent.sources.cuda import SOURCE, CudaOptions

pytestmark = pytest.mark.service

LAUNCHES, CALLS, SECONDS, BYTES = (
    "trackside_cuda_kernel_launches_total",
    "trackside_cuda_api_calls_total",
    "trackside_cuda_api_seconds_total",
    "trackside_cuda_memcpy_bytes_total",
)
Open = Callable[..., Any]


@pytest.fixture
def opened(jobs: Jobs) -> Iterator[Open]:
    """Opens the source; it ends with the test."""
    need_bpf()
    with ExitStack() as stack:

        def open_(**options: Any) -> Any:
            collector = SOURCE.open(context(jobs, CudaOptions(**options)))
            stack.callback(collector.close)
            return collector

        yield open_


def test_every_call_is_counted_by_every_method(method: str, opened: Open, caller: Caller) -> None:
    collector = opened()
    assert collector.tracer.probes.method == method
    caller.call("cudaLaunchKernel", times=1234)
    caller.call("cudaLaunchKernelExC", times=10)
    caller.call("cudaGraphLaunch", times=6)
    reading = collected(collector)
    conform(reading, SOURCE)
    assert value(reading, LAUNCHES, pid=caller.pid, rank=0, job=42) == 1250
    assert value(reading, CALLS, api="cudaLaunchKernel") == 1234
    assert value(reading, "trackside_tracer_attached", pid=caller.pid) == 1
    assert value(reading, "trackside_tracer_lost_events_total") == 0
    assert not reading.warnings


def test_waiting_is_timed(method: str, opened: Open, caller: Caller) -> None:
    collector = opened()
    caller.do("set_integer('libcudart', 'stub_wait_us', 20000)")
    begin = time.monotonic()
    caller.call("cudaStreamSynchronize", 0, times=5)
    caller.call("cudaDeviceSynchronize", times=2)
    spent = time.monotonic() - begin
    reading = collected(collector)
    assert value(reading, CALLS, api="cudaStreamSynchronize") == 5
    assert 0.1 <= (value(reading, SECONDS, api="cudaStreamSynchronize") or 0) < spent
    assert 0.04 <= (value(reading, SECONDS, api="cudaDeviceSynchronize") or 0) < spent


def test_time_of_launches_is_estimated_from_some(opened: Open, caller: Caller) -> None:
    collector = opened(timed_one_in=4)
    caller.call("cudaLaunchKernel", times=20000)
    spent = value(collected(collector), SECONDS, api="cudaLaunchKernel") or 0.0
    all_timed = opened(timed_one_in=1)
    caller.call("cudaLaunchKernel", times=20000)
    exact = value(collected(all_timed), SECONDS, api="cudaLaunchKernel") or 0.0
    assert exact / 5 < spent < exact * 5  # of empty calls it is the probes' own time that is measured


def test_launches_may_be_counted_without_their_time(opened: Open, caller: Caller) -> None:
    collector = opened(timed_one_in=0)
    caller.call("cudaLaunchKernel", times=100)
    reading = collected(collector)
    assert value(reading, LAUNCHES) == 100
    assert value(reading, SECONDS, api="cudaLaunchKernel") is None


def test_copies_by_direction(opened: Open, caller: Caller) -> None:
    collector = opened()
    caller.call("cudaMemcpyAsync", 0, 0, 1000, 1, 0, times=3)
    caller.call("cudaMemcpy", 0, 0, 500, 2)
    caller.call("cudaMemcpy2DAsync", 0, 0, 0, 0, 100, 20, 3, 0)
    caller.call("cudaMemcpyPeerAsync", 0, 1, 0, 0, 1 << 33, 0)
    caller.call("cudaMemcpyAsync", 0, 0, 7, 4, 0)
    reading = collected(collector)
    got = {
        direction: value(reading, BYTES, direction=direction) for direction in ("h2d", "d2h", "d2d", "p2p", "default")
    }
    assert got == {"h2d": 3000, "d2h": 500, "d2d": 2000, "p2p": 1 << 33, "default": 7}
    assert value(reading, CALLS, api="cudaMemcpyAsync") == 4


def test_the_drivers_calls_are_counted_where_there_is_no_runtime(opened: Open, caller: Caller) -> None:
    collector = opened()
    caller.call("cuLaunchKernel", times=11)
    caller.call("cuLaunchKernelEx", times=4)
    caller.call("cuMemcpyHtoDAsync_v2", 0, 0, 640, 0)
    reading = collected(collector)
    assert value(reading, LAUNCHES) == 15
    assert value(reading, CALLS, api="cuLaunchKernelEx") == 4
    assert value(reading, BYTES, direction="h2d") == 640


def test_what_the_runtime_hands_on_to_the_driver_is_counted_once(opened: Open, caller: Caller) -> None:
    collector = opened()
    caller.do("value = libraries['libcudart'].stub_drive()")
    caller.call("cudaLaunchKernel", times=300)
    caller.call("cuLaunchKernel", times=20)
    caller.call("cudaStreamSynchronize", 0, times=5)
    reading = collected(collector)
    assert value(reading, LAUNCHES) == 320
    assert total(reading, CALLS, api="cudaLaunchKernel") + total(reading, CALLS, api="cuLaunchKernel") == 320
    assert value(reading, CALLS, api="cuStreamSynchronize") is None


def test_threads_and_forked_children(method: str, opened: Open, caller: Caller, jobs: Jobs) -> None:
    collector = opened()
    caller.do("value = in_threads(8, 'cudaLaunchKernel', times=500)")
    child = caller.do("value = in_child('cudaLaunchKernel', times=70)")
    assert child > 1
    jobs.add(child)
    try:
        wait_until(lambda: value(collected(collector), LAUNCHES, pid=child) == 70, "the child's launches")
        assert value(collected(collector), LAUNCHES, pid=caller.pid) == 4000
    finally:
        os.kill(child, 9)


def test_a_context_is_there_once_a_call_that_makes_one_succeeded(opened: Open, caller: Caller) -> None:
    collector = opened()
    attached = "trackside_gpu_process_attached"
    assert value(collected(collector), attached, pid=caller.pid) == 0
    caller.do("set_integer('libcudart', 'stub_result', 35)")
    caller.call("cudaSetDevice", 3)
    assert value(collected(collector), attached, pid=caller.pid) == 0
    caller.do("set_integer('libcudart', 'stub_result', 0)")
    caller.call("cudaSetDevice", 3)
    assert value(collected(collector), attached, pid=caller.pid, gpu=3) == 1


def test_one_that_is_probed_and_never_calls_shows_nought(opened: Open, caller: Caller) -> None:
    reading = collected(opened())
    assert value(reading, LAUNCHES, pid=caller.pid) == 0
    assert value(reading, "trackside_tracer_attached", pid=caller.pid) == 1


def test_a_library_loaded_late_and_a_process_that_comes_later(opened: Open, stubs: dict[str, Path], jobs: Jobs) -> None:
    collector = opened()
    with calling() as first, calling(stubs["cudart"]) as second:
        jobs.add(first, second)
        first.do(f"load({str(stubs['cudart'])!r})")
        wait_until(lambda: value(collected(collector), "trackside_tracer_attached", pid=first.pid) == 1, "the probes")
        first.call("cudaLaunchKernel", times=3)
        second.call("cudaLaunchKernel", times=4)
        reading = collected(collector)
        assert (value(reading, LAUNCHES, pid=first.pid), value(reading, LAUNCHES, pid=second.pid)) == (3, 4)


def test_probed_from_the_start_no_first_call_is_missed(opened: Open, stubs: dict[str, Path], jobs: Jobs) -> None:
    collector = opened(libraries=(str(stubs["cudart"]),))
    with calling(stubs["cudart"]) as process:
        process.call("cudaLaunchKernel", times=9)
        jobs.add(process)
        assert value(collected(collector), LAUNCHES, pid=process.pid) == 9


def test_a_library_replaced_on_disk_while_it_is_in_use(
    opened: Open, stubs: dict[str, Path], jobs: Jobs, tmp_path: Path
) -> None:
    path = tmp_path / "libcudart.so.12"
    shutil.copy(stubs["cudart"], path)
    with calling(path) as process:
        path.unlink()
        shutil.copy(stubs["cudart"], path)
        with calling(path) as other:
            jobs.add(process, other)
            collector = opened()
            process.call("cudaLaunchKernel", times=5)
            other.call("cudaLaunchKernel", times=6)
            reading = collected(collector)
    assert (value(reading, LAUNCHES, rank=0), value(reading, LAUNCHES, rank=1)) == (5, 6)


def test_a_process_that_dies_gives_its_last_counts_and_then_none(opened: Open, caller: Caller) -> None:
    collector = opened()
    caller.call("cudaLaunchKernel", times=77)
    caller.kill()
    assert value(collected(collector), LAUNCHES, pid=caller.pid) == 77
    assert value(collected(collector), LAUNCHES, pid=caller.pid) is None


@pytest.mark.parametrize("method", ["session", "multi"], indirect=True)
def test_one_that_dies_within_a_call_leaves_nothing_behind(method: str, opened: Open, caller: Caller) -> None:
    collector = opened()
    caller.do("set_integer('libcudart', 'stub_wait_us', 60000000)")
    assert caller.process.stdin is not None
    caller.process.stdin.write("call('cudaStreamSynchronize', 0)\n")
    caller.process.stdin.flush()
    wait_until(lambda: value(collected(collector), CALLS, api="cudaStreamSynchronize") == 1, "the call")
    caller.kill()
    collected(collector)
    assert collector._cells.rows() == []
    assert collector._underway.rows() == []


def test_one_that_executes_another_program_goes_on_being_counted(
    opened: Open, caller: Caller, stubs: dict[str, Path]
) -> None:
    collector = opened()
    caller.call("cudaLaunchKernel", times=5)
    caller.do("value = 0; print('0', flush=True); os.execv(sys.executable, [sys.executable, '-S', sys.argv[0]])")
    caller.do(f"load({str(stubs['cudart'])!r})")
    caller.call("cudaLaunchKernel", times=6)
    assert value(collected(collector), LAUNCHES, pid=caller.pid) == 11


def test_processes_of_no_job_are_left_alone_unless_asked_for(
    opened: Open, caller: Caller, stubs: dict[str, Path]
) -> None:
    collector, all_of_them = opened(), opened(everything=True)
    with calling(stubs["cudart"]) as stranger:
        stranger.call("cudaLaunchKernel", times=8)
        assert value(collected(collector), LAUNCHES, pid=stranger.pid) is None
        wait_until(lambda: value(collected(all_of_them), LAUNCHES, pid=stranger.pid) == 8, "the stranger")


def test_sixty_four_processes_at_once(opened: Open, stubs: dict[str, Path], jobs: Jobs) -> None:
    collector = opened()
    with ExitStack() as stack:
        processes = [stack.enter_context(calling(stubs["cudart"])) for _ in range(64)]
        jobs.add(*processes)
        wait_until(lambda: total(collected(collector), "trackside_tracer_attached") == 64, "all to be probed")
        for number, process in enumerate(processes, 1):
            process.call("cudaLaunchKernel", times=number)
        reading = collected(collector)
        assert [value(reading, LAUNCHES, rank=rank) for rank in range(64)] == [float(number) for number in range(1, 65)]
        conform(reading, SOURCE)
        assert len(collector.tracer.tracker.libraries) == 1


def test_a_full_table_is_said_to_have_lost(opened: Open, caller: Caller) -> None:
    collector = opened()
    for pid in range(1 << 20, (1 << 20) + 17000):
        try:
            collector._cells.put(pid.to_bytes(4, "little") + bytes(4), bytes(24))
        except OSError:
            break
    caller.call("cudaLaunchKernel", times=50)
    reading = collected(collector)
    assert (value(reading, "trackside_tracer_lost_events_total") or 0) >= 50
    assert reading.lost["events"] >= 50


def test_by_the_agents_own_map_of_processes(stubs: dict[str, Path]) -> None:
    need_bpf()
    owners = ProcessMap(LocalNode("n1"))
    environment = {"SLURM_JOB_ID": "777", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURMD_NODENAME": "n1"}
    with calling(stubs["cudart"], **environment) as process:
        owners.renew()
        collector = SOURCE.open(context(owners, CudaOptions()))
        try:
            process.call("cudaLaunchKernel", times=12)
            assert value(collected(collector), LAUNCHES, job=777, pid=process.pid) == 12
        finally:
            collector.close()
