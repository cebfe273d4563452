"""JSON Schemas of published types, in which every field has a description: the docstring below it in its class."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec


def schema_components(
    types: Iterable[Any], ref_template: str = "#/$defs/{name}"
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A JSON Schema of each type, and the schemas by name of the classes that they refer to."""
    types = list(types)
    schemas, components = msgspec.json.schema_components(types, ref_template=ref_template)
    for struct in published_types(types):
        if text := components[struct.__name__].get("description"):
            components[struct.__name__]["description"] = _one_line(text)
        docs, properties = attribute_docs(struct), components[struct.__name__]["properties"]
        for field in msgspec.structs.fields(struct):
            if text := docs.get(field.name):
                properties[field.encode_name]["description"] = _one_line(text)
    return list(schemas), components


def _one_line(docstring: str) -> str:
    return " ".join(docstring.replace("``", "`").split())


def published_types(types: Iterable[Any]) -> list[type[msgspec.Struct]]:
    """The classes that these types consist of."""
    structs: dict[type[msgspec.Struct], None] = {}

    def visit(info: object) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in structs:
                return
            structs[info.cls] = None
        for child in _children(info):
            visit(child)

    for info in msgspec.inspect.multi_type_info(types):
        visit(info)
    return list(structs)


def _children(info: object) -> Iterator[object]:
    match info:
        case msgspec.inspect.StructType():
            yield from (field.type for field in info.fields)
        case msgspec.inspect.UnionType():
            yield from info.types
        case msgspec.inspect.DictType():
            yield from (info.key_type, info.value_type)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            yield info.item_type


def attribute_docs(kind: type) -> Mapping[str, str]:
    """The docstrings of a class's attributes, inherited ones included."""
    return {name: text for base in reversed(kind.__mro__) for name, text in _own_docs(base).items()}


@cache
def _own_docs(kind: type) -> Mapping[str, str]:
    if not vars(kind).get("__annotations__"):
        return {}
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: str(text.value.value)
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }  # fmt: skip
