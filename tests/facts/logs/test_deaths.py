"""Deaths, restarts and kills for memory, on rows built by hand."""

from __future__ import annotations

from tests.families.rows import Row, event, exception, job, log_points, root, store, unhandled_exception
from trackside.evidence import Missing
from trackside.facts.fact import Facts, T
from trackside.facts.logs.death_account import DeathAccount
from trackside.facts.logs.deaths import CONNECTION_CLOSED, Deaths
from trackside.facts.logs.oom_kills import OomKills
from trackside.facts.logs.restarts import LauncherRestarts
from trackside.model import Event, EventRole, Run


def fact_of(kind: type[T], *rows: Row | list[Event], run: Run | None = None) -> T:
    """A fact of a run with these rows."""
    flat = [row for part in rows for row in (part if isinstance(part, list) else [part])]
    fact = Facts(store(*flat), run or Run(), lambda query, answer: answer).get(kind)
    assert not isinstance(fact, Missing)
    return fact


def killed(rank: int, time: float | None = 2000.0, signal: int = 9, line: int = 90, **fields: object) -> Event:
    """A launcher's report that a rank was killed."""
    return root("launcher_failure", line, global_rank=rank, rank=rank, signal=signal, time=time, **fields)


def test_ranks_killed_by_the_launcher_are_explained() -> None:
    reports = [killed(1, first=True), killed(2, 2014.0, line=91), killed(3, 2015.0, line=92)]
    assert [death.rank for death in fact_of(Deaths, *reports).unexplained] == [1, 2]
    assert [death.rank for death in fact_of(Deaths, *reports).reports] == [1, 2, 3]


def test_a_traceback_explains_the_death_of_its_own_rank_only() -> None:
    deaths = fact_of(
        Deaths, unhandled_exception("ValueError", rank=1, time=1990.0), killed(1, first=True), killed(2, first=True)
    )
    assert [death.rank for death in deaths.unexplained] == [2]


def test_buffered_points_after_a_traceback_keep_it_the_cause() -> None:
    late = log_points(line=60, time=None)
    assert fact_of(Deaths, exception("ValueError", "no", line=50), late, killed(1, None), job("FAILED")).report is None


def test_agreeing_reports_are_merged() -> None:
    shell = root("process_exit", 95, signal=9, time=2000.0)
    report = fact_of(Deaths, killed(1, first=True), shell).report
    assert report is not None
    assert (report.main.source, report.ranks, report.strong, len(report.claims)) == ("launchers", (1,), True, 2)
    alone = fact_of(Deaths, shell).report
    assert alone is not None
    assert not alone.strong


def test_a_lost_worker_is_not_the_cause_of_a_timeout() -> None:
    ray = root("process_exit", 50, source="ray")
    assert fact_of(DeathAccount, ray).row == ray
    assert isinstance(Facts(store(ray, event("collective_timeout", 40)), Run()).get(DeathAccount), Missing)


def test_a_restart_counts_if_training_goes_on_after_it() -> None:
    failure, again = killed(1), event("launcher_restart", 100, time=2001.0)
    later = log_points(line=110, time=2100.0)
    assert len(fact_of(LauncherRestarts, again, later).restart_claims(failure)) == 2
    assert not fact_of(LauncherRestarts, again).restart_claims(failure)
    assert not fact_of(LauncherRestarts, later).restart_claims(failure)


def test_unstamped_points_are_no_recovery_of_a_failed_run() -> None:
    unstamped, failure = log_points(line=100, time=None), killed(1, None)
    assert fact_of(LauncherRestarts, unstamped).has_recovered(failure)
    assert not fact_of(LauncherRestarts, unstamped, job("FAILED")).has_recovered(failure)


def test_kills_of_other_jobs_are_left_out() -> None:
    kills = [
        root("oom_kill", line, cgroup=f"/slurm/job_{name}/step_0", scope="cgroup") for line, name in ((5, 7), (6, 8))
    ]
    kills_of_job = fact_of(OomKills, *kills, run=Run(id="8"))
    assert [row.at.line for row in kills_of_job.own_kills] == [6]
    assert kills_of_job.report is not None
    assert kills_of_job.report.row.at.line == 6
    assert kills_of_job.scope(()) == "job"
    assert fact_of(OomKills, kills[0], run=Run(id="8")).report is None


def step_with_late_report(*, killed_ranks: tuple[int, ...] = (1,), error: str = "Connection closed by peer") -> Deaths:
    """srun reports killed ranks after it ended the step; rank 0 had lost its connection before."""
    lost = event("peer_lost", 80, rank=0, text=f"0: RuntimeError: [pair.cc:553] {error} [127.0.0.1]:18847")
    end = event("scheduler_notice", 85, role=EventRole.TEARDOWN, reason="step_ended")
    late = [
        event("process_exit", 86 + rank, role=EventRole.TEARDOWN, rank=rank, signal=9, text=f"task {rank}: Killed")
        for rank in killed_ranks
    ]
    return fact_of(Deaths, lost, end, late)


def test_a_death_reported_after_the_step_ended_counts_if_its_connection_had_closed() -> None:
    report = step_with_late_report().report
    assert report is not None
    assert (report.ranks, report.main.number, report.strong) == ((1,), 9, False)
    assert report.claims[-1].sentence is CONNECTION_CLOSED


def test_a_step_that_srun_ended_kills_its_ranks() -> None:
    assert step_with_late_report(killed_ranks=(1, 2)).report is None  # which of them had died is unknown
    assert step_with_late_report(killed_ranks=(0,)).report is None  # it reported the loss, so it lived
    assert step_with_late_report(error="Connection timed out").report is None  # it may still hang
