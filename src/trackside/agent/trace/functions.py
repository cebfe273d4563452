"""The probed functions, and each function's cookie: the 64 bits that tell the BPF program how to read its arguments.

The heads of ``programs/cuda.bpf.c`` and ``programs/nccl.bpf.c`` list the bits of a cookie: the function's number in
bits 0-7, then four bits for each position of an argument and for how often a call is timed. Argument positions are
those of the public headers; they are part of each library's binary interface.

In the tables, ``NAME/SUFFIX`` stands for two functions: NAME, and its variant NAME_SUFFIX for per-thread streams.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

NEVER_TIMED = 15
"""``sampling`` of calls that are counted but not timed."""
MAX_QUERY_SHIFT = 4
"""At least one query in 2 to the power of this is timed."""
DIRECTIONS = ("h2h", "h2d", "d2h", "d2d", "default", "p2p", "", "")
"""Numbered as in cudaMemcpyKind. ``default``: the driver infers it from the addresses; ``p2p`` is our own."""
_P2P = 5
_CONTEXT = 1 << 32
"""Bit of a cookie: success means that the process has a context."""


@dataclass(frozen=True, slots=True)
class Function:
    """One probed function. ``library``: cudart, cuda or nccl. ``number``: its key in the BPF program's tables.
    ``cookie``: how the program reads its arguments. ``returns``: whether its return is probed too. ``api``: its name
    without the suffix of a variant. ``group``: of runtime functions and the driver functions that they call."""

    name: str
    library: str
    number: int
    cookie: int
    returns: bool
    api: str
    group: str = ""


def _cuda(one_in: int) -> Iterator[tuple[str, str, int, bool]]:
    """(names, group, cookie without the number, whether returns are probed). Positions in cookies count from 1: of the
    number of bytes at bit 12, of a factor of it at 16, of the direction at 20 (a fixed one at 24), of the device at 28.
    """
    timing_shift = one_in.bit_length() - 1 if one_in > 0 else NEVER_TIMED
    launch_cookie, returns = _timed_cookie(timing_shift), timing_shift != NEVER_TIMED
    yield (
        "cudaLaunchKernel/ptsz cudaLaunchKernelExC/ptsz cudaLaunchCooperativeKernel/ptsz",
        "launch",
        launch_cookie,
        returns,
    )
    yield "cuLaunchKernel/ptsz cuLaunchKernelEx/ptsz cuLaunchCooperativeKernel/ptsz", "launch", launch_cookie, returns
    yield "cudaGraphLaunch/ptsz cuGraphLaunch/ptsz", "launch", launch_cookie, returns
    yield "cudaStreamSynchronize/ptsz cudaDeviceSynchronize cudaEventSynchronize", "wait", _timed_cookie(0), True
    yield "cuStreamSynchronize/ptsz cuCtxSynchronize cuEventSynchronize", "wait", _timed_cookie(0), True
    query_cookie = _timed_cookie(min(timing_shift, MAX_QUERY_SHIFT)) & ~_CONTEXT
    yield "cudaEventQuery cudaStreamQuery/ptsz", "query", query_cookie, True
    yield "cuEventQuery cuStreamQuery/ptsz", "query", query_cookie, True
    yield "cudaMemcpy/ptds cudaMemcpyAsync/ptsz", "copy", _timed_cookie(0) | 3 << 12 | 4 << 20, True
    yield "cudaMemcpy2D/ptds cudaMemcpy2DAsync/ptsz", "copy", _timed_cookie(0) | 5 << 12 | 6 << 16 | 7 << 20, True
    yield "cudaMemcpyPeer cudaMemcpyPeerAsync", "copy", _timed_cookie(0) | 5 << 12 | _P2P << 24, True
    for direction, names in ((1, "HtoD"), (2, "DtoH"), (3, "DtoD")):
        both_names = f"cuMemcpy{names}_v2/ptds cuMemcpy{names}Async_v2/ptsz"
        yield both_names, "copy", _timed_cookie(0) | 3 << 12 | direction << 24, True
    yield "cuMemcpy/ptds cuMemcpyAsync/ptsz", "copy", _timed_cookie(0) | 3 << 12 | 4 << 24, True
    yield "cuMemcpyPeer/ptds cuMemcpyPeerAsync/ptsz", "copy", _timed_cookie(0) | 5 << 12 | _P2P << 24, True
    yield "cudaSetDevice cudaInitDevice", "device", _timed_cookie(0) | 1 << 28, True
    yield "cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuDevicePrimaryCtxRetain", "context", _timed_cookie(0), True


def _timed_cookie(shift: int) -> int:
    """One call in 2 ** ``shift`` is timed."""
    return shift << 8 | _CONTEXT


@cache
def cuda(one_in: int = 16) -> Mapping[int, Function]:
    """Number -> function. One launch in ``one_in`` is timed: a power of two up to 1,024, or 0 for none. Of queries as
    many, but at least 1 in 16."""
    functions: dict[int, Function] = {}
    for names, group, cookie, returns in _cuda(one_in):
        for name_and_variant in names.split():
            api, _, variant = name_and_variant.partition("/")
            for name in (api, f"{api}_{variant}") if variant else (api,):
                number = len(functions)
                base_name = api.removesuffix("_v2").removesuffix("_v3").removesuffix("_v4")
                library = "cudart" if name.startswith("cuda") else "cuda"
                functions[number] = Function(name, library, number, cookie | number, returns, base_name, group)
    return functions


(COLLECTIVE, GROUP_END, JOIN, JOIN_ALL, LEAVE, RECORD, FORGET, EVENT, STREAM, DEVICE, ELAPSED) = range(1, 12)
_NONE, _BY_VALUE = 15, 14
"""Instead of an argument's position: there is none, and the identifier is passed by value."""
_COLLECTIVES = (
    # name, position of the communicator, of the stream
    ("ncclAllReduce", 5, 6),
    ("ncclBroadcast", 5, 6),  # ncclBcast calls it
    ("ncclReduce", 6, 7),
    ("ncclAllGather", 4, 5),
    ("ncclReduceScatter", 5, 6),
    ("ncclAlltoAll", 4, 5),
    ("ncclGather", 5, 6),
    ("ncclScatter", 5, 6),
    ("ncclSend", 4, 5),
    ("ncclRecv", 4, 5),
)
_EVENTS = (
    # names, action, position of the event or stream, of the stream
    ("cudaEventRecord/ptsz cudaEventRecordWithFlags/ptsz cuEventRecord/ptsz cuEventRecordWithFlags/ptsz", RECORD, 0, 1),
    ("cudaEventDestroy cuEventDestroy_v2", FORGET, 0, 0),
    ("cudaEventQuery cudaEventSynchronize cuEventQuery cuEventSynchronize", EVENT, 0, 0),
    ("cudaStreamQuery/ptsz cudaStreamSynchronize/ptsz cuStreamQuery/ptsz cuStreamSynchronize/ptsz", STREAM, 0, 0),
    ("cudaDeviceSynchronize cuCtxSynchronize", DEVICE, 0, 0),
    ("cudaEventElapsedTime cudaEventElapsedTime_v2 cuEventElapsedTime_v2", ELAPSED, 2, 0),
)


def _nccl(machine: str) -> Iterator[tuple[str, int, tuple[int, int, int, int, int, int]]]:
    """(name, action, argument positions from bit 16 on, as in nccl.bpf.c)"""
    # An identifier passed by value is on the stack on x86_64, and its address is in a register on aarch64.
    rank = 2 if machine == "x86_64" else 3
    for name, communicator, stream in _COLLECTIVES:
        yield name, COLLECTIVE, (communicator, stream, _NONE, _NONE, _NONE, _NONE)
    yield "ncclGroupEnd", GROUP_END, (0, 0, _NONE, _NONE, _NONE, _NONE)
    for name in ("ncclCommInitRank", "ncclCommInitRankConfig"):
        yield name, JOIN, (0, 0, 1, rank, _BY_VALUE, _NONE)
    yield "ncclCommInitRankScalable", JOIN, (0, 0, 1, 2, 4, _NONE)
    yield "ncclCommSplit", JOIN, (0, 3, _NONE, _NONE, _NONE, 1)
    yield "ncclCommShrink", JOIN, (0, 3, _NONE, _NONE, _NONE, 2)
    yield "ncclCommInitAll", JOIN_ALL, (0, 0, 1, _NONE, _NONE, _NONE)
    for name in ("ncclCommDestroy", "ncclCommAbort"):
        yield name, LEAVE, (0, 0, _NONE, _NONE, _NONE, _NONE)
    for names, action, first, second in _EVENTS:
        for name_and_variant in names.split():
            api, _, variant = name_and_variant.partition("/")
            for name in (api, f"{api}_{variant}") if variant else (api,):
                yield name, action, (first, second, _NONE, _NONE, _NONE, _NONE)


@cache
def nccl(machine: str = "") -> Mapping[int, Function]:
    """Number -> function. Numbers start at 1; 0 means no function."""
    functions: dict[int, Function] = {}
    for number, (name, action, positions) in enumerate(_nccl(machine or os.uname().machine), 1):
        cookie = number | action << 8
        for index, position in enumerate(positions):
            cookie |= position << (16 + 4 * index)
        library = "nccl" if name.startswith("nccl") else "cudart" if name.startswith("cuda") else "cuda"
        returns = action not in (LEAVE, RECORD, FORGET)
        functions[number] = Function(name, library, number, cookie, returns, name.removeprefix("nccl"))
    return functions
