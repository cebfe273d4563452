"""What a run lived through: stalls that resumed, restarts, idle GPUs, errors outside of its time; and how it is said.

``Cluster.judge`` asks every citation again, so each case checks them, too.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.grids import END, START, Cluster, event, job, keys, points, worded
from trackside.finding import Certainty, Outcome
from trackside.model import Event, Role

FOUND, ABSENT, UNKNOWN = Outcome.FOUND, Outcome.ABSENT, Outcome.UNKNOWN
ESTABLISHED, SUPPORTED, POSSIBLE = Certainty.ESTABLISHED, Certainty.SUPPORTED, Certainty.POSSIBLE
FAILED, COMPLETED = job("FAILED", exit_code=1), job("COMPLETED", exit_code=0)
SICK = "n2:3"


# -- H5


def paused(length: float = 900.0, after: int = 20, count: int = 50, every: float = 30.0) -> list[Event]:
    """Points every ``every`` seconds, with one pause after some of them."""
    rows = points(count, every=every)
    late = [event("progress", 10 + i, time=(row.time or 0) + length, **row.fields) for i, row in enumerate(rows)]
    return [*rows[:after], *late[after:]]


FIRST = START + 60 + 30 * 19
"""The last point before the pause."""


def resting(level: float = 0.02, **shape: Any) -> Cluster:
    """GPUs that hardly do anything in the pause; one of them is cold, the others spin."""
    cluster = Cluster(**shape)
    inside = cluster.between(FIRST, FIRST + 900, level, 0.8)
    cluster.per_gpu("gpu_sm_active_ratio", inside, {SICK: cluster.between(FIRST, FIRST + 900, 0.0, 0.8)})
    cold = cluster.between(FIRST, FIRST + 900, 0.0, 0.95)
    return cluster.per_gpu("gpu_engine_active_ratio", 0.98, {SICK: cold})


def away(time: float = FIRST + 70, **fields: Any) -> Event:
    fields = {"reason": "unreachable", "node": "n2", "plane": "kernel", "path": "dmesg", **fields}
    return event("storage_fault", 3, time=time, text="nfs: server fs01 not responding, still trying", **fields)


def test_a_stall_that_resumed_is_a_warning_that_names_its_server() -> None:
    finding = resting().judge("H5", paused(), away(), COMPLETED, planes=("log", "scheduler", "kernel"))
    assert (finding.outcome, finding.certainty, finding.latent) == (FOUND, ESTABLISHED, True)
    assert (finding.culprit, finding.nodes, finding.gpus) == ("infrastructure", ("n2",), (SICK,))
    assert keys(finding) == ["stood", "storage", "rest", "odd_cold"]
    said = worded(finding)
    assert "15 min" in said or "16 min" in said
    assert "fs01" in said


@pytest.mark.parametrize(
    ("level", "certainty", "said"),
    [(0.02, SUPPORTED, "rest"), (0.3, SUPPORTED, "little"), (0.8, None, "worked")],
)
def test_what_the_gpus_did_in_a_pause(level: float, certainty: Certainty | None, said: str) -> None:
    """Spinning GPUs keep part of their SMs; those that work on show that the log alone was silent."""
    finding = resting(level).judge("H5", paused(), COMPLETED)
    assert (finding.certainty, said in keys(finding)) == (certainty, True)
    assert finding.outcome is (ABSENT if certainty is None else FOUND)
    assert finding.culprit == "unknown"


def test_without_gpu_metrics_a_pause_is_a_hint() -> None:
    blind = Cluster().per_node("host_load1", 3)
    assert blind.judge("H5", paused(), COMPLETED).certainty is POSSIBLE
    assert keys(blind.judge("H5", points(), COMPLETED)) == ["steady"]
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
def test_what_was_planned_or_began_anew_is_no_stall(planned: Event) -> None:
    assert resting().judge("H5", paused(), planned, COMPLETED).outcome is ABSENT


def test_a_save_that_a_silent_server_held_up_is_a_stall() -> None:
    saved = event("checkpoint_saved", 31, time=FIRST + 880)
    finding = resting().judge("H5", paused(), saved, away(), COMPLETED, planes=("log", "scheduler", "kernel"))
    assert finding.outcome is FOUND


def test_a_short_stall_counts_where_a_server_was_silent() -> None:
    blind = Cluster().per_node("host_load1", 3)
    short = paused(330.0)
    assert blind.judge("H5", short, COMPLETED).outcome is ABSENT
    assert blind.judge("H5", short, away(), COMPLETED, planes=("log", "scheduler", "kernel")).outcome is FOUND
    full = away(reason="full")  # lets nobody wait
    assert blind.judge("H5", short, full, COMPLETED, planes=("log", "scheduler", "kernel")).outcome is ABSENT
    before = away(time=START + 10)
    assert blind.judge("H5", short, before, COMPLETED, planes=("log", "scheduler", "kernel")).outcome is ABSENT


def test_a_pause_that_comes_again_is_a_habit() -> None:
    rows, moved = paused(), []
    for row in rows:
        late = 600.0 if (row.time or 0) > FIRST + 1200 else 0.0
        moved.append(event("progress", row.at.line, time=(row.time or 0) + late, **row.fields))
    assert Cluster().per_node("host_load1", 3).judge("H5", moved, COMPLETED).outcome is ABSENT


def test_points_that_were_thinned_are_no_pause() -> None:
    """A long series keeps every tenth point; its steps tell."""
    rows = points(60, every=60.0)
    assert Cluster().per_node("host_load1", 3).judge("H5", [*rows[:30], *rows[50:]], COMPLETED).outcome is ABSENT


def unstamped() -> list[Event]:
    return [event("progress", 10 + i, step=i + 1, loss=4 - i / 10) for i in range(20)]


def test_without_times_the_gpus_tell() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.between(2500, 3400, 0.0, 0.8))
    finding = cluster.judge("H5", unstamped(), COMPLETED)
    assert (finding.outcome, finding.certainty, keys(finding)[0]) == (FOUND, POSSIBLE, "rested")
    steady = Cluster().per_gpu("gpu_sm_active_ratio", 0.8).judge("H5", unstamped(), COMPLETED)
    assert keys(steady) == ["busy"]
    early = Cluster()  # one warm-up, then the data is prepared: no stall of a run under way
    early.per_gpu("gpu_sm_active_ratio", early.between(START + 90, 2500, 0.0, 0.8))
    assert early.judge("H5", unstamped(), COMPLETED).outcome is ABSENT
    power = Cluster()  # power tells work from waiting only beside a silence of the log
    power.per_gpu("gpu_power_watts", power.between(2500, 3400, 200.0, 400.0))
    assert power.judge("H5", unstamped(), COMPLETED).outcome is not FOUND


# -- A2 and H2: restarts


def crashed(**fields: Any) -> Event:
    fields = {"source": "torchrun", "task": "2", "signal": 11, "pid": 41, "time": 2000.0, **fields}
    return event("process_exit", 20, role=Role.ROOT, **fields)


def restarted() -> Event:
    return event("launcher_restart", 21, time=2000.5, attempt=1)


def later() -> list[Event]:
    return [event("progress", 30 + i, step=i + 1, loss=4 - i / 10, time=2100.0 + 60 * i) for i in range(10)]


def test_a_crash_that_a_restart_survived_is_a_warning() -> None:
    cluster = Cluster(nodes=1).per_gpu("gpu_sm_active_ratio", 0.8)
    finding = cluster.judge("A2", crashed(), restarted(), later(), COMPLETED)
    assert (finding.outcome, finding.latent, finding.ranks) == (FOUND, True, (2,))
    assert keys(finding) == ["died_on", "restarted", "lived_on"]
    assert cluster.judge("A2", crashed(), later(), COMPLETED).outcome is ABSENT  # nothing restarted it
    several = Cluster().per_gpu("gpu_sm_active_ratio", 0.8).judge("A2", crashed(), restarted(), later(), COMPLETED)
    assert several.ranks == ()  # of which node it is the third isn't told


def test_an_exception_that_a_restart_survived_is_a_warning() -> None:
    cluster = Cluster().per_gpu("gpu_sm_active_ratio", 0.8)
    error = event("exception", 20, role=Role.ROOT, type="ValueError", message="no", about="application", time=2000.0)
    finding = cluster.judge("H2", error, restarted(), later(), COMPLETED)
    assert (finding.outcome, finding.latent) == (FOUND, True)
    assert {"restarted", "lived_on"} <= set(keys(finding))
    assert keys(cluster.judge("H2", error, later(), COMPLETED)) == ["completed"]


def test_it_is_the_worker_that_died_and_not_its_rank() -> None:
    died = event("dataloader_death", 50, role=Role.ROOT, rank=9, signal=9, pid=77, time=4900.0)
    cluster = Cluster().per_gpu("gpu_sm_active_ratio", 0.8)
    finding = cluster.judge("A2", died, FAILED, run=cluster.run(n_ranks=16))
    assert "a data-loader worker of rank 9 died of SIGKILL" in worded(finding).lower().replace("sigkill", "SIGKILL")
    assert finding.nodes == ("n2",)


# -- G1 and B2


def healthy(**shape: Any) -> Cluster:
    cluster = Cluster(**shape)
    cluster.per_gpu("gpu_sm_active_ratio", cluster.noisy(0.8)).per_gpu("gpu_engine_active_ratio", 0.95)
    return cluster.per_gpu("gpu_memory_used_bytes", 1 << 36)


def test_gpus_that_did_nothing_are_named() -> None:
    cluster = Cluster(nodes=1, gpus=4)
    idle = {f"n1:{gpu}": 0.0 for gpu in (1, 2, 3)}
    cluster.per_gpu("gpu_sm_active_ratio", 0.8, idle).per_gpu("gpu_engine_active_ratio", 0.95, idle)
    cluster.per_gpu("gpu_ecc_uncorrectable_total", 0)
    finding = cluster.judge("G1", points(), COMPLETED)
    assert (finding.outcome, {"worked_some", "unused"} <= set(keys(finding))) == (FOUND, True)
    assert "3 of the 4 GPUs that the run held did nothing in all that time: n1:1-3" in worded(finding)
    assert [each.key for each in finding.actions] == ["fewer"]
    assert "wasted" in [each.key for each in finding.implies]
    whole = healthy(nodes=1, gpus=4).per_gpu("gpu_ecc_uncorrectable_total", 0).judge("G1", points(), COMPLETED)
    assert "unused" not in keys(whole)


def test_errors_before_and_after_the_run_are_none_of_its_time() -> None:
    cluster = healthy(start=START - 600, end=END + 600)
    rose = {"n1:3": cluster.after(START - 300, 1), SICK: cluster.after(END + 300, 1)}
    cluster.per_gpu("gpu_ecc_uncorrectable_total", 0, rose)
    run = cluster.run(start=START, end=END)
    finding = cluster.judge("G1", points(60), COMPLETED, run=run)
    assert (finding.certainty, "clean_ecc_meanwhile" in keys(finding)) == (ESTABLISHED, True)
    assert "no_counters" not in [each.key for each in finding.cannot_decide]
    warning = cluster.judge("B2", points(60), COMPLETED, run=run)
    assert (warning.latent, {"too_early", "too_late"} <= set(keys(warning))) == (True, True)
    assert "ended_well" not in keys(warning)
    assert "On n1:3 that was before the run began" in worded(warning)


def test_a_counter_that_rose_in_a_run_that_ended_well_is_said() -> None:
    cluster = healthy()
    cluster.per_gpu("gpu_rows_remapped_uncorrectable_total", 0, {SICK: cluster.after(3000, 1)})
    finding = cluster.judge("G1", points(60), COMPLETED)
    assert (finding.certainty, "rose_remaps" in keys(finding)) == (SUPPORTED, True)
    assert "no_counters" not in [each.key for each in finding.cannot_decide]
    assert [each.key for each in finding.implies] == ["unclean"]
    assert [each.key for each in finding.actions] == ["test_gpu"]
    assert "ended_well" in keys(cluster.judge("B2", points(60), COMPLETED))
    bare = healthy().judge("G1", points(60), COMPLETED)
    assert [each.key for each in bare.cannot_decide] == ["no_counters"]


def test_the_last_life_of_a_run_is_called_so() -> None:
    first = [event("progress", 10 + i, step=i + 1, loss=10.0 - i, time=START + 60.0 * i, run_part=0) for i in range(5)]
    second = [
        event("progress", 40 + i, step=i + 4, loss=6.0 - i / 5, time=START + 900 + 60.0 * i, run_part=1)
        for i in range(20)
    ]
    finding = healthy().judge("G1", first, second, COMPLETED)
    assert {"fell", "anew"} <= set(keys(finding))
    said = worded(finding)
    assert "over 20 points" in said
    assert "its first one began with 10" in said
    assert "anew" not in keys(healthy().judge("G1", points(), COMPLETED))


def test_nothing_is_made_of_no_memory() -> None:
    cluster = Cluster(end=START + 200)
    cluster.per_gpu("gpu_sm_active_ratio", 0.0).per_gpu("gpu_memory_used_bytes", 0)
    cluster.per_gpu("gpu_memory_total_bytes", 80 << 30)
    error = event("exception", 20, role=Role.ROOT, type="ValueError", message="no", about="application")
    found = cluster.judge("A1", error, job("FAILED", exit_code=1, end=START + 200, elapsed_s=200.0))
    assert "none_held" in keys(found)


@pytest.mark.parametrize(
    ("ranks", "implied"),
    [(range(16), "at_startup"), (range(8, 16), "at_startup_there"), ((3,), "at_startup_some")],
)
def test_whose_mistake_a_startup_crash_is(ranks: Any, implied: str) -> None:
    """One rank may only have been the first to say so; all of one node's and none elsewhere point to that node."""
    errors = [
        event("exception", 20 + rank, role=Role.ROOT, rank=rank, type="ImportError", message="x", about="application")
        for rank in ranks
    ]
    cluster = Cluster().per_gpu("gpu_memory_used_bytes", 0)
    finding = cluster.judge("A1", *errors, FAILED, run=cluster.run(n_ranks=16))
    assert implied in [each.key for each in finding.implies]


def test_where_the_node_of_a_kill_is_not_known_all_are_looked_at() -> None:
    cluster = Cluster().per_node("host_memory_total_bytes", 1000 << 30)
    cluster.per_node("host_memory_available_bytes", 900 << 30)
    cluster.per_node("host_oom_kills_total", 0)
    died = event("launcher_failure", 90, role=Role.ROOT, signal=9, first=True, time=4980.0)
    assert "host_ample_all" in keys(cluster.judge("A2", died, FAILED))
    placed = event("launcher_failure", 90, role=Role.ROOT, signal=9, first=True, time=4980.0, node="n2")
    said = worded(cluster.judge("A2", placed, FAILED))
    assert "host memory of node n2 was not short" in said.lower()
