"""Collectives of a stub NCCL: the kernel counts those that were started and those known to be complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.agent.readings import assert_conforms
from tests.agent.trace.callers import Caller, Jobs, collect_reading, context, need_bpf, value
from trackside.agent.source import Reading
from trackside.agent.sources.nccl import SOURCE, NcclOptions
from trackside.agent.trace.collectives import SLOTS, comm_id

pytestmark = pytest.mark.service

STARTED, COMPLETED, IN_FLIGHT, OLDEST, SECONDS, ENQUEUE, LIVE = (
    "trackside_nccl_collectives_started_total",
    "trackside_nccl_collectives_completed_total",
    "trackside_nccl_collectives_in_flight",
    "trackside_nccl_oldest_in_flight_seconds",
    "trackside_nccl_collective_seconds_total",
    "trackside_nccl_enqueue_seconds_total",
    "trackside_nccl_communicators",
)
STREAM, OTHER_STREAM, EVENT = 0x7000, 0x7100, 0x9000
IDENTIFIER = bytes(range(1, 129))
NOT_READY = 600
Open = Callable[..., Any]


@pytest.fixture
def open_source(jobs: Jobs) -> Iterator[Open]:
    """Opens the source; it is closed after the test."""
    need_bpf("nccl")
    with ExitStack() as stack:

        def open_(**options: Any) -> Any:
            collector = SOURCE.open(context(jobs, NcclOptions(**options)))
            stack.callback(collector.close)
            return collector

        yield open_


class Rank:
    """A process in a communicator."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        result, self.comm = caller.do(f"value = join('ncclCommInitRankConfig', 8, 3, {IDENTIFIER!r}, 0)")
        assert result == 0

    def all_reduce(self, times: int = 1, stream: int = STREAM) -> None:
        self.caller.call("ncclAllReduce", 0, 0, 10, 7, 0, self.comm, stream, times=times)

    def set_result(self, number: int) -> None:
        self.caller.do(f"set_integer('libcudart', 'stub_result', {number})")

    def record(self, event: int = EVENT, stream: int = STREAM) -> None:
        self.caller.call("cudaEventRecord", event, stream)

    def query(self, event: int = EVENT, result: int = 0) -> None:
        self.set_result(result)
        self.caller.call("cudaEventQuery", event)
        self.set_result(0)


def counts(reading: Reading, op: str = "AllReduce") -> tuple[float | None, ...]:
    return tuple(value(reading, metric, op=op) for metric in (STARTED, COMPLETED, IN_FLIGHT))


def test_a_completed_event_completes_collectives_enqueued_before_it(
    method: str, open_source: Open, caller: Caller
) -> None:
    collector = open_source()
    assert collector.tracer.probes.method == method
    rank = Rank(caller)
    rank.all_reduce(10)
    rank.record()
    rank.all_reduce(3)
    rank.query(result=NOT_READY)
    assert counts(collect_reading(collector)) == (13, 0, 13)
    rank.query()
    reading = collect_reading(collector)
    assert_conforms(reading, SOURCE)
    assert counts(reading) == (13, 10, 3)
    assert value(reading, STARTED, comm=f"0x{comm_id(IDENTIFIER):x}", rank=0, job=42) == 13
    assert (value(reading, ENQUEUE, op="AllReduce") or 0) > 0


@pytest.mark.parametrize(
    "wait", ["cudaEventSynchronize", "cudaStreamSynchronize", "cudaStreamQuery", "cudaDeviceSynchronize"]
)
def test_every_call_that_shows_a_finished_stream_completes_its_collectives(
    open_source: Open, caller: Caller, wait: str
) -> None:
    collector = open_source()
    rank = Rank(caller)
    rank.all_reduce(5)
    rank.record()
    arguments = {"cudaEventSynchronize": [EVENT], "cudaDeviceSynchronize": []}.get(wait, [STREAM])
    rank.set_result(700)
    caller.call(wait, *arguments)
    assert counts(collect_reading(collector))[1] == 0
    rank.set_result(0)
    caller.call(wait, *arguments)
    assert counts(collect_reading(collector)) == (5, 5, 0)


def test_a_hang_raises_the_age_of_the_oldest_collective_in_flight(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    rank = Rank(caller)
    rank.all_reduce(2)
    rank.record()
    rank.query(result=NOT_READY)
    first = value(collect_reading(collector), OLDEST) or 0.0
    caller.do("time.sleep(0.3)")
    second = collect_reading(collector)
    assert (value(second, OLDEST) or 0.0) >= first + 0.3
    assert counts(second) == (2, 0, 2)
    rank.query()
    assert value(collect_reading(collector), OLDEST) == 0


def test_a_finished_stream_does_not_complete_collectives_of_another(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    rank = Rank(caller)
    rank.all_reduce(4)
    rank.record()
    caller.call("cudaStreamSynchronize", OTHER_STREAM)
    rank.record(EVENT + 8, OTHER_STREAM)
    rank.query(EVENT + 8)
    assert counts(collect_reading(collector)) == (4, 0, 4)


def test_an_event_recorded_again_on_another_stream_no_longer_counts(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    rank = Rank(caller)
    rank.all_reduce(4)
    rank.record()
    rank.record(EVENT, OTHER_STREAM)
    rank.query()
    assert counts(collect_reading(collector)) == (4, 0, 4)


def test_a_destroyed_event_no_longer_counts(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    rank = Rank(caller)
    rank.all_reduce(4)
    rank.record()
    caller.call("cudaEventDestroy", EVENT)
    rank.query()  # an event that was never recorded is complete
    assert counts(collect_reading(collector)) == (4, 0, 4)


def test_without_any_query_completion_is_unknown(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    Rank(caller).all_reduce(4)
    assert counts(collect_reading(collector)) == (4, None, None)


def test_a_failed_call_is_not_a_collective(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    rank = Rank(caller)
    rank.all_reduce(2)
    caller.do("set_integer('libcudart', 'stub_result', 4)")
    rank.all_reduce(5)
    caller.do("set_integer('libcudart', 'stub_result', 7)")  # in progress: a communicator that doesn't block
    rank.all_reduce(1)
    rank.record()
    assert counts(collect_reading(collector)) == (3, 0, 3)


def test_operations_and_communicators_are_counted_separately(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    rank = Rank(caller)
    child = caller.do(f"value = split({rank.comm}, 1)")
    second_child = caller.do(f"value = split({rank.comm}, 5)")
    assert caller.do(f"value = split({rank.comm}, -1)") is None
    caller.call("ncclReduce", 0, 0, 10, 7, 0, 0, child, STREAM, times=2)
    caller.call("ncclAllGather", 0, 0, 10, 7, second_child, OTHER_STREAM, times=3)
    caller.call("ncclReduceScatter", 0, 0, 10, 7, 0, rank.comm, STREAM, times=4)
    caller.call("ncclSend", 0, 10, 7, 1, rank.comm, STREAM, times=6)
    caller.call("ncclGroupEnd")
    caller.call("cudaStreamSynchronize", STREAM)
    reading = collect_reading(collector)
    assert_conforms(reading, SOURCE)
    name = f"0x{comm_id(IDENTIFIER):x}"
    assert value(reading, COMPLETED, op="Reduce", comm=f"{name}/1.1") == 2
    assert value(reading, STARTED, op="AllGather", comm=f"{name}/5.2") == 3
    assert value(reading, COMPLETED, op="AllGather") is None
    assert value(reading, COMPLETED, op="ReduceScatter", comm=name) == 4
    assert value(reading, COMPLETED, op="Send", comm=name) == 6
    assert value(reading, LIVE) == 3
    assert (value(reading, ENQUEUE, op="Group") or 0) > 0


def test_live_communicators_are_counted(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    rank = Rank(caller)
    second_comm = caller.do("value = join('ncclCommInitRank', 2, 0, b'other')")[1]
    caller.do("value = function('ncclCommInitAll')((ctypes.c_void_p * 4)(), 4, None)")
    assert value(collect_reading(collector), LIVE) == 6
    caller.call("ncclCommDestroy", second_comm)
    caller.call("ncclCommAbort", rank.comm)
    assert value(collect_reading(collector), LIVE) == 4
    caller.do("set_integer('libcudart', 'stub_result', 3)")
    assert caller.do("value = join('ncclCommInitRank', 2, 0, b'fails')")[0] == 3
    assert value(collect_reading(collector), LIVE) == 4


def test_a_communicator_from_before_the_trace_has_a_name_from_its_address(open_source: Open, caller: Caller) -> None:
    rank = Rank(caller)
    collector = open_source()
    rank.all_reduce(2)
    reading = collect_reading(collector)
    assert value(reading, STARTED, comm=f"unknown-{rank.comm:x}") == 2
    assert value(reading, LIVE) == 1


def test_more_collectives_in_flight_than_slots_are_counted(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    rank = Rank(caller)
    rank.all_reduce(3 * SLOTS)
    rank.record()
    assert counts(collect_reading(collector)) == (3 * SLOTS, 0, 3 * SLOTS)
    rank.query()
    assert counts(collect_reading(collector)) == (3 * SLOTS, 3 * SLOTS, 0)


@pytest.mark.parametrize("milliseconds", [0.25, 1.5, 1234.5, 60000.0])
def test_elapsed_times_measured_by_the_process_are_used(open_source: Open, caller: Caller, milliseconds: float) -> None:
    collector = open_source()
    rank = Rank(caller)
    rank.all_reduce()
    assert value(collect_reading(collector), SECONDS) is None
    for _ in range(3):
        rank.record(EVENT)
        rank.all_reduce()
        rank.record(EVENT + 8)
        caller.do(f"value = elapsed({EVENT}, {EVENT + 8}, {milliseconds})")
    assert value(collect_reading(collector), SECONDS) == pytest.approx(3 * milliseconds / 1000, rel=1e-6)


def test_collectives_enqueued_by_several_threads_are_counted(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    rank = Rank(caller)
    caller.do(f"value = in_threads(8, 'ncclAllReduce', 0, 0, 10, 7, 0, {rank.comm}, {STREAM}, times=300)")
    caller.call("cudaStreamSynchronize", STREAM)
    assert counts(collect_reading(collector)) == (2400, 2400, 0)


def test_rows_of_an_ended_process_are_removed(open_source: Open, caller: Caller) -> None:
    collector = open_source()
    rank = Rank(caller)
    rank.all_reduce(5)
    rank.record()
    caller.kill()
    assert counts(collect_reading(collector)) == (5, 0, 5)
    collect_reading(collector)
    tables = (collector._tallies, collector._communicators, collector._lanes, collector._marks, collector._settled)
    assert [table.rows() for table in tables] == [[]] * 5
