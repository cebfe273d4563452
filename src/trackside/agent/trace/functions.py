"""The functions that are probed, and what each is told to the programs by its cookie (``programs/*.bpf.c``).

Positions of arguments are those of the public headers; they are part of each library's binary interface.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

NEVER = 15
"""Calls that are counted and not timed."""
DIRECTIONS = ("h2h", "h2d", "d2h", "d2d", "default", "p2p", "", "")
"""As cudaMemcpyKind numbers them; ``default``: the driver finds out by the addresses; ``p2p`` is ours."""
_P2P = 5
_CONTEXT = 1 << 32


@dataclass(frozen=True, slots=True)
class Function:
    """``library``: cudart, cuda or nccl. ``api``: its name without what marks a variant of it. ``group``: of calls that
    one of the runtime's hands on to one of the driver's."""

    name: str
    library: str
    number: int
    cookie: int
    returns: bool
    api: str
    group: str = ""


def _cuda(one_in: int) -> Iterator[tuple[str, str, int, bool]]:
    """(names, group, cookie without its number, whether any call is timed)"""
    rare = one_in.bit_length() - 1 if one_in > 0 else NEVER
    launch, returns = _timed(rare), rare != NEVER
    yield "cudaLaunchKernel/ptsz cudaLaunchKernelExC/ptsz cudaLaunchCooperativeKernel/ptsz", "launch", launch, returns
    yield "cuLaunchKernel/ptsz cuLaunchKernelEx/ptsz cuLaunchCooperativeKernel/ptsz", "launch", launch, returns
    yield "cudaGraphLaunch/ptsz cuGraphLaunch/ptsz", "launch", launch, returns
    yield "cudaStreamSynchronize/ptsz cudaDeviceSynchronize cudaEventSynchronize", "wait", _timed(0), True
    yield "cuStreamSynchronize/ptsz cuCtxSynchronize cuEventSynchronize", "wait", _timed(0), True
    polled = _timed(min(rare, 4)) & ~_CONTEXT
    yield "cudaEventQuery cudaStreamQuery/ptsz", "query", polled, True
    yield "cuEventQuery cuStreamQuery/ptsz", "query", polled, True
    yield "cudaMemcpy/ptds cudaMemcpyAsync/ptsz", "copy", _timed(0) | 3 << 12 | 4 << 20, True
    yield "cudaMemcpy2D/ptds cudaMemcpy2DAsync/ptsz", "copy", _timed(0) | 5 << 12 | 6 << 16 | 7 << 20, True
    yield "cudaMemcpyPeer cudaMemcpyPeerAsync", "copy", _timed(0) | 5 << 12 | _P2P << 24, True
    for direction, names in ((1, "HtoD"), (2, "DtoH"), (3, "DtoD")):
        both = f"cuMemcpy{names}_v2/ptds cuMemcpy{names}Async_v2/ptsz"
        yield both, "copy", _timed(0) | 3 << 12 | direction << 24, True
    yield "cuMemcpy/ptds cuMemcpyAsync/ptsz", "copy", _timed(0) | 3 << 12 | 4 << 24, True
    yield "cuMemcpyPeer/ptds cuMemcpyPeerAsync/ptsz", "copy", _timed(0) | 5 << 12 | _P2P << 24, True
    yield "cudaSetDevice cudaInitDevice", "device", _timed(0) | 1 << 28, True
    yield "cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuDevicePrimaryCtxRetain", "context", _timed(0), True


def _timed(shift: int) -> int:
    return shift << 8 | _CONTEXT


@cache
def cuda(one_in: int = 16) -> Mapping[int, Function]:
    """By number. Of launches and queries one call in ``one_in`` is timed, a power of two; 0: none of the launches."""
    if one_in and (one_in & (one_in - 1) or not 0 < one_in <= 1 << 10):
        raise ValueError(f"{one_in} is no power of two up to {1 << 10}")
    found: dict[int, Function] = {}
    for names, group, cookie, returns in _cuda(one_in):
        for each in names.split():
            api, _, variant = each.partition("/")
            for name in (api, f"{api}_{variant}") if variant else (api,):
                number = len(found)
                plain = api.removesuffix("_v2").removesuffix("_v3").removesuffix("_v4")
                library = "cudart" if name.startswith("cuda") else "cuda"
                found[number] = Function(name, library, number, cookie | number, returns, plain, group)
    return found


(COLLECTIVE, GROUP_END, JOIN, JOIN_ALL, LEAVE, RECORD, FORGET, EVENT, STREAM, DEVICE, ELAPSED) = range(1, 12)
_NONE, _BY_VALUE = 15, 14
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
    # names, what is done, position of the event or stream, of the stream
    ("cudaEventRecord/ptsz cudaEventRecordWithFlags/ptsz cuEventRecord/ptsz cuEventRecordWithFlags/ptsz", RECORD, 0, 1),
    ("cudaEventDestroy cuEventDestroy_v2", FORGET, 0, 0),
    ("cudaEventQuery cudaEventSynchronize cuEventQuery cuEventSynchronize", EVENT, 0, 0),
    ("cudaStreamQuery/ptsz cudaStreamSynchronize/ptsz cuStreamQuery/ptsz cuStreamSynchronize/ptsz", STREAM, 0, 0),
    ("cudaDeviceSynchronize cuCtxSynchronize", DEVICE, 0, 0),
    ("cudaEventElapsedTime cudaEventElapsedTime_v2 cuEventElapsedTime_v2", ELAPSED, 2, 0),
)


def _nccl(machine: str) -> Iterator[tuple[str, int, tuple[int, int, int, int, int, int]]]:
    """(name, what it does, positions as in nccl.bpf.c from bit 16 on)"""
    # An identifier passed by value goes on the stack on x86_64, and as an address in a register on aarch64.
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
    for names, what, first, second in _EVENTS:
        for each in names.split():
            api, _, variant = each.partition("/")
            for name in (api, f"{api}_{variant}") if variant else (api,):
                yield name, what, (first, second, _NONE, _NONE, _NONE, _NONE)


@cache
def nccl(machine: str = "") -> Mapping[int, Function]:
    """By number, which begins at 1: 0 is no function."""
    found: dict[int, Function] = {}
    for number, (name, what, positions) in enumerate(_nccl(machine or os.uname().machine), 1):
        cookie = number | what << 8
        for place, position in enumerate(positions):
            cookie |= position << (16 + 4 * place)
        library = "nccl" if name.startswith("nccl") else "cudart" if name.startswith("cuda") else "cuda"
        returns = what not in (LEAVE, RECORD, FORGET)
        found[number] = Function(name, library, number, cookie, returns, name.removeprefix("nccl"))
    return found
