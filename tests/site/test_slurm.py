"""Live queries to Slurm, with commands that replay recorded output, fail, hang, print garbage or print without end."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import socketserver
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from trackside.http.unavailable import SourceUnavailable
from trackside.model import Input
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource
from trackside.read.walk import walk
from trackside.runs.attempts import attempts_of, final_attempt
from trackside.runs.jobs import Job, collect_jobs
from trackside.site import outputs, slurm_commands
from trackside.site.slurm import SeveralClusters, SlurmAnswer, query_slurm
from trackside.site.slurm_options import SlurmOptions
from trackside.site.slurm_replies import Reply, job_id
from trackside.site.slurmrestd import _Unix

RECORDED = Path(__file__).parent.parent / "slurm" / "22.05.8"
"""Output of a real Slurm 22.05.8 for two jobs and an array, with renamed users and folders."""
SHARED = Path(__file__).resolve().parents[3] / "shared" / "slurm" / "records"
NONE = "slurm_load_jobs error: Invalid job id specified"
DOWN = "sacct: error: Problem talking to the database: Connection refused"


class Bin:
    """A folder of commands whose output depends on the beginning of their arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self._cases: dict[str, list[str]] = {}
        for name in ("sacct", "scontrol", "squeue"):
            self._write(name)

    def say(self, command: str, output: Path | str = "", status: int = 0, error: str = "", run: str = "") -> None:
        """Set the output of a command line prefix. ``run``: shell text in place of output and status."""
        name, _, arguments = command.partition(" ")
        if isinstance(output, str):
            path = self.folder / f"output-{len(list(self.folder.iterdir()))}"
            path.write_text(output)
            output = path
        echo = f"echo {shlex.quote(error)} >&2; " if error else ""
        body = run or f"cat {shlex.quote(str(output))}; {echo}exit {status}"
        self._cases.setdefault(name, []).insert(0, f"{shlex.quote(arguments)}*) {body};;")
        self._write(name)

    def recorded_calls(self) -> list[str]:
        """The calls so far."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def _write(self, name: str) -> None:
        path = self.folder / name
        cases = "\n".join(self._cases.get(name, []))
        path.write_text(
            f'#!/bin/sh\necho "{name} $*" >> {self.calls}\ncase "$*" in\n{cases}\n'
            f'*) echo "{name}: unexpected: $*" >&2; exit 97;;\nesac\n'
        )
        path.chmod(0o755)


@pytest.fixture
def bin_(tmp_path: Path) -> Bin:
    """Slurm 22.05.8 while job 7, which depended on the failed job 6, was running."""
    (tmp_path / "bin").mkdir()
    commands = Bin(tmp_path / "bin")
    commands.say("sacct --version", "slurm-wlm 22.05.8\n")
    commands.say("sacct --helpformat", RECORDED / "sacct.helpformat")
    commands.say("sacct -X --name", (RECORDED / "6.sacct").read_text().split("\n")[0] + "\n")
    commands.say("sacct -B", "")
    for job in ("6", "7"):
        commands.say(f"sacct -D -j {job}", RECORDED / f"{job}.sacct")
        commands.say(f"scontrol show job -d {job}", RECORDED / f"{job}.job")
        commands.say(f"scontrol show step {job}", RECORDED / f"{job}.step")
    commands.say("scontrol show node", RECORDED / "nodes")
    return commands


def ask(commands: Bin, job: str, **options: Any) -> SlurmAnswer:
    environ = {**os.environ, "PATH": f"{commands.folder}:/usr/bin:/bin"}
    return query_slurm(SlurmOptions(**{"timeout_s": 5.0, **options}), job, environ)


def records(answer: SlurmAnswer) -> CollectingSink:
    sink = CollectingSink()
    for source in answer.sources:
        assert read_source(source, sink).status == "read", source.path
    return sink


def notes(answer: SlurmAnswer) -> str:
    return "\n".join(f"{row.path}: {row.status}: {row.note}" for row in answer.rows)


# -- known jobs


def test_a_running_job_its_nodes_gpus_steps_and_parent(bin_: Bin) -> None:
    answer = ask(bin_, "7")
    assert (answer.stage, answer.is_going, answer.parents, answer.cluster) == ("going", True, ("6",), "lab")
    assert (answer.nodes, answer.start, answer.end) == (("c1", "c2"), 1795289425.0, None)
    sink = records(answer)
    jobs = collect_jobs(sink.records)
    assert {job.id for job in jobs} == {"6", "7"}
    job = jobs.find("7")
    assert job is not None
    assert [row.many("gpus") for row in job.rows if row.get("source") == "scontrol"] == [
        tuple(f"{node}:{gpu}" for node in ("c1", "c2") for gpu in range(4))
    ]
    assert {row.get("name") for row in sink.records if row.kind == "node"} == {"c1", "c2"}
    assert {row.get("id") for row in sink.records if row.kind == "step" and row.get("source") == "scontrol"} == {
        "7.extern", "7.batch", "7.0"
    }  # fmt: skip
    # The output files of the job and its parent are on another machine.
    assert [row.path for row in answer.rows] == ["/data/jobs/train-b-7.log", "/data/jobs/slurm-6.out"]
    assert "run trackside where it is, or pass its path" in answer.rows[0].note


def test_times_are_epochs_in_any_time_zone(bin_: Bin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    monkeypatch.setenv("SACCT_FORMAT", "jobid")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    bin_.say("sacct -D -j 7", run=f"env > {bin_.folder}/environment; cat {RECORDED}/7.sacct")
    assert ask(bin_, "7").start == 1795289425.0
    environment = (bin_.folder / "environment").read_text().splitlines()
    assert {"SLURM_TIME_FORMAT=%s", "LC_ALL=C"} <= set(environment)
    assert not any(line.startswith("SACCT_FORMAT") for line in environment)


def test_an_old_job_is_known_only_to_accounting(bin_: Bin) -> None:
    bin_.say("scontrol show job -d 6", status=1, error=NONE)
    answer = ask(bin_, "6")
    assert (answer.stage, answer.is_going, answer.end) == ("settled", False, 1795289425.0)
    assert "controller" not in notes(answer)
    assert not any("show step" in call for call in bin_.recorded_calls())


def test_only_columns_that_sacct_lists_are_requested(bin_: Bin) -> None:
    ask(bin_, "6")
    [call] = [call for call in bin_.recorded_calls() if call.startswith("sacct -D -j 6")]
    columns = call.partition("--format=")[2].split(",")
    assert "SubmitLine" in columns
    assert not {"StdOut", "FailedNode", "Restarts"} & set(columns)
    assert "--json" not in call


def test_json_is_requested_from_versions_with_correct_exit_codes(bin_: Bin) -> None:
    for version, json in (("22.05.8", False), ("23.02.7", False), ("23.11.0", True), ("25.05.1", True)):
        bin_.say("sacct --version", f"slurm {version}\n")
        before = len(bin_.recorded_calls())
        ask(bin_, "6")
        assert any("--json" in call for call in bin_.recorded_calls()[before:]) is json


def test_output_is_found_by_the_pattern_of_the_submit_line(bin_: Bin, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train-b-7.log").write_text("step 1\n")
    (folder / "slurm-6.out").write_text("hello\n")
    user = getpass.getuser()
    for job in ("6", "7"):
        text = (RECORDED / f"{job}.sacct").read_text().replace("/data/jobs", str(folder)).replace("alice", user)
        bin_.say(f"sacct -D -j {job}", text)
        bin_.say(f"scontrol show job -d {job}", status=1, error=NONE)
    answer = ask(bin_, "7")
    assert answer.logs == (str(folder / "train-b-7.log"), str(folder / "slurm-6.out"))


def test_an_array_and_one_of_its_tasks(bin_: Bin) -> None:
    bin_.say("sacct -D -j 3", RECORDED / "3.sacct")
    bin_.say("scontrol show job -d 3", status=1, error=NONE)
    answer = ask(bin_, "3")
    assert {"3_0", "3_1", "3_2"} <= set(answer.names)
    assert ask(bin_, "3_1").names == ("3_1", "5")


def test_a_step_id_selects_its_job(bin_: Bin) -> None:
    assert ask(bin_, "7.batch").job == "7"
    assert (job_id(" 60_3 "), job_id("73+0")) == ("60_3", "73+0")


@pytest.mark.parametrize("text", ["", "foo", "7; rm -rf /", "-j", "7 8", "../7", "60_[1-3]", "7\n8", "--json", "7,8"])
def test_an_invalid_job_id_never_reaches_a_command(bin_: Bin, text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a Slurm job id; write 42"):
        ask(bin_, text)
    assert bin_.recorded_calls() == []


def test_an_earlier_job_of_the_same_name_is_the_parent(bin_: Bin) -> None:
    row = (RECORDED / "6.sacct").read_text()
    earlier = row.replace("train-a", "train-b").replace("17952894", "17952880")
    bin_.say("sacct -X --name", earlier.replace("\n6\x1f6", "\n5\x1f5"))
    bin_.say("sacct -D -j 5", earlier.replace("\n6", "\n5").replace("\x1f6\x1f", "\x1f5\x1f"))
    bin_.say("sacct -D -j 7", (RECORDED / "7.sacct").read_text().replace("-d afterany:6 ", ""))
    answer = ask(bin_, "7")
    assert answer.parents == ("5",)
    [call] = [call for call in bin_.recorded_calls() if "--name" in call]
    assert "--name=train-b --user=alice -Suts1795203025 -Euts1795289425" in call


def test_clusters_are_queried_in_turn_and_a_job_on_two_is_refused(bin_: Bin) -> None:
    bin_.say("sacct -M b -D", (RECORDED / "6.sacct").read_text().split("\n")[0] + "\n")
    bin_.say("scontrol -M b", status=1, error=NONE)
    for rest in ("sacct -M a -D -j 6", "sacct -M c -D -j 6"):
        bin_.say(rest, RECORDED / "6.sacct")
    for cluster in ("a", "c"):
        bin_.say(f"scontrol -M {cluster} show job", RECORDED / "6.job")
        bin_.say(f"scontrol -M {cluster} show node", RECORDED / "nodes")
        bin_.say(f"sacct -M {cluster} -X", (RECORDED / "6.sacct").read_text().split("\n")[0] + "\n")
        bin_.say(f"sacct -M {cluster} -B", "")
    answer = ask(bin_, "6", clusters=("b", "a"))
    assert "sacct -M a -D -j 6" in {reply.path for reply in answer.replies}
    assert "sacct -M d" not in notes(answer)
    bin_.say("sacct -M d -D", status=1, error=DOWN)
    bin_.say("scontrol -M d", status=1, error=NONE)
    assert "sacct -M d -D -j 6: unreadable" in notes(ask(bin_, "6", clusters=("d", "a")))
    with pytest.raises(SeveralClusters, match="job 6 is on the clusters a and c; choose one"):
        ask(bin_, "6", clusters=("a", "c"))


# -- errors


def test_an_unknown_job_is_reported_by_accounting_and_controller(bin_: Bin) -> None:
    bin_.say("sacct -D -j 99", (RECORDED / "6.sacct").read_text().split("\n")[0] + "\n")
    bin_.say("scontrol show job -d 99", status=1, error=NONE)
    answer = ask(bin_, "99")
    assert (answer.is_known, answer.stage, answer.is_going, answer.replies) == (False, "unknown", None, ())
    assert [row.status for row in answer.rows] == ["empty", "empty"]
    assert "PrivateData" in answer.rows[0].note
    assert getpass.getuser() in answer.rows[0].note


def test_accounting_down_leaves_the_controller_and_a_row(bin_: Bin) -> None:
    bin_.say("sacct -D", status=1, error=DOWN)
    answer = ask(bin_, "7")
    assert (answer.stage, answer.is_known) == ("going", True)
    [row] = [row for row in answer.rows if row.path.startswith("sacct")]
    assert (row.status, row.plane) == ("unreadable", "scheduler")
    assert "Connection refused" in row.note
    assert "is the daemon up" in row.note


def test_a_cluster_without_accounting_is_reported(bin_: Bin) -> None:
    bin_.say("sacct", status=1, error="Slurm accounting storage is disabled")
    answer = ask(bin_, "7")
    assert answer.is_known
    assert "this cluster has no accounting" in notes(answer)


def test_controller_down_leaves_accounting_and_a_row(bin_: Bin) -> None:
    bin_.say("scontrol", status=1, error="slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    answer = ask(bin_, "6")
    assert (answer.stage, answer.is_known) == ("settled", True)
    assert "Unable to contact" in notes(answer)


def test_squeue_replaces_scontrol_if_that_is_refused(bin_: Bin) -> None:
    bin_.say("scontrol show job", status=1, error="slurm_load_jobs error: Access/permission denied")
    bin_.say("squeue --states=all -j 7", RECORDED / "7.squeue")
    bin_.say("sacct -D", status=1, error=DOWN)
    answer = ask(bin_, "7")
    assert (answer.stage, answer.nodes) == ("going", ("c1", "c2"))
    assert "query as the job's owner or an operator" in notes(answer)


def test_missing_commands_are_reported(tmp_path: Path) -> None:
    answer = query_slurm(SlurmOptions(), "7", {"PATH": str(tmp_path)})
    assert answer.stage == "unknown"
    assert "not on PATH (set slurm.bin or slurm.url)" in notes(answer)
    answer = query_slurm(SlurmOptions(bin=str(tmp_path)), "7", {"PATH": os.environ["PATH"]})
    assert f"not in {tmp_path} (set slurm.bin" in notes(answer)


@pytest.mark.parametrize(
    "text", ["no such thing\n" * 3, "\x00\x01\x02" * 40, "{", '{"jobs": 5}', "<html>login</html>", "{}"]
)
def test_garbage_output_is_reported_and_not_used(bin_: Bin, text: str) -> None:
    bin_.say("sacct -D", text)
    bin_.say("scontrol show job", text)
    answer = ask(bin_, "7")
    assert (answer.is_known, answer.replies) == (False, ())
    assert {row.path for row in answer.rows if row.status == "unreadable"} == {
        "sacct -D -j 7",
        "scontrol show job -d 7",
    }


def test_a_hanging_command_is_stopped_with_its_children(bin_: Bin) -> None:
    bin_.say("sacct -D", run=f"sleep 300 & echo $! > {bin_.folder}/child; wait")
    start = time.monotonic()
    answer = ask(bin_, "7", timeout_s=0.5)
    assert time.monotonic() - start < 5
    assert "sacct did not end within 0.5 s and was stopped" in notes(answer)
    assert answer.is_known
    assert has_ended(int((bin_.folder / "child").read_text()))


def test_a_hanging_controller_is_not_queried_again(bin_: Bin) -> None:
    bin_.say("scontrol", run="sleep 300")
    answer = ask(bin_, "6", timeout_s=0.5)
    assert answer.is_known
    assert [call for call in bin_.recorded_calls() if call.startswith(("scontrol", "squeue"))] == [
        "scontrol show job -d 6"
    ]


def test_a_hanging_query_for_the_steps_of_an_array_is_tried_once(bin_: Bin) -> None:
    text = (RECORDED / "3.sacct").read_text().replace("COMPLETED", "RUNNING")
    bin_.say("sacct -D -j 3", text)
    bin_.say("scontrol show job -d 3", (RECORDED / "7.job").read_text())
    bin_.say("scontrol show step", run="sleep 300")
    start = time.monotonic()
    answer = ask(bin_, "3", timeout_s=0.5)
    assert answer.stage == "going"
    assert time.monotonic() - start < 4
    assert len([call for call in bin_.recorded_calls() if "show step" in call]) == 1


def test_output_over_the_size_limit_is_refused(bin_: Bin) -> None:
    bin_.say("sacct -D", run="head -c 100000000 /dev/zero")
    answer = ask(bin_, "7", max_answer_bytes=1 << 20)
    assert "sacct wrote more than 1,048,576 bytes and was stopped" in notes(answer)


def test_a_child_that_keeps_the_output_open_is_not_awaited(tmp_path: Path) -> None:
    script = tmp_path / "wrapper"
    script.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {tmp_path}/child\necho done\n")
    script.chmod(0o755)
    result = slurm_commands.run([str(script)], timeout_s=20, max_bytes=1000)
    assert (result.status, result.output) == (0, b"done\n")
    assert has_ended(int((tmp_path / "child").read_text()))


def test_a_command_that_cannot_be_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable) as caught:
        slurm_commands.run([str(tmp_path / "none")], timeout_s=1, max_bytes=1)
    assert caught.value.kind == "unreachable"
    (tmp_path / "plain").write_text("x")
    with pytest.raises(SourceUnavailable) as caught:
        slurm_commands.run([str(tmp_path / "plain")], timeout_s=1, max_bytes=1)
    assert caught.value.kind == "refused"


def test_a_job_whose_end_is_not_in_accounting_is_not_settled(bin_: Bin) -> None:
    bin_.say("scontrol show job -d 7", (RECORDED / "7.job").read_text().replace("RUNNING", "COMPLETED"))
    assert ask(bin_, "7").stage == "ended"
    bin_.say("sacct -D -j 7", status=1, error=DOWN)
    assert ask(bin_, "7").stage == "settled"


def test_a_job_that_runs_only_in_accounting_is_not_shown_as_running(bin_: Bin, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_.say("scontrol show job -d 7", status=1, error=NONE)
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    answer = ask(bin_, "7")
    assert answer.is_going is False
    assert "accounting never received its end" in notes(answer)
    monkeypatch.setattr("getpass.getuser", lambda: "bob")
    monkeypatch.setattr("os.geteuid", lambda: 1002)
    answer = ask(bin_, "7")
    assert answer.is_going is None
    assert "so its state is unknown" in notes(answer)


def test_a_requeued_job_that_is_pending_has_not_ended(bin_: Bin) -> None:
    head, *rows = (RECORDED / "6.sacct").read_text().splitlines()
    columns, fields = head.split("\x1f"), rows[0].split("\x1f")
    waiting = {"State": "PENDING", "Submit": "1795289500", "Eligible": "Unknown", "Start": "Unknown", "End": "Unknown"}
    again = "\x1f".join(waiting.get(column, value) for column, value in zip(columns, fields, strict=True))
    bin_.say("sacct -D -j 6", "\n".join([head, rows[0].replace("FAILED", "REQUEUED"), again]) + "\n")
    bin_.say("scontrol show job -d 6", status=1, error="slurm_load_jobs error: Unable to contact slurm controller")
    assert ask(bin_, "6").stage == "going"


def test_a_requeued_job_without_its_next_attempt_in_accounting_has_not_ended(bin_: Bin) -> None:
    head, *rows = (RECORDED / "6.sacct").read_text().splitlines()
    bin_.say("sacct -D -j 6", "\n".join([head, rows[0].replace("FAILED", "REQUEUED")]) + "\n")
    bin_.say("scontrol show job -d 6", status=1, error="slurm_load_jobs error: Unable to contact slurm controller")
    assert ask(bin_, "6").stage == "going"


# -- output files


def started_job(folder: Path, std_out: str, **fields: str) -> Job:
    """A started job of the current user that wrote to ``std_out``."""
    head = ["JobID", "JobIDRaw", "JobName", "User", "State", "Start", "End", "NodeList", "WorkDir", "StdOut"]
    values = {"JobID": "60_3", "JobIDRaw": "64", "JobName": "train", "User": getpass.getuser(), "State": "FAILED",
              "Start": "1795289425", "End": "1795289430", "NodeList": "c[1-2]", "WorkDir": str(folder), "StdOut": std_out}  # fmt: skip
    text = "|".join([*head, *fields]) + "\n" + "|".join([*values.values(), *fields.values()]) + "\n"
    sink = CollectingSink()
    assert read_source(Reply("sacct", text.encode()).source(), sink).status == "read"
    [job] = collect_jobs(sink.records)
    return job


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("slurm-%A_%a.out", ["slurm-60_3.out"]),
        ("%x/%u-%j.log", [f"train/{getpass.getuser()}-64.log"]),
        ("out.%5a", ["out.00003"]),
        ("log-%t.txt", ["log-0.txt", "log-1.txt", "log-12.txt"]),
        ("%N/rank%2t.log", ["c1/rank00.log", "c2/rank01.log"]),
        ("a%%b-%j", ["a%b-64"]),
        ("\\%j.out", ["%j.out"]),
        ("run-%J.%s", ["run-64.0.batch"]),
    ],
)
def test_patterns_of_output_paths(tmp_path: Path, pattern: str, names: list[str]) -> None:
    for name in [*names, "other/rank00.log", "log-x.txt", "slurm-60_4.out"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    paths = outputs.outputs(started_job(tmp_path, pattern))
    assert paths.paths == [str(tmp_path / name) for name in names]
    assert paths.rows == []


def test_unavailable_output_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def row_of(path: str) -> Input:
        paths = outputs.outputs(started_job(tmp_path, path))
        assert paths.paths == []
        [row] = paths.rows
        return row

    assert "discarded" in row_of("/dev/null").note
    assert "not on this machine" in row_of("gone.out").note
    assert "there is no such file on this machine" in row_of("gone-%t.out").note
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in row_of("fifo").note
    secret = tmp_path / "secret"
    secret.write_text("token\n")
    secret.chmod(0o600)
    other = outputs.outputs(job_of_another_user(tmp_path, "secret"))
    assert other.paths == []
    assert other.rows[0].status == "refused"
    assert "does not belong to the job's user" in other.rows[0].note
    monkeypatch.setattr("os.access", lambda path, mode: False)
    secret.chmod(0o600)
    assert "you may not read it" in row_of("secret").note


def test_world_readable_output_is_read_if_the_jobs_user_can_reach_it() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "inner").mkdir(mode=0o755)
        (folder / "inner" / "log").write_text("x\n")
        (folder / "inner" / "log").chmod(0o604)
        folder.chmod(0o755)
        assert outputs.outputs(job_of_another_user(folder / "inner", "log")).paths == [str(folder / "inner" / "log")]
        folder.chmod(0o700)
        paths = outputs.outputs(job_of_another_user(folder / "inner", "log"))
        assert paths.paths == []
        assert "the job's user (no-such-user) cannot enter its folder" in paths.rows[0].note
        assert outputs.outputs(started_job(folder / "inner", "log")).paths == [str(folder / "inner" / "log")]


@pytest.mark.parametrize("swap", ["link", "file", "folder", "fifo"])
def test_a_file_swapped_after_the_check_is_not_read(tmp_path: Path, swap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root:s3cret\n")
    secret.chmod(0o600)
    log = tmp_path / "log"
    log.write_text("mine\n")
    paths = outputs.outputs(started_job(tmp_path, "log"))
    assert paths.paths == [str(log)]
    [before] = walk(paths.files)
    assert isinstance(before, InputSource)
    if swap in ("link", "file"):  # the job's user no longer owns the file
        monkeypatch.setattr(outputs, "_ids", lambda user: (os.getuid() + 1, frozenset()))
    log.unlink()
    swaps = {"link": lambda: log.symlink_to(secret), "file": lambda: secret.rename(log),
             "folder": log.mkdir, "fifo": lambda: os.mkfifo(log)}  # fmt: skip
    swaps[swap]()
    if swap == "folder":
        (log / "within").write_text("x\n")
    [row] = walk(paths.files)
    assert isinstance(row, Input)
    assert row.status == "refused"
    assert ("it does not belong to the job's user" in row.note) == (swap in ("link", "file"))


def test_a_file_replaced_by_a_link_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = tmp_path / "log", tmp_path / "other"
    for path in (log, other):
        path.write_text("x\n")
    paths = outputs.outputs(started_job(tmp_path, "log"))
    log.unlink()
    log.symlink_to(other)
    monkeypatch.setattr(os.path, "realpath", os.path.abspath)  # the path was still a file when it was resolved
    [row] = walk(paths.files)
    assert isinstance(row, Input)
    assert row.status == "unreadable"
    assert "symbolic links" in row.note


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("length", ["Content-Length: 100000", "Connection: close"])
@pytest.mark.parametrize("drip", ["head", "body"])
def test_a_socket_that_sends_byte_by_byte_times_out(tmp_path: Path, status: int, length: str, drip: str) -> None:
    class Dripping(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            with contextlib.suppress(OSError):
                self.request.sendall(f"HTTP/1.1 {status} X\r\n{length}\r\n".encode())
                if drip == "body":
                    self.request.sendall(b"\r\n")
                for number in range(100):
                    self.request.sendall(f"X-{number}: x\r\n".encode() if drip == "head" else b"x")
                    time.sleep(0.1)

    with serving(tmp_path / "s", Dripping) as unix:
        start = time.monotonic()
        with pytest.raises(SourceUnavailable, match=r"did not answer within 0.5 s") as caught:
            _Unix(unix, SlurmOptions(timeout_s=0.5), {}).get("/slurm")
        elapsed = time.monotonic() - start
    assert caught.value.kind == "timeout"
    assert elapsed < 2.0


def test_only_the_beginning_of_an_endless_error_is_read(tmp_path: Path) -> None:
    class Endless(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            with contextlib.suppress(OSError):
                self.request.sendall(b"HTTP/1.1 500 X\r\n\r\nslurmdbd is down")
                while True:
                    self.request.sendall(b" " * (1 << 16))

    with (
        serving(tmp_path / "s", Endless) as unix,
        pytest.raises(SourceUnavailable, match="answered 500: slurmdbd is down"),
    ):
        _Unix(unix, SlurmOptions(timeout_s=5), {}).get("/slurm")


@contextlib.contextmanager
def serving(path: Path, handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    """Run a server at a unix socket; yields its path."""
    with UnixRest(str(path), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield str(path)
        finally:
            server.shutdown()
            thread.join()


def job_of_another_user(folder: Path, path: str) -> Job:
    """A started job of a user that this machine does not know."""
    job = started_job(folder, path)
    job.rows = [replace(row, fields={**row.fields, "user": "no-such-user"}) for row in job.rows]
    return job


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("sbatch -o my.out train.sh", ["my.out"]),
        ("sbatch --parsable -N2 -J a.b --output=my-%j.out -e err train.sh -o not-this", ["my-64.out", "err"]),
        ("sbatch -omy.out", ["my.out"]),
        ("sbatch --exclusive train.sh", ["slurm-60_3.out"]),
        ("sbatch --wrap 'python \"-o x'", ["slurm-60_3.out"]),
        ("srun python train.py", []),
        ("srun -l -o all.%t python train.py", ["all.0"]),
        ("", ["slurm-60_3.out"]),
    ],
)
def test_output_paths_are_derived_from_the_submit_line(tmp_path: Path, line: str, names: list[str]) -> None:
    for name in ("my.out", "my-64.out", "err", "slurm-60_3.out", "not-this", "all.0"):
        (tmp_path / name).write_text("x\n")
    paths = outputs.outputs(started_job(tmp_path, "", SubmitLine=line))
    assert paths.paths == [str(tmp_path / name) for name in names]


def test_the_submit_line_overrides_directives_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("logs/train-64.out", "e.txt"):
        (tmp_path / name).write_text("x\n")
    script = "Batch Script for 64\n-----\n#!/bin/bash\n#SBATCH --output=logs/%x-%j.out --time=1:00\n#SBATCH -e other\n"
    paths = outputs.outputs(started_job(tmp_path, "", SubmitLine="sbatch -e e.txt train.sh"), script)
    assert sorted(paths.paths) == [str(tmp_path / "e.txt"), str(tmp_path / "logs/train-64.out")]


def test_the_number_of_output_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MAX_FILES", 5)
    for number in range(20):
        (tmp_path / f"log-{number}").write_text("x\n")
    assert len(outputs.outputs(started_job(tmp_path, "log-%t")).paths) == 5


def has_ended(pid: int) -> bool:
    """Whether a process ends within 2 s."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


# -- slurmrestd, replayed


class _Handler(BaseHTTPRequestHandler):
    server: Rest

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        status, body = self.server.answers.get(self.path.partition("?")[0], (404, b"Unable find requested URL."))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"


class Rest(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Answers as slurmrestd does."""

    daemon_threads = allow_reuse_address = True
    answers: dict[str, tuple[int, bytes]]
    requests: list[tuple[str, dict[str, str]]]


class UnixRest(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    answers: dict[str, tuple[int, bytes]]
    requests: list[tuple[str, dict[str, str]]]


@pytest.fixture(params=["tcp", "unix"])
def rest(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """A server and its URL."""
    server: Any
    if request.param == "tcp":
        server = Rest(("127.0.0.1", 0), _Handler)
        url = f"http://127.0.0.1:{server.server_address[1]}"
    else:
        server = UnixRest(str(tmp_path / "s"), _Handler)
        url = f"unix:{tmp_path}/s"
    server.answers, server.requests = {}, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server, url
    server.shutdown()
    thread.join()
    server.server_close()


UNKNOWN = b'{"meta":{"plugin":{"type":"openapi\\/v0.0.38"}},"errors":[{"description":"Unable to find JobId=7","error_number":2017,"error":"Invalid job id specified"}],"jobs":[]}'
NOTHING = b'{"meta":{"plugin":{"type":"openapi\\/dbv0.0.38"}},"errors":[{"description":"Nothing found","error_number":9003}],"jobs":[]}'
DBD = b'{"meta":{"plugin":{"type":"openapi\\/dbv0.0.40"}},"errors":[],"jobs":[{"job_id":7,"allocation_nodes":1,"derived_exit_code":{"return_code":0},"name":"t","user":"alice","cluster":"lab","nodes":"c1","state":{"current":["FAILED"],"reason":"None"},"exit_code":{"status":["ERROR"],"return_code":{"set":true,"infinite":false,"number":3}},"time":{"start":1795289425,"end":1795289430,"submission":1795289420,"elapsed":5},"working_directory":"/data","steps":[]}]}'
NODE = b'{"meta":{"plugin":{"type":"openapi\\/v0.0.40"}},"errors":[],"nodes":[{"name":"c1","slurmd_start_time":1,"real_memory":1,"state":["IDLE"]}]}'


def test_the_newest_api_that_the_server_lists_is_used(rest: tuple[Any, str]) -> None:
    server, url = rest
    api_list = b'{"paths":{"\\/slurm\\/v0.0.39\\/job\\/{job_id}":{},"\\/slurm\\/v0.0.40\\/jobs\\/":{},"\\/slurmdb\\/v0.0.40\\/jobs\\/":{}}}'
    server.answers = {"/openapi/v3": (200, api_list), "/slurmdb/v0.0.40/job/7": (200, DBD),
                      "/slurm/v0.0.40/job/7": (500, UNKNOWN), "/slurm/v0.0.40/node/c1": (200, NODE),
                      "/slurmdb/v0.0.40/jobs": (200, NOTHING)}  # fmt: skip
    answer = query_slurm(SlurmOptions(url=url, user="alice", token="hunter2"), "7")
    assert (answer.stage, answer.nodes, answer.end) == ("settled", ("c1",), 1795289430.0)
    assert [reply.path for reply in answer.replies] == [
        "slurmrestd /slurmdb/v0.0.40/job/7",
        "slurmrestd /slurm/v0.0.40/node/c1",
    ]
    assert "hunter2" not in notes(answer)
    for _, headers in server.requests:
        assert (headers["X-SLURM-USER-NAME"], headers["X-SLURM-USER-TOKEN"]) == ("alice", "hunter2")


def test_api_versions_are_tried_from_the_newest_if_none_are_listed(rest: tuple[Any, str]) -> None:
    server, url = rest
    server.answers = {"/slurmdb/v0.0.41/job/7": (200, DBD), "/slurm/v0.0.41/job/7": (500, UNKNOWN)}
    answer = query_slurm(SlurmOptions(url=url), "7")
    assert answer.is_known
    assert [path for path, _ in server.requests][:6] == [
        "/openapi/v3",
        *(f"/slurmdb/v0.0.{n}/job/7" for n in (45, 44, 43, 42, 41)),
    ]


def test_a_server_without_a_supported_api_is_reported(rest: tuple[Any, str]) -> None:
    _, url = rest
    answer = query_slurm(SlurmOptions(url=url), "7")
    assert "supports none of the APIs v0.0.37 to v0.0.45" in notes(answer)


def test_a_missing_token_is_reported(rest: tuple[Any, str]) -> None:
    server, url = rest
    server.answers = {"/openapi/v3": (401, b"Authentication failure")}
    answer = query_slurm(SlurmOptions(url=url), "7")
    assert "slurm.token_file" in notes(answer)
    assert "Authentication failure" in notes(answer)


def test_a_wrong_token_is_not_reported_as_an_unknown_job(rest: tuple[Any, str]) -> None:
    server, url = rest
    refused = UNKNOWN.replace(b"Invalid job id specified", b"Protocol authentication error")
    server.answers = {"/slurmdb/v0.0.38/job/7": (200, refused), "/slurm/v0.0.38/job/7": (500, refused)}
    answer = query_slurm(SlurmOptions(url=url), "7")
    assert [row.status for row in answer.rows] == ["unreadable", "unreadable"]
    assert "Protocol authentication error" in notes(answer)


def test_a_database_error_over_rest_is_reported(rest: tuple[Any, str]) -> None:
    server, url = rest
    failing = b'{"meta":{"plugin":{"type":"openapi\\/dbv0.0.38"}},"errors":[{"description":"slurmdbd down","error":"Unable to connect"}],"jobs":[]}'
    server.answers = {"/slurmdb/v0.0.38/job/7": (200, failing), "/slurm/v0.0.38/job/7": (500, UNKNOWN)}
    answer = query_slurm(SlurmOptions(url=url), "7")
    assert not answer.is_known
    assert "the command failed: slurmdbd down" in notes(answer)


def test_a_missing_socket_is_reported(tmp_path: Path) -> None:
    answer = query_slurm(SlurmOptions(url=f"unix:{tmp_path}/none"), "7")
    assert "none: No such file or directory" in notes(answer)


def test_rest_mode_without_a_url_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slurm\.url is not set"):
        query_slurm(SlurmOptions(mode="rest"), "7")


# -- recorded jobs of other versions


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("version", "case", "job", "state", "attempts"),
    [
        ("24.11.5", "requeue", None, "COMPLETED", 2),
        ("24.11.5", "node-fail-requeue", None, "COMPLETED", 2),
        ("24.11.5", "failed-segv-child", None, "FAILED", 1),
        ("24.11.5", "het-job", None, "COMPLETED", 1),
        ("22.05.8", "oom-batch", None, "OUT_OF_MEMORY", 1),
        ("22.05.8", "preempt-requeue", None, "COMPLETED", 2),
        ("22.05.8", "awkward-fields", None, "COMPLETED", 1),
    ],
)
def test_recorded_jobs(bin_: Bin, version: str, case: str, job: str | None, state: str, attempts: int) -> None:
    folder = SHARED / version / case
    table = folder / "sacct.psv" if (folder / "sacct.psv").exists() else folder / "sacct-short.psv"
    sink = CollectingSink()
    read_source(Reply("x", table.read_bytes()).source(), sink)
    ids = [entry.id for entry in collect_jobs(sink.records)]
    bin_.say("sacct -D", table)
    bin_.say("scontrol show job", status=1, error=NONE)
    newer = tuple(map(int, version.split(".")[:2])) >= slurm_commands.JSON_SINCE and (folder / "sacct.json").exists()
    if newer:
        bin_.say("sacct --version", f"slurm {version}\n")
        bin_.say("sacct -D", folder / "sacct.json")
    answers = []
    for id_ in ids:
        answer = ask(bin_, id_)
        assert answer.stage == "settled"
        assert answer.is_known
        answers.append(answer)
    attempts_by_job = {job.id: attempts_of(job.rows) for job in collect_jobs(records(answers[0]).records)}
    last = [final_attempt(history) for history in attempts_by_job.values()]
    assert state in {attempt.state for attempt in last if attempt is not None}
    assert max(map(len, attempts_by_job.values())) == attempts
