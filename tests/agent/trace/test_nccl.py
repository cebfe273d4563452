"""Collectives of a stub NCCL, followed by the kernel's own counts up to what is known to be done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.agent.readings import conform
from tests.agent.trace.callers import Caller, Jobs, collected, context, need_bpf, value
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
def opened(jobs: Jobs) -> Iterator[Open]:
    """Opens the source; it ends with the test."""
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

    def returns(self, number: int) -> None:
        self.caller.do(f"set_integer('libcudart', 'stub_result', {number})")

    def record(self, event: int = EVENT, stream: int = STREAM) -> None:
        self.caller.call("cudaEventRecord", event, stream)

    def query(self, event: int = EVENT, result: int = 0) -> None:
        self.returns(result)
        self.caller.call("cudaEventQuery", event)
        self.returns(0)


def states(reading: Reading, op: str = "AllReduce") -> tuple[float | None, ...]:
    return tuple(value(reading, metric, op=op) for metric in (STARTED, COMPLETED, IN_FLIGHT))


def test_an_events_success_completes_what_was_enqueued_before_it(method: str, opened: Open, caller: Caller) -> None:
    collector = opened()
    assert collector.tracer.probes.method == method
    rank = Rank(caller)
    rank.all_reduce(10)
    rank.record()
    rank.all_reduce(3)
    rank.query(result=NOT_READY)
    assert states(collected(collector)) == (13, 0, 13)
    rank.query()
    reading = collected(collector)
    conform(reading, SOURCE)
    assert states(reading) == (13, 10, 3)
    assert value(reading, STARTED, comm=f"0x{comm_id(IDENTIFIER):x}", rank=0, job=42) == 13
    assert (value(reading, ENQUEUE, op="AllReduce") or 0) > 0


@pytest.mark.parametrize(
    "wait", ["cudaEventSynchronize", "cudaStreamSynchronize", "cudaStreamQuery", "cudaDeviceSynchronize"]
)
def test_whatever_shows_the_stream_done_completes(opened: Open, caller: Caller, wait: str) -> None:
    collector = opened()
    rank = Rank(caller)
    rank.all_reduce(5)
    rank.record()
    given = {"cudaEventSynchronize": [EVENT], "cudaDeviceSynchronize": []}.get(wait, [STREAM])
    rank.returns(700)
    caller.call(wait, *given)
    assert states(collected(collector))[1] == 0
    rank.returns(0)
    caller.call(wait, *given)
    assert states(collected(collector)) == (5, 5, 0)


def test_a_hang_shows_as_the_age_of_the_oldest_in_flight(opened: Open, caller: Caller) -> None:
    collector = opened()
    rank = Rank(caller)
    rank.all_reduce(2)
    rank.record()
    rank.query(result=NOT_READY)
    first = value(collected(collector), OLDEST) or 0.0
    caller.do("time.sleep(0.3)")
    second = collected(collector)
    assert (value(second, OLDEST) or 0.0) >= first + 0.3
    assert states(second) == (2, 0, 2)
    rank.query()
    assert value(collected(collector), OLDEST) == 0


def test_another_streams_success_says_nothing(opened: Open, caller: Caller) -> None:
    collector = opened()
    rank = Rank(caller)
    rank.all_reduce(4)
    rank.record()
    caller.call("cudaStreamSynchronize", OTHER_STREAM)
    rank.record(EVENT + 8, OTHER_STREAM)
    rank.query(EVENT + 8)
    assert states(collected(collector)) == (4, 0, 4)


def test_an_event_that_was_recorded_elsewhere_since_no_longer_stands_for_the_stream(
    opened: Open, caller: Caller
) -> None:
    collector = opened()
    rank = Rank(caller)
    rank.all_reduce(4)
    rank.record()
    rank.record(EVENT, OTHER_STREAM)
    rank.query()
    assert states(collected(collector)) == (4, 0, 4)


def test_an_event_destroyed_and_made_again_at_the_same_address_is_another(opened: Open, caller: Caller) -> None:
    collector = opened()
    rank = Rank(caller)
    rank.all_reduce(4)
    rank.record()
    caller.call("cudaEventDestroy", EVENT)
    rank.query()  # one that was never recorded is complete
    assert states(collected(collector)) == (4, 0, 4)


def test_where_nothing_is_ever_asked_completion_is_not_given(opened: Open, caller: Caller) -> None:
    collector = opened()
    Rank(caller).all_reduce(4)
    assert states(collected(collector)) == (4, None, None)


def test_a_call_that_failed_was_no_collective(opened: Open, caller: Caller) -> None:
    collector = opened()
    rank = Rank(caller)
    rank.all_reduce(2)
    caller.do("set_integer('libcudart', 'stub_result', 4)")
    rank.all_reduce(5)
    caller.do("set_integer('libcudart', 'stub_result', 7)")  # in progress: a communicator that doesn't block
    rank.all_reduce(1)
    rank.record()
    assert states(collected(collector)) == (3, 0, 3)


def test_operations_and_communicators_apart(opened: Open, caller: Caller) -> None:
    collector = opened()
    rank = Rank(caller)
    part = caller.do(f"value = split({rank.comm}, 1)")
    second = caller.do(f"value = split({rank.comm}, 5)")
    assert caller.do(f"value = split({rank.comm}, -1)") is None
    caller.call("ncclReduce", 0, 0, 10, 7, 0, 0, part, STREAM, times=2)
    caller.call("ncclAllGather", 0, 0, 10, 7, second, OTHER_STREAM, times=3)
    caller.call("ncclReduceScatter", 0, 0, 10, 7, 0, rank.comm, STREAM, times=4)
    caller.call("ncclSend", 0, 10, 7, 1, rank.comm, STREAM, times=6)
    caller.call("ncclGroupEnd")
    caller.call("cudaStreamSynchronize", STREAM)
    reading = collected(collector)
    conform(reading, SOURCE)
    name = f"0x{comm_id(IDENTIFIER):x}"
    assert value(reading, COMPLETED, op="Reduce", comm=f"{name}/1.1") == 2
    assert value(reading, STARTED, op="AllGather", comm=f"{name}/5.2") == 3
    assert value(reading, COMPLETED, op="AllGather") is None
    assert value(reading, COMPLETED, op="ReduceScatter", comm=name) == 4
    assert value(reading, COMPLETED, op="Send", comm=name) == 6
    assert value(reading, LIVE) == 3
    assert (value(reading, ENQUEUE, op="Group") or 0) > 0


def test_communicators_come_and_go(opened: Open, caller: Caller) -> None:
    collector = opened()
    rank = Rank(caller)
    other = caller.do("value = join('ncclCommInitRank', 2, 0, b'other')")[1]
    caller.do("value = function('ncclCommInitAll')((ctypes.c_void_p * 4)(), 4, None)")
    assert value(collected(collector), LIVE) == 6
    caller.call("ncclCommDestroy", other)
    caller.call("ncclCommAbort", rank.comm)
    assert value(collected(collector), LIVE) == 4
    caller.do("set_integer('libcudart', 'stub_result', 3)")
    assert caller.do("value = join('ncclCommInitRank', 2, 0, b'fails')")[0] == 3
    assert value(collected(collector), LIVE) == 4


def test_a_communicator_from_before_the_trace_is_counted_under_a_name_of_its_own(opened: Open, caller: Caller) -> None:
    rank = Rank(caller)
    collector = opened()
    rank.all_reduce(2)
    reading = collected(collector)
    assert value(reading, STARTED, comm=f"unknown-{rank.comm:x}") == 2
    assert value(reading, LIVE) == 1


def test_more_in_flight_than_a_lane_has_slots(opened: Open, caller: Caller) -> None:
    collector = opened()
    rank = Rank(caller)
    rank.all_reduce(3 * SLOTS)
    rank.record()
    assert states(collected(collector)) == (3 * SLOTS, 0, 3 * SLOTS)
    rank.query()
    assert states(collected(collector)) == (3 * SLOTS, 3 * SLOTS, 0)


@pytest.mark.parametrize("milliseconds", [0.25, 1.5, 1234.5, 60000.0])
def test_the_processs_own_measurements_are_taken_over(opened: Open, caller: Caller, milliseconds: float) -> None:
    collector = opened()
    rank = Rank(caller)
    rank.all_reduce()
    assert value(collected(collector), SECONDS) is None
    for _ in range(3):
        rank.record(EVENT)
        rank.all_reduce()
        rank.record(EVENT + 8)
        caller.do(f"value = elapsed({EVENT}, {EVENT + 8}, {milliseconds})")
    assert value(collected(collector), SECONDS) == pytest.approx(3 * milliseconds / 1000, rel=1e-6)


def test_threads_enqueue_at_once_on_streams_of_their_own(opened: Open, caller: Caller) -> None:
    collector = opened()
    rank = Rank(caller)
    caller.do(f"value = in_threads(8, 'ncclAllReduce', 0, 0, 10, 7, 0, {rank.comm}, {STREAM}, times=300)")
    caller.call("cudaStreamSynchronize", STREAM)
    assert states(collected(collector)) == (2400, 2400, 0)


def test_what_a_dead_process_left_is_cleared(opened: Open, caller: Caller) -> None:
    collector = opened()
    rank = Rank(caller)
    rank.all_reduce(5)
    rank.record()
    caller.kill()
    assert states(collected(collector)) == (5, 0, 5)
    collected(collector)
    tables = (collector._tallies, collector._communicators, collector._lanes, collector._marks, collector._settled)
    assert [table.rows() for table in tables] == [[]] * 5
