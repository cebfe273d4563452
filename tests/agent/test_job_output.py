"""Output of jobs: found, followed and sent once, whatever becomes of its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agent.printing import Clock, Host, Printing, append, owner
from trackside.agent.output.sharing import Sharing, is_specific
from trackside.agent.source import Labels, sources
from trackside.agent.sources.job_output import MAX_LINES, READ_BYTES


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    path = tmp_path / "slurm-42.out"
    path.touch()
    return path


def labels(**told: str) -> Labels:
    return tuple(sorted(told.items()))


class TestFinding:
    def test_a_file_of_one_task_has_its_rank(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(rank=3), out)
        printing = Printing(host)
        append(out, "hello\n")
        (line,) = printing.collect()
        assert line.labels == labels(slurm_job_id="42", rank="3", filename=str(out), stream="stdout")

    def test_a_file_of_several_ranks_has_none(self, host: Host, out: Path, clock: Clock) -> None:
        for pid, rank in ((100, 0), (101, 1)):
            host.start(pid, owner(rank=rank), out)
        append(out, "hello\n")
        (line,) = Printing(host).collect()
        assert "rank" not in dict(line.labels)

    def test_stderr_of_its_own(self, host: Host, out: Path, clock: Clock, tmp_path: Path) -> None:
        append(out, "out\n")
        append(tmp_path / "err", "err\n")
        host.start(100, owner(rank=0), out, tmp_path / "err")
        found = {line.text: dict(line.labels)["stream"] for line in Printing(host).collect()}
        assert found == {"out": "stdout", "err": "stderr"}

    def test_srun_holds_the_file_of_all_tasks_elsewhere(
        self, host: Host, out: Path, clock: Clock, tmp_path: Path
    ) -> None:
        host.start(100, owner(rank=0, step="batch"), out, comm="srun")
        append(tmp_path / "all-tasks.out", "hello\n")
        host.opens(100, 4, tmp_path / "all-tasks.out")
        host.opens(100, 5, tmp_path / "read-only", "0100000")
        append(tmp_path / "read-only", "not output\n")
        (line,) = Printing(host).collect()
        assert (line.text, "rank" in dict(line.labels)) == ("hello", False)

    def test_what_is_only_read_is_no_output(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(), out, flags="0100000")
        append(out, "hello\n")
        assert not Printing(host).collect()

    def test_pipes_and_terminals_are_left_alone(self, host: Host, clock: Clock) -> None:
        host.start(100, owner(), "pipe:[123]", "/dev/pts/0")
        assert not Printing(host).collect()

    def test_a_script_too_young_for_the_map(self, host: Host, out: Path, clock: Clock) -> None:
        printing = Printing(host)
        printing.collect()
        host.start(100, owner(step="batch"), out, is_mapped=False)
        append(out, "nosuchcommand: command not found\n")
        clock.passes(0.25)
        assert printing.texts() == ["nosuchcommand: command not found"]

    def test_a_process_that_opens_its_output_a_moment_later(self, host: Host, out: Path, clock: Clock) -> None:
        printing = Printing(host)
        printing.collect()
        host.start(100, owner(rank=1), "pipe:[1]", is_mapped=False)
        assert not printing.collect()
        append(out, "hello\n")
        host.opens(100, 1, out)
        clock.passes(0.25)
        assert printing.texts() == ["hello"]

    def test_a_thread_is_no_process(self, host: Host, out: Path, clock: Clock) -> None:
        printing = Printing(host)
        printing.collect()
        append(out, "hello\n")
        host.start(100, owner(rank=1), out, is_mapped=False)
        (host.proc / "100" / "status").write_text("Name:\tx\nTgid:\t90\nPid:\t100\n")
        assert not printing.collect()

    def test_nobodys_processes(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(job=None), out)  # type: ignore[arg-type]
        append(out, "hello\n")
        assert not Printing(host).collect()

    def test_workers_of_torchrun_that_are_gone_already(self, host: Host, clock: Clock, tmp_path: Path) -> None:
        logs = tmp_path / "logs"
        (logs / "none_ab12" / "attempt_0" / "3").mkdir(parents=True)
        append(logs / "none_ab12" / "attempt_0" / "3" / "stderr.log", "ImportError: no\n")
        host.start(100, owner(step="batch"), "pipe:[1]", comm="torchrun", _cmdline="torchrun\0--log-dir\0logs\0a.py")
        (host.proc / "100" / "cwd").symlink_to(tmp_path)
        (line,) = Printing(host).collect()
        assert line.labels[0] == ("filename", f"{logs}/none_ab12/attempt_0/3/stderr.log")

    def test_files_by_name(self, host: Host, clock: Clock, tmp_path: Path) -> None:
        for name in ("77/run.out", "no-number.out"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            append(tmp_path / name, "hello\n")
        printing = Printing(host, paths=(f"{tmp_path}/%j/*.out", f"{tmp_path}/*.out"))
        (line,) = printing.collect()
        assert dict(line.labels)["slurm_job_id"] == "77"
        assert "no-number.out" in printing.last.warnings[0]

    def test_more_files_than_are_followed(self, host: Host, clock: Clock, tmp_path: Path) -> None:
        for number in range(3):
            append(tmp_path / f"{number}.out", "hello\n")
            host.start(100 + number, owner(rank=number), tmp_path / f"{number}.out")
        printing = Printing(host, most_files=2)
        assert len(printing.collect()) == 2
        assert "most_files" in printing.last.warnings[0]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
    def test_a_file_that_may_not_be_read(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(), out)
        out.chmod(0o200)
        printing = Printing(host)
        printing.collect()
        assert "CAP_DAC_READ_SEARCH" in printing.last.warnings[0]


class TestSharing:
    """Of one file on several nodes, one follows it."""

    def test_nodes_files(self, tmp_path: Path) -> None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self" / "mountinfo").write_text(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / /home rw shared:1 - nfs4 server:/home rw\n"
        )
        sharing = Sharing(tmp_path, ("/scratch",))
        local, nfs = os.makedev(8, 1), os.makedev(0, 50)
        second = {"SLURM_NODEID": "1", "SLURM_PROCID": "5", "SLURM_JOB_ID": "42"}
        assert sharing.is_ours("/home/u/train.log", nfs, "n1", {"SLURM_NODEID": "0"})
        assert not sharing.is_ours("/home/u/train.log", nfs, "n2", second)
        assert sharing.is_ours("/tmp/train.log", local, "n2", second)
        assert not sharing.is_ours("/scratch/train.log", local, "n2", second)
        assert sharing.is_ours("/home/u/train.5.log", nfs, "n2", second)
        assert sharing.is_ours("/home/u/n2/train.log", nfs, "n2", second)

    def test_the_jobs_own_number_tells_nothing(self) -> None:
        assert not is_specific("/home/u/42/train.log", "n2", {"SLURM_JOB_ID": "42", "RANK": "42"})


class TestFollowing:
    @pytest.fixture
    def printing(self, host: Host, out: Path, clock: Clock) -> Printing:
        host.start(100, owner(rank=0), out)
        found = Printing(host)
        found.collect()
        return found

    def test_each_line_once_and_in_order(self, printing: Printing, out: Path) -> None:
        found = []
        for number in range(20):
            append(out, f"line {number}\n")
            found += printing.collect()
        assert [line.text for line in found] == [f"line {number}" for number in range(20)]
        times = [line.time_ns for line in found]
        assert times == sorted(set(times))

    def test_equal_lines_differ_in_time(self, printing: Printing, out: Path) -> None:
        append(out, "same\n" * 100)
        assert len({line.time_ns for line in printing.collect()}) == 100

    def test_half_a_line_waits_for_its_end(self, printing: Printing, out: Path, clock: Clock) -> None:
        append(out, "loss: 1.2")
        assert not printing.collect()
        append(out, "34\n")
        assert printing.texts() == ["loss: 1.234"]

    def test_a_line_begun_long_ago_is_shown_and_told_whole_when_it_ends(
        self, printing: Printing, out: Path, clock: Clock
    ) -> None:
        append(out, "waiting for node")
        printing.collect()
        clock.passes(40)
        assert printing.texts() == ["waiting for node"]
        clock.passes(40)
        assert not printing.collect()
        append(out, "s ... ok\n")
        clock.passes(1)
        assert printing.texts() == ["waiting for nodes ... ok"]

    def test_last_words_without_an_end(self, printing: Printing, host: Host, out: Path, clock: Clock) -> None:
        append(out, "Killed")
        printing.collect()
        host.ends(100)
        clock.passes(4)
        assert printing.texts() == ["Killed"]

    def test_copied_and_truncated(self, printing: Printing, out: Path, clock: Clock) -> None:
        append(out, "before, a long line\n")
        assert printing.texts() == ["before, a long line"]
        os.truncate(out, 0)
        append(out, "after\n")
        clock.passes(1)
        assert printing.texts() == ["after"]
        assert not printing.last.lost

    def test_written_anew_and_longer(self, printing: Printing, out: Path, clock: Clock) -> None:
        append(out, "first life\n")
        printing.collect()
        with open(out, "r+b") as file:
            file.truncate()
            file.write(b"second life, which says more\n")
        clock.passes(1)
        assert printing.texts() == ["second life, which says more"]

    def test_what_was_cut_off_unread_is_counted(self, printing: Printing, out: Path, clock: Clock) -> None:
        append(out, "x" * 1000 + "\n")
        printing.collect(is_accepted=False)
        append(out, "y" * 500 + "\n")
        printing.source._files[next(iter(printing.source._files))]._tail.size += 501  # it was seen to be there
        printing.source.accepted()
        os.truncate(out, 0)
        clock.passes(1)
        printing.collect()
        assert printing.last.lost == {"bytes": 501}

    def test_renamed_and_created_again(self, printing: Printing, host: Host, out: Path, clock: Clock) -> None:
        out.rename(out.with_suffix(".1"))
        append(out.with_suffix(".1"), "to the old one\n")
        append(out, "to the new one\n")
        host.opens(100, 1, out)
        clock.passes(31)
        assert sorted(printing.texts()) == ["to the new one", "to the old one"]

    def test_deleted_but_still_written(self, printing: Printing, out: Path, clock: Clock) -> None:
        with open(out, "ab") as file:
            out.unlink()
            file.write(b"nobody's name leads here\n")
            file.flush()
            assert printing.texts() == ["nobody's name leads here"]

    def test_nuls_and_bytes_that_are_no_text(self, printing: Printing, out: Path) -> None:
        append(out, b"before\n" + bytes(5000) + b"after\n\xff\xfe\x80binary\x01\n")
        assert printing.texts() == ["before", "after", "\ufffd\ufffd\ufffdbinary\x01"]

    def test_very_long_lines_come_in_pieces(self, printing: Printing, out: Path, clock: Clock) -> None:
        line = "é" * 200_000
        append(out, line + "\nnext\n")
        texts = printing.texts()
        assert "".join(texts[:-1]) == line
        assert texts[-1] == "next"
        assert max(len(text.encode()) for text in texts) <= 64 << 10

    def test_ends_of_two_bytes(self, printing: Printing, out: Path) -> None:
        append(out, "one\r\ntwo\r")
        assert printing.texts() == ["one"]
        append(out, "\nthree\r\n")
        assert printing.texts() == ["two", "three"]

    def test_bars_are_thinned(self, printing: Printing, out: Path, clock: Clock) -> None:
        sent = []
        for ten in range(0, 10_000, 10):
            append(out, "".join(f"\rtrain: {step}/10000" for step in range(ten, ten + 10)))
            clock.passes(1.0)
            sent += printing.texts()
        append(out, "\rtrain: 10000/10000\n")
        sent += printing.texts()
        assert sent[-1] == "train: 10000/10000"
        assert 200 + 100 <= len(sent) <= 200 + 1000 / 5 + 20  # a burst, and one in 5 s

    def test_a_bar_over_a_loss_stays_beside_it(self, printing: Printing, out: Path, clock: Clock) -> None:
        append(out, "".join(f"\r {step}/5000 [00:01]" for step in range(5000)))
        printing.collect()
        clock.passes(0.01)
        for step in range(3):
            append(out, f"\r 50{step}/5000 [00:01]")
            printing.collect()
            append(out, f"\r      \r{{'loss': {step}.5}}\n")
            assert printing.texts() == [f" 50{step}/5000 [00:01]", f"{{'loss': {step}.5}}"]

    def test_a_loss_that_is_none_is_never_thinned_away(self, printing: Printing, out: Path, clock: Clock) -> None:
        append(out, "".join(f"\rstep {n} loss {'nan' if n == 4000 else 1}" for n in range(5000)))
        assert "step 4000 loss nan" in printing.texts()

    def test_a_burst_waits_in_its_file(self, printing: Printing, out: Path) -> None:
        append(out, "".join(f"line {n}\n" for n in range(200_000)))
        found: list[str] = []
        while more := printing.texts():
            assert len(more) <= MAX_LINES + READ_BYTES // len("line 1\n")  # a piece is sent whole
            found += more
        assert found == [f"line {n}" for n in range(200_000)]

    def test_a_million_empty_lines_take_little_memory(self, printing: Printing, out: Path) -> None:
        append(out, "\n" * 1_000_000)
        counts = []
        while count := len(printing.collect()):
            counts.append(count)
        assert sum(counts) == 1_000_000
        assert max(counts) <= MAX_LINES + READ_BYTES

    def test_a_file_that_nobody_holds_is_let_go(self, printing: Printing, host: Host, out: Path, clock: Clock) -> None:
        append(out, "bye\n")
        printing.collect()
        host.ends(100)
        clock.passes(200)
        printing.collect()
        assert not printing.source._files


class TestAccepting:
    def test_what_was_not_accepted_is_offered_again_and_no_more_is_read(
        self, host: Host, out: Path, clock: Clock
    ) -> None:
        host.start(100, owner(rank=0), out)
        printing = Printing(host)
        append(out, "one\n")
        first = printing.collect(is_accepted=False)
        append(out, "two\n")
        assert printing.collect(is_accepted=False) == first
        assert printing.collect() == first
        assert printing.texts() == ["two"]

    @pytest.mark.parametrize("text", ["all", "errors"])
    def test_started_again_it_goes_on_where_it_was(
        self, host: Host, out: Path, clock: Clock, tmp_path: Path, text: str
    ) -> None:
        host.start(100, owner(rank=0), out)
        found: list[str] = []
        for life in range(5):
            printing = Printing(host, tmp_path, text=text)
            append(out, f"life {life}\nhalf")
            for _ in range(4):
                found += printing.texts()
                clock.passes(1)
            append(out, " and half\nlost\n")
            printing.collect(is_accepted=False)  # it dies before the spool has this
            printing.source.close()
        clock.passes(100)
        last = Printing(host, tmp_path, text=text)
        for _ in range(4):
            found += last.texts()
            clock.passes(20)
        expected = [line for life in range(5) for line in (f"life {life}", "half and half", "lost")]
        assert found == expected

    def test_another_file_with_its_inode(self, host: Host, out: Path, clock: Clock, tmp_path: Path) -> None:
        host.start(100, owner(rank=0), out)
        append(out, "of a job\n")
        Printing(host, tmp_path).collect()
        out.write_text("OF ANOTHER JOB, as it happens\n")  # the same inode
        assert Printing(host, tmp_path).texts() == ["OF ANOTHER JOB, as it happens"]

    def test_marks_that_cannot_be_read(self, host: Host, out: Path, clock: Clock, tmp_path: Path) -> None:
        (tmp_path / "job_output.json").write_text('{"version": 1, "files": [{"device": "x"}]}')
        host.start(100, owner(rank=0), out)
        append(out, "hello\n")
        printing = Printing(host, tmp_path)
        assert printing.texts() == ["hello"]
        assert "job_output.json cannot be read" in printing.said[0]

    def test_of_a_large_old_file_the_end(self, host: Host, out: Path, clock: Clock) -> None:
        append(out, "".join(f"line {n:06}\n" for n in range(100_000)))
        host.start(100, owner(rank=0), out)
        printing = Printing(host, backlog_bytes=120_000)
        texts = printing.texts()
        assert texts[-1] == "line 099999"
        assert texts[0] == f"line {100_000 - len(texts):06}"
        assert printing.last.lost["skipped_bytes"] == 12 * (100_000 - len(texts))


class TestMeasures:
    def test_progress_is_told_as_metrics(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(rank=0), out)
        printing = Printing(host)
        append(out, "step 1 loss 4.3053 lr 1.00e-03 (58.5 ms)\nstep 10 loss nan lr 1.00e-03 (57.9 ms)\n")
        printing.collect()
        found = {sample.metric: (sample.value, dict(sample.labels)) for sample in printing.last.samples}
        assert found["training_step"] == (10, {"job": "42", "rank": "0"})
        assert found["training_loss"][0] == float("inf")

    def test_it_says_what_it_may_give(self) -> None:
        assert {"training_step", "training_loss"} <= set(sources()["job_output"].metrics)


@pytest.mark.parametrize("wrong", [{"text": "some"}, {"redraw_s": 0.0}, {"most_files": 0}, {"tail_lines": -1}])
def test_options_that_cannot_be_meant(wrong: dict[str, object], host: Host) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Printing(host, **wrong)
