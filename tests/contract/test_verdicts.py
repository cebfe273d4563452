"""Every store of metrics gives the same verdict, with logs and records from files; its citations hold in that store."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import trackside
from tests.contract.stores import SERVERS, StoreContents
from tools.cases import scenarios
from trackside.finding import Verdict
from trackside.ingest import ingest
from trackside.session import Session, SiteRequest, StoreRequest, open_session
from trackside.show.document import decode, document, encode
from trackside.site.config import Site, load
from trackside.stores.metric_server import MetricOptions
from trackside.verify import check

CASES = {case.name: case for case in scenarios()}
SELECTED = (
    "b1/sim-load-one-gpu",
    "b2/sim-ecc-remap-failed-metrics-only",
    "b2/sim-rival-latent-and-user-bug",
    "b3/sim-rival-hot-inlet",
    "b3/sim-software-thermal-single",
    "c2/sim-metrics-and-scheduler-only",
    "c3/sim-metrics-only",
    "c3/sim-never-attached",
    "d1/sim-rival-short-gaps",
    "d1/sim-starved-single-gpu",
    "d2/sim-save-storm",
    "d3/sim-cpu-contention",
    "d3/sim-slow-gpu-no-tracer",
    "f1/sim-no-log",
    "f3/sim-metrics-only",
    "g1/sim-gaps-restart-skew",
    "g1/sim-local-time-records",
    "g1/sim-mig-slices",
    "g1/sim-neighbours-without-labels",
)
"""For each family that uses metrics, a case of it and a similar case of another; wrong clocks, missing labels."""


@cache
def from_files(name: str) -> Any:
    """The document of the verdict from files."""
    with CASES[name].inputs() as folder:
        return plain(trackside.diagnose(folder))


def plain(verdict: Verdict) -> Any:
    """The document of a verdict without inputs, names of stores and locations of samples."""
    doc = json.loads(encode(document(verdict)))
    del doc["inputs"]
    for cite in doc["cites"].values():
        del cite["store"]
        if cite["plane"] == "metric":
            del cite["where"]
    return doc


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    """One line per difference of two documents; numbers differ if the relative error is over 1e-9."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in dict.fromkeys((*expected, *actual)):
            yield from differences(expected.get(key, "absent"), actual.get(key, "absent"), f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, pair in enumerate(zip(expected, actual, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif not (
        expected == actual
        or (_number(expected) and _number(actual) and math.isclose(expected, actual, rel_tol=1e-9, abs_tol=1e-12))
    ):
        yield f"{path}: files {expected!r}, store {actual!r}"


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def failing_citations(verdict: Verdict, session: Session) -> list[str]:
    """One line for each citation of a verdict that no longer holds in the session."""
    cites = decode(encode(document(verdict))).cites
    assert cites
    return [
        f"{result.cite.query}: was {result.cite.value!r}, now {result.now!r} {result.problem}"
        for result in check(cites, session.store)
        if not result.holds
    ]


def without_metrics(folder: Path, target: Path) -> tuple[Path, list[Path]]:
    """Copy the files that are not metrics to ``target``; returns it and the files of metrics."""
    for path in (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".prom"):
        copy = target / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return target, sorted(folder.rglob("*.prom"))


def site_of(options: MetricOptions, folder: Path) -> Site:
    """A site whose configuration names a server of metrics."""
    metrics = f'[metrics]\nkind = "{options.kind}"\nurl = "{options.endpoint.url}"\n'
    (folder / "trackside.toml").write_text(metrics + '[slurm]\nmode = "off"\n')
    return load(folder / "trackside.toml", environ={})


def assert_same(name: str, verdict: Verdict) -> None:
    mismatches = list(differences(from_files(name), plain(verdict)))
    assert not mismatches, "\n".join(["", *mismatches[:40]])


@pytest.mark.service
@pytest.mark.parametrize("name", SELECTED)
@pytest.mark.parametrize("server", SERVERS)
def test_same_verdict_from_a_server(name: str, server: str, tmp_path: Path) -> None:
    with CASES[name].inputs() as folder:
        folder_without_metrics, metrics = without_metrics(folder, tmp_path / "run")
        with SERVERS[server](StoreContents(metrics), tmp_path / "store") as options:
            site = site_of(options, tmp_path)
            with open_session(SiteRequest(site, None, [folder_without_metrics])) as session:
                verdict = session.verdict()
            with open_session(SiteRequest(site, None, [folder_without_metrics])) as session:
                failing = failing_citations(verdict, session)
    assert_same(name, verdict)
    assert not failing


@pytest.mark.parametrize("name", SELECTED)
def test_same_verdict_from_the_embedded_store(name: str, tmp_path: Path) -> None:
    with CASES[name].inputs() as folder:
        ingest([folder], tmp_path / "store")
    verdict = trackside.diagnose(store=tmp_path / "store")
    assert_same(name, verdict)
    with open_session(StoreRequest(tmp_path / "store")) as session:
        assert not failing_citations(verdict, session)


def test_the_selected_cases_cover_the_families_that_use_metrics() -> None:
    """Every family that uses metrics is the expected one of at least one case."""
    families = {CASES[name].expected["family"] for name in SELECTED}
    assert families >= {"B2", "B3", "C2", "C3", "D1", "D2", "D3", "F1", "F3", "G1"}
