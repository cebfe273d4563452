"""Tracing stays cheap, with a margin for a busy machine; bench/trace.py measures the figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.trace.callers import need_bpf

SCRIPT = """
from pathlib import Path
from tests.agent.trace.callers import Jobs, collect_reading, context
from trackside.agent.source import sources
def resident():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
available = sources()
before = resident()
for name in ("cuda", "nccl"):
    collect_reading(available[name].open(context(Jobs(), available[name].options())))
print(resident() - before)
"""


@pytest.mark.service
def test_both_sources_need_little_memory() -> None:
    need_bpf()
    root = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert int(result.stdout) < 25_000  # kB; 9 MB measured
