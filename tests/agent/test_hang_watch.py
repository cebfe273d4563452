"""When a job is suspected to hang: with made-up readings and a simulated clock."""

from __future__ import annotations

import pytest

from trackside.agent.hang.activity import ProcessActivity
from trackside.agent.hang.gpu_progress import GpuProgress
from trackside.agent.hang.ranks import ranks_by_job
from trackside.agent.hang.watch import Key, Kind, Thresholds, Watch, activity_kind
from trackside.agent.owners import JobProcess, Owner
from trackside.agent.source import Reading

LIMITS = Thresholds()
RANKS: list[Key] = [(100 + rank, 5) for rank in range(4)]


def kinds(*per_rank: Kind) -> dict[Key, Kind]:
    return dict(zip(RANKS, per_rank * 4 if len(per_rank) == 1 else per_rank, strict=True))


def watch_of_training(until: float = 900.0, interval_s: float = 10.0) -> Watch:
    """A watch of a job that printed at even intervals."""
    watch = Watch(LIMITS, began_s=0.0)
    now = 0.0
    while now <= until:
        watch.add_reading(now, has_output=now % interval_s == 0, kinds=kinds("working"))
        now += 5.0
    return watch


def first_suspicion_s(watch: Watch, start: float, rank_kinds: dict[Key, Kind], until: float = 4000.0) -> float | None:
    now = start
    while now < until:
        watch.add_reading(now, has_output=False, kinds=rank_kinds)
        if watch.suspicion(now) is not None:
            return now
        now += 15.0
    return None


@pytest.mark.parametrize("still", ["asleep", "busy"])
def test_silence_is_compared_with_the_usual_interval(still: Kind) -> None:
    assert first_suspicion_s(watch_of_training(), 900.0, kinds(still)) == 900.0 + 180.0


def test_a_job_with_long_intervals_is_suspected_later() -> None:
    assert (
        first_suspicion_s(watch_of_training(3000.0, interval_s=300.0), 3000.0, kinds("asleep"), 9000.0)
        == 3000.0 + 5 * 300.0
    )


def test_one_working_rank_delays_the_suspicion_up_to_the_default_timeout() -> None:
    """One rank may evaluate or save while the others wait."""
    watch = watch_of_training()
    assert first_suspicion_s(watch, 900.0, kinds("asleep", "asleep", "asleep", "working"), 2700.0) is None
    assert first_suspicion_s(watch, 2700.0, kinds("asleep", "asleep", "asleep", "working")) == 2700.0


def test_working_ranks_are_never_suspected() -> None:
    assert first_suspicion_s(watch_of_training(), 900.0, kinds("working"), 90_000.0) is None


def test_startup_has_a_longer_limit() -> None:
    watch = Watch(LIMITS, began_s=0.0)
    watch.add_reading(0.0, has_output=True, kinds=kinds("working"))
    assert first_suspicion_s(watch, 15.0, kinds("asleep")) == 1800.0


def test_a_job_without_output_on_this_node_is_suspected_from_its_processes() -> None:
    watch = Watch(LIMITS, began_s=0.0)
    for now in range(0, 900, 15):
        watch.add_reading(float(now), has_output=False, kinds=kinds("working"))
    assert first_suspicion_s(watch, 900.0, kinds("asleep")) == 885.0 + 480.0


def test_a_late_start_of_the_agent_does_not_raise_a_suspicion_at_once() -> None:
    watch = Watch(LIMITS, began_s=-36_000.0, last_work_s=0.0)
    watch.add_reading(0.0, False, kinds("asleep"), last_output=-30.0)
    assert watch.suspicion(0.0) is None
    assert first_suspicion_s(watch, 15.0, kinds("asleep")) == 480.0


def test_a_hang_is_suspected_once_until_the_job_goes_on() -> None:
    watch = watch_of_training()
    reported_s = first_suspicion_s(watch, 900.0, kinds("asleep"))
    assert reported_s is not None
    watch.report(reported_s)
    assert first_suspicion_s(watch, reported_s, kinds("asleep"), 9000.0) is None
    watch.add_reading(9000.0, has_output=True, kinds=kinds("working"))
    assert watch.resumed_s == pytest.approx(8100.0)
    watch.add_reading(9015.0, has_output=False, kinds=kinds("working"))
    assert watch.resumed_s is None
    assert first_suspicion_s(watch, 9030.0, kinds("asleep"), 12_000.0) is not None


def test_a_hang_is_confirmed_only_if_stacks_stay_the_same() -> None:
    watch = watch_of_training()
    suspected_s = first_suspicion_s(watch, 900.0, kinds("busy"))
    assert suspected_s is not None
    suspicion = watch.suspicion(suspected_s)
    assert suspicion is not None
    first_stacks = {key: {key[0]: "f:1"} for key in RANKS}
    changed_stacks = {**first_stacks, RANKS[2]: {RANKS[2][0]: "f:2"}}
    assert not watch.add_stacks(suspected_s, first_stacks, suspicion, 3)
    assert not watch.add_stacks(suspected_s + 15, changed_stacks, suspicion, 3)
    assert not watch.is_due(suspected_s + 30), "changed stacks delay the next comparison"
    assert watch.is_due(suspected_s + 80)
    assert [watch.add_stacks(suspected_s + 80 + 15 * n, changed_stacks, suspicion, 3) for n in range(3)] == [
        False,
        False,
        True,
    ]


def test_all_threads_of_a_busy_rank_are_compared() -> None:
    """The main thread of a busy rank may wait for a working thread."""
    for kind, is_confirmed in (("busy", False), ("asleep", True)):
        watch = watch_of_training()
        suspected_s = first_suspicion_s(watch, 900.0, kinds(kind))  # type: ignore[arg-type]
        assert suspected_s is not None
        suspicion = watch.suspicion(suspected_s)
        assert suspicion is not None
        confirmations = [
            watch.add_stacks(suspected_s + n, {key: {key[0]: "wait:1", 7: f"work:{n}"} for key in RANKS}, suspicion, 2)
            for n in range(2)
        ]
        assert confirmations[-1] is is_confirmed


@pytest.mark.parametrize(
    ("activity", "expected"),
    [
        (ProcessActivity(0.004, 0.0, 120.0, 0.0, False), "asleep"),
        (ProcessActivity(1.0, 0.0, 0.0, 0.0, False), "busy"),  # polling for a GPU
        (ProcessActivity(1.0, 0.0, None, 0.0, False), "busy"),  # its reads may be unknown
        (ProcessActivity(1.0, 0.0, 0.0, 800.0, False), "working"),  # a compiler
        (ProcessActivity(0.0, 0.6, 0.0, 0.0, False), "working"),  # loader or compiler processes
        (ProcessActivity(0.02, 0.0, 9e8, 0.0, False), "working"),  # a checkpoint
        (ProcessActivity(9.0, 0.0, 0.0, 0.0, False), "working"),
    ],
)
def test_kind_of_a_process_follows_its_activity(activity: ProcessActivity, expected: Kind) -> None:
    assert activity_kind(activity, LIMITS) == expected


def test_a_process_with_active_gpus_is_working() -> None:
    assert activity_kind(ProcessActivity(1.0, 0.0, 0.0, 0.0, False), LIMITS, gpu_active=True) == "working"
    assert activity_kind(ProcessActivity(1.0, 0.0, 0.0, 0.0, False), LIMITS, gpu_active=False) == "busy"


def test_gpu_progress_from_other_sources() -> None:
    now, newest = [0.0], Reading()
    progress = GpuProgress(lambda: {"gpm": newest.samples[:2], "nccl": newest.samples[2:]}, lambda: now[0])

    def update(**completed: float) -> None:
        newest.samples.clear()
        newest.sample("gpu_sm_active_ratio", 0.05, gpu=0)
        newest.sample("gpu_sm_active_ratio", 0.7, gpu=1)
        for op, count in completed.items():
            newest.sample("trackside_nccl_collectives_completed_total", count, pid=7, op=op)
        progress.update()

    assert progress.is_active(("0",), 0.2) is None
    assert progress.since_collective_s(7) is None
    update(AllReduce=40, Broadcast=2)
    now[0] = 30.0
    update(AllReduce=40, Broadcast=2)
    assert progress.is_active(("0",), 0.2) is False
    assert progress.is_active(("0", "1"), 0.2) is True
    assert progress.since_collective_s(7) == 30.0
    update(AllReduce=40, Broadcast=3)
    assert progress.since_collective_s(7) == 0.0
    newest.samples.clear()
    progress.update()
    assert progress.is_active(("0",), 0.2) is None
    assert progress.since_collective_s(7) is None


def process(pid: int, parent: int, comm: str, rank: int | None = None, task: int | None = None) -> JobProcess:
    environ = {"RANK": str(rank)} if rank is not None else {}
    return JobProcess(pid, pid, parent, comm, Owner(job="7", rank=rank, task=task), environ=environ)


def test_ranks_under_srun() -> None:
    """Each task is a shell with Python below it and loader workers below that."""
    processes = [process(10 * task + n, 10 * task + n - 1, comm, task=task)
             for task in (1, 2) for n, comm in enumerate(("bash", "python3", "pt_data_worker"))]  # fmt: skip
    ranks = ranks_by_job(processes)["7"]
    assert [(rank.number, rank.main.pid, [other.pid for other in rank.helpers]) for rank in ranks] == [
        (1, 11, [12]),
        (2, 21, [22]),
    ]


def test_ranks_under_torchrun_in_a_task() -> None:
    """The launcher has a task number that is also the number of a rank."""
    processes = [
        process(5, 1, "slurmstepd"),
        process(10, 5, "bash", task=0),
        process(11, 10, "python3", task=0),
        process(20, 11, "pt_main_thread", rank=0, task=0),
        process(21, 11, "python3", rank=1, task=0),
        process(30, 20, "python3", rank=0, task=0),
    ]
    ranks = ranks_by_job(processes)["7"]
    assert [(rank.number, rank.main.pid, len(rank.helpers)) for rank in ranks] == [(0, 20, 1), (1, 21, 0)]


def test_a_job_of_one_process_has_one_rank_without_a_number() -> None:
    (rank,) = ranks_by_job([process(9, 1, "bash"), process(10, 9, "python3")])["7"]
    assert (rank.number, rank.main.pid) == (None, 10)
    assert ranks_by_job([process(9, 1, "bash")])["7"] == ()
