"""The ledger of first runs: what the tool said of logs that neither its authors nor its rules had seen.

    python tools/first_runs.py FOLDER NUMBER

Diagnose every labeled log of FOLDER for the first time, and write accuracy/first-runs/batch-NUMBER.jsonl. A batch is
written once: a file that exists is not replaced. Each folder holds the log, ``label.json`` (by reading, before
anything was run) and ``source.json`` (repository, commit, path).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cases import ROOT, Case, labeled_logs
from trackside import diagnose
from trackside.verdict.confidence import kinds_of_data

LEDGER = ROOT / "accuracy" / "first-runs"
LOG_ALONE = kinds_of_data(["log"])
"""The kinds of data of batches whose lines give no evidence pattern: each was the output of a job."""
SOURCE = ("repo", "commit", "path")
LABEL = ("family", "also_ok", "culprit", "certain", "why", "progress")


@dataclass(frozen=True, slots=True)
class FirstRun:
    """One line of the ledger."""

    batch: str
    label: dict[str, Any]
    verdict: dict[str, Any]

    @property
    def is_certain(self) -> bool:
        """Whether the log settles its label."""
        return bool(self.label["certain"])

    @property
    def family(self) -> str:
        """The family of the verdict; U0 if there was none."""
        return str(self.verdict.get("family", "U0"))

    @property
    def is_right(self) -> bool:
        """Whether the family is the label's, or another accepted one."""
        return self.family in (self.label["family"], *self.label["also_ok"])

    @property
    def confidence(self) -> float | None:
        """The verdict's confidence; None if it named no cause."""
        return None if self.family == "U0" else self.verdict.get("confidence")

    @property
    def pattern(self) -> tuple[str, ...]:
        """The evidence pattern, as far as the ledger gives it; empty if no cause was named."""
        if self.family == "U0":
            return ()
        return tuple(self.verdict.get("pattern") or (LOG_ALONE, self.family[0], self.verdict["certainty"]))


def first_runs(folder: Path = LEDGER) -> list[FirstRun]:
    """Every line of the ledger, in the order of the batches."""
    return [
        FirstRun(path.stem.removeprefix("batch-"), row["label"], row["verdict"])
        for path in sorted(folder.glob("batch-*.jsonl"), key=lambda path: int(path.stem.removeprefix("batch-")))
        for row in map(json.loads, path.read_text("utf-8").splitlines())
    ]


def judge(case: Case) -> dict[str, Any]:
    """The ledger's line about one log."""
    label, source = (json.loads((case.folder / name).read_text("utf-8")) for name in ("label.json", "source.json"))
    return {
        "case": case.folder.name,
        "source": {key: source.get(key) for key in SOURCE},
        "label": {key: label.get(key) for key in LABEL},
        "verdict": _verdict(case),
    }


def _verdict(case: Case) -> dict[str, Any]:
    with case.inputs() as inputs:
        try:
            verdict = diagnose(inputs)
        except Exception as error:  # noqa: BLE001 - a crash is a miss like any other
            return {"error": type(error).__name__}
    primary, progress, attempt = verdict.primary, verdict.progress, verdict.last_attempt
    points, first, last = (progress.points, progress.first[1], progress.last[1]) if progress else (0, None, None)
    if attempt is not None and attempt.is_one_of_several:  # labels are about the last attempt
        points, first, last = int(attempt.points.number), attempt.first_loss, attempt.last_loss
    return {
        "family": primary.family,
        "culprit": primary.culprit,
        "certainty": primary.certainty.value if primary.certainty else None,
        "confidence": primary.confidence,
        "pattern": verdict.pattern,
        "points": points,
        "first_loss": first,
        "last_loss": last,
    }


def _lines(cases: Sequence[Case]) -> Iterator[str]:
    with ProcessPoolExecutor() as pool:
        for row in pool.map(judge, cases):
            yield json.dumps(row, ensure_ascii=False) + "\n"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of labeled logs")
    parser.add_argument("number", type=int, help="number of the batch")
    arguments = parser.parse_args()
    target = LEDGER / f"batch-{arguments.number}.jsonl"
    cases = labeled_logs(arguments.folder, "first run")
    if not cases:
        parser.error(f"{arguments.folder} holds no */label.json")
    with target.open("x", encoding="utf-8") as out:
        out.writelines(_lines(cases))
    runs = [run for run in first_runs() if run.batch == str(arguments.number)]
    certain = [run for run in runs if run.is_certain]
    print(f"{target.relative_to(ROOT)}: right in {sum(run.is_right for run in runs)} of {len(runs)}, "
          f"of certain labels in {sum(run.is_right for run in certain)} of {len(certain)}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
