"""The device's memory running out, and CUDA's, ROCm's and their libraries' errors."""

from __future__ import annotations

import math
import re

from trackside.logs.line import Line
from trackside.logs.pattern import Parser, Pattern
from trackside.logs.traceback_reader import read_frame
from trackside.model import Event, Role

_UNITS = {"": 1, "B": 1, "BYTES": 1, "K": 10, "M": 20, "G": 30, "T": 40}
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
            rf"|Cannot allocate) {_SIZE}"
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
_OTHER = re.compile(rf"Process \d{{1,9}} has {_SIZE} memory in use")
_GPU = re.compile(
    r"\(GPU (\d{1,3})[;)]|GPU (\d{1,3}) has a total|device:GPU:(\d{1,3})|device ordinal (\d{1,3})|on GPU (\d{1,3})\b"
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
    ("nccl", re.compile(r"NCCL|Cuda failure")),
    ("vllm", re.compile(r"cache blocks|KV cache")),
    ("cupy", re.compile(r"cupy")),
    ("paddle", re.compile(r"Out of memory error on GPU|paddle")),
)
_HOST = re.compile(
    r"DefaultCPUAllocator|device:CPU:|/cpu:\d|by allocator cpu|CUDA_?Host|on host\b|pinned|shared memory"
)
_HINT = re.compile(
    r"this is not a failure|could be performance gains|to (?:avoid|prevent)|may (?:cause|lead|run)|might"
    r"|if you (?:get|see|run)|in case of"
)
_CAUGHT = re.compile(
    r"\b(?:WARNING|WARN|UserWarning)\b|[Rr]etry|[Ss]kipping|caught|[Rr]educing batch|recover(?:ed|ing)"
)

_ITEM = re.compile(r"::(\w+)::")
_BACKWARD = re.compile(r"backward|autograd/__init__|autograd/graph|_engine_run")
_FORWARD = re.compile(
    r"::(?:\w*forward\w*|_call_impl|_wrapped_call_impl|compute_loss|generate|attention\w*|training_step)::"
    r"|/functional\.py"
)
_STEP = re.compile(
    r"torch/optim/|/optim/|::(?:optimizer_step|_take_model_step|_?step|_init_states?|_init_group|adamw?"
    r"|_multi_tensor_adamw?)::|optimizer\.step\("
)
_LOAD = re.compile(
    r"::(?:from_pretrained|_apply|_?load_\w+|cuda|to|convert|module_to|_move_to_device|_move_model_to_device"
    r"|set_module_tensor_to_device|"
    r"dispatch_model|_init_\w*|prepare_model|fully_shard|distribute_tensor|get_model|load_model|_load_model)::"
    r"|\.to\(|\.cuda\(|safetensors"
)


def _bytes(number: str, unit: str) -> int:
    power = _UNITS.get(unit.upper() if unit.upper() in _UNITS else unit[:1].upper(), 0)
    scale = 1 << power if power > 1 else 1
    return int(float(number.replace(",", "").rstrip(".")) * scale)


def sizes(text: str) -> dict[str, int]:
    """The sizes of an out-of-memory text in bytes, by the names of the event's fields."""
    found: dict[str, int] = {}
    for name, pattern in _SIZES:
        if name not in found and (hit := pattern.search(text)):
            found[name] = _bytes(hit[1], hit[2])
    if hit := _UNALLOCATED.search(text):
        found["reserved_bytes"] = found.get("allocated_bytes", 0) + _bytes(hit[1], hit[2])
    others = [_bytes(hit[1], hit[2]) for hit in _OTHER.finditer(text)]
    if others and "this process has" not in text:  # behind a pid namespace our own process has a number, too
        own = [size for size in others if size >= found.get("reserved_bytes", 0)]
        if own:
            others.remove(min(own))
    if others:
        found["other_process_bytes"] = sum(others)
    if "requested_bytes" not in found and (tensor := _TENSOR.search(text)):
        shape = [int(n) for n in tensor[1].replace(" ", "").split(",") if n]
        found["requested_bytes"] = math.prod(shape) * _TF_BYTES.get(tensor[2], 4)
    return {name: size for name, size in found.items() if size < 1 << 60}


def _parse_oom(line: Line) -> Event | None:
    text = line.text
    if _HOST.search(text) or _HINT.search(text):
        return None
    gpu = _GPU.search(text)
    backend = next((name for name, pattern in _BACKENDS if pattern.search(text)), "torch")
    benign = "CUDA_ERROR_OUT_OF_MEMORY" in text and "from device" in text  # TensorFlow asks for less then
    role = Role.CONFIRMATION if benign or (_CAUGHT.search(text) and backend == "torch") else Role.ROOT
    found = sizes(text)
    return line.event(
        "cuda_oom",
        role,
        gpu=int(next(filter(None, gpu.groups()))) if gpu else None,
        backend=backend,
        phase=phase(line),
        requested_bytes=found.get("requested_bytes"),
        total_bytes=found.get("total_bytes"),
        free_bytes=found.get("free_bytes"),
        allocated_bytes=found.get("allocated_bytes"),
        reserved_bytes=found.get("reserved_bytes"),
        other_process_bytes=found.get("other_process_bytes"),
    )


def phase(line: Line) -> str:
    """load, forward, backward or optimizer, from the frames above the line; unknown without them."""
    frames, code = [], ""
    for above in line.preceding(120):
        if above.label != line.label:
            continue
        if frame := read_frame(above.text):
            frames.append(f"{frame[0]}::{frame[2]}::{code}")
            code = ""
        elif above.text.startswith("    ") and above.text.strip(" ^~"):
            code = above.text.strip()[:200]
        elif not above.text.startswith("    ") or "Traceback" in above.text:
            break
    if any(_BACKWARD.search(place) for place in frames):
        return "backward"
    for place in frames:  # innermost first
        for name, pattern in (("forward", _FORWARD), ("optimizer", _STEP), ("load", _LOAD)):
            if pattern.search(place):
                return name
    return "unknown"


# -- errors of the device and its libraries

_CODES: tuple[tuple[str, int, str], ...] = (
    ("illegal memory access", 700, r"illegal memory access|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS"),
    ("device-side assert", 710, r"device-side assert|cudaErrorAssert|CUDA_ERROR_ASSERT|Assertion `"),
    ("unspecified launch failure", 719, r"unspecified launch failure|cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED"),
    ("uncorrectable ECC error", 214, r"uncorrectable ECC|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE"),
    ("uncorrectable NVLink error", 220, r"uncorrectable NVLink|NvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    ("launch timed out", 702, r"launch timed out|cudaErrorLaunchTimeout"),
    ("misaligned address", 716, r"misaligned address|cudaErrorMisalignedAddress"),
    ("illegal instruction", 715, r"illegal instruction was|cudaErrorIllegalInstruction"),
    ("hardware stack error", 714, r"hardware stack error"),
    ("invalid program counter", 718, r"invalid program counter|invalid pc"),
    ("no kernel image", 209, r"no kernel image|cudaErrorNoKernelImage"),
    ("invalid PTX", 218, r"PTX (?:JIT|was compiled with an unsupported toolchain)|unsupported toolchain|invalid PTX"),
    (
        "driver too old",
        35,
        r"driver version is insufficient|driver on your system is too old|cudaErrorInsufficientDriver",
    ),
    (
        "no device",
        100,
        (
            r"no CUDA-capable device|No CUDA GPUs are available|[Ff]ound no NVIDIA driver|cudaErrorNoDevice"
            r"|CUDA_ERROR_NO_DEVICE|No HIP GPUs|couldn't communicate with the NVIDIA driver"
        ),
    ),
    ("invalid device ordinal", 101, r"invalid device ordinal|cudaErrorInvalidDevice\b"),
    ("device busy or unavailable", 46, r"busy or unavailable|DevicesUnavailable"),
    ("system not initialized", 802, r"system not yet initialized|SystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY"),
    ("driver mismatch", 803, r"unsupported display driver|SystemDriverMismatch|[Dd]river/library version mismatch"),
    ("forward compatibility", 804, r"forward compatibility was attempted"),
    ("peer access", 217, r"peer access is not supported"),
    ("invalid resource handle", 400, r"invalid resource handle|invalid device context"),
    ("capture", 900, r"stream is capturing|capturing stream"),
    ("initialization error", 3, r"initialization error|Cannot re-initialize CUDA|driver initialization failed"),
    ("invalid configuration", 9, r"invalid configuration argument"),
    ("invalid argument", 1, r"invalid argument|cudaErrorInvalidValue"),
    ("device lost", 999, r"GPU is lost|fallen off the bus"),
    ("unknown error", 999, r"unknown error|cudaErrorUnknown|CUDA_ERROR_UNKNOWN"),
)
_NAMED = tuple((name, code, re.compile(text)) for name, code, text in _CODES)
_STATUS = re.compile(
    r"\b((?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|HIPBLAS|ROCBLAS|CURAND|CUBLASLT|MIOPEN)_?STATUS_\w{2,40}"
    r"|rocblas_status_\w{2,40}|miopenStatus\w{2,40}|CUFFT_\w{3,30}|nccl\w{3,24}Error\b)"
)
_NUMBER = re.compile(
    r"cuda runtime error \((\d{1,4})\)|Error (\d{1,4}): |CUDA error:? \(?(\d{1,4})[/)]|error code:? ?(\d{1,4})\b"
)
_LIBRARY = re.compile(r"(cublas|cudnn|cusolver|cusparse|curand|cufft|hipblas|rocblas|miopen|nccl)", re.IGNORECASE)
_SAID = re.compile(
    r"(?:CUDA|HIP|cuDNN|CUDA driver|cuda runtime) (?:error|failure|failed)(?: \(\d+\))?: ?(.{1,120})"
    r"|Cuda failure '?(.{1,80}?)'"
)
_ADVICE = re.compile(
    r"(?:CUDA )?kernel errors might|Consider passing|For debugging consider|Compile with `?TORCH_USE_CUDA_DSA"
    r"|kernel errors might be"
    r"|AMD_SERIALIZE_KERNEL|stacktrace below might be incorrect"
)


def _parse_error(line: Line) -> Event | None:
    text = line.text
    if _ADVICE.match(text.strip()):
        return None
    status = _STATUS.search(text)
    named = next(((name, code) for name, code, pattern in _NAMED if pattern.search(text)), None)
    number = _NUMBER.search(text)
    said = _SAID.search(text)
    if named is None and status is None and number is None and said is None:
        return None
    library = _LIBRARY.search(text)
    name = named[0] if named else status[1] if status else (said[1] or said[2]).strip() if said else None
    code = int(next(filter(None, number.groups()))) if number else named[1] if named else None
    warned = re.search(r"Warning:|\bWARN(?:ING)?\b", text) is not None
    return line.event(
        "cuda_error",
        Role.CONFIRMATION if warned else Role.ROOT,
        code=code if code != 0 else None,
        name=name,
        library=library[1].lower() if library else "cuda",
    )


def _parse_assert(line: Line) -> Event | None:
    """A device-side assertion prints a line for each thread: one for each place in the source is enough."""
    seen: set[str] = line.notes("cuda").setdefault("asserts", set())
    found = re.match(r"(.{0,300}?\.(?:cu|cuh|py|cpp|h):\d{1,6}):? .{0,400}?(Assertion .{1,300})", line.text)
    if found is None or found[1] in seen or len(seen) > 1_000:
        return None
    seen.add(found[1])
    return line.event("cuda_error", Role.ROOT, code=710, name="device-side assert", library="cuda")


def _parse_advice(line: Line) -> Event | None:
    return line.event("advice", Role.ADVICE, about="cuda") if _ADVICE.match(line.text.strip()) else None


PARSER = Parser(
    id="cuda",
    title="CUDA memory and errors",
    kind="system",
    patterns=(
        Pattern(
            name="out-of-memory",
            regex=rb"(?:CUDA|HIP|XPU|NPU|MPS backend) out of memory|CUDA error: out of memory"
            rb"|driver error: out of memory|OutOfMemoryError: |(?:Resource exhausted|RESOURCE_EXHAUSTED): "
            rb"|OOM when allocating tensor|_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
            rb"|failure (?:\d )?'out of memory'|No available memory for the cache blocks"
            rb"|cudaMalloc[^\n]{0,30}failed: out of memory|Out of memory error on GPU"
            rb"|ran out of memory trying to allocate|memory in memory space hbm|GPU is out of memory|CUDA OOM",
            parse=_parse_oom,
            safety="Host memory (DefaultCPUAllocator, device:CPU, pinned) is not the card's; sentences of advice and "
            "allocators' "
            "'this is not a failure' are none; a caught one that is tried again only confirms.",
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
                    "HIP out of memory. Tried to allocate 1.00 GiB (GPU 2; 63.98 GiB total capacity; 60.00 GiB already "
                    "allocated; 512.00 MiB free; 61.00 GiB reserved in total by PyTorch)"
                ),
            ),
            avoids=(
                (
                    "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate "
                    "memory: you tried to allocate 68719476736 bytes."
                ),
                "use gradient checkpointing to avoid CUDA out of memory errors",
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
        ),
        Pattern(
            name="advice",
            regex=rb"Consider passing CUDA_LAUNCH_BLOCKING|For debugging consider passing"
            rb"|Compile with `?TORCH_USE_CUDA_DSA|kernel errors might be",
            parse=_parse_advice,
            safety="A library's hint: CUDA_LAUNCH_BLOCKING is not set because it is named here.",
            matches=(
                "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
                "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
                (
                    "CUDA kernel errors might be asynchronously reported at some other API call, so the "
                    "stacktrace below "
                    "might be incorrect."
                ),
            ),
            avoids=("export CUDA_LAUNCH_BLOCKING=1",),
        ),
        Pattern(
            name="device-assert",
            regex=rb"thread: \[\d+,\d+,\d+\] Assertion ",
            parse=_parse_assert,
            safety="One event for each place in the source, however many threads fail there.",
            matches=(
                (
                    "/build/aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward: block: [0,0,0], thread: [5,0,0] "
                    "Assertion `t >= 0 && t < n_classes` failed."
                ),
            ),
            avoids=("Assertion passed",),
        ),
        Pattern(
            name="error",
            regex=rb"(?:CUDA|HIP|cuDNN|CUDA driver) error:? |cuda runtime error \(|CU(?:BLAS|DNN|SOLVER|SPARSE"
            rb"|RAND)\w{0,4}_STATUS_[A-Z]|CUFFT_[A-Z]{4}|(?:hipblas|rocblas)_status_|HIPBLAS_STATUS_[A-Z]"
            rb"|uncorrectable ECC error|CUDA driver version is insufficient|no CUDA-capable device"
            rb"|No CUDA GPUs are available|NVIDIA driver on your system|CUDA unknown error|Cuda failure "
            rb"|CUDA_ERROR_[A-Z]{4}|cudaError[A-Z][a-z]|cudaGetDeviceCount|CUDA initialization: "
            rb"|CUDA driver initialization failed|Driver/library version mismatch|Cannot re-initialize CUDA"
            rb"|couldn't communicate with the NVIDIA driver",
            parse=_parse_error,
            safety="Memory exhaustion is the other pattern's; names in advice and in code lines of a traceback do not "
            "count.",
            matches=(
                "RuntimeError: CUDA error: an illegal memory access was encountered",
                "torch.AcceleratorError: CUDA error: device-side assert triggered",
                "RuntimeError: CUDA error: uncorrectable ECC error encountered",
                "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
                (
                    "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, "
                    "opb)`"
                ),
                "RuntimeError: No CUDA GPUs are available",
                "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
                (
                    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
                    "calling NumCudaDevices()? Error 802: system not yet initialized"
                ),
                (
                    "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure "
                    "'unspecified launch "
                    "failure'"
                ),
                (
                    "RuntimeError: cuda runtime error (59) : device-side assert triggered at "
                    "/pytorch/aten/src/THC/generic/THCTensorMath.cu:26"
                ),
            ),
            avoids=(
                "    torch.cuda.check_error(cudaGetDeviceCount())",
                "Setting CUDA error handling mode",
            ),
        ),
    ),
)
