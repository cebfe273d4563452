"""Without kernel support, privileges or the library, tracing is unavailable with a reason."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.agent.trace.callers import Jobs, context, need_bpf
from trackside.agent.source import AgentSourceUnavailable
from trackside.agent.sources import cuda, nccl
from trackside.agent.trace import libbpf, probes


@pytest.fixture
def no_cache() -> Iterator[None]:
    libbpf.library.cache_clear()
    yield
    libbpf.library.cache_clear()


@pytest.mark.usefixtures("no_cache")
def test_without_libbpf_tracing_is_unavailable(monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> None:
    monkeypatch.setattr(libbpf, "NAMES", ("libbpf-that-is-not-there.so",))
    with pytest.raises(AgentSourceUnavailable) as error:
        nccl.SOURCE.open(context(jobs, nccl.NcclOptions()))
    assert "libbpf is not installed" in error.value.reason
    assert "libbpf1" in error.value.remedy


@pytest.mark.parametrize(
    ("number", "reason", "remedy"),
    [
        (errno.EPERM, "does not let", "CAP_BPF, CAP_PERFMON"),
        (errno.ENOSYS, "without BPF", "CONFIG_BPF_SYSCALL"),
        (errno.EINVAL, "Invalid argument", "5.15"),
    ],
)
def test_a_kernel_refusal_gives_reason_and_remedy(number: int, reason: str, remedy: str) -> None:
    error = libbpf.kernel_refusal(number, "BPF programs")
    assert reason in error.reason
    assert remedy in error.remedy


@pytest.mark.service
def test_without_capabilities_tracing_is_unavailable() -> None:
    """In a process that has dropped its capabilities."""
    need_bpf()
    if os.geteuid() != 0:
        pytest.skip("only root has rights to give up")
    script = (
        "import ctypes, os\n"
        "number = {'x86_64': 126, 'aarch64': 91}[os.uname().machine]\n"  # capset
        "nothing = (ctypes.c_uint32 * 6)()\n"
        "assert ctypes.CDLL(None).syscall(number, (ctypes.c_uint32 * 2)(0x20080522, 0), nothing) == 0\n"
        "from trackside.agent.trace.probes import Probes\n"
        "from trackside.agent.source import AgentSourceUnavailable\n"
        "try: Probes('cuda')\n"
        "except AgentSourceUnavailable as error: print(error.reason, '|', error.remedy)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "the kernel does not let this process load BPF programs | run the agent with CAP_BPF" in result.stdout, (
        result.stderr
    )


@pytest.mark.service
def test_an_older_kernel_uses_perf_events(monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> None:
    need_bpf()
    real = probes.bpf

    def bpf_of_older_kernel(command: int, attributes: bytes) -> int:
        kind = int.from_bytes(attributes[8:12], "little")
        if kind in (probes.MULTI, probes.SESSION):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(command, attributes)

    monkeypatch.setattr(probes, "bpf", bpf_of_older_kernel)
    collector = cuda.SOURCE.open(context(jobs, cuda.CudaOptions()))
    try:
        assert collector.tracer.probes.method == "perf"
    finally:
        collector.close()


@pytest.mark.service
def test_programs_for_the_other_machine_pass_the_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    need_bpf()
    for name in ("cuda", "nccl"):
        code = (libbpf.OBJECTS / f"{name}.aarch64.o").read_bytes()
        monkeypatch.setattr(libbpf, "machine_code", lambda _, code=code: code)
        libbpf.BpfObject(name, ("entry", "leave"), (0, 0), ("session",)).close()


def test_tracing_is_not_imported_while_it_is_off() -> None:
    script = (
        "import sys\n"
        "from trackside.agent.source import sources\n"
        "assert not sources()['cuda'].on and not sources()['nccl'].on and not sources()['written'].on\n"
        "print([name for name in sys.modules if name.startswith('trackside.agent.trace')])\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
