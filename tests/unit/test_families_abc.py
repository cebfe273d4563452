"""Families A to C and the preflight on rows built by hand: a positive, a rival that must not be found, a blind case."""

from __future__ import annotations

from typing import Any

import pytest

from trackside.facts.logs.exceptions import unhandled
from trackside.facts.trust import preflight
from trackside.families import find_family
from trackside.family import HEADINGS
from trackside.finding import Certainty, Finding, Outcome
from trackside.model import Event, Plane, Position, Record, Role, Run
from trackside.show.wording import sentence
from trackside.stores.memory import MemoryStore
from trackside.verdict import engine

FOUND, ABSENT, UNKNOWN = Outcome.FOUND, Outcome.ABSENT, Outcome.UNKNOWN
OURS = ("A1", "A2", "B1", "B2", "B3", "C1", "C2", "C3")
Row = Event | Record


def ev(kind: str, line: int = 1, role: Role = Role.FACT, **fields: Any) -> Event:
    known = {name: fields.pop(name) for name in ("text", "time", "rank", "node") if name in fields}
    plane: Plane = fields.pop("plane", "log")
    path = fields.pop("path", "train.log")
    return Event(kind, Position(path, line, line * 100), plane, role=role, fields=fields, **{"text": kind, **known})


def root(kind: str, line: int = 50, **fields: Any) -> Event:
    return ev(kind, line, Role.ROOT, **fields)


def job(state: str, **fields: Any) -> Record:
    fields = {"id": "7", "state": state, "start": 1000.0, "end": 5000.0, "elapsed_s": 4000.0, **fields}
    return Record("job", Position("sacct.txt", 2), "scheduler", fields)


def raised(name: str, line: int = 50, about: str = "application", **fields: Any) -> Event:
    return root("exception", line, type=name, message="it went wrong", about=about, **fields)


def points(count: int = 5, line: int = 10, time: float | None = 1010.0) -> list[Event]:
    return [
        ev("progress", line + i, step=i + 1, loss=4.0 - i / 10, time=None if time is None else time + 10 * i)
        for i in range(count)
    ]


def judge(code: str, *rows: Row | list[Event], run: Run | None = None, planes: tuple[Plane, ...] = ()) -> Finding:
    flat = [row for part in rows for row in (part if isinstance(part, list) else [part])]
    events = [row for row in flat if isinstance(row, Event)]
    store = MemoryStore(events, [row for row in flat if isinstance(row, Record)], planes or ("log", "scheduler"))
    family = find_family(code)
    assert family is not None
    finding = engine.judge_all(store, run or Run(), [family])[0]
    for said in (*finding.shows, *finding.implies, *finding.cannot_decide, *finding.because):
        sentence(family.says[said.key], said.values)
    for act in finding.actions:
        assert act.key in family.says
        assert act.command is None or act.command in family.says
    return finding


def keys(finding: Finding) -> list[str]:
    return [said.key for said in (*finding.shows, *finding.because)]


@pytest.mark.parametrize("code", OURS)
def test_documented(code: str) -> None:
    family = find_family(code)
    assert family is not None
    assert tuple(family.sections()) == HEADINGS
    assert all(family.sections().values())


@pytest.mark.parametrize("code", OURS)
def test_blind_is_unknown(code: str) -> None:
    assert judge(code, planes=("trace",)).outcome is UNKNOWN


# -- A1


def test_startup_crash() -> None:
    finding = judge("A1", raised("ValueError", rank=0), raised("ValueError", 60, rank=1), job("FAILED", exit_code=1))
    assert (finding.outcome, finding.certainty, finding.culprit) == (FOUND, Certainty.ESTABLISHED, "job")
    assert (finding.ranks, finding.exception) == ((0, 1), ("ValueError", "it went wrong"))


def test_startup_crash_is_not_an_exception_after_steps_nor_a_handled_one() -> None:
    assert keys(judge("A1", points(), raised("ValueError"))) == ["steps_before"]
    assert judge("A1", raised("ValueError", 5), points()).outcome is ABSENT
    logged = raised("ValueError", logged=True)
    assert keys(judge("A1", logged, job("COMPLETED"))) == ["went_on"]


@pytest.mark.parametrize("about", ["oom", "rendezvous", "checkpoint", "storage", "collective", "interrupt"])
def test_startup_crash_leaves_other_topics(about: str) -> None:
    assert judge("A1", raised("RuntimeError", about=about)).outcome is ABSENT


def test_launch_that_never_reached_python() -> None:
    finding = judge("A1", ev("process_exit", exit_code=127, source="bash"), job("FAILED", exit_code=127))
    assert (finding.outcome, finding.fault_class) == (FOUND, "env")
    finding = judge("A1", job("FAILED", exit_code=0, signal=53), planes=("scheduler",))
    assert (finding.outcome, finding.certainty) == (FOUND, Certainty.SUPPORTED)
    assert judge("A1", job("FAILED", exit_code=1), planes=("scheduler",)).outcome is UNKNOWN


# -- A2


def killed(signal: int = 9, rank: int = 1, **fields: Any) -> Event:
    told = {"role": Role.ROOT, "global_rank": rank, "signal": signal, "time": 1100.0, "first": True, **fields}
    role = told.pop("role")
    return ev("launcher_failure", 90, role, rank=rank, **told)


def test_signal_kill() -> None:
    finding = judge("A2", points(), killed(), job("FAILED", exit_code=1))
    assert (finding.outcome, finding.signal, finding.ranks, finding.variant) == (
        FOUND,
        ("SIGKILL", 9),
        (1,),
        "training",
    )
    assert finding.certainty is Certainty.ESTABLISHED
    assert judge("A2", killed(11)).variant == "startup"


def test_host_memory_names_the_sender() -> None:
    finding = judge("A2", killed(), root("oom_kill", scope="cgroup", plane="kernel"), job("OUT_OF_MEMORY"))
    assert "oom" in keys(finding)
    assert not finding.cannot_decide
    alone = judge("A2", job("OUT_OF_MEMORY"), planes=("scheduler",))
    assert (alone.outcome, alone.signal) == (FOUND, ("SIGKILL", 9))
    other = root("oom_kill", scope="cgroup", plane="kernel", cgroup="/slurm/uid_1/job_99/step_0")
    assert judge("A2", other, run=Run(id="7")).outcome is ABSENT


def test_signal_kill_is_not_somebody_elses_doing() -> None:
    timeout = ev("collective_timeout", 40, Role.CASCADE, rank=1)
    assert judge("A2", timeout, killed(6)).outcome is ABSENT
    notice = root("scheduler_notice", 80, reason="cancelled")
    assert judge("A2", notice, killed(), job("CANCELLED")).outcome is ABSENT
    assert judge("A2", killed(15, role=Role.TEARDOWN)).outcome is ABSENT
    assert judge("A2", raised("ValueError", rank=1), killed()).outcome is ABSENT
    first = ev("launcher_failure", 80, Role.CONFIRMATION, global_rank=0, rank=0, exit_code=1, time=1000.0, first=True)
    assert judge("A2", first, killed(first=None, time=1031.0)).outcome is ABSENT
    assert judge("A2", killed(time=1005.0), points(line=200), job("COMPLETED")).outcome is ABSENT


def test_exit_code_that_may_be_a_signal() -> None:
    finding = judge("A2", job("FAILED", exit_code=11, signal=0), planes=("scheduler",))
    assert (finding.outcome, finding.certainty) == (FOUND, Certainty.POSSIBLE)
    finding = judge("A2", job("FAILED", exit_code=139, signal=0), planes=("scheduler",))
    assert (finding.certainty, finding.signal) == (Certainty.SUPPORTED, ("SIGSEGV", 11))
    assert judge("A2", job("FAILED", exit_code=1), planes=("scheduler",)).outcome is UNKNOWN


# -- B1

GIB = 2**30


def oom(line: int = 50, **sizes: float) -> Event:
    return root("cuda_oom", line, rank=3, **{name: int(size * GIB) for name, size in sizes.items()})


def test_cuda_oom() -> None:
    finding = judge("B1", oom(requested_bytes=91.6, total_bytes=79.2), job("FAILED", exit_code=1))
    assert (finding.outcome, finding.certainty, finding.culprit) == (FOUND, Certainty.ESTABLISHED, "job")
    assert finding.ranks == (3,)
    assert "larger" in keys(finding)


def test_cuda_oom_in_pieces_and_with_a_neighbour() -> None:
    pieces = oom(requested_bytes=4, total_bytes=80, allocated_bytes=58, reserved_bytes=75)
    assert "fragmented" in keys(judge("B1", pieces))
    crowded = oom(requested_bytes=1, total_bytes=40, allocated_bytes=4, reserved_bytes=4, other_process_bytes=34)
    assert judge("B1", crowded).culprit == "infrastructure"
    assert judge("B1", crowded, run=Run(n_ranks=8)).culprit == "job"


def test_cuda_oom_that_was_handled_or_only_mentioned() -> None:
    assert keys(judge("B1", oom(5), points())) == ["handled"]
    assert judge("B1", ev("cuda_oom", 50, Role.CONFIRMATION)).outcome is ABSENT


def test_buffered_points_behind_the_traceback_do_not_clear_it() -> None:
    late = points(line=60, time=None)
    assert judge("B1", oom(), late, job("FAILED", exit_code=1)).outcome is FOUND
    error = raised("ValueError")
    assert unhandled([error], late) == []
    assert unhandled([error], late, crashed=True) == [error]
    assert unhandled([error], points(line=60), crashed=True) == []


# -- B2


def xid(number: int, line: int = 5, time: float | None = 4990.0, **fields: Any) -> Event:
    role = Role.FACT if number in (13, 31, 43, 45) else Role.CONFIRMATION
    where = {"plane": "kernel", "path": "dmesg.txt", "node": "n1", "pci": "0000:4e:00", **fields}
    return ev("xid", line, role, xid=number, time=time, **where)


RUN = Run(id="7", start=1000.0, end=5000.0, nodes=("n1",))


def test_hardware_fault() -> None:
    finding = judge("B2", points(), xid(79), job("FAILED", exit_code=1), run=RUN)
    assert (finding.outcome, finding.certainty, finding.culprit) == (FOUND, Certainty.ESTABLISHED, "infrastructure")
    assert (finding.variant, finding.gpus, finding.nodes) == ("active", ("0000:4e:00",), ("n1",))
    error = root("cuda_error", 50, name="uncorrectable ECC error", rank=2)
    assert judge("B2", error).certainty is Certainty.SUPPORTED


def test_hardware_fault_that_is_latent() -> None:
    for rows in ([xid(64, time=10.0), job("FAILED")], [xid(79), job("COMPLETED")], [xid(79, time=1005.0), *points()]):
        finding = judge("B2", *rows, run=RUN)
        assert (finding.outcome, finding.latent, finding.variant) == (FOUND, True, "latent")


def test_application_xids_are_no_hardware_fault() -> None:
    assert keys(judge("B2", xid(31), xid(43), job("FAILED"), run=RUN)) == ["application"]
    again = [xid(31, line, pid=line, time=float(line)) for line in (10, 20, 30)]
    finding = judge("B2", again, run=RUN)
    assert (finding.outcome, finding.latent, finding.certainty) == (FOUND, True, Certainty.POSSIBLE)


def test_without_a_kernel_log_hardware_stays_open() -> None:
    assert judge("B2", points(), job("FAILED")).outcome is UNKNOWN


# -- C1


def test_rendezvous() -> None:
    failure = root("rendezvous_failure", reason="dns", address="head:29500", retry=True)
    last = root("rendezvous_failure", 60, reason="timeout", address="head:29500")
    finding = judge("C1", failure, last, job("FAILED", exit_code=1))
    assert (finding.outcome, finding.culprit, keys(finding)[0]) == (FOUND, "infrastructure", "failed_dns")


def test_a_list_of_hosts_is_no_hosts_name() -> None:
    failure = root("rendezvous_failure", reason="dns", address="node[01,05]:53394", retry=True)
    assert judge("C1", failure, job("TIMEOUT")).culprit == "job"


def test_rendezvous_that_came_up_or_was_long_over() -> None:
    retry = root("rendezvous_failure", 5, reason="refused", retry=True)
    assert judge("C1", retry, ev("distributed_ready", 9, world_size=4)).outcome is ABSENT
    assert keys(judge("C1", points(), root("rendezvous_failure", reason="timeout"))) == ["trained"]


def test_silent_start_of_several_ranks() -> None:
    begun = ev("distributed_init", world_size=2, time=1005.0, rank=0)
    finding = judge("C1", begun, job("TIMEOUT"), run=Run(nodes=("n1", "n2")))
    assert (finding.outcome, finding.certainty, finding.culprit) == (FOUND, Certainty.SUPPORTED, "job")
    assert judge("C1", begun, job("FAILED", exit_code=1)).outcome is ABSENT


# -- C2


def timed_out(rank: int, seq: int | None = 40, **fields: Any) -> Event:
    return ev("collective_timeout", 60 + rank, Role.CASCADE, rank=rank, seq=seq, **{"time": 2000.0, **fields})


def test_collective_hang_names_the_rank_that_says_nothing() -> None:
    ready = ev("distributed_ready", 3, world_size=4)
    finding = judge("C2", ready, points(), [timed_out(rank) for rank in (0, 1, 3)], job("FAILED", exit_code=1))
    assert (finding.outcome, finding.certainty, finding.ranks) == (FOUND, Certainty.ESTABLISHED, (2,))
    named = judge("C2", points(), timed_out(0, missing_ranks="1,6"))
    assert named.ranks == (1, 6)


def test_collective_hang_by_the_last_work_enqueued() -> None:
    rows = [timed_out(r, last_enqueued=40, last_completed=39) for r in (0, 1, 2)]
    state = ev("collective_state", 70, Role.CASCADE, rank=3, last_enqueued=39, last_completed=39)
    assert judge("C2", points(), rows, state, run=Run(n_ranks=4)).ranks == (3,)
    behind = timed_out(3, seq=39, last_enqueued=38, last_completed=38)
    assert "behind" in keys(judge("C2", points(), rows, behind))


def test_collective_hang_of_storage_is_the_machines() -> None:
    task = ev("hung_task", 4, Role.CONFIRMATION, plane="kernel", path="dmesg.txt", comm="python3", seconds=120)
    assert judge("C2", points(), timed_out(0), task).culprit == "infrastructure"


def test_collective_hang_is_not_startup_nor_teardown() -> None:
    assert keys(judge("C2", [timed_out(r, seq=1) for r in (0, 1)])) == ["startup"]
    assert judge("C2", timed_out(0, time=1000.0), points(line=200)).outcome is ABSENT
    end = ev("training_end", 50, status="success")
    assert judge("C2", points(), end, ev("peer_lost", 60, Role.CASCADE, rank=0)).outcome is ABSENT


def test_collective_hang_without_a_watchdog() -> None:
    world = ev("host", 2, world_size=8)
    finding = judge("C2", world, points(), job("TIMEOUT"))
    assert (finding.outcome, finding.certainty) == (FOUND, Certainty.SUPPORTED)
    assert judge("C2", world, points(time=4900.0), job("TIMEOUT")).outcome is ABSENT
    assert judge("C2", points(), job("TIMEOUT")).outcome is ABSENT  # one process waits for nobody


def test_collective_hang_from_dumps_alone() -> None:
    def dump(rank: int, enqueued: int, pending: int | None) -> Record:
        fields: dict[str, Any] = {"rank": rank, "group": "0", "ranks": (0, 1), "last_enqueued": enqueued}
        if pending is not None:
            fields |= {"pending_seq": pending, "pending_op": "all_reduce"}
        return Record("flight_recorder_group", Position(f"dump_{rank}", 1), "collective", fields)

    finding = judge("C2", dump(0, 41, 41), dump(1, 40, None), planes=("collective",))
    assert (finding.outcome, finding.ranks) == (FOUND, (1,))


# -- C3


def activity(lines: int, **fields: Any) -> Event:
    return ev("log_activity", lines, lines=lines, bytes=lines * 80, time=fields.get("last_time"), **fields)


LIMIT = root("scheduler_notice", 1, reason="time_limit", time=5000.0)


def test_idle_hang_is_only_possible_without_metrics() -> None:
    finding = judge("C3", LIMIT, activity(1, last_time=5000.0, first_time=5000.0), job("TIMEOUT"))
    assert (finding.outcome, finding.certainty, keys(finding)[0]) == (FOUND, Certainty.POSSIBLE, "empty")
    quiet = judge("C3", activity(9, first_time=1000.0, last_time=1100.0), job("TIMEOUT"))
    assert keys(quiet)[0] == "silent"


def test_a_run_of_seconds_that_somebody_cancelled_is_no_idle_hang() -> None:
    said = activity(1, last_time=1007.0, first_time=1007.0)
    ended = root("scheduler_notice", 1, reason="cancelled", time=1007.0)
    for seconds, keys_ in ((7.0, ["brief"]), (500.0, ["brief"]), (900.0, ["empty", "reaped"])):
        finding = judge("C3", said, ended, job("CANCELLED", end=1000.0 + seconds, elapsed_s=seconds))
        assert keys(finding) == keys_
    assert keys(judge("C3", said, LIMIT, job("TIMEOUT", end=1020.0, elapsed_s=20.0))) == ["brief"]
    assert judge("C3", said, LIMIT, job("TIMEOUT", end=1060.0, elapsed_s=60.0)).outcome is FOUND


def test_idle_hang_is_not_progress_nor_an_affair_between_ranks() -> None:
    late = points(time=4900.0)
    assert keys(judge("C3", late, activity(30, last_time=4940.0), job("TIMEOUT"))) == ["worked"]
    world = ev("host", 2, world_size=8)
    assert keys(judge("C3", world, points(), activity(30, last_time=1050.0), job("TIMEOUT"))) == ["several"]
    assert keys(judge("C3", activity(9), job("FAILED", exit_code=1))) == ["not_reaped"]


def test_idle_hang_without_times_is_unknown() -> None:
    assert judge("C3", points(time=None), activity(30), job("TIMEOUT")).outcome is UNKNOWN


# -- preflight


def test_preflight_says_what_was_not_given() -> None:
    told = [claim.key for claim in preflight.check(MemoryStore(), Run())]
    assert told == ["no_log", "no_scheduler", "no_kernel", "no_gpu_metric"]


def test_preflight_counts_a_kernel_log_that_holds_nothing_of_interest() -> None:
    given = [xid(79, node="n1"), ev("kernel_log", 3, plane="kernel", path="kernel/n2.log", node="n2", lines=3)]
    for nodes, silent in ((("n1", "n2"), None), (("n1", "n2", "n3"), ("n3",))):
        told = preflight.check(MemoryStore(given, [job("FAILED", nodes=nodes)]), Run(nodes=nodes))
        lacking = [each.values["nodes"].value for each in told if each.key == "no_kernel_of"]
        assert lacking == ([silent] if silent else [])
        assert "no_kernel" not in [each.key for each in told]


def test_preflight_says_what_limits_the_logs() -> None:
    logs = [activity(9, path=f"{rank}.log", rank=rank, truncated=rank == 1) for rank in (0, 1)]
    store = MemoryStore([*logs, xid(79)], [job("RUNNING", nodes=("n1", "n2"))])
    told = preflight.check(store, Run(nodes=("n1", "n2"), n_ranks=4, clock_offset_s=3600.0))
    said = ["no_kernel_of", "still_running", "cut_off", "some_ranks", "clock", "no_gpu_metric"]
    assert [claim.key for claim in told] == said
    for claim in told:
        preflight.SAYS[claim.key].format(**{name: value.value for name, value in claim.values.items()})
