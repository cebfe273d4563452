"""NVIDIA's own libcudart and libnccl, which load and answer without a GPU; counts are compared with bpftrace's."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.trace.callers import Caller, Jobs, collect_reading, context, need_bpf, start_caller, value
from tests.services import missing, program
from trackside.agent.sources import cuda, nccl
from trackside.agent.trace import elf, functions

pytestmark = pytest.mark.service
CACHE = Path(__file__).parents[3] / ".cache" / "wheels"
WHEELS = {"cudart": "nvidia-cuda-runtime-cu12==12.9.79", "nccl": "nvidia-nccl-cu12==2.32.3"}
NO_DEVICE, INVALID = (35, 100, 999), (1, 2, 3, 4)
"""What the runtime and NCCL return without a driver or GPU."""


@pytest.fixture(scope="session")
def real_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> NVIDIA's library. Wheels are cached between runs: NCCL's is 352 MB."""
    folder, libraries = tmp_path_factory.mktemp("real"), {}
    CACHE.mkdir(parents=True, exist_ok=True)
    for kind, wheel in WHEELS.items():
        name, _, version = wheel.replace("-", "_").partition("==")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), wheel]
        if not list(CACHE.glob(f"{name}-{version}-*.whl")):
            result = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
            if result.returncode:
                missing(f"the library of {wheel} ({result.stderr.strip()[-200:]})", f"{wheel} (pip download)")
        with zipfile.ZipFile(next(CACHE.glob(f"{name}-{version}-*.whl"))) as archive:
            member = next(entry for entry in archive.namelist() if re.search(rf"/lib{kind}\.so\.\d+\Z", entry))
            libraries[kind] = Path(archive.extract(member, folder))
    return libraries


@contextmanager
def bpftrace_counts(process: Caller, library: Path, *names: str) -> Iterator[dict[str, int]]:
    """Calls of functions of one process, counted by bpftrace; filled at the end of the block."""
    probes = [f'uprobe:{library}:{name} /pid == {process.pid}/ {{ @["{name}"] = count(); }}' for name in names]
    ready = 'interval:ms:500 { if (@ready == 0) { printf("ready\\n"); @ready = 1; } }'
    command = [program("bpftrace", "bpftrace"), "-B", "none", "-e", " ".join([*probes, ready])]
    counts: dict[str, int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tracer:
        assert tracer.stdout is not None
        while "ready" not in (line := tracer.stdout.readline()):
            assert line, "bpftrace has ended"
        try:
            yield counts
        finally:
            tracer.send_signal(signal.SIGINT)
            try:
                output = tracer.communicate(timeout=20)[0]
            except subprocess.TimeoutExpired:  # on a busy machine the first signal may come before its handler
                tracer.send_signal(signal.SIGINT)
                try:
                    output = tracer.communicate(timeout=40)[0]
                finally:
                    tracer.kill()
    counts.update({name: int(number) for name, number in re.findall(r"@\[(\w+)\]: (\d+)", output)})


@pytest.mark.parametrize(
    ("kind", "table"), [("cudart", functions.cuda()), ("cudart", functions.nccl()), ("nccl", functions.nccl())]
)
def test_every_probed_function_exists(
    real_libraries: dict[str, Path], kind: str, table: dict[int, functions.Function]
) -> None:
    names = {function.name for function in table.values() if function.library == kind}
    with real_libraries[kind].open("rb") as file:
        assert set(elf.offsets(file.fileno(), names)) == names


def test_calls_of_the_real_runtime_are_counted(real_libraries: dict[str, Path], jobs: Jobs) -> None:
    need_bpf()
    with start_caller(real_libraries["cudart"]) as process:
        jobs.add(process)
        collector = cuda.SOURCE.open(context(jobs, cuda.CudaOptions()))
        try:
            assert process.call("cudaLaunchKernel", 0, 0, 0, 0, 0, 0, 0, times=1000) in NO_DEVICE
            process.call("cudaMemcpyAsync", 0, 0, 4096, 1, 0, times=50)
            process.call("cudaMemcpy2DAsync", 0, 0, 0, 0, 64, 10, 2, 0, times=5)
            process.call("cudaStreamSynchronize", 0, times=20)
            process.call("cudaSetDevice", 0)
            reading = collect_reading(collector)
        finally:
            collector.close()
    assert value(reading, "trackside_cuda_kernel_launches_total") == 1000
    assert value(reading, "trackside_cuda_memcpy_bytes_total", direction="h2d") == 50 * 4096
    assert value(reading, "trackside_cuda_memcpy_bytes_total", direction="d2h") == 5 * 640
    assert value(reading, "trackside_cuda_api_calls_total", api="cudaStreamSynchronize") == 20
    assert (value(reading, "trackside_cuda_api_seconds_total", api="cudaStreamSynchronize") or 0) > 0
    assert value(reading, "trackside_gpu_process_attached") == 0  # no call succeeded


def test_calls_of_the_real_nccl_are_counted(real_libraries: dict[str, Path], jobs: Jobs) -> None:
    need_bpf("nccl")
    with start_caller(real_libraries["cudart"], real_libraries["nccl"], NCCL_DEBUG="") as process:
        jobs.add(process)
        collector = nccl.SOURCE.open(context(jobs, nccl.NcclOptions()))
        try:
            process.do("room = ctypes.create_string_buffer(1 << 20)")
            no_communicator = process.do("value = ctypes.addressof(room)")
            assert process.call("ncclAllReduce", 0, 0, 10, 7, 0, no_communicator, 0x7000, times=300) in INVALID
            process.call("ncclBcast", 0, 10, 7, 0, no_communicator, 0x7000, times=40)
            rows = collector._tallies.rows()
            assert process.do("value = join('ncclCommInitRankConfig', 2, 1, b'x' * 100, 0)")[0] in INVALID
            reading = collect_reading(collector)
        finally:
            collector.close()
    counts = {
        functions.nccl()[int.from_bytes(key[4:8], "little")].api: int.from_bytes(row[:8], "little") for key, row in rows
    }
    failed = {int.from_bytes(row[8:16], "little") == int.from_bytes(row[:8], "little") for _, row in rows}
    assert counts == {"AllReduce": 300, "Broadcast": 40}  # ncclBcast is another name of ncclBroadcast
    assert failed == {True}
    assert value(reading, "trackside_nccl_collectives_started_total", op="AllReduce") == 0
    assert value(reading, "trackside_nccl_communicators") == 1  # the pointer that was passed; no communicator was made


def test_counts_equal_those_of_bpftrace(real_libraries: dict[str, Path], jobs: Jobs) -> None:
    need_bpf()
    names = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaEventQuery", "cudaStreamSynchronize")
    with start_caller(real_libraries["cudart"]) as process:
        jobs.add(process)
        collector = cuda.SOURCE.open(context(jobs, cuda.CudaOptions()))
        try:
            with bpftrace_counts(process, real_libraries["cudart"], *names) as counts:
                for times, name in zip((700, 31, 400, 9), names, strict=True):
                    process.call(name, 0, 0, 16, 1, 0, 0, times=times)
            reading = collect_reading(collector)
        finally:
            collector.close()
    assert counts == dict(zip(names, (700, 31, 400, 9), strict=True))
    assert {name: value(reading, "trackside_cuda_api_calls_total", api=name) for name in names} == counts
