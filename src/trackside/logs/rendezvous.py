"""Failed startup between ranks: torch's TCPStore and sockets, store timeouts, torchelastic's rendezvous."""

from __future__ import annotations

import re

from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_LISTEN = re.compile(r"(?:port: |\[::\]:|0\.0\.0\.0:)(\d{1,6})")
_STORE_ERROR = re.compile(
    r"(?:sendBytes|recvValue|recvValueWithTimeout|recvVector) failed on (?:SocketImpl|\[)(?:.{0,"
    r"200}?remote=(?P<peer>[^)\s]{1,120})\))?"
)
LOST_STORE = "rendezvous"
"""Key of the notes in which parsers record that a store or rendezvous went away after it had been up."""
_UNKNOWN_HOST_CODES = (-2, -3, -4, -5)
"""gai codes that mean unknown name or no answer; -9 and similar mean an address family that the node lacks."""


def _failure(
    line: Line, reason: str, address: str | None = None, retry: bool | None = None, role: EventRole = EventRole.ROOT
) -> Event:
    """The event of a failed startup for this reason."""
    return line.event("rendezvous_failure", role, reason=reason, address=address, retry=retry)


PARSER = Parser("rendezvous", "TCPStore and torchelastic rendezvous", "system")


@PARSER.pattern(
    rb"network addresses of \([^\n\r]{1,200} cannot be retrieved \(gai error: -",
    r"network addresses of \((?P<host>.{1,200}?), (?P<port>\d{1,6})\) cannot be retrieved \(gai "
    r"error: (?P<code>-?\d{1,5})",
    safety="Only codes that mean an unknown name; the harmless 'hostname of the client socket cannot be retrieved' "
    "is another text. Level W and retried: later progress clears it.",
    matches=(
        (
            "[W socket.cpp:653] [c10d] The IPv6 network addresses of (head[01,05], 53394) cannot be "
            "retrieved (gai error: -2 - Name or service not known)."
        ),
        (
            "[W1121 10:10:43.6 socket.cpp:764] [c10d] The IPv4 network addresses of (gpu-head, 29500) "
            "cannot be retrieved (gai error: -3 - Temporary failure in name resolution)."
        ),
    ),
    avoids=(
        (
            "[W1121 08:45:10.791279667 socket.cpp:207] [c10d] The hostname of the client socket cannot "
            "be retrieved. err=-3"
        ),
        (
            "The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai error: -9 - Address "
            "family for hostname not supported)."
        ),
    ),
)
def _unknown_host(line: Line, match: re.Match[str]) -> Event | None:
    if int(match["code"]) not in _UNKNOWN_HOST_CODES:
        return None
    return _failure(line, "dns", f"{match['host']}:{match['port']}", retry=True)


@PARSER.pattern(
    rb"client socket has timed out after [^\n\r]{1,40} while trying to connect to \(",
    r"while trying to connect to \((?P<host>.{1,200}?), (?P<port>\d{1,6})\)",
    safety="An attempt that will be repeated is marked as a retry.",
    matches=(
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying "
            "to connect to (10.0.0.1, 29500)."
        ),
        (
            "[E1121 10:11:36.4 socket.cpp:1028] [c10d] The client socket has timed out after 60000ms "
            "while trying to connect to (gpu018, 29500)."
        ),
        (
            "[W TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host a:1 - retrying "
            "(try=0, timeout=60000ms, delay=3ms): The client socket has timed out after 60000ms while "
            "trying to connect to (a, 1)."
        ),
    ),
    avoids=("the client socket has timed out after a while",),
)
def _client_timeout(line: Line, match: re.Match[str]) -> Event:
    retry = True if "retrying (try" in line.text else None
    return _failure(line, "timeout", f"{match['host']}:{match['port']}", retry)


@PARSER.pattern(
    rb"client socket has failed to connect to ",
    r"client socket has failed to connect to (?:any network address of )?(?P<where>\(.{1,200}?\)|"
    r"\S{1,120}) ?(?P<why>\(errno: .{1,80}?\))?",
    safety="One of several addresses may refuse before the store is up: level W lines are marked as retries.",
    matches=(
        (
            "[W socket.cpp:601] [c10d] The client socket has failed to connect to "
            "[::ffff:10.0.0.1]:29500 (errno: 111 - Connection refused)."
        ),
        "[E socket.cpp:860] [c10d] The client socket has failed to connect to any network address of (n1, 29500).",
        "The client socket has failed to connect to 10.0.0.1:29500 (errno: 113 - No route to host).",
    ),
    avoids=("the client socket has failed to connect to  ",),
)
def _connect_failure(line: Line, match: re.Match[str]) -> Event:
    error, final = (match["why"] or line.text), "any network address" in line.text
    if "refused" in error:
        reason = "refused"
    elif "route" in error or "nreachable" in error:
        reason = "unreachable"
    elif "timed out" in error:
        reason = "timeout"
    else:
        reason = "unreachable" if final else "refused"
    return _failure(line, reason, match["where"].strip("()").replace(", ", ":").rstrip("."), None if final else True)


@PARSER.pattern(
    rb"([Aa]ddress already in use|EADDRINUSE)",
    safety="torch's own server socket: a tensorboard or wandb port in use does not count, nor does source code.",
    matches=(
        (
            "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - "
            "Address already in use)."
        ),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
            "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address "
            "already in use"
        ),
        "RuntimeError: Address already in use",
    ),
    avoids=(
        "OSError: [Errno 98] Address already in use",
        "TensorBoard could not bind to port 6006: Address already in use",
        (
            "The server socket on [::]:1 has failed to bind. TORCHELASTIC_USE_AGENT_STORE is enabled so "
            "ignoring the error. EADDRINUSE"
        ),
        "        if (errno == EADDRINUSE) {",
    ),
)
def _listen_failure(line: Line) -> Event | None:
    text = line.text
    if "ignoring the error" in text or "= EADDRINUSE" in text:  # the second is source code, which compares
        return None
    if "RuntimeError: Address already in use" not in text and "server socket" not in text and "EADDRINUSE" not in text:
        return None
    port = _LISTEN.search(text)
    final = "failed to bind to" not in text or "failed to listen on any" in text
    return _failure(line, "port_in_use", port[1] if port else None, None if final else True)


@PARSER.pattern(
    rb"waiting for clients\. [0-9]{1,7}/[0-9]{1,7} clients joined",
    r"\d{1,7}/\d{1,7} clients joined",
    safety="The store's own count of the clients that joined.",
    matches=("torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.",),
    avoids=("waiting for clients. 3 clients joined",),
)
def _missing_clients(line: Line, match: re.Match[str]) -> Event:
    return _failure(line, "timeout", match[0])


@PARSER.pattern(
    rb"wait timeout after [0-9]{1,12}ms, keys: ",
    r"wait timeout after (\d{1,12})ms, keys: (.{0,400})",
    safety="A key that another rank should have set; a timeout in the agents' exit barrier is teardown.",
    matches=(
        (
            "torch.distributed.DistStoreError: wait timeout after 20000ms, keys: "
            "/none/torchelastic/role_info/0, /none/torchelastic/role_info/1"
        ),
        "torch.distributed.DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/0",
    ),
    avoids=("wait timeout after 3 tries",),
)
def _missing_key(line: Line, match: re.Match[str]) -> Event:
    at_exit = "terminal_state" in match[2] or "exit_barrier" in match[2]
    return _failure(line, "timeout", role=EventRole.TEARDOWN if at_exit else EventRole.ROOT)


@PARSER.pattern(
    rb"Timed out initializing process group in store based barrier",
    safety="Not all ranks called init_process_group.",
    matches=(
        (
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for "
            "key: store_based_barrier_key:1 (world_size=4, worker_count=2, timeout=0:30:00)"
        ),
    ),
    avoids=("Timed out initializing the model",),
)
def _barrier_timeout(line: Line) -> Event:
    return _failure(line, "timeout")


@PARSER.pattern(
    rb"but store->get\('",
    safety="Rank 0 never published NCCL's id: a timeout is a hanging startup, a closed store is rank 0's death.",
    matches=(
        (
            "[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
            "store by store->get('0'), but store->get('0') got error: Socket Timeout"
        ),
        (
            "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving "
            "ncclUniqueId from [0] via c10d key-value store by store->get('0'), but store->get('0') got "
            "error: Connection reset by peer"
        ),
    ),
    avoids=("store->get('0') works",),
)
def _missing_unique_id(line: Line) -> Event:
    store_closed = "reset by peer" in line.text or "closed" in line.text or "shut" in line.text
    if store_closed:
        return line.event("peer_lost", EventRole.CASCADE, backend="tcpstore")
    return _failure(line, "timeout")


@PARSER.pattern(
    rb"((sendBytes|recvValue|recvValueWithTimeout|recvVector) failed on (SocketImpl|\[)|maybe "
    rb"TCPStore server has shut down)",
    safety="The store's server is gone: its rank or node ended first.",
    matches=(
        (
            "[W1121 08:58:20 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3, "
            "addr=[n2]:40000, remote=[n1]:29500): Broken pipe"
        ),
        (
            "[W TCPStore.cpp:122] [c10d] recvVector failed on SocketImpl(fd=4, addr=[::1]:1, "
            "remote=[::2]:2): Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
            "server shutdown or crash?"
        ),
        (
            '[PG 0 Rank 3] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server '
            "has shut down too early), with error: Broken pipe"
        ),
    ),
    avoids=("sendBytes failed on purpose in this test? no",),
)
def _lost_store(line: Line) -> Event | None:
    match = _STORE_ERROR.search(line.text)
    if match is None and "maybe TCPStore server has shut down" not in line.text:
        return None
    peer = match["peer"] if match else None
    line.notes(LOST_STORE)["lost"] = True
    role = EventRole.TEARDOWN if exits.ending_reason(line) else EventRole.CASCADE
    return line.event("peer_lost", role, address=peer, backend="tcpstore")


@PARSER.pattern(
    rb"(Rendezvous(Timeout|Connection|Closed)Error|shutdown the rendezvous)",
    safety="The exception's own line; code lines of its traceback and failures at shutdown are not startup failures.",
    matches=(
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the "
            "C10d store has failed. See inner exception for details."
        ),
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        (
            "W dynamic_rendezvous.py:1] The node 'n1_1_0' has failed to shutdown the rendezvous '42' due "
            "to an error of type RendezvousConnectionError."
        ),
        "Unable to shutdown the rendezvous.",
    ),
    avoids=("    raise RendezvousTimeoutError", "from torch.x import RendezvousTimeoutError as E"),
)
def _elastic_failure(line: Line) -> Event | None:
    text = line.text.strip()
    if "failed to shutdown the rendezvous" in text or "Unable to shutdown the rendezvous" in text:
        return line.event("peer_lost", EventRole.TEARDOWN, backend="tcpstore")
    match = re.search(r"(?:^|[\s.])Rendezvous(Timeout|Connection|Closed|GracefulExit)Error(?::|\s*$)", text)
    if match is None or text.startswith(("raise ", "except ", "File ")) or "due to an error of type" in text:
        return None
    if match[1] == "Timeout":
        return _failure(line, "timeout")
    if match[1] == "Connection":
        return _failure(
            line, "unreachable", role=EventRole.CASCADE if line.notes(LOST_STORE).get("lost") else EventRole.ROOT
        )
    return _failure(line, "closed", role=EventRole.CASCADE)
