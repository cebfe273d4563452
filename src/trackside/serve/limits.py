"""Who may send requests, and how much at once: tokens, memory for bodies, and reading a body within its limits."""

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
from trackside.stores.receiver.options import ReceiverLimits, ServeOptions

LOG = logging.getLogger("trackside.receiver")
RETRY_AFTER_S = 1.0
"""Seconds after which a sender may retry if there are too many requests, or if its body was too slow."""
GRACE_S = 5.0
"""Seconds after which a body must have come at the minimum rate."""
MAX_SHARE = 0.5
"""Share of the space for bodies that one sender may fill."""
MIN_TOKEN_CHARS = 16
"""Minimum characters of a token; shorter ones are too easily guessed."""


class RequestRefused(TracksideError):
    """A request that is answered with a status and a message, without being processed."""

    def __init__(self, status: int, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.status, self.retry_after_s = status, retry_after_s


class Tokens:
    """The accepted tokens; none: everybody has access. Only their hashes are stored."""

    def __init__(self, tokens: Sequence[str] = ()) -> None:
        self._hashes = [hashlib.sha256(token.encode()).digest() for token in tokens]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    @classmethod
    def read(cls, files: Sequence[str]) -> Tokens:
        """Read token files, one token per line; ``#`` starts a comment. Raises ValueError."""
        return cls([token for file in files for token in _tokens(Path(file))])

    def admit(self, authorization: str) -> None:
        """Raise RequestRefused unless the ``Authorization`` header contains one of the tokens."""
        if not self._hashes:
            return
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RequestRefused(401, "a token is required: send the header 'Authorization: Bearer TOKEN'")
        sent_hash = hashlib.sha256(token.strip().encode("utf-8", "replace")).digest()
        # sum, not any: comparing all hashes takes constant time
        if not sum(hmac.compare_digest(sent_hash, token_hash) for token_hash in self._hashes):
            raise RequestRefused(401, "the token is not valid here")


def _tokens(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
        if path.stat().st_mode & stat.S_IROTH:
            LOG.warning("%s: every user of this machine can read these tokens; run: chmod o-r %s", path, path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot read the tokens ({getattr(error, 'strerror', None) or error})") from error
    tokens = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not tokens:
        raise ValueError(f"{path}: has no token; write one per line, for example from 'openssl rand -hex 32'")
    for token in tokens:
        if len(token) < MIN_TOKEN_CHARS or re.search(r"\s", token):
            raise ValueError(
                f"{path}: a token needs at least {MIN_TOKEN_CHARS} characters, no blanks; try 'openssl rand -hex 32'"
            )
        yield token


def load_tokens(options: ServeOptions) -> tuple[Tokens, Tokens]:
    """The tokens for writing and for reading. Raises ValueError if other machines could connect without a token."""
    write, read = Tokens.read(options.write_token_files), Tokens.read(options.read_token_files)
    if bool(options.certificate) != bool(options.key):
        raise ValueError("serve: certificate and key belong together; set both PEM files, or neither")
    if not options.is_local and not options.allow_open and not (write and read):
        missing = " and ".join(
            name for name, is_set in (("write_token_files", write), ("read_token_files", read)) if not is_set
        )
        raise ValueError(
            f"serve: listen = {options.listen} accepts other machines without a token:"
            f" either set {missing}, or listen on 127.0.0.1, or pass --allow-open to accept everyone"
        )
    return write, read


class Bodies:
    """The bodies in memory: their number and total size. A sender may fill half of the space, the others the rest."""

    def __init__(self, limits: ReceiverLimits) -> None:
        self.limits = limits
        self.count = self.bytes = 0
        self._bytes_by_sender: dict[str, int] = {}

    @contextmanager
    def reserve(self, sender: str = "") -> Iterator[BodyReader]:
        """A reader for one body of a sender, whose bytes count until it is closed."""
        self.count += 1
        reader = BodyReader(self, sender)
        try:
            yield reader
        finally:
            self.count -= 1
            self._add(sender, -reader.bytes)

    def take(self, sender: str, size: int) -> None:
        """Count bytes of a sender; raises RequestRefused if there are too many."""
        in_use, max_bytes = self._bytes_by_sender.get(sender, 0), self.limits.bodies_bytes
        if in_use + size > max_bytes * MAX_SHARE:
            raise RequestRefused(
                429, f"{in_use:,} bytes of your requests are being processed; try again later", RETRY_AFTER_S
            )
        if self.bytes + size > max_bytes:
            raise RequestRefused(
                429, f"{self.bytes:,} bytes of requests are being processed; try again later", RETRY_AFTER_S
            )
        self._add(sender, size)

    def _add(self, sender: str, size: int) -> None:
        self.bytes += size
        in_use = self._bytes_by_sender.pop(sender, 0) + size
        if in_use:
            self._bytes_by_sender[sender] = in_use


class BodyReader:
    """Reads one body and counts the memory that it uses."""

    def __init__(self, bodies: Bodies, sender: str) -> None:
        self._bodies, self._sender = bodies, sender
        self.bytes = 0

    async def read(self, request: Request) -> bytes:
        """The body as received. Raises RequestRefused if it exceeds the limits of size, rate or time."""
        limits = self._bodies.limits
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        chunks = []
        begin = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(GRACE_S, limits.body_s)) as deadline:
                async for chunk in request.stream():
                    self.add(len(chunk))
                    if self.bytes > limits.body_bytes:
                        raise _too_large(limits.body_bytes)
                    chunks.append(chunk)
                    deadline.reschedule(begin + min(limits.body_s, GRACE_S + self.bytes / limits.body_bytes_per_s))
        except TimeoutError:
            # Not 408: nearly all senders treat any 4xx as final and drop their data.
            reason = f"the body came too slowly, or did not arrive within {limits.body_s:g} s"
            raise RequestRefused(503, reason, RETRY_AFTER_S) from None
        except ClientDisconnect:
            raise RequestRefused(400, "the connection was closed before the body's end") from None
        return b"".join(chunks)

    def add(self, size: int) -> None:
        """Count bytes; raises RequestRefused if the sender's, or all bodies together, have too many."""
        self._bodies.take(self._sender, size)
        self.bytes += size


def _too_large(max_bytes: int) -> RequestRefused:
    return RequestRefused(
        413, f"the body has more than {max_bytes:,} bytes; send smaller ones, or raise serve.limits.body_bytes"
    )
