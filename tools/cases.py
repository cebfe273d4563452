"""Labeled cases from every source in one form, and their comparison with a verdict."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Required, TypedDict, cast

from trackside.finding import Outcome, Verdict

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "tests" / "scenarios"
CORPUS = ROOT.parent / "shared" / "corpus"
PUBLIC_LOGS = CORPUS / "real"
REAL = ROOT.parent / "shared" / "data"
REAL_LABELS = Path(__file__).parent / "real_data.json"
"""Labels of the recorded runs of others in REAL, by folder, from their READMEs."""
SIMULATED = ROOT / ".cache" / "simulated"
"""Cache of simulated scenarios, renewed when the simulator changes."""


class ExpectedVerdict(TypedDict, total=False):
    """The facts about a case that are certain; its verdict is compared with the keys that are present."""

    family: Required[str]
    """Code of the right family."""
    accept: list[str]
    """Other families that count as right."""
    fault_class: str | None
    variant: str | None
    culprit: str | None
    signal: str | None
    """Name of the signal."""
    exception: str | None
    """Type of the exception, with or without its module."""
    ranks: list[int]
    nodes: list[str]
    gpus: list[str]
    progress: dict[str, Any] | None
    """``points``, and ``first`` and ``last`` as (step, loss); None: the log has no logged steps."""
    disposition: str | None
    never: list[str]
    """Families that must not be found."""
    warns: list[str]
    """Families that must be among the warnings."""
    explains: list[str]
    """Families that must be among the consequences."""
    unknown: list[str]
    """Families that must be undecided."""
    job: str
    """Job id, for inputs of several jobs."""
    enough: bool
    """Whether the inputs can show the fault; default true."""
    certain: bool
    """Whether the inputs settle the label; default true."""
    less: list[str]
    """Further families that are right if a kind of data is missing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One labeled case."""

    name: str
    source: str
    folder: Path
    hidden: tuple[str, ...]
    """Files of the folder that are not inputs."""
    expected: ExpectedVerdict

    @property
    def accepted(self) -> tuple[str, ...]:
        """Families that are right, the label first."""
        return (self.expected["family"], *self.expected.get("accept", ()))

    @contextmanager
    def inputs(self) -> Iterator[Path]:
        """The case's inputs in a folder with a neutral name."""
        if (self.folder / "scenario.toml").exists():
            yield simulated_run(self.folder / "scenario.toml")
            return
        if not self.hidden:
            yield self.folder if self.source in ("real data", "drawn") else self.folder / "inputs"
            return
        with tempfile.TemporaryDirectory(prefix="case") as temporary:
            target = Path(temporary) / "run"
            shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns(*self.hidden))
            yield target


def scenarios() -> list[Case]:
    """Our own scenarios."""
    cases = []
    for path in sorted(SCENARIOS.glob("*/*/expected.json")):
        folder = path.parent
        name = f"{folder.parent.name}/{folder.name}"
        cases.append(Case(name, _source(folder), folder, (), json.loads(path.read_text("utf-8"))))
    return cases


def _source(folder: Path) -> str:
    if (folder / "scenario.toml").exists():
        return "simulated"
    if folder.name.startswith("lab-"):
        return "own lab"
    return "modeled on public threads" if folder.name.startswith("thread-") else "written by hand"


def simulated_run(scenario: Path) -> Path:
    """The folder of a simulated run of this scenario."""
    from trackside.sim import load_scenario, simulate

    cache_folder = SIMULATED / _simulator()
    target = cache_folder / hashlib.sha256(scenario.read_bytes()).hexdigest()[:20]
    if not target.exists():
        if not cache_folder.exists():
            shutil.rmtree(SIMULATED, ignore_errors=True)  # an earlier simulator's
            cache_folder.mkdir(parents=True, exist_ok=True)
        temporary_folder = Path(tempfile.mkdtemp(dir=cache_folder, prefix="making-"))
        simulate(load_scenario(scenario), temporary_folder)
        try:
            os.rename(temporary_folder, target)
        except OSError:  # another worker was quicker
            shutil.rmtree(temporary_folder)
    return target / "run"


def from_truth(truth: dict[str, Any]) -> ExpectedVerdict:
    """The expected verdict from a simulated run's truth; ``enough``: whether its data can show it."""
    expected: dict[str, Any] = {
        "family": truth["family"],
        "culprit": None if truth["family"] in OWNER_UNCERTAIN else truth["culprit"],
        "disposition": truth["disposition"] if "scheduler" in truth["planes"] else None,
        "enough": truth["enough_evidence"],
    }
    for name in ("variant", "fault_class"):
        expected[name] = truth[name]
    if truth["variant"] == "healthy" and "logs" not in truth["planes"]:
        expected["variant"] = "unverifiable"  # only the log shows whether it learned
    if truth["family"] in LOCATED and "gpu" in truth["planes"]:
        expected |= {name: truth[name] for name in LOCATED[truth["family"]]}
    expected["never"] = sorted(
        HARDWARE_FAMILIES - {truth["family"], *truth["cascade"], *(fault["family"] for fault in truth["injected"])}
    )
    planes = set(truth["planes"])
    shown_families = {
        fault["family"] for fault in truth["latent"] if any(set(way) <= planes for way in fault["sufficient_planes"])
    }
    expected["warns"] = sorted(shown_families - {truth["family"]})
    expected["job"] = truth["job"]
    return cast(ExpectedVerdict, {name: value for name, value in expected.items() if value not in (None, [])})


OWNER_UNCERTAIN = ("C1", "C2", "D3")
"""Families whose owner can be judged only with evidence from a host."""
LOCATED = {
    "B2": ("nodes", "gpus"),
    "B3": ("nodes", "gpus"),
    "C2": ("nodes", "gpus"),
    "D3": ("nodes", "gpus"),
    "F1": ("nodes",),
}
"""Families that must name nodes or GPUs if GPUs were measured."""
HARDWARE_FAMILIES = frozenset({"B2", "B3", "D3"})
"""Families that blame hardware: they must not be found at all in a run without such a fault."""


@cache
def _simulator() -> str:
    """Digest of what decides the simulator's output."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "trackside" / "sim").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def real_data(folder: Path = REAL) -> list[Case]:
    """Recorded runs of others, if present."""
    if not folder.is_dir():
        return []
    labels = json.loads(REAL_LABELS.read_text("utf-8"))
    return [Case(name, "real data", folder / name, (), expected) for name, expected in labels.items()]


def labeled_logs(folder: Path, source: str) -> list[Case]:
    """Public logs that were labeled by reading, one folder each, if present."""
    cases = []
    for path in sorted(folder.glob("*/label.json")):
        label = json.loads(path.read_text("utf-8"))
        expected: ExpectedVerdict = {
            "family": label["family"], "accept": label.get("also_ok") or [], "certain": label["certain"]
        }  # fmt: skip
        if label["culprit"] in ("job", "infrastructure"):
            expected["culprit"] = label["culprit"]
        hidden = ("label.json", "source.json")
        cases.append(Case(f"{folder.name}/{path.parent.name}", source, path.parent, hidden, expected))
    return cases


def corpus(folder: Path = CORPUS) -> list[Case]:
    """The labeled corpus, if present."""
    cases = []
    for path in sorted(folder.glob("*/*/case.json")):
        label = json.loads(path.read_text("utf-8"))
        name = f"{path.parent.parent.name}/{path.parent.name}"
        source = f"corpus {path.parent.parent.name}"
        cases.append(Case(name, source, path.parent, ("case.json",), _expected(label)))
    return cases


def _expected(label: dict[str, Any]) -> ExpectedVerdict:
    """A corpus label as an expected verdict (the corpus README explains the labels)."""
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
    expected: dict[str, Any] = {"family": family, "accept": accept, "progress": progress}
    for key, label_key in (("fault_class", "fault_class"), ("culprit", "culprit"), ("signal", "signal")):
        if label.get(label_key):
            expected[key] = label[label_key]
    if label.get("slurm_state"):
        expected["disposition"] = label["slurm_state"]
    return cast(ExpectedVerdict, expected)


def misses(case: Case, verdict: Verdict) -> dict[str, str]:
    """Mistakes of a verdict: aspect -> 'expected ..., got ...'. Only aspects that the case states are compared."""
    primary, expected = verdict.primary, cast(dict[str, Any], case.expected)
    wrong: dict[str, str] = {}

    def expect(aspect: str, right: bool, expected_value: object, got: object) -> None:
        if not right:
            wrong[aspect] = f"expected {expected_value}, got {got}"

    expect("family", primary.family in case.accepted, "/".join(case.accepted), primary.family)
    same_family = primary.family == expected["family"]
    for aspect, got in (
        ("fault_class", primary.fault_class),
        ("variant", primary.variant),
        ("culprit", primary.culprit),
        ("signal", primary.signal[0] if primary.signal else None),
    ):
        if expected.get(aspect) is not None and (same_family or aspect == "culprit"):
            expect(aspect, got == expected[aspect], expected[aspect], got)
    if expected.get("exception") and same_family:
        got = primary.exception[0] if primary.exception else None
        expect("exception", bool(got) and str(got).rsplit(".", 1)[-1] == expected["exception"].rsplit(".", 1)[-1],
             expected["exception"], got)  # fmt: skip
    for aspect, reported in (("ranks", primary.ranks), ("nodes", primary.nodes), ("gpus", primary.gpus)):
        if expected.get(aspect) and same_family:
            expect(aspect, sorted(reported) == sorted(expected[aspect]), expected[aspect], list(reported))
    found_families = {primary.family, *(f.family for f in verdict.consequences), *(f.family for f in verdict.warnings)}
    if expected.get("never"):
        expect("never", not found_families & set(expected["never"]), f"no {expected['never']}", sorted(found_families))
    undecided = [*verdict.unknown, *([primary] if primary.outcome is Outcome.UNKNOWN else [])]
    for aspect, findings in (
        ("warns", verdict.warnings), ("explains", verdict.consequences), ("unknown", undecided)
    ):  # fmt: skip
        if expected.get(aspect):
            codes = sorted({f.family for f in findings})
            expect(aspect, set(expected[aspect]) <= set(codes), expected[aspect], codes)
    if expected.get("disposition"):
        expect("disposition", verdict.run.disposition == expected["disposition"], expected["disposition"],
             verdict.run.disposition)  # fmt: skip
    if "progress" in expected:
        expect("progress", _same_progress(expected["progress"], verdict), expected["progress"], _progress_of(verdict))
    return wrong


def stated_aspects(case: Case) -> set[str]:
    """The aspects that a case states."""
    aspects = {a for a in ("fault_class", "variant", "culprit", "signal", "exception", "ranks", "nodes", "gpus",
                              "never", "warns", "explains", "unknown", "disposition")
               if case.expected.get(a)}  # fmt: skip
    return aspects | {"family"} | ({"progress"} if "progress" in case.expected else set())


def _progress_of(verdict: Verdict) -> dict[str, Any] | None:
    progress = verdict.progress
    if progress is None:
        return None
    return {"points": progress.points, "first": list(progress.first), "last": list(progress.last)}


def _same_progress(expected: dict[str, Any] | None, verdict: Verdict) -> bool:
    got = _progress_of(verdict)
    if expected is None or got is None:
        return expected is None and got is None
    ends = all(
        _same_number(a, b) for end in ("first", "last") if end in expected
        for a, b in zip(expected[end], got[end], strict=True)
    )  # fmt: skip
    return ends and ("points" not in expected or expected["points"] == got["points"])


def _same_number(expected: object, got: float | None) -> bool:
    if expected is None or got is None:
        return expected is got or expected is None
    number = float(expected)  # type: ignore[arg-type]
    return (math.isnan(number) and math.isnan(got)) or math.isclose(number, got, rel_tol=1e-4, abs_tol=1e-9)
