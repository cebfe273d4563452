"""What lanes, marks and tallies come to, without a kernel."""

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
    read,
)

PID, SERIAL, OP = 7, 1000, 1


def lane(begun: int, done: int, watched: int = 1, at: int = 50, what: int = OP << 56 | SERIAL) -> tuple[bytes, bytes]:
    slots = b"".join(SLOT.pack(at, what) for _ in range(SLOTS))
    return HANDLE.pack(PID, 0, 0x7000), LANE_HEAD.pack(begun, done, watched, 0) + slots


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


def found(*lanes: tuple[bytes, bytes], settled: int = 0) -> Collectives:
    return read([tally(20)], [communicator()], lanes, {PID: settled}, {})[PID]


def test_what_is_behind_the_mark_is_in_flight() -> None:
    assert found(lane(20, 17)).in_flight[OP, SERIAL] == 3


def test_a_lane_that_is_done_has_nothing_in_flight() -> None:
    assert not found(lane(20, 20)).in_flight
    assert not found(lane(20, 25)).in_flight  # settled while it was read


def test_more_than_a_lane_has_slots_is_still_counted() -> None:
    assert found(lane(2000, 100)).in_flight[OP, SERIAL] == 1900


def test_an_idle_device_settles_what_was_enqueued_before() -> None:
    assert not found(lane(20, 0, at=50), settled=60).in_flight
    assert found(lane(20, 0, at=70), settled=60).in_flight[OP, SERIAL] == 20
    assert found(lane(20, 0, at=50 | ENTERED), settled=60).in_flight[OP, SERIAL] == 20


def test_failed_ones_are_not_in_flight() -> None:
    assert not found(lane(20, 0, what=0)).in_flight


def test_a_stream_that_nobody_asks_after_tells_nothing() -> None:
    assert (OP, SERIAL) in found(lane(20, 0, watched=0)).unobserved
    assert not found(lane(20, 0, watched=1)).unobserved


def test_a_split_is_named_after_its_parent() -> None:
    child = communicator(2000, 0x20, SERIAL, 1, 2, b"")
    process = read([], [communicator(), child], [], {}, {})[PID]
    assert process.label(2000) == f"0x{comm_id(b'id'.ljust(128, bytes(1))):x}/1.2"
    assert process.label(1) == ""


def test_a_communicator_that_is_its_own_ancestor_has_no_name() -> None:
    loop = communicator(2000, 0x20, 2000, 1, 1, b"")
    assert read([], [loop], [], {}, {})[PID].label(2000) == ""


def test_one_from_before_the_trace_is_named_by_its_address() -> None:
    assert read([], [communicator(identifier=b"")], [], {}, {})[PID].label(SERIAL) == "unknown-10"


def test_a_communicator_whose_address_serves_again_keeps_its_name() -> None:
    first = read([tally(3)], [communicator()], [], {}, {})
    again = read([tally(3)], [communicator(5000, identifier=b"other")], [], {}, {PID: first[PID].communicators})[PID]
    assert again.label(SERIAL) == first[PID].label(SERIAL) != again.label(5000)
    assert again.live == 1


def test_the_number_is_that_of_nccls_log() -> None:
    # Signed bytes, as char is on x86_64; values worked out with 64-bit arithmetic by hand for one byte.
    value = (0xDEADBEEF * 0x8DB3DB47FA2994AD - 1) % (1 << 64)
    assert comm_id(b"\xff") == value
    assert comm_id(struct.pack("b", 5)) == (0xDEADBEEF * 0x8DB3DB47FA2994AD + 5) % (1 << 64)
