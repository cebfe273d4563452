"""Errors of CUDA, ROCm and their libraries, except running out of memory (:mod:`trackside.logs.cuda_memory`)."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

MAX_TEXT_CHARS = 8_000
"""Characters of a line that are searched for names."""

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
_ERRORS = tuple((name, code, re.compile(text)) for name, code, text in _CODES)
_STATUS = re.compile(
    r"\b((?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|HIPBLAS|ROCBLAS|CURAND|CUBLASLT|MIOPEN)_?STATUS_\w{2,40}"
    r"|rocblas_status_\w{2,40}|miopenStatus\w{2,40}|CUFFT_\w{3,30}|nccl\w{3,24}Error\b)"
)
_NUMBER = re.compile(
    r"cuda runtime error \((\d{1,4})\)|Error (\d{1,4}): |CUDA error:? \(?(\d{1,4})[/)]|error code:? ?(\d{1,4})\b"
)
_LIBRARY = re.compile(r"(cublas|cudnn|cusolver|cusparse|curand|cufft|hipblas|rocblas|miopen|nccl)", re.IGNORECASE)
_MESSAGE = re.compile(
    r"(?:CUDA|HIP|cuDNN|CUDA driver|cuda runtime) (?:error|failure|failed)(?: \(\d+\))?: ?(.{1,120})"
    r"|Cuda failure '?(.{1,80}?)'"
)
_MEMORY = re.compile(r"out of memory|ALLOC_FAILED|cudaErrorMemoryAllocation|OUT_OF_MEMORY")
_ADVICE = re.compile(
    r"(?:CUDA )?kernel errors might|Consider passing|For debugging consider|Compile with `?TORCH_USE_CUDA_DSA"
    r"|kernel errors might be"
    r"|AMD_SERIALIZE_KERNEL|stacktrace below might be incorrect"
)

PARSER = Parser("cuda", "CUDA errors", "system")


@PARSER.pattern(
    rb"Consider passing CUDA_LAUNCH_BLOCKING|For debugging consider passing"
    rb"|Compile with `?TORCH_USE_CUDA_DSA|kernel errors might be",
    safety="A library's hint: CUDA_LAUNCH_BLOCKING is not set because a hint names it.",
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
)
def _parse_advice(line: Line) -> Event | None:
    return line.event("advice", EventRole.ADVICE, about="cuda") if _ADVICE.match(line.text.strip()) else None


@PARSER.pattern(
    rb"thread: \[\d+,\d+,\d+\] Assertion ",
    safety="One event per source location, however many threads fail there.",
    matches=(
        (
            "/build/aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward: block: [0,0,0], thread: [5,0,0] "
            "Assertion `t >= 0 && t < n_classes` failed."
        ),
    ),
    avoids=("Assertion passed",),
)
def _parse_assert(line: Line) -> Event | None:
    """A device-side assertion prints one line per thread: one event per source location is enough."""
    locations: set[str] = line.notes("cuda").setdefault("asserts", set())
    match = re.match(r"(.{0,300}?\.(?:cu|cuh|py|cpp|h):\d{1,6}):? .{0,400}?(Assertion .{1,300})", line.text)
    if match is None or match[1] in locations or len(locations) > 1_000:
        return None
    locations.add(match[1])
    return line.event("cuda_error", EventRole.ROOT, code=710, name="device-side assert", library="cuda")


@PARSER.pattern(
    rb"(?:CUDA|HIP|cuDNN|CUDA driver) error:? |cuda runtime error \(|CU(?:BLAS|DNN|SOLVER|SPARSE"
    rb"|RAND)\w{0,4}_STATUS_[A-Z]|CUFFT_[A-Z]{4}|(?:hipblas|rocblas)_status_|HIPBLAS_STATUS_[A-Z]"
    rb"|uncorrectable ECC error|CUDA driver version is insufficient|no CUDA-capable device"
    rb"|No CUDA GPUs are available|NVIDIA driver on your system|CUDA unknown error|Cuda failure "
    rb"|CUDA_ERROR_[A-Z]{4}|cudaError[A-Z][a-z]|cudaGetDeviceCount|CUDA initialization: "
    rb"|CUDA driver initialization failed|Driver/library version mismatch|Cannot re-initialize CUDA"
    rb"|couldn't communicate with the NVIDIA driver",
    safety="The other pattern reads memory exhaustion; names in advice and in a traceback's code lines do not count.",
    matches=(
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb)`",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
            "calling NumCudaDevices()? Error 802: system not yet initialized"
        ),
        "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 'unspecified launch failure'",
        (
            "RuntimeError: cuda runtime error (59) : device-side assert triggered at "
            "/pytorch/aten/src/THC/generic/THCTensorMath.cu:26"
        ),
    ),
    avoids=(
        "    torch.cuda.check_error(cudaGetDeviceCount())",
        "Setting CUDA error handling mode",
    ),
)
def _parse_error(line: Line) -> Event | None:
    text = line.text[:MAX_TEXT_CHARS]
    if _ADVICE.match(text.strip()) or _MEMORY.search(text):
        return None
    status = _STATUS.search(text)
    named = next(((name, code) for name, code, pattern in _ERRORS if pattern.search(text)), None)
    number = _NUMBER.search(text)
    message = _MESSAGE.search(text)
    if named is None and status is None and number is None and message is None:
        return None
    library = _LIBRARY.search(text)
    name = named[0] if named else status[1] if status else (message[1] or message[2]).strip() if message else None
    code = int(next(filter(None, number.groups()))) if number else named[1] if named else None
    is_warning = re.search(r"Warning:|\bWARN(?:ING)?\b", text) is not None
    return line.event(
        "cuda_error",
        EventRole.CONFIRMATION if is_warning else EventRole.ROOT,
        code=code if code != 0 else None,
        name=name,
        library=library[1].lower() if library else "cuda",
    )
