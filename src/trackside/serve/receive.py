"""The receiver over HTTP: a push is read within its limits, understood in a thread, on disk, and only then answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from trackside.serve import own_metrics, pushes
from trackside.serve.limits import Bodies, Refused, Tokens
from trackside.serve.protocols.decoded import Answer, BadRequest, TooLarge
from trackside.serve.protocols.series_key import KnownSeries
from trackside.serve.pushes import PUSHES, Push
from trackside.stores.receiver.arrivals import LABELS, SERIES, IntakeResult
from trackside.stores.receiver.intake import Intake, NotStored, QueueFull
from trackside.stores.receiver.options import Limits
from trackside.stores.receiver.pending import Decoded
from trackside.stores.receiver.write_ahead import Entry, Header

LOG = logging.getLogger("trackside.receiver")
DECODERS = 2
"""Threads that decompress and decode: the loop must answer meanwhile."""
COMPLAIN_S = 60.0
"""How often refusals of one kind are logged."""
LONGEST_HEADER = 1024
"""Characters of a header that is kept with the body."""
PREFIX_BYTES = 48
"""What stands before a line in its file, at most: its time, and what tells that a stream wrote it."""


def decoder(limits: Limits) -> Callable[[Entry], Decoded]:
    """Understands bodies of all protocols, and remembers their series; raises BadRequest."""
    return partial(pushes.decoded, most=limits.decoded_bytes, known=KnownSeries())


class Receiver:
    """Answers pushes to one store. ``answered``: by protocol and status, how many."""

    def __init__(self, intake: Intake, write: Tokens, read: Tokens) -> None:
        self.intake = intake
        self.bodies = Bodies(intake.limits)
        self.answered: dict[tuple[str, int], int] = {}
        self.seconds = 0.0
        self.stopping = False
        self._complained: dict[tuple[str, int], float] = {}
        self._write, self._read = write, read
        self._pool = ThreadPoolExecutor(DECODERS, thread_name_prefix="trackside-decode")
        self._decode = decoder(intake.limits)

    def routes(self) -> list[Route]:
        found = [
            Route(path, partial(self._push, push), methods=["POST"], name=push.id)
            for push in PUSHES
            for path in push.paths
        ]
        return [
            *found,
            Route("/-/healthy", self._healthy),
            Route("/-/ready", self._is_ready),
            Route("/metrics", self._metrics),
        ]

    def close(self) -> None:
        """End the threads; the intake is closed by whoever opened it."""
        self._pool.shutdown()

    # -- pushes

    async def _push(self, push: Push, request: Request) -> Response:
        begin = time.perf_counter()
        content_type = request.headers.get("content-type", "")
        try:
            self._write.admit(request.headers.get("authorization", ""))
            answer, headers = await self._taken(push, content_type, request), {}
        except (Refused, BadRequest, QueueFull, NotStored) as error:
            answer = push.refusal(error.status, str(error), content_type)
            retry = error.retry_after_s
            headers = {} if retry is None else {"Retry-After": str(max(1, round(retry)))}
            if error.status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            self._complain(push.id, error.status, _sender(request), str(error))
        self.answered[push.id, answer.status] = self.answered.get((push.id, answer.status), 0) + 1
        self.seconds += time.perf_counter() - begin
        return Response(answer.body, answer.status, {**answer.headers, **headers}, answer.content_type or None)

    def _complain(self, protocol: str, status: int, sender: str, why: str) -> None:
        """Log a refusal, each kind once a minute."""
        now = time.monotonic()
        if now - self._complained.get((protocol, status), -COMPLAIN_S) >= COMPLAIN_S:
            self._complained[protocol, status] = now
            shown = "".join(each if each.isprintable() else "?" for each in why[:300])
            LOG.warning("%s from %s refused with %d: %s", protocol, sender or "somebody", status, shown)

    async def _taken(self, push: Push, content_type: str, request: Request) -> Answer:
        if self.stopping:
            raise QueueFull("the receiver is stopping", 5.0)
        self.intake.check_capacity()
        with self.bodies.room() as room:
            encoding = request.headers.get("content-encoding", "")
            if max(len(content_type), len(encoding)) > LONGEST_HEADER:
                raise Refused(400, f"Content-Type and Content-Encoding have {LONGEST_HEADER:,} characters at most")
            body = await room.read(request)
            header = Header(push.id, content_type, encoding, _sender(request), time.time_ns())
            loop = asyncio.get_running_loop()
            decoded = await loop.run_in_executor(self._pool, self._understood, (header, body))
            taken = await asyncio.wrap_future(self.intake.accept(header, body, decoded))
        return push.answer(decoded, content_type, *_kept_out(taken))

    def _understood(self, entry: Entry) -> Decoded:
        """What a body says, where all of it may wait at once. Raises BadRequest."""
        decoded, limits = self._decode(entry), self.intake.limits
        if not isinstance(decoded, Sequence):
            size, most, what = len(decoded.values), limits.pending_samples, "samples"
        else:  # each line has its time before it, and one entry may be many
            texts = [text for stream in decoded for text in stream.lines]
            size = sum(len(text) + PREFIX_BYTES * (1 + text.count("\n")) for text in texts)
            most, what = limits.pending_line_bytes, "bytes of lines, each with its time"
        if size > most:
            raise TooLarge(f"{size:,} {what} in one body, at most {most:,} may wait: send less at once")
        return decoded

    # -- of itself

    async def _healthy(self, request: Request) -> Response:
        return PlainTextResponse("it runs\n")

    async def _is_ready(self, request: Request) -> Response:
        if self.stopping:
            return PlainTextResponse("it is stopping\n", 503)
        if self.intake.last_error:
            return PlainTextResponse(f"what is accepted can't be written: {self.intake.last_error}\n", 503)
        try:
            self.intake.check_capacity()
        except (QueueFull, NotStored) as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("it takes what is sent\n")

    async def _metrics(self, request: Request) -> Response:
        try:
            self._read.admit(request.headers.get("authorization", ""))
        except Refused as error:
            return PlainTextResponse(f"{error}\n", error.status, {"WWW-Authenticate": "Bearer"})
        answered = dict(self.answered)
        text = await asyncio.to_thread(own_metrics.text, self.intake, self.bodies, answered, self.seconds)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


_SAID = {
    SERIES: "samples of new series: there are as many as serve.limits.series allows in a day",
    LABELS: "samples of series with more or longer labels than serve.limits allows",
    "streams": "lines of new streams: there are as many as serve.limits.streams allows in a day",
}


def _kept_out(taken: IntakeResult) -> tuple[int, str]:
    """How much limits kept out, in words for the sender; what nobody here asks for is let go without any."""
    found = {reason: count for reason, count in taken.refused.items() if reason in _SAID}
    return sum(found.values()), "; ".join(f"{count:,} {_SAID[reason]}" for reason, count in found.items())


def _sender(request: Request) -> str:
    return request.client.host if request.client is not None else ""
