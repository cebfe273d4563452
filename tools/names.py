"""Report names that the code may not use: file, line, and what to write instead. Exit 1 if there are any.

    python tools/names.py [FOLDER]

A class is a noun phrase, a local is named for what it holds, a constant gives its bound and unit. A reader of ``found``
must look up what was found; a reader of ``matches`` need not. Spelling is American. A public class or type alias of the
package shares its name with no other, and a constant is set once.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tools", "bench", "lab", "tests")

VAGUE = {
    "asked", "begun", "each", "found", "given", "gone", "held", "kept", "lasted", "met", "mine", "placed", "raised",
    "reached", "said", "seen", "spent", "stood", "stopped", "survived", "taken", "theirs", "told", "wanted", "worked",
}  # fmt: skip
"""Variables, parameters, keyword arguments, attributes and functions that do not say what they hold or return. A keyword
argument of a sentence is also the name of its placeholder."""
PARTICIPLES = {
    "Beyond", "Found", "Given", "Held", "Kept", "Left", "Lost", "Read", "Seen", "Sent", "Spent", "Spoken", "Stood",
    "Taken", "Told", "Written",
}  # fmt: skip
"""Classes that do not say what they are, in addition to those that end in -ed."""
NOUNS = frozenset({"Feed", "Seed", "Speed"})
BOUNDS = {"MOST": "MAX_", "LEAST": "MIN_", "most": "max_", "least": "min_"}
"""First word of a bound -> what to write: of any constant, and of a variable that ends in a plural, as ``most_bytes``."""
BOUND = re.compile(r"(MOST|LEAST)(?=_|$)|(most|least)(?=_\w*s$)")
SPELLING = {
    "behaviour": "behavior",
    "catalogue": "catalog",
    "centre": "center",
    "colour": "color",
    "favour": "favor",
    "flavour": "flavor",
    "grey": "gray",
    "initialis": "initialize",
    "labelled": "labeled",
    "licence": "license",
    "localis": "localize",
    "modelled": "modeled",
    "neighbour": "neighbor",
    "normalis": "normalize",
    "organis": "organize",
    "recognis": "recognize",
    "sanitis": "sanitize",
    "serialis": "serialize",
    "signalled": "signaled",
    "summaris": "summarize",
    "utilis": "utilize",
}
"""British -> American, anywhere in a name. Not "cancelled", which is how Slurm spells its job state."""
PUBLISHED = {
    "underutilised": "the family id gpu-underutilised",
    "unrecognised": "the status of an input that no reader recognizes",
}
"""Spelling that stays because others rely on it -> where it is published."""
PACKAGE = "src"
REPEATED = frozenset({"Limits"})
"""Classes that each fact and family may have."""
ALIAS = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, kind, name) of each name that a module binds."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef():
                yield node.lineno, "class", node.name
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, "function", node.name
            case ast.arg():
                yield node.lineno, "parameter", node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, "variable", node.id
            case ast.keyword(arg=str(name)):
                yield node.value.lineno, "keyword", name
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, "attribute", node.attr
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, "variable", name


def remedy(kind: str, name: str) -> str | None:
    """What to do about a name; None if it may stay."""
    bare = name.strip("_")
    others = re.sub("|".join(PUBLISHED), "", bare.lower())
    if british := next((spelling for spelling in SPELLING if spelling in others), None):
        return f"spell it as in {SPELLING[british]}"
    if kind == "class":
        is_participle = re.fullmatch(r"[A-Z][a-z]*ed", bare) and bare not in NOUNS
        return "name the thing, as a noun phrase" if is_participle or bare in PARTICIPLES else None
    if kind != "function" and (bound := BOUND.match(bare)):
        return f"write {BOUNDS[bound[0]]}, with the unit at the end"
    if bare in VAGUE:
        return "name what it returns" if kind == "function" else "name what it holds"
    return None


def types(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """(line, name, definition) of each public class and type alias of a module; the definition of a class is empty."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield node.lineno, name, ""
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if ALIAS.fullmatch(name):
                yield node.lineno, name, ast.unparse(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if ALIAS.fullmatch(name):
                yield node.lineno, name, ast.unparse(value)


def repeated_types(root: Path, files: Iterable[Path]) -> Iterator[str]:
    """One line for each type whose name another one has; equal aliases are one."""
    first: dict[str, tuple[str, str]] = {}
    for path in files:
        for line, name, definition in types(ast.parse(path.read_text("utf-8"), str(path))):
            place = f"{path.relative_to(root)}:{line}"
            other, other_definition = first.setdefault(name, (place, definition))
            if other != place and (not definition or definition != other_definition) and name not in REPEATED:
                yield f"{place}: type {name}: give it a name of its own; {other} has this one"


def constants_set_twice(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of each constant of a module that the module has set before."""
    names: set[str] = set()
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper():
                if target.id in names:
                    yield node.lineno, target.id
                names.add(target.id)


def complaints(root: Path) -> Iterator[str]:
    """One line for each name to change in a tree."""
    files = [*root.glob("*.py"), *(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))]
    for path in sorted(files):
        tree = ast.parse(path.read_text("utf-8"), str(path))
        for line, kind, name in sorted(set(bound_names(tree))):
            if text := remedy(kind, name):
                yield f"{path.relative_to(root)}:{line}: {kind} {name}: {text}"
        for line, name in constants_set_twice(tree):
            yield f"{path.relative_to(root)}:{line}: constant {name}: it is set above; give one of the two another name"
    yield from repeated_types(root, sorted((root / PACKAGE).rglob("*.py")))


def main() -> int:
    """Print the complaints; the exit status."""
    lines = list(complaints(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
