"""Measure the ingest of metrics into the embedded store, compared with VictoriaMetrics importing the same samples.

    python bench/ingest.py [--samples 20e6] [--repeat 2] [--folder DIR]

- dcgm-exporter text with timestamps, a file per node: `trackside ingest`, and VictoriaMetrics' /api/v1/import/prometheus
- Parquet, a row per sample: `trackside ingest`; VictoriaMetrics reads no Parquet, so it gets the closest formats,
  JSON lines of a series each (/api/v1/import) and its own dump (/api/v1/import/native)

Both write to an empty store on the same disk. Elapsed and CPU seconds are the minimum of N runs, those of `trackside` and those
of the server. 20 million samples are 5 GB of text.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.processes import folder_bytes, run_measured
from bench.victoria import PROGRAM, Victoria

GPUS, SERIES, A_DAY = 512, 30, 5760
MAX_SAMPLES = 100_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one import."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    disk: int


def ours(source: Path, folder: Path, samples: int) -> Cost:
    """The cost of an import into a new store. Raises RuntimeError if samples are missing."""
    store = folder / "store"
    shutil.rmtree(store, ignore_errors=True)
    process = run_measured([sys.executable, "-m", "trackside", "ingest", str(source), "--store", str(store)])
    if f" {samples:,}" not in process.out.decode():
        raise RuntimeError(f"{samples:,} samples were given; {process.out.decode().strip()}")
    disk = folder_bytes(store)
    shutil.rmtree(store)
    return Cost(process.wall_s, process.cpu_s, process.peak_mib, disk)


def victoria_cost(path: str, files: Sequence[Path], folder: Path, samples: int, dump: Path | None = None) -> Cost:
    """The cost of an import into a new server. Raises RuntimeError if samples are missing."""
    with Victoria(folder / "victoria") as server:
        wall = server.import_files(path, files)
        if server.rows() != samples:
            raise RuntimeError(f"{samples:,} samples were given; {PROGRAM} took {server.rows():,}")
        if dump is not None and not dump.exists():
            server.dump(dump)
    return Cost(wall, server.cpu_s, server.peak_mib, server.disk)


def json_lines(tables: Sequence[Path], out: Path) -> None:
    """The samples of Parquet files in VictoriaMetrics' format, a line per series."""
    import duckdb

    from trackside.catalog.exposition import series_of

    with out.open("w") as file, duckdb.connect() as connection:
        for table in tables:
            rows = connection.execute(
                "SELECT metric, labels, list(value ORDER BY ts_ms), list(ts_ms ORDER BY ts_ms) "
                f"FROM read_parquet('{table}') GROUP BY metric, labels"
            )
            while row := rows.fetchone():
                metric, labels, values, times = row
                named = series_of(metric + labels)
                assert named is not None
                line = {"metric": {"__name__": named[0], **named[1]}, "values": values, "timestamps": times}
                file.write(json.dumps(line, separators=(",", ":")) + "\n")


def made(folder: Path, samples: float) -> int:
    """Make the inputs unless they exist; the number of their samples."""
    note = folder / "made.json"
    if note.is_file():
        return int(json.loads(note.read_text())["samples"])
    hours = samples / (GPUS * SERIES * A_DAY) * 24
    n_samples = 0
    for metrics in ("text", "parquet"):
        run = folder / metrics
        command = [sys.executable, str(ROOT / "bench/jobs.py"), str(run), str(GPUS), str(hours), "healthy", metrics]
        n_samples = int(json.loads(run_measured(command).out)["samples"])
    json_lines(sorted((folder / "parquet/metrics").iterdir()), folder / "series.jsonl")
    note.write_text(json.dumps({"samples": n_samples}))
    return n_samples


def table(folder: Path, samples: int, repeat: int) -> Iterator[str]:
    """Rows of the table, as results arrive."""
    text, parquet, lines, dump = (
        folder / name for name in ("text/metrics", "parquet/metrics", "series.jsonl", "all.native")
    )
    files = sorted(text.iterdir())
    routes: dict[str, Callable[[], Cost]] = {
        "text, trackside": lambda: ours(text, folder, samples),
        "text, VictoriaMetrics": lambda: victoria_cost("/api/v1/import/prometheus", files, folder, samples, dump),
        "Parquet, trackside": lambda: ours(parquet, folder, samples),
        "JSON lines, VictoriaMetrics": lambda: victoria_cost("/api/v1/import", [lines], folder, samples),
        "its own dump, VictoriaMetrics": lambda: victoria_cost("/api/v1/import/native", [dump], folder, samples),
    }
    yield "| route | wall s | samples/s | CPU s | samples/CPU-s | peak MiB | bytes/sample |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    rates: dict[str, tuple[float, float]] = {}
    for name, route in routes.items():
        costs = [route() for _ in range(repeat)]
        wall, cpu, peak = (min(getattr(cost, field) for cost in costs) for field in ("wall_s", "cpu_s", "peak_mib"))
        rates[name] = samples / wall, samples / cpu
        yield (
            f"| {name} | {wall:.1f} | {samples / wall:,.0f} | {cpu:.1f} | {samples / cpu:,.0f} | {peak:,.0f} "
            f"| {costs[-1].disk / samples:.2f} |"
        )
    our_name, their = "text, trackside", "text, VictoriaMetrics"
    yield f"\ntext, trackside : VictoriaMetrics = {_ratio(rates, our_name, their)}"
    for their in ("JSON lines, VictoriaMetrics", "its own dump, VictoriaMetrics"):
        yield f"Parquet, trackside : {their} = {_ratio(rates, 'Parquet, trackside', their)}"


def _ratio(rates: dict[str, tuple[float, float]], our_name: str, their: str) -> str:
    wall, cpu = (rates[our_name][i] / rates[their][i] for i in (0, 1))
    return f"{wall:.2f} on the clock, {cpu:.2f} a CPU second"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--samples",
        type=float,
        default=20e6,
        metavar="N",
        help=f"approximate number of samples, at most {MAX_SAMPLES:,}",
    )
    parser.add_argument("--repeat", type=int, default=2, metavar="N", help="runs of each")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where inputs are kept, to be used again")
    options = parser.parse_args()
    if shutil.which(PROGRAM) is None:
        sys.exit(f"{PROGRAM} is not installed: apt-get install --no-install-recommends {PROGRAM}")
    if not 0 < options.samples <= MAX_SAMPLES:
        parser.error(f"--samples: from 1 to {MAX_SAMPLES:,}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        samples = made(folder, options.samples)
        print(f"{samples:,} samples of {GPUS} GPUs, {SERIES} series each\n")
        for row in table(folder, samples, options.repeat):
            print(row, flush=True)


if __name__ == "__main__":
    main()
