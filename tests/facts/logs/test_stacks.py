"""Stacks of processes: which frame is job code, what they wait in, and the verdicts on them."""

from __future__ import annotations

from pathlib import Path

import pytest

import trackside
from tests.families.rows import sentence_name
from trackside.catalog.hang_lines import (
    LineSubject,
    ProcessState,
    Resumption,
    ThreadStack,
    native_name,
    read_line,
    resumption_line,
    state_line,
    text_line,
    thread_line,
)
from trackside.catalog.job_states import is_active
from trackside.catalog.python_stack import Call, collective_in, is_job_code, job_call, waits_for_gpu
from trackside.finding import Certainty, Outcome, Verdict, claim_sentence

LOG = "".join(
    f"2026-03-02T08:{step // 60:02}:{step % 60:02}Z step {step} loss {4 - step / 40:.3f}\n" for step in range(100)
)
SIZE = "2026-03-02T08:00:00Z world_size=4\n"


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/u/proj/train.py", True),
        ("train.py", True),
        ("src/models/layers.py", True),
        ("/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py", False),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", False),
        ("/root/.pyenv/versions/3.11.7/lib/python3.11/threading.py", False),
        ("torch/distributed/distributed_c10d.py", False),
        ("threading.py", False),
        ("multiprocessing/connection.py", False),
        ("accelerate/utils/other.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        ("<ipython-input-3-0a1b>", True),
        ("", False),
    ],
)
def test_job_code_is_recognized_by_its_path(file: str, own: bool) -> None:
    assert is_job_code(file) is own


C10D = "torch/distributed/distributed_c10d.py"


@pytest.mark.parametrize(
    ("calls", "native", "collective", "gpu"),
    [
        ([("all_reduce", C10D), ("_exception_logger.<locals>.wrapper", "torch/distributed/c10d_logger.py")], [], "all_reduce", False),
        ([("barrier", C10D), ("Accelerator.wait_for_everyone", "accelerate/accelerator.py")], [], "wait_for_everyone", False),
        ([("recv", C10D)], [], "recv", False),
        ([("Connection.recv", "multiprocessing/connection.py")], [], None, False),
        ([("_engine_run_backward", "torch/autograd/graph.py")], [], None, True),
        ([("_engine_run_backward", "torch/autograd/graph.py")], ["pthread_cond_wait", "c10d::Reducer::finalize_backward"], "c10d::Reducer::finalize_backward", True),
        ([], ["syscall", "cuEventSynchronize"], None, True),
        ([], ["poll", "ncclGroupEnd"], "ncclGroupEnd", False),
        ([], ["clock_nanosleep", "time_sleep"], None, False),
        ([("synchronize", "torch/cuda/__init__.py")], [], None, True),
        ([("Condition.wait", "threading.py"), ("Queue.get", "queue.py")], ["futex"], None, False),
    ],
)  # fmt: skip
def test_waits_are_recognized_by_their_frames(
    calls: list[tuple[str, str]], native: list[str], collective: str | None, gpu: bool
) -> None:
    stack = [Call(name, file, 1) for name, file in calls]
    assert job_call(stack) is None
    assert collective_in(stack, native) == collective
    assert waits_for_gpu(stack, native) is gpu


def test_native_names_are_shortened() -> None:
    name = "void gloo::(anonymous namespace)::run<float, std::function<void (int)> >(int, char const*) const"
    assert native_name(name) == "void_gloo::::run"
    assert native_name("c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >)") == "c10d::Work::wait"
    assert native_name("a; b | c" * 999) == ("a_b_c" * 999)[:120]


@pytest.mark.parametrize(
    "line",
    [
        ProcessState("pt_main_thread", "D", "rpc_wait_bit_killable", "0", 1.25, {"S": 24, "D": 1}),
        ProcessState("python3", "S"),
        ThreadStack(978, "pin memory \"x\"\n", "idle", "", (Call("Queue.get", "queue.py", 171),)),
        ThreadStack(977, "MainThread", "active", "a b.py:7 in <module>", (Call("f", "a b.py", 7),), ("futex", "x::y")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("who", [LineSubject("4242", 3, 977), LineSubject("60_3"), LineSubject("73+1", None, 5)])
def test_written_lines_can_be_parsed(line: ProcessState | ThreadStack, who: LineSubject) -> None:
    text = state_line(who, line) if isinstance(line, ProcessState) else thread_line(who, line)
    parsed = read_line(text)
    assert parsed is not None
    assert parsed[0] == who
    again = parsed[1]
    assert isinstance(again, type(line))
    assert (state_line(who, again) if isinstance(again, ProcessState) else thread_line(who, again)) == text  # type: ignore[arg-type]


def test_prose_lines_carry_no_stack() -> None:
    assert read_line(text_line(LineSubject("7", 1, 2), "no stack: why\nnot")) == (LineSubject("7", 1, 2), None)
    assert read_line(resumption_line(LineSubject("7", 1), 431.6)) == (LineSubject("7", 1), Resumption(432))
    assert read_line("[hang] nonsense") is None
    assert read_line("step 1 loss 2.0") is None


def verdict(folder: Path, stacks: str, log: str = SIZE + LOG, name: str = "stacks.txt") -> Verdict:
    (folder / "slurm-4242.out").write_text(log)
    if stacks:
        (folder / name).write_text(stacks)
    return trackside.diagnose(folder)


def sentences(verdict: Verdict) -> list[str]:
    return [claim_sentence(claim, is_active(verdict.run.disposition)) for claim in verdict.primary.shows]


def agent_lines(*threads: tuple[int, str, list[tuple[str, str, int]]], minute: int = 20) -> str:
    """The agent's lines: rank, place, frames."""
    lines = [
        thread_line(LineSubject("4242", rank, 900 + rank), ThreadStack(900 + rank, "MainThread", "idle", place, tuple(Call(*c) for c in calls)))
        for rank, place, calls in threads
    ]  # fmt: skip
    return "".join(f"2026-03-02T08:{minute}:00.{n:09}Z stdout F {line}\n" for n, line in enumerate(lines))


def waits(rank: int, call: str = "all_reduce", line: int = 31) -> tuple[int, str, list[tuple[str, str, int]]]:
    return rank, f"train.py:{line} in step", [(call, C10D, 2806), ("step", "train.py", line)]


def sleeps(rank: int) -> tuple[int, str, list[tuple[str, str, int]]]:
    return rank, "data.py:42 in load_batch", [("load_batch", "data.py", 42), ("main", "train.py", 20)]


class TestCollectiveHang:
    def test_the_missing_rank_and_its_line_are_named(self, tmp_path: Path) -> None:
        result = verdict(tmp_path, agent_lines(waits(0), waits(1), waits(2), sleeps(3)))
        assert (result.family, result.primary.ranks, result.primary.culprit) == ("C2", (3,), "job")
        assert result.primary.certainty is Certainty.SUPPORTED
        texts = sentences(result)
        assert "Ranks 0-2 waited in all_reduce, at train.py:31 in step" in texts
        assert "Rank 3 did not reach it: the stack shows data.py:42 in load_batch" in texts
        assert not result.primary.cannot_decide

    def test_py_spy_dumps_give_the_same_sentences(self, tmp_path: Path) -> None:
        """Without ranks, processes are named."""
        wait = f"    all_reduce ({C10D}:2806)\n    step (train.py:31)\n"
        dumps = [f'Thread {pid} (idle): "MainThread"\n{wait}' for pid in (11, 12)]
        dumps.append('Thread 13 (idle): "MainThread"\n    load_batch (data.py:42)\n    main (train.py:20)\n')
        dumps.append('Thread 14 (idle): "pin"\n    run (other.py:1)\n')
        result = verdict(tmp_path, "".join(dumps))
        assert result.family == "C2"
        texts = sentences(result)
        assert "process 11 and process 12 waited in all_reduce, at train.py:31 in step" in texts
        assert "process 13 did not reach it: the stack shows data.py:42 in load_batch" in texts
        assert not any("other.py" in sentence for sentence in texts)

    def test_a_rank_outside_the_backward_pass_is_missing(self, tmp_path: Path) -> None:
        """Without native frames a rank that waits for its peers' gradients only seems to be in its backward pass."""
        alone = (
            0,
            "train.py:27 in train",
            [("_engine_run_backward", "torch/autograd/graph.py", 9), ("train", "train.py", 27)],
        )
        result = verdict(tmp_path, agent_lines(alone, sleeps(1)), SIZE.replace("=4", "=2") + LOG)
        assert (result.family, result.primary.ranks) == ("C2", (1,))
        assert "Rank 0 waited for a backward pass or the GPU, at train.py:27 in train" in sentences(result)

    def test_a_rank_in_another_collective_is_named(self, tmp_path: Path) -> None:
        result = verdict(tmp_path, agent_lines(waits(0), waits(1), waits(2), waits(3, "barrier", 77)))
        assert (result.family, result.primary.ranks) == ("C2", (3,))
        assert "Rank 3 waited in another collective than the others: barrier, at train.py:77 in step" in sentences(
            result
        )

    def test_the_missing_rank_is_open_if_its_stack_is_unknown(self, tmp_path: Path) -> None:
        """Another node has no agent: the missing rank stays open."""
        result = verdict(tmp_path, agent_lines(waits(0), waits(1)))
        assert (result.family, result.primary.ranks, result.primary.culprit) == ("C2", (), "unknown")
        assert [sentence_name(claim) for claim in result.primary.cannot_decide] == ["rank_unknown"]

    def test_a_rank_in_uninterruptible_sleep_blames_infrastructure(self, tmp_path: Path) -> None:
        state = state_line(LineSubject("4242", 3, 903), ProcessState("python", "D", "rpc_wait_bit_killable"))
        others = [
            state_line(LineSubject("4242", rank, 900 + rank), ProcessState("python", "S", "futex")) for rank in range(3)
        ]
        lines = "".join(f"2026-03-02T08:19:00.{n:09}Z stdout F {line}\n" for n, line in enumerate([state, *others]))
        result = verdict(tmp_path, lines + agent_lines(waits(0), waits(1), waits(2), sleeps(3)))
        assert (result.family, result.primary.ranks, result.primary.culprit) == ("C2", (3,), "infrastructure")

    def test_stacks_before_later_progress_are_ignored(self, tmp_path: Path) -> None:
        result = verdict(
            tmp_path, agent_lines(waits(0), waits(1), waits(2), sleeps(3), minute=1).replace("08:1:", "08:01:")
        )
        assert result.family not in ("C2", "C3")

    def test_stacks_before_a_resumption_line_are_ignored(self, tmp_path: Path) -> None:
        """If the log has no times, only the agent's line shows that the run resumed."""
        log = "".join(line.split(" ", 1)[1] for line in (SIZE + LOG).splitlines(keepends=True))
        stacks = agent_lines(waits(0), waits(1), waits(2), sleeps(3))
        assert verdict(tmp_path, stacks, log).family == "C2"
        back = f"2026-03-02T08:25:00.000000000Z stdout F {resumption_line(LineSubject('4242'), 300)}\n"
        result = verdict(tmp_path, stacks + back, log)
        assert result.family not in ("C2", "C3")

    def test_the_latest_stacks_count(self, tmp_path: Path) -> None:
        first = agent_lines(waits(0), waits(1), sleeps(2), waits(3), minute=15)
        back = f"2026-03-02T08:16:00.000000000Z stdout F {resumption_line(LineSubject('4242'), 60)}\n"
        result = verdict(tmp_path, first + back + agent_lines(waits(0), waits(1), waits(2), sleeps(3)))
        assert result.primary.ranks == (3,)


class TestIdleHang:
    def test_stacks_without_a_collective_are_an_idle_hang(self, tmp_path: Path) -> None:
        result = verdict(tmp_path, agent_lines(*(sleeps(rank) for rank in range(4))))
        assert (result.family, result.primary.ranks) == ("C3", (0, 1, 2, 3))
        assert "The stack of ranks 0-3 shows data.py:42 in load_batch" in sentences(result)
        assert "absence_unexplained" not in [sentence_name(claim) for claim in result.primary.cannot_decide]
        ruled_out = [finding for finding in result.ruled_out if finding.family == "C2"]
        assert ruled_out
        assert ruled_out[0].outcome is Outcome.ABSENT

    def test_stacks_decide_if_the_log_fell_silent(self, tmp_path: Path) -> None:
        """A silent log of several ranks alone looks like a collective hang; their stacks show otherwise."""
        (tmp_path / "sacct.txt").write_text(
            "JobID|State|ExitCode|Start|End|Timelimit\n"
            "4242|TIMEOUT|0:0|2026-03-02T08:00:00|2026-03-02T10:00:00|02:00:00\n"
        )
        assert verdict(tmp_path, "").family == "C2"
        result = verdict(tmp_path, agent_lines(*(sleeps(rank) for rank in range(4))))
        assert (result.family, result.primary.certainty) == ("C3", Certainty.SUPPORTED)
        hung_rank = verdict(tmp_path, agent_lines(waits(0), waits(1), waits(2), sleeps(3)))
        assert (hung_rank.family, hung_rank.primary.ranks, hung_rank.primary.certainty) == (
            "C2",
            (3,),
            Certainty.ESTABLISHED,
        )

    def test_stacks_of_some_ranks_leave_c2_unknown(self, tmp_path: Path) -> None:
        result = verdict(tmp_path, agent_lines(sleeps(0), sleeps(1)))
        assert (result.family, result.primary.certainty) == ("C3", Certainty.POSSIBLE)
        assert "C2" in [finding.family for finding in result.unknown]

    def test_a_dump_of_an_active_process_is_no_hang(self, tmp_path: Path) -> None:
        """A user may dump the stacks of a healthy run."""
        result = verdict(tmp_path, 'Thread 13 (active): "MainThread"\n    load_batch (data.py:42)\n', LOG)
        assert result.family not in ("C2", "C3")
