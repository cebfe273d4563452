"""Output of jobs is found, followed and sent once, whatever happens to its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agent.printing import Clock, Host, OutputCollector, append, owner
from trackside.agent.output.job_rates import LAST_LINES_BURST
from trackside.agent.output.sharing import FileOwnership, is_specific
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


def labels(**values: str) -> Labels:
    return tuple(sorted(values.items()))


class TestDiscovery:
    def test_a_file_of_one_task_has_its_rank(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(rank=3), out)
        collector = OutputCollector(host)
        append(out, "hello\n")
        (line,) = collector.collect()
        assert line.labels == labels(slurm_job_id="42", rank="3", filename=str(out), stream="stdout")

    def test_a_file_of_several_ranks_has_none(self, host: Host, out: Path, clock: Clock) -> None:
        for pid, rank in ((100, 0), (101, 1)):
            host.start(pid, owner(rank=rank), out)
        append(out, "hello\n")
        (line,) = OutputCollector(host).collect()
        assert "rank" not in dict(line.labels)

    def test_a_separate_stderr_file_is_labeled(self, host: Host, out: Path, clock: Clock, tmp_path: Path) -> None:
        append(out, "out\n")
        append(tmp_path / "err", "err\n")
        host.start(100, owner(rank=0), out, tmp_path / "err")
        streams = {line.text: dict(line.labels)["stream"] for line in OutputCollector(host).collect()}
        assert streams == {"out": "stdout", "err": "stderr"}

    def test_a_file_that_srun_opened_for_all_tasks_is_found(
        self, host: Host, out: Path, clock: Clock, tmp_path: Path
    ) -> None:
        host.start(100, owner(rank=0, step="batch"), out, comm="srun")
        append(tmp_path / "all-tasks.out", "hello\n")
        host.open_output(100, 4, tmp_path / "all-tasks.out")
        host.open_output(100, 5, tmp_path / "read-only", "0100000")
        append(tmp_path / "read-only", "not output\n")
        (line,) = OutputCollector(host).collect()
        assert (line.text, "rank" in dict(line.labels)) == ("hello", False)

    def test_files_open_for_reading_are_not_output(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(), out, flags="0100000")
        append(out, "hello\n")
        assert not OutputCollector(host).collect()

    def test_pipes_and_terminals_are_ignored(self, host: Host, clock: Clock) -> None:
        host.start(100, owner(), "pipe:[123]", "/dev/pts/0")
        assert not OutputCollector(host).collect()

    def test_a_process_that_is_newer_than_the_process_map_is_found(self, host: Host, out: Path, clock: Clock) -> None:
        collector = OutputCollector(host)
        collector.collect()
        host.start(100, owner(step="batch"), out, is_mapped=False)
        append(out, "nosuchcommand: command not found\n")
        clock.advance(0.25)
        assert collector.texts() == ["nosuchcommand: command not found"]

    def test_output_opened_a_moment_later_is_read(self, host: Host, out: Path, clock: Clock) -> None:
        collector = OutputCollector(host)
        collector.collect()
        host.start(100, owner(rank=1), "pipe:[1]", is_mapped=False)
        assert not collector.collect()
        append(out, "hello\n")
        host.open_output(100, 1, out)
        clock.advance(0.25)
        assert collector.texts() == ["hello"]

    def test_a_thread_is_not_a_process(self, host: Host, out: Path, clock: Clock) -> None:
        collector = OutputCollector(host)
        collector.collect()
        append(out, "hello\n")
        host.start(100, owner(rank=1), out, is_mapped=False)
        (host.proc / "100" / "status").write_text("Name:\tx\nTgid:\t90\nPid:\t100\n")
        assert not collector.collect()

    def test_processes_without_a_job_are_ignored(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(job=None), out)  # type: ignore[arg-type]
        append(out, "hello\n")
        assert not OutputCollector(host).collect()

    def test_log_files_of_ended_torchrun_workers_are_found(self, host: Host, clock: Clock, tmp_path: Path) -> None:
        logs = tmp_path / "logs"
        (logs / "none_ab12" / "attempt_0" / "3").mkdir(parents=True)
        append(logs / "none_ab12" / "attempt_0" / "3" / "stderr.log", "ImportError: no\n")
        host.start(100, owner(step="batch"), "pipe:[1]", comm="torchrun", _cmdline="torchrun\0--log-dir\0logs\0a.py")
        (host.proc / "100" / "cwd").symlink_to(tmp_path)
        (line,) = OutputCollector(host).collect()
        assert line.labels[0] == ("filename", f"{logs}/none_ab12/attempt_0/3/stderr.log")

    def test_configured_paths_are_followed(self, host: Host, clock: Clock, tmp_path: Path) -> None:
        for name in ("77/run.out", "no-number.out"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            append(tmp_path / name, "hello\n")
        collector = OutputCollector(host, paths=(f"{tmp_path}/%j/*.out", f"{tmp_path}/*.out"))
        (line,) = collector.collect()
        assert dict(line.labels)["slurm_job_id"] == "77"
        assert "no-number.out" in collector.last.warnings[0]

    def test_the_limit_of_files_is_reported(self, host: Host, clock: Clock, tmp_path: Path) -> None:
        for number in range(3):
            append(tmp_path / f"{number}.out", "hello\n")
            host.start(100 + number, owner(rank=number), tmp_path / f"{number}.out")
        collector = OutputCollector(host, max_files=2)
        assert len(collector.collect()) == 2
        assert "max_files" in collector.last.warnings[0]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
    def test_an_unreadable_file_is_reported(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(), out)
        out.chmod(0o200)
        collector = OutputCollector(host)
        collector.collect()
        assert "CAP_DAC_READ_SEARCH" in collector.last.warnings[0]


class TestSharing:
    """A file on a shared file system is followed by one node."""

    def test_one_node_follows_a_shared_file(self, tmp_path: Path) -> None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self" / "mountinfo").write_text(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / /home rw shared:1 - nfs4 server:/home rw\n"
        )
        sharing = FileOwnership(tmp_path, ("/scratch",))
        local, nfs = os.makedev(8, 1), os.makedev(0, 50)
        second = {"SLURM_NODEID": "1", "SLURM_PROCID": "5", "SLURM_JOB_ID": "42"}
        assert sharing.is_ours("/home/u/train.log", nfs, "n1", {"SLURM_NODEID": "0"})
        assert not sharing.is_ours("/home/u/train.log", nfs, "n2", second)
        assert sharing.is_ours("/tmp/train.log", local, "n2", second)
        assert not sharing.is_ours("/scratch/train.log", local, "n2", second)
        assert sharing.is_ours("/home/u/train.5.log", nfs, "n2", second)
        assert sharing.is_ours("/home/u/n2/train.log", nfs, "n2", second)

    def test_the_job_id_in_a_path_does_not_make_it_specific(self) -> None:
        assert not is_specific("/home/u/42/train.log", "n2", {"SLURM_JOB_ID": "42", "RANK": "42"})


class TestFollowing:
    @pytest.fixture
    def collector(self, host: Host, out: Path, clock: Clock) -> OutputCollector:
        host.start(100, owner(rank=0), out)
        collector = OutputCollector(host)
        collector.collect()
        return collector

    def test_each_line_is_sent_once_and_in_order(self, collector: OutputCollector, out: Path) -> None:
        lines = []
        for number in range(20):
            append(out, f"line {number}\n")
            lines += collector.collect()
        assert [line.text for line in lines] == [f"line {number}" for number in range(20)]
        times = [line.time_ns for line in lines]
        assert times == sorted(set(times))

    def test_equal_lines_differ_in_time(self, collector: OutputCollector, out: Path) -> None:
        append(out, "same\n" * 100)
        assert len({line.time_ns for line in collector.collect()}) == 100

    def test_an_incomplete_line_waits_for_its_end(self, collector: OutputCollector, out: Path, clock: Clock) -> None:
        append(out, "loss: 1.2")
        assert not collector.collect()
        append(out, "34\n")
        assert collector.texts() == ["loss: 1.234"]

    def test_an_old_incomplete_line_is_sent_and_sent_again_when_complete(
        self, collector: OutputCollector, out: Path, clock: Clock
    ) -> None:
        append(out, "waiting for node")
        collector.collect()
        clock.advance(40)
        assert collector.texts() == ["waiting for node"]
        clock.advance(40)
        assert not collector.collect()
        append(out, "s ... ok\n")
        clock.advance(1)
        assert collector.texts() == ["waiting for nodes ... ok"]

    def test_a_last_line_without_line_break_is_sent_after_the_process_ends(
        self, collector: OutputCollector, host: Host, out: Path, clock: Clock
    ) -> None:
        append(out, "Killed")
        collector.collect()
        host.end(100)
        clock.advance(4)
        assert collector.texts() == ["Killed"]

    def test_a_truncated_file_is_read_from_its_start(self, collector: OutputCollector, out: Path, clock: Clock) -> None:
        append(out, "before, a long line\n")
        assert collector.texts() == ["before, a long line"]
        os.truncate(out, 0)
        append(out, "after\n")
        clock.advance(1)
        assert collector.texts() == ["after"]
        assert not collector.last.lost

    def test_a_rewritten_longer_file_is_read_from_its_start(
        self, collector: OutputCollector, out: Path, clock: Clock
    ) -> None:
        append(out, "first life\n")
        collector.collect()
        with open(out, "r+b") as file:
            file.truncate()
            file.write(b"second life, which says more\n")
        clock.advance(1)
        assert collector.texts() == ["second life, which says more"]

    def test_truncated_unread_bytes_are_counted_as_lost(
        self, collector: OutputCollector, out: Path, clock: Clock
    ) -> None:
        append(out, "x" * 1000 + "\n")
        collector.collect(is_accepted=False)
        append(out, "y" * 500 + "\n")
        # as if the file had been this long
        collector.source._files[next(iter(collector.source._files))]._tail.size += 501
        collector.source.accepted()
        os.truncate(out, 0)
        clock.advance(1)
        collector.collect()
        assert collector.last.lost == {"bytes": 501}

    def test_a_renamed_and_recreated_file_is_read_in_both_places(
        self, collector: OutputCollector, host: Host, out: Path, clock: Clock
    ) -> None:
        out.rename(out.with_suffix(".1"))
        append(out.with_suffix(".1"), "to the old one\n")
        append(out, "to the new one\n")
        host.open_output(100, 1, out)
        clock.advance(31)
        assert sorted(collector.texts()) == ["to the new one", "to the old one"]

    def test_a_deleted_open_file_is_still_read(self, collector: OutputCollector, out: Path, clock: Clock) -> None:
        with open(out, "ab") as file:
            out.unlink()
            file.write(b"nobody's name leads here\n")
            file.flush()
            assert collector.texts() == ["nobody's name leads here"]

    def test_null_bytes_and_invalid_utf8_are_handled(self, collector: OutputCollector, out: Path) -> None:
        append(out, b"before\n" + bytes(5000) + b"after\n\xff\xfe\x80binary\x01\n")
        assert collector.texts() == ["before", "after", "\ufffd\ufffd\ufffdbinary\x01"]

    def test_very_long_lines_are_split(self, collector: OutputCollector, out: Path, clock: Clock) -> None:
        line = "é" * 200_000
        append(out, line + "\nnext\n")
        texts = collector.texts()
        assert "".join(texts[:-1]) == line
        assert texts[-1] == "next"
        assert max(len(text.encode()) for text in texts) <= 64 << 10

    def test_carriage_return_line_feed_ends_a_line(self, collector: OutputCollector, out: Path) -> None:
        append(out, "one\r\ntwo\r")
        assert collector.texts() == ["one"]
        append(out, "\nthree\r\n")
        assert collector.texts() == ["two", "three"]

    def test_progress_bars_are_thinned(self, collector: OutputCollector, out: Path, clock: Clock) -> None:
        texts = []
        for first_step in range(0, 10_000, 10):
            append(out, "".join(f"\rtrain: {step}/10000" for step in range(first_step, first_step + 10)))
            clock.advance(1.0)
            texts += collector.texts()
        append(out, "\rtrain: 10000/10000\n")
        texts += collector.texts()
        assert texts[-1] == "train: 10000/10000"
        assert 200 + 100 <= len(texts) <= 200 + 1000 / 5 + 20  # a burst, and one in 5 s

    def test_a_progress_bar_before_a_loss_line_is_sent(
        self, collector: OutputCollector, out: Path, clock: Clock
    ) -> None:
        append(out, "".join(f"\r {step}/5000 [00:01]" for step in range(5000)))
        collector.collect()
        clock.advance(0.01)
        for step in range(3):
            append(out, f"\r 50{step}/5000 [00:01]")
            collector.collect()
            append(out, f"\r      \r{{'loss': {step}.5}}\n")
            assert collector.texts() == [f" 50{step}/5000 [00:01]", f"{{'loss': {step}.5}}"]

    def test_a_nan_loss_is_never_thinned(self, collector: OutputCollector, out: Path, clock: Clock) -> None:
        append(out, "".join(f"\rstep {n} loss {'nan' if n == 4000 else 1}" for n in range(5000)))
        assert "step 4000 loss nan" in collector.texts()

    def test_a_burst_is_read_over_several_readings(self, collector: OutputCollector, out: Path) -> None:
        append(out, "".join(f"line {n}\n" for n in range(200_000)))
        texts: list[str] = []
        while new_texts := collector.texts():
            assert len(new_texts) <= MAX_LINES + READ_BYTES // len("line 1\n")  # a piece is not split
            texts += new_texts
        assert texts == [f"line {n}" for n in range(200_000)]

    def test_a_million_empty_lines_are_read_in_bounded_pieces(self, collector: OutputCollector, out: Path) -> None:
        append(out, "\n" * 1_000_000)
        counts = []
        while count := len(collector.collect()):
            counts.append(count)
        assert sum(counts) == 1_000_000
        assert max(counts) <= MAX_LINES + READ_BYTES

    def test_a_file_without_a_process_is_closed(
        self, collector: OutputCollector, host: Host, out: Path, clock: Clock
    ) -> None:
        append(out, "bye\n")
        collector.collect()
        host.end(100)
        clock.advance(200)
        collector.collect()
        assert not collector.source._files


class TestAcceptance:
    def test_unaccepted_lines_are_offered_again_before_new_ones(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(rank=0), out)
        collector = OutputCollector(host)
        append(out, "one\n")
        first = collector.collect(is_accepted=False)
        append(out, "two\n")
        assert collector.collect(is_accepted=False) == first
        assert collector.collect() == first
        assert collector.texts() == ["two"]

    @pytest.mark.parametrize("text", ["all", "errors"])
    def test_a_restarted_agent_continues_at_the_saved_position(
        self, host: Host, out: Path, clock: Clock, tmp_path: Path, text: str
    ) -> None:
        host.start(100, owner(rank=0), out)
        texts: list[str] = []
        for life in range(5):
            collector = OutputCollector(host, tmp_path, text=text)
            append(out, f"life {life}\nhalf")
            for _ in range(4):
                texts += collector.texts()
                clock.advance(1)
            append(out, " and half\nlost\n")
            collector.collect(is_accepted=False)  # the agent ends before the spool has these lines
            collector.source.close()
        clock.advance(100)
        last = OutputCollector(host, tmp_path, text=text)
        for _ in range(4):
            texts += last.texts()
            clock.advance(20)
        expected = [line for life in range(5) for line in (f"life {life}", "half and half", "lost")]
        assert texts == expected

    def test_a_new_file_with_a_known_inode_is_read_from_its_start(
        self, host: Host, out: Path, clock: Clock, tmp_path: Path
    ) -> None:
        host.start(100, owner(rank=0), out)
        append(out, "of a job\n")
        OutputCollector(host, tmp_path).collect()
        out.write_text("OF ANOTHER JOB, as it happens\n")  # the same inode
        assert OutputCollector(host, tmp_path).texts() == ["OF ANOTHER JOB, as it happens"]

    def test_unreadable_saved_positions_are_reported_and_ignored(
        self, host: Host, out: Path, clock: Clock, tmp_path: Path
    ) -> None:
        (tmp_path / "job_output.json").write_text('{"version": 1, "files": [{"device": "x"}]}')
        host.start(100, owner(rank=0), out)
        append(out, "hello\n")
        collector = OutputCollector(host, tmp_path)
        assert collector.texts() == ["hello"]
        assert "job_output.json cannot be read" in collector.messages[0]

    def test_a_large_old_file_is_read_near_its_end(self, host: Host, out: Path, clock: Clock) -> None:
        append(out, "".join(f"line {n:06}\n" for n in range(100_000)))
        host.start(100, owner(rank=0), out)
        collector = OutputCollector(host, backlog_bytes=120_000)
        texts = collector.texts()
        assert texts[-1] == "line 099999"
        assert texts[0] == f"line {100_000 - len(texts):06}"
        assert collector.last.lost["skipped_bytes"] == 12 * (100_000 - len(texts))


class TestMetrics:
    def test_training_progress_becomes_metrics(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(rank=0), out)
        collector = OutputCollector(host)
        append(out, "step 1 loss 4.3053 lr 1.00e-03 (58.5 ms)\nstep 10 loss nan lr 1.00e-03 (57.9 ms)\n")
        collector.collect()
        metrics = {sample.metric: (sample.value, dict(sample.labels)) for sample in collector.last.samples}
        assert metrics["training_step"] == (10, {"job": "42", "rank": "0"})
        assert metrics["training_loss"][0] == float("inf")

    def test_metrics_of_training_are_declared(self) -> None:
        assert {"training_step", "training_loss"} <= set(sources()["job_output"].metrics)


@pytest.mark.parametrize("options", [{"text": "some"}, {"redraw_s": 0.0}, {"max_files": 0}, {"tail_lines": -1}])
def test_invalid_options_are_refused(options: dict[str, object], host: Host) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        OutputCollector(host, **options)


class TestRate:
    def flood(self, out: Path, lines: int, first: int = 0) -> None:
        append(out, "".join(f"line {number:06d} {'x' * 86}\n" for number in range(first, first + lines)))

    def test_a_job_over_its_rate_sends_its_burst_and_its_last_lines(
        self, host: Host, out: Path, clock: Clock, tmp_path: Path
    ) -> None:
        other = tmp_path / "slurm-43.out"
        other.touch()
        host.start(100, owner(), out)
        host.start(101, owner(job="43"), other)
        collector = OutputCollector(host, job_bytes_per_s=1_000, job_burst_bytes=20_000)
        self.flood(out, 150)
        assert len(collector.texts()) == 150
        for number in range(10):
            self.flood(out, 1_000, 1_000 * number)
            append(other, f"step {number}\n")
            clock.advance(0.25)
            assert collector.texts() == [f"step {number}"]
        assert collector.last.lost["over_rate_bytes"] == 99_000
        append(out, "Traceback (most recent call last):\nValueError: bad\n")
        collector.texts()
        clock.advance(3.0)
        note, *texts = collector.texts()
        assert note.endswith("bytes of output are left out here: job 42 printed more than 1,000 bytes per second]")
        assert texts[-2:] == ["Traceback (most recent call last):", "ValueError: bad"]
        assert len(texts) == 200
        warnings = [text for text in collector.messages + collector.last.warnings if "job_bytes_per_s" in text]
        assert len(warnings) <= 1

    def test_a_job_within_its_rate_again_is_sent_as_a_whole(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(), out)
        collector = OutputCollector(host, job_bytes_per_s=1_000, job_burst_bytes=20_000)
        self.flood(out, 150)
        assert len(collector.texts()) == 150
        self.flood(out, 1_000)
        assert collector.texts() == []
        clock.advance(60.0)
        append(out, "step 1\n")
        assert collector.texts()[-1] == "step 1"
        append(out, "step 2\n")
        assert collector.texts() == ["step 2"]

    def test_pauses_do_not_evade_the_rate(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(), out)
        collector = OutputCollector(host, job_bytes_per_s=1_000, job_burst_bytes=1_000)
        sent = 0
        for number in range(600):
            self.flood(out, 600, 600 * number)
            sent += sum(len(text) + 1 for text in collector.texts())
            clock.advance(3.0)
            sent += sum(len(text) + 1 for text in collector.texts())
        assert sent < 1_000 + LAST_LINES_BURST + 1.25 * 1_000 * 3 * 600 + 100_000

    def test_lines_of_an_ended_job_are_sent(self, host: Host, out: Path, clock: Clock) -> None:
        host.start(100, owner(), out)
        collector = OutputCollector(host, job_bytes_per_s=1_000, job_burst_bytes=1_000)
        self.flood(out, 1_000)
        assert collector.texts() == []
        host.end(100)
        clock.advance(200.0)
        assert len(collector.texts()) == 201
