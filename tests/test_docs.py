"""The documentation names only what exists: link targets, anchors, source paths, commands and their options, and
messages: in a guide, text in double quotes outside code is a message of the program, word for word."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from trackside.agent.__main__ import main as agent_main
from trackside.agent.config import sections as agent_sections
from trackside.cli import main

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("lab/**/*.md")], key=lambda page: page.as_posix()
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"(?:\$ |^)(?:\S*/bin/)?(trackside(?: .*)?)$")
"""A command line, after a prompt or at the start."""
PLACEHOLDER = re.compile(r"\b(?:(?:test_)?x9_)?name\.\w+$|\b[A-Z]{3,}\b(?!\.)")
"""A placeholder in a path, such as ``name.py`` or ``FAMILY``."""
AGENT_COMMANDS = ("run", "check", "config")
GENERATED = re.compile(r"docs/(?:families|facts)/|docs/(?:metrics|http-api|accuracy)\.md$")
"""Pages that are made from code; those of families quote the logs of jobs."""
GUIDES = [page for page in PAGES if not GENERATED.match(page.relative_to(ROOT).as_posix()) and "lab" not in page.parts]
FILE_ENDINGS = frozenset(
    [
        "csv",
        "db",
        "html",
        "json",
        "jsonl",
        "log",
        "md",
        "out",
        "prom",
        "py",
        "service",
        "tokens",
        "toml",
        "tsb",
        "txt",
        "yaml",
    ]
)
MESSAGE = re.compile(r'"([^"\n]+)"')
UNFILLED = re.compile(r"(?<![/`\w])\{\w*\}|\|\s*[A-Z_]{4,}\s*\|\s*[A-Z_]{4,}\s*\||:(?:data|class|func|meth|mod):`")
"""A field of a template, a row of a table whose value is a constant's name, a role of reStructuredText."""


def ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[tuple[bool, str]]:
    """(whether the line is in a code block, its text) for each line."""
    fenced = False
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        else:
            yield fenced or line.startswith("    "), line


def prose(page: Path) -> str:
    return "\n".join(line for in_code, line in blocks(page) if not in_code)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    slugs: list[str] = []
    for in_code, line in blocks(page):
        if not in_code and (heading := re.match(r"#+ (.*)", line)):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            anchor = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
            repeated = slugs.count(anchor)
            slugs += [anchor, f"{anchor}-{repeated}"] if repeated else [anchor]
    return frozenset(slugs)


def commands(page: Path) -> Iterator[str]:
    """Command lines of a page: in code blocks, and in backticks with arguments."""
    continued = ""
    for in_code, line in blocks(page):
        if in_code:
            text, continued = continued + line.strip(), ""
            if text.endswith("\\"):
                continued = text.removesuffix("\\")
            elif match := COMMAND.match(text):
                yield match[1]
        else:
            yield from (code for code in CODE.findall(line) if code.startswith("trackside ") and "..." not in code)


def arguments(command: str) -> list[str]:
    """The words of a command line up to its comment, pipe or redirection."""
    words = shlex.split(command, comments=True)
    end = next((index for index, word in enumerate(words) if word in ("|", ">", ">>", "&&", ";")), len(words))
    return words[1:end]


def options_of(command: click.Command) -> set[str]:
    context = click.Context(command)
    return {name for parameter in command.get_params(context) for name in (*parameter.opts, *parameter.secondary_opts)
            if name.startswith("-")} | {"--help", "-h"}  # fmt: skip


@cache
def agent_options(subcommand: str) -> frozenset[str]:
    """The options of one of the agent's own commands, from its help."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), contextlib.suppress(SystemExit):
        agent_main([subcommand, "--help"], "trackside agent")
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][\w-]*", printed.getvalue()))


def command_problem(command: str) -> str | None:
    """The first problem of a command line: a command or option that does not exist; None if it is valid."""
    words = arguments(command)
    if not words or words[0].startswith("-"):
        return None if set(words) <= {"--help", "-h", "--version"} else f"trackside has no option {words[0]}"
    assert isinstance(main, click.Group)
    command_object = main.get_command(click.Context(main), words[0])
    if command_object is None:
        return f"there is no command {words[0]!r}"
    known = options_of(command_object)
    if words[0] == "agent":
        subcommand = next((word for word in words[1:2] if not word.startswith("-")), "run")
        if subcommand not in AGENT_COMMANDS:
            return f"the agent has no command {subcommand!r}"
        known = set(agent_options(subcommand))
    used = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
    return f"{words[0]} has no option {', '.join(sorted(used - known))}" if used - known else None


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_have_targets(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_exist(page: Path) -> None:
    assert not [f"{command}: {problem}" for command in commands(page) if (problem := command_problem(command))]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_source_paths_exist(page: Path) -> None:
    """A path of the repository in backticks is there, unless it has a placeholder."""
    named = re.findall(r"`((?:src|tests|tools|bench|lab|packaging)/[\w./-]*)`", prose(page))
    assert not [path for path in named if not PLACEHOLDER.search(path) and not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_tests_exist(page: Path) -> None:
    """A test in backticks, ``tests/x.py::test_y`` or, of the same file as the last one, ``::test_y``, is there."""
    missing, file = [], ""
    for path, name in re.findall(r"`(tests/[\w/]+\.py|)::(\w+)`", prose(page)):
        file = path or file
        if not file or not re.search(rf"^ *def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE):
            missing.append(f"{file}::{name}")
    assert not missing


@cache
def module_names() -> dict[str, set[str]]:
    """Module -> the names that it and its classes define, over modules of the same name."""
    names: dict[str, set[str]] = {}
    for path in (ROOT / "src" / "trackside").rglob("*.py"):
        module = path.parent.name if path.stem == "__init__" else path.stem
        names.setdefault(path.parent.name, set()).add(path.stem)
        tree = ast.parse(path.read_text("utf-8"))
        bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
        for node in (node for body in bodies for node in body):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.setdefault(module, set()).add(name)
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                    names.setdefault(module, set()).add(name)
    return names


@pytest.mark.parametrize("page", GUIDES, ids=ids)
def test_functions_of_modules_exist(page: Path) -> None:
    """A name of a module in backticks, such as ``messages.parse_messages``, is in that module."""
    named = re.findall(r"`(?:\w+\.)*(\w+)\.([a-zA-Z]\w+)(?:\(\))?`", prose(page))
    ours = [(module, name) for module, name in named if module in module_names() and name not in FILE_ENDINGS]
    assert not [f"{module}.{name}" for module, name in ours if name not in module_names()[module]]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_package_paths_exist(page: Path) -> None:
    """A module that is named within the package, such as ``stores/curves.py``, is there."""
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|json|toml))`", prose(page))
    packages = {path.name for path in (ROOT / "src" / "trackside").iterdir() if path.is_dir()}
    here = [path for path in named if path.split("/")[0] in packages and not PLACEHOLDER.search(path)]
    assert not [path for path in here if not (ROOT / "src" / "trackside" / path).exists()]


def test_the_table_of_packages_has_the_order_of_the_import_contract() -> None:
    """A package stands above all that it may import, and every package stands in the table."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    table = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    row_of = {
        name.removesuffix(".py").rstrip("/"): number
        for number, line in enumerate(table.splitlines())
        if line.startswith("| `")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    }
    layers = [
        [name.strip().removeprefix("trackside.") for name in layer.split("|")] for layer in contracts[0]["layers"]
    ]
    rows = [[row_of[name] for name in layer] for layer in layers]
    wrong = [layer for layer, numbers, lower in zip(layers, rows, rows[1:], strict=False) if max(numbers) > min(lower)]
    assert not wrong


def documented_keys(*pages: str) -> set[tuple[str, str]]:
    """(section, key) of the tables of settings, in which an empty first column repeats the section above."""
    keys, sections = set(), list[str]()
    for page in pages:
        for line in (ROOT / "docs" / page).read_text("utf-8").splitlines():
            if row := re.match(r"\| *([^|]*?) *\| *(`[^|]*?) *\|", line):
                sections = re.findall(r"`\[([\w.]+)\]`", row[1]) or sections
                keys |= {(section, key) for section in sections for key in re.findall(r"`(\w+)`", row[2])}
    return keys


def test_every_setting_of_the_agent_is_explained() -> None:
    documented = documented_keys("agent.md", "tracing.md")
    keys = {(section.name, key) for section in agent_sections() for key in section.types()}
    of_all_sources = {"on", "interval_s", "timeout_s"}
    missing = {(name, key) for name, key in keys - documented
               if not (name.startswith("collect.") and key in of_all_sources) and not key.endswith("_file")}  # fmt: skip
    assert not missing


@cache
def program_texts() -> tuple[str, ...]:
    """All string constants of the package; literals next to each other and f-strings are one text each."""
    texts: list[str] = []
    for path in (ROOT / "src" / "trackside").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return tuple(texts)


def messages(page: Path) -> list[str]:
    """The messages that a guide quotes."""
    return MESSAGE.findall(CODE.sub("", prose(page)))


@pytest.mark.parametrize("page", GUIDES, ids=ids)
def test_quoted_messages_are_in_the_program(page: Path) -> None:
    assert not [message for message in messages(page) if not any(message in text for text in program_texts())]


def test_quoted_messages_are_recognized() -> None:
    assert "unable to check" in messages(ROOT / "docs" / "faults.md")
    assert not any("tracing was not built into this package" in text for text in program_texts())


@pytest.mark.parametrize(
    "page", [page for page in PAGES if GENERATED.match(page.relative_to(ROOT).as_posix())], ids=ids
)
def test_generated_pages_have_no_unfilled_placeholder(page: Path) -> None:
    assert not [match[0] for match in UNFILLED.finditer(prose(page))]


@pytest.mark.parametrize(
    "text", ["| SPAN | SPANS |", "the value {name} of", "by the names of :data:`HOST_LOAD`"]
)  # fmt: skip
def test_an_unfilled_placeholder_is_noticed(text: str) -> None:
    assert UNFILLED.search(text)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("trackside diagnos run/", "there is no command 'diagnos'"),
        ("trackside diagnose run/ --jsn", "diagnose has no option --jsn"),
        ("trackside diagnose run/ --json > x.json", None),
        ("trackside agent --remote-write http://r:9480", None),
        ("trackside agent chek", "the agent has no command 'chek'"),
        ("trackside agent check --once", "agent has no option --once"),
        ("trackside simulate ecc -o out --set fault.0.at=80%   # comment --no", None),
    ],
)
def test_a_wrong_command_is_detected(command: str, problem: str | None) -> None:
    assert command_problem(command) == problem


def test_commands_of_the_pages_are_recognized() -> None:
    lines = [command for page in PAGES for command in commands(page)]
    assert len(lines) > 100, "the pages' code blocks are no longer recognized"
    assert {"diagnose", "agent", "serve", "simulate"} <= {
        arguments(command)[0] for command in lines if arguments(command)
    }
