"""SageMaker: ``aws sagemaker describe-training-job``."""

from __future__ import annotations

from typing import Any

import msgspec

from trackside.catalog.slurm.values import dig, number
from trackside.catalog.slurm.values import time as posix
from trackside.logs.sagemaker import job_state
from trackside.model import Position
from trackside.read.batch_jobs import job_record
from trackside.read.format import Format, InputSource, Match, Result, Sink


def _sniff(source: InputSource) -> Match | None:
    text = source.text
    if text.lstrip().startswith("{") and '"TrainingJobName"' in text and '"TrainingJobStatus"' in text:
        return Match(0.96, "describe-training-job")
    return None


def _read(source: InputSource, sink: Sink) -> Result:
    job: Any = msgspec.json.decode(source.whole())
    if not isinstance(job, dict) or not job.get("TrainingJobName"):
        return Result(0, "empty", "no training job")
    name, status, secondary = (
        str(job.get(key) or "") for key in ("TrainingJobName", "TrainingJobStatus", "SecondaryStatus")
    )
    failure = job.get("FailureReason")
    state = job_state(secondary, status, str(failure) if failure else None) or "RUNNING"
    record = job_record(
        Position(source.path, 1),
        f"{name} {status} {secondary} {failure or ''}",
        "sagemaker",
        name,
        name=name,
        state=state,
        exit_code=number(job.get("ExitCode")),
        reason=str(failure) if failure else secondary or None,
        submit=_time(job.get("CreationTime")),
        start=_time(job.get("TrainingStartTime")),
        zoned=True,
        end=_time(job.get("TrainingEndTime")),
        elapsed_s=_seconds(job.get("TrainingTimeInSeconds")),
        time_limit_s=_seconds(dig(job, "StoppingCondition", "MaxRuntimeInSeconds")),
        n_nodes=number(dig(job, "ResourceConfig", "InstanceCount")),
    )
    sink.record(record)
    return Result(1)


def _time(value: Any) -> float | None:
    """An ISO time or POSIX seconds, with fractions."""
    return float(value) if isinstance(value, (int, float)) else posix(value)


def _seconds(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


FORMAT = Format("sagemaker-job", "SageMaker training job (describe-training-job)", "scheduler", _sniff, _read)
