"""Simulated runs whose metrics are in a real server and all else in files; and what may be said where some is missing.

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
from tests.contract.stores import Given, openmetrics
from tests.contract.test_verdicts import CASES, differences, plain, without_metrics
from trackside.finding import Verdict
from trackside.session import SiteRequest, open_session
from trackside.show.document import VerdictDoc, document
from trackside.site.config import Site, load

HEALTHY, SLOW, HUNG = "g1/sim-sixteen-gpus", "d2/sim-interconnect-a100", "c2/sim-stuck-rank-watchdog"
JOB = "48213"
"""That of all of them."""
QUICK = "timeout_s = 1\ndeadline_s = 6\nretries = 2\n"
"""Of a server that is not to be waited for."""
PATIENT = "timeout_s = 20\ndeadline_s = 60\nretries = 4\n"
DEADLINE_S = 6.0
NO_SLURM = '[slurm]\nmode = "off"\n'
_TIME = re.compile(r" (\d{13})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Held:
    """A run. ``rest``: its files but for metrics; ``url``: of the server that holds these; ``full``: the verdict on all
    of it from there; ``bare``: on the other files alone."""

    name: str
    rest: Path
    metrics: Sequence[Path]
    url: str
    full: Told
    bare: Told

    @property
    def port(self) -> int:
        """The server's."""
        return int(self.url.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Told:
    """A verdict, and how many seconds it took."""

    verdict: Verdict
    seconds: float = 0.0

    @property
    def doc(self) -> VerdictDoc:
        """The document."""
        return document(self.verdict)

    @property
    def found(self) -> set[str]:
        """Families that are there."""
        doc = self.doc
        told = [doc.primary, *doc.consequences, *doc.warnings]
        return {each.family for each in told if each.outcome == "found"}

    @property
    def absent(self) -> set[str]:
        """Families that are ruled out."""
        return {each.family for each in self.doc.ruled_out}

    @property
    def unknown(self) -> dict[str, str]:
        """Families that cannot be told, and what is missing."""
        return {each.family: "; ".join(each.missing) for each in self.doc.unknown}

    def by(self, plane: str) -> set[str]:
        """Families that are ruled out by something of this plane."""
        doc = self.doc
        return {each.family for each in doc.ruled_out if any(doc.cites[cite].plane == plane for cite in each.cites)}

    @property
    def preflight(self) -> str:
        """What limits it, as text."""
        return "\n".join(claim.text for claim in self.doc.preflight)

    def notes(self, name: str) -> str:
        """The rows of inputs whose path holds this: status and note."""
        return "\n".join(f"{row.status}: {row.note}" for row in self.doc.inputs if name in row.path)


@contextmanager
def held(name: str, folder: Path, shift_s: float = 0.0) -> Iterator[Held]:
    """A run's metrics in a VictoriaMetrics of its own. ``shift_s``: by so much their clock is wrong."""
    with CASES[name].inputs() as whole:
        rest, metrics = without_metrics(whole, folder / "run")
        with services.victoria_metrics(folder / "store") as server:
            server.load(shifted(Given(metrics).text, shift_s))
            yield _held(name, rest, metrics, server.url, folder)


@contextmanager
def held_by_prometheus(name: str, folder: Path) -> Iterator[Held]:
    """The same in a Prometheus."""
    with CASES[name].inputs() as whole:
        rest, metrics = without_metrics(whole, folder / "run")
        blocks = openmetrics(Given(metrics).text)
        with services.prometheus_server(folder / "store", openmetrics=blocks) as server:
            yield _held(name, rest, metrics, server.url, folder)


def _held(name: str, rest: Path, metrics: Sequence[Path], url: str, folder: Path) -> Held:
    full = ask(site(folder, metrics_at(url, PATIENT)), [rest])
    return Held(name, rest, metrics, url, full, Told(trackside.diagnose(rest)))


def shifted(text: str, seconds: float) -> str:
    """Samples in Prometheus text at later times."""
    return _TIME.sub(lambda found: f" {int(found[1]) + round(seconds * 1000)}", text) if seconds else text


def metrics_at(url: str, more: str = QUICK) -> str:
    """A server of metrics as trackside.toml has it."""
    return f'[metrics]\nurl = "{url}"\n{more}'


def loki_at(url: str, more: str = QUICK) -> str:
    """A Loki as trackside.toml has it."""
    return f'[[logs]]\nkind = "loki"\nurl = "{url}"\n{more}'


def site(folder: Path, *sections: str, slurm: str = NO_SLURM) -> Site:
    """A site by its settings' text."""
    path = folder / "trackside.toml"
    path.write_text("\n".join((*sections, slurm)))
    return load(path, environ={})


def ask(where: Site, paths: Sequence[Path] = (), job: str | None = None) -> Told:
    """The verdict on a run of a site."""
    begun = time.monotonic()
    with open_session(SiteRequest(where, job, paths)) as session:
        verdict = session.verdict()
    return Told(verdict, time.monotonic() - begun)


# -- what may be said


def assert_same(told: Told, want: Told) -> None:
    """The same document, but for names of servers and what asking them took."""
    off = list(differences(_plain(want.verdict), _plain(told.verdict)))
    assert not off, "\n".join(["", *off[:40]])


def _plain(verdict: Verdict) -> Any:
    return plain(verdict)


def assert_careful(told: Told, run: Held) -> None:
    """Nothing found and nothing ruled out that isn't so with all, or with none, of the metrics; and in good time."""
    extra = told.found - run.full.found - run.bare.found - {"U0"}
    assert not extra, f"found on what did not come: {extra}\n{told.preflight}"
    extra = told.absent - run.full.absent - run.bare.absent
    assert not extra, f"ruled out on what did not come: {extra}\n{told.preflight}"
    assert told.seconds < 3 * DEADLINE_S


def assert_without_metrics(told: Told, run: Held, reason: str, server: str) -> None:
    """As without any metrics, which the verdict says, and why."""
    assert_careful(told, run)
    assert (told.found, told.absent) == (run.bare.found, run.bare.absent)
    assert not told.by("metric")
    assert server in told.preflight, told.preflight
    assert reason in told.preflight, told.preflight
    lost = run.full.by("metric") - told.absent - told.found
    assert lost, "the run rests on no metrics"
    for family in lost:
        assert "unable to check: " in told.unknown[family], (family, told.unknown[family])
        assert reason in told.unknown[family], (family, told.unknown[family])
    assert "no GPU metrics were given" not in told.preflight


def assert_nothing_is_made_of_silence(told: Told, whole: Told) -> None:
    """Of a log of which a part came: nothing is found or ruled out that all of it would not."""
    extra = told.found - whole.found - {"U0", "G1"}
    assert not extra, f"found in silence: {extra}"
    extra = told.absent - whole.absent
    assert not extra, f"ruled out by silence: {extra}"
    for each in told.doc.ruled_out:
        counts = [told.doc.cites[cite] for cite in each.cites if ".count(" in told.doc.cites[cite].query]
        assert not any(cite.plane == "log" for cite in counts), (each.family, each.because)
    for family in whole.absent - told.absent - told.found:
        assert "unable to check: " in told.unknown[family], (family, told.unknown[family])
