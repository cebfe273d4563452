"""H5 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.families.grids import (
    SICK,
    Cluster,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    ESTABLISHED,
    FAILED,
    FOUND,
    POSSIBLE,
    START,
    SUPPORTED,
    UNKNOWN,
    event,
    keys,
    points,
    text_of,
)
from trackside.finding import Certainty
from trackside.model import Event


def paused(length: float = 900.0, after: int = 20, count: int = 50, every: float = 30.0) -> list[Event]:
    """Points every ``every`` seconds, with one pause after some of them."""
    rows = points(count, every=every)
    late = [event("progress", 10 + i, time=(row.time or 0) + length, **row.fields) for i, row in enumerate(rows)]
    return [*rows[:after], *late[after:]]


FIRST = START + 60 + 30 * 19
"""The last point before the pause."""


def resting(level: float = 0.02, **shape: Any) -> Cluster:
    """Nearly idle GPUs during the pause; one is idle, the others spin."""
    cluster = Cluster(**shape)
    inside = cluster.between(FIRST, FIRST + 900, level, 0.8)
    cluster.per_gpu("gpu_sm_active_ratio", inside, {SICK: cluster.between(FIRST, FIRST + 900, 0.0, 0.8)})
    cold = cluster.between(FIRST, FIRST + 900, 0.0, 0.95)
    return cluster.per_gpu("gpu_engine_active_ratio", 0.98, {SICK: cold})


def storage_fault(time: float = FIRST + 70, **fields: Any) -> Event:
    fields = {"reason": "unreachable", "node": "n2", "plane": "kernel", "path": "dmesg", **fields}
    return event("storage_fault", 3, time=time, text="nfs: server fs01 not responding, still trying", **fields)


def test_a_stall_that_resumed_is_a_warning_that_names_its_server() -> None:
    finding = resting().judge("H5", paused(), storage_fault(), COMPLETED, planes=("log", "scheduler", "kernel"))
    assert (finding.outcome, finding.certainty, finding.latent) == (FOUND, ESTABLISHED, True)
    assert (finding.culprit, finding.nodes, finding.gpus) == ("infrastructure", ("n2",), (SICK,))
    assert keys(finding) == ["stalled_from_to", "server_silent", "no_work", "outlier_idle"]
    text = text_of(finding)
    assert "15 min" in text or "16 min" in text
    assert "fs01" in text


@pytest.mark.parametrize(
    ("level", "certainty", "key"),
    [(0.02, SUPPORTED, "no_work"), (0.3, SUPPORTED, "less_work"), (0.8, None, "gpus_kept_computing")],
)
def test_gpu_activity_decides_the_certainty_of_a_stall(level: float, certainty: Certainty | None, key: str) -> None:
    """Spinning GPUs use part of their SMs; GPUs that keep working show that only the log was silent."""
    finding = resting(level).judge("H5", paused(), COMPLETED)
    assert (finding.certainty, key in keys(finding)) == (certainty, True)
    assert finding.outcome is (ABSENT if certainty is None else FOUND)
    assert finding.culprit == "unknown"


def test_without_gpu_metrics_a_pause_is_a_hint() -> None:
    blind = Cluster().per_node("host_load1", 3)
    assert blind.judge("H5", paused(), COMPLETED).certainty is POSSIBLE
    assert keys(blind.judge("H5", points(), COMPLETED)) == ["no_long_gap"]
    assert blind.judge("H5", COMPLETED).outcome is UNKNOWN


@pytest.mark.parametrize(
    "planned",
    [
        event("evaluation", 31, time=FIRST + 880),
        event("checkpoint_saved", 31, time=FIRST + 880),
        event("launcher_restart", 31, time=FIRST + 400),
        event("checkpoint_loaded", 31, time=FIRST + 800),
    ],
    ids=lambda row: row.kind,
)
def test_planned_pauses_and_restarts_are_no_stall(planned: Event) -> None:
    assert resting().judge("H5", paused(), planned, COMPLETED).outcome is ABSENT


def test_a_save_blocked_by_a_silent_server_is_a_stall() -> None:
    saved = event("checkpoint_saved", 31, time=FIRST + 880)
    finding = resting().judge("H5", paused(), saved, storage_fault(), COMPLETED, planes=("log", "scheduler", "kernel"))
    assert finding.outcome is FOUND


def test_a_short_stall_counts_if_a_server_was_silent() -> None:
    blind = Cluster().per_node("host_load1", 3)
    short = paused(330.0)
    assert blind.judge("H5", short, COMPLETED).outcome is ABSENT
    assert blind.judge("H5", short, storage_fault(), COMPLETED, planes=("log", "scheduler", "kernel")).outcome is FOUND
    full = storage_fault(reason="full")  # a full disk does not block
    assert blind.judge("H5", short, full, COMPLETED, planes=("log", "scheduler", "kernel")).outcome is ABSENT
    before = storage_fault(time=START + 10)
    assert blind.judge("H5", short, before, COMPLETED, planes=("log", "scheduler", "kernel")).outcome is ABSENT


def test_a_repeated_pause_is_no_stall() -> None:
    rows, moved = paused(), []
    for row in rows:
        late = 600.0 if (row.time or 0) > FIRST + 1200 else 0.0
        moved.append(event("progress", row.at.line, time=(row.time or 0) + late, **row.fields))
    assert Cluster().per_node("host_load1", 3).judge("H5", moved, COMPLETED).outcome is ABSENT


def test_thinned_points_are_no_pause() -> None:
    """A long series keeps every tenth point, as its step numbers show."""
    rows = points(60, every=60.0)
    assert Cluster().per_node("host_load1", 3).judge("H5", [*rows[:30], *rows[50:]], COMPLETED).outcome is ABSENT


def unstamped() -> list[Event]:
    return [event("progress", 10 + i, step=i + 1, loss=4 - i / 10) for i in range(20)]


def test_gpu_metrics_show_a_stall_of_unstamped_steps() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.between(2500, 3400, 0.0, 0.8))
    finding = cluster.judge("H5", unstamped(), COMPLETED)
    assert (finding.outcome, finding.certainty, keys(finding)[0]) == (FOUND, POSSIBLE, "gpus_idle_from_to")
    steady = Cluster().per_gpu("gpu_sm_active_ratio", 0.8).judge("H5", unstamped(), COMPLETED)
    assert keys(steady) == ["no_pause"]
    stuck = Cluster()
    stuck.per_gpu("gpu_sm_active_ratio", stuck.between(0, 2500, 0.8, 0.0))
    assert keys(stuck.judge("H5", unstamped(), FAILED)) == ["not_resumed", "no_pause"]
    idle = Cluster().per_gpu("gpu_sm_active_ratio", 0.0).judge("H5", unstamped(), FAILED)
    assert "never worked" in str(idle.missing)
    early = Cluster()  # one warm-up, then data preparation: no stall of a started run
    early.per_gpu("gpu_sm_active_ratio", early.between(START + 90, 2500, 0.0, 0.8))
    assert early.judge("H5", unstamped(), COMPLETED).outcome is ABSENT
    power = Cluster()  # power distinguishes work from waiting only if the log is silent too
    power.per_gpu("gpu_power_watts", power.between(2500, 3400, 200.0, 400.0))
    assert power.judge("H5", unstamped(), COMPLETED).outcome is not FOUND
