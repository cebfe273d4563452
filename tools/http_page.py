"""docs/http-api.md: the HTTP API's page, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trackside.serve.api import description
from trackside.stores.receiver.options import DEFAULT_LISTEN

INTRO = """# The HTTP API

`trackside serve` answers these beside taking data in. All answers are JSON; times are POSIX seconds, UTC; a fact that is not
known is null.

    curl -H "Authorization: Bearer $TOKEN" http://LISTEN/api/v1/runs?family=cuda-oom
    curl -X POST http://LISTEN/api/v1/runs/4242/diagnose
    curl -G http://LISTEN/api/v1/runs/4242/evidence --data-urlencode "query=events(exception)"

**Which run.** `{id}` is a run's own id (`r17`), or a job's (`4242`): the last run of that job, as schedulers begin anew with their
ids. Where jobs of several clusters have the same id, say `cluster`. A job that was never judged has no run yet: `GET /api/v1/jobs`
lists all of which there is evidence, and judging one makes it a run.

**Pages.** Listings are newest first. `next` is the `cursor` of the page after; null at the end. What is recorded meanwhile doesn't
shift the pages.

**Verdicts don't change.** Judged again, a run has another verdict if the document differs, and its history has both. Documents
have an `ETag`; `If-None-Match` spares the second transfer. Answers of 2 KiB and more are gzip for who accepts it.

**Evidence.** A question is text of the same language as a citation's `query`: `events(KIND)` and `record(KIND)`, with
`.where(field='value')`, reduced by `.count()`, `.first(field)`, `.last(field)`, `.min(field)`, `.max(field)` or
`.distinct(field)`; `metric(NAME)` ([metrics](metrics.md)), with `.where(label='value')`, then `.over(SPAN, HOW)` - part of the
run: run, head, tail, around - or `.during(START, END).rollup(STEP_S, HOW)`, then `.by('label', how=AGGREGATE)`. HOW is avg, min,
max, sum, count, last, stddev, p05, p50, p95, increase or onset. The answer says which it is: `rows`, `grid`, `value`, or `missing`
with its reason, which is never "none". It has at most 10,000 rows or 500,000 values.

**Refusals** are problem details (RFC 9457, `application/problem+json`): `status`, `title`, `detail`, and `remedy` where something
helps. 401: no token that may read. 404: there is no such thing. 409: several go by that id. 422: the request is not as it should be.
429 and 503 say in `Retry-After` when to try again. 502 and 504: a server that has the evidence did not answer, or not in time.

`GET /api/v1/openapi.json` describes all of it for programs. `trackside schema` prints the JSON Schema of the verdict.
"""
ENOUGH = ("VerdictDoc", "ProblemDoc")
"""Types that are described elsewhere."""


def http_page() -> str:
    """The page in Markdown."""
    api = description()
    lines = [INTRO.replace("LISTEN", DEFAULT_LISTEN), "## What can be asked", ""]
    shown: dict[str, None] = {}
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            lines += [f"### {method.upper()} {path}", "", *_operation(operation), ""]
            shown |= dict.fromkeys(_references(operation))
    lines += ["## Types", ""]
    schemas: Mapping[str, Any] = api["components"]["schemas"]
    waiting = [name for name in shown if name not in ENOUGH]
    for name in waiting:  # grows while it is read
        waiting += [item for item in dict.fromkeys(_references(schemas[name])) if item not in (*waiting, *ENOUGH)]
        lines += [f"### {name}", "", _text(schemas[name].get("description", "")), "", "| field | type |", "|---|---|"]
        lines += [f"| `{field}` | {_type(item)} |" for field, item in schemas[name]["properties"].items()]
        lines.append("")
    return "\n".join([*lines, "Generated from `trackside.serve.api` by `make docs`.", ""])


def _operation(operation: Mapping[str, Any]) -> Iterator[str]:
    yield operation["summary"] + "." + (f" {operation['description']}" if "description" in operation else "")
    yield ""
    if operation["parameters"]:
        yield from ("| parameter | in | what |", "|---|---|---|")
        for parameter in operation["parameters"]:
            schema = parameter["schema"]
            limits = f"; {schema['minimum']:,} to {schema['maximum']:,}" if "maximum" in schema else ""
            limits += f", {schema['default']:,} if not given" if "default" in schema else ""
            yield f"| `{parameter['name']}` | {parameter['in']} | {parameter['description']}{limits if parameter['in'] == 'query' else ''} |"
        yield ""
    (content,) = operation["responses"]["200"]["content"].values()
    others = [
        f"{status}{_why(response)}" for status, response in sorted(operation["responses"].items()) if status != "200"
    ]
    yield f"Answers {_type(content['schema'])}. Other statuses: {', '.join(others)}."


def _why(response: Mapping[str, Any]) -> str:
    return "" if "content" in response else f" ({response['description'][:1].lower()}{response['description'][1:]})"


def _references(value: Any) -> Iterator[str]:
    """Names of the types that something refers to."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rpartition("/")[2]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "the verdict document" if name == "VerdictDoc" else f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(item) for item in schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if "enum" in schema:
        return ", ".join(f"`{item}`" for item in schema["enum"])
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties']) or 'anything'}"
    return str(schema.get("type", ""))


def _text(docstring: str) -> str:
    return " ".join(docstring.replace("``", "`").split())
