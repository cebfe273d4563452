"""That tracing stays cheap, with room for a busy machine: bench/trace.py gives the figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.trace.callers import need_bpf

SCRIPT = """
from pathlib import Path
from tests.agent.trace.callers import Jobs, collected, context
from trackside.agent.source import sources
def resident():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
found = sources()
before = resident()
for name in ("cuda", "nccl"):
    collected(found[name].open(context(Jobs(), found[name].options())))
print(resident() - before)
"""


@pytest.mark.service
def test_memory_of_both_sources() -> None:
    need_bpf()
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) < 25_000  # kB; 9 MB measured
