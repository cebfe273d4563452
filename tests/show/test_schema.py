"""The published JSON Schemas: every field is described."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trackside.serve.api import OPERATIONS, description
from trackside.serve.problems import ProblemDoc
from trackside.show.comparison import ComparisonDoc
from trackside.show.document import VerdictDoc, json_schema
from trackside.show.schema import attribute_docs, published_types

PUBLISHED = published_types(
    [VerdictDoc, ComparisonDoc, ProblemDoc, *(op.answers for op in OPERATIONS if not isinstance(op.answers, str))]
)


@pytest.mark.parametrize("struct", PUBLISHED, ids=lambda struct: f"{struct.__module__}.{struct.__name__}")
def test_every_published_field_is_described_by_a_sentence(struct: type[msgspec.Struct]) -> None:
    texts = attribute_docs(struct)
    assert not [name for name in struct.__struct_fields__ if not texts.get(name, "").endswith(".")]


@pytest.mark.parametrize("schemas", [json_schema()["$defs"], description()["components"]["schemas"]])
def test_descriptions_are_in_the_schema(schemas: dict[str, Any]) -> None:
    fields = {
        f"{name}.{field}": value
        for name, schema in schemas.items()
        for field, value in schema["properties"].items()
        if field != "answer"  # the tag of an answer's type
    }
    assert len(fields) > 100
    assert not [name for name, value in fields.items() if not value.get("description")]
    assert not [name for name, value in fields.items() if "``" in value["description"]]
    assert not [name for name, schema in schemas.items() if "\n" in schema.get("description", "")]
    assert schemas["FindingDoc"]["properties"]["outcome"]["description"].startswith("found, absent")


def test_a_renamed_field_is_described_under_its_published_name() -> None:
    properties = json_schema()["$defs"]["VerdictDoc"]["properties"]
    assert properties["asked"]["description"].startswith("Servers and commands")
    assert "sources" not in properties
