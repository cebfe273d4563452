"""What accounting says of all jobs, asked once a second for all who want to know."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from lab.cluster import Cluster
from lab.stage import RunFailed

EVERY_S = 1.0
GOING = ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "COMPLETING", "RESIZING")


@dataclass(frozen=True)
class Account:
    """A job's last row: its state, and when it ended (POSIX seconds)."""

    state: str
    end: float | None

    @property
    def over(self) -> bool:
        return self.end is not None and self.state not in GOING


class Accounts:
    """A thread that asks sacct until it is stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rows: dict[str, Account] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="accounts", daemon=True)
        self._thread.start()

    def of(self, job: str) -> Account | None:
        with self._changed:
            return self._rows.get(job)

    def wait_over(self, job: str, state: str, within_s: float) -> Account:
        """Its last row once it is over in this state; in another state only when the time is up, as it may be requeued."""
        end = time.monotonic() + within_s
        with self._changed:
            while (row := self._rows.get(job)) is None or not row.over or row.state != state:
                left = end - time.monotonic()
                if left <= 0 and row is not None and row.over:
                    return row
                if left <= 0 or self._stop.is_set():
                    raise RunFailed(f"job {job} is {row.state if row else 'not accounted for'} after {within_s:.0f} s")
                self._changed.wait(min(left, EVERY_S))
            return row

    def stop(self) -> None:
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                text = self._cluster.ask("sacct", "-a", "-D", "-X", "-n", "-P", "-o", "JobIDRaw,State,End,Start")
            except RunFailed:
                continue  # it is asked again in a second, and what waits for it has a limit
            with self._changed:
                self._rows = last_rows(text)
                self._changed.notify_all()


def last_rows(text: str) -> dict[str, Account]:
    """The last attempt of each job, in sacct's order; times are asked for as POSIX seconds."""
    rows: dict[str, Account] = {}
    for line in text.splitlines():
        job, state, end, _ = line.split("|")
        rows[job] = Account(state.partition(" ")[0], float(end) if end.isdecimal() else None)
    return rows
