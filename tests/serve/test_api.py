"""The HTTP API, asked over a real connection: of an embedded store, of an archive, and of what goes wrong."""

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
from trackside.serve.answers import parsed
from trackside.serve.api import OPERATIONS, routes
from trackside.serve.diagnoser import Diagnoser
from trackside.serve.handlers import Handlers
from trackside.serve.limits import Tokens
from trackside.serve.operations import Check, Parameter
from trackside.serve.problems import Problem
from trackside.serve.workers import Workers
from trackside.settings.price import Price
from trackside.stores.metadata.archive import Archive
from trackside.stores.metadata.errors import ArchiveError
from trackside.stores.metadata.rows import decode_cursor

pytestmark = pytest.mark.slow

UTILIZATION = "metric(gpu_utilization_ratio)"


class Asking:
    """A client of one server."""

    def __init__(self, port: int) -> None:
        self._pool = urllib3.HTTPConnectionPool("127.0.0.1", port, retries=False, timeout=30)

    def __call__(self, path: str, method: str = "GET", **headers: str) -> urllib3.BaseHTTPResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._pool.request(method, "/api/v1" + path, headers=named, decode_content=False)

    def json(self, path: str, method: str = "GET", status: int = 200) -> Any:
        """The body of an answer with this status."""
        answer = self(path, method)
        assert answer.status == status, answer.data[:500]
        return json.loads(answer.data)

    def problem(self, path: str, method: str = "GET") -> dict[str, Any]:
        """A refusal, which is a problem detail and nothing else."""
        answer = self(path, method)
        assert answer.headers["content-type"] == "application/problem+json"
        told: dict[str, Any] = json.loads(answer.data)
        assert set(told) == {"type", "title", "status", "detail", "remedy"}
        assert told["status"] == answer.status
        assert "Traceback" not in answer.data.decode()
        return told

    def close(self) -> None:
        self._pool.close()


@contextmanager
def serving(handlers: Handlers, check: Check | None = None) -> Iterator[Asking]:
    """The API on a free port of loopback."""
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:  # else asyncio leaves Nagle on, and all takes 40 ms
        listening.bind(("127.0.0.1", 0))
        app = Starlette(routes=routes(handlers, check))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        asking = Asking(listening.getsockname()[1])
        try:
            while not server.started:
                time.sleep(0.005)
            yield asking
        finally:
            asking.close()
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
    fine = write(folder / "b", {"slurm-8.out": steps(40), "sacct.txt": SACCT + sacct("8", "COMPLETED", day=3)})
    for each in (crashed, fine):
        ingest([each], folder / "store")
    return folder / "store"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(f"sqlite:///{tmp_path / 'archive.db'}") as opened:
        yield opened


@pytest.fixture
def ask(store: Path, archive: Archive) -> Iterator[Asking]:
    with serving(Handlers(archive, Diagnoser(store))) as asking:
        yield asking


# -- verdicts


def test_a_job_is_judged_recorded_and_told_as_the_command_does(ask: Asking, store: Path) -> None:
    answer = ask("/runs/7/diagnose", "POST")
    assert answer.status == 200
    said = CliRunner().invoke(main, ["diagnose", "--store", str(store), "--job", "7", "--json"]).stdout_bytes
    assert answer.data == said
    assert answer.headers["Trackside-Run"] == "r1"
    assert ask("/runs/7/verdict").data == said
    assert ask("/runs/r1/verdict").data == said
    assert ask(answer.headers["Content-Location"].removeprefix("/api/v1")).data == said
    (only,) = ask.json("/runs/7/verdicts")["verdicts"]
    assert (only["family"], only["bytes"]) == ("A1", len(said))
    assert ask("/runs/7/diagnose", "POST").headers["Trackside-Verdict"] == str(only["id"])  # the same is kept once


def test_the_sites_price_is_in_the_document(tmp_path: Path, archive: Archive) -> None:
    header, row = SACCT.rstrip(), sacct("9").rstrip()
    files = {
        "slurm-9.out": TRACEBACK.format(module="numpy"),
        "sacct.txt": f"{header}|AllocTRES\n{row}|billing=8,gres/gpu=8,node=1\n",
    }
    ingest([write(tmp_path / "a", files)], tmp_path / "store")
    with serving(Handlers(archive, Diagnoser(tmp_path / "store"), price=Price(2.5, "EUR"))) as ask:
        waste = json.loads(ask("/runs/9/diagnose", "POST").data)["waste"]
    assert (waste["price"], waste["currency"]) == (2.5, "EUR")
    assert waste["cost"] == round(waste["gpu_hours"] * 2.5, 2) > 0


@pytest.mark.service
def test_two_instances_share_one_postgres(store: Path, postgres: Postgres) -> None:
    url = postgres.database()
    with (
        Archive.open(url) as one,
        Archive.open(url, lazy=True) as other,
        serving(Handlers(one, Diagnoser(store))) as first,
        serving(Handlers(other, Diagnoser(store))) as second,
    ):
        said = first("/runs/7/diagnose", "POST").data
        assert second("/runs/7/verdict").data == said
        assert second("/runs/7/diagnose", "POST").headers["Trackside-Verdict"] == "1"
        assert second.json("/runs?family=a1&node=gpu017") == first.json("/runs")


def test_runs_are_listed_filtered_and_paged(ask: Asking, archive: Archive) -> None:
    for n in range(5):
        made = verdict(run(str(n), submit=T0 + n, start=T0 + n, attempts=()), "G1" if n % 2 else "A1")
        archive.record(made, written(made), made_at=T0)
    assert [run["job"] for run in ask.json("/runs?limit=100")["runs"]] == ["4", "3", "2", "1", "0"]
    assert [run["job"] for run in ask.json("/runs?family=healthy&node=gpu018")["runs"]] == ["3", "1"]
    assert [run["job"] for run in ask.json("/runs?since=2026-03-02T08:00:03Z")["runs"]] == ["4", "3"]
    assert [run["job"] for run in ask.json(f"/runs?until={T0 + 1}")["runs"]] == ["0"]
    seen, cursor = [], ""
    while cursor is not None:
        page = ask.json(f"/runs?limit=2{cursor and '&cursor=' + cursor}")
        seen += [run["job"] for run in page["runs"]]
        cursor = page["next"]
    assert seen == ["4", "3", "2", "1", "0"]


def test_a_run_tells_its_chain(ask: Asking, archive: Archive) -> None:
    for made in (verdict(), verdict(run("43", submit=T0 + 700, start=T0 + 700, parent="4242", parent_by="dependency"))):
        archive.record(made, written(made), made_at=T0)
    document = ask.json("/runs/43")
    assert document["run"]["id"] == "r2"
    assert document["lineage"] == {"parent": {"job": "4242", "run": "r1", "how": "dependency"}, "children": []}
    assert ask.json("/runs/4242")["lineage"]["children"] == [{"job": "43", "run": "r2", "how": "dependency"}]


def test_a_document_is_not_sent_again_to_who_has_it(ask: Asking, archive: Archive) -> None:
    made = verdict()
    id_ = archive.record(made, written(made)).verdict
    for path in ("/runs/4242/verdict", f"/verdicts/{id_}"):
        first = ask(path)
        tag = first.headers["ETag"]
        for sent in (tag, f'W/"other", {tag}'):
            again = ask(path, If_None_Match=sent)
            assert (again.status, again.data) == (304, b"")
        assert ask(path, If_None_Match='W/"other"').data == first.data
    newer = verdict(exception="ImportError")
    archive.record(newer, written(newer))
    assert ask("/runs/4242/verdict", If_None_Match=tag).data == written(newer)


def test_large_answers_are_zipped_for_who_takes_it(ask: Asking) -> None:
    plain = ask("/runs/7/diagnose", "POST")
    zipped = ask("/runs/7/verdict", Accept_Encoding="gzip")
    assert (zipped.headers["Content-Encoding"], gzip.decompress(zipped.data)) == ("gzip", plain.data)
    assert len(zipped.data) < len(plain.data) / 2
    assert "Content-Encoding" not in ask("/runs/7/verdict").headers


def test_citations_are_asked_again(ask: Asking, archive: Archive) -> None:
    ask("/runs/7/diagnose", "POST")
    document = ask.json("/verdicts/1/verify", "POST")
    assert document["cites"] == document["holding"] > 0
    assert (document["broken"], document["dangling"]) == ([], [])
    wrong = verdict(run("7", cluster=None), exception="ImportError")
    archive.record(wrong, written(wrong))
    document = ask.json("/verdicts/2/verify", "POST")
    (broken,) = document["broken"]
    assert (document["cites"], document["holding"]) == (1, 0)
    assert (broken["was"], broken["now"], broken["problem"]) == ("ImportError", "ModuleNotFoundError", "")


def test_jobs_of_which_there_is_evidence(ask: Asking) -> None:
    document = ask.json("/jobs")
    assert (document["total"], [job["id"] for job in document["jobs"]]) == (2, ["8", "7"])
    assert document["jobs"][1]["planes"] == ["scheduler", "log", "metric"]
    assert [job["id"] for job in ask.json("/jobs?limit=1")["jobs"]] == ["8"]


# -- evidence


def evidence(ask: Asking, query: str, more: str = "", job: str = "7") -> Any:
    return ask.json(f"/runs/{job}/evidence?query={quote(query)}{more}")


def test_rows_are_given_with_their_places(ask: Asking) -> None:
    told = evidence(ask, "events(exception)")
    assert (told["answer"], told["total"]) == ("rows", 1)
    (row,) = told["rows"]
    assert row["fields"]["type"] == "ModuleNotFoundError"
    assert row["path"].endswith("slurm-7.out")
    assert (row["line"], row["plane"]) == (4, "log")
    (job,) = evidence(ask, "record(job)")["rows"]
    assert job["fields"]["state"] == "FAILED"
    many = evidence(ask, "events(progress)", "&limit=3", job="8")
    assert (many["total"], len(many["rows"])) == (40, 3)


def test_curves_are_given_with_null_where_nothing_was_sampled(ask: Asking) -> None:
    told = evidence(ask, f"{UTILIZATION}.during({T0:.0f}, {T0 + 300:.0f}).rollup(60, 'last')")
    assert (told["answer"], told["unit"], told["step_s"]) == ("grid", "ratio", 60)
    assert told["times"] == [T0 + n for n in (60, 120, 180, 240, 300)]
    assert [each["labels"]["gpu"] for each in told["series"]] == ["0", "1"]
    assert told["series"][0]["values"] == [pytest.approx(0.51), pytest.approx(0.515), None, None, pytest.approx(0.55)]
    over = evidence(ask, f"{UTILIZATION}.over('run', 'avg').by('node', how='median')")
    assert "during(" in over["query"]
    assert [each["labels"] for each in over["series"]] == [{"node": "gpu017"}]


def test_one_value_is_what_a_citation_would_hold(ask: Asking) -> None:
    assert evidence(ask, "events(exception).first(type)")["value"] == "ModuleNotFoundError"
    assert evidence(ask, "events(exception).count()") == {
        "answer": "value", "query": "events(exception).count()", "value": 1, "unit": "",
    }  # fmt: skip
    highest = evidence(ask, f"{UTILIZATION}.over('run', 'max').max()")
    assert (highest["value"], highest["unit"]) == (pytest.approx(0.56), "ratio")
    assert "over(" not in highest["query"]


def test_what_was_not_measured_is_missing_and_not_none(ask: Asking) -> None:
    told = evidence(ask, "metric(host_load1).over('run', 'avg')")
    assert (told["answer"], told["reason"]) == ("missing", "host_load1 was not measured")


def test_evidence_of_a_recorded_run(ask: Asking) -> None:
    id_ = ask("/runs/8/diagnose", "POST").headers["Trackside-Run"]
    assert evidence(ask, "events(progress).count()", job=id_)["value"] == 40


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select 1", "not a query: 'select 1'"),
        ("events(nonsense)", "unknown events 'nonsense'; known: advice, "),
        ("events(exception).where(x=__import__('os'))", "can't read"),
        ("events(exception).where(" + "x=" + "[" * 900 + ")", "can't read"),
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
def test_an_invalid_query_is_refused_with_the_parser_s_message(ask: Asking, query: str, said: str) -> None:
    problem = ask.problem(f"/runs/7/evidence?query={quote(query)}")
    assert problem["status"] == 422
    assert said in problem["detail"]
    assert len(problem["detail"]) < 1100


def refusal(work: Callable[[str], object], text: str) -> Exception | None:
    """What was raised, of what may be."""
    try:
        work(text)
    except (Problem, ArchiveError) as error:
        return error
    return None


@given(
    st.text(max_size=60)
    | st.from_regex(r"(events|record|metric)\((exception|job|gpu_xid_last)\)(\.[a-z]{1,8}\([^)]{0,20}\)){0,3}")
)
def test_no_text_is_more_than_refused(text: str) -> None:
    told = refusal(parsed, text)
    assert told is None or (isinstance(told, Problem) and told.status == 422 and len(told.detail) < 1100)


@given(
    st.sampled_from([parameter for operation in OPERATIONS for parameter in operation.parameters]),
    st.text(max_size=30) | st.floats().map(str) | st.integers().map(str) | st.datetimes().map(str),
)
def test_no_value_is_more_than_refused(parameter: Parameter, text: str) -> None:
    told = refusal(parameter.read, text)
    assert told is None or (isinstance(told, Problem) and told.status == 422)


@given(st.binary(max_size=30).map(lambda raw: base64.urlsafe_b64encode(raw).decode()) | st.text(max_size=20))
def test_no_cursor_is_more_than_refused(text: str) -> None:
    told = refusal(decode_cursor, text)
    assert told is None or (isinstance(told, ArchiveError) and told.kind == "refused")


def test_too_large_an_answer_is_refused(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.serve.answers.MAX_CELLS", 9)
    query = f"{UTILIZATION}.during({T0}, {T0 + 300}).rollup(60, 'last')"
    problem = ask.problem(f"/runs/7/evidence?query={quote(query)}")
    assert "2 series of 5 windows" in problem["detail"]
    assert ".by(" in problem["remedy"]


# -- refusals


@pytest.mark.parametrize(
    ("path", "method", "status", "said"),
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
def test_refusals_are_problem_details(ask: Asking, path: str, method: str, status: int, said: str) -> None:
    problem = ask.problem(path, method)
    assert (problem["status"], said in problem["detail"]) == (status, True), problem


def test_a_remedy_suggests_similar_and_known_names(ask: Asking) -> None:
    assert ask.problem("/runs?familly=a1")["remedy"] == "did you mean family?"
    assert ask.problem("/runs?culprit=foo")["remedy"] == "known: job, infrastructure, scheduler, none, unknown"


def test_a_client_is_told_neither_paths_nor_commands_of_the_server(ask: Asking, store: Path) -> None:
    problem = ask.problem("/runs/999999/diagnose", "POST")
    assert (problem["status"], problem["detail"]) == (404, "no job 999999 in the store")
    assert problem["remedy"].startswith("GET /api/v1/jobs")


@pytest.mark.parametrize(
    "id_", ["..%2f..%2fetc%2fpasswd", "7' OR '1'='1", "%25", "*", "7;DROP TABLE runs", "r1'", "r-1"]
)
def test_an_id_is_only_ever_compared(ask: Asking, id_: str) -> None:
    ask("/runs/7/diagnose", "POST")
    assert ask(f"/runs/{quote(id_, safe='%')}").status == 404
    assert ask.json("/runs")["runs"][0]["job"] == "7"


def test_a_job_of_several_clusters_is_asked_for_by_its_own(ask: Asking, archive: Archive) -> None:
    for cluster in ("", "beta"):
        made = verdict(run(cluster=cluster))
        archive.record(made, written(made))
    problem = ask.problem("/runs/4242")
    assert (problem["status"], problem["remedy"]) == (409, "choose one with cluster=NAME, empty for (none)")
    assert "(none), beta" in problem["detail"]
    assert ask.json("/runs/4242?cluster=")["run"]["cluster"] == ""
    assert len(ask.json("/runs?cluster=")["runs"]) == 1
    assert ask.json("/runs/4242?cluster=beta")["run"]["cluster"] == "beta"


def test_only_who_shows_a_token_may_read(store: Path, archive: Archive) -> None:
    tokens = Tokens(["0123456789abcdef0123"])
    with serving(
        Handlers(archive, Diagnoser(store)), lambda request: tokens.admit(request.headers.get("authorization", ""))
    ) as ask:
        for each in OPERATIONS:
            path = re.sub(r"\{\w+\}", "1", each.path).removeprefix("/api/v1")
            assert ask.problem(path, each.method)["status"] == 401
            assert ask(path, each.method).headers["WWW-Authenticate"] == "Bearer"
        assert ask("/runs", Authorization="Bearer 0123456789abcdef0123").status == 200


# -- diagnosers that are slow, busy or broken


def silent(query: Query) -> Any:
    raise SourceUnavailable("timeout", "http://metrics:9090 took longer than 30 s; ask for less")


class Fake:
    """A diagnoser that does what a test says."""

    paths: Sequence[str] = ("x",)

    def __init__(self, judge: Callable[[str], Verdict]) -> None:
        self._judge = judge
        self.queried: Sequence[str] = ()

    def runs(self) -> Sequence[RunSummary]:
        raise SourceUnavailable("unreachable", "http://metrics:9090 can't be reached; is it up?")

    @contextmanager
    def session(self, job: str, as_of: float | None = None) -> Iterator[Any]:
        yield SimpleNamespace(verdict=lambda: self._judge(job), store=SimpleNamespace(ask=silent))


def test_a_long_diagnosis_is_accepted_and_joined(archive: Archive) -> None:
    go, calls = threading.Event(), []

    def slow(job: str) -> Verdict:
        calls.append(job)
        go.wait(20)
        return verdict(run(job))

    with serving(Handlers(archive, Fake(slow), Workers("test", 1, 1, 0.3))) as ask:
        first = ask("/runs/5/diagnose", "POST")
        assert (first.status, json.loads(first.data)["status"], first.headers["Retry-After"]) == (202, "running", "10")
        assert ask("/runs/5/diagnose", "POST").status == 202
        assert calls == ["5"]
        assert ask("/runs/6/diagnose", "POST").status == 202  # waits for the only thread
        problem = ask.problem("/runs/7/diagnose", "POST")
        assert (problem["status"], calls) == (429, ["5"])
        assert ask("/runs").status == 200  # what is archived is told meanwhile
        go.set()
        deadline = time.monotonic() + 10
        while ask("/runs/6/verdict").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert calls == ["5", "6"]
        assert ask("/runs/5/verdict").data == written_by_fake(verdict(run("5")))


def written_by_fake(made: Verdict) -> bytes:
    from trackside.show.document import document, encode

    return encode(document(made, Fake.paths))


def test_a_verdict_is_returned_although_the_archive_is_down(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object, **__: object) -> None:
        raise ArchiveError("unreachable", "postgresql+psycopg://u@h/d: gone\u20ac; is the server up?")

    for name in ("record", "find", "runs"):
        monkeypatch.setattr(Archive, name, down)
    with serving(Handlers(archive, Fake(lambda job: verdict(run(job))))) as ask:
        answer = ask("/runs/5/diagnose", "POST")
        assert (answer.status, answer.data) == (200, written_by_fake(verdict(run("5"))))
        assert answer.headers["Trackside-Not-Recorded"] == "postgresql+psycopg://u@h/d: gone?; is the server up?"
        problem = ask.problem("/runs/5")
        assert (problem["status"], problem["remedy"]) == (503, "is the server up?")
        assert ask("/runs").headers["Retry-After"] == "5"


def test_servers_that_do_not_answer_are_named(archive: Archive) -> None:
    def unreachable(job: str) -> Verdict:
        raise SourceUnavailable("unreachable", "http://metrics:9090 can't be reached; is it up?")

    with serving(Handlers(archive, Fake(unreachable))) as ask:
        for path, method, status in (
            ("/runs/5/diagnose", "POST", 502), ("/jobs", "GET", 502), ("/runs/5/evidence?query=record(job)", "GET", 504),
        ):  # fmt: skip
            problem = ask.problem(path, method)
            assert problem["status"] == status
            assert "http://metrics:9090" in problem["detail"]


def test_a_bug_is_told_without_its_inside(archive: Archive, caplog: pytest.LogCaptureFixture) -> None:
    def broken(job: str) -> Verdict:
        raise ZeroDivisionError("secret")

    with serving(Handlers(archive, Fake(broken))) as ask:
        problem = ask.problem("/runs/5/diagnose", "POST")
        assert (problem["status"], problem["detail"]) == (500, "diagnoseRun failed: ZeroDivisionError")
    assert "secret" in caplog.text


def test_a_store_that_is_gone_is_told(archive: Archive, tmp_path: Path) -> None:
    with serving(Handlers(archive, Diagnoser(tmp_path / "gone"))) as ask:
        problem = ask.problem("/runs/5/diagnose", "POST")
        assert problem["status"] == 503
        assert "not a Trackside store" in problem["detail"]


def test_many_ask_at_once(ask: Asking) -> None:
    failed: list[object] = []

    def work(n: int) -> None:
        try:
            for path, method in (
                ("/runs/7/diagnose", "POST"),
                ("/runs", "GET"),
                ("/runs/8/evidence?query=record(job)", "GET"),
            ):
                status = ask(path, method).status
                if status != 200:
                    failed.append((path, status))
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    assert len(ask.json("/runs/7/verdicts")["verdicts"]) == 1


# -- its own description


@pytest.fixture
def described(ask: Asking) -> dict[str, Any]:
    told: dict[str, Any] = ask.json("/openapi.json")
    return told


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_description_is_whole(described: dict[str, Any]) -> None:
    assert described["openapi"].startswith("3.1")
    schemas = described["components"]["schemas"]
    assert {"VerdictDoc", "ProblemDoc", "ArchivedRun"} <= set(schemas)
    for reference in references(described):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    ids = []
    for path, methods in described["paths"].items():
        for told in methods.values():
            ids.append(told["operationId"])
            named = {parameter["name"] for parameter in told["parameters"] if parameter["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path))
            assert all(parameter["description"] and parameter["schema"] for parameter in told["parameters"])
            assert told["summary"]
            assert {"200", "401", "422", "500"} <= set(told["responses"])
    assert len(ids) == len(set(ids)) == 12


def test_the_routes_are_those_that_are_described(store: Path, archive: Archive, described: dict[str, Any]) -> None:
    made = routes(Handlers(archive, Diagnoser(store)))
    routed = {(route.path, method) for route in made for method in route.methods or () if method != "HEAD"}
    assert routed == {(path, method.upper()) for path, methods in described["paths"].items() for method in methods}


def test_every_path_answers_what_is_described(ask: Asking, described: dict[str, Any]) -> None:
    """Each operation is called, and its answer held against its own schema."""
    ask("/runs/7/diagnose", "POST")
    values = {"id": "1", "code": "cuda-oom"}
    resolver = {"$schema": "https://json-schema.org/draft/2020-12/schema", "components": described["components"]}
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            filled = path.removeprefix("/api/v1").replace("/runs/{id}", "/runs/7")
            for name, value in values.items():
                filled = filled.replace(f"{{{name}}}", value)
            if any(parameter["name"] == "query" for parameter in told["parameters"]):
                queries = (
                    "events(exception)",
                    "record(job).first(state)",
                    f"{UTILIZATION}.over('run', 'avg')",
                    "metric(host_load1).over('run', 'avg')",
                )
                asked = [f"{filled}?query={quote(query)}" for query in queries]
            else:
                asked = [filled]
            for each in asked:
                body = ask.json(each, method.upper())
                (content,) = told["responses"]["200"]["content"].values()
                jsonschema.Draft202012Validator({**resolver, **content["schema"]}).validate(body)


def test_a_problem_is_as_described(ask: Asking, described: dict[str, Any]) -> None:
    schema = described["components"]["schemas"]["ProblemDoc"]
    jsonschema.Draft202012Validator(schema).validate(ask.problem("/runs/99"))


def test_families_are_told(ask: Asking) -> None:
    assert {"code": "B1", "id": "cuda-oom", "title": ask.json("/families/b1")["title"]} in ask.json("/families")
    document = ask.json("/families/cuda-oom")
    assert "Do next" in document["sections"]
    assert document["asks"]
    assert all(re.match(r"(events|record|metric)\(", query) for query in document["asks"].values())


def test_a_body_is_never_read(ask: Asking) -> None:
    """Whatever is sent along: nothing here takes a body."""
    body = zlib.compress(b"x" * 1000)
    answer = ask._pool.request("POST", "/api/v1/runs/7/diagnose", body=body * 100)
    assert answer.status == 200
