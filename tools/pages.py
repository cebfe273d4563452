"""Pages made from code: docs/families/*.md, docs/facts/, docs/metrics.md, docs/http-api.md, tables of the README and docs/agent.md.

    python tools/pages.py [--check]

``--check`` writes nothing and exits 1, naming each page that is out of date, and each broken link.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rich.console import Console

from tools import dashboard
from tools.http_page import http_page
from trackside import diagnose
from trackside.agent.source import AgentSource, sources
from trackside.catalog.dialect import dialects
from trackside.catalog.metrics import METRICS
from trackside.catalog.throttle import REASONS
from trackside.evidence import Evidence
from trackside.facts.fact import Derivation, facts
from trackside.families import families
from trackside.family import HEADINGS, Family
from trackside.model import Plane, Run
from trackside.read.detect import formats
from trackside.show import brief
from trackside.show.document import document
from trackside.show.schema import attribute_docs
from trackside.sim import load_scenario, scenario_titles, simulate

FACTS = ROOT / "docs" / "facts"
RELATED: Mapping[str, Callable[[Family], tuple[str, ...]]] = {
    "Faults that it can cause": lambda family: family.explains,
    "Similar families, which are checked too": lambda family: family.rivals,
}
"""Heading of a family's page -> the codes of the families below it."""
DEMO, DEMO_FOLDER = "slow-interconnect", ".cache/demo"
COMPARED_RUNS = {"good": ("healthy", "cluster.nodes=1"), "bad": ("thermal-throttle",)}
"""Folder -> scenario and changed keys, of the example of docs/compare.md."""
MIB = 2**20


def family_page(family: Family) -> str:
    """A family's page in Markdown."""
    sections = family.sections()
    lines = [f"# {family.code} {family.title}", "", f"`{family.id}` - `trackside explain {family.id}`", ""]
    for heading in HEADINGS:
        lines += [f"## {heading}", "", sections.get(heading, "").strip(), ""]
        if heading == "What it looks like":
            lines += example(family)
    lines += limits_table(family.limits)
    lines += ["## Facts that it uses", ""]
    lines += [
        f"- {fact_link(parameter.kind, '../facts/')}{' (optional)' if parameter.optional else ''}"
        for parameter in family.parameters.values()
        if parameter.kind in family.facts
    ]
    for title, codes in RELATED.items():
        if related := [other for other in families() if other.code in codes(family)]:
            lines += ["", f"## {title}", ""]
            lines += [f"- [{other.code} {other.title}]({other.id}.md)" for other in related]
    lines += ["", "Generated from the family's file by `make pages`.", ""]
    return "\n".join(lines)


def limits_table(limits: object) -> list[str]:
    """A set of limits with their values and where each figure comes from."""
    if limits is None:
        return []
    docs = attribute_docs(type(limits))
    lines = ["## Limits", "", "| limit | value | why |", "|---|---|---|"]
    lines += [
        f"| `{limit.name}` | {limit_value(limit.name, getattr(limits, limit.name))} |"
        f" {' '.join(docs.get(limit.name, '').split())} |"
        for limit in fields(limits)  # type: ignore[arg-type]
    ]
    return [*lines, ""]


LIMIT_UNITS = {"_s": " s", "_c": " °C"}
"""End of a limit's name -> its unit."""


def limit_value(name: str, value: object) -> str:
    """A limit as a reader writes it: ``1 GiB``, ``20,000``, ``600 s``, ``20 MB/s``, ``80 °C``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes") and value >= MIB and value % MIB == 0:
        return f"{value / 2**30:g} GiB" if value >= 2**30 else f"{value / MIB:g} MiB"
    if name.endswith("_s") and 0 < value < 0.01:
        return f"{value * 1e6:g} µs"
    if name.endswith("_bytes_per_s"):
        return f"{value / 1e6:g} MB/s"
    number = f"{value:,.10f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"
    return number + next((unit for suffix, unit in LIMIT_UNITS.items() if name.endswith(suffix)), "")


def fact_path(kind: type) -> str:
    """Path of a fact's page under docs/facts."""
    return "/".join(kind.__module__.split(".")[2:]) + ".md"


def fact_link(kind: type, folder: str) -> str:
    """A link to a fact's page."""
    return f"[{kind.__name__}]({folder}{fact_path(kind)})"


def fact_pages() -> dict[Path, str]:
    """A page per module of facts, and their list."""
    modules: dict[str, list[Derivation]] = {}
    for derivation in facts():
        modules.setdefault(derivation.kind.__module__, []).append(derivation)
    contents = {FACTS / fact_path(derivations[0].kind): fact_page(derivations) for derivations in modules.values()}
    lines = [
        "# Facts",
        "",
        "A fact is a typed answer that follows from the evidence of a run. It is derived once, and all families use it.",
        "",
    ]
    topic = ""
    for derivations in modules.values():
        for fact in derivations:
            if topic != (topic := fact.kind.__module__.split(".")[2]):
                lines += ["", f"## {topic}", "", "| fact | what it is |", "|---|---|"]
            what = plain_markup((inspect.getdoc(fact.kind) or "").split("\n\n")[0].replace("\n", " "))
            lines.append(f"| {fact_link(fact.kind, '')} | {what.replace('|', '')} |")
    return contents | {FACTS / "README.md": "\n".join([*lines, "", "Generated by `make pages`.", ""])}


def plain_markup(docstring: str) -> str:
    """A docstring in Markdown: roles such as ``:data:`` and double backticks become code."""
    return re.sub(r"(?::\w+:)?`+~?([^`]+)`+", r"`\1`", docstring)


def fact_page(derivations: list[Derivation]) -> str:
    """The page of one module: what its facts are, what they need, their limits, and what uses them."""
    module = inspect.getmodule(derivations[0].kind)
    depth = "../" * fact_path(derivations[0].kind).count("/")
    title = ", ".join(fact.kind.__name__ for fact in derivations)
    lines = [f"# {title}", "", plain_markup(inspect.getdoc(module) or ""), ""]
    for fact in derivations:
        lines += [f"## What {fact.kind.__name__} needs", "", plain_markup(inspect.getdoc(fact.derive) or ""), ""]
        uses = [
            f"- {fact_link(parameter.kind, depth)}{' (optional)' if parameter.optional else ''}"
            for parameter in fact.parameters.values()
            if parameter.kind not in (Evidence, Run)
        ]
        lines += ["Facts that it uses:", "", *uses] if uses else []
        if fact.queries:
            lines += ["", "Its queries:", "", "| name | query |", "|---|---|"]
            lines += [f"| {name} | `{query}` |" for name, query in fact.queries.items()]
        lines += ["", *limits_table(fact.limits)]
        users = [
            fact_link(user.kind, depth) for user in facts() if fact.kind in [p.kind for p in user.parameters.values()]
        ]
        users += [f"[{f.code} {f.id}]({depth}../families/{f.id}.md)" for f in families() if fact.kind in f.facts]
        lines += ["Used by " + (", ".join(users) or "the verdict itself") + ".", ""]
    return "\n".join([*lines, "Generated from the fact's file by `make pages`.", ""])


def example(family: Family) -> list[str]:
    """A typical case, drawn by tools/pictures.py, and how to reproduce it."""
    if family.example is None:
        return []
    scenario, _ = family.example
    title = dict(scenario_titles())[scenario].rstrip(".")
    return [
        f"![{title}]({family.id}.svg)",
        "",
        f"*A typical case, simulated: {title[:1].lower() + title[1:]}.*",
        "",
        f"    trackside simulate {scenario} -o example",
        "    trackside diagnose example/run --html example.html",
        "",
    ]


def index_page() -> str:
    """The list of families."""
    lines = ["# Families", "", "| code | id | what |", "|---|---|---|"]
    lines += [f"| {f.code} | [`{f.id}`]({f.id}.md) | {f.title} |" for f in families()]
    return "\n".join([*lines, "", "Generated by `make pages`.", ""])


MAX_NAMES = 3
"""Foreign names of one metric shown for each source."""


def metrics_page() -> str:
    """The catalog of metrics, the names that sources have for them, and the reasons that hold clocks down."""
    lines = [
        "# Metrics",
        "",
        "The metrics that Trackside knows, and the names under which [common exporters](#names-in-exporters) serve them. Whatever the",
        "source, queries, citations and `/metrics` of [the agent](agent.md) use the name and unit of the first two columns.",
        "",
    ]
    lines += ["| metric | unit | kind | labels | what | how to enable it |", "|---|---|---|---|---|---|"]
    for name, metric in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(row(f"`{name}`", metric.unit, metric.kind, labels, metric.meaning, metric.collect))
    lines += [
        "",
        "All metrics can have the labels `node` and `job`; those of GPUs and training also `gpu`, `mig`, `rank`, `pid`,",
    ]
    lines += ["`gpu_uuid`, `gpu_model` and `pci`.", "", "## Reasons for low clocks", ""]
    lines += ["| reason | bit of `gpu_throttle_reasons` | severity | what |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {hex(reason.bit) if reason.bit else ''} | {reason.severity} | {reason.title} |"
        for name, reason in REASONS.items()
    ]
    lines += [
        "",
        "Verdicts call reasons that are *hard* or *thermal* severe.",
        "",
        "## Names in exporters",
        "",
        "| metric | exporter or tool | its names |",
        "|---|---|---|",
    ]
    exporters = foreign_names()
    lines += [row(f"`{name}`", title, names) for name in METRICS for title, names in exporters.get(name, ())]
    return "\n".join([*lines, "", "Generated from `trackside.catalog` by `make pages`.", ""])


def row(*cells: str) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def foreign_names() -> dict[str, list[tuple[str, str]]]:
    """Metric -> (exporter, its names for the metric, at most MAX_NAMES of them)."""
    metrics_by_name: dict[str, list[tuple[str, str]]] = {}
    for dialect in dialects():
        names: dict[str, list[str]] = {}
        for name, foreign in dialect.names.items():
            for metric in dict.fromkeys((foreign.metric, *(ours for _, ours in foreign.cases))):
                names.setdefault(metric, []).append(name)
        for metric, all_names in names.items():
            first_names = ", ".join(f"`{name}`" for name in all_names[:MAX_NAMES])
            more = f" and {len(all_names) - MAX_NAMES} more" if len(all_names) > MAX_NAMES else ""
            if all_names != [metric]:
                metrics_by_name.setdefault(metric, []).append((dialect.title, first_names + more))
    return metrics_by_name


def tables() -> dict[str, str]:
    """The generated blocks of pages by name."""
    family_rows = [f"| {f.code} | [{f.title}](docs/families/{f.id}.md) |" for f in families()]
    planes = get_args(Plane)
    inputs = sorted(formats(), key=lambda format_: (planes.index(format_.plane), format_.title.lower()))
    format_rows = [f"| {f.plane} | {f.title} | `{f.id}` |" for f in inputs]
    return {
        "sources": "\n".join(
            ["| source | what | every | needs |", "|---|---|---|---|", *map(source_row, sources().values())]
        ),
        "demo": "```\n" + demo_output() + "```",
        "comparison": "```\n" + comparison_output() + "```",
        "families": "\n".join(["| code | family |", "|---|---|", *family_rows]),
        "formats": "\n".join(["| kind of data | input | format id |", "|---|---|---|", *format_rows]),
    }


def source_row(source: AgentSource) -> str:
    """The row of a source of the agent."""
    every = f"{source.interval_s:g} s" + ("" if source.on else ", off by default")
    needs = source.needs or "nothing"
    return f"| `{source.id}` | {source.title} | {every} | {needs} |"


def demo_output() -> str:
    """What `make demo` prints."""
    out = io.StringIO()
    console = Console(file=out, width=110, highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        command = ["simulate", DEMO, "-o", DEMO_FOLDER]
        arguments = [sys.executable, "-m", "trackside", *command]
        output = subprocess.run(arguments, cwd=folder, check=True, capture_output=True, text=True).stdout
        contents = f"{folder}/{DEMO_FOLDER}/run"
        console.print(f"$ trackside {' '.join(command)}\n{output}\n$ python tools/dashboard.py {DEMO_FOLDER}/run")
        dashboard.render(contents, console)
        console.print(f"\n$ trackside diagnose {DEMO_FOLDER}/run\n")
        brief.render(document(diagnose(contents)), console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def comparison_output() -> str:
    """What ``trackside compare`` prints about the example, up to its tables of values."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (scenario, *changes) in COMPARED_RUNS.items():
            simulate(load_scenario(scenario, tuple(changes)), Path(folder) / scenario)
            (Path(folder) / scenario / "run").rename(Path(folder) / name)
        command = ["compare", "good/", "bad/"]
        environment = {**os.environ, "COLUMNS": "110"}
        output = subprocess.run(
            [sys.executable, "-m", "trackside", *command], cwd=folder, env=environment, check=True,
            capture_output=True, text=True,
        ).stdout  # fmt: skip
    answer, _, _ = output.partition("\nOUTCOME\n")
    return f"$ trackside {' '.join(command)}\n\n{answer}...\n"


def _between(table: str, match: re.Match[str]) -> str:
    return match[1] + table + match[2]


def fill_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """A page with its generated blocks renewed."""
    for name, table in blocks.items():
        block = rf"(<!-- {name}: generated by make pages -->\n).*?(\n<!-- /{name} -->)"
        text = re.sub(block, partial(_between, table), text, flags=re.DOTALL)
    return text


def pages() -> dict[Path, str]:
    """Every generated page: path -> content."""
    contents = {ROOT / "docs" / "families" / f"{family.id}.md": family_page(family) for family in families()}
    contents[ROOT / "docs" / "families" / "README.md"] = index_page()
    contents |= fact_pages()
    contents[ROOT / "docs" / "metrics.md"] = metrics_page()
    contents[ROOT / "docs" / "http-api.md"] = http_page()
    blocks = tables()
    for page in (ROOT / "README.md", ROOT / "docs" / "agent.md", ROOT / "docs" / "compare.md"):
        contents[page] = fill_blocks(page.read_text("utf-8"), blocks)
    return contents


def main() -> int:
    """Write, or check."""
    check = "--check" in sys.argv[1:]
    stale = []
    contents = pages()
    for path, content in contents.items():
        if path.exists() and path.read_text("utf-8") == content:
            continue
        stale.append(path)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
    orphans = {*(ROOT / "docs" / "families").glob("*.md"), *FACTS.rglob("*.md")} - set(contents)
    for path in [*stale, *orphans] if check else []:
        print(f"{path.relative_to(ROOT)} is out of date: run make pages")
    if not check:
        for path in orphans:
            path.unlink()
    dead_links = broken_links()
    for link in dead_links:
        print(link)
    return 1 if check and (stale or orphans or dead_links) else 0


def broken_links() -> list[str]:
    """``page: link`` for links of our own pages to files that are not there."""
    return [
        f"{page.relative_to(ROOT)}: {link} does not exist"
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("lab/*.md")]
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
        if not re.match(r"\w+:", link) and not (page.parent / link).exists()
    ]


if __name__ == "__main__":
    sys.exit(main())
