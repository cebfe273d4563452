"""How often the verdict is right, by source of the cases: docs/accuracy.md and the confidence table.

    python tools/accuracy.py [--only TEXT] [--source TEXT] [--corpus DIR] [--draws N] [--first N] [-v] [--write]

``--write`` fits the confidence table (src/trackside/verdict/reliability.json) and writes docs/accuracy.md; that needs
the labeled corpus and others' data, which are next to the checkout. ``--draws`` sets how many runs are simulated at
random (kind of fault, size, framework, kinds of data, defects of the telemetry): the fit uses one half, the calibration error is
measured on the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cases import CORPUS, ROOT, Case, corpus, misses, real_data, scenarios, stated_aspects
from tools.draws import FIRST, drawn, name_of
from trackside import diagnose
from trackside.errors import SeveralRuns
from trackside.finding import Verdict
from trackside.verdict import confidence

TABLE = ROOT / "src" / "trackside" / "verdict" / "reliability.json"
PAGE = ROOT / "docs" / "accuracy.md"
BLIND = confidence.TrackRecord(407, 452)
"""First runs on cases that were labeled before the tool had read them and before any rule was changed for them: console
logs rewritten after public issue threads, and small runs, in nine batches. The family was right in 407."""
LOCAL = ("nodes", "gpus", "ranks")
UNDECIDED = ("U0",)
SHOWN_AS = {"culprit": "owner"}
"""Aspects that the page calls by another name than the labels."""
MATRIX_CAPTION = (
    "Label (rows) against verdict (columns). A case may accept several families: an accepted one counts as right although"
    " it is off the diagonal."
)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case with the outcome of its verdict, or the error that prevented one."""

    case: Case
    wrong: dict[str, str]
    family: str = "error"
    certainty: str = ""
    culprit: str = ""
    confidence: float = 0.0
    pattern: str = ""
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether the family is an accepted one."""
        return "family" not in self.wrong

    @property
    def enough(self) -> bool:
        """Whether the inputs can show the label; true if the case does not state it."""
        return bool(self.case.expected.get("enough", True))

    @property
    def has_abstained(self) -> bool:
        """Undecided, or no more than possible."""
        return self.family in UNDECIDED or self.certainty in ("", "possible")

    @property
    def blames_wrong_side(self) -> bool:
        """Whether the job is blamed for a fault of the infrastructure or the reverse, with more than certainty possible."""
        expected_culprit = self.case.expected.get("culprit")
        sides = {expected_culprit, self.culprit}
        return sides == {"job", "infrastructure"} and not self.has_abstained and "culprit" in self.wrong


def judge(case: Case | int, trace: bool = False) -> CaseResult:
    """Diagnose one case, or the draw of this number, and compare."""
    if isinstance(case, int):
        with drawn(case) as drawn_case:
            return judge(drawn_case, trace)
    with case.inputs() as folder:
        start = time.perf_counter()
        try:
            verdict = _diagnose(case, folder)
        except Exception as error:  # noqa: BLE001 - a crash is a miss like any other
            if trace:
                traceback.print_exc()
            return CaseResult(case, {"family": f"{type(error).__name__}: {error}"})
        seconds = time.perf_counter() - start
    primary = verdict.primary
    return CaseResult(
        case,
        misses(case, verdict),
        primary.family,
        primary.certainty.value if primary.certainty else "",
        primary.culprit,
        primary.confidence or 0.0,
        verdict.pattern,
        seconds,
    )


def _diagnose(case: Case, folder: Path) -> Verdict:
    """The verdict; if the inputs hold several unrelated jobs, that on the case's job."""
    try:
        return diagnose(folder)
    except SeveralRuns:
        return diagnose(folder, job=case.expected.get("job"))


def records(results: Iterable[CaseResult]) -> dict[tuple[str, str], confidence.TrackRecord]:
    """(family of the verdict, evidence pattern) -> its record."""
    counts: dict[tuple[str, str], confidence.TrackRecord] = defaultdict(confidence.TrackRecord)
    for result in results:
        if result.pattern:
            counts[result.family, result.pattern] += confidence.TrackRecord(int(result.is_right), 1)
    return dict(sorted(counts.items()))


def aspects(results: Iterable[CaseResult]) -> dict[str, tuple[int, int]]:
    """Aspect -> (right, stated), also of cases whose verdict has another accepted family."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for result in results:
        for aspect in stated_aspects(result.case):
            total[aspect] += 1
            right[aspect] += result.family != "error" and aspect not in result.wrong
    return {aspect: (right[aspect], total[aspect]) for aspect in sorted(total)}


def confusion(results: Sequence[CaseResult]) -> str:
    """The confusion matrix as text: labels as rows, verdicts as columns, only those that occur."""
    cells = Counter((result.case.expected["family"], result.family) for result in results)
    rows = sorted({label for label, _ in cells})
    columns = sorted({got for _, got in cells})
    lines = ["label | " + " ".join(f"{column:>3}" for column in columns)]
    lines += [f"{row:>5} | " + " ".join(f"{cells[row, column] or '.':>3}" for column in columns) for row in rows]
    return "\n".join(lines)


def calibration(results: Sequence[CaseResult], bins: int = 10) -> float:
    """Expected calibration error: the mean gap between confidence and share right, over bins of equal width."""
    groups: dict[int, list[CaseResult]] = defaultdict(list)
    for result in results:
        groups[min(bins - 1, int(result.confidence * bins))].append(result)
    gaps = (
        len(group)
        * abs(
            statistics.fmean(result.confidence for result in group)
            - statistics.fmean(result.is_right for result in group)
        )
        for group in groups.values()
    )
    return sum(gaps) / len(results) if results else 0.0


def fit(results: Iterable[CaseResult]) -> dict[str, object]:
    """The confidence table: development cases and runs drawn at random by family and pattern, unseen cases in total."""
    rows = [
        {"family": family, "pattern": pattern, "right": record.right, "all": record.all}
        for (family, pattern), record in records(results).items()
    ]
    return {"records": rows, "blind": {"right": BLIND.right, "all": BLIND.all}}


def share(right: int, total: int) -> str:
    """Such as ``45/48 = 93.8%``."""
    return f"{right}/{total} = {right / total:.1%}" if total else "-"


def summary(results: Sequence[CaseResult]) -> list[tuple[str, str]]:
    """The figures of one source."""
    count = len(results)
    enough = [case for case in results if case.enough]
    blind = [case for case in results if not case.enough]
    misled = [case for case in blind if not case.is_right and case.certainty == "established"]
    sided = [case for case in results if case.case.expected.get("culprit") in ("job", "infrastructure")]
    localized = [case for case in enough if case.is_right and any(case.case.expected.get(name) for name in LOCAL)]
    named = sum(not any(name in case.wrong for name in LOCAL) for case in localized)
    traps = [case for case in results if case.case.expected.get("never")]
    times = sorted(case.seconds for case in results)
    figures = [
        ("family right, where the inputs can show it", share(sum(case.is_right for case in enough), len(enough))),
        ("family right, where they cannot", share(sum(case.is_right for case in blind), len(blind))),
        ("wrong although called established, where they cannot", share(len(misled), len(blind))),
        (
            "wrong owner (job for infrastructure or the reverse)",
            share(sum(case.blames_wrong_side for case in sided), len(sided)),
        ),
        ("abstained (undecided or only possible)", share(sum(case.has_abstained for case in results), count)),
        ("localized (nodes, GPUs, ranks all right)", share(named, len(localized))),
        (
            "traps avoided (families that must not be found)",
            share(sum("never" not in case.wrong for case in traps), len(traps)),
        ),
    ]
    if times:
        figures.append(("time to verdict, median / 95th percentile / longest", " / ".join(
            f"{times[min(count - 1, int(count * quantile))]:.2f} s" for quantile in (0.5, 0.95, 1.0))))  # fmt: skip
    return figures


def page(groups: dict[str, list[CaseResult]], held_out: Sequence[CaseResult], table: dict[str, object]) -> str:
    """The generated page."""
    lines = [
        "# How often the verdict is right",
        "",
        "Generated by `make accuracy`; do not edit. Sources are reported separately; their shares are never added up.",
        "",
        "| source | what it is |",
        "|---|---|",
        *(f"| {name} | {WHAT[name]} |" for name in groups),
        "",
        "| | " + " | ".join(groups) + " |",
        "|---|" + "---|" * len(groups),
        "| cases | " + " | ".join(str(len(results)) for results in groups.values()) + " |",
    ]
    columns = [dict(summary(results)) for results in groups.values()]
    lines += [f"| {name} | " + " | ".join(column.get(name, "-") for column in columns) + " |" for name in columns[0]]
    lines += ["", "All but the runs drawn at random were used in building the tool, so their shares overstate accuracy. Of a drawn run",
              "the simulator says whether its inputs can show the fault: a straggler cannot be seen where neither GPUs nor",
              "ranks were watched. Confidence counts those runs too, because a user cannot know which kind a run is. On cases",
              "that it had not seen (first runs, before any rule was changed for them; logs and small runs) the family was",
              f"right in {BLIND.right} of {BLIND.all} ({BLIND.right / BLIND.all:.1%}).", ""]  # fmt: skip
    for name, results in groups.items():
        lines += [f"## {name}", "", MATRIX_CAPTION, "", "```", confusion(results), "```", ""]
        lines += ["| aspect | right |", "|---|---|"]
        lines += [
            f"| {SHOWN_AS.get(aspect, aspect)} | {share(*counts)} |" for aspect, counts in aspects(results).items()
        ]
        wrong = [result for result in results if result.wrong]
        if wrong and len(wrong) <= 40:
            lines += ["", "Wrong:", ""]
            lines += [
                f"- {result.case.name}: " + "; ".join(f"{SHOWN_AS.get(a, a)} {w}" for a, w in result.wrong.items())
                for result in wrong
            ]
        lines.append("")
    lines += reliability(table, held_out)
    return "\n".join(lines)


def reliability(table: dict[str, object], held_out: Sequence[CaseResult]) -> list[str]:
    """The confidence of every family and pattern, and its record on runs outside the fit."""
    fitted = confidence.Reliability.read(table)
    out = records(held_out)
    no_record = confidence.TrackRecord()
    lines = [
        "## Confidence",
        "",
        "Each row is a family with an evidence pattern: how certain the primary finding is, how many kinds of data agree, and whether",
        "a similar family was left undecided. Its confidence is its share right in the fit, shrunk toward the share of the family or of the",
        "pattern, whichever is lower; these are shrunk toward the share of the unseen cases, which is the confidence of a family",
        f"without a record at most ({fitted.prior():.2f}). *Not in the fit*: runs drawn at random that the fit did not use.",
        "",
        "| family | evidence pattern | fit: right of all | confidence | not in the fit: right of all |",
        "|---|---|---|---|---|",
    ]
    for (family, pattern), record in fitted.cells.items():
        unfitted = out.get((family, pattern), no_record)
        lines.append(f"| {family} | {pattern} | {record.right} of {record.all} "
                     f"| {fitted.confidence(family, pattern):.2f} | {unfitted.right} of {unfitted.all} |")  # fmt: skip
    error = calibration(held_out)
    lines += [
        "",
        f"Expected calibration error on the {len(held_out)} runs that are not in the fit (ten bins): {error:.3f}.",
        "",
    ]
    return lines


WHAT = {
    "simulated": "scenarios of this repository made by `trackside simulate`, one folder each, every trap and rival named",
    "own lab": "small real runs recorded for this repository with faults injected, some on a real Slurm cluster",
    "after public threads": "console output that we wrote after public issue threads",
    "written by hand": "small cases for single rules",
    "corpus logs": "the labeled corpus: re-rendered console logs",
    "corpus runs": "the labeled corpus: real small CPU runs with injected faults",
    "real data": "recorded runs of others, labeled by their owners",
    "drawn": "runs simulated at random: kind of fault, size, framework, kinds of data and defects of the telemetry",
}
"""Every source, in the page's order."""


def report(title: str, results: Sequence[CaseResult], verbose: bool) -> None:
    """Print one source's misses and figures."""
    print(f"\n== {title}: {len(results)} cases")
    for result in results:
        if result.wrong or verbose:
            answer = f"{result.family} {result.certainty} {result.culprit}"
            mark = (
                "ok  " if not result.wrong else "MISS" if result.enough else "dark"
            )  # dark: the inputs cannot show it
            print(f"{mark} {result.case.name}: {result.wrong or answer}")
    print(confusion(results))
    for name, figure in summary(results):
        print(f"{name:>55}: {figure}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases with this text in their name")
    parser.add_argument("--source", default="", help="sources with this text in their name")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of labeled cases")
    parser.add_argument("--draws", type=int, default=400, help="runs to simulate at random")
    parser.add_argument("--first", type=int, default=FIRST, help="number of the first of them")
    parser.add_argument("--write", action="store_true", help="fit the confidence table and write docs/accuracy.md")
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    cases = [*scenarios(), *corpus(arguments.corpus), *real_data()]
    selected: list[Case | int] = [c for c in cases if arguments.only in c.name and arguments.source in c.source]
    if arguments.source in "drawn":
        first, count = arguments.first, arguments.draws
        selected += [number for number in range(first, first + count) if arguments.only in name_of(number)]
    if arguments.verbose:
        results = [judge(case, trace=True) for case in selected]
    else:
        with ProcessPoolExecutor() as pool:
            results = list(pool.map(judge, selected, chunksize=4))
    groups = {name: [result for result in results if result.case.source == name] for name in WHAT}
    groups = {name: group for name, group in groups.items() if group}
    for title, group in groups.items():
        report(title, group, arguments.verbose)
    if arguments.write:
        drawn = groups.get("drawn", [])
        fitted_on, held_out = drawn[::2], drawn[1::2]
        table = fit([*(result for name, group in groups.items() if name != "drawn" for result in group), *fitted_on])
        TABLE.write_text(json.dumps(table, indent=2) + "\n", "utf-8")
        confidence.table.cache_clear()
        confidence.of.cache_clear()
        held_out = [with_fitted_confidence(result) for result in held_out]
        PAGE.write_text(page(groups, held_out, table), "utf-8")
        print(f"\nwritten: {PAGE.relative_to(ROOT)}; calibration error {calibration(held_out):.3f}")
    return 0


def with_fitted_confidence(result: CaseResult) -> CaseResult:
    """The result with the confidence of the new table."""
    return replace(result, confidence=confidence.of(result.family, result.pattern)) if result.pattern else result


if __name__ == "__main__":
    sys.exit(main())
