"""One event as one line of text, for sites where the original line must not leave its node.

    trackside-event {"kind": "exception", "line": 812, "fields": {"type": "ValueError", "about": "application"}, ...}

Numbers are included. Of text, only what is listed here: words of a closed set; names of nodes, processes, metrics and
the job; classes of exceptions of Python and of known libraries; and a scheduler's notice. Messages, paths, commands,
code and class names of the job's own modules are not.
"""

from __future__ import annotations

import builtins
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trackside.catalog.events import EVENTS
from trackside.catalog.signals import DESCRIPTIONS, signal_number
from trackside.logs.stamp import find_time
from trackside.model import Event, EventRole, Plane, Position, Scalar

MARK = "trackside-event "
WITHHELD = "(withheld by its node)"
"""Replaces a message, a path or a code location."""
WITHHELD_CLASS = "(class withheld by its node)"
"""Replaces the name of a class that may be the job's own."""
PULSE = "pulse"
"""Kind of a line that only says how much output there was."""
WORDS = frozenset(
    (
        "about", "address", "backend", "busid", "code", "comm", "cgroup", "core", "device", "framework", "gpu",
        "group", "host", "job", "last_completed", "last_enqueued", "launcher", "library", "metric", "missing_ranks", "name",
        "node", "nodes", "objective", "op", "phase", "pid", "reason", "scope", "severity", "sign", "signal_name",
        "source", "split", "state", "status", "step", "task", "throughput_unit", "transport", "collective",
    )
)  # fmt: skip
"""Fields that hold words of a closed set, or names of nodes, processes, metrics and the job."""
CLASS_FIELDS = frozenset(("type", "root_type", "chain"))
"""Fields that hold classes of exceptions, with ";" between several."""
_LIBRARIES = frozenset(
    (
        # Python
        "_pickle", "argparse", "asyncio", "binascii", "concurrent", "configparser", "ctypes", "http", "json", "lzma",
        "multiprocessing", "pickle", "queue", "shutil", "socket", "sqlite3", "ssl", "struct", "subprocess", "tarfile",
        "urllib", "xml", "zipfile", "zlib",
        # training
        "accelerate", "bitsandbytes", "c10", "composer", "deepspeed", "flash_attn", "flax", "horovod", "jax", "jaxlib",
        "keras", "lightning", "lightning_fabric", "nemo", "numba", "optax", "orbax", "paddle", "peft", "pytorch_lightning",
        "ray", "tensorflow", "torch", "torchaudio", "torchdata", "torchvision", "transformers", "triton", "trl", "vllm",
        # data and services
        "PIL", "aiohttp", "botocore", "cv2", "datasets.builder", "datasets.exceptions", "datasets.table", "fsspec",
        "google", "grpc", "h5py", "httpx", "huggingface_hub", "hydra", "mlflow", "numpy", "omegaconf", "openai",
        "pandas", "pyarrow", "pydantic", "pydantic_core", "requests", "safetensors", "scipy", "sentencepiece",
        "sklearn", "tokenizers", "urllib3", "wandb", "yaml", "zmq",
    )
)  # fmt: skip
"""Modules whose classes are named."""
_CLASSES = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
) | frozenset(
    (
        "AcceleratorError", "ArgumentError", "BackendCompilerFailed", "CUDAError", "CalledProcessError", "Check failed",
        "ChildFailedError", "ConfigAttributeError", "ContainerError", "DistBackendError", "DistError", "DistNetworkError",
        "DistStoreError", "Error", "HFValidationError", "HTTPError", "HfHubHTTPError", "JSONDecodeError", "MPIError",
        "OutOfMemoryError", "ParserError", "ProcessExitedException", "ProcessRaisedException", "RayTaskError",
        "RendezvousConnectionError", "RendezvousTimeoutError", "ResourceExhaustedError", "SafetensorError", "ShellError",
        "SignalException", "TimeoutExpired", "TrainingFailedError", "UnpicklingError", "WorkerCrashedError",
        "WorkerGroupFailureException", "XlaRuntimeError", "gaierror",
    )
)  # fmt: skip
"""Classes that are named without their module: Python's own, and those that libraries, launchers and parsers print so."""
_SAFE_FIELDS = frozenset(
    (("scheduler_notice", "by"), ("env_flag", "value"), ("signal_received", "by"), ("heartbeat_lost", "what"),
     ("resume_requested", "by"))
)  # fmt: skip
"""Further (kind, field) pairs whose values are safe."""
_SCHEDULER_KINDS = frozenset(("scheduler_notice",))
"""Kinds whose text Slurm wrote."""
_WITHHELD_FIELDS: Mapping[str, tuple[str, ...]] = {
    "exception": ("message", "root_message", "user_frame", "frame"),
    "checkpoint_missing": ("what",),
}
"""kind -> fields that are replaced by WITHHELD if the event has them."""
_PLAIN = re.compile(r"[\w.:;,@+\-\[\]()/=* ]{1,200}")
_WORD = re.compile(r"[\w.-]{1,40}")
_SLURM_PROGRAM = re.compile(r"\b(?:slurmstepd|slurmd|srun|salloc|sbatch)\b")
_PATH = re.compile(r"(?<=execve\(\): )[^:]+|(?<!\w)[`'\"][^`'\"]*[`'\"]|[^\s:]*[^\W\d]/[^\s:]*|[^\s:]*/[^\W\d][^\s:]*")
"""A path, the program of a failed start, or a quoted text."""
_NON_FINITE = frozenset(("nan", "inf", "-inf"))
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Pulse:
    """Lines and bytes of output up to this point."""

    lines: int
    bytes: int


def format_event(event: Event) -> str:
    """An event as a line of text."""
    fields = {
        name: safe for name, value in event.fields.items() if (safe := _safe_value(event.kind, name, value)) is not None
    }
    fields |= dict.fromkeys((name for name in _WITHHELD_FIELDS.get(event.kind, ()) if event.fields.get(name)), WITHHELD)
    origin = {"time": event.time, "rank": event.rank, "node": event.node}
    row: dict[str, Any] = {"kind": event.kind, "line": event.at.line, "parser": event.parser, "role": event.role.value}
    row |= {name: value for name, value in origin.items() if value is not None}
    row["fields"] = fields
    if event.kind in _SCHEDULER_KINDS:
        row["text"] = _without_paths(event.text)[:400]
    return MARK + json.dumps(row, ensure_ascii=True)


def format_pulse(lines: int, size: int) -> str:
    """An amount of output as a line of text; ``size``: bytes."""
    return MARK + json.dumps({"kind": PULSE, "lines": lines, "bytes": size})


def _safe_value(kind: str, name: str, value: Scalar) -> Scalar:
    """The value if it may leave the node, else None; non-finite numbers as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, str):
        return value
    if (kind, name) == ("host", "command"):
        return value if _WORD.fullmatch(value) else None
    if name in CLASS_FIELDS:
        return ";".join(part if _is_public_class(part) else WITHHELD_CLASS for part in value.split(";"))
    if (kind, name) == ("python_fatal", "what"):
        is_signal = signal_number(value.partition(" ")[0]) or value.lower().replace("-", " ") in DESCRIPTIONS
        return value if is_signal and _PLAIN.fullmatch(value) else WITHHELD
    if (kind, name) == ("env_flag", "value") and "/" in value:
        return WITHHELD
    if name in WORDS or (kind, name) in _SAFE_FIELDS:
        return value if _PLAIN.fullmatch(value) else None
    return _SHARED_MEMORY if name == "path" and value.startswith(_SHARED_MEMORY) else None


def _is_public_class(name: str) -> bool:
    """Whether a class belongs to Python or a known library, not to the job's own modules."""
    modules = re.split(r"\.|::", name)[:-1]
    return name in _CLASSES or any(".".join(modules[:count]) in _LIBRARIES for count in (1, 2)[: len(modules)])


def _without_paths(notice: str) -> str:
    """A scheduler's notice from the scheduler's name on, with paths, commands and quoted texts replaced."""
    name = _SLURM_PROGRAM.search(notice)
    return _PATH.sub("(withheld)", notice[name.start() :] if name else notice)


def parse_event(text: str, position: Position, plane: Plane = "log", before: str = "") -> Event | Pulse | None:
    """The event or pulse of such a line; None if its kind is unknown. ``before``: the text that a collector put
    before the line, which gives the time of an event that has none."""
    try:
        row = json.loads(text.removeprefix(MARK))
        kind, fields = row["kind"], row.get("fields", {})
        if kind == PULSE:
            return Pulse(int(row["lines"]), int(row["bytes"]))
        kind_spec = EVENTS.get(kind)
        if kind_spec is None or plane not in kind_spec.planes or not isinstance(fields, dict):
            return None
        time, rank, node = row.get("time"), row.get("rank"), row.get("node")
        return Event(
            kind,
            position,
            plane,
            text=str(row.get("text", "")),
            time=float(time) if isinstance(time, (int, float)) else find_time(before),
            rank=int(rank) if isinstance(rank, int) else None,
            node=str(node) if node is not None else None,
            role=EventRole(row.get("role", "fact")),
            parser=str(row.get("parser", "")),
            fields={
                str(name): _restore_number(value)
                for name, value in fields.items()
                if isinstance(value, (str, int, float, bool))
            },
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _restore_number(value: Scalar) -> Scalar:
    """A field's value; the text of a non-finite number becomes a float again."""
    return float(value) if isinstance(value, str) and value in _NON_FINITE else value
