"""Sizes, device and phase in out-of-memory messages of many versions and libraries."""

from __future__ import annotations

from typing import Any

import pytest

from trackside.logs.cuda_memory import parse_sizes
from trackside.logs.scan import scan_text
from trackside.model import EventRole

GIB, MIB = 1 << 30, 1 << 20

SIZES: tuple[tuple[str, dict[str, int]], ...] = (
    (
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.75 GiB total capacity; 14.50 GiB already allocated;"
        " 8.75 MiB free; 14.75 GiB reserved in total by PyTorch)",
        {
            "requested_bytes": 20 * MIB,
            "total_bytes": int(15.75 * GIB),
            "allocated_bytes": int(14.5 * GIB),
            "free_bytes": int(8.75 * MIB),
            "reserved_bytes": int(14.75 * GIB),
        },
    ),
    (
        "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 1; 10.00 GiB total capacity; 8.00 GiB already allocated;"
        " 512.00 MiB free; 256.00 MiB cached)",
        {
            "requested_bytes": int(1.5 * GIB),
            "total_bytes": 10 * GIB,
            "allocated_bytes": 8 * GIB,
            "free_bytes": 512 * MIB,
            "reserved_bytes": 256 * MIB,
        },
    ),
    (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is"
        " free. Process 123 has 10.00 GiB memory in use. Process 124 has 2.00 GiB memory in use. Including non-PyTorch"
        " memory, this process has 67.00 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch,"
        " with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 5.00 GiB is reserved by PyTorch but"
        " unallocated.",
        {
            "requested_bytes": 2 * GIB,
            "total_bytes": 80 * GIB,
            "free_bytes": GIB,
            "allocated_bytes": 60 * GIB,
            "reserved_bytes": 65 * GIB,
            "other_process_bytes": 12 * GIB,
        },
    ),
    (  # misspelled, and behind a pid namespace: the only process listed is our own
        "CUDA out of memory. Tried to allocate 32.00 GiB. GPU 0 has a total capacty of 14.75 GiB of which 5.25 GiB is"
        " free. Process 14820 has 9.50 GiB memory in use. Of the allocated memory 9.00 GiB is allocated by PyTorch, and"
        " 256.00 MiB is reserved by PyTorch but unallocated.",
        {
            "requested_bytes": 32 * GIB,
            "total_bytes": int(14.75 * GIB),
            "free_bytes": int(5.25 * GIB),
            "allocated_bytes": 9 * GIB,
            "reserved_bytes": int(9.25 * GIB),
        },
    ),
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.", {"requested_bytes": 4770354232}),
    (
        "RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
        {"requested_bytes": 2 * GIB},
    ),
    (
        "OOM when allocating tensor with shape[8,512,64] and type float on /device:GPU:0 by allocator GPU_0_bfc",
        {"requested_bytes": 8 * 512 * 64 * 4},
    ),
    (
        "Out of memory allocating 1,024 bytes (allocated so far: 2,048 bytes)",
        {"requested_bytes": 1024, "allocated_bytes": 2048},
    ),
    ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", {}),
)

PHASES = (
    ("backward", '  File "/v/site-packages/torch/_tensor.py", line 5, in backward\n    torch.autograd.backward('),
    ("forward", '  File "/v/site-packages/torch/nn/modules/linear.py", line 5, in forward\n    return F.linear('),
    ("optimizer", '  File "/v/site-packages/torch/optim/adamw.py", line 5, in _init_group\n    state["exp_avg"] = x'),
    ("load", '  File "/v/site-packages/torch/nn/modules/module.py", line 5, in convert\n    return t.to('),
)


@pytest.mark.parametrize(("text", "expected"), SIZES)
def test_sizes_are_parsed(text: str, expected: dict[str, int]) -> None:
    assert parse_sizes(text) == expected


def oom(log: str) -> Any:
    return next(event for event in scan_text(log) if event.kind == "cuda_oom")


@pytest.mark.parametrize(("phase", "frames"), PHASES)
def test_the_phase_comes_from_the_innermost_frames(phase: str, frames: str) -> None:
    head = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 9, in main\n    work()\n'
    event = oom(
        f"{head}{frames}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU "
        f"3 has a total capacity of 80.00 GiB"
    )
    assert (event.get("phase"), event.get("gpu"), event.role) == (phase, 3, EventRole.ROOT)


def test_the_device_comes_from_the_allocators_name() -> None:
    event = oom("W bfc_allocator.cc:501] Allocator (GPU_5_bfc) ran out of memory trying to allocate 11.25GiB (rounded)")
    assert (event.get("gpu"), event.get("backend")) == (5, "tensorflow")


def test_a_caught_out_of_memory_error_is_only_a_confirmation() -> None:
    event = oom("WARNING: CUDA out of memory. Tried to allocate 2.00 GiB. Skipping this batch")
    assert event.role is EventRole.CONFIRMATION


def test_a_message_that_a_terminal_broke_is_quoted_whole() -> None:
    message = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 23.69 GiB total capacity; "
        "9.10 GiB already allocated; 650.12 MiB free; 12.40 GiB reserved in total by PyTorch)"
    )
    frame = '  File "/home/user/miniconda3/envs/train/lib/python3.10/site-packages/torch/nn/modules/conv.py", line 459, in f'
    lines = ["Traceback (most recent call last):", frame, "    return self._conv_forward(input, self.weight)", message]
    log = "\n".join(line[start : start + 100] for line in lines for start in range(0, len(line), 100)) + "\n"
    assert oom(log).text == message
