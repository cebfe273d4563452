#!/usr/bin/env python3
"""The agent's GPU side on a machine that has one: every reading against NVML, probes on the real libraries, real faults.

``make gpu-check`` on a machine with an NVIDIA GPU. It needs Python 3.11, nvidia-ml-py and, for the trainings, a Python
with a CUDA build of torch (``--python``). It lists the checks that could not run, and fails only if a reading is wrong.
``--stand-in`` does the same with scripted GPUs and torch on the CPU: that tests this program, not the readings.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime as dt
import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
for folder in (ROOT, ROOT / "src"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from lab import nvml
from lab.gpu.cases import CASES, REST, GpuCase
from lab.gpu.watch import GpuRecorder, conforms, open_source
from lab.sanitize import Sanitizer
from trackside.agent.nvml.gpu import NvmlGpu
from trackside.agent.nvml.library import Library
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Sample
from trackside.catalog.metrics import METRICS

TRAIN = ROOT / "lab/gpu/train.py"
NODE = "gpu-01"
GPU_SOURCES, TRACERS = ("gpu", "gpm"), ("cuda", "nccl")


@dataclass
class CheckReport:
    """Prints the result of each check, and counts failures."""

    failures: int = 0
    not_run: list[str] = field(default_factory=list)

    def ok(self, text: str) -> None:
        print(f"  ok         {text}", flush=True)

    def wrong(self, text: str) -> None:
        self.failures += 1
        print(f"  WRONG      {text}", flush=True)

    def skip(self, text: str) -> None:
        self.not_run.append(text)
        print(f"  not run    {text}", flush=True)

    def heading(self, text: str) -> None:
        print(f"\n{text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stand-in", action="store_true", help="Use scripted GPUs, and torch on the CPU.")
    parser.add_argument("--python", default="", help="Python with torch (default: the first one found that has it).")
    parser.add_argument(
        "--cases",
        default=",".join(case.how for case in CASES),
        help="Trainings to run, separated by commas; '' runs none (default: all).",
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="Seconds per training (default 180).")
    parser.add_argument("--interval", type=float, default=2.0, help="Seconds between readings (default 2).")
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / ".cache/gpu-check",
        help="Folder for temporary files (default .cache/gpu-check).",
    )
    parser.add_argument(
        "--record", type=Path, help="Folder for recorded scenarios (default: scenarios in the --work folder)."
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    args.record = args.record or args.work / "scenarios"
    report = CheckReport()
    script = stand_in(args.work) if args.stand_in else None
    report.heading("GPUs")
    collectors = open_sources(report, GPU_SOURCES)
    if "gpu" in collectors:
        library = Library()
        facts = machine(library)
        print("".join(f"  {name:<10} {value}\n" for name, value in facts.items()), end="")
        report.heading("Readings of idle GPUs")
        idle = check_idle_readings(report, collectors, args.interval)
        gpu = NvmlGpu(library, library.devices[0])
        for _ in gpu.read():
            pass
        print(f"    GPU 0 does not support: {', '.join(sorted(gpu.unsupported())) or 'nothing; all readings work'}")
        compare_with_nvidia_smi(report, idle)
        report.heading("Probes")
        tracers = open_sources(report, TRACERS)
        report.heading("Trainings")
        python, device = find_torch(report, args)
        for case in [case for case in CASES if case.how in args.cases.split(",")] if python else []:
            play(report, case, args, python, device, {**collectors, **tracers}, script, facts)
        for collector in {**collectors, **tracers}.values():
            collector.close()
        library.close()
    print(f"\n{report.failures} failed, {len(report.not_run)} could not run")
    if args.stand_in:
        print("GPUs were scripted: the readings of real GPUs were not tested")
    if "gpu" not in collectors:
        return 2
    return 1 if report.failures else 0


def stand_in(work: Path) -> nvml.Script:
    """A stand-in GPU whose load follows the trainings."""
    ctypes.CDLL(str(nvml.build(ROOT / ".cache/nvml")))
    script = nvml.Script(work / "script", gpus=1, seed="gpu-check")
    os.environ[nvml.SCRIPT] = str(script.path)
    return script


def open_sources(report: CheckReport, names: tuple[str, ...]) -> dict[str, Collector]:
    """The sources of the agent that can be opened on this machine."""
    collectors: dict[str, Collector] = {}
    for name in names:
        messages: list[str] = []
        try:
            source = source_of(name)
        except ImportError as error:
            report.skip(f"{name}: {error}")
            continue
        try:
            collectors[name] = open_source(source, messages)
            report.ok(f"{name}: {source.title}")
        except AgentSourceUnavailable as error:
            report.skip(f"{name}: {error.reason}" + (f" ({error.remedy})" if error.remedy else ""))
        except Exception as error:  # noqa: BLE001  a tracer that breaks must not hide the rest
            report.wrong(f"{name} does not open: {type(error).__name__}: {error}")
        for line in messages:
            print(f"             {name}: {line}")
    return collectors


def source_of(name: str) -> AgentSource:
    """One source, without what the others need."""
    source: AgentSource = importlib.import_module(f"trackside.agent.sources.{name}").SOURCE
    return source


def machine(library: Library) -> dict[str, str]:
    """A description of this machine, without its name."""
    devices, cuda = library.devices, library.api.nvmlSystemGetCudaDriverVersion_v2()
    return {
        "gpus": f"{len(devices)} x {', '.join(sorted({device_.model for device_ in devices}))}",
        "driver": library.driver,
        "nvml": str(library.api.nvmlSystemGetNVMLVersion()),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "mig": ", ".join(str(device_.index) for device_ in devices if device_.mig) or "off",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpus": str(os.cpu_count()),
    }


# -- readings


def check_idle_readings(report: CheckReport, collectors: Mapping[str, Collector], interval_s: float) -> GpuRecorder:
    """Five readings of idle GPUs: metrics, plausibility and cost."""
    with GpuRecorder(collectors, min(interval_s, 1.0)) as watch:
        time.sleep(5 * min(interval_s, 1.0) + 1)
    for name in collectors:
        source = source_of(name)
        sampled_metrics = {metric for metric, _ in watch.samples if metric in source.metrics}
        for metric in source.metrics:
            values = watch.values_of(metric)
            if values and metric in sampled_metrics:
                print(f"    {metric:<42} {min(values):>18.6g} to {max(values):<18.6g} {METRICS[metric].unit}")
        missing = [metric for metric in source.metrics if metric not in sampled_metrics]
        if missing:
            report.skip(f"{name}: not reported by this GPU or driver: {', '.join(missing)}")
        check_against_catalog(report, watch, source)
        cpu, wall = (sorted(times[index] for times in watch.read_times[name]) for index in (0, 1))
        middle = len(cpu) // 2
        report.ok(f"{name}: a reading takes {cpu[middle] * 1e3:.1f} ms of CPU, {wall[middle] * 1e3:.1f} ms in all")
    for warning, count in watch.warnings.items():
        report.wrong(f"{warning} ({count} times)")
    return watch


def check_against_catalog(report: CheckReport, watch: GpuRecorder, source: AgentSource) -> None:
    """Check names, labels and bounds of the samples, and that no counter fell."""
    problems: dict[str, str] = {}
    for (metric, labels), points in watch.samples.items():
        if metric not in source.metrics:
            continue
        for _, value in points:
            if problem := conforms(Sample(metric, labels, value), source):
                problems[metric] = problem
        falls = any(next_value < value for (_, value), (_, next_value) in pairwise(points))
        if METRICS[metric].kind == "counter" and falls:
            problems[metric] = "a counter that fell"
    for metric, problem in problems.items():
        report.wrong(f"{metric}: {problem}")
    if not problems:
        report.ok(f"{source.id}: all values are within the catalog's bounds, and no counter fell")


_SMI = {
    "memory.total": ("gpu_memory_total_bytes", 1 << 20, 0.01, 0.0),
    "memory.used": ("gpu_memory_used_bytes", 1 << 20, 0.05, float(600 << 20)),
    "temperature.gpu": ("gpu_temperature_celsius", 1.0, 0.1, 5.0),
    "power.draw": ("gpu_power_watts", 1.0, 0.25, 15.0),
    "power.limit": ("gpu_power_limit_watts", 1.0, 0.01, 0.0),
    "clocks.max.sm": ("gpu_sm_clock_max_hertz", 1e6, 0.0, 0.0),
    "pcie.link.gen.max": ("gpu_pcie_link_generation_max", 1.0, 0.0, 0.0),
    "ecc.errors.uncorrected.volatile.total": ("gpu_ecc_uncorrectable_total", 1.0, 0.0, 0.0),
}
"""nvidia-smi's field -> (metric, factor to its unit, allowed relative and absolute difference)."""


def compare_with_nvidia_smi(report: CheckReport, watch: GpuRecorder) -> None:
    """Compare with the same values from nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        report.skip("compare with nvidia-smi: not installed")
        return
    query = [program, "-i", "0", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader,nounits"]
    result = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode:
        report.skip(f"compare with nvidia-smi: it failed: {(result.stdout + result.stderr).strip()[:200]}")
        return
    for cell, (name, (metric, factor, share, amount)) in zip(result.stdout.split(","), _SMI.items(), strict=False):
        ours = [
            points[-1][1]
            for (metric_name, labels), points in watch.samples.items()
            if metric_name == metric and ("gpu", "0") in labels
        ]
        try:
            smi_value = float(cell) * factor
        except ValueError:
            continue  # [N/A]
        if not ours:
            report.wrong(f"nvidia-smi reports {name}, the agent does not")
        elif abs(ours[0] - smi_value) > share * smi_value + amount:
            report.wrong(f"{metric} is {ours[0]:g}, nvidia-smi's {name} is {smi_value:g}")
        else:
            report.ok(f"{metric} agrees with nvidia-smi's {name}: {ours[0]:g}")


# -- trainings


def find_torch(report: CheckReport, args: argparse.Namespace) -> tuple[str, str]:
    """A Python with torch, and the device to train on; both empty if there is none."""
    script = "import torch; print(torch.__version__, torch.cuda.is_available())"
    candidates = [sys.executable, shutil.which("python3") or "", str(ROOT / ".cache/cluster-demo/venv/bin/python")]
    for python in [args.python] if args.python else candidates:
        if not python or not Path(python).exists():
            continue
        result = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=120, check=False)
        if result.returncode:
            continue
        version, has_cuda = result.stdout.split()[-2:]
        if has_cuda == "True" or args.stand_in:
            report.ok(f"torch {version} of {'the GPU' if has_cuda == 'True' else 'the CPU'}")
            return python, "cuda" if has_cuda == "True" and not args.stand_in else "cpu"
        report.skip(f"train: torch {version} sees no GPU")
    report.skip("train: no Python with torch found; name one with --python")
    return "", ""


def play(
    report: CheckReport,
    case: GpuCase,
    args: argparse.Namespace,
    python: str,
    device: str,
    collectors: Mapping[str, Collector],
    script: nvml.Script | None,
    facts: Mapping[str, str],
) -> None:
    """Run a training, check its readings, record the scenario and check Trackside's verdict on it."""
    if case.needs_cuda and device != "cuda":
        report.skip(f"{case.how}: needs a GPU")
        return
    work = args.work / "runs" / case.how
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    command = [python, "-u", str(TRAIN), "--how", case.how, "--device", device, "--seconds", f"{args.seconds:g}"]
    environment = {**os.environ, **case.environment}
    with GpuRecorder(collectors, args.interval) as watch, (work / "train.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=work)
        if script is not None:
            script.now(0, process=f"{process.pid}:60GiB", **case.load[0])
            script.path.open("a").write(
                f"@{time.time() + args.seconds / 3:.3f} 0 {' '.join(f'{k}={v}' for k, v in case.load[1].items())}\n"
            )
        status = wait_or_end(process, args.seconds, case)
    if script is not None:
        script.now(0, process=process.pid, ok="*", **{**REST, "power": 71})
    text = (work / "train.log").read_text("utf-8", "replace")
    if not re.search(case.mark, text):
        report.wrong(f"{case.how}: the fault did not happen (exit {status}): {text.strip()[-300:]}")
        return
    for problem in [text for text in check_samples(case, watch, process.pid, device, script is not None) if text]:
        report.wrong(f"{case.how}: {problem}")
    for warning, count in watch.warnings.items():
        report.wrong(f"{case.how}: {warning} ({count} times)")
    folder = record(case, args.record, work, watch, {**facts, "torch": text.split()[1], "exit": str(status)})
    check_verdict(report, case, folder)


def wait_or_end(process: subprocess.Popen[bytes], seconds: float, case: GpuCase) -> int:
    """The exit status; a training that hangs by design is ended as by a batch system."""
    try:
        return process.wait(seconds if case.needs_end else 4 * seconds + 120)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def check_samples(case: GpuCase, watch: GpuRecorder, pid: int, device: str, is_scripted: bool) -> list[str]:
    """Expectations that the readings of a training do not meet."""
    if device != "cuda" and not is_scripted:
        return []
    busy, memory = max(watch.values_of("gpu_utilization_ratio"), default=0.0), watch.values_of("gpu_memory_used_bytes")
    pids = {dict(labels).get("pid") for metric, labels in watch.samples if metric == "gpu_process_memory_used_bytes"}
    active = watch.values_of("gpu_sm_active_ratio")
    launches = watch.values_of("trackside_cuda_kernel_launches_total")
    return [
        "" if busy > 0.05 else f"utilization never exceeded {busy:g}",
        "" if memory and max(memory) - min(memory) > 1 << 30 else "memory in use did not rise by a GiB",
        "" if not active or max(active) > 0.02 else f"SM activity never exceeded {max(active):g}",
        "" if str(pid) in pids or not pids else f"process {pid} is not listed on a GPU, {sorted(map(str, pids))} are",
        "" if is_scripted or not launches or max(launches) > 100 else "the probes saw no kernel launches",
    ]


def record(case: GpuCase, top: Path, work: Path, watch: GpuRecorder, facts: Mapping[str, str]) -> Path:
    """The scenario: inputs, expected verdict, story, and the machine's facts."""
    folder = top / case.folder
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "inputs").mkdir(parents=True)
    Sanitizer(work, NODE).copy(work / "train.log", folder / "inputs/train.log")
    watch.write(folder / "inputs/gpu.prom.gz", NODE)
    if kernel := [line for line in watch.lines if "NVRM" in line.text]:
        stamped = [
            f"{dt.datetime.fromtimestamp(line.time_ns / 1e9, dt.UTC).isoformat()} {NODE} kernel: {line.text}\n"
            for line in kernel
        ]
        (folder / "inputs/kernel.log").write_text("".join(stamped), "utf-8")
    (folder / "expected.json").write_text(json.dumps(dict(case.expected), indent=1) + "\n", "utf-8")
    (folder / "machine.json").write_text(json.dumps(dict(facts), indent=1) + "\n", "utf-8")
    (folder / "story.md").write_text(
        f"{case.story}\n\nRecorded on {facts['gpus']}, driver {facts['driver']}.\n", "utf-8"
    )
    return folder


def check_verdict(report: CheckReport, case: GpuCase, folder: Path) -> None:
    """Compare the verdict of ``trackside diagnose`` with the expected one, if its packages are installed."""
    missing = [
        name for name in ("click", "duckdb", "msgspec", "numpy", "rich") if importlib.util.find_spec(name) is None
    ]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if missing:
        report.skip(f"{case.how}: judge {folder} ({size // 1000} kB): {', '.join(missing)} not installed")
        return
    program = "from trackside.cli import main; main()"
    command = [sys.executable, "-c", program, "diagnose", str(folder / "inputs"), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    try:
        primary: dict[str, Any] = json.loads(result.stdout)["primary"]
    except (ValueError, KeyError):
        report.wrong(f"{case.how}: no verdict: {result.stderr.strip()[-300:]}")
        return
    keys = [key for key in case.expected if key in ("family", "variant")]
    answer = " ".join(str(primary.get(key)) for key in keys)
    text = f"{case.how}: {answer}, {primary['certainty']}; recorded in {folder} ({size // 1000} kB)"
    if all(primary.get(key) == case.expected[key] for key in keys):
        report.ok(text)
    else:
        report.wrong(f"{text}, expected {' '.join(str(case.expected[key]) for key in keys)}")


if __name__ == "__main__":
    raise SystemExit(main())
