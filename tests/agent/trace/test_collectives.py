"""Collectives computed from lanes, marks and tallies, without a kernel."""

from __future__ import annotations

import struct

from trackside.agent.trace.collectives import (
    COMMUNICATOR,
    ENTERED,
    HANDLE,
    LANE_HEAD,
    SLOT,
    SLOTS,
    TALLY,
    TALLY_KEY,
    Collectives,
    comm_id,
    read_collectives,
)

PID, SERIAL, OP = 7, 1000, 1


def lane(
    started: int, done: int, observed: int = 1, time_ns: int = 50, operation: int = OP << 56 | SERIAL
) -> tuple[bytes, bytes]:
    slots = b"".join(SLOT.pack(time_ns, operation) for _ in range(SLOTS))
    return HANDLE.pack(PID, 0, 0x7000), LANE_HEAD.pack(started, done, observed, 0) + slots


def communicator(
    serial: int = SERIAL,
    address: int = 0x10,
    parent: int = 0,
    color: int = -1,
    split: int = 0,
    identifier: bytes = b"id",
    ended: int = 0,
) -> tuple[bytes, bytes]:
    return HANDLE.pack(PID, 0, address), COMMUNICATOR.pack(serial, ended, parent, 0, 8, 3, color, split, identifier)


def tally(number: int) -> tuple[bytes, bytes]:
    return TALLY_KEY.pack(PID, OP, SERIAL), TALLY.pack(number, 0, 10, 0, 0)


def collectives_of(*lanes: tuple[bytes, bytes], settled: int = 0) -> Collectives:
    return read_collectives([tally(20)], [communicator()], lanes, {PID: settled}, {})[PID]


def test_started_collectives_after_the_mark_are_in_flight() -> None:
    assert collectives_of(lane(20, 17)).in_flight[OP, SERIAL] == 3


def test_a_completed_lane_has_nothing_in_flight() -> None:
    assert not collectives_of(lane(20, 20)).in_flight
    assert not collectives_of(lane(20, 25)).in_flight  # completed during the reading


def test_more_collectives_than_slots_are_still_counted() -> None:
    assert collectives_of(lane(2000, 100)).in_flight[OP, SERIAL] == 1900


def test_an_idle_device_completes_everything_enqueued_before() -> None:
    assert not collectives_of(lane(20, 0, time_ns=50), settled=60).in_flight
    assert collectives_of(lane(20, 0, time_ns=70), settled=60).in_flight[OP, SERIAL] == 20
    assert collectives_of(lane(20, 0, time_ns=50 | ENTERED), settled=60).in_flight[OP, SERIAL] == 20


def test_failed_collectives_are_not_in_flight() -> None:
    assert not collectives_of(lane(20, 0, operation=0)).in_flight


def test_a_stream_that_is_never_queried_is_unobserved() -> None:
    assert (OP, SERIAL) in collectives_of(lane(20, 0, observed=0)).unobserved
    assert not collectives_of(lane(20, 0, observed=1)).unobserved


def test_a_split_is_named_after_its_parent() -> None:
    child = communicator(2000, 0x20, SERIAL, 1, 2, b"")
    process = read_collectives([], [communicator(), child], [], {}, {})[PID]
    assert process.label(2000) == f"0x{comm_id(b'id'.ljust(128, bytes(1))):x}/1.2"
    assert process.label(1) == ""


def test_a_communicator_that_is_its_own_ancestor_has_no_name() -> None:
    loop = communicator(2000, 0x20, 2000, 1, 1, b"")
    assert read_collectives([], [loop], [], {}, {})[PID].label(2000) == ""


def test_a_communicator_from_before_the_trace_is_named_by_its_address() -> None:
    assert read_collectives([], [communicator(identifier=b"")], [], {}, {})[PID].label(SERIAL) == "unknown-10"


def test_a_communicator_whose_address_is_reused_keeps_its_name() -> None:
    first = read_collectives([tally(3)], [communicator()], [], {}, {})
    second = read_collectives(
        [tally(3)], [communicator(5000, identifier=b"other")], [], {}, {PID: first[PID].communicators}
    )[PID]
    assert second.label(SERIAL) == first[PID].label(SERIAL) != second.label(5000)
    assert second.live == 1


def test_the_communicator_id_is_that_of_nccls_log() -> None:
    # Signed bytes, as char is on x86_64; values worked out with 64-bit arithmetic by hand for one byte.
    value = (0xDEADBEEF * 0x8DB3DB47FA2994AD - 1) % (1 << 64)
    assert comm_id(b"\xff") == value
    assert comm_id(struct.pack("b", 5)) == (0xDEADBEEF * 0x8DB3DB47FA2994AD + 5) % (1 << 64)
