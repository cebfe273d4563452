"""Names that the code may not use: lists where they are bound, with what to do, and exits 1 if there are any.

    python tools/names.py [FOLDER]

A class is a noun phrase, a local is named for what it holds, a constant gives its bound and unit. A reader of ``found``
must look up what was found; a reader of ``matches`` need not. Spelling is American.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tools", "bench", "lab", "tests")

VAGUE = {
    "asked", "begun", "each", "found", "given", "gone", "held", "kept", "lasted", "met", "mine", "placed", "said", "seen",
    "spent", "stood", "taken", "theirs", "told", "wanted",
}  # fmt: skip
"""Variables, parameters, keyword arguments, attributes and functions that do not say what they hold or return. A keyword
argument of a sentence is also the name of its placeholder."""
PARTICIPLES = {
    "Beyond", "Found", "Given", "Held", "Kept", "Left", "Lost", "Read", "Seen", "Sent", "Spent", "Spoken", "Stood",
    "Taken", "Told", "Written",
}  # fmt: skip
"""Classes that do not say what they are, in addition to those that end in -ed."""
NOUNS = frozenset({"Feed", "Seed", "Speed"})
BOUNDS = {"MOST": "MAX_", "LEAST": "MIN_"}
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
"""Spellings that stay because others rely on them: where they are published."""


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
    if replacement := BOUNDS.get(bare.partition("_")[0]):
        return f"write {replacement}, with the unit at the end"
    if bare in VAGUE:
        return "name what it returns" if kind == "function" else "name what it holds"
    return None


def complaints(root: Path) -> Iterator[str]:
    """One line for each name to change in a tree."""
    files = [*root.glob("*.py"), *(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))]
    for path in sorted(files):
        for line, kind, name in sorted(set(bound_names(ast.parse(path.read_text("utf-8"), str(path))))):
            if text := remedy(kind, name):
                yield f"{path.relative_to(root)}:{line}: {kind} {name}: {text}"


def main() -> int:
    """Print the complaints; the exit status."""
    lines = list(complaints(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
