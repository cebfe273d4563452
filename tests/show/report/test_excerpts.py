from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from trackside.model import Position
from trackside.read.excerpts import CONTEXT_LINES, MAX_LINE_CHARS, WINDOW_BYTES, Excerpt, excerpts

LINES = [f"line {number} of the log" for number in range(1, 2001)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()


def position(path: str, line: int, text: bytes = TEXT) -> Position:
    offset = sum(len(earlier) + 1 for earlier in text.split(b"\n")[: line - 1])
    return Position(path, line, offset)


def excerpts_by_line(folder: Path, *places: Position) -> dict[int, Excerpt]:
    return {excerpt.line: excerpt for excerpt in excerpts([folder], places).values()}


@pytest.mark.parametrize("name", ["run.log", "run.log.gz", "run.tar", "run.tar.gz"])
def test_an_excerpt_has_the_lines_around_a_position_in_any_archive(tmp_path: Path, name: str) -> None:
    path = name
    if "tar" in name:
        with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as archive:
            member = tarfile.TarInfo("logs/rank0.out")
            member.size = len(TEXT)
            archive.addfile(member, io.BytesIO(TEXT))
        path = f"{name}!logs/rank0.out"
    else:
        (tmp_path / name).write_bytes(gzip.compress(TEXT) if name.endswith("gz") else TEXT)
    by_line = excerpts_by_line(tmp_path, *(position(path, line) for line in (1, 2, 700, 701, 1999, 2000)))
    assert sorted(by_line) == [1, 2, 700, 701, 1999, 2000]
    for line, excerpt in by_line.items():
        first, last = max(1, line - CONTEXT_LINES), min(2000, line + CONTEXT_LINES)
        assert excerpt == Excerpt(first, tuple(LINES[first - 1 : last]), line)


def test_an_overwritten_line_is_excerpted_as_the_terminal_shows_it(tmp_path: Path) -> None:
    bar = b"".join(b"\r%3d%% of it" % share for share in range(100))
    text = b"begin\n" + bar + b"\rRuntimeError: here\r after\nend\n"
    (tmp_path / "run.log").write_bytes(text)
    at = Position("run.log", 2, text.index(b"RuntimeError"))
    assert excerpts_by_line(tmp_path, at)[2].lines == ("begin", "RuntimeError: here", "end")


def test_excerpts_of_long_lines_are_bounded(tmp_path: Path) -> None:
    text = b"x" * 5 * WINDOW_BYTES + b"\nfault\0\0\0" + b"y" * 5 * WINDOW_BYTES + b"\nnext\n"
    (tmp_path / "run.log").write_bytes(text)
    excerpt = excerpts_by_line(tmp_path, position("run.log", 2, text))[2]
    assert excerpt.lines[excerpt.line - excerpt.first] == "fault"
    assert all(len(line) <= MAX_LINE_CHARS + 1 for line in excerpt.lines)


def test_invalid_positions_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes(TEXT)
    ordinal, beyond, elsewhere = Position("run.log", 7), Position("run.log", 9, 10**9), position("other.log", 5)
    assert not excerpts([tmp_path], [ordinal, beyond, elsewhere])
    assert not excerpts([tmp_path / "gone"], [position("run.log", 5)])


def test_truncated_files_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes(TEXT[:100])
    (tmp_path / "broken.log.gz").write_bytes(gzip.compress(TEXT)[:200])
    assert not excerpts([tmp_path], [position("run.log", 1000), position("broken.log.gz", 1999)])
