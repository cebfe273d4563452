"""Interprets the counts of NCCL calls per process (tables of programs/nccl.bpf.c): collectives started, completed, in
flight."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

HANDLE = struct.Struct("<IIQ")
COMMUNICATOR = struct.Struct("<QQQQIiiI128s")
TALLY_KEY, TALLY = struct.Struct("<IIQ"), struct.Struct("<QQQQQ")
SLOTS = 512
LANE_HEAD, SLOT = struct.Struct("<QQQQ"), struct.Struct("<QQ")
LANE_BYTES = LANE_HEAD.size + SLOTS * SLOT.size
ENTERED = 1 << 63
_SERIAL = (1 << 56) - 1
Key = tuple[int, int]
"""(function number, communicator serial)"""
MAX_ANCESTORS = 8


@dataclass(frozen=True, slots=True)
class Communicator:
    """One rank's handle of a communicator. ``ranks`` 0: it was created before tracing started."""

    serial: int
    address: int
    has_ended: bool
    parent: int
    ranks: int
    rank: int
    color: int
    split: int
    identifier: bytes


@dataclass(frozen=True, slots=True)
class Tally:
    """Calls of one operation on one communicator. ``timed``: calls whose duration the process measured itself."""

    calls: int
    failed: int
    enqueue_ns: int
    device_ns: int
    timed: int


@dataclass(slots=True)
class Collectives:
    """The NCCL calls of one process."""

    communicators: dict[int, Communicator] = field(default_factory=dict)
    tallies: dict[Key, Tally] = field(default_factory=dict)
    in_flight: Counter[Key] = field(default_factory=Counter)
    oldest: dict[int, int] = field(default_factory=dict)
    """Communicator -> monotonic time (ns) when its oldest collective in flight was enqueued."""
    unobserved: set[Key] = field(default_factory=set)
    """Operations whose completion the process never queried, so it is unknown."""

    def label(self, serial: int) -> str:
        """A communicator's name, the same for all its ranks: commId as in NCCL's log; after a split, the parent's name,
        the color and the number of the split. A communicator whose creation was not seen gets a name that is unique to
        this process."""
        communicator, splits = self.communicators.get(serial), list[str]()
        for _ in range(MAX_ANCESTORS):
            if communicator is None:
                return ""
            if any(communicator.identifier):
                return "/".join([f"0x{comm_id(communicator.identifier):x}", *reversed(splits)])
            if not communicator.parent:
                return "/".join([f"unknown-{communicator.address:x}", *reversed(splits)])
            splits.append(f"{communicator.color}.{communicator.split}")
            communicator = self.communicators.get(communicator.parent)
        return ""

    @property
    def live(self) -> int:
        """Number of communicators that have not ended."""
        return sum(not communicator.has_ended for communicator in self.communicators.values())


def comm_id(identifier: bytes) -> int:
    """The number that identifies a communicator in NCCL's log."""
    value = 0xDEADBEEF
    for byte in struct.unpack(f"{len(identifier)}b", identifier):
        value ^= value >> 32
        value = (value * 0x8DB3DB47FA2994AD + byte) & (1 << 64) - 1
    return value


def read_collectives(
    tallies: Iterable[tuple[bytes, bytes]],
    communicators: Iterable[tuple[bytes, bytes]],
    lanes: Iterable[tuple[bytes, bytes]],
    settled: Mapping[int, int],
    last_communicators: Mapping[int, Mapping[int, Communicator]],
) -> dict[int, Collectives]:
    """Process id -> its collectives. ``settled``: pid -> last monotonic time (ns) with nothing in flight.
    ``last_communicators``: those of the last reading by pid, because addresses are reused. The tables must be read in
    this order, lanes last: a collective that is started while they are read then counts as in flight, never as
    completed."""
    by_pid: defaultdict[int, Collectives] = defaultdict(Collectives)
    for key, value in tallies:
        pid, number, serial = TALLY_KEY.unpack(key)
        by_pid[pid].tallies[number, serial] = Tally(*TALLY.unpack(value))
    for key, value in communicators:
        pid, _, address = HANDLE.unpack(key)
        serial, has_ended, parent, _, ranks, rank, color, split, identifier = COMMUNICATOR.unpack(value)
        communicator = Communicator(serial, address, bool(has_ended), parent, ranks, rank, color, split, identifier)
        by_pid[pid].communicators[serial] = communicator
    for pid, previous in last_communicators.items():
        if pid in by_pid:
            earlier = {serial: replace(communicator, has_ended=True) for serial, communicator in previous.items()}
            by_pid[pid].communicators = {**earlier, **by_pid[pid].communicators}
    for key, value in lanes:
        pid = HANDLE.unpack(key)[0]
        _add_lane(by_pid[pid], value, settled.get(pid, 0))
    return dict(by_pid)


def _add_lane(process: Collectives, lane: bytes, settled: int) -> None:
    started, completed, is_observed, _ = LANE_HEAD.unpack_from(lane)
    oldest_slot = max(completed, started - SLOTS)
    if started <= completed:
        return
    slots = [
        SLOT.unpack_from(lane, LANE_HEAD.size + number % SLOTS * SLOT.size) for number in range(oldest_slot, started)
    ]
    pending = [
        (time_ns & ~ENTERED, operation)
        for time_ns, operation in slots
        if operation and (time_ns & ENTERED or time_ns > settled)
    ]
    if not pending:
        return
    keys = [(operation >> 56, operation & _SERIAL) for _, operation in pending]
    process.in_flight.update(keys)
    # collectives in flight beyond the slots of a lane are counted as if of the oldest slot's kind
    process.in_flight[keys[0]] += oldest_slot - completed
    for (time_ns, _), (_, serial) in zip(pending, keys, strict=True):
        process.oldest[serial] = min(time_ns, process.oldest.get(serial, time_ns))
    if not is_observed and not settled:
        process.unobserved.update(keys)
