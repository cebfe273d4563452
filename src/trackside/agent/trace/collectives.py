"""What the counts of NCCL's calls say of a process (the tables of programs/nccl.bpf.c): collectives begun, those known
to be done, those in flight."""

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
"""(number of the function, serial of the communicator)"""
MOST_ANCESTORS = 8


@dataclass(frozen=True, slots=True)
class Communicator:
    """One rank's part in a communicator. ``ranks`` 0: it was made before the trace began."""

    serial: int
    address: int
    ended: bool
    parent: int
    ranks: int
    rank: int
    colour: int
    split: int
    identifier: bytes


@dataclass(frozen=True, slots=True)
class Tally:
    """Calls of one operation on one communicator. ``measured``: of how many the process itself took the time."""

    calls: int
    failed: int
    enqueue_ns: int
    device_ns: int
    measured: int


@dataclass(slots=True)
class Collectives:
    """What one process did."""

    communicators: dict[int, Communicator] = field(default_factory=dict)
    tallies: dict[Key, Tally] = field(default_factory=dict)
    in_flight: Counter[Key] = field(default_factory=Counter)
    oldest: dict[int, int] = field(default_factory=dict)
    """Communicator -> when the oldest in flight was enqueued, monotonic ns."""
    unwatched: set[Key] = field(default_factory=set)
    """Of which nothing was ever asked that would tell that they are done."""

    def label(self, serial: int) -> str:
        """A communicator's name, which all its ranks share: what NCCL's log calls commId; of one that was split off,
        the parent's, the colour and the number of the split. One of which the making was not seen has a name of this
        process alone."""
        found, parts = self.communicators.get(serial), list[str]()
        for _ in range(MOST_ANCESTORS):
            if found is None:
                return ""
            if any(found.identifier):
                return "/".join([f"0x{comm_id(found.identifier):x}", *reversed(parts)])
            if not found.parent:
                return "/".join([f"unknown-{found.address:x}", *reversed(parts)])
            parts.append(f"{found.colour}.{found.split}")
            found = self.communicators.get(found.parent)
        return ""

    @property
    def live(self) -> int:
        """Communicators that have not ended."""
        return sum(not each.ended for each in self.communicators.values())


def comm_id(identifier: bytes) -> int:
    """The number by which NCCL's log names a communicator."""
    value = 0xDEADBEEF
    for byte in struct.unpack(f"{len(identifier)}b", identifier):
        value ^= value >> 32
        value = (value * 0x8DB3DB47FA2994AD + byte) & (1 << 64) - 1
    return value


def read(
    tallies: Iterable[tuple[bytes, bytes]],
    communicators: Iterable[tuple[bytes, bytes]],
    lanes: Iterable[tuple[bytes, bytes]],
    settled: Mapping[int, int],
    before: Mapping[int, Mapping[int, Communicator]],
) -> dict[int, Collectives]:
    """By process. ``settled``: when each was last found to have nothing in flight, monotonic ns. ``before``: the
    communicators known until now: an address may serve again. Read the tables in this order, the lanes last: what is
    begun meanwhile then counts as in flight, never as done."""
    found: defaultdict[int, Collectives] = defaultdict(Collectives)
    for key, value in tallies:
        pid, number, serial = TALLY_KEY.unpack(key)
        found[pid].tallies[number, serial] = Tally(*TALLY.unpack(value))
    for key, value in communicators:
        pid, _, address = HANDLE.unpack(key)
        serial, ended, parent, _, ranks, rank, colour, split, identifier = COMMUNICATOR.unpack(value)
        made = Communicator(serial, address, bool(ended), parent, ranks, rank, colour, split, identifier)
        found[pid].communicators[serial] = made
    for pid, known in before.items():
        if pid in found:
            gone = {serial: replace(each, ended=True) for serial, each in known.items()}
            found[pid].communicators = {**gone, **found[pid].communicators}
    for key, value in lanes:
        pid = HANDLE.unpack(key)[0]
        _add_lane(found[pid], value, settled.get(pid, 0))
    return dict(found)


def _add_lane(process: Collectives, lane: bytes, settled: int) -> None:
    begun, done, watched, _ = LANE_HEAD.unpack_from(lane)
    first = max(done, begun - SLOTS)
    if begun <= done:
        return
    slots = [SLOT.unpack_from(lane, LANE_HEAD.size + number % SLOTS * SLOT.size) for number in range(first, begun)]
    pending = [(at & ~ENTERED, what) for at, what in slots if what and (at & ENTERED or at > settled)]
    if not pending:
        return
    keys = [(what >> 56, what & _SERIAL) for _, what in pending]
    process.in_flight.update(keys)
    process.in_flight[keys[0]] += first - done  # more than a lane has slots: taken to be as the oldest known
    for (at, _), (_, serial) in zip(pending, keys, strict=True):
        process.oldest[serial] = min(at, process.oldest.get(serial, at))
    if not watched and not settled:
        process.unwatched.update(keys)
