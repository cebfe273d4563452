"""The lint of names: a folder with bad names fails, with the place and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parent.parent / "tools" / "names.py"
BAD = '''"""A module."""

MOST_LINES = 5


class Kept:
    pass


class Scanned:
    def taken(self, told):
        self.held = told
        for each in told:
            try:
                (found := each)
            except ValueError as met:
                raise found from met
        match told:
            case [*seen]:
                return seen


def _recognised(normalised_rows, most_bytes): ...
'''
GOOD = """
class ScannedFile: ...
class Feed: ...


def unrecognised(gpu_underutilised, job):
    most_telling, most = max(job.rows), least_of(job)
    kept_rows, found_any, job.cancelled = 1, 2, job.kept
    for row in job.found: ...
"""


def lint(folder: Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, TOOL, folder], capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def test_vague_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "src" / "part").mkdir(parents=True)
    (tmp_path / "src" / "part" / "bad.py").write_text(BAD)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "good.py").write_text(GOOD)
    status, lines = lint(tmp_path)
    assert status == 1
    assert [line.removeprefix("src/part/bad.py:") for line in lines] == [
        "3: variable MOST_LINES: write MAX_, with the unit at the end",
        "6: class Kept: name the thing, as a noun phrase",
        "10: class Scanned: name the thing, as a noun phrase",
        "11: function taken: name what it returns",
        "11: parameter told: name what it holds",
        "12: attribute held: name what it holds",
        "13: variable each: name what it holds",
        "15: variable found: name what it holds",
        "16: variable met: name what it holds",
        "19: variable seen: name what it holds",
        "23: function _recognised: spell it as in recognize",
        "23: parameter most_bytes: write max_, with the unit at the end",
        "23: parameter normalised_rows: spell it as in normalize",
    ]
    (tmp_path / "src" / "part" / "bad.py").unlink()
    assert lint(tmp_path) == (0, [])


def test_two_types_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(
        "Labels = dict[str, str]\nclass Sample: ...\nclass Limits: ...\nclass _Own: ...\n"
    )
    (tmp_path / "src" / "b.py").write_text("Labels = dict[str, str]\nclass Limits: ...\nclass _Own: ...\n")
    assert lint(tmp_path) == (0, [])
    (tmp_path / "src" / "c.py").write_text("Labels = tuple[str, ...]\nclass Sample: ...\n")
    assert lint(tmp_path) == (
        1,
        [
            "src/c.py:1: type Labels: give it a name of its own; src/a.py:1 has this one",
            "src/c.py:2: type Sample: give it a name of its own; src/a.py:2 has this one",
        ],
    )


def test_a_constant_that_is_set_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text('HINT = "a"\nOTHER: str = "b"\nHINT = "c"\nname = 1\nname = 2\n')
    assert lint(tmp_path) == (
        1,
        ["src/a.py:3: constant HINT: it is set above; give one of the two another name"],
    )
