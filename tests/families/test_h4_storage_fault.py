"""H4 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

import pytest

from tests.families.grids import (
    STOP,
    hung,
    judged,
    traced,
    until_stop,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    DONE,
    FAILED,
    FALLING,
    FOUND,
    curve,
    event,
    exception,
    judge_store,
    keys,
    points,
    primary,
    sentence_name,
    short_job,
    store,
)
from trackside.finding import Certainty
from trackside.model import EventRole, Plane


@pytest.mark.parametrize(
    ("message", "variant", "culprit"),
    [
        ("[Errno 28] No space left on device: 'out/ckpt.pt'", "full", "unknown"),
        ("[Errno 122] Disk quota exceeded", "quota", "job"),
        ("[Errno 30] Read-only file system: 'out'", "read-only", "infrastructure"),
        ("[Errno 116] Stale file handle", "stale", "infrastructure"),
        ("[Errno 5] Input/output error", "io-error", "infrastructure"),
    ],
)
def test_h4_reason_names_the_culprit(message: str, variant: str, culprit: str) -> None:
    finding = primary(store(curve(FALLING), exception("OSError", message, about="storage"), short_job("FAILED")))
    assert (finding.family, finding.variant, finding.culprit) == ("H4", variant, culprit)


def test_h4_ignores_shared_memory_and_survived_errors() -> None:
    shm = exception("RuntimeError", "unable to allocate shared memory(shm): No space left on device", about="storage")
    assert judge_store("H4", store(shm, short_job("FAILED"))).outcome is ABSENT
    line = event("storage_fault", 12, EventRole.ROOT, reason="io_error", text="Input/output error")
    assert judge_store("H4", store(line, curve(FALLING), DONE, short_job("COMPLETED"))).outcome is ABSENT


def test_a_storage_stall_that_ended_is_no_fault() -> None:
    late = event("storage_fault", 40, time=STOP, role=EventRole.ROOT, reason="unreachable", plane="kernel",
                 text="nfs: server not responding")  # fmt: skip
    rows = (points(65), late)
    planes: tuple[Plane, ...] = ("log", "scheduler", "kernel")
    stalled = traced(hung(sm=0.0, until=STOP + 300), 5000)
    assert judged(stalled, "H4", *rows, COMPLETED, planes=planes).outcome is ABSENT
    assert judged(stalled, "H4", until_stop(), late, FAILED, planes=planes).outcome is FOUND


def test_h4_names_the_file_server() -> None:
    silent = event("storage_fault", 40, EventRole.ROOT, reason="unreachable", plane="kernel",
                   text="nfs: server fs03 not responding, still trying")  # fmt: skip
    finding = judge_store(
        "H4", store(curve(FALLING), silent, short_job("FAILED"), planes=("log", "scheduler", "kernel"))
    )
    assert finding.headline is not None
    assert finding.headline.values["server"].value == "fs03"


def test_a_lack_of_space_that_no_line_names_is_not_established() -> None:
    error = exception("RuntimeError", "unexpected pos 4746991936 vs 4746991836", about="storage",
                      chain="RuntimeError", root_type="RuntimeError", root_message="file write failed")  # fmt: skip
    finding = judge_store("H4", store(curve(FALLING), error, short_job("FAILED")))
    assert (finding.variant, finding.certainty) == ("write-failed", Certainty.SUPPORTED)
    assert [sentence_name(claim) for claim in finding.implies] == ["maybe_no_space"]
    assert [sentence_name(claim) for claim in finding.shows] == ["operation_failed", "failed_after_it"]


def test_h4_quotes_a_line_once() -> None:
    root_text = "PytorchStreamWriter failed writing file data/2: file write failed"
    cause = exception(
        "RuntimeError",
        "unexpected pos 199 vs 198",
        40,
        about="storage",
        root_type="RuntimeError",
        root_message=root_text,
    )
    line = event("storage_fault", 30, EventRole.ROOT, reason="full", text=f"RuntimeError: {root_text}")
    finding = judge_store("H4", store(curve(FALLING), line, cause, short_job("FAILED")))
    assert finding.outcome is FOUND
    assert "reported_as" not in keys(finding)
