"""When a job is suspected: readings made up, and time that passes as told."""

from __future__ import annotations

import pytest

from trackside.agent.hang.activity import ProcessActivity
from trackside.agent.hang.gpu_progress import GpuProgress
from trackside.agent.hang.ranks import jobs_of
from trackside.agent.hang.watch import Key, Kind, Thresholds, Watch, kind_of
from trackside.agent.owners import JobProcess, Owner
from trackside.agent.source import Reading

LIMITS = Thresholds()
RANKS: list[Key] = [(100 + rank, 5) for rank in range(4)]


def kinds(*told: Kind) -> dict[Key, Kind]:
    return dict(zip(RANKS, told * 4 if len(told) == 1 else told, strict=True))


def trained(until: float = 900.0, every: float = 10.0) -> Watch:
    """A job that has printed at even intervals."""
    watch = Watch(LIMITS, began=0.0)
    now = 0.0
    while now <= until:
        watch.note(now, has_output=now % every == 0, kinds=kinds("working"))
        now += 5.0
    return watch


def first_suspected(watch: Watch, start: float, told: dict[Key, Kind], until: float = 4000.0) -> float | None:
    now = start
    while now < until:
        watch.note(now, has_output=False, kinds=told)
        if watch.suspicion(now) is not None:
            return now
        now += 15.0
    return None


@pytest.mark.parametrize("still", ["asleep", "busy"])
def test_silence_against_the_rhythm(still: Kind) -> None:
    assert first_suspected(trained(), 900.0, kinds(still)) == 900.0 + 180.0


def test_a_slow_rhythm_takes_longer() -> None:
    assert first_suspected(trained(3000.0, every=300.0), 3000.0, kinds("asleep"), 9000.0) == 3000.0 + 5 * 300.0


def test_one_that_works_is_waited_for_until_no_default_would() -> None:
    """One rank evaluates or saves while the others wait for it."""
    watch = trained()
    assert first_suspected(watch, 900.0, kinds("asleep", "asleep", "asleep", "working"), 2700.0) is None
    assert first_suspected(watch, 2700.0, kinds("asleep", "asleep", "asleep", "working")) == 2700.0


def test_all_that_work_are_never_suspected() -> None:
    assert first_suspected(trained(), 900.0, kinds("working"), 90_000.0) is None


def test_startup_has_more_time() -> None:
    watch = Watch(LIMITS, began=0.0)
    watch.note(0.0, has_output=True, kinds=kinds("working"))
    assert first_suspected(watch, 15.0, kinds("asleep")) == 1800.0


def test_without_output_on_this_node() -> None:
    watch = Watch(LIMITS, began=0.0)
    for now in range(0, 900, 15):
        watch.note(float(now), has_output=False, kinds=kinds("working"))
    assert first_suspected(watch, 900.0, kinds("asleep")) == 885.0 + 480.0


def test_an_agent_that_starts_late_does_not_cry_at_once() -> None:
    watch = Watch(LIMITS, began=-36_000.0, last_work_s=0.0)
    watch.note(0.0, False, kinds("asleep"), last_output=-30.0)
    assert watch.suspicion(0.0) is None
    assert first_suspected(watch, 15.0, kinds("asleep")) == 480.0


def test_once_until_it_goes_on() -> None:
    watch = trained()
    at = first_suspected(watch, 900.0, kinds("asleep"))
    assert at is not None
    watch.report(at)
    assert first_suspected(watch, at, kinds("asleep"), 9000.0) is None
    watch.note(9000.0, has_output=True, kinds=kinds("working"))
    assert watch.resumed_s == pytest.approx(8100.0)
    watch.note(9015.0, has_output=False, kinds=kinds("working"))
    assert watch.resumed_s is None
    assert first_suspected(watch, 9030.0, kinds("asleep"), 12_000.0) is not None


def test_stacks_must_stay_the_same() -> None:
    watch = trained()
    at = first_suspected(watch, 900.0, kinds("busy"))
    assert at is not None
    suspicion = watch.suspicion(at)
    assert suspicion is not None
    stands = {key: {key[0]: "f:1"} for key in RANKS}
    moves = {**stands, RANKS[2]: {RANKS[2][0]: "f:2"}}
    assert not watch.compared(at, stands, suspicion, 3)
    assert not watch.compared(at + 15, moves, suspicion, 3)
    assert not watch.is_due(at + 30), "stacks that change put the next off"
    assert watch.is_due(at + 80)
    assert [watch.compared(at + 80 + 15 * n, moves, suspicion, 3) for n in range(3)] == [False, False, True]


def test_a_busy_rank_is_known_by_all_its_threads() -> None:
    """Its main thread may wait for one that works."""
    for kind, same in (("busy", False), ("asleep", True)):
        watch = trained()
        at = first_suspected(watch, 900.0, kinds(kind))  # type: ignore[arg-type]
        assert at is not None
        suspicion = watch.suspicion(at)
        assert suspicion is not None
        found = [
            watch.compared(at + n, {key: {key[0]: "wait:1", 7: f"work:{n}"} for key in RANKS}, suspicion, 2)
            for n in range(2)
        ]
        assert found[-1] is same


@pytest.mark.parametrize(
    ("doings", "expected"),
    [
        (ProcessActivity(0.004, 0.0, 120.0, 0.0, False), "asleep"),
        (ProcessActivity(1.0, 0.0, 0.0, 0.0, False), "busy"),  # polling for a GPU
        (ProcessActivity(1.0, 0.0, None, 0.0, False), "busy"),  # what it reads may not be known
        (ProcessActivity(1.0, 0.0, 0.0, 800.0, False), "working"),  # a compiler
        (ProcessActivity(0.0, 0.6, 0.0, 0.0, False), "working"),  # loader or compiler processes
        (ProcessActivity(0.02, 0.0, 9e8, 0.0, False), "working"),  # a checkpoint
        (ProcessActivity(9.0, 0.0, 0.0, 0.0, False), "working"),
    ],
)
def test_kinds(doings: ProcessActivity, expected: Kind) -> None:
    assert kind_of(doings, LIMITS) == expected


def test_gpus_that_work_are_work() -> None:
    assert kind_of(ProcessActivity(1.0, 0.0, 0.0, 0.0, False), LIMITS, works=True) == "working"
    assert kind_of(ProcessActivity(1.0, 0.0, 0.0, 0.0, False), LIMITS, works=False) == "busy"


def test_what_other_sources_saw() -> None:
    now, shown = [0.0], Reading()
    seen = GpuProgress(lambda: {"gpm": shown.samples[:2], "nccl": shown.samples[2:]}, lambda: now[0])

    def look(**completed: float) -> None:
        shown.samples.clear()
        shown.sample("gpu_sm_active_ratio", 0.05, gpu=0)
        shown.sample("gpu_sm_active_ratio", 0.7, gpu=1)
        for op, count in completed.items():
            shown.sample("trackside_nccl_collectives_completed_total", count, pid=7, op=op)
        seen.update()

    assert seen.is_active(("0",), 0.2) is None
    assert seen.frozen_s(7) is None
    look(AllReduce=40, Broadcast=2)
    now[0] = 30.0
    look(AllReduce=40, Broadcast=2)
    assert seen.is_active(("0",), 0.2) is False
    assert seen.is_active(("0", "1"), 0.2) is True
    assert seen.frozen_s(7) == 30.0
    look(AllReduce=40, Broadcast=3)
    assert seen.frozen_s(7) == 0.0
    shown.samples.clear()
    seen.update()
    assert seen.is_active(("0",), 0.2) is None
    assert seen.frozen_s(7) is None


def process(pid: int, parent: int, comm: str, rank: int | None = None, task: int | None = None) -> JobProcess:
    environ = {"RANK": str(rank)} if rank is not None else {}
    return JobProcess(pid, pid, parent, comm, Owner(job="7", rank=rank, task=task), environ=environ)


def test_ranks_under_srun() -> None:
    """A shell, then Python, then loader workers, in each task."""
    found = [process(10 * task + n, 10 * task + n - 1, comm, task=task)
             for task in (1, 2) for n, comm in enumerate(("bash", "python3", "pt_data_worker"))]  # fmt: skip
    ranks = jobs_of(found)["7"]
    assert [(rank.number, rank.main.pid, [other.pid for other in rank.others]) for rank in ranks] == [
        (1, 11, [12]),
        (2, 21, [22]),
    ]


def test_ranks_under_torchrun_in_a_task() -> None:
    """The launcher has the number of its task, which is that of a rank, too."""
    found = [
        process(5, 1, "slurmstepd"),
        process(10, 5, "bash", task=0),
        process(11, 10, "python3", task=0),
        process(20, 11, "pt_main_thread", rank=0, task=0),
        process(21, 11, "python3", rank=1, task=0),
        process(30, 20, "python3", rank=0, task=0),
    ]
    ranks = jobs_of(found)["7"]
    assert [(rank.number, rank.main.pid, len(rank.others)) for rank in ranks] == [(0, 20, 1), (1, 21, 0)]


def test_a_job_of_one_process() -> None:
    (rank,) = jobs_of([process(9, 1, "bash"), process(10, 9, "python3")])["7"]
    assert (rank.number, rank.main.pid) == (None, 10)
    assert jobs_of([process(9, 1, "bash")])["7"] == ()
