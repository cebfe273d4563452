"""How often the verdict is right, by source of the cases: docs/accuracy.md and the confidence table.

    python tools/accuracy.py [--only TEXT] [--source TEXT] [--corpus DIR] [--draws N] [--first N] [-v] [--write]

``--write`` fits the confidence table (src/trackside/verdict/reliability.json) and writes docs/accuracy.md; that needs
the labeled corpus and others' data, which are next to the checkout. The fit uses runs that were unseen when judged: the
ledger of first runs (accuracy/first-runs), and half of the runs that are simulated at random (``--draws`` sets their
number; kind of fault, size, framework, kinds of data, defects of the telemetry).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cases import (
    CORPUS,
    PUBLIC_LOGS,
    REAL,
    ROOT,
    Case,
    corpus,
    labeled_logs,
    misses,
    real_data,
    scenarios,
    stated_aspects,
)
from tools.draws import FIRST, drawn, name_of
from tools.first_runs import LOG_ALONE, FirstRun, first_runs
from trackside import diagnose
from trackside.errors import SeveralRuns
from trackside.finding import Verdict
from trackside.verdict.confidence import WEIGHT, EvidencePattern, Reliability, TrackRecord

TABLE = ROOT / "src" / "trackside" / "verdict" / "reliability.json"
PAGE = ROOT / "docs" / "accuracy.md"
EARLIER = TrackRecord(407, 452)
"""First runs before the ledger was begun, of which only the total is known: console logs rewritten after public issue
threads, and small runs, in nine batches, labeled before the tool had read them."""
SIMULATED_WEIGHT = 0.25
"""Weight of a simulated run relative to a real one: no rule was made for it, but we wrote its log texts and the simulator."""
LOCAL = ("nodes", "gpus", "ranks")
UNDECIDED = ("U0",)
SHOWN_AS = {
    "culprit": "owner", "never": "families that must not be found", "warns": "warnings", "explains": "consequences",
    "unknown": "families left undecided", "disposition": "state of the run", "fault_class": "fault class", "gpus": "GPUs",
}  # fmt: skip
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
    confidence: float | None = None
    pattern: EvidencePattern = ()
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
        primary.confidence,
        verdict.pattern,
        seconds,
    )


def _diagnose(case: Case, folder: Path) -> Verdict:
    """The verdict; if the inputs hold several unrelated jobs, that on the case's job."""
    try:
        return diagnose(folder)
    except SeveralRuns:
        return diagnose(folder, job=case.expected.get("job"))


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


def calibration(outcomes: Iterable[tuple[float | None, bool]], bins: int = 10) -> float:
    """Expected calibration error of (confidence, is right): the mean gap between confidence and share of correct verdicts, over bins of
    equal width. Verdicts without a confidence do not count."""
    groups: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for stated, is_right in outcomes:
        if stated is not None:
            groups[min(bins - 1, int(stated * bins))].append((stated, is_right))
    gaps = (
        abs(sum(stated for stated, _ in group) - sum(is_right for _, is_right in group)) for group in groups.values()
    )
    return sum(gaps) / max(1, sum(map(len, groups.values())))


def fit(ledger: Sequence[FirstRun], simulated: Sequence[CaseResult]) -> dict[str, object]:
    """The confidence table. Verdicts that rest on a log alone are counted in first runs, all others in simulated
    runs."""
    counts: dict[EvidencePattern, TrackRecord] = defaultdict(TrackRecord)
    for run in ledger:
        if run.is_certain and run.pattern:
            counts[run.pattern] += TrackRecord(int(run.is_right), 1)
    for result in simulated:
        if result.pattern and result.pattern[0] != LOG_ALONE:
            counts[result.pattern] += TrackRecord(SIMULATED_WEIGHT * result.is_right, SIMULATED_WEIGHT)
    rows = [
        {"pattern": pattern, "right": record.right, "all": record.all} for pattern, record in sorted(counts.items())
    ]
    return {"prior": {"right": EARLIER.right, "all": EARLIER.all}, "records": rows}


def share(right: int, total: int) -> str:
    """Such as ``45/48 = 93.8% (83-98)``: with the 95 % interval by Wilson's formula."""
    if not total:
        return "-"
    low, high = interval(right, total)
    return f"{right}/{total} = {right / total:.1%} ({100 * low:.0f}-{100 * high:.0f})"


def interval(right: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The confidence interval of a share by Wilson's formula; ``z``: 1.96 for 95%."""
    ratio, spread = right / total, z * z / total
    middle = (ratio + spread / 2) / (1 + spread)
    half = z * math.sqrt(ratio * (1 - ratio) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


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
        (
            "family right, where the inputs can show the fault",
            share(sum(case.is_right for case in enough), len(enough)),
        ),
        (
            "family right, where the inputs cannot show the fault",
            share(sum(case.is_right for case in blind), len(blind)),
        ),
        ("wrong with certainty established, where the inputs cannot show the fault", share(len(misled), len(blind))),
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


def page(
    groups: dict[str, list[CaseResult]],
    ledger: Sequence[FirstRun],
    table: dict[str, object],
    held_out: Sequence[CaseResult],
) -> str:
    """The generated page."""
    lines = [
        "# How often the verdict is right",
        "",
        "Generated by `make accuracy`; do not edit. Intervals in brackets are 95% intervals (Wilson), in percent.",
        "",
        *unseen(ledger),
        "## Seen: cases that the rules were built on",
        "",
        "Sources are reported separately; their shares are never added up. All but the runs drawn at random were used in building the",
        "tool, so their shares overstate accuracy.",
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
    lines += ["", "For each drawn run, the simulator records whether its inputs can show the fault: a straggler cannot be seen where neither",
              "GPUs nor ranks were watched.", "", *confidence_section(table, held_out)]  # fmt: skip
    for name, results in groups.items():
        lines += [f"## Details: {name}", "", MATRIX_CAPTION, "", "```", confusion(results), "```", ""]
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
    return "\n".join(lines)


def unseen(ledger: Sequence[FirstRun]) -> list[str]:
    """The first runs by batch: what a stranger can expect."""
    lines = [
        "## Unseen: first runs on public logs",
        "",
        "Logs from public repositories that neither the authors nor the rules had seen, labeled by reading before anything was run, and",
        "judged once ([the ledger](../accuracy/first-runs/README.md)). Rules are changed only after a batch was judged, so a later version does better on",
        "these very logs; what counts is the newest batch. *Certain*: the text settles the label. A verdict of U0 (unknown) answers",
        "nothing and has no confidence; *no fault found* is an answer.",
        "",
        "| batch | logs | family right | of certain labels | answered, not U0 (of certain labels) | of these, right | faults called healthy "
        "| healthy runs called a fault | calibration error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for batch in dict.fromkeys(run.batch for run in ledger):
        runs = [run for run in ledger if run.batch == batch]
        certain = [run for run in runs if run.is_certain]
        named = [run for run in certain if run.family != "U0"]
        faults = [run for run in certain if run.label["family"] not in ("G1", "U0")]
        healthy = [run for run in certain if run.label["family"] == "G1"]
        cells = (
            batch, len(runs), share(sum(run.is_right for run in runs), len(runs)),
            share(sum(run.is_right for run in certain), len(certain)), share(len(named), len(certain)),
            share(sum(run.is_right for run in named), len(named)),
            share(sum(run.family == "G1" and not run.is_right for run in faults), len(faults)),
            share(sum(run.family not in ("G1", "U0") and not run.is_right for run in healthy), len(healthy)),
            f"{calibration((run.confidence, run.is_right) for run in certain):.3f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += [
        "",
        f"Before the ledger was begun, the family was right in {EARLIER.right:.0f} of {EARLIER.all:.0f} first runs "
        f"({EARLIER.right / EARLIER.all:.1%}): console logs",
        "rewritten after public issue threads, and small runs, labeled before they were judged.",
        "",
    ]
    return lines


def confidence_section(table: dict[str, object], held_out: Sequence[CaseResult]) -> list[str]:
    """How the confidence is computed, its records, and its error on runs outside the fit."""
    fitted = Reliability.read(table)
    lines = [
        "## Confidence",
        "",
        "The confidence of a verdict is the share of correct verdicts among runs that were unseen when judged and had the same evidence",
        "pattern: first the kinds of data that it cites, then the group of its family (the letter of its code), then its certainty, whether",
        "the end of the run was seen, whether error-like lines were left unread, whether a similar family was left undecided, and whether",
        f"the framework is known. Each level is shrunk toward the coarser one as if the coarser one were {WEIGHT:.0f} more runs; the coarsest is the share of the",
        "first runs before the ledger. Verdicts on a log alone count the ledger's certain labels; those on other or several kinds of data",
        f"count runs drawn at random, each as {SIMULATED_WEIGHT} of a run, because there are no real unseen ones yet. Ledger entries from",
        "before a feature was recorded (such as whether the framework is known) count only at the levels without that feature.",
        "",
        "| kinds of data | group | certainty | right of unseen runs | confidence |",
        "|---|---|---|---|---|",
    ]
    for pattern, record in sorted(fitted.records.items()):
        if len(pattern) == 3:
            right, number = (f"{count:.4g}" for count in (record.right, record.all))
            lines.append(f"| {' | '.join(pattern)} | {right} of {number} | {fitted.confidence(pattern):.2f} |")
    error = calibration((result.confidence, result.is_right) for result in held_out)
    lines += [
        "",
        f"Expected calibration error (ten bins) on the {len(held_out)} drawn runs that are not in the fit: {error:.3f}. On first runs: the last column",
        "of the first table, by the confidence that was stated then.",
        "",
    ]
    return lines


WHAT = {
    "simulated": "scenarios of this repository made by `trackside simulate`, one folder each; families that must not be found are named for each",
    "own lab": "small real runs recorded for this repository with faults injected, some on a real Slurm cluster",
    "modeled on public threads": "console output that we wrote on the model of public issue threads",
    "written by hand": "small cases for single rules",
    "corpus logs": "the labeled corpus: re-rendered console logs",
    "corpus runs": "the labeled corpus: real small CPU runs with injected faults",
    "real data": "recorded runs of others, labeled by their owners",
    "public logs": "labeled real logs from public repositories whose label is certain",
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
    if arguments.write and (arguments.only or arguments.source):
        parser.error("--write needs all cases; leave out --only and --source")
    missing = next((path for path in (arguments.corpus, PUBLIC_LOGS, REAL) if not path.is_dir()), None)
    if arguments.write and missing is not None:
        parser.error(f"{missing} not found; --write needs all labeled cases, which are not published")
    cases = [*scenarios(), *corpus(arguments.corpus), *real_data(), *labeled_logs(PUBLIC_LOGS, "public logs")]
    selected: list[Case | int] = [c for c in cases if arguments.only in c.name and arguments.source in c.source
                                  and c.expected.get("certain", True)]  # fmt: skip
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
        ledger = first_runs()
        table = fit(ledger, fitted_on)
        TABLE.write_text(json.dumps(table, indent=2) + "\n", "utf-8")
        fitted = Reliability.read(table)
        held_out = [replace(r, confidence=fitted.confidence(r.pattern)) if r.pattern else r for r in held_out]
        PAGE.write_text(page(groups, ledger, table, held_out), "utf-8")
        print(f"\nwritten: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
