"""docs/http-api.md: the HTTP API's page, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trackside import query
from trackside.serve.api import description
from trackside.stores.receiver.options import DEFAULT_LISTEN

INTRO = """# The HTTP API

    trackside serve --store site
    curl -X POST http://LISTEN/api/v1/runs/4242/diagnose                 # a verdict on job 4242, now
    curl "http://LISTEN/api/v1/runs?family=cuda-oom"                     # runs with this verdict
    curl -G http://LISTEN/api/v1/runs/4242/evidence --data-urlencode "query=events(exception)"

[The receiver](receiver.md) serves this API. With read tokens, add `-H "Authorization: Bearer $TOKEN"`. Answers are JSON; times are POSIX seconds, UTC;
an unknown value is null. `GET /api/v1/openapi.json` returns the OpenAPI description, `trackside schema` the JSON Schema of a verdict.

## Choose a run

`{id}` is a run's own id (`r17`) or a job id (`4242`), which means the last run of that job, because schedulers reuse ids. If jobs of several clusters share
the id, add `cluster` to the operations that list it below; `diagnose` and `evidence` find the evidence by the job's id alone. A job becomes a run with its
first verdict: `GET /api/v1/jobs` lists all jobs with evidence.

## List and cache

Listings are newest first. Pass `next` as `cursor` to get the following page; it is null on the last. New runs do not shift the pages. A verdict
never changes: a new judgment with another result is a new verdict, and the history has both. Documents have an `ETag` for `If-None-Match`. Answers of 2 KiB
and more are compressed with gzip if the client accepts it.

## Query the evidence

A query is text, as in a citation's `query`. `run` is the run from start to end, `tail` its last half hour, `around` the run and ten minutes before and after;
START and END are POSIX seconds, STEP_S is in seconds.

| query | parts |
|---|---|
| `events(KIND)`, `record(KIND)` | `.where(field='value')`; then `.count()`, `.first(field)`, `.last(field)`, `.min(field)`, `.max(field)` or `.distinct(field)` |
| `metric(NAME)`, of these [metrics](metrics.md) | `.where(label='value')`; then `.over(SPAN, HOW)` or `.during(START, END).rollup(STEP_S, HOW)`; then `.by('label', how=AGGREGATE)` |

| word | values |
|---|---|
| SPAN | {spans} |
| HOW | {rollups} |
| AGGREGATE | {aggregates} |

The error for an unknown KIND lists the known ones.

The `answer` is `rows`, `grid`, `value` or `missing`; `missing` has a reason and never means that nothing happened. An answer has at most 10,000 rows or 500,000 values.

## Errors

Errors are problem details (RFC 9457, `application/problem+json`) with `status`, `title`, `detail` and `remedy`, which is
empty if nothing helps. A path that does not exist is a plain 404.

| status | meaning |
|---|---|
| 401 | no valid read token |
| 404 | not found |
| 409 | several runs have this id |
| 422 | the request is invalid |
| 429, 503 | try again after `Retry-After` |
| 500 | an error in the receiver; its log has it |
| 502, 504 | a server that has the evidence could not be reached, or did not answer in time |
"""
DESCRIBED_ELSEWHERE = ("VerdictDoc", "ProblemDoc")
"""Types that are described elsewhere."""


def http_page() -> str:
    """The page in Markdown."""
    api = description()
    lines = [_fill_placeholders(INTRO), "## Operations", ""]
    type_names: dict[str, None] = {}
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            lines += [f"### {method.upper()} {path}", "", *_operation(operation), ""]
            type_names |= dict.fromkeys(_references(operation))
    lines += ["## Types", ""]
    schemas: Mapping[str, Any] = api["components"]["schemas"]
    pending = [name for name in type_names if name not in DESCRIBED_ELSEWHERE]
    for name in pending:  # grows while it is read
        pending += [
            item for item in dict.fromkeys(_references(schemas[name])) if item not in (*pending, *DESCRIBED_ELSEWHERE)
        ]
        lines += [
            f"### {name}",
            "",
            _text(schemas[name].get("description", "")),
            "",
            "| field | type | meaning |",
            "|---|---|---|",
        ]
        lines += [
            f"| `{field}` | {_type(item)} | {item.get('description', 'Names the type of the answer.')} |"
            for field, item in schemas[name]["properties"].items()
        ]
        lines.append("")
    return "\n".join([*lines, "Generated from `trackside.serve.api` by `make pages`.", ""])


def _fill_placeholders(intro: str) -> str:
    """The introduction with the words of the query language and the default address."""
    placeholders = {"{spans}": query.SPANS, "{rollups}": query.ROLLUPS, "{aggregates}": query.AGGREGATES}
    for placeholder, values in placeholders.items():
        intro = intro.replace(placeholder, ", ".join(f"`{value}`" for value in values))
    return intro.replace("LISTEN", DEFAULT_LISTEN)


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
    other_statuses = [
        f"{status}{_description_suffix(response)}"
        for status, response in sorted(operation["responses"].items())
        if status != "200"
    ]
    yield f"Returns {_type(content['schema'])}. Other statuses: {', '.join(other_statuses)}."


def _description_suffix(response: Mapping[str, Any]) -> str:
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
        return f"list of {_grouped(schema['items'])}"
    if "enum" in schema:
        return ", ".join(f"`{item}`" for item in schema["enum"])
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_grouped(schema['additionalProperties']) or 'anything'}"
    return str(schema.get("type", ""))


def _grouped(schema: Mapping[str, Any]) -> str:
    """The type, in parentheses if it is one of several."""
    text = _type(schema)
    return f"({text})" if "anyOf" in schema else text


def _text(docstring: str) -> str:
    return " ".join(docstring.replace("``", "`").split())
