"""Analysis of a thread's stack: which frame is the job's own code, and what the thread waits in.

Names and files are as in :command:`py-spy`: functions are qualified from Python 3.11 on (``Thread.run``); files are
absolute or relative to the import folder (``torch/distributed/distributed_c10d.py``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

_INSTALLED = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python3(?:\.\d+)?|python3\d*\.zip)(?:/|\Z)")
_NAMES = """
torch torchvision torchaudio torchtext torchdata accelerate transformers datasets diffusers peft trl tokenizers
lightning pytorch_lightning lightning_fabric deepspeed megatron nemo horovod ray fairscale composer colossalai apex
xformers flash_attn triton numba numpy scipy pandas pyarrow sklearn tensorflow keras jax jaxlib flax optax mpi4py
wandb mlflow tensorboard tqdm fsspec huggingface_hub safetensors h5py zarr grpc hydra fire click absl
"""
_LIBRARIES = frozenset(_NAMES.split())
"""Library packages in training jobs, for file names that don't show where they are installed."""
_COLLECTIVE = re.compile(
    r"(?:monitored_)?barrier|_?all_?reduce\w*|_?all_?gather\w*|_?reduce_?scatter\w*|_?broadcast\w*|_?all_?to_?all\w*"
    r"|wait_for_everyone|wait_tensor|(?:gather|scatter)(?:_object\w*|_tensor\w*)?"
)
_POINT_TO_POINT = re.compile(r"i?(?:send|recv)(?:_object\w*|_forward\w*|_backward\w*)?|batch_isend_irecv")
_NATIVE_COLLECTIVE = re.compile(
    r"(?:c10d::(?:[\w:]*Work\w*::(?:wait|synchronize)|(?:ProcessGroup|Reducer)\w*::\w+)|gloo::\w+|(?:p?nccl|rccl|hccl)[A-Z]\w+"
    r"|P?MPI_(?:All\w+|Barrier|Bcast|I?Recv|I?Send|Reduce\w*|Wait\w*))"
)
_GPU_WAIT = re.compile(
    r"(?:cu|cuda|hip)(?:Stream|Event|Device|Ctx)?(?:Synchronize|StreamWaitValue|EventQuery)\w*|(?:cuda|hip|cu)Mem[cC]py\w*"
)


@dataclass(frozen=True, slots=True)
class Call:
    """One frame. ``file`` is empty for frames of shared libraries without a name in py-spy."""

    name: str
    file: str
    line: int = 0

    @property
    def leaf(self) -> str:
        """The function without its class or module."""
        return self.name.rpartition(".")[2]


def is_job_code(file: str) -> bool:
    """Whether a frame's file is the job's code, not Python's or an installed package's."""
    if not file or (file.startswith("<") and not file.startswith("<ipython")) or _INSTALLED.search(file):
        return False
    if file.startswith("/"):
        return True
    first = file.partition("/")[0].removesuffix(".py")
    return first not in _LIBRARIES and first not in sys.stdlib_module_names


def job_call(calls: Sequence[Call]) -> Call | None:
    """The innermost frame of the job's own code; ``calls`` are innermost first. None without one."""
    return next((call for call in calls if is_job_code(call.file)), None)


def collective_in(calls: Sequence[Call], native: Sequence[str] = ()) -> str | None:
    """The collective that a stack is in, given the calls inside the job's own code: the outermost one, which has the
    name that the job called; else a native one; else None."""
    for call in reversed(calls):
        distributed = "distributed" in call.file or "pipeline" in call.file
        if _COLLECTIVE.fullmatch(call.leaf) or (distributed and _POINT_TO_POINT.fullmatch(call.leaf)):
            return call.leaf
    return next((name for name in native if _NATIVE_COLLECTIVE.match(name)), None)


def waits_for_gpu(calls: Sequence[Call], native: Sequence[str] = ()) -> bool:
    """Whether the thread waits for GPU work or for a backward pass, either of which may wait for a collective."""
    if any(_GPU_WAIT.match(name) for name in native):
        return True
    return any(
        (call.leaf in ("synchronize", "current_stream_synchronize") and "cuda" in call.file)
        or call.leaf == "_engine_run_backward"
        or (call.leaf == "backward" and "autograd" in call.file)
        for call in calls[:6]
    )
