"""Clock throttling: heat or power makes a GPU lower its clocks under load.

Meaning
-------
A GPU reached a thermal or power limit and lowered its clocks, and the work slowed down with it. It is a matter
of cooling and power delivery, not of code or data.

What it looks like
------------------
A hard reason (hardware slowdown, hardware thermal slowdown, software thermal slowdown, power brake) that
stays set while the SM clock falls and step time rises, or SM work falls. The loss goes on falling.

Not this when
-------------
The reason is the software power cap or idleness at a low temperature: both are normal. Low clocks of an idle
GPU are no throttling.

Impact
------
The slowest GPU sets the pace of all ranks.

Do next
-------
Check cooling, fans, dust, power supplies and power caps of the node, and rerun elsewhere meanwhile.

What it cannot tell
-------------------
What in the environment causes it. Without GPU metrics it cannot be judged at all.

References
----------
NVML documentation, clocks event reasons.
"""

from __future__ import annotations

from trackside.diagnose.family import Evidence, Family, unknown
from trackside.model import Finding, Run
from trackside.query import metric

COLLECT = (
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS (older name: CLOCK_THROTTLE_REASONS) of dcgm-exporter over the run",
    "DCGM_FI_DEV_SM_CLOCK, DCGM_FI_DEV_GPU_TEMP, DCGM_FI_DEV_POWER_USAGE and DCGM_FI_PROF_SM_ACTIVE over the run",
)


def judge(evidence: Evidence, run: Run, limits: None) -> Finding:
    """Only metrics can tell; the engine answers UNKNOWN where they are missing."""
    return unknown(["GPU clocks and throttle reasons over the run"], COLLECT)


FAMILY = Family(
    code="B3",
    id="clock-throttle",
    title="Clock throttling by heat or power",
    asks={
        "reasons": metric("gpu_throttle_reasons").over("run", "max"),
        "clocks": metric("gpu_sm_clock_hertz").over("run", "avg"),
    },
    needs=("reasons", "clocks"),
    says={},
    judge=judge,
    explains=("D3",),
    rivals=("D1", "D2"),
    collect=COLLECT,
)
