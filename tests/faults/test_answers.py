"""A server of metrics that answers, and not what it was asked: refusals, parts, too much, too long, another's page."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults import rewriting
from tests.faults.proxy import Fault, proxied
from tests.faults.rewriting import LOGIN, Rewrite, Rewriting, about, always, first, of_json
from tests.faults.runs import (
    DEADLINE_S,
    PATIENT,
    Held,
    ask,
    assert_careful,
    assert_same,
    assert_without_metrics,
    metrics_at,
    site,
)
from tests.stores.logs.servers import Answer

pytestmark = [pytest.mark.service, pytest.mark.slow]

BUSY = always(503, b"too many concurrent requests")
PASSING = {
    "503 twice": first(2, BUSY),
    "429 with Retry-After": first(2, always(429, b"slow down", Retry_After="1")),
    "502 of a proxy": first(3, always(502, b"<html><body>Bad Gateway</body></html>")),
    "ten times the data": of_json(rewriting.tenfold),
    "JSON with spaces": lambda path, asked, was: Answer(
        was.status, json.dumps(json.loads(was.body), indent=1).encode(), was.type
    ),
    "a wrong Date": lambda path, asked, was: _dated(was, "Fri, 01 Jan 1999 00:00:00 GMT"),
}
LASTING = {
    "503 storm": (BUSY, "answered 503: too many concurrent requests"),
    "429 for an hour": (always(429, b"quota", Retry_After="3600"), "the server asks to wait 3600 s"),
    "401": (always(401, b"no token"), "answered 401: no token; check the token"),
    "a login page": (always(200, LOGIN), "is it the right URL?"),
    "a redirect to a login": (always(302, b"", Location="https://sso.example.org/login?x=1"), "sso.example.org"),
    "parts only": (
        of_json(rewriting.partial),
        "gave only a part of the answer: it could not reach all of its storage nodes",
    ),
    "warnings of Thanos": (of_json(rewriting.warned), "gave only a part of the answer: No StoreAPIs matched"),
    "500": (always(500, b'{"status":"error","error":"disk on fire"}'), "answered 500: disk on fire"),
    "nothing": (always(200, b""), "sent ''"),
    "another's JSON": (always(200, b'{"status":"success","data":{"result":{}}}'), "not of Prometheus' API"),
}
ONE = {
    "SM activity refused": ("prof_sm_active", always(422, b'{"status":"error","error":"too many samples"}')),
    "launches in part": ("kernel_launches", of_json(rewriting.partial)),
    "clock reasons broken": ("clock_throttle_reasons", always(500, b"index out of range")),
    "too busy for one": ("prof_gr_engine_active", BUSY),
}


def _dated(was: Answer, date: str) -> Answer:
    return Answer(was.status, was.body, was.type, headers={"Date": date})


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Held:
    """The run of a test, by its fixture's name."""
    found: Held = request.getfixturevalue(getattr(request, "param", "slow"))
    return found


@pytest.mark.parametrize("rewrite", PASSING.values(), ids=PASSING)
def test_what_passes_changes_nothing(rewrite: Rewrite, run: Held, stub: Rewriting, tmp_path: Path) -> None:
    stub.become(rewrite)
    answer = ask(site(tmp_path, metrics_at(stub.url, PATIENT)), [run.rest])
    assert stub.changed
    assert_same(answer, run.full)


@pytest.mark.parametrize(("rewrite", "reason"), LASTING.values(), ids=LASTING)
def test_what_lasts_is_told_and_rules_nothing_out(
    rewrite: Rewrite, reason: str, run: Held, stub: Rewriting, tmp_path: Path
) -> None:
    stub.become(rewrite)
    answer = ask(site(tmp_path, metrics_at(stub.url)), [run.rest])
    assert stub.changed
    assert_without_metrics(answer, run, reason, stub.url)


@pytest.mark.parametrize(("word", "rewrite"), ONE.values(), ids=ONE)
def test_one_question_that_fails_costs_no_other(
    word: str, rewrite: Rewrite, run: Held, stub: Rewriting, tmp_path: Path
) -> None:
    stub.become(about(word, rewrite))
    answer = ask(site(tmp_path, metrics_at(stub.url, "timeout_s = 10\nretries = 1\n")), [run.rest])
    assert stub.changed
    assert_careful(answer, run)
    assert stub.url in answer.preflight
    assert answer.by("metric"), "the others still rule out"
    for family in run.full.absent - answer.absent:
        assert "unable to check: " in answer.unknown[family], (family, answer.unknown)


def test_a_part_counts_where_the_site_says_so(slow: Held, tmp_path: Path) -> None:
    with rewriting.rewriting(slow.url) as stub:
        stub.become(of_json(rewriting.partial))
        assert_same(
            ask(site(tmp_path, metrics_at(stub.url, PATIENT + "allow_partial = true\n")), [slow.rest]), slow.full
        )


ENDLESS = """
import resource, sys
from trackside.cli import main
begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    main(sys.argv[1:])
except SystemExit as end:
    print("exit", end.code, file=sys.stderr)
print("grown", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun, file=sys.stderr)
"""


def test_an_answer_without_end_takes_bounded_memory(slow: Held, tmp_path: Path) -> None:
    most = 8 << 20
    with proxied(slow.port) as proxy:
        proxy.become(Fault(endless=True))
        told, grown, seconds = _apart(slow, tmp_path, metrics_at(proxy.url, f"deadline_s = 20\nmost_bytes = {most}\n"))
        assert proxy.sent > most
    assert "sent more than 8,388,608 bytes" in " ".join(told.split()), told
    assert grown < 128 << 20, f"{grown >> 20} MiB"
    assert seconds < 60


def test_ten_times_the_data_takes_bounded_memory(slow: Held, tmp_path: Path) -> None:
    with rewriting.rewriting(slow.url) as stub:
        stub.become(of_json(rewriting.tenfold))
        _, grown, _ = _apart(slow, tmp_path, metrics_at(stub.url, PATIENT))
        assert stub.changed
    assert grown < 384 << 20, f"{grown >> 20} MiB"


def _apart(run: Held, folder: Path, section: str) -> tuple[str, int, float]:
    """What ``trackside diagnose`` prints in a process of its own, the bytes by which it grew, and its seconds."""
    site(folder, section)
    begun = time.monotonic()
    command = [sys.executable, "-c", ENDLESS, "diagnose", str(run.rest), "--config", str(folder / "trackside.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20 * DEADLINE_S, check=False)
    assert "exit 0" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    grown = next(line for line in done.stderr.splitlines() if line.startswith("grown "))
    return done.stdout, int(grown.split()[1]) << 10, time.monotonic() - begun
