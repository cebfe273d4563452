"""The GPU-hours of a run and the cost of its fault: parts that do not overlap, each with a formula for its figure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

import trackside
from tools.cases import scenarios
from trackside.cli import main
from trackside.finding import Verdict
from trackside.session import Session, paths
from trackside.settings.price import Price
from trackside.show.document import document
from trackside.show.waste import LossDoc, WasteDoc, in_brief
from trackside.site.config import load
from trackside.verify import check

START = dt.datetime(2026, 6, 10, 12, 0, 0, tzinfo=dt.UTC)
HEAD = "JobID|JobName|State|ExitCode|Submit|Start|End|Elapsed|Timelimit|AllocTRES|NNodes|NodeList|Restarts\n"
NONE = Price()


def at(seconds: float) -> str:
    return (START + dt.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")


def row(state: str, exit_code: str, start: float, end: float, gpus: int = 8, restarts: int = 0) -> str:
    elapsed = str(dt.timedelta(seconds=end - start)).rjust(8, "0")
    times = f"{at(start - 9)}|{at(start)}|{at(end)}|{elapsed}"
    return f"77|lm|{state}|{exit_code}|{times}|1-00:00:00|billing=8,cpu=8,gres/gpu={gpus},node=1|1|gpu11|{restarts}\n"


def steps(first: int, last: int, start_s: float, every: float = 3.0) -> list[str]:
    """A training point every tenth step."""
    lines = []
    for step in range(first, last + 1, 10):
        stamp = at(start_s + (step - first) * every).replace("T", " ")
        lines.append(f"{stamp} | INFO | step {step} | loss {6 * 0.99 ** (step / 10):.4f} | lr 2.0e-04")
    return lines


def saved(step: int, time: float) -> str:
    return f"{at(time).replace('T', ' ')} | INFO | saved checkpoint at step {step} to /ckpt/step_{step}.pt"


CRASH = [
    "Traceback (most recent call last):",
    '  File "/home/user/train.py", line 90, in <module>',
    "    main()",
    '  File "/home/user/train.py", line 61, in main',
    '    raise ValueError("bad sample 17")',
    "ValueError: bad sample 17",
]
WasteOf = Callable[[list[str], str], WasteDoc]


@pytest.fixture
def waste_of(tmp_path: Path) -> WasteOf:
    def make(log: list[str], rows: str) -> WasteDoc:
        (tmp_path / "slurm-77.out").write_text("\n".join(log) + "\n")
        (tmp_path / "sacct.psv").write_text(HEAD + rows)
        waste = document(trackside.diagnose(tmp_path)).waste
        assert waste is not None
        return waste

    return make


def kinds(waste: WasteDoc) -> dict[str, float]:
    return {part.kind: part.gpu_hours for part in waste.lost}


def test_a_crash_costs_the_work_since_the_last_checkpoint(waste_of: WasteOf) -> None:
    log = [*steps(10, 200, 60), saved(200, 631), *steps(210, 300, 660), *CRASH]
    waste = waste_of(log, row("FAILED", "1:0", 0, 940))
    assert waste.gpu_hours == pytest.approx(8 * 940 / 3600, abs=1e-3)
    assert kinds(waste) == {"work": pytest.approx(8 * (940 - 631) / 3600, abs=1e-3)}
    assert waste.lost[0].formula.startswith("8 GPUs x 309 s (2026-06-10 12:10:31 to 2026-06-10 12:15:40)")
    assert not waste.unknown


def test_an_unstamped_checkpoint_is_dated_by_its_step(waste_of: WasteOf) -> None:
    """Unstamped steps count with their usual time."""
    log = [re.sub(r"^\S+ \S+ \| INFO \| (step .*)", r"\1 | step_time 3.0s", line) for line in steps(10, 300, 60)]
    log.insert(20, "saved checkpoint at step 200 to /ckpt/step_200.pt")
    waste = waste_of([*log, *CRASH], row("FAILED", "1:0", 0, 940))
    assert kinds(waste) == {"work": pytest.approx(8 * 100 * 3.0 / 3600, abs=1e-3)}
    assert "(300 - 200) steps x 3 s per step" in waste.lost[0].formula


def test_all_work_is_lost_without_a_checkpoint_and_the_assumption_is_stated(waste_of: WasteOf) -> None:
    waste = waste_of([*steps(10, 300, 60), *CRASH], row("FAILED", "1:0", 0, 940))
    assert kinds(waste) == {"work": waste.gpu_hours}
    assert waste.lost[0].assumption.startswith("No complete checkpoint appears in the log")
    assert "No complete checkpoint appears in the log" in waste.lost[0].assumption


def test_a_loss_that_rests_on_an_assumption_is_an_upper_bound(waste_of: WasteOf) -> None:
    waste = waste_of([*steps(10, 300, 60), *CRASH], row("FAILED", "1:0", 0, 940))
    assert waste.lost_at_most
    assert in_brief(waste).endswith("GPU-hours allocated, possibly all lost")
    sure = waste_of([*steps(10, 200, 60), saved(200, 631), *steps(210, 300, 660), *CRASH], row("FAILED", "1:0", 0, 940))
    assert not sure.lost_at_most
    assert "up to" not in in_brief(sure)


def test_a_log_alone_shows_a_lower_bound_and_an_unknown_run_no_loss(tmp_path: Path) -> None:
    world = f"{at(0)} | INFO | world_size: 4"
    (tmp_path / "train.log").write_text("\n".join([world, *steps(10, 300, 60), *CRASH]) + "\n")
    crashed = in_brief(document(trackside.diagnose(tmp_path)).waste)
    assert crashed == "at least 1.033 GPU-hours allocated (first to last timestamp in the log), possibly all lost"
    (tmp_path / "train.log").write_text(f"{world}\n{at(3600)} | INFO | bye\n")
    unknown = document(trackside.diagnose(tmp_path))
    assert unknown.primary.family == "U0"
    assert in_brief(unknown.waste).endswith("(first to last timestamp in the log); lost: unknown")


def test_time_after_the_last_work_is_lost_as_stopped(waste_of: WasteOf) -> None:
    """A crash whose traceback has no time, and an end 1,500 s later."""
    waste = waste_of([*steps(10, 300, 60), *CRASH], row("FAILED", "1:0", 0, 2430))
    assert kinds(waste) == {
        "work": pytest.approx(8 * 930 / 3600, abs=1e-3),
        "stopped": pytest.approx(8 * 1500 / 3600, abs=1e-3),
    }
    assert waste.lost[0].what == "The work from the start to its last sign"


def test_allocated_and_lost_hours_use_one_clock(waste_of: WasteOf) -> None:
    """A record whose Elapsed is one second longer than its end minus its start."""
    record = row("FAILED", "1:0", 0, 940).replace("00:15:40", "00:15:41").replace("0:15:40", "0:15:41")
    waste = waste_of([*steps(10, 300, 60), *CRASH], record)
    assert waste.lost_gpu_hours == waste.gpu_hours == pytest.approx(8 * 940 / 3600, abs=1e-3)


def test_a_diverged_run_without_a_checkpoint_makes_the_same_assumption() -> None:
    """Earlier work may be lost too; it is not if a checkpoint is known."""
    _, waste = judged("e1/sim-explode")
    assert waste is not None
    parts = {part.kind: part for part in waste.lost}
    assert set(parts) == {"work", "spoilt"}
    assert (parts["work"].at_most, parts["spoilt"].at_most) == (True, False)
    assert waste.lost_gpu_hours == waste.gpu_hours


def test_a_failed_start_costs_everything(waste_of: WasteOf) -> None:
    waste = waste_of(CRASH, row("FAILED", "1:0", 0, 41))
    assert kinds(waste) == {"startup": waste.gpu_hours}


def test_a_hang_after_a_checkpoint_is_two_adjacent_parts(waste_of: WasteOf) -> None:
    """Hung time and the work since the last checkpoint add up to the time from the checkpoint to the end."""
    waste = waste_of([*steps(10, 200, 60), saved(100, 331)], row("TIMEOUT", "0:0", 0, 90_000))
    assert set(kinds(waste)) == {"work", "stopped"}
    assert sum(kinds(waste).values()) == pytest.approx(8 * (90_000 - 331) / 3600, abs=2e-3)
    assert kinds(waste)["work"] < 1


def test_a_healthy_run_and_a_cancelled_one_lost_nothing(waste_of: WasteOf) -> None:
    log = [*steps(10, 300, 60), "Training completed"]
    assert waste_of(log, row("COMPLETED", "0:0", 0, 980)).lost_gpu_hours == 0
    assert waste_of(log[:-1], row("CANCELLED by 1000", "0:15", 0, 960)).lost == []


def test_all_attempts_are_allocated_and_repeated_steps_are_lost(waste_of: WasteOf) -> None:
    """The second attempt continues at step 150 of 200: 50 of the first one's 190 steps are repeated."""
    log = [*steps(10, 200, 60), *steps(150, 300, 2060), "Training completed"]
    rows = row("PREEMPTED", "0:0", 0, 640) + row("COMPLETED", "0:0", 2000, 2600, restarts=1)
    waste = waste_of(log, rows)
    assert waste.gpu_hours == pytest.approx(8 * (640 + 600) / 3600, abs=1e-3)
    assert "in 2 attempts" in waste.formula
    assert kinds(waste) == {"attempt": pytest.approx(8 * 640 * 50 / 190 / 3600, abs=2e-3)}


def test_an_attempt_that_started_over_is_lost_completely(waste_of: WasteOf) -> None:
    log = [*steps(10, 200, 60), *steps(10, 300, 2060), "Training completed"]
    rows = row("PREEMPTED", "0:0", 0, 640) + row("COMPLETED", "0:0", 2000, 3000, restarts=1)
    assert kinds(waste_of(log, rows)) == {"attempt": pytest.approx(8 * 640 / 3600, abs=1e-3)}


def test_work_after_the_checkpoint_and_the_second_startup_are_lost() -> None:
    """The next attempt loads a checkpoint of a step that neither log prints as a point."""
    _, waste = judged("f2/preempted-then-completed")
    assert waste is not None
    redone, again = waste.lost
    assert (redone.kind, again.kind) == ("attempt", "attempt")
    assert "after its checkpoint at step" in redone.what
    assert "startup" in again.what
    assert not waste.unknown


def test_the_startup_after_a_resumed_attempt_is_lost(waste_of: WasteOf) -> None:
    log = [
        *steps(10, 200, 60), saved(200, 631), *steps(210, 220, 660), "loaded checkpoint /ckpt/step_200.pt (step 200)",
        *steps(230, 300, 2120), "Training completed",
    ]  # fmt: skip
    rows = row("PREEMPTED", "0:0", 0, 700) + row("COMPLETED", "0:0", 2000, 2600, restarts=1)
    redone, again = waste_of(log, rows).lost
    assert redone.gpu_hours == pytest.approx(8 * (700 - 631) / 3600, abs=1e-3)
    assert again.gpu_hours == pytest.approx(8 * (120 - 30 * 3) / 3600, abs=1e-3)


def test_an_unknown_resume_step_is_reported_as_unknown(waste_of: WasteOf) -> None:
    """The points leave a gap and no line shows which checkpoint was loaded."""
    log = [*steps(10, 220, 60), *steps(230, 300, 2060), "Training completed"]
    rows = row("PREEMPTED", "0:0", 0, 700) + row("COMPLETED", "0:0", 2000, 2600, restarts=1)
    waste = waste_of(log, rows)
    assert any("where the next attempt continued" in text for text in waste.unknown)


def test_an_unknown_loss_has_a_reason(waste_of: WasteOf, tmp_path: Path) -> None:
    waste = waste_of(steps(10, 300, 60), row("NODE_FAIL", "1:0", 0, 940))
    assert waste.lost
    (tmp_path / "slurm-77.out").unlink()
    alone = document(trackside.diagnose(tmp_path)).waste
    assert alone is not None
    assert any("no log with steps" in text for text in alone.unknown)
    (tmp_path / "sacct.psv").unlink()
    (tmp_path / "train.log").write_text("\n".join(CRASH))
    nothing = document(trackside.diagnose(tmp_path))
    assert nothing.waste is None
    assert any("number of allocated GPUs is not known" in text for text in nothing.waste_unknown)


# -- every scenario


@cache
def judged(name: str) -> tuple[Session, WasteDoc | None]:
    with next(scenario for scenario in scenarios() if scenario.name == name).inputs() as folder:
        case = Session.of(paths.load([folder]))
    return case, document(case.verdict()).waste


NAMES = [case.name for case in scenarios() if case.source in ("simulated", "written by hand")]
"""Scenarios that mostly have scheduler records or metrics."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_parts_do_not_overlap_and_their_citations_hold(name: str) -> None:
    case, waste = judged(name)
    if waste is None:
        assert case.verdict().cost is not None
        assert case.verdict().cost.missing
        return
    assert sum(part.gpu_hours for part in waste.lost) <= waste.gpu_hours + 0.001 * (1 + len(waste.lost))
    doc = document(case.verdict())
    ids = {name for part in waste.lost for name in part.cites} | set(waste.cites)
    assert [result for result in check({cite: doc.cites[cite] for cite in ids}, case.store) if not result.holds] == []
    for part in waste.lost:
        assert part.cites
        assert part.assumption
        assert evaluate(part.formula) == pytest.approx(part.gpu_hours, rel=2e-3, abs=2e-3)


def evaluate(formula: str) -> float:
    """The value of a formula, computed from its own figures."""
    left = (
        formula.rpartition(" = ")[0]
        if ", where " not in formula
        else formula.partition(", where ")[0].rpartition(" = ")[0]
    )
    left = re.sub(r" \(\d{4}-\S+ \S+(?: UTC)? to \d{4}-\S+ \S+(?: UTC)?\)", "", left)
    left = (
        re.sub(r" (?:GPUs?|steps|s per step|s longer|s/h|s|of the attempt|of its steps)\b", "", left)
        .replace(",", "")
        .replace(" x ", " * ")
    )
    left = re.sub(r"\b(?:of the attempt|of its)\b", "", left)
    assert re.fullmatch(r"[\d.\s*/()-]+", left), formula
    return float(eval(left))


@pytest.mark.parametrize(
    ("name", "kind", "min_share", "max_share"),
    [
        ("b3/sim-thermal-one-gpu", "slow", 0.45, 0.5),  # its clock halves, so the time since then doubles
        ("b3/sim-no-profiling-fields", "slow", 0.45, 0.55),
    ],
)
def test_a_slowdown_is_priced_against_the_good_phase(name: str, kind: str, min_share: float, max_share: float) -> None:
    case, waste = judged(name)
    assert waste is not None
    part = next(part for part in waste.lost if part.kind == kind)
    run, since = case.verdict().run, case.verdict().primary.since
    assert run.end is not None
    assert since is not None
    assert re.search(r"where [\d,]+ s of the [\d,]+ s.* x \(1 - [\d,.]+ / [\d,.]+\), medians of \w", part.formula)
    before = next(
        value for claim in case.verdict().primary.shows for name, value in claim.values.items() if name == "before"
    )
    assert f"{before.number:,.4g}" in part.formula or f"{before.number:,.0f}" in part.formula  # as the evidence has it
    whole = (run.n_gpus or 0) * (run.end - since) / 3600
    assert min_share <= part.gpu_hours / whole <= max_share


def test_a_run_slow_from_the_start_has_no_good_phase() -> None:
    _, waste = judged("d3/sim-slow-gpu-16")
    assert waste is not None
    assert waste.lost == []
    assert waste.lost_gpu_hours is None
    assert any("trackside compare" in text for text in waste.unknown)


def test_a_healthy_verdict_reports_the_cost_of_a_pause() -> None:
    case, waste = judged("c2/sim-rival-storage-stall-resumes")
    assert waste is not None
    assert case.verdict().family == "G1"
    assert [part.kind for part in waste.lost] == ["paused"]


# -- money


def verdict() -> Verdict:
    return judged("c2/sim-stuck-rank-watchdog")[0].verdict()


def test_money_is_hours_times_the_price() -> None:
    waste = document(verdict(), price=Price(2.5, "EUR")).waste
    assert waste is not None
    assert waste.lost_gpu_hours is not None
    assert waste.cost == round(waste.gpu_hours * 2.5, 2)
    assert waste.lost_cost == round(waste.lost_gpu_hours * 2.5, 2)
    assert waste.cost_formula == f"{waste.gpu_hours:g} GPU-hours x 2.5 EUR = {waste.cost:,.2f} EUR"
    assert all(part.cost == round(part.gpu_hours * 2.5, 2) for part in waste.lost)
    assert in_brief(waste).endswith(f"possibly all lost (possibly {waste.lost_cost:,.2f} EUR)")


def test_without_a_price_there_is_no_cost() -> None:
    waste = document(verdict()).waste
    assert waste is not None
    assert (waste.cost, waste.currency, waste.price, waste.lost_cost, waste.cost_formula) == (
        None,
        None,
        None,
        None,
        "",
    )


@pytest.mark.parametrize(
    ("text", "environ", "price"),
    [
        ("2.50", {}, "2.5 USD"),
        ("2.50 EUR", {}, "2.5 EUR"),
        ("3€", {}, "3 EUR"),
        ("€2.50", {}, "2.5 EUR"),
        ("$2.50", {}, "2.5 USD"),
        ("2.50$", {}, "2.5 USD"),
        ("$2.50 USD", {}, "2.5 USD"),
        ("EUR 2.50", {}, "2.5 EUR"),
        (None, {"TRACKSIDE_COST_PRICE_PER_GPU_HOUR": "4", "TRACKSIDE_COST_CURRENCY": "CHF"}, "4 CHF"),
        ("2", {"TRACKSIDE_COST_PRICE_PER_GPU_HOUR": "4", "TRACKSIDE_COST_CURRENCY": "CHF"}, "2 CHF"),
    ],
)
def test_the_command_line_price_outweighs_the_settings(
    text: str | None, environ: dict[str, str], price: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "train.out").write_text("\n".join(CRASH))
    (tmp_path / "sacct.psv").write_text(HEAD + row("FAILED", "1:0", 0, 3600))
    flags = [] if text is None else ["--price", text]
    result = CliRunner().invoke(main, ["diagnose", ".", *flags], env=environ)
    assert result.exit_code == 0
    assert f"8 GPU-hours x {price}" in " ".join(result.stdout.split())


def test_the_price_is_read_from_the_config_file(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('[cost]\nprice_per_gpu_hour = 2.5\ncurrency = "EUR"\n')
    assert load(path, environ={}).price == Price(2.5, "EUR")
    assert load(None, environ={"XDG_CONFIG_HOME": str(tmp_path)}).price == NONE


@pytest.mark.parametrize("text", ["abc", "-3", "2.5.1", "$2 EUR", "EUR"])
def test_an_invalid_price_is_refused(text: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["diagnose", str(tmp_path), "--price", text])
    assert result.exit_code == 2
    assert "2.50" in result.stderr


def test_an_invalid_config_file_leaves_the_verdict_without_a_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trackside.toml").write_text("[costs]\nprice = 3\n")
    (tmp_path / "train.out").write_text("\n".join(CRASH))
    result = CliRunner().invoke(main, ["diagnose", "train.out"])
    assert result.exit_code == 0
    assert "their price are ignored" in result.stderr


def test_a_part_requires_a_formula() -> None:
    with pytest.raises(TypeError):
        LossDoc("work", "the work", 1.0)  # type: ignore[call-arg]


def diagnosis(folder: Path, *flags: str) -> str:
    result = CliRunner().invoke(main, ["diagnose", str(folder), *flags])
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.replace("\\", "").split())


def test_a_given_price_shows_why_there_is_no_cost(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join(CRASH))
    for flags in ((), ("--markdown",)):
        assert "number of allocated GPUs is not known" in diagnosis(tmp_path, "--price", "2", *flags)
        assert "number of allocated GPUs is not known" not in diagnosis(tmp_path, *flags)


def test_many_gpu_hours_are_written_out() -> None:
    waste = WasteDoc(gpu_hours=12237.369, cost=None, currency=None, lost_gpu_hours=3400.2)
    assert in_brief(waste) == "12,237 GPU-hours allocated, 3,400 lost"


def test_markdown_shows_the_formulas(tmp_path: Path) -> None:
    (tmp_path / "train.out").write_text("\n".join(CRASH))
    (tmp_path / "sacct.psv").write_text(HEAD + row("FAILED", "1:0", 0, 3600))
    assert "8 GPUs x 3,600 s / 3,600 s/h = 8 GPU-hours, at 2 EUR each: 16.00 EUR" in diagnosis(
        tmp_path, "--price", "2 EUR", "--markdown"
    )
