"""Who may come in, and how much at once: tokens, the room for bodies, and a body read within its limits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from trackside.errors import TracksideError
from trackside.stores.receiver.options import Limits, ServeOptions

LOG = logging.getLogger("trackside.receiver")
BUSY_S = 1.0
"""After how long a sender may come again where there was no room for its body."""
SHORT = 16
"""Characters below which a token is too soon guessed."""


class Refused(TracksideError):
    """A request that is answered with a status and words for its sender, and not looked at."""

    def __init__(self, status: int, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.status, self.retry_after_s = status, retry_after_s


class Tokens:
    """The tokens that let somebody in; none: everybody may. Only their hashes are held."""

    def __init__(self, tokens: Sequence[str] = ()) -> None:
        self._hashes = [hashlib.sha256(each.encode()).digest() for each in tokens]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    @classmethod
    def read(cls, files: Sequence[str]) -> Tokens:
        """Those of some files, one a line; ``#`` begins a comment. Raises ValueError."""
        return cls([token for file in files for token in _tokens(Path(file))])

    def admit(self, authorization: str) -> None:
        """Raise Refused for a header ``Authorization`` that shows none of them."""
        if not self._hashes:
            return
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refused(401, "a token is asked for: send the header 'Authorization: Bearer TOKEN'")
        shown = hashlib.sha256(token.strip().encode("utf-8", "replace")).digest()
        if not sum(hmac.compare_digest(shown, each) for each in self._hashes):  # all, so that the time tells nothing
            raise Refused(401, "this token is none of those that are let in here")


def _tokens(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
        if path.stat().st_mode & stat.S_IROTH:
            LOG.warning("%s: every user of this machine may read these tokens: chmod o-r it", path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: the tokens can't be read ({getattr(error, 'strerror', None) or error})") from error
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not found:
        raise ValueError(f"{path}: there is no token in it; write one a line, for example from 'openssl rand -hex 32'")
    for token in found:
        if len(token) < SHORT or re.search(r"\s", token):
            raise ValueError(f"{path}: a token has {SHORT} characters or more, no blanks; see 'openssl rand -hex 32'")
        yield token


def guarded(options: ServeOptions) -> tuple[Tokens, Tokens]:
    """The tokens to write and to read with. Raises ValueError where other machines could come in without."""
    write, read = Tokens.read(options.write_token_files), Tokens.read(options.read_token_files)
    if bool(options.certificate) != bool(options.key):
        raise ValueError("serve: certificate and key belong together; give both PEM files, or neither")
    if not options.is_local and not options.allow_open and not (write and read):
        missing = " and ".join(
            name for name, there in (("write_token_files", write), ("read_token_files", read)) if not there
        )
        raise ValueError(
            f"serve: listen = {options.listen} lets other machines in, and no token is asked of them:"
            f" give {missing}, listen on 127.0.0.1, or insist with allow_open"
        )
    return write, read


class Bodies:
    """The bodies that are in memory at the same time: so many, and so many bytes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.count = self.bytes = 0

    @contextmanager
    def room(self) -> Iterator[Room]:
        """Room for one body; raises Refused where there is none."""
        if self.count >= self.limits.bodies:
            raise Refused(429, f"{self.count} requests are being taken at the moment: come again", BUSY_S)
        self.count += 1
        room = Room(self)
        try:
            yield room
        finally:
            self.count -= 1
            self.bytes -= room.bytes


class Room:
    """What one body takes of it."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.bytes = 0

    async def read(self, request: Request) -> bytes:
        """The body as it comes over the wire. Raises Refused beyond the limits of size and time."""
        most = self._bodies.limits.body_bytes
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told) > most:
            raise _too_large(most)
        pieces = []
        try:
            async with asyncio.timeout(self._bodies.limits.body_s):
                async for piece in request.stream():
                    self.take(len(piece))
                    if self.bytes > most:
                        raise _too_large(most)
                    pieces.append(piece)
        except TimeoutError:
            # Not 408: nearly all senders take any 4xx for final and drop what they had.
            why = f"the body did not come within {self._bodies.limits.body_s:g} s"
            raise Refused(503, why, BUSY_S) from None
        except ClientDisconnect:
            raise Refused(400, "the connection was closed before the body's end") from None
        return b"".join(pieces)

    def take(self, size: int) -> None:
        """Count bytes; raises Refused where all bodies together have too many."""
        if self._bodies.bytes + size > self._bodies.limits.bodies_bytes:
            raise Refused(429, f"{self._bodies.bytes:,} bytes are being taken at the moment: come again", BUSY_S)
        self._bodies.bytes += size
        self.bytes += size


def _too_large(most: int) -> Refused:
    return Refused(413, f"the body has more than {most:,} bytes: send smaller ones, or raise serve.limits.body_bytes")
