"""Prefixes of lines: which a text has, what they say about a line, and what only looks like one."""

from __future__ import annotations

import pytest

from trackside.logs.prefixes import PREFIXES, peel, prefixes_of
from trackside.logs.scan import scan_text
from trackside.logs.wrapping import rejoin, width_of

PROGRAM = """loading the shards of the corpus
  0%|          | 0/40 [00:00<?, ?it/s]
epoch 1 step 10 loss 2.5

Traceback (most recent call last):
  File "train.py", line 8, in <module>
    main()
ValueError: every shard of this rank is empty
"""
EXAMPLES = {
    "container runtime": "2026-01-02T03:04:05.678901234Z stderr F ",
    "journal": "Jan 02 03:04:05 gpu07 train.sh[812]: ",
    "container log with times": "2026-01-02T03:04:05.678901234Z ",
    "pod": "[pod/train-0/main] ",
    "service": "trainer-1  | ",
    "MPI program": "[1,mpirank:0,algo-1]<stdout>:",
    "host": "node-07: ",
    "time": "Jan 02 03:04:05 ",
    "time as loggers print it": "[2026-01-02 03:04:05] ",
    "quotation": "> ",
    "indentation": "    ",
}


def with_prefix(prefix: str, text: str = PROGRAM) -> bytes:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines()).encode()


def names_of(head: bytes) -> list[str]:
    return [prefix.name for prefix in prefixes_of(head)]


def test_each_kind_has_an_example() -> None:
    assert {prefix.name for prefix in PREFIXES} == {*EXAMPLES, "line number"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_prefix_is_found(name: str) -> None:
    assert names_of(with_prefix(EXAMPLES[name])) == [name]


def test_line_numbers_are_found() -> None:
    numbered = "".join(f"{number:6}\t{line}\n" for number, line in enumerate(PROGRAM.splitlines(), 1))
    assert names_of(numbered.encode()) == ["line number"]


def test_prefixes_are_found_in_layers() -> None:
    text = with_prefix("2026-01-02T03:04:05Z ", with_prefix("node-07: ", with_prefix("> ").decode()).decode())
    layers = prefixes_of(text)
    assert [prefix.name for prefix in layers] == ["container log with times", "host", "quotation"]
    peeled = peel(text.splitlines()[0], layers)
    assert (peeled.text, peeled.writer) == (b"loading the shards of the corpus", b"node-07")


@pytest.mark.parametrize(
    "text",
    [
        "epoch1: loss 2.5\nepoch1: loss 2.4\nepoch1: loss 2.3\nepoch1: loss 2.2\n",
        "1\t2.50\t0.1\n2\t2.40\t0.2\n3\t2.30\t0.3\n4\t2.20\t0.4\n",
        "1: loss 2.5\n2: loss 2.4\n3: loss 2.3\n4: loss 2.2\n",
        "INFO     | step 1 loss 2.5\nINFO     | step 2 loss 2.4\nINFO     | step 3 loss 2.3\n",
        "2026-01-02 03:04:05 INFO step 1\n2026-01-02 03:04:06 INFO step 2\n2026-01-02 03:04:07 INFO\n",
        "[2026-01-02 03:04:05] step 1 loss 2.5\n[2026-01-02 03:04:06] step 2\n[2026-01-02 03:04:07] step 3\n",
        "gpu0: 81 C\ngpu0: 82 C\ngpu0: 81 C\ngpu0: 80 C\n",
        "ERROR: one\nERROR: two\nERROR: three\n",
        "train: loss 2.5\ntrain: loss 2.4\nvalid: loss 2.6\ntrain: loss 2.3\n",
        "epoch 1\n" + "      1/100     1.04G    1.66\n    all       133     0.5\n" * 30,
        PROGRAM,
    ],
)
def test_a_programs_own_output_is_no_prefix(text: str) -> None:
    assert names_of(text.encode()) == []


def test_the_outermost_time_and_the_rank_belong_to_the_line() -> None:
    text = with_prefix("2026-01-02T03:04:05Z ", with_prefix("[1,mpirank:3,algo-2]<stderr>:").decode())
    exception = next(event for event in scan_text(text) if event.kind == "exception")
    assert (exception.rank, exception.time) == (3, 1767323045.0)
    assert exception.text == "ValueError: every shard of this rank is empty"


def test_writers_that_prefixes_tell_apart_do_not_end_each_others_tracebacks() -> None:
    lines = [f"{host}: {line}\n" for line in PROGRAM.splitlines() for host in ("node-1", "node-2")]
    exceptions = [event for event in scan_text("".join(lines)) if event.kind == "exception"]
    assert [event.get("user_frame") for event in exceptions] == ["train.py:8 in <module>"] * 2


LONG = "worker {} waits for shard {} of the corpus, which has not been written by the preprocessing yet; it will look again\n"


def test_a_broken_text_is_joined_and_keeps_numbers_and_offsets() -> None:
    plain = "".join(LONG.format(number, number * 7) for number in range(40)) + PROGRAM
    rows = [line[at : at + 80] for line in plain.splitlines() for at in range(0, max(1, len(line)), 80)]
    broken = "\n".join(rows).encode() + b"\n"
    assert width_of(broken) == 80
    assert width_of(plain.encode()) is None
    for size in (7, 100, 1 << 20):
        chunks = (broken[at : at + size] for at in range(0, len(broken), size))
        joined = b"".join(rejoin(chunks, 80))
        assert [line for line in joined.decode().splitlines() if line] == [line for line in plain.splitlines() if line]
        assert len(joined) == len(broken)
        assert joined.count(b"\n") == broken.count(b"\n")
        assert joined.index(b"ValueError") == broken.index(b"ValueError")


def test_text_that_is_broken_between_words_is_not_joined() -> None:
    words = " ".join(LONG.format(number, number * 7).strip() for number in range(40)).split()
    rows = [""]
    for word in words:
        if len(rows[-1]) + len(word) < 80:
            rows[-1] = f"{rows[-1]} {word}".strip()
        else:
            rows.append(word)
    assert width_of("\n".join(rows).encode() + b"\n") is None
