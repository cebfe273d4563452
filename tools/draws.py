"""Runs simulated at random: the kind of fault, its parameters, the job, the cluster and how well it was watched.

A draw is a scenario as text, so that a wrong verdict can be examined and stored as a scenario:

    python tools/draws.py 17            # prints draw 17
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cases import Case, from_truth
from trackside.sim import load_scenario, simulate

FIRST = 10_001
"""The scoreboard's first draw. Draws below it are for development: rules may be fitted to them, so they measure nothing."""
Choices = dict[str, Sequence[Any]]
FAULTS: tuple[tuple[str, float, Choices], ...] = (
    ("", 4, {}),
    ("startup-crash", 1, {"fault_class": ("config", "data", "env", "asset"), "text": (0, 1)}),
    ("signal-kill", 1, {"signal": ("SIGKILL",), "cause": ("host-oom", "cgroup-oom", "unseen"), "startup": (True, False)}),
    ("signal-kill", 0.5, {"signal": ("SIGSEGV", "SIGABRT", "SIGBUS"), "cause": ("native",)}),
    ("cuda-oom", 1.5, {"phase": ("load", "first-step", "mid"), "all_ranks": (True, False), "peers": ("teardown", "watchdog")}),
    ("ecc", 1.5, {"contained": (True, False), "remap": ("pending", "failed", "none"), "peers": ("teardown", "watchdog"),
                  "silent": (True, False), "drain": (True, False)}),
    ("gpu-lost", 1, {"hangs": (True, False), "drain": (True, False)}),
    ("latent-remap", 1, {"rows": (1, 3, 8), "ecc": (0, 2), "xid": (0, 48, 63)}),
    ("clock-throttle", 2, {"reason": ("thermal", "software-thermal", "power-brake"), "whole_node": (True, False),
                           "factor": (0.35, 0.5, 0.6)}),
    ("rendezvous-hang", 1, {"ends": ("timeout", "refused", "dns", "silent"), "wait_s": (300, 600)}),
    ("collective-hang", 2, {"cause": ("stuck", "loader-killed", "rank-killed"), "watchdog": (True, False)}),
    ("idle-hang", 1, {"attached": (True, False)}),
    ("starved-input", 2, {"data_s": (6.0, 12.0, 20.0), "saturated": (True, False), "warns": (True, False)}),
    ("save-storm", 1, {"save_s": (5.0, 9.0, 15.0)}),
    ("slow-interconnect", 2, {"factor": (40.0, 80.0, 150.0), "socket": (True, False)}),
    ("launch-blocking", 1, {"printed": (True,)}),
    ("straggler", 2, {"cause": ("gpu", "cpu", "data"), "factor": (2.2, 3.4, 4.5)}),
    ("loss-divergence", 2, {"how": ("nan", "explode", "plateau", "flat")}),
    ("loss-divergence", 0.5, {"how": ("spike",)}),
    ("silent-resume", 1, {"how": ("silent", "proper", "size-mismatch", "corrupt", "empty")}),
    ("undertrained", 1, {"steps": (1, 2, 4)}),
    ("node-down", 1, {"notice_s": (60.0, 120.0), "back_after_s": (0.0, 200.0)}),
    ("preempt", 1, {"requeue": (True, False), "returns": (True, False)}),
    ("timeout", 1, {"share": (0.5, 0.8)}),
    ("user-cancel", 1, {}),
    ("external-kill", 0.5, {}),
    ("storage-full", 0.5, {"quota": (True, False)}),
    ("storage-stall", 1, {"resumes_after_s": (120.0, 300.0)}),
    ("app-exception", 1, {"fault_class": ("code",), "illegal_access": (True, False)}),
)  # fmt: skip
"""(kind, weight, field -> values to choose from); no kind: a healthy run."""
ONE_GPU_FAULTS = frozenset({"idle-hang"})
"""Faults that are drawn only for jobs of one GPU."""
MULTI_NODE_FAULTS = frozenset({"rendezvous-hang", "slow-interconnect"})
"""Faults that need several nodes."""
MULTI_RANK_FAULTS = frozenset({"collective-hang", "straggler", "storage-stall"})
"""Faults that need several ranks."""
FAULTS_WITHOUT_START = frozenset({
    "startup-crash", "rendezvous-hang", "starved-input", "save-storm", "slow-interconnect", "launch-blocking",
    "silent-resume", "undertrained", "timeout", "latent-remap", "idle-hang",
})  # fmt: skip
"""Faults that take no ``at``: their scenario says when they happen."""


def text_of(number: int) -> str:
    """The scenario of one draw, as TOML."""
    rng = random.Random(number)
    kind, _, choices = rng.choices(FAULTS, [weight for _, weight, _ in FAULTS])[0]
    nodes, gpus = rng.choice([(1, 1), (1, 4), (1, 8), (2, 2), (2, 4), (2, 8), (3, 8), (4, 4)])
    if kind in ONE_GPU_FAULTS:
        nodes, gpus = 1, 1
    elif kind in MULTI_NODE_FAULTS and nodes == 1:
        nodes = 2
    elif kind in MULTI_RANK_FAULTS and nodes * gpus < 4:
        nodes, gpus = 1, 4
    n_gpus_allocated = rng.choice([gpus, gpus, gpus, max(gpus, 8)])
    cluster: dict[str, Any] = {
        "nodes": nodes,
        "gpus_per_node": n_gpus_allocated,
        "gpu": rng.choice(["H100-80GB", "A100-80GB"]),
        "prefix": rng.choice(["gpu", "node-", "dgx", "hpc-a"]),
        "zone_hours": rng.choice([0.0, 0.0, 0.0, 2.0, -7.0]),
        "fabric": "ethernet" if kind == "slow-interconnect" else "infiniband",
    }
    interval = rng.choice([10.0, 15.0, 15.0, 30.0, 60.0])
    job: dict[str, Any] = {
        "framework": rng.choice(["hf-trainer", "megatron", "nanogpt", "custom"]),
        "gpus_per_node": gpus,
        "first_gpu": rng.choice([0, n_gpus_allocated - gpus]),
        "duration_s": rng.choice([1500.0, 2400.0, 3600.0, 5400.0]),
        "step_s": rng.choice([0.8, 1.5, 3.0, 6.0]),
        "sm_active": rng.choice([0.55, 0.7, 0.85]),
        "memory_share": rng.choice([0.45, 0.7, 0.9]),
        "log_every": 1 if kind == "undertrained" else 10,
        "eval_every": rng.choice([0, 0, 150]),
        "checkpoint_every": rng.choice([0, 100, 250]),
        "compile_s": rng.choice([0.0, 0.0, 120.0]),
        "nccl_channels": rng.choice([4, 8, 16, 24]),
        "nccl_debug": kind == "slow-interconnect" or rng.random() < 0.3,
        "launcher": "python" if nodes * gpus == 1 else rng.choice(["torchrun", "torchrun", "srun"]),
    }
    telemetry: dict[str, Any] = {
        "interval_s": interval,
        "jitter_ms": rng.choice([4.0, 40.0, 400.0]),
        "profiling": rng.random() < 0.9,
        "dialect": rng.choice(["dcgm", "dcgm", "dcgm", "lower"]),
        "job_label": rng.random() < 0.6,
        "planes": _planes(rng),
    }
    blocks = [f"seed = {number}", _table("cluster", cluster), _table("job", job), _table("telemetry", telemetry)]
    if rng.random() < 0.25:
        blocks.append(
            _table("[telemetry.gaps]", {"at": f"{rng.randint(15, 80)}%", "length_s": rng.choice([60.0, 180.0])})
        )
    if rng.random() < 0.2:
        blocks.append(_table("[telemetry.restarts]", {"at": f"{rng.randint(10, 90)}%"}))
    free = [gpu for gpu in range(n_gpus_allocated) if not job["first_gpu"] <= gpu < job["first_gpu"] + gpus]
    if free and rng.random() < 0.6:
        blocks.append(_table("[neighbors]", {
            "gpus": free, "job": "48777" if telemetry["job_label"] else "",
            "activity": rng.choice(["busy", "idle", "spin", "leftover"]), "ecc": rng.choice([0, 0, 2]),
        }))  # fmt: skip
    if kind:
        fault = {name: rng.choice(values) for name, values in choices.items()}
        if kind not in FAULTS_WITHOUT_START and "at" not in fault:
            fault["at"] = f"{rng.randint(25, 75)}%"
        blocks.append(_table("[faults]", {"kind": kind, **fault}))
    return "\n".join(blocks) + "\n"


def _planes(rng: random.Random) -> list[str]:
    """All kinds of data, or those of a site that collects less."""
    full = ["gpu", "host", "tracer", "logs", "scheduler", "kernel"]
    return rng.choice([
        full, full, full, [p for p in full if p != "tracer"], ["gpu", "logs", "scheduler"], ["gpu", "host", "scheduler"],
        ["logs", "scheduler", "kernel"], ["gpu", "logs"],
    ])  # fmt: skip


def _table(name: str, values: dict[str, Any]) -> str:
    head = f"\n[{name}]"
    return "\n".join([head, *(f"{key} = {json.dumps(value)}" for key, value in values.items())])


def name_of(number: int) -> str:
    """Such as ``draw-17-straggler``."""
    faults = tomllib.loads(text_of(number)).get("faults", [])
    return f"draw-{number}-{'+'.join(fault['kind'] for fault in faults) or 'healthy'}"


@contextmanager
def drawn(number: int) -> Iterator[Case]:
    """One draw, simulated; a context manager that deletes it."""
    text = text_of(number)
    with tempfile.TemporaryDirectory(prefix="draw") as folder:
        simulate(load_scenario(text), Path(folder))
        truth = json.loads((Path(folder) / "truth.json").read_text("utf-8"))
        expected = from_truth(truth)
        if '"rank-killed"' in text or '"loader-killed"' in text:
            expected["accept"] = ["A2"]  # the lost rank causes the hang: either is right
        yield Case(name_of(number), "drawn", Path(folder) / "run", (), expected)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print a scenario drawn at random.")
    parser.add_argument("number", type=int, help="number of the draw")
    print(text_of(parser.parse_args().number))
