"""The last loop of a log whose lines no reader knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trackside import diagnose
from trackside.logs.scan import scan_text
from trackside.model import Event

FIGURES = [2.31, 1.94, 1.71, 1.52, 1.44, 1.37, 1.31, 1.28]
LOOPS: dict[str, Callable[[int, float], str]] = {
    "abbreviated epoch": lambda i, x: f"E{i} tl {x:.2f} ta {40 + i}",
    "share of a total": lambda i, x: f"{i * 500}/4000 rec={x:.4f}",
    "round brackets": lambda i, x: f"({i}, {x:.4f}, {x + 0.1:.4f})",
    "bare columns": lambda i, x: f"{i}\t{x:.4f}\t{x / 10:.5f}",
    "physics": lambda i, x: f"t={i * 10} energy={-x:.5f} var={x / 10:.5f}",
    "stamped": lambda i, x: f"2026-01-02 10:0{i}:00,000 - fit - fold {i}/8 -> auc {1 / x:.4f}",
    "search": lambda i, x: f"Trial {i} has value: {x:.3f} and parameters: {{'lr': {x / 100:.5f}}}.",
    "Russian": lambda i, x: f"Эпоха {i} точность {40 + i}%",
    "two lines a round": lambda i, x: f"round {i}: cohort {10 * i % 7}\n    reward of agents {x:.3f}",
}
OTHER_LOOPS: dict[str, Callable[[int, float], str]] = {
    "GPUs": lambda i, x: f"GPU {i}: temperature {x:.2f} load {x / 3:.2f}",
    "parts of a model": lambda i, x: f"({i}): Linear(in_features={i * 64}, eps={x:.2f}, momentum={x / 10:.2f})",
    "shards": lambda i, x: f"Loading shard {i}/8 ({x:.2f} s, {x / 2:.1f} GB)",
    "evaluation bar": lambda i, x: f"Evaluating:  {i}0%|#### | {i}0/80 [00:0{i}<00:09, {x:.2f}it/s]",
    "work that is timed": lambda i, x: (
        f"Seq {i}/15 (id={i + 3}): {i * i} frames -> {i * 7} pairs ({x:.1f}s, {40 + i}/s)"
    ),
    "numbers without order": lambda i, x: f"case {i * i * 7 % 31} dice {x:.3f} hausdorff {x * 9:.2f}",
}
BEHIND = "mean over all of them: 0.83\n"


def loop_of(text: str) -> Event | None:
    return next((event for event in scan_text(text) if event.kind == "counted_lines"), None)


def the_loop_of(text: str) -> Event:
    loop = loop_of(text)
    assert loop is not None, text
    return loop


def lines_of(loop: Callable[[int, float], str], count: int = len(FIGURES)) -> str:
    return "Using device: cuda\n" + "".join(loop(i, FIGURES[i - 1]) + "\n" for i in range(1, count + 1))


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_with_lines_behind_it_is_done(name: str) -> None:
    text = lines_of(LOOPS[name])
    loop = the_loop_of(text + BEHIND)
    assert loop.get("done"), text
    assert text.splitlines()[loop.at.line - 1] == loop.text
    assert text.encode()[loop.at.offset :].decode().startswith(loop.text)


@pytest.mark.parametrize("name", OTHER_LOOPS)
def test_other_loops_count_nothing(name: str) -> None:
    assert loop_of(lines_of(OTHER_LOOPS[name]) + BEHIND) is None


@pytest.mark.parametrize(
    "ending", ["", "Connection refused\n", "exit code 1\n", "E9 tl 1.2", "loss became nan, giving up\n"]
)
def test_a_loop_that_ends_otherwise_is_not_done(ending: str) -> None:
    assert not the_loop_of(lines_of(LOOPS["abbreviated epoch"]) + ending).get("done")


def test_a_count_that_reaches_its_total_is_done_without_another_line() -> None:
    loop = the_loop_of(lines_of(LOOPS["share of a total"]))
    assert (loop.get("count"), loop.get("total"), loop.get("done")) == (4000, 4000, True)
    assert not the_loop_of(lines_of(LOOPS["share of a total"], 7)).get("done")


def test_an_error_far_below_a_loop_is_not_of_it() -> None:
    setup = "".join(f"option_{word} = on\n" for word in "abcdefghijklmnopqrstuvwxyzäöüßéèáàóòú")
    loop = the_loop_of(lines_of(LOOPS["abbreviated epoch"]) + setup + "KeyError: 'x'\n")
    assert not loop.get("at_work")


@pytest.mark.parametrize("name", LOOPS)
def test_such_a_run_is_possibly_healthy_and_a_crash_in_it_is_no_startup_crash(name: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(lines_of(LOOPS[name]) + BEHIND, "utf-8")
    healthy = diagnose(log).primary
    assert (healthy.family, healthy.certainty and healthy.certainty.value) == ("G1", "possible")
    traceback = 'Traceback (most recent call last):\n  File "fit.py", line 9, in <module>\n    x[9]\nIndexError: no\n'
    log.write_text(lines_of(LOOPS[name]) + traceback, "utf-8")
    assert diagnose(log).primary.family == "H2"


@pytest.mark.parametrize(
    "text", ["#\n##\n#1\n#2 3\n" * 5, "1 2 3\n" * 9, "\n" * 9, "7\r8\r9\r10\r11\n", "1e9 0.1\n" * 5]
)
def test_odd_lines_do_no_harm(text: str) -> None:
    assert loop_of(text) is None
