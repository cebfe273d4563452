"""gloo: timeouts, lost peers, connection meshes that did not form."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_TIMED_OUT = re.compile(r"Timed out waiting (\d{1,12})ms for (send|recv) operation")
_PEER = re.compile(r"(?:Connection closed by peer|Read error|Write error|Broken pipe) ?(\[[^\]\s]{1,60}\]:\d{1,6})?")
_REMOTE = re.compile(r"remote=(\[[^\]\s]{1,60}\]:\d{1,6})")
_RETRY = re.compile(r"willRetry=(\d)")

PARSER = Parser("gloo", "gloo", "system")


@PARSER.pattern(
    rb"(Timed out waiting [0-9]{1,12}ms for (send|recv) operation|Application timeout caused pair closure)",
    safety="This rank waited; the rank that it waited for is silent.",
    matches=(
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out "
            "waiting 15000ms for recv operation to complete"
        ),
        "[enforce fail at gloo/transport/tcp/pair.cc:446] . Application timeout caused pair closure",
    ),
    avoids=("Timed out waiting for the queue",),
)
def _timeout(line: Line) -> Event:
    match = _TIMED_OUT.search(line.text)
    seconds = int(match[1]) / 1000 if match else None
    return line.event(
        "collective_timeout",
        EventRole.CASCADE,
        op=match[2].upper() if match else None,
        timeout_s=seconds,
        elapsed_s=seconds,
        backend="gloo",
    )


@PARSER.pattern(
    rb"(connectFullMesh failed|failed to connect, willRetry=)",
    safety="Startup between ranks; a line with willRetry=1 is not final.",
    matches=(
        (
            "RuntimeError: Gloo connectFullMesh failed with "
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: "
            "Connection refused, remote=[10.0.0.1]:18837"
        ),
        (
            "[gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect, willRetry=1, retry=0, "
            "retryLimit=3, rank=0, size=2, error=SO_ERROR: Connection refused, remote=[10.0.0.1]:20"
        ),
    ),
    avoids=("mesh connect failed",),
)
def _connect_failure(line: Line) -> Event:
    text = line.text
    remote, retry = _REMOTE.search(text), _RETRY.search(text)
    if "refused" in text:
        reason = "peer_refused"
    elif "No route" in text or "unreachable" in text:
        reason = "peer_unreachable"
    else:
        reason = "timeout"
    return line.event(
        "rendezvous_failure",
        EventRole.ROOT,
        reason=reason,
        address=remote[1] if remote else None,
        retry=retry[1] == "1" if retry else None,
    )


@PARSER.pattern(
    rb"Unable to find address for: ",
    r"Unable to find address for: ([\w.:@-]{1,40})",
    safety="GLOO_SOCKET_IFNAME names an interface that this node lacks, or one without an address.",
    matches=(
        (
            "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to "
            "find address for: ib0"
        ),
    ),
    avoids=("Unable to find address for delivery",),
)
def _missing_interface(line: Line, match: re.Match[str]) -> Event:
    return line.event("rendezvous_failure", EventRole.ROOT, reason="interface", address=match[1])


@PARSER.pattern(
    rb"(Connection closed by peer|Read error \[|Write error \[|: Broken pipe|Connection reset by peer)",
    safety="A peer is gone: it failed first. Only lines that name gloo's source files.",
    matches=(
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed "
            "by peer [10.77.0.18]:51119. This is typically caused by a remote worker crashing."
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
            "[10.77.0.18]:28902: Connection reset by peer."
        ),
    ),
    avoids=(
        "urllib3: ConnectionResetError: [Errno 104] Connection reset by peer",
        "ssh: Connection closed by peer",
    ),
)
def _lost_peer(line: Line) -> Event | None:
    if "gloo" not in line.text:
        return None
    match = _PEER.search(line.text)
    return (
        line.event("peer_lost", EventRole.CASCADE, address=match[1] if match else None, backend="gloo")
        if match
        else None
    )


@PARSER.pattern(
    rb"op\.preamble\.length <= op\.nbytes",
    safety="Two ranks sent different sizes: the job's own mismatch.",
    matches=(
        (
            "RuntimeError: [enforce fail at gloo/transport/tcp/pair.cc:490] op.preamble.length <= "
            "op.nbytes. 4096 vs 1024"
        ),
    ),
    avoids=("op.preamble.length fine",),
)
def _size_mismatch(line: Line) -> Event:
    position = max(line.text.find("op.preamble"), line.text.find("op.nbytes"), 0)
    return line.event("collective_mismatch", EventRole.ROOT, detail=line.text[max(0, position - 20) : position + 200])
