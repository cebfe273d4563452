"""``trackside config init``: a file of comments, each of which is a valid setting when it is taken out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from trackside.cli import main
from trackside.site.config import SECTIONS, load

COMMENTED = re.compile(r"^# (\[.*|\w+ = .*)$", re.M)


def written(path: Path) -> str:
    result = CliRunner().invoke(main, ["config", "init", str(path)])
    assert result.exit_code == 0, result.output
    return path.read_text()


def test_a_new_file_sets_nothing(tmp_path: Path) -> None:
    written(tmp_path / "trackside.toml")
    site = load(tmp_path / "trackside.toml", environ={})
    assert (site.metrics, site.logs, site.journal, site.store) == (None, (), None, "")


def test_every_section_is_there_and_every_line_is_valid(tmp_path: Path) -> None:
    text = written(tmp_path / "trackside.toml")
    without_comments = "\n".join(
        line for line in COMMENTED.findall(text) if not line.startswith(("user =", "password_file ="))
    )
    sections = set(re.findall(r"^\[+([\w.]+)\]+", without_comments, re.M))
    assert sections == {section.name for section in SECTIONS} - {"serve.limits"}
    for name in re.findall(r'"(/etc/trackside/[\w.-]+)"', without_comments):  # files that a setting reads
        (tmp_path / Path(name).name).write_text("0123456789abcdef\n")
        (tmp_path / Path(name).name).chmod(0o600)
    changed = without_comments.replace("/etc/trackside/", f"{tmp_path}/")
    (tmp_path / "site.toml").write_text(changed)
    site = load(tmp_path / "site.toml", environ={})
    assert site.metrics is not None
    assert site.journal is not None
    assert [log.kind for log in site.logs] == ["loki"]
    assert site.price.price_per_gpu_hour == 2.5


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "trackside.toml").write_text("# mine\n")
    result = CliRunner().invoke(main, ["config", "init", str(tmp_path / "trackside.toml")])
    assert (result.exit_code, "exists: give another name" in result.output) == (2, True)
    assert (tmp_path / "trackside.toml").read_text() == "# mine\n"


def test_without_a_command_the_settings_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "trackside.toml")
    shown = CliRunner().invoke(main, ["config"])
    assert shown.exit_code == 0
    assert "[serve]" in shown.output
