"""Labelled cases, ours and the corpus's, in one shape; and how a verdict is held against one."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackside.model import Verdict

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "tests" / "scenarios"
CORPUS = ROOT.parent / "shared" / "corpus"


@dataclass(frozen=True, slots=True)
class Case:
    """``expected`` holds only what is certain: family, accept, fault_class, variant, culprit, signal, exception,
    ranks, progress ({points, first, last} or None for nothing to get), disposition."""

    name: str
    folder: Path
    hidden: tuple[str, ...]
    expected: dict[str, Any]

    @property
    def accepted(self) -> tuple[str, ...]:
        """Families that are right, the label first."""
        return (self.expected["family"], *self.expected.get("accept", ()))

    @contextmanager
    def inputs(self) -> Iterator[Path]:
        """The case's inputs in a folder whose name tells nothing."""
        if not self.hidden:
            yield self.folder / "inputs"
            return
        with tempfile.TemporaryDirectory(prefix="case") as temporary:
            target = Path(temporary) / "run"
            shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns(*self.hidden))
            yield target


def scenarios() -> list[Case]:
    """Our own scenarios."""
    return [
        Case(str(path.parent.relative_to(SCENARIOS)), path.parent, (), json.loads(path.read_text("utf-8")))
        for path in sorted(SCENARIOS.glob("*/*/expected.json"))
    ]


def corpus(folder: Path = CORPUS) -> list[Case]:
    """The labelled corpus, where it is present."""
    cases = []
    for path in sorted(folder.glob("*/*/case.json")):
        label = json.loads(path.read_text("utf-8"))
        name = f"{path.parent.parent.name}/{path.parent.name}"
        cases.append(Case(name, path.parent, ("case.json",), _expected(label)))
    return cases


def _expected(label: dict[str, Any]) -> dict[str, Any]:
    """A corpus label in our keys (its README says what they mean)."""
    family = label["family"]
    accept = [*(label.get("accept") or ()), *(label.get("acceptable") or ())]
    if family == "NONE":
        family, accept = "U0", [*accept, "H1", "H3", "G1"]
    elif family == "X1":
        family, accept = "H2", [*accept, "H1", "H4"]
    progress = label.get("progress")
    if isinstance(progress, list) and progress:
        points = label.get("n_points") or len(progress)
        progress = {"points": points, "first": progress[0][:2], "last": progress[-1][:2]}
    elif isinstance(progress, dict):
        progress = {"points": progress["n_points"], "first": progress["first"], "last": progress["last"]}
    else:
        progress = None
    if family == "A1" and progress:
        accept.append("H2")
    expected = {"family": family, "accept": accept, "progress": progress}
    for ours, theirs in (("fault_class", "fault_class"), ("culprit", "culprit"), ("signal", "signal")):
        if label.get(theirs):
            expected[ours] = label[theirs]
    if label.get("slurm_state"):
        expected["disposition"] = label["slurm_state"]
    return expected


def misses(case: Case, verdict: Verdict) -> dict[str, str]:
    """What a verdict got wrong: aspect -> 'wanted, got'. The aspects that the case doesn't state don't count."""
    primary, wanted = verdict.primary, case.expected
    wrong: dict[str, str] = {}

    def hold(aspect: str, right: bool, want: object, got: object) -> None:
        if not right:
            wrong[aspect] = f"wanted {want}, got {got}"

    hold("family", primary.family in case.accepted, "/".join(case.accepted), primary.family)
    same_family = primary.family == wanted["family"]
    for aspect, got in (
        ("fault_class", primary.fault_class),
        ("variant", primary.variant),
        ("culprit", primary.culprit),
        ("signal", primary.signal[0] if primary.signal else None),
    ):
        if wanted.get(aspect) is not None and (same_family or aspect == "culprit"):
            hold(aspect, got == wanted[aspect], wanted[aspect], got)
    if wanted.get("exception") and same_family:
        got = primary.exception[0] if primary.exception else None
        hold("exception", bool(got) and str(got).rsplit(".", 1)[-1] == wanted["exception"].rsplit(".", 1)[-1],
             wanted["exception"], got)  # fmt: skip
    if wanted.get("ranks") and same_family:
        hold("ranks", sorted(primary.ranks) == sorted(wanted["ranks"]), wanted["ranks"], list(primary.ranks))
    if wanted.get("disposition"):
        hold("disposition", verdict.run.disposition == wanted["disposition"], wanted["disposition"],
             verdict.run.disposition)  # fmt: skip
    if "progress" in wanted:
        hold("progress", _same_progress(wanted["progress"], verdict), wanted["progress"], _told(verdict))
    return wrong


def stated(case: Case) -> set[str]:
    """The aspects that a case states."""
    aspects = {a for a in ("fault_class", "variant", "culprit", "signal", "exception", "ranks", "disposition")
               if case.expected.get(a)}  # fmt: skip
    return aspects | {"family"} | ({"progress"} if "progress" in case.expected else set())


def _told(verdict: Verdict) -> dict[str, Any] | None:
    progress = verdict.progress
    if progress is None:
        return None
    return {"points": progress.points, "first": list(progress.first), "last": list(progress.last)}


def _same_progress(wanted: dict[str, Any] | None, verdict: Verdict) -> bool:
    got = _told(verdict)
    if wanted is None or got is None:
        return wanted is None and got is None
    ends = all(
        _same_number(a, b) for end in ("first", "last") if end in wanted
        for a, b in zip(wanted[end], got[end], strict=True)
    )  # fmt: skip
    return ends and ("points" not in wanted or wanted["points"] == got["points"])


def _same_number(wanted: object, got: float | None) -> bool:
    if wanted is None or got is None:
        return wanted is got or wanted is None
    number = float(wanted)  # type: ignore[arg-type]
    return (math.isnan(number) and math.isnan(got)) or math.isclose(number, got, rel_tol=1e-4, abs_tol=1e-9)
