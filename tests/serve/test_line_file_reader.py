"""The order in which files of received lines are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trackside.serve import line_file_reader
from trackside.serve.line_file_reader import StoreLineFileReader, _FileState


@pytest.mark.parametrize(("read_all", "order"), [(False, ["job-2", "job-1"]), (True, ["job-1", "job-2"])])
def test_the_folder_that_waited_longest_is_read_first_but_before_a_verdict_the_order_is_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_all: bool, order: list[str]
) -> None:
    folders_read: list[str] = []

    def ingest_below(writer: Any, root: str, names: list[str], base: str, folder: str) -> None:
        folders_read.append(folder)

    monkeypatch.setattr(line_file_reader, "ingest_below", ingest_below)
    reader = StoreLineFileReader(tmp_path)
    reader._states = {}
    for name, read_at in (("job-1/a.log", 200.0), ("job-2/b.log", 100.0)):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text("a line\n")
        os.utime(path, (300.0, 300.0))
        reader._states[name] = _FileState(1, read_at)
    writer: Any = None
    assert reader.read(writer, read_all, 10.0) == []
    assert folders_read == order
