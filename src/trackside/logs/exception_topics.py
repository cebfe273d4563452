"""The topic of an exception, and whether it can name a cause: a table over type, message and frames.

The order matters: the first topic that matches wins. An exception that matches none is the application's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from trackside.logs.traceback_lines import StackFrame
from trackside.model import EventRole


@dataclass(frozen=True, slots=True)
class Topic:
    """A row of the table: what an exception is about, if every regex that is set matches and no ``unless_...`` does."""

    about: str
    role: EventRole = EventRole.ROOT
    type: str = ""
    text: str = ""
    """Searched in "Type: message" of the exception."""
    path: str = ""
    """Searched in the frames, one line each: "file::function::code"."""
    unless_text: str = ""
    unless_path: str = ""


_SAVED_STATE = (
    r"(?:check_?point\w{0,20}|ckpt\w{0,12}|snapshot\w{0,12}|optimizer\w{0,20}|rng_state\w{0,8}"
    r"|train(?:ing|er)?_state\w{0,8})"
)
_RESUME_FRAMES = (
    rf"(?i:::_{{0,2}}(?:maybe_|try_|auto_)?(?:load|restore|resume|read)_?(?:\w{{1,30}}_)?{_SAVED_STATE}::"
    r"|::_{0,2}(?:restore_model|restore_modules\w{0,20}|load_state|auto_resume|resume|resume_(?:from|model"
    r"|state)\w{0,12})::"
    r"|(?:check_?point\w{0,12}|state_dict_loader|checkpointer|checkpoint/[\w/]{1,60})\.py::_{0,2}(?:load|restore"
    r"|read)\w{0,30}::"
    r"|::[^\n]{0,200}(?:check_?pointer|ckpt_?m\w{0,8}|checkpoint_?m\w{0,8})\.(?:load|restore)"
    r"|::[^\n]{0,200}\bdcp\.load)"
)
_LOAD_CALL = r"(?:torch\.load\b|load_state_dict\(|pickle\.load|safetensors|np\.load|load_file\()"
_CHECKPOINT_NAME = r"(?i:check_?point|ckpt|resume|snapshot|\blatest\b|\blast\b|state_(?:path|file))"
_PRETRAINED_FRAMES = (
    r"::(?:from_pretrained|from_config|load_pretrained|load_dataset|snapshot_download"
    r"|load_checkpoint_(?:and_dispatch|in_model))::"
)
_LAUNCH_FRAMES = (
    r"torch/distributed/(?:launch|run|launcher)|accelerate/commands|deepspeed/launcher|lightning/fabric/cli"
    r"|bin/torchrun"
)
_RENDEZVOUS_FRAMES = (
    r"init_process_group|torch/distributed/rendezvous|elastic/rendezvous|_create_tcp_store|_create_c10d_store"
    r"|init_distributed|_assign_worker_ranks|_share_and_gather|initialize_distributed|distributed_init"
)
_MULTIPROCESSING_FRAMES = (
    r"wandb/sdk/(?:interface|lib|service|mailbox)|multiprocessing/(?:connection|queues|managers|popen|reductions|resource_sharer)|multiprocess/(?:connection"
    r"|queues|managers)"
)

_MODEL_BUILD_FRAMES = (
    r"::(?:__init__|(?:build|create|get|make|init|setup|define)_\w{0,30}(?:model|net|network|backbone|encoder|decoder))::"
    rf"(?![^\n]{{0,300}}(?i:resum|latest|\blast\b|optim))[^\n]{{0,200}}{_LOAD_CALL}"
)
"""Frames that load weights where a model is built: nothing is resumed."""

TOPICS: tuple[Topic, ...] = (
    # -- reports by launchers and pools about their children
    Topic(
        "application",  # a build step belongs to the job's own environment, whatever started it
        type=r"CalledProcessError$",
        text=r"Command (?:'\[?|\[|\"\[?)'?[^,\s]{0,200}\b(?:ninja|nvcc|gcc|g\+\+|c\+\+|cc|cmake|make|git|pip\d?|which"
        r"|ldconfig|tar|wget|curl|nvidia-smi|hipcc)\b",
    ),
    Topic(  # conda speaks to the shell, which goes on
        "application",
        EventRole.CONFIRMATION,
        type=r"^CommandNotFoundError$",
        text=r"shell has not been properly configured",
    ),
    Topic("wrapper", EventRole.TEARDOWN, type=r"(?:ChildFailedError|CalledProcessError|WorkerGroupFailureException)$"),
    Topic("wrapper", EventRole.TEARDOWN, type=r"(?:ProcessExitedException|TrainingFailedError)$"),
    Topic("wrapper", EventRole.TEARDOWN, type=r"^SystemExit$", path=_LAUNCH_FRAMES),
    Topic("wrapper", EventRole.TEARDOWN, path=r"elastic/agent/server/api\.py::_exit_barrier"),
    Topic("wrapper", EventRole.TEARDOWN, text=r"Horovod detected that one or more processes exited|horovodrun failed"),
    Topic("signal", EventRole.TEARDOWN, type=r"(?:Signal|SIGTERM|TaskCancelled)(?:Exception|Error)$"),
    Topic(
        "signal", EventRole.TEARDOWN, text=r"is detected by the operating system"
    ),  # Paddle's handler of fatal signals
    Topic(
        "signal",
        EventRole.TEARDOWN,
        text=r"^[^\n]{0,300}(?i:\b(?:got|received|caught) (?:signal|SIG(?:TERM|INT|USR\d|HUP))\b)",
    ),
    Topic(
        "signal",
        EventRole.TEARDOWN,
        text=r"DataLoader worker \(pid[\d, ()s]{1,80}\) is killed by signal: (?:Terminated|Interrupt|Hangup)",
    ),
    Topic("interrupt", type=r"^(?:builtins\.)?KeyboardInterrupt$|SIGINTException$"),
    Topic("host_memory", type=r"^ray\.\S*OutOfMemoryError$"),
    Topic(
        "signal",
        EventRole.CASCADE,
        type=r"(?:Actor(?:Died|Unavailable)Error|RayActorError|WorkerCrashedError|NodeDiedError|OwnerDiedError"
        r"|LocalRayletDiedError|ObjectLostError|KilledWorker)$",
    ),
    Topic("signal", EventRole.CASCADE, type=r"BrokenProcessPool$|BrokenExecutor$|TerminatedWorkerError$"),
    Topic(
        "signal",
        EventRole.CASCADE,
        text=r"subprocesses has abruptly died|process pool was terminated abruptly|A child process terminated abruptly",
    ),
    # -- shared memory is too small: a container setting, not a full disk
    Topic("application", text=r"(?i:shared memory\(shm\)|/dev/shm/|shared memory (?:segment|object)|/torch_\d+_\d+)"),
    # -- MindSpore and NCCL about the GPU's memory, before their own words for host memory and collectives
    Topic(
        "oom", text=r"Device(?:\(id:\d{1,4}\))? memory isn't enough|Malloc for [\w ]{1,40} failed, Memory isn't enough"
    ),
    Topic(
        "oom",
        text=r"Failed to CUDA [cm]alloc",
        unless_text=r"(?i:illegal|assert|launch failure|uncorrectable|cuda failure (?:\d+ )?'(?!out of memory))",
    ),
    # -- storage, before memory: TensorFlow calls a full disk an exhausted resource
    Topic("storage", text=r"No space left on device|[Dd]isk quota exceeded|\[Errno (?:28|122|E(?:NOSPC|DQUOT))\]"),
    # -- memory
    Topic(
        "host_memory",
        text=r"DefaultCPUAllocator|^(?:\w+\.)*_?(?:Array)?MemoryError\b"
        r"|Unable to allocate [\d.]+ [KMGTP]?i?B for an array"
        r"|\[Errno 12\]|Cannot allocate memory|std::bad_alloc|can't allocate memory|device:CPU:\d by allocator"
        r"|ArrowMemoryError",
        unless_text=r"CUDA|cudaMalloc|cudaErrorMemoryAllocation|device memory|CNMEM",
    ),
    Topic(
        "oom",
        text=r"(?i:\b(?:CUDA|HIP|XPU|NPU|MPS backend|GPU)\b.{0,20}out of memory|OutOfMemoryError|CUDA OOM(?!s)"
        r"|cuda_error_out_of_memory|out of GPU memory"
        r"|RESOURCE_EXHAUSTED: (?:.{0,40}: )?(?:Out of memory|Failed to allocate|XLA|Attempting to)"
        r"|OOM when allocating tensor|cuda runtime error \(2\)|\(2 vs\. 0\) {1,2}out of memory"
        r"|ResourceExhaustedError(?!: [^\n]{0,300}(?:Received message larger|[Qq]uota))|_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|driver error: out of memory"
        r"|Cuda failure (?:\d+ )?'out of memory'|No available memory for the cache blocks"
        r"|cudaMalloc (?:retry )?failed: out of memory|bytes of device memory|CNMEM_STATUS_OUT_OF_MEMORY"
        r"|is less than desired GPU memory utilization"
        r"|CUDA error: out of memory|Ran out of memory in memory space hbm|out of memory.{0,40}\bGPU \d)",
    ),
    Topic("dataloader", text=r"DataLoader worker \(pid(?:\(s\))? ?[\d, ]*\) (?:is killed|exited|died)"),
    Topic("dataloader", text=r"Pin memory thread exited unexpectedly"),
    # -- between ranks
    Topic("rendezvous", type=r"Rendezvous\w*(?:Error|Exception)$"),
    Topic(
        "rendezvous",
        text=r"client socket has (?:timed out|failed)|server socket has failed|EADDRINUSE"
        r"|connectFullMesh failed|failed to connect to all addresses|waiting for clients|clients joined"
        r"|Duplicate GPU detected"
        r"|Unable to find address for|makeDeviceForHostname|makeDeviceForInterface|[Cc]ouldn't find interface"
        r"|role_info/|torchelastic/\S+ ?/|rendezvous (?:has|timed|failed)|Bootstrap : no socket interface"
        r"|bootstrap.{0,40}(?:failed|timed out)|DEADLINE_EXCEEDED: .{0,80}(?:Barrier timed out|Connect\b)",
        unless_text=r"huggingface|https?://",
    ),
    Topic(
        "rendezvous",
        type=r"(?:Dist(?:Store|Network)Error|RuntimeError|TimeoutError|gaierror|ConnectionRefusedError|OSError)$",
        text=r"(?i:timed? ?out|refused|resolve|unreachable|no route|name or service|TCPStore|gai error"
        r"|address already in use)",
        path=_RENDEZVOUS_FRAMES,
        unless_text=r"Connection (?:closed|reset)|Broken pipe",
    ),
    Topic(
        "collective",
        EventRole.CASCADE,
        text=r"Connection closed by peer|Connection reset by peer(?=.{0,80}gloo|.{0,200}remote worker)|gloo/transport"
        r"|Timed out waiting \d+ms for (?:recv|send)|Application timeout caused pair closure|Socket Timeout"
        r"|remote process exited|ncclRemoteError|communicator was aborted|[Ww]atchdog caught collective|NCCL watchdog"
        r"|monitoredBarrier|wait timeout after \d+ms|Store has been (?:closed|aborted)|HorovodInternalError"
        r"|collective operation timeout|Some NCCL operations have failed or timed out|failed to recv, got 0 bytes",
    ),
    Topic("collective", EventRole.CASCADE, type=r"(?:DistStoreError|DistNetworkError|HorovodInternalError)$"),
    Topic(
        "collective",
        EventRole.CASCADE,
        type=r"(?:BrokenPipeError|ConnectionResetError|EOFError|ConnectionError|RuntimeError)$",
        text=r"(?i:broken pipe|reset by peer|connection closed|EOFError)",
        path=r"distributed_c10d|torch/distributed/|TCPStore",
        unless_path=r"torch/serialization|checkpoint",
    ),
    Topic(
        "collective",
        text=r"NCCL error|HCCL error|function error: Hccl|ncclUnhandledCudaError|nccl\w+Error|Detected mismatch between collectives|DistBackendError",
    ),
    Topic(
        "signal",
        EventRole.CASCADE,
        type=r"(?:BrokenPipeError|ConnectionResetError|ConnectionRefusedError|EOFError|ConnectionAbortedError)$",
        path=_MULTIPROCESSING_FRAMES,
    ),
    Topic("signal", EventRole.CASCADE, type=r"^wandb\.\S{1,120}(?:Closed|Mailbox\w{0,40})Error$"),
    # -- the device
    Topic(
        "cuda",
        text=r"(?:CUDA|HIP) error|(?i:device-side assert)|CUBLAS_STATUS_|CUDNN_STATUS_|CUSOLVER_STATUS"
        r"|CUSPARSE_STATUS|CUFFT_"
        r"|HIPBLAS_STATUS|cuda runtime error|CUDA driver version is insufficient|no CUDA-capable device"
        r"|CUDA unknown error"
        r"|uncorrectable ECC|CUDA_ERROR_|cudaError|NVIDIA driver on your system|AcceleratorError|cuDNN error"
        r"|misaligned address|cudaSuccess \(\d+ vs\. 0\)"
        r"|CUDA driver initialization failed|Cuda failure|Attempting to deserialize object on a CUDA device",
        unless_text=r"not compiled with CUDA",
    ),
    # -- storage
    Topic(
        "storage",
        text=r"No space left on device|Disk quota exceeded|[Qq]uota exceeded|Read-only file system"
        r"|Stale (?:NFS )?file handle|Input/output error"
        r"|Transport endpoint is not connected|Cannot send after transport endpoint|\[Errno (?:5|28|30|107|108|116"
        r"|122)\]"
        r"|\(os error (?:5|28|30|107|108|116|122)\)|code: (?:5|28|30|107|108|116|122), kind"
        r"|PytorchStreamWriter failed|unexpected pos \d+ vs|iostream error|file write failed|errno = (?:5|28|30|116"
        r"|122)\b"
        r"|Remote I/O error|Structure needs cleaning",
    ),
    # -- resuming
    Topic("checkpoint", path=_RESUME_FRAMES, unless_path=_PRETRAINED_FRAMES),
    Topic(
        "checkpoint",
        path=rf"::[^\n]{{0,200}}{_LOAD_CALL}[^\n]{{0,200}}{_CHECKPOINT_NAME}|::[^\n]{{0,200}}{_CHECKPOINT_NAME}[^\n]{{0,100}}{_LOAD_CALL}"
        r"|::[^\n]{0,200}\b(?:load|restore)\w{0,30}\([^\n]{0,100}\bresume",
        unless_path=rf"{_PRETRAINED_FRAMES}|{_MODEL_BUILD_FRAMES}",
    ),
    Topic(
        "checkpoint",
        text=r"PytorchStreamReader|Error\(s\) in loading state_dict|size mismatch for|Missing key\(s\) in state_dict"
        r"|loaded state dict|(?i:no valid checkpoint|failed to resume from|can't find a valid checkpoint|checkpoint .{0,120}(?:corrupt"
        r"|not found|does not exist|truncated|"
        r"incomplete|mismatch|invalid|failed))|zero_pp_rank|DeepSpeed checkpoint|\.metadata\b.{0,60}checkpoint",
        unless_path=rf"{_PRETRAINED_FRAMES}|{_MODEL_BUILD_FRAMES}|/datasets?/|__getitem__|[dD]ataset",
    ),
)


def topic(name: str, message: str, frames: Sequence[StackFrame]) -> tuple[str, EventRole]:
    """(topic, role) of one exception."""
    path = "\n".join(f"{file}::{function}::{code}" for file, _, function, code in frames)
    return _topic(name, message, path)


@lru_cache(maxsize=512)  # ranks and steps repeat the same exception
def _topic(name: str, message: str, path: str) -> tuple[str, EventRole]:
    """(topic, role) of an exception with these frames, one line each."""
    text = f"{name}: {message}"
    for candidate, (type_regex, text_regex, path_regex, veto_text, veto_path) in _COMPILED:
        if (
            (type_regex is None or type_regex.search(name))
            and (text_regex is None or text_regex.search(text))
            and (path_regex is None or path_regex.search(path))
            and (veto_text is None or veto_text.search(text) is None)
            and (veto_path is None or veto_path.search(path) is None)
        ):
            return candidate.about, candidate.role
    return "application", EventRole.ROOT


def chain_topic(chain: Sequence[tuple[str, str, Sequence[StackFrame]]]) -> tuple[str, EventRole]:
    """(topic, role) of a chain, oldest first: those of its last exception, unless that one only rewords an older
    one."""
    about, role = topic(*chain[-1])
    if any(name == "KeyboardInterrupt" for name, _, _ in chain[:-1]):
        return "interrupt", EventRole.ROOT  # what cleaning up after Ctrl-C raises
    if about != "application" or len(chain) == 1:
        return about, role
    for name, message, frames in reversed(chain[:-1]):
        older = topic(name, message, frames)
        if older[0] in ("oom", "cuda", "storage", "host_memory", "collective", "rendezvous", "checkpoint"):
            return older
    return about, role


def _compile(text: str) -> re.Pattern[str] | None:
    """The compiled regex; None for an empty one."""
    return re.compile(text) if text else None


_COMPILED = tuple(
    (t, tuple(_compile(part) for part in (t.type, t.text, t.path, t.unless_text, t.unless_path))) for t in TOPICS
)
