"""Cost of a probe to the traced process, and of reading to the agent: on stub libraries, compared with bpftrace.

    python bench/trace.py             needs root, and bpftrace for its rows

Nanoseconds are CPU time of the calling thread, the minimum of five runs, less the cost of the untraced call.
A stub's functions begin like those of NVIDIA's libraries, because the first instruction decides what a probe costs.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.agent.trace.callers import SONAMES, Caller, Jobs, collect_reading, compile_stub, context, start_caller
from trackside.agent.sources import cuda, nccl
from trackside.agent.trace import probes

CALLS, RUNS = 100_000, 5
PROCESSES = 64
LOOP = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
double loop(void *library, const char *name, long calls, void *comm, void *stream) {
    int (*call)(void *, void *, long, int, int, void *, void *) = dlsym(library, name);
    struct timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    for (long i = 0; i < calls; i++)
        call(0, stream, 64, 1, 0, comm, stream);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return ((to.tv_sec - from.tv_sec) * 1e9 + to.tv_nsec - from.tv_nsec) / calls;
}
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stubs = {kind: compile_stub(folder, kind) for kind in SONAMES}
        loop = folder / "loop.so"
        (folder / "loop.c").write_text(LOOP)
        subprocess.run([sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O2", "-o", str(loop), str(folder / "loop.c")], check=True)  # fmt: skip
        print(f"calling thread, ns per call ({CALLS:,} calls, minimum of {RUNS})")
        per_call(stubs, loop)
        print(f"\nagent, {PROCESSES} processes")
        reading(stubs)


def per_call(stubs: dict[str, Path], loop: Path) -> None:
    jobs = Jobs()
    with start_caller(stubs["cudart"], stubs["nccl"], loop) as process:
        jobs.add(process)
        process.do("libraries['loop'].loop.restype = ctypes.c_double")
        comm = process.do("value = join('ncclCommInitRank', 8, 0, b'x' * 100)")[1]
        base = {name: ns_per_call(process, name, comm) for name in ("cudaLaunchKernel", "cudaStreamSynchronize", "cudaEventRecord", "ncclAllReduce")}  # fmt: skip
        row("untraced cudaLaunchKernel", base["cudaLaunchKernel"], 0.0)
        for method in probes.METHODS:
            probes.METHODS = (method,)  # type: ignore[assignment]
            for text, one_in in (("counted", 0), ("counted, 1 in 16 timed (default)", 16), ("every call timed", 1)):
                with open_source(cuda, jobs, timed_one_in=one_in):
                    row(
                        f"{method}: launch {text}",
                        ns_per_call(process, "cudaLaunchKernel", comm),
                        base["cudaLaunchKernel"],
                    )
            with open_source(nccl, jobs):
                row(
                    f"{method}: collective followed", ns_per_call(process, "ncclAllReduce", comm), base["ncclAllReduce"]
                )
                row(
                    f"{method}: event recorded on its stream",
                    ns_per_call(process, "cudaEventRecord", comm),
                    base["cudaEventRecord"],
                )
        probes.METHODS = ("session", "multi", "perf")
        with open_source(cuda, jobs), open_source(nccl, jobs):
            row("both sources: launch", ns_per_call(process, "cudaLaunchKernel", comm), base["cudaLaunchKernel"])
            row(
                "both sources: stream wait",
                ns_per_call(process, "cudaStreamSynchronize", comm),
                base["cudaStreamSynchronize"],
            )
        for text, script in BPFTRACE_SCRIPTS.items():
            with bpftrace(script.replace("LIB", str(stubs["cudart"]))) as is_tracing:
                if is_tracing:
                    row(f"bpftrace: {text}", ns_per_call(process, "cudaLaunchKernel", comm), base["cudaLaunchKernel"])


BPFTRACE_SCRIPTS = {
    "count by process and function": "uprobe:LIB:cudaLaunchKernel { @[pid, func] = count(); }",
    "latency histogram": "uprobe:LIB:cudaLaunchKernel { @at[tid] = nsecs; } "
    "uretprobe:LIB:cudaLaunchKernel /@at[tid]/ { @ = hist(nsecs - @at[tid]); delete(@at[tid]); }",
}


def row(text: str, ns: float, base: float) -> None:
    print(f"  {text:<48} {ns:8.1f}   +{ns - base:.0f}")


def ns_per_call(process: Caller, name: str, comm: int) -> float:
    library = "libnccl" if name.startswith("nccl") else "libcudart"
    call = f"libraries['loop'].loop(ctypes.c_void_p(libraries['{library}']._handle), b'{name}', ctypes.c_long({CALLS}), ctypes.c_void_p({comm}), ctypes.c_void_p(0x7000))"
    return min(float(process.do(f"value = {call}")) for _ in range(RUNS))


@contextmanager
def open_source(module: Any, jobs: Jobs, **options: Any) -> Iterator[Any]:
    kind = module.SOURCE.options
    collector = module.SOURCE.open(context(jobs, kind(**options)))
    try:
        yield collector
    finally:
        collector.close()


@contextmanager
def bpftrace(script: str) -> Iterator[bool]:
    path = shutil.which("bpftrace")
    if path is None:
        print("  (bpftrace is not installed)")
        yield False
        return
    program = 'interval:ms:500 { if (@is_ready == 0) { printf("ready\\n"); @is_ready = 1; } }'
    with subprocess.Popen(
        [path, "-B", "none", "-e", f"{script} {program}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as tracer:
        assert tracer.stdout is not None
        while "ready" not in (line := tracer.stdout.readline()) and line:
            pass
        try:
            yield True
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate()


def reading(stubs: dict[str, Path]) -> None:
    memory()
    jobs, processes = FixedJobs(), list[Caller]()
    with ExitStack() as stack:
        for _ in range(PROCESSES):
            process = stack.enter_context(start_caller(stubs["cudart"], stubs["nccl"]))
            jobs.add(process)
            processes.append(process)
        sources = [stack.enter_context(open_source(module, jobs)) for module in (cuda, nccl)]
        exercise(processes)
        for name, collector in zip(("cuda", "nccl"), sources, strict=True):
            samples = collect_reading(collector).samples
            cpu_s = cpu_seconds(lambda collector=collector: collect_reading(collector))
            print(f"  {name}: {1000 * cpu_s:.2f} ms of CPU per reading, {len(samples)} samples")
            print(
                f"  {name}: {1000 * cpu_seconds(collector.tracer.update):.2f} ms of CPU to update the processes (each second)"
            )


def exercise(processes: list[Caller]) -> None:
    """Some calls of each kind in every process."""
    for caller in processes:
        comm = caller.do("value = join('ncclCommInitRank', 64, 0, b'y' * 100)")[1]
        for name in ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaEventQuery", "cudaSetDevice"):
            caller.call(name, 0, 0, 64, 1, 0, 0, times=10)
        caller.call("ncclAllReduce", 0, 0, 10, 7, 0, comm, 0x7000, times=10)
        caller.call("cudaEventRecord", 0x9000, 0x7000)


def cpu_seconds(work: Any, times: int = 20) -> float:
    begin = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begin) / times


MEMORY = """
import resource
from pathlib import Path
from tests.agent.trace.callers import Jobs, collect_reading, context
from trackside.agent.source import sources
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
available = sources()
before = resident()
collectors = [available[name].open(context(Jobs(), available[name].options())) for name in ("cuda", "nccl")]
for collector in collectors:
    collect_reading(collector)
print(f"{before:.1f} {resident():.1f}")
"""


def memory() -> None:
    """Print the memory of a process with all sources imported, before and after tracing starts."""
    output = subprocess.run([sys.executable, "-c", MEMORY], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    before_mb, after_mb = map(float, output.split())
    print(f"  memory: {after_mb - before_mb:.1f} MB more with both sources on ({before_mb:.1f} MB before)")


class FixedJobs(Jobs):
    """A map of process owners that costs nothing to query, like the agent's cached one."""

    def processes(self) -> Any:
        if not hasattr(self, "cached"):
            self.cached = super().processes()
        return self.cached


if __name__ == "__main__":
    main()
