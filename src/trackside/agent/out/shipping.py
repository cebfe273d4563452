"""From a spool to its receiver: in order, again and again until the receiver has it, and never what it won't take."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from trackside.agent.out.loki_push import LokiPush
from trackside.agent.out.receiver import ReceiverOptions
from trackside.agent.out.remote_write import RemoteWrite
from trackside.agent.out.spool import Batch, Spool
from trackside.agent.source import Reading
from trackside.http.client import HttpClient
from trackside.http.unavailable import SourceUnavailable

FIRST_AGAIN_S, LAST_AGAIN_S = 0.5, 60.0
"""Between tries: twice as long each time, by half of it random, so that not all nodes come back at once."""
MOST_AFTER_S = 300.0
"""However long a receiver asks to be let alone."""
MOST_RECORDS = 1024
SAY_S = 60.0
"""How often that which stays the same is logged."""
IMPOSSIBLE = frozenset({400, 406, 409, 410, 411, 412, 413, 414, 415, 416, 417, 421, 422, 431})
"""What a receiver answers to a body that it will never take. Others of 400 and above may pass: a token that is being
changed, a URL that is not served yet."""
Wire = RemoteWrite | LokiPush
"""What is spoken to a receiver."""


@dataclass(slots=True)
class Sent:
    """How it went so far. ``failures``: tries in a row that did not get through."""

    count: int = 0
    requests: int = 0
    failures: int = 0
    failed: int = 0
    last_success: float = 0.0


class Shipping:
    """One receiver, its spool, and the thread between them."""

    def __init__(self, protocol: Wire, options: ReceiverOptions, spool: Spool, say: Callable[[str], object]) -> None:
        """Raises ValueError for certificates that can't be used."""
        self.protocol, self.spool, self.sent = protocol, spool, Sent()
        self._say = say
        self._options = options
        self._client = HttpClient(options.at(protocol.path))
        self._most_records = MOST_RECORDS
        self._said: dict[str, float] = {}
        self._stopping = threading.Event()
        self._until = float("inf")
        self._thread = threading.Thread(target=self._ship, name=f"send-{protocol.name}", daemon=True)

    @property
    def url(self) -> str:
        """Where it sends to, without secrets."""
        return self._client.name

    def start(self) -> None:
        """Send from now on."""
        self._thread.start()

    def take(self, reading: Reading) -> bool:
        """Spool what is to be sent of a reading; whether all of it is on disk."""
        kept = [self.spool.append(record, count) for record, count in self.protocol.records(reading)]
        return all(kept)

    def stop(self, within_s: float) -> None:
        """Send what waits, as far as there is time; the rest stays in the spool."""
        self._until = time.monotonic() + within_s
        self._stopping.set()
        self.spool.wake()
        if self._thread.is_alive():
            self._thread.join(within_s + 1.0)

    # -- its thread

    def _ship(self) -> None:
        while not self._stopping.is_set():
            self.spool.sync()
            if self.spool.wait(1.0):
                self._stopping.wait(self._options.wait_s)  # for company
                self._pass_on()
        self._pass_on()
        self._client.close()

    def _pass_on(self) -> None:
        """Send all that waits, or try to until it is told to end."""
        while time.monotonic() < self._until:
            self.spool.sync()
            try:
                batch = self.spool.batch(self._options.batch_bytes, self._most_records)
            except OSError as error:
                self._complain("the spool can't be read", str(error.strerror))
                return
            if batch is None:
                return
            if after_s := self._try(batch):
                if self._stopping.is_set():
                    return
                self._stopping.wait(after_s)

    def _try(self, batch: Batch) -> float:
        """Send a batch and see to what came of it; seconds to wait until the next try, 0 where it got through."""
        sent = self.sent
        sent.requests += 1
        try:
            body, headers = self.protocol.body(batch.records)
            self._client.request("POST", "", body=body, headers=headers)
        except SourceUnavailable as error:
            if error.status in IMPOSSIBLE:
                return self._refused(batch, str(error))
            if error.kind != "too_large":  # it took the body, and has a lot to say of it
                return self._failed(batch, str(error), error.after)
        except Exception as error:  # noqa: BLE001  whatever it is, this thread must not end by it
            return self._failed(batch, f"{self.url}: {type(error).__name__}: {error}", 0.0)
        if sent.failures:
            self._say(f"{self.url} answers again")
            self._said.clear()
        sent.count += batch.count
        sent.failures, sent.last_success = 0, time.time()
        self.spool.done(batch)
        self._most_records = min(2 * self._most_records, MOST_RECORDS)
        return 0.0

    def _refused(self, batch: Batch, reason: str) -> float:
        """Find the record that the receiver will never take, and let it go."""
        if len(batch.records) > 1:
            self.spool.released(batch)
            self._most_records = len(batch.records) // 2  # which of them is it?
        else:
            self._complain(reason, f"so {batch.count:,} are lost")
            self.spool.refused(batch)
        return 0.0

    def _failed(self, batch: Batch, reason: str, after_s: float) -> float:
        """Note a failure; seconds until the next try."""
        self.spool.released(batch)
        sent = self.sent
        sent.failures += 1
        sent.failed += 1
        self._complain(reason, "what waits is kept, and tried again")
        wait_s = min(FIRST_AGAIN_S * 2.0 ** min(sent.failures - 1, 10), LAST_AGAIN_S)
        return max(min(after_s, MOST_AFTER_S), wait_s) * random.uniform(1.0, 1.5)

    def _complain(self, what: str, then: str) -> None:
        """Log what went wrong, the same once a minute."""
        now = time.monotonic()
        if len(self._said) > 64:
            self._said.clear()
        if now - self._said.get(what, -SAY_S) >= SAY_S:
            self._said[what] = now
            self._say(f"{self.protocol.name}: {what}; {then}")
