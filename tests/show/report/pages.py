"""Runs and pages for the page tests."""

from __future__ import annotations

import os
from pathlib import Path

from click.testing import CliRunner

from tests.families.grids import named
from trackside.cli import main
from trackside.read.excerpts import excerpts
from trackside.session import Session
from trackside.session.paths import load
from trackside.show.document import VerdictDoc, document
from trackside.show.report.page import cited_positions, page
from trackside.verdict import engine

RLO, ESC = "\u202e", "\x1b"
HOSTILE = (
    "Traceback (most recent call last):\n"
    '  File "/home/user/train.py", line 3, in <module>\n'
    f"    main()  # </pre></script><script>hacked=1</script>{ESC}[31mred{ESC}[0m\n"
    f"ModuleNotFoundError: No module named '<img src=x onerror=hacked=1>{RLO}nrettap\x07 &amp; {{{{7*7}}}}'\n"
    "<script>hacked=1</script><!-- \u2066turned\u2069 \x9b31m\n"
)


def hostile_log(folder: Path) -> Path:
    """A log whose lines hold markup and control characters."""
    (folder / "slurm-41.out").write_text(HOSTILE)
    return folder / "slurm-41.out"


def hostile_labels_page() -> bytes:
    """The page of a run with every chart whose labels, names and units hold markup, quotes and expressions."""
    text = f"<img src=x onerror=hacked=1>' + (window.hacked = 1) + '\\\";\n{ESC}[31m{RLO}{{datum.t}}</script>"
    run, store = named(text, id=text, name=text, cluster=text, framework=text)
    verdict = engine.verdict_of(engine.facts_of(store, run))
    return page(document(verdict, [text]), verdict, store, {})


def verdict_page(*paths: Path) -> tuple[VerdictDoc, bytes]:
    """The verdict on files, and its page."""
    case = Session.of(load(paths))
    doc = document(case.verdict(), [os.fspath(path) for path in paths])
    return doc, page(doc, case.verdict(), case.store, excerpts(paths, cited_positions(doc).values()))


def diagnosed(*arguments: object) -> tuple[int, str]:
    """``trackside diagnose`` with arguments: its exit status and standard error."""
    result = CliRunner().invoke(main, ["diagnose", *(str(argument) for argument in arguments)])
    return result.exit_code, result.stderr
