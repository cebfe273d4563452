"""Lets another process on this machine ask the receiver to read everything it has accepted into the store.

The receiver listens on a Unix socket in the store, ``received/refresh``, so that no address or token is needed: whoever
may use the store's folder may ask. A connection is the question; the answer is what could not be read in time, as JSON.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import msgspec

from trackside.stores.receiver.lag import IntakeLag, lags_without_receiver, not_stored_lag

LOG = logging.getLogger("trackside.receiver")
NAME = "refresh"
WAIT_S = 35.0
"""Longest wait for an answer: somewhat more than the receiver takes at most."""
SEND_S = 2.0
"""Longest time to send an answer to one client."""
MAX_ANSWER_BYTES = 64 << 20
BACKLOG = 128
ACCEPTED_TOGETHER = 512
"""Clients that one reading answers."""
_LAGS = msgspec.json.Decoder(tuple[IntakeLag, ...])


def refresh(store: str | os.PathLike[str], within_s: float = WAIT_S) -> Sequence[IntakeLag]:
    """Have the receiver of a store read what it has accepted; returns what is not in the store yet. Without a receiver
    on this machine: what is left from the last one. Raises StoreError."""
    folder = Path(store) / "received"
    if not folder.is_dir():
        return ()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, _address(folder) as address:
            client.settimeout(within_s)
            client.connect(address)
            return _LAGS.decode(_read_all(client, within_s))
    except (FileNotFoundError, ConnectionRefusedError):
        return lags_without_receiver(store)
    except TimeoutError:
        reason = f"the receiver did not answer within {within_s:g} s; try again"
    except (OSError, msgspec.MsgspecError) as error:
        reason = f"the receiver cannot be asked: {error}"
    return (not_stored_lag(reason),)


def _read_all(client: socket.socket, within_s: float) -> bytes:
    """The whole answer. Raises OSError."""
    end, data = time.monotonic() + within_s, bytearray()
    while chunk := client.recv(1 << 16):
        data += chunk
        client.settimeout(max(0.001, end - time.monotonic()))
        if len(data) > MAX_ANSWER_BYTES:
            raise OSError("its answer is too long")
    return bytes(data)


@contextmanager
def answer_refreshes(store: str | os.PathLike[str], read_all: Callable[[], Sequence[IntakeLag]]) -> Iterator[None]:
    """Answer such questions until the block ends, one reading at a time and at most half of the time. If the file
    system has no sockets, a warning is logged."""
    folder = Path(store) / "received"
    with ExitStack() as stack:
        try:
            server = stack.enter_context(_listening(folder))
        except OSError as error:
            LOG.warning(
                "commands that read the store may miss the last minute: %s: %s", folder / NAME, error.strerror or error
            )
        else:
            thread = threading.Thread(target=_answer, args=(server, read_all), name="trackside-refresh", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown, socket.SHUT_RDWR)
        yield


@contextmanager
def _listening(folder: Path) -> Iterator[socket.socket]:
    """The listening socket; its file is removed at the end. Raises OSError."""
    folder.mkdir(exist_ok=True)
    (folder / NAME).unlink(missing_ok=True)  # only one receiver at a time has the store
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server, _address(folder) as address:
        server.bind(address)
        try:
            (folder / NAME).chmod(0o666)  # the folder's mode says who may ask
            server.listen(BACKLOG)
            yield server
        finally:
            (folder / NAME).unlink(missing_ok=True)


def _answer(server: socket.socket, read_all: Callable[[], Sequence[IntakeLag]]) -> None:
    """Answer clients until the socket is shut down."""
    while True:
        try:
            clients = [server.accept()[0]]
        except OSError:
            return
        with ExitStack() as stack:
            stack.enter_context(closing(clients[0]))
            server.setblocking(False)
            with suppress(OSError):
                while len(clients) < ACCEPTED_TOGETHER:
                    clients.append(stack.enter_context(closing(server.accept()[0])))
            server.setblocking(True)
            begin = time.monotonic()
            answer = msgspec.json.encode(read_all())
            duration_s = time.monotonic() - begin
            for client in clients:
                client.settimeout(SEND_S)
                with suppress(OSError):  # it has given up
                    client.sendall(answer)
        time.sleep(duration_s)


@contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The address of the socket: a short one, because an address has at most 107 bytes."""
    path = os.fspath(folder / NAME)
    if len(os.fsencode(path)) < 100:
        yield path
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{NAME}"
    finally:
        os.close(handle)
