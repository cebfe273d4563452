"""Diagnoses a run repeatedly until its verdict is final."""

from __future__ import annotations

import time
from collections.abc import Callable

from trackside.http.unavailable import SourceUnavailable
from trackside.show import heading
from trackside.show.document import VerdictDoc
from trackside.watch.follow import INTERVAL_S, MAX_PAUSE_S, MIN_INTERVAL_S, PATH_ERRORS


def wait_until_settled(
    diagnose: Callable[[], VerdictDoc],
    notify: Callable[[str], object],
    *,
    interval_s: float = INTERVAL_S,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], object] = time.sleep,
) -> VerdictDoc | None:
    """Diagnose until the verdict is final. Ctrl-C ends the waiting: the last verdict then, or None if there is none.

    ``notify``: takes a line about the waiting. A server that stops answering meanwhile is asked again after ever longer
    pauses.
    """
    last: VerdictDoc | None = None
    failures, has_notified = 0, False
    try:
        while True:
            try:
                last = diagnose()
            except PATH_ERRORS:
                raise
            except (SourceUnavailable, OSError) as error:
                if last is None:
                    raise
                failures += 1
                pause = min(interval_s * 2**failures, MAX_PAUSE_S)
                notify(f"unable to check: {error}; next check in {pause:.0f} s")
                sleep(pause)
                continue
            if last.unsettled is None:
                return last
            if not has_notified:
                notify(f"{heading.unsettled(last)} Waiting; Ctrl-C shows the verdict so far.")
                has_notified = True
            failures = 0
            until = last.unsettled.until
            sleep(interval_s if until is None else min(max(until - clock(), MIN_INTERVAL_S), interval_s))
    except KeyboardInterrupt:
        return last
