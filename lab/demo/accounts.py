"""The accounting records of all jobs, queried once a second for all threads."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from lab.cluster import Cluster
from lab.stage import RunFailed

INTERVAL_S = 1.0
NOT_OVER = ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "COMPLETING", "RESIZING")


@dataclass(frozen=True)
class Account:
    """A job's last row: its state, and when it ended (POSIX seconds)."""

    state: str
    end: float | None

    @property
    def is_over(self) -> bool:
        return self.end is not None and self.state not in NOT_OVER


class Accounts:
    """A thread that queries sacct until it is stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rows: dict[str, Account] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="accounts", daemon=True)
        self._thread.start()

    def wait_over(self, job: str, state: str, within_s: float) -> Account:
        """The job's last row once it has ended in this state; in another state only after `within_s`, as it may be
        requeued."""
        end = time.monotonic() + within_s
        with self._changed:
            while (row := self._rows.get(job)) is None or not row.is_over or row.state != state:
                remaining_s = end - time.monotonic()
                if remaining_s <= 0 and row is not None and row.is_over:
                    return row
                if remaining_s <= 0 or self._stop.is_set():
                    raise RunFailed(f"job {job} is {row.state if row else 'not accounted for'} after {within_s:.0f} s")
                self._changed.wait(min(remaining_s, INTERVAL_S))
            return row

    def stop(self) -> None:
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            try:
                text = self._cluster.ask("sacct", "-a", "-D", "-X", "-n", "-P", "-o", "JobIDRaw,State,End,Start")
            except RunFailed:
                continue  # the next query may succeed; waiting callers have a time limit
            with self._changed:
                self._rows = last_rows(text)
                self._changed.notify_all()


def last_rows(text: str) -> dict[str, Account]:
    """The last attempt of each job, in sacct's order; times are POSIX seconds."""
    rows: dict[str, Account] = {}
    for line in text.splitlines():
        job, state, end, _ = line.split("|")
        rows[job] = Account(state.partition(" ")[0], float(end) if end.isdecimal() else None)
    return rows
