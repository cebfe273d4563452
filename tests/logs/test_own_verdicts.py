"""Trackside's own verdicts in a log, and saved ones among the inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.log_transformations import OTHER_VERDICT, SHORT_VERDICT
from trackside import diagnose, to_json
from trackside.cli import main
from trackside.errors import NothingReadable
from trackside.logs.own_verdicts import without_verdicts

LOG = (
    "Using device: cuda\nepoch 1 loss 2.3\nepoch 2 loss 1.9\nepoch 3 loss 1.7\nTraceback (most recent call last):\n"
    "  File \"train.py\", line 3, in <module>\n    main()\nModuleNotFoundError: No module named 'flash_attn'\n"
)


def test_only_the_verdicts_bytes_become_blanks() -> None:
    text = f"{LOG}{OTHER_VERDICT}step 4\n{SHORT_VERDICT}step 5\n".encode()
    blanked = without_verdicts(text)
    assert len(blanked) == len(text)
    assert blanked.count(b"\n") == text.count(b"\n")
    assert blanked.split() == f"{LOG} step 4 step 5".encode().split()


@pytest.mark.parametrize(
    "text",
    [
        "certainty: high\nowner: ann\n",
        "owner: the job\ncertainty: established\n",
        'config = {"schema": "trackside.verdict"}\n',
        "No module. Owner: ann. certainty: x\n",
    ],
)
def test_other_text_is_kept(text: str) -> None:
    assert without_verdicts(text.encode()) == text.encode()


@pytest.mark.parametrize("cut", [400, 700])
def test_a_cut_document_hides_only_its_first_line(cut: int, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    document = to_json(diagnose(tmp_path / "train.log"))[:cut]
    assert without_verdicts(f"{document}\n{LOG}".encode()).decode().endswith(LOG)


@pytest.mark.parametrize("form", ["", "--verbose", "--short", "--markdown", "--json", "--html"])
def test_no_form_of_a_verdict_is_evidence(form: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").write_text(LOG)
    saved = tmp_path / "run" / "verdict"
    arguments = ["diagnose", str(tmp_path / "run" / "train.log"), *([form] if form else [])]
    result = CliRunner().invoke(main, [*arguments, *([str(saved)] if form == "--html" else [])])
    assert result.exit_code == 0
    if form != "--html":
        saved.write_text(result.stdout)
    with pytest.raises(NothingReadable, match="a verdict of Trackside, which is no evidence"):
        diagnose(saved)
    assert diagnose(tmp_path / "run").primary.family == "A1"
    if form in ("", "--verbose", "--short", "--json"):
        job = tmp_path / "slurm-7.out"
        job.write_text(f"loading data\n{result.stdout}")
        assert diagnose(job).primary.family == "U0"
