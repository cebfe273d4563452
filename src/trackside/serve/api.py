"""The HTTP API: its operations, declared once, and the routes and the OpenAPI document that are made of them."""

from __future__ import annotations

from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trackside.finding import Culprit
from trackside.serve.answers import MOST_QUERY, AnswerDoc
from trackside.serve.handlers import FamilyDetail, FamilyDoc, Handlers, JobsDoc, RunDetail, VerifiedDoc
from trackside.serve.operations import Asked, Check, Operation, Parameter, document
from trackside.serve.problems import encoded
from trackside.show.document import VerdictDoc
from trackside.stores.metadata.archive import MAX_PAGE_ROWS
from trackside.stores.metadata.rows import RunPage, VerdictPage
from trackside.version import package_version

BASE = "/api/v1"
ID = Parameter(name="id", within="path", about="A run's id (r17), or a job's (4242), which is the last run of that job")
CLUSTER = Parameter(
    name="cluster", empty=True, about="Which one, where jobs of several have the same id; empty: the one without a name"
)
LIMIT = Parameter(name="limit", kind="integer", default=100, least=1, most=MAX_PAGE_ROWS, about="Of a page")
CURSOR = Parameter(name="cursor", about="The 'next' of the page before")
VERDICT = Parameter(name="id", within="path", kind="integer", most=2**63 - 1, about="A verdict's id")
_EXACT = {"job": "A job's id", "cluster": "A cluster's name", "name": "A job's name", "username": "Who submitted it",
          "state": "The scheduler's word for how it ended, such as NODE_FAIL",
          "node": "A node it ran on"}  # fmt: skip
FILTERS = (
    *(Parameter(name=name, about=about, empty=name == "cluster") for name, about in _EXACT.items()),
    Parameter(name="culprit", known=get_args(Culprit), about=f"One of {', '.join(get_args(Culprit))}"),
    Parameter(name="family", about="A family's code or id, such as b1 or cuda-oom"),
    Parameter(name="since", kind="time", about="Started then or later: ISO 8601 or POSIX seconds"),
    Parameter(name="until", kind="time", about="Started before"),
)
CODE = Parameter(name="code", within="path", about="A code or an id, such as b1 or cuda-oom")
ROWS = Parameter(name="limit", kind="integer", default=1000, least=1, most=10_000, about="Rows at most")
QUERY = Parameter(name="query", required=True, most=MOST_QUERY, about="The question as text")

_JUDGING = (
    "The job need not have been recorded. The answer waits for the verdict; after a minute it is 202, the job is judged"
    " on and recorded, and asking again joins that. Trackside-Run and Trackside-Verdict say where it was recorded;"
    " Trackside-Not-Recorded why it was not, where the archive is down."
)
_ASKING = (
    "The question is text such as events(exception), record(job).first(state) or"
    " metric(gpu_utilization_ratio).over('run', 'avg').by('node', how='median'): what a citation's query is written in."
)


async def described(_: Handlers, __: Request, ___: Asked) -> Response:
    """The OpenAPI document."""
    return Response(encoded(description()), media_type="application/json")


_ONE, _GONE = (ID, CLUSTER), (404, 409, 429, 503, 504)
_JUDGED = (*_GONE, 502)
OPERATIONS: tuple[Operation, ...] = (
    Operation(method="GET", path=f"{BASE}/runs", id="listRuns", about="Runs that were judged, newest first",
              answers=RunPage, handle=Handlers.runs, parameters=(*FILTERS, LIMIT, CURSOR),
              problems=(429, 503, 504)),
    Operation(method="GET", path=f"{BASE}/runs/{{id}}", id="getRun", about="One run, and its place in a chain",
              answers=RunDetail, handle=Handlers.run, parameters=_ONE, problems=_GONE),
    Operation(method="GET", path=f"{BASE}/runs/{{id}}/verdict", id="getLatestVerdict",
              about="A run's latest verdict, as 'trackside diagnose --json' prints it", answers=VerdictDoc,
              handle=Handlers.latest, parameters=_ONE, problems=_GONE, also={304: "As If-None-Match has it"}),
    Operation(method="GET", path=f"{BASE}/runs/{{id}}/verdicts", id="listVerdicts",
              about="How a run's verdict changed, the latest first", answers=VerdictPage, handle=Handlers.history,
              parameters=(*_ONE, LIMIT, CURSOR), problems=_GONE),
    Operation(method="POST", path=f"{BASE}/runs/{{id}}/diagnose", id="diagnoseRun",
              about="Judge a job as of now, record the verdict and give it", details=_JUDGING, answers=VerdictDoc,
              handle=Handlers.diagnose, parameters=(ID,), problems=_JUDGED, also={202: "It takes longer"}),
    Operation(method="GET", path=f"{BASE}/runs/{{id}}/evidence", id="askEvidence",
              about="Ask one question of a job's evidence", details=_ASKING, answers=AnswerDoc,
              handle=Handlers.evidence, parameters=(ID, QUERY, ROWS), problems=_JUDGED),
    Operation(method="GET", path=f"{BASE}/verdicts/{{id}}", id="getVerdict", about="One verdict's document",
              answers=VerdictDoc, handle=Handlers.verdict, parameters=(VERDICT,), problems=_GONE,
              also={304: "As If-None-Match has it"}),
    Operation(method="POST", path=f"{BASE}/verdicts/{{id}}/verify", id="verifyVerdict",
              about="Ask a verdict's citations again", answers=VerifiedDoc, handle=Handlers.verify,
              parameters=(VERDICT,), problems=_JUDGED),
    Operation(method="GET", path=f"{BASE}/jobs", id="listJobs", problems=(429, 502, 503, 504),
              about="Jobs of which there is evidence, judged or not", answers=JobsDoc, handle=Handlers.jobs,
              parameters=(LIMIT,)),
    Operation(method="GET", path=f"{BASE}/families", id="listFamilies", about="The failure families",
              answers=list[FamilyDoc], handle=Handlers.families),
    Operation(method="GET", path=f"{BASE}/families/{{code}}", id="getFamily", about="One family's page",
              answers=FamilyDetail, handle=Handlers.family, parameters=(CODE,), problems=(404,)),
    Operation(method="GET", path=f"{BASE}/openapi.json", id="getOpenApi", about="This API as OpenAPI 3.1",
              answers=dict[str, Any], handle=described),
)  # fmt: skip


def description() -> dict[str, Any]:
    """This API as OpenAPI 3.1."""
    return document(OPERATIONS, package_version())


def routes(handlers: Handlers, check: Check | None = None) -> list[Route]:
    """For an application, each for itself: other things may be served under the same ``/api/v1``.

    ``check`` raises Refused for a request that may not read.
    """
    return [each.route(handlers, check) for each in OPERATIONS]
