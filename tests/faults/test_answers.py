"""A metrics server with wrong answers: refusals, partial, excessive or endless answers, pages of other servers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults import rewriting
from tests.faults.proxy import Fault, proxied
from tests.faults.rewriting import LOGIN, Rewrite, RewritingServer, always, for_first, for_queries_with, of_json
from tests.faults.runs import (
    DEADLINE_S,
    PATIENT,
    ServedRun,
    assert_careful,
    assert_same,
    assert_without_metrics,
    diagnose,
    metrics_at,
    site,
)
from tests.stores.logs.servers import Answer

pytestmark = [pytest.mark.service, pytest.mark.slow]

BUSY = always(503, b"too many concurrent requests")
TRANSIENT = {
    "503 twice": for_first(2, BUSY),
    "429 with Retry-After": for_first(2, always(429, b"slow down", Retry_After="1")),
    "502 of a proxy": for_first(3, always(502, b"<html><body>Bad Gateway</body></html>")),
    "ten times the data": of_json(rewriting.tenfold),
    "JSON with spaces": lambda path, params, original: Answer(
        original.status, json.dumps(json.loads(original.body), indent=1).encode(), original.type
    ),
    "a wrong Date": lambda path, params, original: _dated(original, "Fri, 01 Jan 1999 00:00:00 GMT"),
}
PERMANENT = {
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
SINGLE_QUERY_FAILURES = {
    "SM activity refused": ("prof_sm_active", always(422, b'{"status":"error","error":"too many samples"}')),
    "launches in part": ("kernel_launches", of_json(rewriting.partial)),
    "clock reasons broken": ("clock_throttle_reasons", always(500, b"index out of range")),
    "too busy for one": ("prof_gr_engine_active", BUSY),
}


def _dated(answer: Answer, date: str) -> Answer:
    return Answer(answer.status, answer.body, answer.type, headers={"Date": date})


@pytest.mark.parametrize("rewrite", TRANSIENT.values(), ids=TRANSIENT)
def test_a_transient_fault_does_not_change_the_verdict(
    rewrite: Rewrite, run: ServedRun, stub: RewritingServer, tmp_path: Path
) -> None:
    stub.use(rewrite)
    result = diagnose(site(tmp_path, metrics_at(stub.url, PATIENT)), [run.rest])
    assert stub.changed
    assert_same(result, run.full)


@pytest.mark.parametrize(("rewrite", "reason"), PERMANENT.values(), ids=PERMANENT)
def test_a_permanent_fault_is_reported_and_rules_nothing_out(
    rewrite: Rewrite, reason: str, run: ServedRun, stub: RewritingServer, tmp_path: Path
) -> None:
    stub.use(rewrite)
    result = diagnose(site(tmp_path, metrics_at(stub.url)), [run.rest])
    assert stub.changed
    assert_without_metrics(result, run, reason, stub.url)


@pytest.mark.parametrize(("word", "rewrite"), SINGLE_QUERY_FAILURES.values(), ids=SINGLE_QUERY_FAILURES)
def test_one_failed_query_does_not_affect_the_others(
    word: str, rewrite: Rewrite, run: ServedRun, stub: RewritingServer, tmp_path: Path
) -> None:
    stub.use(for_queries_with(word, rewrite))
    result = diagnose(site(tmp_path, metrics_at(stub.url, "timeout_s = 10\nretries = 1\n")), [run.rest])
    assert stub.changed
    assert_careful(result, run)
    assert stub.url in result.preflight
    assert result.ruled_out_by("metric"), "the others still rule out"
    for family in run.full.ruled_out_families - result.ruled_out_families:
        assert "unable to check: " in result.unknown_families[family], (family, result.unknown_families)


def test_partial_answers_are_used_with_allow_partial(slow: ServedRun, tmp_path: Path) -> None:
    with rewriting.rewriting_server(slow.url) as stub:
        stub.use(of_json(rewriting.partial))
        assert_same(
            diagnose(site(tmp_path, metrics_at(stub.url, PATIENT + "allow_partial = true\n")), [slow.rest]), slow.full
        )


MEASURE_GROWTH = """
import resource, sys
from trackside.cli import main
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    main(sys.argv[1:])
except SystemExit as end:
    print("exit", end.code, file=sys.stderr)
print("grown", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, file=sys.stderr)
"""


def test_an_endless_answer_takes_bounded_memory(slow: ServedRun, tmp_path: Path) -> None:
    max_bytes = 8 << 20
    with proxied(slow.port) as proxy:
        proxy.set_fault(Fault(endless=True))
        output, growth_bytes, seconds = _diagnose_in_process(
            slow, tmp_path, metrics_at(proxy.url, f"deadline_s = 20\nmax_answer_bytes = {max_bytes}\n")
        )
        assert proxy.sent > max_bytes
    assert "sent more than 8,388,608 bytes" in " ".join(output.split()), output
    assert growth_bytes < 128 << 20, f"{growth_bytes >> 20} MiB"
    assert seconds < 60


def test_ten_times_the_data_takes_bounded_memory(slow: ServedRun, tmp_path: Path) -> None:
    with rewriting.rewriting_server(slow.url) as stub:
        stub.use(of_json(rewriting.tenfold))
        _, growth_bytes, _ = _diagnose_in_process(slow, tmp_path, metrics_at(stub.url, PATIENT))
        assert stub.changed
    assert growth_bytes < 384 << 20, f"{growth_bytes >> 20} MiB"


def _diagnose_in_process(run: ServedRun, folder: Path, section: str) -> tuple[str, int, float]:
    """Run ``trackside diagnose`` in its own process: (output, growth of its memory in bytes, duration in s)."""
    site(folder, section)
    start_s = time.monotonic()
    config = str(folder / "trackside.toml")
    command = [sys.executable, "-c", MEASURE_GROWTH, "diagnose", str(run.rest), "--config", config]
    process = subprocess.run(command, capture_output=True, text=True, timeout=20 * DEADLINE_S, check=False)
    assert "exit 0" in process.stderr, process.stderr
    assert "Traceback" not in process.stderr
    growth = next(line for line in process.stderr.splitlines() if line.startswith("grown "))
    return process.stdout, int(growth.split()[1]) << 10, time.monotonic() - start_s
