"""The receiver over HTTP: a push is read within its limits, decoded in a thread, written to disk, and then answered."""

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
from trackside.serve.limits import Bodies, RequestRefused, Tokens
from trackside.serve.protocols.decoded import BadRequest, PushAnswer, PushTooLarge
from trackside.serve.protocols.series_key import KnownSeries
from trackside.serve.pushes import PUSHES, Push
from trackside.stores.receiver.arrivals import JOB_SERIES, LABELS, SENDER_SERIES, SERIES, UNTIMELY, IntakeResult
from trackside.stores.receiver.intake import RETRY_S, STOPPING, DataNotStored, Intake, IntakeUnavailable
from trackside.stores.receiver.options import ReceiverLimits
from trackside.stores.receiver.pending import JOB_STREAMS, SENDER_STREAMS, STREAMS, Decoded
from trackside.stores.receiver.write_ahead import Entry, Header

LOG = logging.getLogger("trackside.receiver")
DECODERS = 2
"""Threads that decompress and decode, so that the event loop can continue to answer."""
LOG_INTERVAL_S = 60.0
"""Refusals of one kind are logged at most once in this time."""
MAX_HEADER_CHARS = 1024
"""Maximum characters of a header that is stored with the body."""
PREFIX_BYTES = 48
"""Maximum bytes added to each line in its file: its time, and a mark that it came from a stream."""


def decoder(limits: ReceiverLimits) -> Callable[[Entry], Decoded]:
    """A decoder for bodies of all protocols, which caches their series; raises BadRequest."""
    return partial(pushes.decode, max_bytes=limits.decoded_bytes, known_series=KnownSeries())


class Receiver:
    """Answers pushes to one store. ``responses``: their number by protocol and status; ``push_s``: seconds
    spent on pushes."""

    def __init__(self, intake: Intake, write: Tokens, read: Tokens) -> None:
        self.intake = intake
        self.bodies = Bodies(intake.limits)
        self.responses: dict[tuple[str, int], int] = {}
        self.push_s = 0.0
        self.stopping = False
        self._last_logged: dict[tuple[str, int], float] = {}
        self._write, self._read = write, read
        self._pool = ThreadPoolExecutor(DECODERS, thread_name_prefix="trackside-decode")
        self._decode = decoder(intake.limits)

    def routes(self) -> list[Route]:
        push_routes = [
            Route(path, partial(self._push, push), methods=["POST"], name=push.id)
            for push in PUSHES
            for path in push.paths
        ]
        return [
            *push_routes,
            Route("/-/healthy", self._healthy),
            Route("/-/ready", self._is_ready),
            Route("/metrics", self._metrics),
        ]

    def close(self) -> None:
        """Stop the threads; the owner of the intake closes it."""
        self._pool.shutdown()

    # -- pushes

    async def _push(self, push: Push, request: Request) -> Response:
        begin = time.perf_counter()
        content_type = request.headers.get("content-type", "")
        try:
            self._write.admit(request.headers.get("authorization", ""))
            answer, headers = await self._accept(push, content_type, request), {}
        except (RequestRefused, BadRequest, IntakeUnavailable, DataNotStored) as error:
            answer = push.refusal(error.status, str(error), content_type)
            retry = error.retry_after_s
            headers = {} if retry is None else {"Retry-After": str(max(1, round(retry)))}
            if error.status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            self._log_refusal(push.id, error.status, _sender(request), str(error))
        self.responses[push.id, answer.status] = self.responses.get((push.id, answer.status), 0) + 1
        self.push_s += time.perf_counter() - begin
        return Response(answer.body, answer.status, {**answer.headers, **headers}, answer.content_type or None)

    def _log_refusal(self, protocol: str, status: int, sender: str, reason: str) -> None:
        """Log a refusal, each kind at most once a minute."""
        now = time.monotonic()
        if now - self._last_logged.get((protocol, status), -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
            self._last_logged[protocol, status] = now
            shown = "".join(char if char.isprintable() else "?" for char in reason[:300])
            LOG.warning("%s from %s refused with %d: %s", protocol, sender or "unknown sender", status, shown)

    async def _accept(self, push: Push, content_type: str, request: Request) -> PushAnswer:
        if self.stopping:
            raise IntakeUnavailable(STOPPING, RETRY_S)
        self.intake.check_capacity()
        with self.bodies.reserve(_sender(request)) as body_reader:
            encoding = request.headers.get("content-encoding", "")
            if max(len(content_type), len(encoding)) > MAX_HEADER_CHARS:
                raise RequestRefused(
                    400, f"Content-Type and Content-Encoding may have at most {MAX_HEADER_CHARS:,} characters"
                )
            body = await body_reader.read(request)
            header = Header(push.id, content_type, encoding, _sender(request), time.time_ns())
            loop = asyncio.get_running_loop()
            decoded = await loop.run_in_executor(self._pool, self._decode_within_limits, (header, body))
            result = await asyncio.wrap_future(self.intake.accept(header, body, decoded))
        return push.answer(decoded, content_type, *_count_rejected(result))

    def _decode_within_limits(self, entry: Entry) -> Decoded:
        """The decoded body, if all of it fits into the queue at once. Raises BadRequest."""
        decoded, limits = self._decode(entry), self.intake.limits
        if not isinstance(decoded, Sequence):
            size, maximum, unit = len(decoded.values), limits.pending_samples, "samples"
        else:  # each line gets a time prefix, and one entry may have many lines
            texts = [text for stream in decoded for text in stream.lines]
            size = sum(len(text) + PREFIX_BYTES * (1 + text.count("\n")) for text in texts)
            maximum, unit = limits.pending_line_bytes, "bytes of lines with their times"
        if size > maximum:
            raise PushTooLarge(
                f"{size:,} {unit} in one body, but at most {maximum:,} fit into the queue: send less at once"
            )
        return decoded

    # -- the receiver's own state

    async def _healthy(self, request: Request) -> Response:
        return PlainTextResponse("running\n")

    async def _is_ready(self, request: Request) -> Response:
        if self.stopping:
            return PlainTextResponse("stopping\n", 503)
        if self.intake.last_error:
            return PlainTextResponse(f"cannot write accepted data: {self.intake.last_error}\n", 503)
        try:
            self.intake.check_capacity()
        except (IntakeUnavailable, DataNotStored) as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("ready\n")

    async def _metrics(self, request: Request) -> Response:
        try:
            self._read.admit(request.headers.get("authorization", ""))
        except RequestRefused as error:
            return PlainTextResponse(f"{error}\n", error.status, {"WWW-Authenticate": "Bearer"})
        responses = dict(self.responses)
        text = await asyncio.to_thread(own_metrics.render, self.intake, self.bodies, responses, self.push_s)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


_LIMIT_TEXTS = {
    SERIES: "samples of new series: serve.limits.series allows no more",
    SENDER_SERIES: "samples of new series: one sender may use three quarters of serve.limits.series",
    JOB_SERIES: "samples of new series: one job may use three quarters of serve.limits.series",
    LABELS: "samples of series with more or longer labels than serve.limits allows",
    UNTIMELY: "samples with times before 2000 or more than a day ahead of the receiver's clock",
    STREAMS: "lines of new streams: serve.limits.streams allows no more",
    SENDER_STREAMS: "lines of new streams: one sender may use three quarters of serve.limits.streams",
    JOB_STREAMS: "lines of new streams: one job may use three quarters of serve.limits.streams",
}


def _count_rejected(result: IntakeResult) -> tuple[int, str]:
    """(number of rejected items, reasons for the sender); samples of unknown metrics are dropped without a message."""
    counts = {reason: count for reason, count in result.refused.items() if reason in _LIMIT_TEXTS}
    return sum(counts.values()), "; ".join(f"{count:,} {_LIMIT_TEXTS[reason]}" for reason, count in counts.items())


def _sender(request: Request) -> str:
    return request.client.host if request.client is not None else ""
