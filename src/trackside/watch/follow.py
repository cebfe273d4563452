"""Diagnoses a job repeatedly until it has ended and its records are complete."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from trackside.catalog.job_states import Stage
from trackside.http.unavailable import SourceUnavailable
from trackside.session.settling import PATIENCE_S, SETTLE_S
from trackside.show.document import VerdictDoc

INTERVAL_S = 30.0
MIN_INTERVAL_S = 1.0
"""Between two checks, whatever interval is given."""
MAX_PAUSE_S = 600.0
"""Between two checks after failures, each of which doubles the pause; or the interval, if that is longer."""
PATH_ERRORS = (FileNotFoundError, NotADirectoryError, PermissionError)
"""Errors of a given path, which a retry cannot fix."""


@dataclass(frozen=True, slots=True)
class FollowResult:
    """The last verdict (None if there was none), and why the watching ended."""

    verdict: VerdictDoc | None
    ending: str
    """``settled``; ``ended``: the job ended, but a source never became complete; ``stopped`` by Ctrl-C."""


def follow(
    diagnose: Callable[[], VerdictDoc],
    stage: Callable[[], Stage],
    show: Callable[[VerdictDoc], object],
    notify: Callable[[str], object],
    *,
    interval_s: float = INTERVAL_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> FollowResult:
    """Diagnose until the job is over; show each verdict whose family, certainty, culprit or variant changed.

    ``stage``: the job's stage as of the last check. ``notify``: takes a line about the watching itself. If a server or
    the system does not answer, a line says so, and the check is repeated after ever longer pauses; any other error of
    ``diagnose``, such as a wrong path, ends the watching, as it would end a single diagnosis.
    """
    last: VerdictDoc | None = None
    current_stage = ""
    failures = 0
    ended_at: float | None = None
    try:
        while True:
            check_start = clock()
            try:
                verdict = diagnose()
            except PATH_ERRORS:
                raise
            except (SourceUnavailable, OSError) as error:
                remaining_s = math.inf if ended_at is None else ended_at + PATIENCE_S - clock()
                if remaining_s <= 0:
                    notify(f"unable to check: {error}; the job has ended, so its last verdict is final")
                    return FollowResult(last, current_stage)
                failures += 1
                pause = min(_pause(interval_s, failures), max(remaining_s, MIN_INTERVAL_S))
                notify(f"unable to check: {error}; next check in {pause:.0f} s")
                sleep(pause)
                continue
            if failures:
                notify(f"answering again after {failures} {'failure' if failures == 1 else 'failures'}")
                failures = 0
            if last is None or key(verdict) != key(last):
                show(verdict)
            last = verdict
            previous_stage, current_stage = current_stage, stage()
            if current_stage == "unknown" != previous_stage:
                notify("the job's state is unknown; checking until Ctrl-C")
            ended_at = (clock() if ended_at is None else ended_at) if current_stage in ("ended", "settled") else None
            pause = interval_s
            if ended_at is not None:
                since_end_s = check_start - ended_at  # what came while it was asked for may not have been seen
                if since_end_s >= PATIENCE_S or (current_stage == "settled" and since_end_s >= SETTLE_S):
                    return FollowResult(last, current_stage)
                pause = min(interval_s, SETTLE_S - since_end_s if since_end_s < SETTLE_S else SETTLE_S)
            sleep(max(MIN_INTERVAL_S, pause - (clock() - check_start)))
    except KeyboardInterrupt:
        return FollowResult(last, "stopped")


def _pause(interval_s: float, failures: int) -> float:
    """Seconds after so many failures in a row."""
    return float(min(max(interval_s, MIN_INTERVAL_S) * 2 ** min(failures, 10), max(MAX_PAUSE_S, interval_s)))


def key(verdict: VerdictDoc) -> tuple[str, str | None, str, str | None]:
    """What makes a verdict another one: its family, certainty, culprit and variant."""
    first = verdict.primary
    return first.family, first.certainty, first.culprit, first.variant
