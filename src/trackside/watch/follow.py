"""A job asked about again and again until it has ended and its records have settled."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from trackside.catalog.job_states import Stage
from trackside.http.unavailable import SourceUnavailable
from trackside.show.document import VerdictDoc
from trackside.stores.metric_store import HIDDEN_S

INTERVAL_S = 30.0
LEAST_S = 1.0
"""Between two askings, whatever interval is given."""
MOST_PAUSE_S = 600.0
"""Between two askings after failures, each of which doubles the pause; or the interval, where that is longer."""
SETTLE_S = HIDDEN_S + 60.0
"""After the end was first seen, until what is asked for then is the last word: the newest samples are left alone, those
of the run's last moments come up to a scrape later, and logs arrive late."""
PATIENCE_S = 180.0
"""So long at most is waited for accounting to tell of the end, or for what fails to answer again after it."""
MISTAKES = (FileNotFoundError, NotADirectoryError, PermissionError)
"""What a given path may be, now and ever after."""


@dataclass(frozen=True, slots=True)
class Followed:
    """How it went: the last verdict, None where none was ever made, and why it was no longer asked for."""

    verdict: VerdictDoc | None
    ending: str
    """``settled``; ``ended`` where accounting, or what failed last, never told of all; ``stopped`` by Ctrl-C."""


def follow(
    ask: Callable[[], VerdictDoc],
    stage: Callable[[], Stage],
    show: Callable[[VerdictDoc], object],
    say: Callable[[str], object],
    *,
    interval_s: float = INTERVAL_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Followed:
    """Ask until the job is over, and show each verdict that differs from the one before in what it says first.

    ``stage``: of the job, as the last asking found it. ``say``: takes a line about the watching itself. That a
    server or the system does not answer is said, and tried again later, ever more seldom; all else that ``ask`` raises
    ends the watching, as it would a single diagnosis, and so does a path that was mistyped.
    """
    last: VerdictDoc | None = None
    now = ""
    failures = 0
    ended_at: float | None = None
    try:
        while True:
            begun = clock()
            try:
                verdict = ask()
            except MISTAKES:
                raise
            except (SourceUnavailable, OSError) as error:
                left = math.inf if ended_at is None else ended_at + PATIENCE_S - clock()
                if left <= 0:
                    say(f"unable to check: {error}; the job has ended, and its last verdict stands")
                    return Followed(last, now)
                failures += 1
                pause = min(_pause(interval_s, failures), max(left, LEAST_S))
                say(f"unable to check: {error}; asking again in {pause:.0f} s")
                sleep(pause)
                continue
            if failures:
                say(f"answered again, after {failures} {'failure' if failures == 1 else 'failures'}")
                failures = 0
            if last is None or key(verdict) != key(last):
                show(verdict)
            last = verdict
            before, now = now, stage()
            if now == "unknown" != before:
                say("whether the job goes on can't be told; asking on until Ctrl-C")
            ended_at = (clock() if ended_at is None else ended_at) if now in ("ended", "settled") else None
            pause = interval_s
            if ended_at is not None:
                since = begun - ended_at  # what came while it was asked for may not have been seen
                if since >= PATIENCE_S or (now == "settled" and since >= SETTLE_S):
                    return Followed(last, now)
                pause = min(interval_s, SETTLE_S - since if since < SETTLE_S else SETTLE_S)
            sleep(max(LEAST_S, pause - (clock() - begun)))
    except KeyboardInterrupt:
        return Followed(last, "stopped")


def _pause(interval_s: float, failures: int) -> float:
    """Seconds after so many failures in a row."""
    return float(min(max(interval_s, LEAST_S) * 2 ** min(failures, 10), max(MOST_PAUSE_S, interval_s)))


def key(verdict: VerdictDoc) -> tuple[str, str | None, str, str | None]:
    """What makes a verdict another one: its family, certainty, culprit and variant."""
    first = verdict.primary
    return first.family, first.certainty, first.culprit, first.variant
