"""The HTTP API: its operations, declared once, from which the routes and the OpenAPI document are made."""

from __future__ import annotations

from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trackside.finding import Culprit
from trackside.serve.answers import MAX_QUERY_CHARS, AnswerDoc
from trackside.serve.handlers import FamilyDetail, FamilyDoc, Handlers, JobsDoc, RunDetail, VerificationDoc
from trackside.serve.operations import ApiParameter, Arguments, Check, Operation, document
from trackside.serve.problems import encode
from trackside.show.document import VerdictDoc
from trackside.stores.metadata.archive import MAX_PAGE_ROWS
from trackside.stores.metadata.rows import RunPage, VerdictPage
from trackside.version import package_version

BASE = "/api/v1"
ID = ApiParameter(
    name="id", within="path", about="A run's id (r17), or a job's id (4242), which means that job's last run"
)
CLUSTER = ApiParameter(
    name="cluster", empty=True, about="The cluster, if several have a job with this id; empty: the unnamed cluster"
)
LIMIT = ApiParameter(
    name="limit", kind="integer", default=100, minimum=1, maximum=MAX_PAGE_ROWS, about="Maximum entries per page"
)
CURSOR = ApiParameter(name="cursor", about="The 'next' value of the previous page")
VERDICT = ApiParameter(name="id", within="path", kind="integer", maximum=2**63 - 1, about="A verdict's id")
FORMAT = ApiParameter(
    name="format", allowed=("json", "short", "markdown"),
    about="json (default): the document; short: one paragraph of text; markdown: text for a ticket",
)  # fmt: skip
_EXACT = {"job": "A job's id", "cluster": "A cluster's name", "name": "A job's name", "username": "The submitting user",
          "state": "The job's final state in the scheduler, such as NODE_FAIL",
          "node": "A node of the run"}  # fmt: skip
FILTERS = (
    *(ApiParameter(name=name, about=about, empty=name == "cluster") for name, about in _EXACT.items()),
    ApiParameter(name="culprit", allowed=get_args(Culprit), about=f"The owner: one of {', '.join(get_args(Culprit))}"),
    ApiParameter(name="family", about="A family's code or id, such as b1 or cuda-oom"),
    ApiParameter(
        name="since", kind="time", about="Only runs that started at or after this time: ISO 8601 or POSIX seconds"
    ),
    ApiParameter(name="until", kind="time", about="Only runs that started before this time"),
)
CODE = ApiParameter(name="code", within="path", about="A family's code or id, such as b1 or cuda-oom")
ROWS = ApiParameter(
    name="limit", kind="integer", default=1000, minimum=1, maximum=10_000, about="Maximum number of rows"
)
QUERY = ApiParameter(name="query", required=True, maximum=MAX_QUERY_CHARS, about="The query as text")

_DIAGNOSIS_DETAILS = (
    "The job need not have a verdict yet. The response waits for the verdict; after a minute the status is 202, the"
    " diagnosis continues and is recorded; a repeated request joins it. The headers Trackside-Run and Trackside-Verdict"
    " say where the verdict was recorded; Trackside-Not-Recorded says why it was not, if the verdict archive is down."
)
_EVIDENCE_DETAILS = (
    "The query is text such as events(exception), record(job).first(state) or"
    " metric(gpu_utilization_ratio).over('run', 'avg').by('node', how='median'): the form of a citation's query."
)


async def open_api(_: Handlers, __: Request, ___: Arguments) -> Response:
    """The OpenAPI document."""
    return Response(encode(description()), media_type="application/json")


_RUN, _RUN_PROBLEMS = (ID, CLUSTER), (404, 409, 429, 503, 504)
_DIAGNOSIS_PROBLEMS = (*_RUN_PROBLEMS, 502)
OPERATIONS: tuple[Operation, ...] = (
    Operation(method="GET", path=f"{BASE}/runs", id="listRuns", about="List runs with a verdict, newest first",
              answers=RunPage, handle=Handlers.runs, parameters=(*FILTERS, LIMIT, CURSOR),
              problems=(429, 503, 504)),
    Operation(method="GET", path=f"{BASE}/runs/{{id}}", id="getRun",
              about="Get a run, the run that it continued, and the runs that continued it",
              answers=RunDetail, handle=Handlers.run, parameters=_RUN, problems=_RUN_PROBLEMS),
    Operation(method="GET", path=f"{BASE}/runs/{{id}}/verdict", id="getLatestVerdict",
              about="Get a run's latest verdict, as 'trackside diagnose --json' prints it", answers=VerdictDoc,
              handle=Handlers.latest, parameters=(*_RUN, FORMAT), problems=_RUN_PROBLEMS,
              also={304: "Not modified since If-None-Match"}),
    Operation(method="GET", path=f"{BASE}/runs/{{id}}/verdicts", id="listVerdicts",
              about="List all verdicts of a run, latest first", answers=VerdictPage, handle=Handlers.history,
              parameters=(*_RUN, LIMIT, CURSOR), problems=_RUN_PROBLEMS),
    Operation(method="POST", path=f"{BASE}/runs/{{id}}/diagnose", id="diagnoseRun",
              about="Diagnose a job now, record the verdict and return it", details=_DIAGNOSIS_DETAILS,
              answers=VerdictDoc, handle=Handlers.diagnose, parameters=(ID, FORMAT), problems=_DIAGNOSIS_PROBLEMS,
              also={202: "Still running"}),
    Operation(method="GET", path=f"{BASE}/runs/{{id}}/evidence", id="askEvidence",
              about="Run one query on a job's evidence", details=_EVIDENCE_DETAILS, answers=AnswerDoc,
              handle=Handlers.evidence, parameters=(ID, QUERY, ROWS), problems=_DIAGNOSIS_PROBLEMS),
    Operation(method="GET", path=f"{BASE}/verdicts/{{id}}", id="getVerdict", about="Get one verdict's document",
              answers=VerdictDoc, handle=Handlers.verdict, parameters=(VERDICT, FORMAT), problems=_RUN_PROBLEMS,
              also={304: "Not modified since If-None-Match"}),
    Operation(method="POST", path=f"{BASE}/verdicts/{{id}}/verify", id="verifyVerdict",
              about="Check a verdict's citations again", answers=VerificationDoc, handle=Handlers.verify,
              parameters=(VERDICT,), problems=_DIAGNOSIS_PROBLEMS),
    Operation(method="GET", path=f"{BASE}/jobs", id="listJobs", problems=(429, 502, 503, 504),
              about="List jobs that have evidence, with or without a verdict", answers=JobsDoc, handle=Handlers.jobs,
              parameters=(LIMIT,)),
    Operation(method="GET", path=f"{BASE}/families", id="listFamilies", about="List the failure families",
              answers=list[FamilyDoc], handle=Handlers.families),
    Operation(method="GET", path=f"{BASE}/families/{{code}}", id="getFamily", about="Get one failure family's page",
              answers=FamilyDetail, handle=Handlers.family, parameters=(CODE,), problems=(404,)),
    Operation(method="GET", path=f"{BASE}/openapi.json", id="getOpenApi", about="Get this API as OpenAPI 3.1",
              answers=dict[str, Any], handle=open_api),
)  # fmt: skip


def description() -> dict[str, Any]:
    """This API as OpenAPI 3.1."""
    return document(OPERATIONS, package_version())


def routes(handlers: Handlers, check: Check | None = None) -> list[Route]:
    """One route per operation: an application may serve other things under the same ``/api/v1``.

    ``check`` raises RequestRefused for an unauthorized request.
    """
    return [operation.route(handlers, check) for operation in OPERATIONS]
