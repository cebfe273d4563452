"""Docstrings name what exists: the fields, parameters and references that a rename has not reached."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
FIELDS = re.compile(r"(?:^|[.;:(]\s+|\n\s*)((?:``\w+``(?:, | and | or )?)+):", re.M)
"""``name``: or ``name``, ``other``: at the start of a clause."""
ROLES = re.compile(r":(?:class|func|meth|data|mod|attr):`~?([^`]+)`")
RAISES = re.compile(r"\b[Rr]aises ([A-Z]\w+[a-z]\w*)(?: |\.|,)")
"""The first exception that a docstring says is raised; not a word in capitals, which is no class."""
Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, ast.Module]:
    """Each module of the package by its dotted name."""
    files = SOURCE.rglob("*.py")
    return {
        ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            file.read_text("utf-8")
        )
        for file in files
    }


def names_in(tree: ast.AST) -> set[str]:
    """Every name that occurs in it: bound, used, imported, or a word of a string that is no docstring."""
    names: set[str] = set()
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                names.add(name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=alias):
                names.add(alias or name)
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                names.update(re.findall(r"\w+", text))
    return names


def resolves(role: str, module: str) -> bool:
    """Whether a reference in a module's docstrings leads to something."""
    known = modules()
    if role.startswith("."):
        package = module if any(name.startswith(f"{module}.") for name in known) else module.rpartition(".")[0]
        return package + role in known
    if role.startswith("trackside."):
        owner = max((name for name in known if f"{role}.".startswith(f"{name}.")), key=len, default="")
        return bool(owner) and set(role.removeprefix(owner).split(".")[1:]) <= names_in(known[owner])
    anywhere = set().union(*map(names_in, known.values())) if "." in role else names_in(known[module])
    return all(part in anywhere for part in role.split("."))


@cache
def classes() -> set[str]:
    """The classes of the package, and the names that it imports or uses of others."""
    names: set[str] = set()
    for node in (node for tree in modules().values() for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return names


def stale() -> Iterator[str]:
    """Each name of a field, parameter or exception, and each reference, that leads to nothing."""
    for module, tree in modules().items():
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}  # keys, values of a setting
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                text = node.value.value
                yield from (f"{module}: {role}" for role in ROLES.findall(text) if not resolves(role, module))
                exceptions = set(RAISES.findall(text)) - set(dir(builtins))
                yield from (f"{module}: raises {name}" for name in sorted(exceptions) if name not in classes())
            if isinstance(node, Documented):
                text = ast.get_docstring(node) or ""
                fields = {name for group in FIELDS.findall(text) for name in re.findall(r"``(\w+)``", group)}
                yield from (f"{module}.{node.name}: {name}" for name in sorted(fields - names_in(node) - texts))


def test_docstrings_name_existing_fields_and_references() -> None:
    assert list(stale()) == []
