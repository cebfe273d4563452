"""Which exceptions can be the cause of the end: those after a request to stop cannot."""

from __future__ import annotations

import pytest

from tests.families.rows import exception, store
from trackside.evidence import Frame
from trackside.facts.logs.exceptions import before_stop, error_in_brief, message_of
from trackside.model import Event, EventRole, Position
from trackside.query import events


def event(kind: str, line: int, path: str = "job.log", **fields: str | int) -> Event:
    return Event(kind, Position(path, line), "log", role=EventRole.ROOT, fields=dict(fields))


STOP = event("signal_received", 100, signal=15)
NEAR = event("exception", 120, type="RuntimeError", frames="a.py:1 in f;b.py:2 in g")


@pytest.mark.parametrize(
    ("rows", "stops", "points", "left"),
    [
        pytest.param([NEAR], [STOP], [], [], id="right after"),
        pytest.param([NEAR], [], [], [120], id="no stop"),
        pytest.param([event("exception", 90)], [STOP], [], [90], id="before"),
        pytest.param([event("exception", 400)], [STOP], [], [400], id="long after"),
        pytest.param([event("exception", 400, frames=";".join("f" * 140))], [STOP], [], [], id="a long traceback"),
        pytest.param([event("exception", at) for at in (120, 145, 170)], [STOP], [], [], id="one after the other"),
        pytest.param([event("exception", 120, "other.log")], [STOP], [], [120], id="another file"),
        pytest.param([NEAR], [STOP], [event("progress", 110)], [120], id="training went on"),
    ],
)
def test_what_is_raised_after_a_request_to_stop_is_teardown(
    rows: list[Event], stops: list[Event], points: list[Event], left: list[int]
) -> None:
    assert [row.at.line for row in before_stop(rows, stops, points)] == left


@pytest.mark.parametrize(
    ("message", "n_lines"),
    [
        ("Input type and bias type should be the same\nPython: 3.13.5\nloading data", 1),
        ("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported", 1),
        ("Error(s) in loading state_dict for Net:\n\tsize mismatch for w\n\tsize mismatch for b\nEpoch 1", 3),
        ("Couldn't instantiate the tokenizer from one of:\n(1) a file,\n(2) a slow one.", 3),
        ("Couldn't cast\ntext: string", 2),
        (
            "NCCL error, invalid usage\nncclInvalidUsage: This usually reflects invalid usage\nLast error:\nDuplicate GPU",
            4,
        ),
    ],
)
def test_a_quoted_message_ends_where_other_output_may_begin(message: str, n_lines: int) -> None:
    frame = store(exception("RuntimeError", message)).ask(events("exception"))
    assert isinstance(frame, Frame)
    lines = str(message_of(frame, frame.events[0]).value).splitlines()
    assert lines == message.splitlines()[:n_lines]


def test_a_message_that_a_console_wrapped_is_quoted_whole() -> None:
    message = "Bad\nrequest for device 4.\nThis host offers two\ndevices; name one of\nthem.\n\ntorch.cuda.device_cou\nnt(): 2"
    frame = store(exception("ValueError", message)).ask(events("exception"))
    assert isinstance(frame, Frame)
    row = frame.events[0]
    whole = "Bad request for device 4. This host offers two devices; name one of them."
    assert message_of(frame, row).value == whole
    assert error_in_brief(frame, row).value == "ValueError: Bad request for device 4"


def test_a_headline_names_no_half_of_an_imported_file() -> None:
    file = "/w/venv/lib/python3.12/site-packages/torch/_functorch/_aot_autograd/utils.py"
    names = "cannot import name 'get_cuda_generator_meta_val' from 'torch._functorch._aot_autograd.utils'"
    frame = store(exception("ImportError", f"{names} ({file})")).ask(events("exception"))
    assert isinstance(frame, Frame)
    assert error_in_brief(frame, frame.events[0]).value == f"ImportError: {names}"


@pytest.mark.parametrize(
    ("message", "brief"),
    [
        (
            "(PreconditionNotMet) The third-party dynamic library (libnccl.so) that Paddle depends on is not configured "
            "correctly. (error code is libnccl.so: cannot open shared object file: No such file or directory)",
            "libnccl.so: cannot open shared object file",
        ),
        (
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
            "CUDABFloat16Type instead (while checking arguments for embedding)",
            "Expected tensor for argument #1 'indices' to have one of the \N{HORIZONTAL ELLIPSIS} Int; but got "
            "CUDABFloat16Type instead",
        ),
        (
            "the number of visible devices(4) is less than the number of spawn processes(7), please ensure that the "
            "correct `nprocs` argument is passed",
            "the number of visible devices(4) is less than the number of spawn processes(7)",
        ),
        (
            "Expected a string path to an existing configuration file, or a dictionary with its keys, or a base64 text. "
            "Received: stage9.json",
            "Expected a string path to an existing configuration file, or a \N{HORIZONTAL ELLIPSIS} or a base64 text. "
            "Received: stage9.json",
        ),
        (
            "Could not build the reader from one of: \n(1) a serialized file, \n(2) another reader to convert or \n(3) a "
            "vocabulary.",
            "Could not build the reader from one of \N{HORIZONTAL ELLIPSIS}",
        ),
    ],
)
def test_a_headline_has_the_reason_of_a_long_error(message: str, brief: str) -> None:
    frame = store(exception("RuntimeError", message)).ask(events("exception"))
    assert isinstance(frame, Frame)
    assert error_in_brief(frame, frame.events[0]).value == f"RuntimeError: {brief}"
