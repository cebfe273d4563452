"""GPU out of memory, as frameworks and CUDA libraries print it (``_BACKENDS``)."""

from __future__ import annotations

import math
import re

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.logs.traceback_lines import read_frame
from trackside.logs.wrapping import join_pieces
from trackside.model import Event, EventRole

MAX_TEXT_CHARS = 8_000
"""Characters of a line that are searched for sizes and names."""

_EXPONENTS = {"": 0, "B": 0, "BYTES": 0, "K": 10, "M": 20, "G": 30, "T": 40}
"""Unit, or its first letter -> the power of 2 that it stands for."""
_SIZE = r"(\d[\d.,]{0,20}) ?([KMGT]?i?B|bytes|[KMGT])\b"
_TF_BYTES = {
    "half": 2,
    "bfloat16": 2,
    "float": 4,
    "double": 8,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int32": 4,
    "int64": 8,
}

_SIZES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("requested_bytes", re.compile(rf"Tried to allocate {_SIZE}")),
    (
        "requested_bytes",
        re.compile(
            rf"(?:trying to allocate|[Oo]ut of memory allocating|[Ff]ailed to (?:allocate|alloc)(?: request for)?"
            rf"|Attempting to (?:reserve|allocate)"
            rf"|Cannot allocate|[Ee]rror allocating|alloc size:|Failed to CUDA [cm]alloc(?: async)?"
            rf"|to allocate a memory region of) {_SIZE}"
        ),
    ),
    ("total_bytes", re.compile(rf"{_SIZE} total capacity")),
    ("total_bytes", re.compile(rf"total capac?i?ty of {_SIZE}")),
    ("total_bytes", re.compile(rf"max allowed: {_SIZE}")),
    ("free_bytes", re.compile(rf"of which {_SIZE} is free")),
    ("free_bytes", re.compile(rf"{_SIZE} free;")),
    ("free_bytes", re.compile(rf"available memory is only {_SIZE}")),
    ("allocated_bytes", re.compile(rf"{_SIZE} already allocated")),
    ("allocated_bytes", re.compile(rf"allocated memory {_SIZE} is allocated by PyTorch")),
    ("allocated_bytes", re.compile(rf"{_SIZE} memory has been allocated")),
    ("allocated_bytes", re.compile(rf"(?:MPS allocated|allocated so far): {_SIZE}")),
    ("reserved_bytes", re.compile(rf"{_SIZE} (?:reserved in total|cached)")),
)
_UNALLOCATED = re.compile(rf"and {_SIZE} is reserved by PyTorch but unallocated")
_OTHER_PROCESS = re.compile(rf"Process \d{{1,9}} has {_SIZE} memory in use")
_GPU = re.compile(
    r"\(GPU (\d{1,3})[;)]|GPU (\d{1,3}) has a total|device:GPU:(\d{1,3})|device ordinal (\d{1,3})|on GPU (\d{1,3})\b"
    r"|\(GPU_(\d{1,3})_bfc\)"  # a device's allocator in TensorFlow and XLA
)
_TENSOR = re.compile(r"OOM when allocating tensor with shape ?\[([\d, ]{0,80})\] and type (\w+)")
_BACKENDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "tensorflow",
        re.compile(r"OOM when allocating tensor|ResourceExhausted|Resource exhausted:|GPU_\d+_bfc|tensorflow"),
    ),
    ("jax", re.compile(r"RESOURCE_EXHAUSTED|Ran out of memory in memory space|jax|XlaRuntime|_bfc\)")),
    ("cublas", re.compile(r"CUBLAS_STATUS")),
    ("cudnn", re.compile(r"CUDNN_STATUS")),
    ("nccl", re.compile(r"NCCL|nccl|Cuda failure|CUDA [cm]alloc")),
    ("mindspore", re.compile(r"[Mm]emory isn't enough")),
    ("mxnet", re.compile(r"mxnet|pooled_storage_manager")),
    ("vllm", re.compile(r"cache blocks|KV cache")),
    ("cupy", re.compile(r"cupy")),
    ("paddle", re.compile(r"Out of memory error on GPU|paddle")),
)
_HOST_MEMORY = re.compile(
    r"java\.lang|ray\.exceptions|node running low on memory|DefaultCPUAllocator|device:CPU:|/cpu:\d|by allocator cpu|CUDA_?Host|on host\b|pinned|shared memory"
)
_OTHER_RESOURCE = re.compile(r"ResourceExhaustedError: (?!.*(?:OOM|memory|[Ff]ailed to alloc))")
_MINDSPORE = re.compile(r"Device(?:\(id:\d{1,4}\))? memory isn't|Malloc for [\w ]{1,40} failed")
_HINT = re.compile(
    r"this is not a failure|could be performance gains|to (?:avoid|prevent)|may (?:cause|lead|run)|might"
    r"|if you (?:get|see|run)|in case of|Search for `"
)
_HANDLED = re.compile(
    r"\b(?:WARNING|WARN|UserWarning)\b|[Rr]etry(?! failed)|[Ss]kipp(?:ing|ed)|[Ii]gnor(?:ing|ed)|caught"
    r"|[Rr]educing batch|recover(?:ed|ing)"
    r"|\b(?i:error|failed|failure|exception|OOM)\b[^:\n]{0,60}\b(?i:example|sample|item|image|prompt|question|batch|file"
    r"|video|clip|sentence|document|row|record|case|idx|index|frame|config|combination)\b[^:\n]{0,80}: "
)
"""Words of a handler that continues with less memory, or with the next item."""
_OTHER_FAILURE = re.compile(
    r"(?i:illegal|assert|launch failure|uncorrectable|cuda failure (?:\d+ )?'(?!out of memory))"
)
"""Another CUDA error, after which NCCL's allocations fail as well."""

_BACKWARD = re.compile(r"backward|autograd/__init__|autograd/graph|_engine_run")
_FORWARD = re.compile(
    r"::(?:\w*forward\w*|_call_impl|_wrapped_call_impl|compute_loss|generate|attention\w*|training_step)::"
    r"|/functional\.py"
)
_OPTIMIZER = re.compile(
    r"torch/optim/|/optim/|::(?:optimizer_step|_take_model_step|_?step|_init_states?|_init_group|adamw?"
    r"|_multi_tensor_adamw?)::|optimizer\.step\("
)
_LOADING = re.compile(
    r"::(?:from_pretrained|_apply|_?load_\w+|cuda|to|convert|module_to|_move_to_device|_move_model_to_device"
    r"|set_module_tensor_to_device|"
    r"dispatch_model|_init_\w*|prepare_model|fully_shard|distribute_tensor|get_model|load_model|_load_model)::"
    r"|\.to\(|\.cuda\(|safetensors"
)


def _to_bytes(number: str, unit: str) -> int:
    """A printed size in bytes; 1,024 based, whatever the unit is called."""
    exponent = _EXPONENTS.get(unit.upper() if unit.upper() in _EXPONENTS else unit[:1].upper(), 0)
    return int(float(number.replace(",", "").rstrip(".")) * (1 << exponent))


def parse_sizes(text: str) -> dict[str, int]:
    """Field of the event -> size in bytes, from an out-of-memory text."""
    by_field: dict[str, int] = {}
    for name, pattern in _SIZES:
        if name not in by_field and (match := pattern.search(text)):
            by_field[name] = _to_bytes(match[1], match[2])
    if match := _UNALLOCATED.search(text):
        by_field["reserved_bytes"] = by_field.get("allocated_bytes", 0) + _to_bytes(match[1], match[2])
    other_processes = [_to_bytes(match[1], match[2]) for match in _OTHER_PROCESS.finditer(text)]
    if (
        other_processes and "this process has" not in text
    ):  # in a pid namespace this process is listed with a number as well
        own_candidates = [size for size in other_processes if size >= by_field.get("reserved_bytes", 0)]
        if own_candidates:
            other_processes.remove(min(own_candidates))
    if other_processes:
        by_field["other_process_bytes"] = sum(other_processes)
    if "requested_bytes" not in by_field and (tensor := _TENSOR.search(text)):
        shape = [int(n) for n in tensor[1].replace(" ", "").split(",") if n]
        by_field["requested_bytes"] = math.prod(shape) * _TF_BYTES.get(tensor[2], 4)
    return {name: size for name, size in by_field.items() if size < 1 << 60}


PARSER = Parser("cuda-memory", "GPU out of memory", "system")


@PARSER.pattern(
    rb"(?:CUDA|HIP|XPU|NPU|MPS backend) out of memory|CUDA error: out of memory"
    rb"|driver error: out of memory|OutOfMemoryError: |ResourceExhaustedError: "
    rb"|(?:Resource exhausted|RESOURCE_EXHAUSTED): [^\n]{0,60}(?:[Oo]ut of memory|[Ff]ailed to "
    rb"alloc|OOM|[Rr]an out)"
    rb"|OOM when allocating tensor|_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    rb"|failure (?:\d )?'out of memory'|No available memory for the cache blocks"
    rb"|cudaMalloc[^\n]{0,30}failed: out of memory|Out of memory error on GPU"
    rb"|ran out of memory trying to allocate|memory in memory space hbm|GPU is out of memory|CUDA OOM[^sS]"
    rb"|RESOURCE_EXHAUSTED: Attempting to (?:reserve|allocate)|cuda runtime error \(2\)|error=2 : out of memory"
    rb"|\(2 vs\. 0\)  ?out of memory|cudaMalloc retry failed: out of memory|bytes of device memory|CNMEM_STATUS_OUT_OF_MEMORY"
    rb"|Failed to CUDA [cm]alloc|emory isn't enough|allocate a memory region of [0-9]|CUDA failure 2: out of memory"
    rb"|is less than desired GPU memory utilization|CUDA Error: out of memory|[Oo]ut of GPU memory|GPU (?:has )?r[au]n out of memory"
    rb"|GPU memory (?:is )?(?:exhausted|full)",
    safety="Host memory (DefaultCPUAllocator, device:CPU, pinned) is not GPU memory; advice and the allocators' "
    "'this is not a failure' do not count; an error that is caught and retried is a CONFIRMATION, not a root cause.",
    matches=(
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity; "
            "14.12 GiB already allocated; 8.75 MiB free; 14.40 GiB reserved in total by PyTorch)"
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
            "capacity "
            "of 79.15 GiB of which 1.20 GiB is free. Process 123 has 10.00 GiB memory in use. Including "
            "non-PyTorch memory, this process has 67.90 GiB memory in use. Of the allocated memory "
            "60.00 GiB is "
            "allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but unallocated."
        ),
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/torch/lib/THC/generic/THCStorage.cu:66",
        "F0102 03:04:05.678901 42 syncedmem.cpp:71] Check failed: error == cudaSuccess (2 vs. 0)  out of memory",
        "RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible.",
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
            "4294967296 bytes."
        ),
        (
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
            "shape[8,512,512,64] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator "
            "GPU_0_bfc"
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when "
            "initializing the engine."
        ),
        (
            "Device(id:0) memory isn't enough and alloc failed, kernel name: Default/Conv2D-op1, alloc size: "
            "4294967296B."
        ),
        "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Failed to CUDA calloc async 16 bytes",
        "CUDA Error: out of memory: File exists",
        "ERROR: LoadError: Out of GPU memory trying to allocate 2.000 GiB",
        "GPU memory exhausted, stopping",
        "mxnet.base.MXNetError: src/storage/./pooled_storage_manager.h:157: cudaMalloc retry failed: out of memory",
        "MemoryError: Error allocating 531025920 bytes of device memory (out of memory).",
        (
            "HIP out of memory. Tried to allocate 1.00 GiB (GPU 2; 63.98 GiB total capacity; 60.00 GiB already "
            "allocated; 512.00 MiB free; 61.00 GiB reserved in total by PyTorch)"
        ),
    ),
    avoids=(
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 68719476736 bytes."
        ),
        "grpc: RESOURCE_EXHAUSTED: Received message larger than max (5242880 vs. 4194304)",
        "use gradient checkpointing to avoid CUDA out of memory errors",
        "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com for more information.",
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "MemoryError: Memory isn't enough and alloc failed, kernel name: Default/Conv2D",
        (
            "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.25GiB. The caller indicates "
            "that this "
            "is not a failure, but may mean that there could be performance gains if more memory were "
            "available."
        ),
        (
            "ResourceExhaustedError: OOM when allocating tensor with shape[8,8] and type float on "
            "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu"
        ),
    ),
)
def _parse_oom(line: Line) -> Event | None:
    joined = join_pieces(line)
    text = joined[:MAX_TEXT_CHARS]
    if "emory isn't enough" in text and not _MINDSPORE.search(text):
        return None
    if "CUDA" in text and "alloc" in text and _OTHER_FAILURE.search(text):
        return None
    if (
        _HOST_MEMORY.search(text)
        or _OTHER_RESOURCE.search(text)
        or ("Tried to allocate" not in text and _HINT.search(text))
    ):
        return None
    gpu = _GPU.search(text)
    backend = next((name for name, pattern in _BACKENDS if pattern.search(text)), "torch")
    is_retried = "CUDA_ERROR_OUT_OF_MEMORY" in text and "from device" in text  # TensorFlow then retries with less
    role = EventRole.CONFIRMATION if is_retried or (_HANDLED.search(text) and backend == "torch") else EventRole.ROOT
    by_field = parse_sizes(text)
    return line.event(
        "cuda_oom",
        role,
        text=None if joined == line.text else joined.strip(),  # the sizes stand in the pieces below
        gpu=int(next(filter(None, gpu.groups()))) if gpu else None,
        backend=backend,
        phase=phase(line),
        requested_bytes=by_field.get("requested_bytes"),
        total_bytes=by_field.get("total_bytes"),
        free_bytes=by_field.get("free_bytes"),
        allocated_bytes=by_field.get("allocated_bytes"),
        reserved_bytes=by_field.get("reserved_bytes"),
        other_process_bytes=by_field.get("other_process_bytes"),
    )


def phase(line: Line) -> str:
    """The phase of training by the frames above the line: load, forward, backward, optimizer or unknown."""
    frames, code = [], ""
    for above in line.preceding(120):
        if above.label != line.label:
            continue
        if parts := read_frame(above.text):
            frames.append(f"{parts[0]}::{parts[2]}::{code}")
            code = ""
        elif above.text.startswith("    ") and above.text.strip(" ^~"):
            code = above.text.strip()[:200]
        elif not above.text.startswith("    ") or "Traceback" in above.text:
            break
    if any(_BACKWARD.search(frame) for frame in frames):
        return "backward"
    for frame in frames:  # innermost first
        for name, pattern in (("forward", _FORWARD), ("optimizer", _OPTIMIZER), ("load", _LOADING)):
            if pattern.search(frame):
                return name
    return "unknown"
