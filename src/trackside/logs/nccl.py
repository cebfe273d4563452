"""NCCL: warnings, errors as PyTorch words them, the transport in use, communicator set-up, settings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_ADDRESS = re.compile(
    r"((?:\d{1,3}\.){3}\d{1,3}<\d{1,6}>|(?:\d{1,3}\.){3}\d{1,3}:\d{1,6}|\[[0-9a-fA-F:%\w]{2,60}\]:\d{1,6})"
)
_HOST = re.compile(r"^\s*(?:\d{1,6}: ?)?([\w.-]{1,80}):\d{1,10}:\d{1,10} \[\d{1,4}\]")
_CODES = {
    "unhandled system error": "ncclSystemError",
    "unhandled cuda error": "ncclUnhandledCudaError",
    "remote process exited or there was a network error": "ncclRemoteError",
    "invalid usage": "ncclInvalidUsage",
    "invalid argument": "ncclInvalidArgument",
    "internal error": "ncclInternalError",
}
_NAMED = re.compile(r"\b(nccl(?:System|Remote|UnhandledCuda|Internal|InvalidUsage|InvalidArgument)(?:Error)?)\b:?\s")
_WORDED = re.compile(r"(?:NCCL error(?: in)?:? .{0,300}?|NCCL Error \d: )(" + "|".join(_CODES) + r")", re.IGNORECASE)
_PEER_LOST = re.compile(
    r"[Cc]onnection closed by (?:remote )?peer|Connection reset by peer|Broken pipe|remote "
    r"process exit|closed by localRank",
)
_LAST_ERROR = "Last error:"
_IB_FLUSH = re.compile(r"Got (?:completion|async event)")
_SHUTDOWN_NOISE = re.compile(
    r"\[(?:Proxy )?Service(?: thread)?[ \d]{0,8}\]|Accept failed|SHARP coll init|NVLS|Cannot initialize CollNet"
)
MAX_LINES_AHEAD = 6
"""Lines after an error in which NCCL's last error can follow."""

PARSER = Parser("nccl", "NCCL", "system")


@PARSER.pattern(
    rb"NCCL WARN ",
    r"NCCL WARN (.{0,2000})",
    safety="A warning alone is an observation, not a cause: many come at shutdown. Only refused or missing connections, "
    "duplicate GPUs and CUDA failures are more.",
    matches=(
        (
            "n1:100:200 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.1<45123> "
            "failed : Connection refused"
        ),
        "n1:100:200 [0] include/socket.h:403 NCCL WARN Call to connect returned Connection refused, retrying",
        "n1:100:200 [0] NCCL WARN Bootstrap : no socket interface found",
        "n1:100:200 [1] init.cc:521 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "n1:100:200 [1] misc/socket.cc:57 NCCL WARN socketProgress: Connection closed by remote peer n2<51000>",
        (
            "n1:100:200 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
            "10.0.0.2<41234> with status=12 opcode=0 len=0 vendor err 129 (Send) error"
        ),
        "n1:1:2 [0] enqueue.cc:402 NCCL WARN Cuda failure 719 'unspecified launch failure'",
        "n1:1:2 [0] proxy.cc:1 NCCL WARN [Service thread] Accept failed Success",
    ),
    avoids=("set NCCL_DEBUG=WARN for NCCL WARNINGS",),
)
def _warning(line: Line, match: re.Match[str]) -> Iterator[Event]:
    detail = match[1].strip()
    address = _ADDRESS.search(detail)
    peer = address[1] if address else None
    host = _HOST.match(line.text)
    node = host[1] if host else None
    lower = detail.lower()
    if "duplicate gpu detected" in lower:
        yield line.event("rendezvous_failure", EventRole.ROOT, node=node, reason="duplicate_gpu")
    elif "no socket interface" in lower or "no usable listening interface" in lower or "no interface found" in lower:
        yield line.event("rendezvous_failure", EventRole.ROOT, node=node, reason="interface")
    elif _PEER_LOST.search(detail) and not _SHUTDOWN_NOISE.search(detail):
        yield line.event("peer_lost", EventRole.CASCADE, node=node, address=peer, backend="nccl")
    elif "connect" in lower and ("refused" in lower or "no route to host" in lower or "timed out" in lower):
        reason = "peer_refused" if "refused" in lower else "peer_unreachable" if "no route" in lower else "timeout"
        retry = True if "retrying" in lower else None
        yield line.event("rendezvous_failure", EventRole.ROOT, node=node, reason=reason, address=peer, retry=retry)
    elif "cuda failure" in lower:
        yield line.event("nccl_error", EventRole.CONFIRMATION, node=node, code="ncclUnhandledCudaError", detail=detail)
    elif _IB_FLUSH.search(detail) and "error" in lower:
        yield line.event("nccl_error", EventRole.CASCADE, node=node, code="ncclRemoteError", detail=detail, peer=peer)
    elif "shared memory" in lower and ("error" in lower or "failed" in lower):
        yield line.event("nccl_error", EventRole.ROOT, node=node, code="ncclSystemError", detail=detail)
    else:
        yield line.event("nccl_warn", EventRole.OBSERVATION, node=node, detail=detail[:500])


@PARSER.pattern(
    rb"(NCCL [Ee]rror|nccl(System|Remote|UnhandledCuda|Internal)Error: |ncclInvalid(Usage|Argument): )",
    safety="ncclRemoteError, or a last error about a peer, is a cascade; a CUDA error confirms.",
    matches=(
        (
            "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, "
            "internal error, NCCL version 2.14.3"
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: "
            "/opt/pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:219, unhandled system error, NCCL "
            "version 2.18.1"
        ),
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
    ),
    avoids=("no NCCL errors were seen", "handle ncclSystemError in code"),
)
def _error(line: Line) -> Event | None:
    named, worded = _NAMED.search(line.text), _WORDED.search(line.text)
    if named is None and worded is None:
        return None
    code = named[1] if named else _CODES[worded[1].lower()] if worded else ""
    code = "ncclUnhandledCudaError" if code == "ncclUnhandledCuda" else code
    detail = _detail(line)
    return line.event("nccl_error", _role(code, detail), code=code, detail=detail[:500] or None)


def _detail(line: Line) -> str:
    """NCCL's own last error, from this line or the next ones; empty if there is none."""
    for neighbor in (line, *line.following(MAX_LINES_AHEAD)):
        position = neighbor.text.find(_LAST_ERROR)
        if position >= 0:
            detail = neighbor.text[position + len(_LAST_ERROR) :].strip()
            return detail or next((next_line.text.strip() for next_line in neighbor.following(1)), "")
    return ""


def _role(code: str, detail: str) -> EventRole:
    """The role of an NCCL error: an error about a peer is a cascade, a CUDA error confirms."""
    if code == "ncclRemoteError" or _PEER_LOST.search(detail):
        return EventRole.CASCADE
    if code == "ncclUnhandledCudaError":
        return EventRole.CONFIRMATION
    return EventRole.ROOT


@PARSER.pattern(
    rb": Test NCCL failure [^\n]{1,80} '",
    r"(?P<host>[\w.-]{1,120}): Test NCCL failure \S{1,80} '(?P<detail>(?P<what>[a-z ]{3,60}?) ?(?:\(|').{0,400})",
    safety="nccl-tests' own report; that of a CUDA call is a CUDA error.",
    matches=(
        "n1: Test NCCL failure common.cu:1021 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '",
    ),
    avoids=("n1: Test NCCL failure rate",),
)
def _test_failure(line: Line, match: re.Match[str]) -> Event:
    code = _CODES.get(match["what"].strip(), "ncclInternalError")
    detail = match["detail"].rstrip("' /")
    return line.event("nccl_error", _role(code, detail), node=match["host"], code=code, detail=detail)


@PARSER.pattern(
    rb"Duplicate GPU detected : rank ",
    safety="Two ranks on one GPU: the job's own placement.",
    matches=("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",),
    avoids=("Duplicate GPU detected in inventory",),
)
def _duplicate_gpu(line: Line) -> Event | None:
    if "NCCL WARN" in line.text:
        return None
    return line.event("rendezvous_failure", EventRole.ROOT, reason="duplicate_gpu")


@PARSER.pattern(
    rb"NCCL INFO (NET/[A-Za-z]{1,12} ?: (Using |No device found)|Using network )",
    r"NCCL INFO (?:NET/(?P<kind>Socket|IB|OFI|IBext\w*|FastSocket|UCX) ?: Using (?P<device>.{0,"
    r"200})|Using network (?P<network>[\w ./()-]{1,40})|NET/IB\w* ?: (?P<none>No device found))",
    safety="An observation: sockets, or no InfiniBand, matter only between nodes.",
    matches=(
        "n1:100:200 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "n1:100:200 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB ib0:10.0.0.1<0>",
        "n1:100:200 [0] NCCL INFO Using network IBext",
        "n1:100:200 [0] NCCL INFO NET/IB : No device found.",
    ),
    avoids=("n1:100:200 [0] NCCL INFO NET/Socket : No device found.",),
)
def _transport(line: Line, match: re.Match[str]) -> Event:
    kind = (match["kind"] or match["network"] or "").strip().lower()
    if match["none"]:
        transport = "no_ib"
    elif kind in ("socket", "fastsocket"):
        transport = "socket"
    elif kind.startswith("ib"):
        transport = "ib"
    else:
        transport = "ofi" if "ofi" in kind or "libfabric" in kind else kind
    host = _HOST.match(line.text)
    return line.event(
        "nccl_transport",
        node=host[1] if host else None,
        transport=transport,
        device=match["device"] or match["network"],
    )


@PARSER.pattern(
    rb"comm 0x[0-9a-f]{1,16} rank [0-9]{1,7} n[rR]anks [0-9]{1,7} [^\n\r]{0,160}Init (START|COMPLETE)",
    r"comm 0x[0-9a-f]{1,16} rank (?P<rank>\d{1,7}) n[rR]anks (?P<nranks>\d{1,7})(?: nNodes (?P<nodes>\d{1,6}))?"
    r"(?:.{0,80}?busId (?P<bus>[0-9a-f]{1,12}))?",
    safety="Set-up only; Destroy and Abort lines do not count.",
    matches=(
        "n1:1:2 [0] NCCL INFO comm 0x55d0 rank 0 nranks 16 cudaDev 0 busId 1a000 - Init COMPLETE",
        (
            "n1:1:2 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId "
            "1000 commId 0xab - Init START"
        ),
    ),
    avoids=("n1:1:2 [0] NCCL INFO comm 0x55d0 rank 0 nranks 16 cudaDev 0 busId 1a000 - Destroy COMPLETE",),
)
def _communicator_setup(line: Line, match: re.Match[str]) -> Event:
    return line.event(
        "nccl_init",
        rank=line.rank,
        nranks=int(match["nranks"]),
        nnodes=int(match["nodes"]) if match["nodes"] else None,
        complete="Init COMPLETE" in line.text,
        busid=match["bus"],
    )


@PARSER.pattern(
    rb"INFO NCCL_",
    r"NCCL INFO (NCCL_[A-Z0-9_]{1,60}) set by environment to (.{0,200}?)\.?\s*$",
    safety="NCCL itself says that the variable is set.",
    matches=("n1:1:2 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",),
    avoids=("n1:1:2 [0] NCCL INFO NCCL_X set by default",),
)
def _setting(line: Line, match: re.Match[str]) -> Event:
    return line.event("env_flag", name=match[1], value=match[2])
