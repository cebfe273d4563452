"""Simulated runs: metrics in a real server, the rest in files; what a verdict may claim when evidence is missing.

A fault may make a verdict more careful: it may find and rule out less, never more.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trackside
from tests import services
from tests.contract.stores import StoreContents, openmetrics
from tests.contract.test_verdicts import CASES, differences, plain, without_metrics
from trackside.finding import Verdict
from trackside.session import SiteRequest, open_session
from trackside.show.document import VerdictDoc, document
from trackside.site.config import Site, load

HEALTHY, SLOW, HUNG = "g1/sim-sixteen-gpus", "d2/sim-interconnect-a100", "c2/sim-stuck-rank-watchdog"
JOB = "48213"
"""The id of the job in each of these runs."""
QUICK = "timeout_s = 1\ndeadline_s = 6\nretries = 2\n"
"""Options of a server that is expected to fail: short time-outs."""
PATIENT = "timeout_s = 20\ndeadline_s = 60\nretries = 4\n"
"""Options of a server that is expected to answer in the end."""
DEADLINE_S = 6.0
NO_SLURM = '[slurm]\nmode = "off"\n'
_TIME = re.compile(r" (\d{13})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A run whose metrics a server holds.

    ``rest``: the folder of its other files; ``url``: of the server; ``full``: the verdict on server and files;
    ``bare``: the verdict on the files alone.
    """

    name: str
    rest: Path
    metrics: Sequence[Path]
    url: str
    full: TimedVerdict
    bare: TimedVerdict

    @property
    def port(self) -> int:
        """Port of the server."""
        return int(self.url.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class TimedVerdict:
    """A verdict, and how many seconds it took."""

    verdict: Verdict
    seconds: float = 0.0

    @property
    def doc(self) -> VerdictDoc:
        """The document."""
        return document(self.verdict)

    @property
    def found_families(self) -> set[str]:
        """Families that the verdict finds."""
        doc = self.doc
        findings = [doc.primary, *doc.consequences, *doc.warnings]
        return {finding.family for finding in findings if finding.outcome == "found"}

    @property
    def ruled_out_families(self) -> set[str]:
        """Families that the verdict rules out."""
        return {ruling.family for ruling in self.doc.ruled_out}

    @property
    def unknown_families(self) -> dict[str, str]:
        """Families that the verdict cannot decide -> what is missing."""
        return {unknown.family: "; ".join(unknown.missing) for unknown in self.doc.unknown}

    def ruled_out_by(self, plane: str) -> set[str]:
        """Families ruled out with a citation of this plane."""
        doc = self.doc
        return {
            ruling.family for ruling in doc.ruled_out if any(doc.cites[cite].plane == plane for cite in ruling.cites)
        }

    @property
    def preflight(self) -> str:
        """The limits of the evidence, as text."""
        return "\n".join(claim.text for claim in self.doc.preflight)

    def notes(self, name: str) -> str:
        """Status and note of the inputs whose path contains ``name``."""
        return "\n".join(f"{row.status}: {row.note}" for row in self.doc.inputs if name in row.path)


@contextmanager
def run_in_victoria(name: str, folder: Path, shift_s: float = 0.0) -> Iterator[ServedRun]:
    """A run with its metrics in a VictoriaMetrics of its own. ``shift_s``: error of the clock of the metrics."""
    with CASES[name].inputs() as files:
        rest, metrics = without_metrics(files, folder / "run")
        with services.victoria_metrics(folder / "store") as server:
            server.load(shifted(StoreContents(metrics).text, shift_s))
            yield _served_run(name, rest, metrics, server.url, folder)


@contextmanager
def run_in_prometheus(name: str, folder: Path) -> Iterator[ServedRun]:
    """A run with its metrics in a Prometheus of its own."""
    with CASES[name].inputs() as files:
        rest, metrics = without_metrics(files, folder / "run")
        blocks = openmetrics(StoreContents(metrics).text)
        with services.prometheus_server(folder / "store", openmetrics=blocks) as server:
            yield _served_run(name, rest, metrics, server.url, folder)


def _served_run(name: str, rest: Path, metrics: Sequence[Path], url: str, folder: Path) -> ServedRun:
    full = diagnose(site(folder, metrics_at(url, PATIENT)), [rest])
    return ServedRun(name, rest, metrics, url, full, TimedVerdict(trackside.diagnose(rest)))


def shifted(text: str, seconds: float) -> str:
    """Prometheus text with its samples moved to later times."""
    return _TIME.sub(lambda match: f" {int(match[1]) + round(seconds * 1000)}", text) if seconds else text


def metrics_at(url: str, more: str = QUICK) -> str:
    """The section of trackside.toml for a metrics server."""
    return f'[metrics]\nurl = "{url}"\n{more}'


def loki_at(url: str, more: str = QUICK) -> str:
    """The section of trackside.toml for a Loki."""
    return f'[[logs]]\nkind = "loki"\nurl = "{url}"\n{more}'


def site(folder: Path, *sections: str, slurm: str = NO_SLURM) -> Site:
    """A site with these sections in its trackside.toml."""
    path = folder / "trackside.toml"
    path.write_text("\n".join((*sections, slurm)))
    return load(path, environ={})


def diagnose(site_: Site, paths: Sequence[Path] = (), job: str | None = None) -> TimedVerdict:
    """The verdict on a run of a site, timed."""
    start_s = time.monotonic()
    with open_session(SiteRequest(site_, job, paths)) as session:
        verdict = session.verdict()
    return TimedVerdict(verdict, time.monotonic() - start_s)


# -- what a verdict may claim


def assert_same(actual: TimedVerdict, expected: TimedVerdict) -> None:
    """Both documents are equal except for names of servers and durations of queries."""
    lines = list(differences(_plain(expected.verdict), _plain(actual.verdict)))
    assert not lines, "\n".join(["", *lines[:40]])


def _plain(verdict: Verdict) -> Any:
    return plain(verdict)


def assert_careful(actual: TimedVerdict, run: ServedRun) -> None:
    """Finds and rules out only what it does with all metrics or with none; and in good time."""
    extra = actual.found_families - run.full.found_families - run.bare.found_families - {"U0"}
    assert not extra, f"found without evidence: {extra}\n{actual.preflight}"
    extra = actual.ruled_out_families - run.full.ruled_out_families - run.bare.ruled_out_families
    assert not extra, f"ruled out without evidence: {extra}\n{actual.preflight}"
    assert actual.seconds < 3 * DEADLINE_S


def assert_without_metrics(actual: TimedVerdict, run: ServedRun, reason: str, server: str) -> None:
    """Same findings as without any metrics; the verdict says that they are missing, and why."""
    assert_careful(actual, run)
    assert (actual.found_families, actual.ruled_out_families) == (run.bare.found_families, run.bare.ruled_out_families)
    assert not actual.ruled_out_by("metric")
    assert server in actual.preflight, actual.preflight
    assert reason in actual.preflight, actual.preflight
    undecided = run.full.ruled_out_by("metric") - actual.ruled_out_families - actual.found_families
    assert undecided, "metrics decide nothing about this run"
    for family in undecided:
        assert "unable to check: " in actual.unknown_families[family], (family, actual.unknown_families[family])
        assert reason in actual.unknown_families[family], (family, actual.unknown_families[family])
    assert "no GPU metrics were given" not in actual.preflight


def assert_missing_lines_prove_nothing(actual: TimedVerdict, complete: TimedVerdict) -> None:
    """A truncated log leads to no finding and no ruling-out that the whole log does not lead to."""
    extra = actual.found_families - complete.found_families - {"U0", "G1"}
    assert not extra, f"found in silence: {extra}"
    extra = actual.ruled_out_families - complete.ruled_out_families
    assert not extra, f"ruled out by silence: {extra}"
    for ruling in actual.doc.ruled_out:
        counts = [actual.doc.cites[cite] for cite in ruling.cites if ".count(" in actual.doc.cites[cite].query]
        assert not any(cite.plane == "log" for cite in counts), (ruling.family, ruling.because)
    for family in complete.ruled_out_families - actual.ruled_out_families - actual.found_families:
        assert "unable to check: " in actual.unknown_families[family], (family, actual.unknown_families[family])
