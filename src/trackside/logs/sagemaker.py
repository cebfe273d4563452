"""Amazon SageMaker: the status of a training job, as its SDK and its training toolkit print it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trackside.logs.job_report import state_of
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

REASONS: Mapping[str, str] = {
    "MaxRuntimeExceeded": "time_limit",
    "MaxWaitTimeExceeded": "time_limit",
    "Interrupted": "preemption",
    "Stopped": "cancelled",
}
"""Secondary status of a training job -> reason of a notice."""
STATES: Mapping[str, str] = {"Completed": "COMPLETED", "Failed": "FAILED"}

PARSER = Parser("sagemaker", "SageMaker", "system")


def job_state(secondary: str | None, primary: str | None = None, failure: str | None = None) -> str | None:
    """The state of a training job by its statuses and failure reason; None if it is not over."""
    for status in (secondary, primary):
        if status is not None and status in REASONS:
            return state_of(REASONS[status], None)
        if status is not None and status in STATES:
            capacity = failure is not None and re.search(r"^InternalServerError|CapacityError", failure)
            return "NODE_FAIL" if status == "Failed" and capacity else STATES[status]
    return None


@PARSER.pattern(
    rb"20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9:]{8} (Completed|Failed|Stopped|MaxRuntimeExceeded|MaxWaitTimeExceeded|Interrupted) - ",
    r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d (?P<status>[A-Z]\w{5,20}) - \S",
    safety="A status line of the SDK: time, secondary status, message.",
    matches=(
        "2026-05-04 10:00:05 Completed - Training job completed",
        "2026-05-04 10:00:05 MaxRuntimeExceeded - Training job runtime exceeded MaxRuntimeInSeconds provided",
        "2026-05-04 10:00:05 Stopped - Training job stopped",
    ),
    avoids=("2026-05-04 10:00:05 Stopping - Stopping the training job", "INFO 2026-05-04 10:00:05 Failed - retrying"),
)
def _status_report(line: Line, match: re.Match[str]) -> Event | None:
    state = job_state(match["status"])
    if state is None:
        return None
    return line.event(
        "job_report",
        EventRole.ROOT,
        source="sagemaker",
        state=state,
        reason=match["status"],
        end=line.time,
        above=True,
        lines=1,
    )


@PARSER.pattern(
    rb"Reporting training (SUCCESS|FAILURE)",
    r"\bINFO\s+Reporting training (?P<end>SUCCESS|FAILURE)\s*$",
    safety="The training toolkit in the container, after the script has ended.",
    matches=("2026-05-04 10:00:00,113 sagemaker-training-toolkit INFO     Reporting training SUCCESS",),
    avoids=("Reporting training SUCCESS rates", "INFO     Reporting training FAILURE"),
)
def _toolkit_end(line: Line, match: re.Match[str]) -> Event | None:
    return line.event("training_end", status="success") if match["end"] == "SUCCESS" else None
