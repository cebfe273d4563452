"""The imports of the command line before it runs a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from trackside.cli import COMMANDS, main

HEAVY = ("numpy", "duckdb", "rich", "trackside.verdict.engine")


def test_help_imports_no_heavy_module() -> None:
    code = f"import sys, trackside.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_logs_are_diagnosed_without_duckdb_and_http(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    code = (
        f"import sys, trackside; trackside.diagnose({str(tmp_path)!r}); "
        "print([name for name in ('duckdb', 'urllib3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_diagnose_is_a_function_after_any_import_order() -> None:
    code = (
        "import trackside.verdict.engine, trackside; from trackside import diagnose; import trackside.session; "
        "assert callable(diagnose) and diagnose is trackside.diagnose; "
        "from trackside.verdict import engine; print(engine.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "trackside.verdict.engine"


def test_the_command_list_shows_the_help_of_each_command() -> None:
    for name, (_, first) in COMMANDS.items():
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert command.get_short_help_str(1000) == click.Command(name, help=first).get_short_help_str(1000)
