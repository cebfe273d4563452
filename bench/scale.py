"""Measure ``diagnose`` of jobs whose metrics are in a real VictoriaMetrics, and how the cost grows with GPUs and hours.

    python bench/scale.py [--jobs 64x24,128x24,256x24,512x24,64x72,16x24,16x72,16x672] [--kind healthy] [--repeat 3] [--folder DIR]

Each job is simulated (30 series a GPU at 15 s, Slurm's records, kernel logs), its metrics are imported into a
VictoriaMetrics on loopback, one for each job, and it is diagnosed in a fresh process from its output and kernel logs, from
commands that print its Slurm records, and from that server. For comparison, in the same run: all raw samples of the job fetched from the same server, which a verdict
would need without aggregation on the server. A wrong verdict ends the bench. Servers' data are kept in DIR
and used again.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import duckdb

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.processes import ProcessResult, run_measured
from bench.victoria import Victoria

JOBS = "64x24,128x24,256x24,512x24,64x72,16x24,16x72,16x672"
TARGET_S = 10.0
"""Target for 512 GPUs and 24 hours, on two cores that the server shares."""
_LINES = """
    SELECT labels, to_json(list(value ORDER BY ts_ms)), to_json(list(ts_ms ORDER BY ts_ms))
    FROM read_parquet(?) WHERE metric = ? GROUP BY labels, ts_ms // 86400000 ORDER BY min(ts_ms)
"""
TRAFFIC = re.compile(r"([\d,]+) requests, ([\d,]+) bytes received")


def build(folder: Path, gpus: int, hours: float, kind: str) -> tuple[Path, Mapping[str, Any]]:
    """A folder with the job's files and its server's data, made unless it exists, and the expected verdict."""
    job_folder = folder / f"{kind}-{gpus}-{hours:g}h"
    summary_file = job_folder.with_suffix(".json")
    if not summary_file.is_file():
        shutil.rmtree(job_folder, ignore_errors=True)
        simulation = run_measured([sys.executable, str(ROOT / "bench/jobs.py"), str(job_folder / "run"), str(gpus), str(hours), kind,
                      "parquet"])  # fmt: skip
        with Victoria(job_folder / "victoria", keep=True) as server:
            begin = time.perf_counter()
            server.send("/api/v1/import", import_lines(job_folder / "run" / "metrics"))
            server.flush()
            seconds = time.perf_counter() - begin
        shutil.rmtree(job_folder / "run" / "metrics")
        summary = json.loads(simulation.out) | {"import_s": seconds, "disk": server.disk}
        summary_file.write_text(json.dumps(summary))
    truth: Mapping[str, Any] = json.loads(summary_file.read_text())
    return job_folder, truth


def import_lines(folder: Path) -> Iterator[bytes]:
    """Parquet files as VictoriaMetrics' import lines: one metric of a file at a time, one line per series and day."""
    with duckdb.connect(config={"memory_limit": "1GB"}) as connection:
        connection.execute("SET enable_progress_bar = false")
        for file in sorted(folder.glob("*.parquet")):
            names = "SELECT DISTINCT metric FROM read_parquet(?) ORDER BY metric"
            for (metric,) in connection.execute(names, [str(file)]).fetchall():
                rows = connection.execute(_LINES, [str(file), metric])
                while row := rows.fetchone():
                    labels, values, times = row
                    labels_by_name = {"__name__": metric} | dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
                    yield f'{{"metric":{json.dumps(labels_by_name)},"values":{values},"timestamps":{times}}}\n'.encode()


def slurm(job_folder: Path) -> Path:
    """Commands that print the job's records, as Slurm's would."""
    folder = job_folder / "bin"
    folder.mkdir(exist_ok=True)
    records = job_folder / "run"
    for name, script in {
        "sacct": f'case "$*" in --version) echo slurm 22.05.8;; --helpformat) head -1 {records}/sacct.txt | tr "|" " ";; '
        f"*) cat {records}/sacct.txt;; esac",
        "scontrol": f'case "$*" in *-V*) echo slurm 22.05.8;; *job*) cat {records}/scontrol-job.txt;; *node*) cat '
        f"{records}/scontrol-node.txt;; esac",
        "squeue": "true",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def diagnose_job(job_folder: Path, url: str, truth: Mapping[str, Any]) -> tuple[ProcessResult, int, int]:
    """Diagnose it once; seconds, requests and bytes. Raises RuntimeError for a wrong verdict."""
    run = job_folder / "run"
    config = job_folder / "trackside.toml"
    config.write_text(f'[metrics]\nurl = "{url}"\n[slurm]\nbin = "{slurm(job_folder)}"\n')
    logs = [str(path) for path in (run / "kernel", *run.glob("*.out"))]
    command = [sys.executable, "-m", "trackside", "diagnose", *logs, "--config", str(config), "--json"]
    process = run_measured([*command, "--job", truth["job"]])
    doc = json.loads(process.out)
    primary = doc["primary"]
    if primary["family"] != truth["family"] or (truth["gpus"] and primary["gpus"] != truth["gpus"]):
        raise RuntimeError(f"{job_folder}: {primary['family']} {primary['gpus']} found, {truth['family']} simulated")
    traffic = next(match for input_row in doc["inputs"] if (match := TRAFFIC.search(input_row["note"])))
    requests, received_bytes = (int(text.replace(",", "")) for text in traffic.groups())
    return process, requests, received_bytes


def fetch_raw(url: str) -> tuple[float, int]:
    """Seconds and bytes of fetching every sample of the job, as lines of JSON, without reading them."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=600)
    begin, count = time.perf_counter(), 0
    connection.request("GET", "/api/v1/export?" + urlencode({"match[]": '{__name__!=""}'}))
    answer = connection.getresponse()
    while chunk := answer.read(1 << 20):
        count += len(chunk)
    connection.close()
    return time.perf_counter() - begin, count


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=JOBS, metavar="GPUSxHOURS,...", help="sizes, GPUs in multiples of 8")
    parser.add_argument("--kind", default="healthy", choices=("healthy", "throttled"))
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each job; the fastest counts")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where servers' data are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [job.split("x") for job in options.jobs.split(",")]
        measure(folder, [(int(gpus), float(hours)) for gpus, hours in jobs], options.kind, options.repeat)


def measure(folder: Path, jobs: list[tuple[int, float]], kind: str, repeat: int) -> None:
    """Print the table."""
    print("| GPUs | hours | samples | bytes a sample on disk | verdict s | CPU s, ours | CPU s, server | peak MiB "
          "| requests | MB fetched | raw: s | raw: MB | raw / ours, bytes |")  # fmt: skip
    print("| ---: " * 13 + "|")
    for gpus, hours in jobs:
        job_folder, truth = build(folder, gpus, hours, kind)
        with Victoria(job_folder / "victoria", keep=True) as server:
            runs = []
            for _ in range(repeat):
                before = server.cpu_so_far_s
                process, requests, received_bytes = diagnose_job(job_folder, server.url, truth)
                runs.append((process, server.cpu_so_far_s - before, requests, received_bytes))
            raw_s, raw_bytes = fetch_raw(server.url)
        best, victoria, requests, received_bytes = min(runs, key=lambda result: result[0].wall_s)
        print(
            f"| {gpus} | {hours:g} | {truth['samples']:,} | {truth['disk'] / truth['samples']:.2f} | {best.wall_s:.2f} "
            f"| {best.cpu_s:.2f} | {victoria:.2f} | {best.peak_mib:,.0f} | {requests} | {received_bytes / 1e6:,.1f} | {raw_s:.1f} "
            f"| {raw_bytes / 1e6:,.0f} | {raw_bytes / received_bytes:.1f} |", flush=True,
        )  # fmt: skip
        if (gpus, hours) == (512, 24) and best.wall_s > TARGET_S:
            print(f"over the target of {TARGET_S:g} s", file=sys.stderr)


if __name__ == "__main__":
    main()
