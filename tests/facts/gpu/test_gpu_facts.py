"""Facts of GPUs on curves built by hand: work, stalls, idleness from the start, and pauses."""

from __future__ import annotations

from typing import Any, TypeVar

from tests.families.grids import AWAY, DISTRIBUTED_INIT, STOP, Cluster, cold, hung, traced
from tests.families.rows import END, START, TIMEOUT, Row, event, points
from trackside.evidence import Missing
from trackside.facts.fact import Facts, all_missing
from trackside.facts.gpu.activity import GpuActivity, missing_activity
from trackside.facts.gpu.duty import DutyCycle
from trackside.facts.gpu.gpu_work import GpuWork
from trackside.facts.gpu.idle import IdleGpus
from trackside.facts.gpu.last_part import LastPart
from trackside.facts.gpu.pauses import GpuPauses
from trackside.facts.gpu.power_limits import PowerLimits
from trackside.facts.gpu.stall import GpuStall

T = TypeVar("T")


def facts(cluster: Cluster, *rows: Row | list[Any]) -> Facts:
    """The facts of a run on this cluster."""
    flat = [row for part in rows for row in (part if isinstance(part, list) else [part])]
    run, store = cluster.store(*flat, run=cluster.run(n_ranks=len(cluster.gpus)))
    return Facts(store, run, lambda query, answer: answer)


def fact(cluster: Cluster, kind: type[T], *rows: Row | list[Any]) -> T:
    """One fact of it; fails if it is missing."""
    result = facts(cluster, *rows).get(kind)
    assert not isinstance(result, Missing), result.reason
    return result


class TestActivity:
    def test_power_alone_does_not_show_activity(self) -> None:
        """The GPUs' activity is partly known; the missing signals are named."""
        activity = fact(Cluster().per_gpu("gpu_power_watts", 500.0), GpuActivity)
        lacking = missing_activity(activity)
        assert isinstance(lacking, Missing)
        assert "none of gpu_sm_active_ratio, gpu_engine_active_ratio" in lacking.reason
        assert missing_activity(fact(hung(), GpuActivity)) is None

    def test_merged_reasons_are_not_repeated(self) -> None:
        one, both = Missing("no log"), Missing("no log or no metric", reasons=("no log", "no metric"))
        joined = all_missing(one, both)
        assert joined is not None
        assert joined.reason == "no log; no metric"
        assert all_missing(one, "an answer") is None


class TestStall:
    def test_a_stall_names_the_gpu_that_went_idle(self) -> None:
        end_stall = fact(hung(), GpuStall).at_end
        assert end_stall is not None
        assert (end_stall.outliers, end_stall.sign, end_stall.sure, end_stall.busy_waiting) == (
            (AWAY,),
            "cold",
            True,
            True,
        )
        assert abs(end_stall.since - STOP) <= 60
        assert end_stall.seconds.number > END - STOP - 120

    def test_work_to_the_end_is_no_stall(self) -> None:
        stall = fact(hung(since=9e9), GpuStall)
        assert stall.at_end is None
        assert stall.worked_on is not None
        assert stall.observed_to_end

    def test_a_few_windows_suffice_with_other_evidence(self) -> None:
        stall = fact(hung(since=END - 100), GpuStall)
        assert stall.at_end is None
        end_stall = stall.at_end_corroborated
        assert end_stall is not None
        assert not end_stall.sure

    def test_a_pause_that_ends_is_no_stall(self) -> None:
        stall = fact(hung(until=STOP + 900), GpuStall)
        assert stall.at_end is None
        assert 800 <= stall.activity.longest_pause_s <= 1000


class TestIdle:
    def test_gpus_without_work_from_the_start_are_idle(self) -> None:
        idle = fact(cold(), IdleGpus, DISTRIBUTED_INIT)
        assert (idle.context_only, idle.forming) == (True, True)
        assert idle.seconds.number > END - START - 120
        assert not fact(cold(nodes=1), IdleGpus).forming

    def test_gpus_that_worked_are_not_idle(self) -> None:
        assert isinstance(facts(hung()).get(IdleGpus), Missing)


class TestPauses:
    def test_a_pause_shows_whether_the_gpus_worked(self) -> None:
        pauses = fact(traced(hung(until=STOP + 900)), GpuPauses)
        work = pauses.during(STOP + 60, STOP + 800)
        assert work is not None
        assert not work.kept_working
        before = pauses.during(START + 600, START + 1200)
        assert before is not None
        assert before.kept_working
        assert pauses.during(STOP, STOP + 10) is None

    def test_the_longest_pause_names_its_gpus(self) -> None:
        rest = fact(hung(until=STOP + 900), GpuPauses).longest
        assert rest is not None
        assert rest.worked_s > 1500
        assert abs(rest.length.number - 900) <= 60
        assert rest.gpus == (AWAY,)


def test_power_limits_by_model_or_sample() -> None:
    unnamed = Cluster().per_gpu("gpu_power_watts", 500.0)
    assert fact(unnamed, PowerLimits).between(START, END) is None
    sampled = fact(unnamed.per_gpu("gpu_power_limit_watts", 700.0), PowerLimits)
    limit = sampled.between(START, END)
    assert limit is not None
    assert limit.number == 700.0
    assert set(sampled.by_gpu.tolist()) == {700.0}


def test_the_duty_cycle_ends_with_the_work() -> None:
    duty = fact(hung(), DutyCycle)
    assert duty.end <= STOP + 60
    assert duty.sm is not None
    assert abs(duty.sm.number - 0.7) < 0.05
    assert duty.readings > 100


def test_a_stall_or_idle_gpus_contradict_work() -> None:
    assert fact(hung(), GpuWork).contradiction is not None
    assert fact(cold(), GpuWork).contradiction is not None
    work = fact(hung(since=9e9), GpuWork)
    assert (work.contradiction, work.computed, work.complete) == (None, True, False)  # no counters were sampled


def test_the_last_part_of_a_run_ended_from_outside() -> None:
    last = fact(hung(), LastPart, points(30), TIMEOUT)
    assert last.ended_from_outside
    assert last.quiet is not None
    assert last.final_stall is not None
    assert last.working is None
    own_end = event("training_end", 900, text="done", status="success", time=END)
    assert not fact(hung(since=9e9), LastPart, points(65), TIMEOUT, own_end).ended_from_outside
