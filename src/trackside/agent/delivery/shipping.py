"""Sends a spool to its receiver: in order, with retries until delivered; records that the receiver refuses are
dropped."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from trackside.agent.delivery.loki_push import LokiPush
from trackside.agent.delivery.receiver import ReceiverOptions
from trackside.agent.delivery.remote_write import RemoteWrite
from trackside.agent.delivery.spool import Batch, Spool
from trackside.agent.source import Reading
from trackside.http.client import HttpClient
from trackside.http.unavailable import SourceUnavailable

MIN_RETRY_S, MAX_RETRY_S = 0.5, 60.0
"""Pauses between tries; they double, and are randomized so that nodes do not all retry at once."""
MAX_RETRY_AFTER_S = 300.0
"""Upper limit for a wait that a receiver asks for."""
MAX_RECORDS = 1024
REPEAT_S = 60.0
"""Interval at which the same problem is logged again."""
REFUSED_STATUSES = frozenset({400, 406, 409, 410, 411, 412, 413, 414, 415, 416, 417, 421, 422, 431})
"""Statuses of a body that the receiver will never accept. Other 4xx may pass: a token that is being rotated, a URL that
is not served yet."""
Encoder = RemoteWrite | LokiPush
"""A protocol encoder."""


@dataclass(slots=True)
class SendStatistics:
    """Statistics of sending. ``last_success``: POSIX seconds, 0 for never."""

    sent_items: int = 0
    requests: int = 0
    consecutive_failures: int = 0
    failed_requests: int = 0
    last_success: float = 0.0


class Sender:
    """One receiver, its spool, and the thread that sends."""

    def __init__(self, protocol: Encoder, options: ReceiverOptions, spool: Spool, say: Callable[[str], object]) -> None:
        """Raises ValueError for certificates that cannot be loaded."""
        self.protocol, self.spool, self.statistics = protocol, spool, SendStatistics()
        self._say = say
        self._options = options
        self._client = HttpClient(options.with_path(protocol.path))
        self._batch_records = MAX_RECORDS
        self._logged_at: dict[str, float] = {}
        self._stopping = threading.Event()
        self._give_up_at = float("inf")
        self._thread = threading.Thread(target=self._main, name=f"send-{protocol.name}", daemon=True)

    @property
    def url(self) -> str:
        """The receiver's URL without secrets."""
        return self._client.name

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def spool_reading(self, reading: Reading) -> bool:
        """Spool a reading; True if all of it is on disk."""
        on_disk = [self.spool.append(record, count) for record, count in self.protocol.records(reading)]
        return all(on_disk)

    def stop(self, within_s: float) -> None:
        """Send what waits for up to ``within_s`` seconds; the rest stays in the spool."""
        self._give_up_at = time.monotonic() + within_s
        self._stopping.set()
        self.spool.wake()
        if self._thread.is_alive():
            self._thread.join(within_s + 1.0)

    # -- in the sending thread

    def _main(self) -> None:
        while not self._stopping.is_set():
            self.spool.sync()
            if self.spool.wait(1.0):
                self._stopping.wait(self._options.wait_s)  # to send more data in one request
                self._send_all()
        self._send_all()
        self._client.close()

    def _send_all(self) -> None:
        """Send everything that waits, or try until stopped."""
        while time.monotonic() < self._give_up_at:
            self.spool.sync()
            try:
                batch = self.spool.batch(self._options.batch_bytes, self._batch_records)
            except OSError as error:
                self._complain("the spool cannot be read", str(error.strerror))
                return
            if batch is None:
                return
            if wait_s := self._send(batch):
                if self._stopping.is_set():
                    return
                self._stopping.wait(wait_s)

    def _send(self, batch: Batch) -> float:
        """Send a batch and handle the result; seconds to wait before the next try, 0 after success."""
        statistics = self.statistics
        statistics.requests += 1
        try:
            body, headers = self.protocol.body(batch.records)
            self._client.request("POST", "", body=body, headers=headers)
        except SourceUnavailable as error:
            if error.status in REFUSED_STATUSES:
                return self._handle_refusal(batch, str(error))
            if error.kind != "too_large":  # a too large response still means that the body was accepted
                return self._handle_failure(batch, str(error), error.retry_after_s)
        except Exception as error:  # noqa: BLE001  no error may end this thread
            return self._handle_failure(batch, f"{self.url}: {type(error).__name__}: {error}", 0.0)
        if statistics.consecutive_failures:
            self._say(f"{self.url} works again")
            self._logged_at.clear()
        statistics.sent_items += batch.count
        statistics.consecutive_failures, statistics.last_success = 0, time.time()
        self.spool.confirm(batch)
        self._batch_records = min(2 * self._batch_records, MAX_RECORDS)
        return 0.0

    def _handle_refusal(self, batch: Batch, reason: str) -> float:
        """Narrow down which record the receiver refuses, and drop it."""
        if len(batch.records) > 1:
            self.spool.release(batch)
            self._batch_records = len(batch.records) // 2  # to find the refused record by bisection
        else:
            self._complain(reason, f"{batch.count:,} items are lost")
            self.spool.discard(batch)
        return 0.0

    def _handle_failure(self, batch: Batch, reason: str, retry_after_s: float) -> float:
        """Note a failure; seconds until the next try."""
        self.spool.release(batch)
        statistics = self.statistics
        statistics.consecutive_failures += 1
        statistics.failed_requests += 1
        self._complain(reason, "the data is kept and sent again")
        wait_s = min(MIN_RETRY_S * 2.0 ** min(statistics.consecutive_failures - 1, 10), MAX_RETRY_S)
        return max(min(retry_after_s, MAX_RETRY_AFTER_S), wait_s) * random.uniform(1.0, 1.5)

    def _complain(self, problem: str, consequence: str) -> None:
        """Log a problem, at most once a minute."""
        now = time.monotonic()
        if len(self._logged_at) > 64:
            self._logged_at.clear()
        if now - self._logged_at.get(problem, -REPEAT_S) >= REPEAT_S:
            self._logged_at[problem] = now
            name = f"{self.protocol.name}: "
            self._say(f"{name}{problem.removeprefix(name)}; {consequence}")
