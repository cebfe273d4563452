"""The HTTP API over a real connection: an embedded store, an archive, and failures."""

from __future__ import annotations

import base64
import gzip
import json
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest
import urllib3
import uvicorn
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from tests.services import Postgres
from tests.stores.embedded.runs import SACCT, TRACEBACK, ingest, sacct, scrape, steps, write
from tests.stores.metadata.verdicts import T0, run, verdict, written
from trackside.cli import main
from trackside.finding import Verdict
from trackside.http.unavailable import SourceUnavailable
from trackside.query import Query
from trackside.runs.listing import RunSummary
from trackside.serve.answers import parse_query
from trackside.serve.api import OPERATIONS, routes
from trackside.serve.diagnoser import Diagnoser
from trackside.serve.handlers import Handlers
from trackside.serve.limits import Tokens
from trackside.serve.operations import ApiParameter, Check
from trackside.serve.problems import HttpProblem
from trackside.serve.workers import Workers
from trackside.settings.price import Price
from trackside.stores.metadata.archive import Archive
from trackside.stores.metadata.errors import ArchiveError
from trackside.stores.metadata.rows import decode_cursor

pytestmark = pytest.mark.slow

UTILIZATION = "metric(gpu_utilization_ratio)"


class ApiClient:
    """A client of one server."""

    def __init__(self, port: int) -> None:
        self._pool = urllib3.HTTPConnectionPool("127.0.0.1", port, retries=False, timeout=30)

    def __call__(self, path: str, method: str = "GET", **headers: str) -> urllib3.BaseHTTPResponse:
        sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._pool.request(method, "/api/v1" + path, headers=sent_headers, decode_content=False)

    def json(self, path: str, method: str = "GET", status: int = 200) -> Any:
        """The body of a response that must have this status."""
        answer = self(path, method)
        assert answer.status == status, answer.data[:500]
        return json.loads(answer.data)

    def problem(self, path: str, method: str = "GET") -> dict[str, Any]:
        """The problem details of a refusal."""
        answer = self(path, method)
        assert answer.headers["content-type"] == "application/problem+json"
        problem: dict[str, Any] = json.loads(answer.data)
        assert set(problem) == {"type", "title", "status", "detail", "remedy"}
        assert problem["status"] == answer.status
        assert "Traceback" not in answer.data.decode()
        return problem

    def close(self) -> None:
        self._pool.close()


@contextmanager
def serving(handlers: Handlers, check: Check | None = None) -> Iterator[ApiClient]:
    """The API on a free port of loopback."""
    # without proto, asyncio leaves Nagle's algorithm on, and each response takes 40 ms
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        app = Starlette(routes=routes(handlers, check))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        client = ApiClient(listener.getsockname()[1])
        try:
            while not server.started:
                time.sleep(0.005)
            yield client
        finally:
            client.close()
            server.should_exit = True
            thread.join()
            handlers.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two jobs: one that crashed, whose GPUs were measured, and one that trained."""
    folder = tmp_path_factory.mktemp("site")
    scrapes = "".join(scrape("gpu017", second, 50 + second / 60) for second in (30, 60, 90, 300))
    crashed = write(
        folder / "a",
        {"slurm-7.out": TRACEBACK.format(module="numpy"), "sacct.txt": SACCT + sacct("7"), "dcgm.prom": scrapes},
    )
    finished = write(folder / "b", {"slurm-8.out": steps(40), "sacct.txt": SACCT + sacct("8", "COMPLETED", day=3)})
    for job_folder in (crashed, finished):
        ingest([job_folder], folder / "store")
    return folder / "store"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(f"sqlite:///{tmp_path / 'archive.db'}") as opened:
        yield opened


@pytest.fixture
def client(store: Path, archive: Archive) -> Iterator[ApiClient]:
    with serving(Handlers(archive, Diagnoser(store))) as client:
        yield client


# -- verdicts


def test_diagnose_records_and_returns_the_same_document_as_the_command(client: ApiClient, store: Path) -> None:
    answer = client("/runs/7/diagnose", "POST")
    assert answer.status == 200
    command_output = CliRunner().invoke(main, ["diagnose", "--store", str(store), "--job", "7", "--json"]).stdout_bytes
    assert answer.data == command_output
    assert answer.headers["Trackside-Run"] == "r1"
    assert client("/runs/7/verdict").data == command_output
    assert client("/runs/r1/verdict").data == command_output
    assert client(answer.headers["Content-Location"].removeprefix("/api/v1")).data == command_output
    (only,) = client.json("/runs/7/verdicts")["verdicts"]
    assert (only["family"], only["bytes"]) == ("A1", len(command_output))
    # the same document is stored once
    assert client("/runs/7/diagnose", "POST").headers["Trackside-Verdict"] == str(only["id"])


@pytest.mark.parametrize(("form", "flag"), [("short", "--short"), ("markdown", "--markdown"), ("json", "--json")])
def test_a_verdict_is_given_in_the_forms_of_the_command(client: ApiClient, store: Path, form: str, flag: str) -> None:
    answer = client(f"/runs/7/diagnose?format={form}", "POST")
    printed = CliRunner().invoke(main, ["diagnose", "--store", str(store), "--job", "7", flag]).stdout
    assert answer.data.decode().rstrip("\n") == printed.rstrip("\n")
    assert answer.headers["content-type"].startswith(
        {"short": "text/plain", "markdown": "text/markdown", "json": "application/json"}[form]
    )
    latest = client(f"/runs/7/verdict?format={form}")
    assert latest.data == answer.data
    assert client(f"/runs/7/verdict?format={form}", if_none_match=latest.headers["etag"]).status == 304
    other = "markdown" if form == "short" else "short"
    assert client(f"/runs/7/verdict?format={other}", if_none_match=latest.headers["etag"]).status == 200


def test_the_price_of_the_site_is_in_the_document(tmp_path: Path, archive: Archive) -> None:
    header, row = SACCT.rstrip(), sacct("9").rstrip()
    files = {
        "slurm-9.out": TRACEBACK.format(module="numpy"),
        "sacct.txt": f"{header}|AllocTRES\n{row}|billing=8,gres/gpu=8,node=1\n",
    }
    ingest([write(tmp_path / "a", files)], tmp_path / "store")
    with serving(Handlers(archive, Diagnoser(tmp_path / "store"), price=Price(2.5, "EUR"))) as client:
        waste = json.loads(client("/runs/9/diagnose", "POST").data)["waste"]
    assert (waste["price"], waste["currency"]) == (2.5, "EUR")
    assert waste["cost"] == round(waste["gpu_hours"] * 2.5, 2) > 0


@pytest.mark.service
def test_two_instances_share_one_postgres(store: Path, postgres: Postgres) -> None:
    url = postgres.database()
    with (
        Archive.open(url) as first_archive,
        Archive.open(url, lazy=True) as second_archive,
        serving(Handlers(first_archive, Diagnoser(store))) as first,
        serving(Handlers(second_archive, Diagnoser(store))) as second,
    ):
        document = first("/runs/7/diagnose", "POST").data
        assert second("/runs/7/verdict").data == document
        assert second("/runs/7/diagnose", "POST").headers["Trackside-Verdict"] == "1"
        assert second.json("/runs?family=a1&node=gpu017") == first.json("/runs")


def test_runs_are_listed_filtered_and_paged(client: ApiClient, archive: Archive) -> None:
    for n in range(5):
        recorded = verdict(run(str(n), submit=T0 + n, start=T0 + n, attempts=()), "G1" if n % 2 else "A1")
        archive.record(recorded, written(recorded), made_at=T0)
    assert [run["job"] for run in client.json("/runs?limit=100")["runs"]] == ["4", "3", "2", "1", "0"]
    assert [run["job"] for run in client.json("/runs?family=healthy&node=gpu018")["runs"]] == ["3", "1"]
    assert [run["job"] for run in client.json("/runs?since=2026-03-02T08:00:03Z")["runs"]] == ["4", "3"]
    assert [run["job"] for run in client.json(f"/runs?until={T0 + 1}")["runs"]] == ["0"]
    jobs, cursor = [], ""
    while cursor is not None:
        page = client.json(f"/runs?limit=2{cursor and '&cursor=' + cursor}")
        jobs += [run["job"] for run in page["runs"]]
        cursor = page["next"]
    assert jobs == ["4", "3", "2", "1", "0"]


def test_a_run_has_its_lineage(client: ApiClient, archive: Archive) -> None:
    for recorded in (
        verdict(),
        verdict(run("43", submit=T0 + 700, start=T0 + 700, parent="4242", parent_by="dependency")),
    ):
        archive.record(recorded, written(recorded), made_at=T0)
    document = client.json("/runs/43")
    assert document["run"]["id"] == "r2"
    assert document["lineage"] == {"parent": {"job": "4242", "run": "r1", "how": "dependency"}, "children": []}
    assert client.json("/runs/4242")["lineage"]["children"] == [{"job": "43", "run": "r2", "how": "dependency"}]


def test_an_unchanged_document_is_not_sent_again(client: ApiClient, archive: Archive) -> None:
    recorded = verdict()
    id_ = archive.record(recorded, written(recorded)).verdict
    for path in ("/runs/4242/verdict", f"/verdicts/{id_}"):
        first = client(path)
        tag = first.headers["ETag"]
        for tags in (tag, f'W/"other", {tag}'):
            again = client(path, If_None_Match=tags)
            assert (again.status, again.data) == (304, b"")
        assert client(path, If_None_Match='W/"other"').data == first.data
    changed_verdict = verdict(exception="ImportError")
    archive.record(changed_verdict, written(changed_verdict))
    assert client("/runs/4242/verdict", If_None_Match=tag).data == written(changed_verdict)


def test_large_responses_are_compressed_on_request(client: ApiClient) -> None:
    plain = client("/runs/7/diagnose", "POST")
    zipped = client("/runs/7/verdict", Accept_Encoding="gzip")
    assert (zipped.headers["Content-Encoding"], gzip.decompress(zipped.data)) == ("gzip", plain.data)
    assert len(zipped.data) < len(plain.data) / 2
    assert "Content-Encoding" not in client("/runs/7/verdict").headers


def test_verify_repeats_the_queries_of_citations(client: ApiClient, archive: Archive) -> None:
    client("/runs/7/diagnose", "POST")
    document = client.json("/verdicts/1/verify", "POST")
    assert document["cites"] == document["holding"] > 0
    assert (document["broken"], document["dangling"]) == ([], [])
    wrong_verdict = verdict(run("7", cluster=None), exception="ImportError")
    archive.record(wrong_verdict, written(wrong_verdict))
    document = client.json("/verdicts/2/verify", "POST")
    (broken,) = document["broken"]
    assert (document["cites"], document["holding"]) == (1, 0)
    assert (broken["was"], broken["now"], broken["problem"]) == ("ImportError", "ModuleNotFoundError", "")


def test_jobs_with_evidence_are_listed(client: ApiClient) -> None:
    document = client.json("/jobs")
    assert (document["total"], [job["id"] for job in document["jobs"]]) == (2, ["8", "7"])
    assert document["jobs"][1]["planes"] == ["scheduler", "log", "metric"]
    assert [job["id"] for job in client.json("/jobs?limit=1")["jobs"]] == ["8"]


# -- evidence


def evidence(client: ApiClient, query: str, parameters: str = "", job: str = "7") -> Any:
    return client.json(f"/runs/{job}/evidence?query={quote(query)}{parameters}")


def test_rows_have_their_positions(client: ApiClient) -> None:
    document = evidence(client, "events(exception)")
    assert (document["answer"], document["total"]) == ("rows", 1)
    (row,) = document["rows"]
    assert row["fields"]["type"] == "ModuleNotFoundError"
    assert row["path"].endswith("slurm-7.out")
    assert (row["line"], row["plane"]) == (6, "log")
    (job,) = evidence(client, "record(job)")["rows"]
    assert job["fields"]["state"] == "FAILED"
    progress = evidence(client, "events(progress)", "&limit=3", job="8")
    assert (progress["total"], len(progress["rows"])) == (40, 3)


def test_series_have_null_for_windows_without_samples(client: ApiClient) -> None:
    document = evidence(client, f"{UTILIZATION}.during({T0:.0f}, {T0 + 300:.0f}).rollup(60, 'last')")
    assert (document["answer"], document["unit"], document["step_s"]) == ("grid", "ratio", 60)
    assert document["times"] == [T0 + n for n in (60, 120, 180, 240, 300)]
    assert [series["labels"]["gpu"] for series in document["series"]] == ["0", "1"]
    assert document["series"][0]["values"] == [
        pytest.approx(0.51),
        pytest.approx(0.515),
        None,
        None,
        pytest.approx(0.55),
    ]
    averages = evidence(client, f"{UTILIZATION}.over('run', 'avg').by('node', how='median')")
    assert "during(" in averages["query"]
    assert [series["labels"] for series in averages["series"]] == [{"node": "gpu017"}]


def test_a_single_value_is_that_of_a_citation(client: ApiClient) -> None:
    assert evidence(client, "events(exception).first(type)")["value"] == "ModuleNotFoundError"
    assert evidence(client, "events(exception).count()") == {
        "answer": "value", "query": "events(exception).count()", "value": 1, "unit": "",
    }  # fmt: skip
    highest = evidence(client, f"{UTILIZATION}.over('run', 'max').max()")
    assert (highest["value"], highest["unit"]) == (pytest.approx(0.56), "ratio")
    assert "over(" not in highest["query"]


def test_an_unmeasured_metric_is_missing_not_empty(client: ApiClient) -> None:
    document = evidence(client, "metric(host_load1).over('run', 'avg')")
    assert (document["answer"], document["reason"]) == ("missing", "host_load1 was not measured")


def test_evidence_of_a_recorded_run(client: ApiClient) -> None:
    id_ = client("/runs/8/diagnose", "POST").headers["Trackside-Run"]
    assert evidence(client, "events(progress).count()", job=id_)["value"] == 40


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("select 1", "not a query: 'select 1'"),
        ("events(nonsense)", "unknown kind of event 'nonsense'; known: advice, "),
        ("events(exception).where(x=__import__('os'))", "cannot read"),
        ("events(exception).where(" + "x=" + "[" * 900 + ")", "cannot read"),
        ("events(exception).avg()", "avg() reduces metrics, not rows"),
        (f"{UTILIZATION}.over('run', 'avg').distinct()", "distinct() reduces rows, not metrics"),
        (UTILIZATION, "a metric query needs a time range"),
        (f"{UTILIZATION}.during(0, 100).rollup(0.001, 'avg')", "not 1 to 10,000 windows"),
        (f"{UTILIZATION}.during(100, 0).rollup(1, 'avg')", "not 1 to 10,000 windows"),
        ("x" * 2001, "query must be 1 to 2,000 printable characters"),
        ("events(exception)\n", "printable"),
        ("", "query must be 1 to"),
    ],
)
def test_an_invalid_query_is_refused_with_the_parser_s_message(client: ApiClient, query: str, detail: str) -> None:
    problem = client.problem(f"/runs/7/evidence?query={quote(query)}")
    assert problem["status"] == 422
    assert detail in problem["detail"]
    assert len(problem["detail"]) < 1100


def refusal(work: Callable[[str], object], text: str) -> Exception | None:
    """The refusal that ``work`` raised, if any."""
    try:
        work(text)
    except (HttpProblem, ArchiveError) as error:
        return error
    return None


@given(
    st.text(max_size=60)
    | st.from_regex(r"(events|record|metric)\((exception|job|gpu_xid_last)\)(\.[a-z]{1,8}\([^)]{0,20}\)){0,3}")
)
def test_any_query_is_parsed_or_refused(text: str) -> None:
    error = refusal(parse_query, text)
    assert error is None or (isinstance(error, HttpProblem) and error.status == 422 and len(error.detail) < 1100)


@given(
    st.sampled_from([parameter for operation in OPERATIONS for parameter in operation.parameters]),
    st.text(max_size=30) | st.floats().map(str) | st.integers().map(str) | st.datetimes().map(str),
)
def test_any_parameter_value_is_read_or_refused(parameter: ApiParameter, text: str) -> None:
    error = refusal(parameter.read, text)
    assert error is None or (isinstance(error, HttpProblem) and error.status == 422)


@given(st.binary(max_size=30).map(lambda raw: base64.urlsafe_b64encode(raw).decode()) | st.text(max_size=20))
def test_any_cursor_is_decoded_or_refused(text: str) -> None:
    error = refusal(decode_cursor, text)
    assert error is None or (isinstance(error, ArchiveError) and error.kind == "refused")


def test_an_answer_larger_than_the_limit_is_refused(client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.serve.answers.MAX_CELLS", 9)
    query = f"{UTILIZATION}.during({T0}, {T0 + 300}).rollup(60, 'last')"
    problem = client.problem(f"/runs/7/evidence?query={quote(query)}")
    assert "2 series of 5 windows" in problem["detail"]
    assert ".by(" in problem["remedy"]


# -- refusals


@pytest.mark.parametrize(
    ("path", "method", "status", "detail"),
    [
        ("/runs/99", "GET", 404, "run 99 is not recorded"),
        ("/runs/r99/verdict", "GET", 404, "run r99 is not recorded"),
        ("/runs/99/diagnose", "POST", 404, "99"),
        ("/runs/99/evidence?query=record(job)", "GET", 404, "99"),
        ("/verdicts/99", "GET", 404, "verdict 99 not found"),
        ("/verdicts/99/verify", "POST", 404, "verdict 99 not found"),
        ("/verdicts/x", "GET", 422, "must be an integer from 0 to"),
        ("/verdicts/-1", "GET", 422, "must be an integer from 0 to"),
        ("/verdicts/9223372036854775808", "GET", 422, "must be an integer from 0 to"),
        ("/verdicts/%D9%A1", "GET", 422, "must be an integer from 0 to"),
        ("/runs?limit=0", "GET", 422, "from 1 to 1,000"),
        ("/runs?limit=1e9", "GET", 422, "from 1 to 1,000"),
        ("/runs?cursor=zzz", "GET", 422, "the cursor is not the 'next' of any page"),
        ("/runs?since=yesterday", "GET", 422, "since is not a time: "),
        ("/runs?since=nan", "GET", 422, "since is not a time: "),
        ("/runs?since=1e300", "GET", 422, "since is not a time: "),
        ("/runs?familly=a1", "GET", 422, "unknown parameter 'familly'"),
        ("/runs?job=1&job=2", "GET", 422, "job is given more than once"),
        ("/runs?family=z9", "GET", 422, "unknown family 'z9'"),
        ("/runs?job=" + "x" * 501, "GET", 422, "1 to 500"),
        ("/runs?job=%00", "GET", 422, "printable"),
        ("/runs/" + "x" * 501, "GET", 422, "1 to 500"),
        ("/runs/7/evidence", "GET", 422, "query is missing"),
        ("/runs?culprit=foo", "GET", 422, "unknown culprit 'foo'"),
        ("/families/z9", "GET", 404, "unknown family 'z9'"),
    ],
)  # fmt: skip
def test_refusals_are_problem_details(client: ApiClient, path: str, method: str, status: int, detail: str) -> None:
    problem = client.problem(path, method)
    assert (problem["status"], detail in problem["detail"]) == (status, True), problem


def test_a_remedy_suggests_similar_and_known_names(client: ApiClient) -> None:
    assert client.problem("/runs?familly=a1")["remedy"] == "did you mean family?"
    assert client.problem("/families?cluster=a")["remedy"] == "this operation takes no parameters"
    assert client.problem("/runs?culprit=foo")["remedy"] == "known: job, infrastructure, scheduler, none, unknown"


def test_problems_reveal_no_paths_or_commands_of_the_server(client: ApiClient, store: Path) -> None:
    problem = client.problem("/runs/999999/diagnose", "POST")
    assert (problem["status"], problem["detail"]) == (404, "no job 999999 in the store")
    assert problem["remedy"].startswith("GET /api/v1/jobs")


@pytest.mark.parametrize(
    "id_", ["..%2f..%2fetc%2fpasswd", "7' OR '1'='1", "%25", "*", "7;DROP TABLE runs", "r1'", "r-1"]
)
def test_an_id_is_never_interpreted(client: ApiClient, id_: str) -> None:
    client("/runs/7/diagnose", "POST")
    assert client(f"/runs/{quote(id_, safe='%')}").status == 404
    assert client.json("/runs")["runs"][0]["job"] == "7"


def test_a_job_id_of_several_clusters_needs_the_cluster(client: ApiClient, archive: Archive) -> None:
    for cluster in ("", "beta"):
        recorded = verdict(run(cluster=cluster))
        archive.record(recorded, written(recorded))
    problem = client.problem("/runs/4242")
    assert (problem["status"], problem["remedy"]) == (409, "choose one with cluster=NAME, empty for (none)")
    assert "(none), beta" in problem["detail"]
    assert client.json("/runs/4242?cluster=")["run"]["cluster"] == ""
    assert len(client.json("/runs?cluster=")["runs"]) == 1
    assert client.json("/runs/4242?cluster=beta")["run"]["cluster"] == "beta"


def test_reading_requires_a_token(store: Path, archive: Archive) -> None:
    tokens = Tokens(["0123456789abcdef0123"])
    with serving(
        Handlers(archive, Diagnoser(store)), lambda request: tokens.admit(request.headers.get("authorization", ""))
    ) as client:
        for operation in OPERATIONS:
            path = re.sub(r"\{\w+\}", "1", operation.path).removeprefix("/api/v1")
            assert client.problem(path, operation.method)["status"] == 401
            assert client(path, operation.method).headers["WWW-Authenticate"] == "Bearer"
        assert client("/runs", Authorization="Bearer 0123456789abcdef0123").status == 200


# -- diagnosers that are slow, busy or broken


def no_metrics(query: Query) -> Any:
    raise SourceUnavailable("timeout", "http://metrics:9090 took longer than 30 s; ask for less")


class FakeDiagnoser:
    """A diagnoser whose verdicts come from the function ``judge``."""

    paths: Sequence[str] = ("x",)

    def __init__(self, judge: Callable[[str], Verdict]) -> None:
        self._judge = judge
        self.queried: Sequence[str] = ()

    def runs(self) -> Sequence[RunSummary]:
        raise SourceUnavailable("unreachable", "http://metrics:9090 cannot be reached; is it up?")

    @contextmanager
    def session(self, job: str, as_of: float | None = None) -> Iterator[Any]:
        yield SimpleNamespace(verdict=lambda: self._judge(job), store=SimpleNamespace(ask=no_metrics))


def test_a_long_diagnosis_is_accepted_and_shared(archive: Archive) -> None:
    finish, calls = threading.Event(), []

    def slow(job: str) -> Verdict:
        calls.append(job)
        finish.wait(20)
        return verdict(run(job))

    with serving(Handlers(archive, FakeDiagnoser(slow), Workers("test", 1, 1, 0.3))) as client:
        first = client("/runs/5/diagnose", "POST")
        assert (first.status, json.loads(first.data)["status"], first.headers["Retry-After"]) == (202, "running", "10")
        assert client("/runs/5/diagnose", "POST").status == 202
        assert calls == ["5"]
        assert client("/runs/6/diagnose", "POST").status == 202  # waits for the only thread
        problem = client.problem("/runs/7/diagnose", "POST")
        assert (problem["status"], calls) == (429, ["5"])
        assert client("/runs").status == 200  # the archive is served meanwhile
        finish.set()
        deadline = time.monotonic() + 10
        while client("/runs/6/verdict").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert calls == ["5", "6"]
        assert client("/runs/5/verdict").data == document_of(verdict(run("5")))


def document_of(recorded: Verdict) -> bytes:
    from trackside.show.document import document, encode

    return encode(document(recorded, FakeDiagnoser.paths))


def test_a_verdict_is_returned_although_the_archive_is_down(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ArchiveError("unreachable", "postgresql+psycopg://u@h/d: gone\u20ac; is the server up?")

    for name in ("record", "find", "runs"):
        monkeypatch.setattr(Archive, name, fail)
    with serving(Handlers(archive, FakeDiagnoser(lambda job: verdict(run(job))))) as client:
        answer = client("/runs/5/diagnose", "POST")
        assert (answer.status, answer.data) == (200, document_of(verdict(run("5"))))
        assert answer.headers["Trackside-Not-Recorded"] == "postgresql+psycopg://u@h/d: gone?; is the server up?"
        problem = client.problem("/runs/5")
        assert (problem["status"], problem["remedy"]) == (503, "is the server up?")
        assert client("/runs").headers["Retry-After"] == "5"


def test_unreachable_servers_are_named(archive: Archive) -> None:
    def unreachable(job: str) -> Verdict:
        raise SourceUnavailable("unreachable", "http://metrics:9090 cannot be reached; is it up?")

    with serving(Handlers(archive, FakeDiagnoser(unreachable))) as client:
        for path, method, status in (
            ("/runs/5/diagnose", "POST", 502), ("/jobs", "GET", 502), ("/runs/5/evidence?query=record(job)", "GET", 504),
        ):  # fmt: skip
            problem = client.problem(path, method)
            assert problem["status"] == status
            assert "http://metrics:9090" in problem["detail"]


def test_a_bug_is_reported_without_details(archive: Archive, caplog: pytest.LogCaptureFixture) -> None:
    def fail(job: str) -> Verdict:
        raise ZeroDivisionError("secret")

    with serving(Handlers(archive, FakeDiagnoser(fail))) as client:
        problem = client.problem("/runs/5/diagnose", "POST")
        assert (problem["status"], problem["detail"]) == (500, "diagnoseRun failed: ZeroDivisionError")
    assert "secret" in caplog.text


def test_a_missing_store_is_reported(archive: Archive, tmp_path: Path) -> None:
    with serving(Handlers(archive, Diagnoser(tmp_path / "gone"))) as client:
        problem = client.problem("/runs/5/diagnose", "POST")
        assert problem["status"] == 503
        assert "no such folder" in problem["detail"]


def test_concurrent_requests_are_answered(client: ApiClient) -> None:
    failed: list[object] = []

    def work(n: int) -> None:
        try:
            for path, method in (
                ("/runs/7/diagnose", "POST"),
                ("/runs", "GET"),
                ("/runs/8/evidence?query=record(job)", "GET"),
            ):
                status = client(path, method).status
                if status != 200:
                    failed.append((path, status))
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(client.json("/runs/7/verdicts")["verdicts"]) == 1


# -- the OpenAPI document


@pytest.fixture
def openapi(client: ApiClient) -> dict[str, Any]:
    document: dict[str, Any] = client.json("/openapi.json")
    return document


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_the_openapi_document_is_complete(openapi: dict[str, Any]) -> None:
    assert openapi["openapi"].startswith("3.1")
    schemas = openapi["components"]["schemas"]
    assert {"VerdictDoc", "ProblemDoc", "ArchivedRun"} <= set(schemas)
    for reference in references(openapi):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    ids = []
    for path, methods in openapi["paths"].items():
        for operation in methods.values():
            ids.append(operation["operationId"])
            path_parameters = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert path_parameters == set(re.findall(r"\{(\w+)\}", path))
            assert all(parameter["description"] and parameter["schema"] for parameter in operation["parameters"])
            assert operation["summary"]
            assert {"200", "401", "422", "500"} <= set(operation["responses"])
    assert len(ids) == len(set(ids)) == 12


def test_routes_match_the_openapi_document(store: Path, archive: Archive, openapi: dict[str, Any]) -> None:
    api_routes = routes(Handlers(archive, Diagnoser(store)))
    routed_paths = {(route.path, method) for route in api_routes for method in route.methods or () if method != "HEAD"}
    assert routed_paths == {(path, method.upper()) for path, methods in openapi["paths"].items() for method in methods}


def test_responses_match_the_openapi_document(client: ApiClient, openapi: dict[str, Any]) -> None:
    """Each operation is called, and its response is checked against its schema."""
    client("/runs/7/diagnose", "POST")
    values = {"id": "1", "code": "cuda-oom"}
    resolver = {"$schema": "https://json-schema.org/draft/2020-12/schema", "components": openapi["components"]}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            filled_path = path.removeprefix("/api/v1").replace("/runs/{id}", "/runs/7")
            for name, value in values.items():
                filled_path = filled_path.replace(f"{{{name}}}", value)
            if any(parameter["name"] == "query" for parameter in operation["parameters"]):
                queries = (
                    "events(exception)",
                    "record(job).first(state)",
                    f"{UTILIZATION}.over('run', 'avg')",
                    "metric(host_load1).over('run', 'avg')",
                )
                requests = [f"{filled_path}?query={quote(query)}" for query in queries]
            else:
                requests = [filled_path]
            for request_path in requests:
                body = client.json(request_path, method.upper())
                (content,) = operation["responses"]["200"]["content"].values()
                jsonschema.Draft202012Validator({**resolver, **content["schema"]}).validate(body)


def test_problems_match_the_openapi_document(client: ApiClient, openapi: dict[str, Any]) -> None:
    schema = openapi["components"]["schemas"]["ProblemDoc"]
    jsonschema.Draft202012Validator(schema).validate(client.problem("/runs/99"))


def test_families_are_listed_and_described(client: ApiClient) -> None:
    assert {"code": "B1", "id": "cuda-oom", "title": client.json("/families/b1")["title"]} in client.json("/families")
    document = client.json("/families/cuda-oom")
    assert "Do next" in document["sections"]
    assert document["asks"]
    assert all(re.match(r"(events|record|metric)\(", query) for query in document["asks"].values())


def test_request_bodies_are_ignored(client: ApiClient) -> None:
    """No operation takes a body, so any body is ignored."""
    body = zlib.compress(b"x" * 1000)
    answer = client._pool.request("POST", "/api/v1/runs/7/diagnose", body=body * 100)
    assert answer.status == 200
