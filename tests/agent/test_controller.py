"""The source ``controller``: what it reports of jobs and nodes, with fake Slurm commands."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.agent.readings import assert_conforms, assert_golden, exposition, open_source
from trackside.agent.node import LocalNode
from trackside.agent.slurm import command as command_module
from trackside.agent.slurm.command import CommandFailed, Commands, blocks
from trackside.agent.slurm.jobs import JobChangeTracker, JobEvent
from trackside.agent.slurm.statistics import statistics
from trackside.agent.source import AgentSourceUnavailable, Collector, Reading
from trackside.agent.sources.controller import SOURCE, ControllerOptions

FOLDER = Path(__file__).parent / "slurm"
BLOCK = (FOLDER / "job.txt").read_text()
"""A failed job, as printed by ``scontrol -d show job``."""
T0 = 1_795_313_000
CONFIG = "SlurmctldLogFile        = {}\nSLURM_VERSION           = 22.05.8\n"


def job(number: int = 7, name: str = "train", job_ids: str = "", **overrides: object) -> str:
    """A job's block with some fields replaced."""
    text = re.sub(r"JobId=\d+ JobName=.*", f"JobId={number}{job_ids} JobName={name}", BLOCK)
    fields = {
        "JobState": "RUNNING", "ExitCode": "0:0", "SubmitTime": T0, "EligibleTime": T0, "StartTime": T0 + 10,
        "EndTime": T0 + 3610, "RunTime": "00:00:01",
    } | overrides  # fmt: skip
    for key, value in fields.items():
        text, count = re.subn(rf"(?<![\w]){re.escape(key)}=\S*", f"{key}={value}", text)
        assert count, key
    return text


def pending(number: int = 7, reason: str = "Priority", **overrides: object) -> str:
    job_ids = str(overrides.pop("job_ids", ""))
    return job(
        number,
        job_ids=job_ids,
        JobState="PENDING",
        Reason=reason,
        StartTime="Unknown",
        EndTime="Unknown",
        NodeList="",
        **overrides,
    )


def node(name: str, state: str, reason: str = "", booted: int = T0 - 5000) -> str:
    text = (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=16 \n   CPUAlloc=0 CPUTot=16\n   State={state} ThreadsPerCore=1\n"
    )
    return (
        text + f"   BootTime={booted} SlurmdStartTime={booted}\n" + (f"   Reason={reason}\n" if reason else "") + "\n"
    )


def update(jobs: JobChangeTracker, *texts: str, now: float = T0 + 100) -> list[JobEvent]:
    """The events that ``JobChangeTracker`` reports for these blocks."""
    events: list[JobEvent] = []
    jobs.update(blocks(iter("\n".join(texts).split("\n")), "JobId"), now, events)
    return events


def sentences(events: Sequence[JobEvent]) -> list[str]:
    return [event.text.partition("\t")[0] for event in events]


LIFE_CYCLES: list[tuple[list[str], list[str]]] = [
    ([pending(), job(), job(JobState="COMPLETED")], ["submitted, waits for Priority", "started on n[1-2]", "ended COMPLETED, exit code 0"]),
    ([pending(reason="None"), pending(reason="Resources"), pending(reason="None")], ["submitted", "waits for Resources"]),
    ([pending(), pending(reason="Resources"), pending(reason="Resources", LastSchedEval=5)], ["submitted, waits for Priority", "waits for Resources, before for Priority"]),
    ([pending(), pending(Priority=1010), pending(Priority=0, reason="JobHeldUser")], ["submitted, waits for Priority", "updated: Priority 1010 -> 0"]),
    ([job(), job(TimeLimit="02:00:00", Nice=5), job(RunTime="00:00:09", TimeLimit="02:00:00", Nice=5)], ["started on n[1-2]", "updated: TimeLimit 01:00:00 -> 02:00:00, Nice 0 -> 5"]),
    ([job(), job(JobState="SUSPENDED"), job()], ["started on n[1-2]", "suspended", "resumed"]),
    ([job(JobState="CONFIGURING"), job()], ["started on n[1-2]"]),
    ([job(), job(JobState="COMPLETING"), job(JobState="FAILED", ExitCode="3:0")], ["started on n[1-2]", "ended FAILED, exit code 3"]),
    ([job(), job(JobState="COMPLETING", Restarts=1), pending(reason="BeginTime", Restarts=1), job(Restarts=1)], ["started on n[1-2]", "requeued, waits for BeginTime", "started on n[1-2]"]),
    ([job(), job(Restarts=1, StartTime=T0 + 50)], ["started on n[1-2]", "started on n[1-2]"]),
    ([job(JobState="NODE_FAIL"), pending(reason="BeginTime", Restarts=1)], ["ended NODE_FAIL, exit code 0", "requeued, waits for BeginTime"]),
    ([job(JobState="OUT_OF_MEMORY", ExitCode="0:125")], ["ended OUT_OF_MEMORY, exit code 0"]),
    ([job(JobState="FAILED", ExitCode="0:9")], ["ended FAILED, exit code 0, signal 9"]),
    ([job(name="odd JobState=DONE Priority=0\nx|y\tz"), job(JobState="TIMEOUT")], ["started on n[1-2]", "ended TIMEOUT, exit code 0"]),
    ([job(JobState="SOMETHING_NEW")], ["ended SOMETHING_NEW, exit code 0"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("snapshots", "expected"), LIFE_CYCLES, ids=lambda case: case[-1] if len(case[-1]) < 60 else ""
)
def test_changes_between_snapshots_become_events_of_the_job(snapshots: list[str], expected: list[str]) -> None:
    jobs = JobChangeTracker()
    assert [line for text in snapshots for line in sentences(update(jobs, text))] == [
        f"job 7 {line}" for line in expected
    ]


def test_an_event_has_the_time_of_its_change() -> None:
    jobs = JobChangeTracker()
    times = [update(jobs, text)[0].time - T0 for text in (pending(), job(), job(JobState="FAILED", EndTime=T0 + 40))]
    assert times == [0, 10, 40]
    [late_event] = update(JobChangeTracker(), job(JobState="FAILED", EndTime=T0 + 4000))
    assert late_event.time == T0 + 100  # never later than now
    [requeue] = update(jobs, pending())
    assert (requeue.verb, requeue.time) == ("requeued", T0)


def test_events_of_array_and_heterogeneous_jobs_have_their_ids_and_the_record() -> None:
    array = " ArrayJobId=60 ArrayTaskId={}"
    events = update(
        JobChangeTracker(),
        job(64, job_ids=array.format("3")),
        pending(60, job_ids=array.format("4-9%2")),
        job(74, job_ids=" HetJobId=73 HetJobOffset=1"),
        job(9, name="a\tb"),
    )
    assert [(event.job, event.number) for event in events] == [("60_3", "64"), ("60", "60"), ("73+1", "74"), ("9", "9")]
    assert sentences(events)[:2] == ["job 60_3 started on n[1-2]", "job 60_[4-9%2] submitted, waits for Priority"]
    assert "\n" not in "".join(event.text for event in events)
    _, *parts = events[3].text.split("\t")
    assert parts[0] == "JobId=9 JobName=a b"
    assert parts[1].startswith("UserId=alice(1001)")


def test_jobs_that_slurm_no_longer_lists_are_returned() -> None:
    jobs = JobChangeTracker()
    update(jobs, job(7), job(8, JobState="COMPLETED"), pending(9))
    events: list[JobEvent] = []
    _, forgotten = jobs.update(blocks(iter(pending(9).split("\n")), "JobId"), T0 + 200, events)
    assert (forgotten, events, len(jobs)) == (["7"], [], 1)


def test_events_beyond_the_limit_are_reported_at_the_next_update() -> None:
    jobs = JobChangeTracker(max_lines=2)
    texts = [job(number) for number in range(1, 6)]
    assert [len(update(jobs, *texts)) for _ in range(4)] == [2, 2, 1, 0]


def test_the_queue_is_counted_by_state_and_reason() -> None:
    array = " ArrayJobId=60 ArrayTaskId={}"
    jobs, events = JobChangeTracker(), list[JobEvent]()
    texts = [
        job(1), job(2, JobState="COMPLETING"), pending(3, "Resources", EligibleTime=T0 - 50),
        pending(60, "JobArrayTaskLimit", job_ids=array.format("2-5,8,10-20:5%2"), EligibleTime="Unknown"),
    ]  # fmt: skip
    for _ in range(2):
        queue, _ = jobs.update(blocks(iter("\n".join(texts).split("\n")), "JobId"), T0 + 100, events)
        assert queue.states == {("RUNNING", "batch"): 1, ("COMPLETING", "batch"): 1, ("PENDING", "batch"): 9}
        assert queue.reasons == {("Resources", "batch"): 1, ("JobArrayTaskLimit", "batch"): 8}
        assert queue.oldest == {"batch": 150.0}


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_sdiag_statistics_match_the_golden(version: str, rewrite: bool) -> None:
    reading = Reading(time_ns=0)
    for name, value, labels in statistics((FOLDER / f"sdiag-{version}.txt").read_text().split("\n")):
        reading.sample(name, value, **labels)
    assert_conforms(reading, SOURCE)
    assert_golden(FOLDER / f"sdiag-{version}.expected.txt", exposition(reading), rewrite)


# -- with fake commands


class Slurm:
    """Fake Slurm commands that print the content of files and log their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "slurmctld.log"
        self.log.touch()
        self.set_output(
            jobs="", nodes="", config=CONFIG.format(self.log), sacct="", sdiag=(FOLDER / "sdiag-22.05.txt").read_text()
        )
        log_call = """printf '%s\\n' "$*" >> "$0.called" """
        columns = "JobID JobIDRaw State ExitCode Submit Start End Restarts MaxRSS"
        self.program("scontrol", f'for word; do :; done; cat "$0.$word"; {log_call}')
        self.program("sacct", f'if [ "$1" = --helpformat ]; then echo {columns}; else cat "$0.sacct"; {log_call}; fi')
        self.program("sdiag", f'cat "$0.sdiag"; {log_call}')

    def program(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def set_output(self, **texts: str) -> None:
        for name, text in texts.items():
            owner = name if name in ("sacct", "sdiag") else "scontrol"
            (self.folder / f"{owner}.{name}").write_text(text)

    def calls_of(self, name: str) -> list[str]:
        path = self.folder / f"{name}.called"
        return path.read_text().splitlines() if path.exists() else []

    def open_source(self, options: ControllerOptions | None = None) -> Collector:
        # PATH suffices: the fake commands use only shell builtins and cat
        return open_source(SOURCE, LocalNode("ctl"), options=options or ControllerOptions(bin=f"{self.folder}"))


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def read(collector: Collector, now: float = T0 + 100) -> Reading:
    reading = Reading(time_ns=int(now * 1e9))
    collector.collect(reading)
    assert_conforms(reading, SOURCE)
    return reading


def labeled_sentences(reading: Reading) -> list[tuple[dict[str, str], str]]:
    return [(dict(line.labels), line.text.partition("\t")[0]) for line in reading.lines]


def test_jobs_nodes_and_statistics_are_collected(slurm: Slurm) -> None:
    slurm.set_output(
        jobs=job(7) + "\n" + pending(8),
        nodes=node("n1", "IDLE") + node("n2", "MIXED+DRAIN", f"bad fan [root@{T0}]"),
    )
    collector = slurm.open_source()
    first = read(collector)
    assert labeled_sentences(first) == [
        ({"filename": "scontrol", "slurm_job_id": "7"}, "job 7 started on n[1-2]"),
        ({"filename": "scontrol", "slurm_job_id": "8"}, "job 8 submitted, waits for Priority"),
        ({"node": "n2", "unit": "scontrol"}, f"node n2 is MIXED+DRAIN: bad fan [root@{T0}]"),
    ]
    assert first.lines[2].time_ns == T0 * 1_000_000_000
    lines = exposition(first).splitlines()
    for expected in (
        'slurm_jobs{partition="batch",state="running"} 1',
        'slurm_jobs_pending{partition="batch",reason="Priority"} 1',
        'slurm_pending_oldest_seconds{partition="batch"} 100',
        'slurm_nodes{state="draining"} 1',
        'slurm_node_available{node="n1"} 1',
        'slurm_node_available{node="n2"} 0',
        "slurm_controller_up 1",
        "slurm_accounting_queue 0",
    ):
        assert expected in lines, expected
    assert slurm.calls_of("scontrol") == ["show config", "-a -d show jobs", "-a show nodes"]
    second = read(collector, T0 + 115)
    assert second.lines == []
    assert 'slurm_node_state_seconds_total{node="n2",state="draining"} 15' in exposition(second).splitlines()
    assert "slurm_accounting_queue" not in exposition(second)  # once a minute
    assert len(slurm.calls_of("sdiag")) == 1


def test_changes_of_node_states_are_reported(slurm: Slurm) -> None:
    collector = slurm.open_source()
    texts = []
    for state, reason, booted in (
        ("IDLE", "", 0), ("ALLOCATED", "", 0), ("ALLOCATED*", "", 0),
        ("DOWN+NOT_RESPONDING", f"Not responding [slurm@{T0 + 90}]", 0), ("DOWN", f"Not responding [slurm@{T0 + 90}]", 0),
        ("IDLE", "", 900), ("IDLE", "", 910), ("IDLE+DRAIN", "why not", 910), ("IDLE+DRAIN", "other", 910),
    ):  # fmt: skip
        slurm.set_output(nodes=node("n1", state, reason, T0 - 5000 + booted))
        texts += [text for _, text in labeled_sentences(read(collector))]
    assert texts == [
        "node n1 is ALLOCATED*",
        f"node n1 is DOWN+NOT_RESPONDING: Not responding [slurm@{T0 + 90}]",
        "node n1 booted",
        "node n1 is IDLE",
        "node n1 is IDLE+DRAIN: why not",
        "node n1 is IDLE+DRAIN: other",
    ]


ROWS = (
    "7\x1f7\x1fREQUEUED\x1f0:0\x1f1795313000\x1f1795313010\x1f1795313020\x1f0\x1f",
    "7\x1f7\x1fFAILED\x1f3:0\x1f1795313020\x1f1795313030\x1f1795313040\x1f1\x1f",
    "7.batch\x1f7.batch\x1fFAILED\x1f3:0\x1f1795313030\x1f1795313030\x1f1795313040\x1f1\x1f4000K",
)


def test_accounting_is_queried_after_a_job_ends(slurm: Slurm) -> None:
    collector = slurm.open_source()
    slurm.set_output(jobs=job(7, JobState="FAILED", ExitCode="3:0", EndTime=T0 + 40))
    assert len(read(collector).lines) == 1
    assert slurm.calls_of("sacct") == []
    slurm.set_output(
        sacct="\n".join([ROWS[0], "7\x1f7\x1fRUNNING\x1f0:0\x1f1795313020\x1f1795313030\x1fUnknown\x1f1\x1f"]) + "\n"
    )
    assert read(collector, T0 + 111).lines == []  # accounting has no end yet
    [call] = slurm.calls_of("sacct")
    assert call.startswith(
        "-n -D -P --delimiter=\x1f --format=JobID,JobIDRaw,State,ExitCode,Submit,Start,End,Restarts,MaxRSS -j 7"
    )
    slurm.set_output(sacct="\n".join(ROWS) + "\nhalf a row\n")
    assert read(collector, T0 + 120).lines == []  # the delay doubles with each query
    last = read(collector, T0 + 132)
    assert labeled_sentences(last) == [
        ({"filename": "scontrol", "slurm_job_id": "7"}, "job 7 accounted for as REQUEUED"),
        ({"filename": "scontrol", "slurm_job_id": "7"}, "job 7 accounted for as FAILED"),
        ({"filename": "scontrol", "slurm_job_id": "7"}, "step 7.batch accounted for as FAILED"),
    ]
    assert [line.time_ns // 1_000_000_000 - T0 for line in last.lines] == [20, 40, 40]
    assert read(collector, T0 + 500).lines == []
    assert len(slurm.calls_of("sacct")) == 2


def test_accounting_is_queried_for_a_job_that_disappeared(slurm: Slurm) -> None:
    collector = slurm.open_source()
    slurm.set_output(jobs=job(7))
    read(collector)
    slurm.set_output(jobs="", sacct="\n".join(ROWS[1:]) + "\n")
    assert read(collector, T0 + 115).lines == []
    assert next(text for _, text in labeled_sentences(read(collector, T0 + 130))) == "job 7 accounted for as FAILED"


def test_accounting_may_be_off_or_fail(slurm: Slurm) -> None:
    collector = slurm.open_source(ControllerOptions(bin=str(slurm.folder), accounting=False))
    slurm.set_output(jobs=job(7, JobState="FAILED"))
    for after_s in (100, 200, 300):
        read(collector, T0 + after_s)
    assert slurm.calls_of("sacct") == []
    failing = slurm.open_source()
    slurm.program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    read(failing, T0 + 100)
    reading = read(failing, T0 + 120)
    assert reading.warnings == ["sacct exited with status 1: Slurm accounting storage is disabled"]
    assert "slurm_controller_up 1" in exposition(reading)


def test_an_unreachable_controller_is_reported_and_retried_later(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = slurm.open_source()
    slurm.set_output(jobs=job(7))
    read(collector)
    working_script = (slurm.folder / "scontrol").read_text()
    slurm.program(
        "scontrol", "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    )
    reading = read(collector, T0 + 115)
    assert "slurm_controller_up 0" in exposition(reading)
    assert reading.warnings == [
        "scontrol exited with status 1: slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    ]
    assert read(collector, T0 + 130).samples == []  # no query for a while
    (slurm.folder / "scontrol").write_text(working_script)
    now = time.monotonic()
    monkeypatch.setattr(collector, "_clock", lambda: now + 100)
    recovered = read(collector, T0 + 160)
    assert "slurm_controller_up 1" in exposition(recovered)
    assert recovered.lines == []  # the job has not changed


def test_truncated_output_loses_no_job(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = slurm.open_source()
    slurm.set_output(jobs=job(7) + "\n" + job(8))
    working_script = (slurm.folder / "scontrol").read_text()
    slurm.program("scontrol", 'cat "$0.jobs"; exit 1')
    assert [text for _, text in labeled_sentences(read(collector))] == [
        "job 7 started on n[1-2]"
    ]  # the last block may be truncated
    (slurm.folder / "scontrol").write_text(working_script)
    now = time.monotonic()
    monkeypatch.setattr(collector, "_clock", lambda: now + 100)
    assert [text for _, text in labeled_sentences(read(collector, T0 + 160))] == ["job 8 started on n[1-2]"]


def test_a_slow_controller_is_queried_less_often(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = slurm.open_source()
    times = iter([0.0, 4.0, 79.0, 81.0, 81.1])
    monkeypatch.setattr(collector, "_clock", lambda: next(times))
    assert read(collector).samples
    assert not read(collector, T0 + 115).samples
    assert read(collector, T0 + 130).samples


def test_commands_are_bounded_in_time_and_output(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(str(slurm.folder), timeout_s=2.0)
    slurm.program("scontrol", "echo started; exec sleep 60")
    lines = commands.lines("scontrol")
    assert next(lines) == "started"
    begin = time.monotonic()
    with pytest.raises(CommandFailed, match="did not end in time"):
        list(lines)
    assert time.monotonic() - begin < 15
    slurm.program("scontrol", "exec yes 'a line that comes again and again'")
    monkeypatch.setattr(command_module, "MAX_OUTPUT_BYTES", 1 << 20)
    with pytest.raises(CommandFailed, match=r"wrote more than 1,048,576 bytes"):
        list(commands.lines("scontrol"))
    slurm.program("scontrol", "head -c 300000 /dev/zero | tr '\\0' x; echo; echo last")
    monkeypatch.setattr(command_module, "MAX_OUTPUT_BYTES", 1 << 24)
    assert [len(line) for line in commands.lines("scontrol")] == [command_module.MAX_LINE_BYTES, 4]
    with pytest.raises(CommandFailed, match="nothing is not on the PATH"):
        list(commands.lines("nothing"))
    unfinished = commands.lines("scontrol")
    next(unfinished)
    unfinished.close()  # otherwise the test would end with a warning about a running process


def test_commands_have_a_fixed_environment(slurm: Slurm) -> None:
    slurm.program("scontrol", 'echo "$SLURM_TIME_FORMAT $LC_ALL $SLURM_CONF $SCONTROL_ALL."')
    commands = Commands(str(slurm.folder), conf="/c", environ={"SCONTROL_ALL": "1", "SLURM_TIME_FORMAT": "x"})
    assert list(commands.lines("scontrol")) == ["%s C /c ."]


def test_the_log_of_slurmctld_is_followed_across_rotation_and_truncation(slurm: Slurm) -> None:
    slurm.log.write_text("[2026-11-22T02:00:00.500] error: an old line\n")
    collector = slurm.open_source()
    first = [line for line in read(collector).lines if dict(line.labels).get("unit") == "slurmctld"]
    assert [line.text for line in first] == ["[2026-11-22T02:00:00.500] error: an old line"]
    with slurm.log.open("a") as file:
        file.write("[2026-11-22T02:00:01+00:00] zoned\nno stamp\nhalf")
        file.flush()
        assert [line.text for line in read(collector).lines] == ["[2026-11-22T02:00:01+00:00] zoned", "no stamp"]
        file.write(" a line\n")
    slurm.log.rename(slurm.log.with_suffix(".1"))
    with slurm.log.with_suffix(".1").open("a") as file:
        file.write("before it was rotated\n")
    slurm.log.write_text("after\n")
    assert [line.text for line in read(collector).lines] == ["half a line", "before it was rotated", "after"]
    slurm.log.write_text("x\n")  # cut short
    reading = read(collector)
    assert [line.text for line in reading.lines] == ["x"]
    assert reading.warnings == [f"{slurm.log} was truncated: reading it from the beginning"]
    slurm.log.unlink()
    assert read(collector).lines == []
    slurm.log.write_text("there again\n")
    assert [line.text for line in read(collector).lines] == ["there again"]
    collector.close()


def test_a_log_that_does_not_exist_yet_is_followed_once_it_does(slurm: Slurm) -> None:
    slurm.log.unlink()
    collector = slurm.open_source()
    reading = read(collector)
    assert "slurm_controller_up 1" in exposition(reading)
    assert reading.warnings == [
        f"{slurm.log} cannot be read now (No such file or directory); every reading tries again"
    ]
    slurm.log.write_text("[2026-11-22T02:00:00+00:00] slurmctld started\n")
    reading = read(collector, T0 + 115)
    assert [line.text for line in reading.lines] == ["[2026-11-22T02:00:00+00:00] slurmctld started"]
    assert reading.warnings == []
    collector.close()


def test_without_slurm_the_source_is_unavailable(slurm: Slurm, tmp_path: Path) -> None:
    with pytest.raises(AgentSourceUnavailable, match="scontrol is not installed"):
        open_source(SOURCE, options=ControllerOptions(bin=str(tmp_path / "nowhere")))
    slurm.program("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(AgentSourceUnavailable, match="Unable to contact"):
        slurm.open_source()
    for options in ({"statistics_s": 0.0}, {"command_timeout_s": 0.0}, {"command_timeout_s": SOURCE.timeout_s}):
        with pytest.raises(ValueError, match="it must be"):
            ControllerOptions(**options)
