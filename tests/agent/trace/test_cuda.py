"""Calls of stub libraries, counted by the kernel: real programs, real probes, known counts."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.readings import assert_conforms
from tests.agent.trace.callers import Caller, Jobs, collect_reading, context, need_bpf, start_caller, total, value
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
def open_source(jobs: Jobs) -> Iterator[Open]:
    """Opens the source; it is closed after the test."""
    need_bpf()
    with ExitStack() as stack:

        def open_(**options: Any) -> Any:
            collector = SOURCE.open(context(jobs, CudaOptions(**options)))
            stack.callback(collector.close)
            return collector

        yield open_


def test_every_call_is_counted_by_every_method(method: str, open_source: Open, caller: Caller) -> None:
    collector = open_source()
    assert collector.tracer.probes.method == method
    caller.call("cudaLaunchKernel", times=1234)
    caller.call("cudaLaunchKernelExC", times=10)
    caller.call("cudaGraphLaunch", times=6)
    reading = collect_reading(collector)
    assert_conforms(reading, SOURCE)
    assert value(reading, LAUNCHES, pid=caller.pid, rank=0, job=42) == 1250
    assert value(reading, CALLS, api="cudaLaunchKernel") == 1234
    assert value(reading, "trackside_tracer_attached", pid=caller.pid) == 1
    assert value(reading, "trackside_tracer_lost_events_total") == 0
    assert not reading.warnings


def test_time_in_waiting_calls_is_measured(method: str, open_source: Open, caller: Caller) -> None:
    collector = open_source()
    caller.do("set_integer('libcudart', 'stub_wait_us', 20000)")
    begin = time.monotonic()
    caller.call("cudaStreamSynchronize", 0, times=5)
    caller.call("cudaDeviceSynchronize", times=2)
    elapsed_s = time.monotonic() - begin
    reading = collect_reading(collector)
    assert value(reading, CALLS, api="cudaStreamSynchronize") == 5
    assert 0.1 <= (value(reading, SECONDS, api="cudaStreamSynchronize") or 0) < elapsed_s
    assert 0.04 <= (value(reading, SECONDS, api="cudaDeviceSynchronize") or 0) < elapsed_s


def test_time_of_launches_is_estimated_from_a_sample(open_source: Open, caller: Caller) -> None:
    collector = open_source(timed_one_in=4)
    caller.call("cudaLaunchKernel", times=20000)
    estimated_s = value(collect_reading(collector), SECONDS, api="cudaLaunchKernel") or 0.0
    all_timed = open_source(timed_one_in=1)
    caller.call("cudaLaunchKernel", times=20000)
    exact_s = value(collect_reading(all_timed), SECONDS, api="cudaLaunchKernel") or 0.0
    assert exact_s / 5 < estimated_s < exact_s * 5  # for empty calls the time is that of the probes themselves


def test_launches_may_be_counted_without_their_time(open_source: Open, caller: Caller) -> None:
    collector = open_source(timed_one_in=0)
    caller.call("cudaLaunchKernel", times=100)
    reading = collect_reading(collector)
    assert value(reading, LAUNCHES) == 100
    assert value(reading, SECONDS, api="cudaLaunchKernel") is None


def test_copied_bytes_are_counted_by_direction(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    caller.call("cudaMemcpyAsync", 0, 0, 1000, 1, 0, times=3)
    caller.call("cudaMemcpy", 0, 0, 500, 2)
    caller.call("cudaMemcpy2DAsync", 0, 0, 0, 0, 100, 20, 3, 0)
    caller.call("cudaMemcpyPeerAsync", 0, 1, 0, 0, 1 << 33, 0)
    caller.call("cudaMemcpyAsync", 0, 0, 7, 4, 0)
    reading = collect_reading(collector)
    bytes_by_direction = {
        direction: value(reading, BYTES, direction=direction) for direction in ("h2d", "d2h", "d2d", "p2p", "default")
    }
    assert bytes_by_direction == {"h2d": 3000, "d2h": 500, "d2d": 2000, "p2p": 1 << 33, "default": 7}
    assert value(reading, CALLS, api="cudaMemcpyAsync") == 4


def test_driver_calls_are_counted_without_the_runtime(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    caller.call("cuLaunchKernel", times=11)
    caller.call("cuLaunchKernelEx", times=4)
    caller.call("cuMemcpyHtoDAsync_v2", 0, 0, 640, 0)
    reading = collect_reading(collector)
    assert value(reading, LAUNCHES) == 15
    assert value(reading, CALLS, api="cuLaunchKernelEx") == 4
    assert value(reading, BYTES, direction="h2d") == 640


def test_a_runtime_call_that_calls_the_driver_is_counted_once(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    caller.do("value = libraries['libcudart'].stub_drive()")
    caller.call("cudaLaunchKernel", times=300)
    caller.call("cuLaunchKernel", times=20)
    caller.call("cudaStreamSynchronize", 0, times=5)
    reading = collect_reading(collector)
    assert value(reading, LAUNCHES) == 320
    assert total(reading, CALLS, api="cudaLaunchKernel") + total(reading, CALLS, api="cuLaunchKernel") == 320
    assert value(reading, CALLS, api="cuStreamSynchronize") is None


def test_calls_of_threads_and_forked_children_are_counted(
    method: str, open_source: Open, caller: Caller, jobs: Jobs
) -> None:
    collector = open_source()
    caller.do("value = in_threads(8, 'cudaLaunchKernel', times=500)")
    child = caller.do("value = in_child('cudaLaunchKernel', times=70)")
    assert child > 1
    jobs.add(child)
    try:
        wait_until(lambda: value(collect_reading(collector), LAUNCHES, pid=child) == 70, "the child's launches")
        assert value(collect_reading(collector), LAUNCHES, pid=caller.pid) == 4000
    finally:
        os.kill(child, 9)


def test_a_process_is_attached_after_a_successful_call_that_makes_a_context(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    attached = "trackside_gpu_process_attached"
    assert value(collect_reading(collector), attached, pid=caller.pid) == 0
    caller.do("set_integer('libcudart', 'stub_result', 35)")
    caller.call("cudaSetDevice", 3)
    assert value(collect_reading(collector), attached, pid=caller.pid) == 0
    caller.do("set_integer('libcudart', 'stub_result', 0)")
    caller.call("cudaSetDevice", 3)
    assert value(collect_reading(collector), attached, pid=caller.pid, gpu=3) == 1


def test_a_probed_process_without_calls_has_zero_launches(open_source: Open, caller: Caller) -> None:
    reading = collect_reading(open_source())
    assert value(reading, LAUNCHES, pid=caller.pid) == 0
    assert value(reading, "trackside_tracer_attached", pid=caller.pid) == 1


def test_libraries_loaded_late_and_later_processes_are_probed(
    open_source: Open, stubs: dict[str, Path], jobs: Jobs
) -> None:
    collector = open_source()
    with start_caller() as first, start_caller(stubs["cudart"]) as second:
        jobs.add(first, second)
        first.do(f"load({str(stubs['cudart'])!r})")
        wait_until(
            lambda: value(collect_reading(collector), "trackside_tracer_attached", pid=first.pid) == 1, "the probes"
        )
        first.call("cudaLaunchKernel", times=3)
        second.call("cudaLaunchKernel", times=4)
        reading = collect_reading(collector)
        assert (value(reading, LAUNCHES, pid=first.pid), value(reading, LAUNCHES, pid=second.pid)) == (3, 4)


def test_a_library_probed_from_the_start_misses_no_call(open_source: Open, stubs: dict[str, Path], jobs: Jobs) -> None:
    collector = open_source(libraries=(str(stubs["cudart"]),))
    with start_caller(stubs["cudart"]) as process:
        process.call("cudaLaunchKernel", times=9)
        jobs.add(process)
        assert value(collect_reading(collector), LAUNCHES, pid=process.pid) == 9


def test_a_library_replaced_on_disk_is_probed_in_both_versions(
    open_source: Open, stubs: dict[str, Path], jobs: Jobs, tmp_path: Path
) -> None:
    path = tmp_path / "libcudart.so.12"
    shutil.copy(stubs["cudart"], path)
    with start_caller(path) as process:
        path.unlink()
        shutil.copy(stubs["cudart"], path)
        with start_caller(path) as second_process:
            jobs.add(process, second_process)
            collector = open_source()
            process.call("cudaLaunchKernel", times=5)
            second_process.call("cudaLaunchKernel", times=6)
            reading = collect_reading(collector)
    assert (value(reading, LAUNCHES, rank=0), value(reading, LAUNCHES, rank=1)) == (5, 6)


def test_an_ended_process_gives_its_last_counts_once(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    caller.call("cudaLaunchKernel", times=77)
    caller.kill()
    assert value(collect_reading(collector), LAUNCHES, pid=caller.pid) == 77
    assert value(collect_reading(collector), LAUNCHES, pid=caller.pid) is None


@pytest.mark.parametrize("method", ["session", "multi"], indirect=True)
def test_a_process_killed_within_a_call_leaves_no_rows(method: str, open_source: Open, caller: Caller) -> None:
    collector = open_source()
    caller.do("set_integer('libcudart', 'stub_wait_us', 60000000)")
    assert caller.process.stdin is not None
    caller.process.stdin.write("call('cudaStreamSynchronize', 0)\n")
    caller.process.stdin.flush()
    wait_until(lambda: value(collect_reading(collector), CALLS, api="cudaStreamSynchronize") == 1, "the call")
    caller.kill()
    collect_reading(collector)
    assert collector._cells.rows() == []
    assert collector.unfinished_calls.rows() == []


def test_a_process_that_executes_another_program_is_still_counted(
    open_source: Open, caller: Caller, stubs: dict[str, Path]
) -> None:
    collector = open_source()
    caller.call("cudaLaunchKernel", times=5)
    caller.do("value = 0; print('0', flush=True); os.execv(sys.executable, [sys.executable, '-S', sys.argv[0]])")
    caller.do(f"load({str(stubs['cudart'])!r})")
    caller.call("cudaLaunchKernel", times=6)
    assert value(collect_reading(collector), LAUNCHES, pid=caller.pid) == 11


def test_processes_without_a_job_are_traced_only_on_request(
    open_source: Open, caller: Caller, stubs: dict[str, Path]
) -> None:
    collector, everything = open_source(), open_source(everything=True)
    with start_caller(stubs["cudart"]) as outsider:
        outsider.call("cudaLaunchKernel", times=8)
        assert value(collect_reading(collector), LAUNCHES, pid=outsider.pid) is None
        wait_until(
            lambda: value(collect_reading(everything), LAUNCHES, pid=outsider.pid) == 8,
            "calls of the process without a job",
        )


def test_sixty_four_processes_are_counted_at_once(open_source: Open, stubs: dict[str, Path], jobs: Jobs) -> None:
    collector = open_source()
    with ExitStack() as stack:
        processes = [stack.enter_context(start_caller(stubs["cudart"])) for _ in range(64)]
        jobs.add(*processes)
        wait_until(lambda: total(collect_reading(collector), "trackside_tracer_attached") == 64, "all to be probed")
        for number, process in enumerate(processes, 1):
            process.call("cudaLaunchKernel", times=number)
        reading = collect_reading(collector)
        assert [value(reading, LAUNCHES, rank=rank) for rank in range(64)] == [float(number) for number in range(1, 65)]
        assert_conforms(reading, SOURCE)
        assert len(collector.tracer.tracker.libraries) == 1


def test_calls_beyond_a_full_table_are_counted_as_lost(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    for pid in range(1 << 20, (1 << 20) + 17000):
        try:
            collector._cells.put(pid.to_bytes(4, "little") + bytes(4), bytes(24))
        except OSError:
            break
    caller.call("cudaLaunchKernel", times=50)
    reading = collect_reading(collector)
    assert (value(reading, "trackside_tracer_lost_events_total") or 0) >= 50
    assert reading.lost["events"] >= 50


def test_calls_carry_the_job_of_the_agents_process_map(stubs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    need_bpf()
    monkeypatch.setattr(ProcessMap, "_step_daemon_job", lambda *_: "777")
    owners = ProcessMap(LocalNode("n1"))
    environment = {"SLURM_JOB_ID": "777", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURMD_NODENAME": "n1"}
    with start_caller(stubs["cudart"], **environment) as process:
        owners.renew()
        collector = SOURCE.open(context(owners, CudaOptions()))
        try:
            process.call("cudaLaunchKernel", times=12)
            assert value(collect_reading(collector), LAUNCHES, job=777, pid=process.pid) == 12
        finally:
            collector.close()
