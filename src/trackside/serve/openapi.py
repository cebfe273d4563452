"""The HTTP API described by itself: OpenAPI 3.1, from the declarations that its routes are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from trackside.serve.operations import Operation, Parameter
from trackside.serve.problems import MEDIA_TYPE, ProblemDoc

_REF = "#/components/schemas/{name}"
EVERYWHERE = (401, 422, 500)
"""Statuses that any operation may be refused with."""


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """The OpenAPI document; JSON Schema 2020-12 of every type under ``components``."""
    types = [each.answers for each in operations if not isinstance(each.answers, str)]
    found, components = msgspec.json.schema_components([*types, ProblemDoc], ref_template=_REF)
    schemas = iter(found)
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        schema = {} if isinstance(each.answers, str) else next(schemas)
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schema)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trackside",
            "version": version,
            "summary": "Why GPU training runs ended as they did: runs, verdicts and the evidence behind them.",
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _operation(operation: Operation, schema: Mapping[str, Any]) -> dict[str, Any]:
    media = operation.answers if isinstance(operation.answers, str) else "application/json"
    responses: dict[str, Any] = {"200": {"description": "OK", "content": {media: {"schema": dict(schema)}}}}
    for status, about in operation.also.items():
        responses[str(status)] = {"description": about}
    for status in sorted({*operation.problems, *EVERYWHERE}):
        content = {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="ProblemDoc")}}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    told = {
        "operationId": operation.id,
        "summary": operation.about,
        "parameters": [_parameter(each) for each in operation.parameters],
        "responses": responses,
    }
    return {**told, "description": operation.details} if operation.details else told


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any]
    match parameter.kind:
        case "integer":
            schema = {"type": "integer", "minimum": parameter.least, "maximum": parameter.most}
        case "time":
            schema = {"type": "string"}
        case _:
            schema = {"type": "string", "minLength": 0 if parameter.empty else 1, "maxLength": parameter.most}
            if parameter.known:
                schema = {"type": "string", "enum": list(parameter.known)}
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": parameter.within,
        "required": parameter.required or parameter.within == "path",
        "description": parameter.about,
        "schema": schema,
    }
