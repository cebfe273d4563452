"""Coverage-guided fuzzing of the walk, all readers and the scan. By hand, or nightly:

    pip install atheris
    python tests/fuzz/atheris_target.py -max_total_time=600 -max_len=8192 [CORPUS_FOLDER]

The first byte of an input selects what is fuzzed: the walk (archives, encodings, detection), the scan of a plane, or
one reader; the other bytes are its input. A crash file replays with its name as the only argument.
"""

from __future__ import annotations

import io
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["trackside"]):
    from trackside.logs.line import FileContext
    from trackside.logs.pattern import parsers
    from trackside.logs.scan import scan
    from trackside.read.detect import formats, read_source
    from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource, InputTooLarge
    from trackside.read.walk import walk

    READERS = formats()  # within the block, since these import the parsers and readers
    parsers()

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))
DOCUMENTED_ERRORS = (ValueError, OSError, EOFError, InputTooLarge, RecursionError, MemoryError)


def read_input(data: bytes) -> None:
    """Read one input; an exception that readers do not document is a crash."""
    if not data:
        return
    selector, data = data[0], data[1:]
    if selector < 32:
        path = FOLDER / "a"
        path.write_bytes(data)
        for item in walk([path]):
            row = read_source(item, CollectingSink()) if isinstance(item, InputSource) else item
            assert "defect" not in row.note, row.note
    elif selector < 96:
        sink = CollectingSink()
        result = scan(io.BytesIO(data), sink.events.append, FileContext("a.log", "kernel" if selector < 48 else "log"))
        assert not result.defects, result.defects
    else:
        reader = READERS[selector % len(READERS)]
        source = InputSource("rank3.log", data[:HEAD_BYTES], io.BufferedReader(io.BytesIO(data)), len(data))  # type: ignore[arg-type]
        if reader.sniff(source) is not None:
            with suppress(*DOCUMENTED_ERRORS):
                reader.read(source, CollectingSink())


if __name__ == "__main__":
    atheris.Setup(sys.argv, read_input)
    atheris.Fuzz()
