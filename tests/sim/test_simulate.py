"""The simulator: same bytes from the same seed, consistent physics, and the traces of each fault."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from trackside.catalog.dialect import translate
from trackside.catalog.metrics import METRICS
from trackside.sim import Truth, load_scenario, simulate
from trackside.sim.exposition import Exposition, labels_text, numbers
from trackside.sim.hardware import MODELS
from trackside.sim.parquet import MAX_BUFFERED_SAMPLES, ParquetTable
from trackside.sim.timeline import STATE_COUNT, RankState, Track

SMALL = "[cluster]\nnodes = 2\ngpus_per_node = 4\n[job]\nduration_s = '12m'\n"
LINE = re.compile(r"^(\w+)\{(.*)\} (\S+) (\d+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')

SeriesByLabels = dict[tuple[str, ...], np.ndarray]


def run(folder: Path, text: str, *changes: str) -> Truth:
    return simulate(load_scenario(text + "\n", changes), folder)


def series_of(folder: Path, metric: str, *by: str) -> SeriesByLabels:
    """(values of the labels ``by``) -> array (samples, 2): seconds and value, in order of time."""
    samples = defaultdict(list)
    for path in sorted((folder / "run" / "metrics").glob("*.prom")):
        for line in path.read_text().splitlines():
            if line.startswith(metric + "{") and (match := LINE.match(line)):
                labels = dict(LABEL.findall(match[2]))
                samples[tuple(labels.get(name, "") for name in by)].append((int(match[4]) / 1000, float(match[3])))
    return {key: np.array(sorted(rows)) for key, rows in samples.items()}


def gpu_series(folder: Path, metric: str) -> SeriesByLabels:
    return series_of(folder, f"DCGM_FI_{metric}", "Hostname", "gpu")


def during(curve: np.ndarray, start: float, end: float) -> np.ndarray:
    return curve[(curve[:, 0] > start) & (curve[:, 0] <= end), 1]


def digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            total.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return total.hexdigest()


TWO_FAULTS = (
    SMALL + "checkpoint_every = 40\n[[fault]]\nkind = 'ecc'\npeers = 'watchdog'\n[[fault]]\nkind = 'starved-input'\n"
)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(tmp_path / name, TWO_FAULTS)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    run(tmp_path / "c", TWO_FAULTS, "seed=2")
    assert digest(tmp_path / "a") != digest(tmp_path / "c")
    code = (
        "import sys; from pathlib import Path; from trackside.sim import Scenario, load_scenario, simulate;"
        "simulate(load_scenario(sys.argv[1]), Path(sys.argv[2]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    subprocess.run([sys.executable, "-c", code, TWO_FAULTS, str(tmp_path / "d")], check=True, env=environment)
    assert digest(tmp_path / "a") == digest(tmp_path / "d")


def test_only_a_simulation_is_overwritten(tmp_path: Path) -> None:
    run(tmp_path, SMALL)
    before = digest(tmp_path)
    run(tmp_path, SMALL)
    assert digest(tmp_path) == before
    (tmp_path / "truth.json").unlink()
    with pytest.raises(ValueError, match="was not made by simulate; give a new or empty folder"):
        run(tmp_path, SMALL)


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and was not made by simulate"):
        run(tmp_path, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_signals_of_a_healthy_run_are_consistent(tmp_path: Path) -> None:
    truth = run(tmp_path, SMALL)
    model = MODELS["H100-80GB"]
    start, end = truth.start + 120, truth.end - 15
    sm, engine = gpu_series(tmp_path, "PROF_SM_ACTIVE"), gpu_series(tmp_path, "PROF_GR_ENGINE_ACTIVE")
    assert len(sm) == 8
    for key, curve in sm.items():
        assert ((curve[:, 1] >= 0) & (curve[:, 1] <= 1)).all()
        assert 0.6 < during(curve, start, end).mean() < 0.9
        assert (during(engine[key], start, end) > during(curve, start, end)).all()
    power, heat, clock = (
        gpu_series(tmp_path, "DEV_POWER_USAGE"),
        gpu_series(tmp_path, "DEV_GPU_TEMP"),
        gpu_series(tmp_path, "DEV_SM_CLOCK"),
    )
    for key in sm:
        assert power[key][:, 1].max() <= model.tdp
        assert during(power[key], start, end).mean() > 0.75 * model.tdp
        assert power[key][0, 1] == pytest.approx(model.idle, rel=0.2)
        assert 15 < heat[key][:, 1].min() < heat[key][:, 1].max() < model.slowdown
        assert during(heat[key], start + 200, end).mean() > heat[key][0, 1] + 20
        assert clock[key][0, 1] == model.clock_idle
        assert (during(clock[key], start, end) > 0.9 * model.clock_max).all()
    used, free = gpu_series(tmp_path, "DEV_FB_USED"), gpu_series(tmp_path, "DEV_FB_FREE")
    for key, curve in used.items():
        assert (curve[:, 1] + free[key][:, 1] == model.memory_mib - model.reserved_mib).all()
        assert during(curve, start + 60, end).mean() == pytest.approx(0.82 * model.memory_mib, rel=0.03)
        assert curve[0, 1] < 16
        assert curve[-1, 1] < 16


COUNTERS = "TYPE (\\S+) counter"


def counters_that_fall(folder: Path) -> set[str]:
    falling = set()
    for path in sorted((folder / "run" / "metrics").glob("*.prom")):
        text = path.read_text()
        for name in re.findall(COUNTERS, text):
            if name.endswith("NVLINK_BANDWIDTH_TOTAL"):  # DCGM calls this rate a counter
                continue
            rows = re.findall(rf"^({name}\{{.*?\}}) (\S+) (\d+)$", text, re.M)
            series = defaultdict(list)
            for labels, value, _ in rows:
                series[re.sub(r',(?:hpc_job)="\w*"', "", labels)].append(float(value))
            falling |= {name for values in series.values() if any(b < a for a, b in pairwise(values))}
    return falling


def test_counters_fall_only_at_declared_restarts(tmp_path: Path) -> None:
    run(tmp_path / "a", SMALL, "telemetry.job_label=false")
    assert counters_that_fall(tmp_path / "a") == set()
    run(tmp_path / "b", SMALL, "telemetry.restart=[{at='50%',plane='tracer',node='gpu001'}]")
    launches = series_of(tmp_path / "b", "trackside_cuda_kernel_launches_total", "node", "gpu")
    assert "trackside_cuda_kernel_launches_total" in counters_that_fall(tmp_path / "b")
    assert all((np.diff(curve[:, 1]) < 0).sum() == (key[0] == "gpu001") for key, curve in launches.items())


def test_a_hang_spins_at_full_engine_activity_and_low_power(tmp_path: Path) -> None:
    hang = "[[fault]]\nkind='collective-hang'\nwatchdog=false\nrank=3\ncancel_after_s='10m'\n"
    truth = run(tmp_path, SMALL + hang, "cluster.gpu=A100-80GB")
    assert truth.since is not None
    start, end = truth.since + 60, truth.end - 30
    for key, curve in gpu_series(tmp_path, "PROF_GR_ENGINE_ACTIVE").items():
        stuck = key == ("gpu001", "3")
        sm = during(gpu_series(tmp_path, "PROF_SM_ACTIVE")[key], start, end)
        power = during(gpu_series(tmp_path, "DEV_POWER_USAGE")[key], start, end)
        util = during(gpu_series(tmp_path, "DEV_GPU_UTIL")[key], start, end)
        assert during(curve, start, end).mean() == pytest.approx(0.0 if stuck else 1.0, abs=0.01)
        assert sm.max() < 0.06
        assert (util == (0 if stuck else 100)).all()
        if not stuck:
            assert 75 < power.mean() < 95  # real ones: 84 to 87 W of 400 W
        assert (during(gpu_series(tmp_path, "DEV_FB_USED")[key], start, end) > 40_000).all()
    launches = series_of(tmp_path, "trackside_cuda_kernel_launches_total", "rank")
    completed = series_of(tmp_path, "trackside_nccl_collectives_completed_total", "rank")
    started = series_of(tmp_path, "trackside_nccl_collectives_started_total", "rank")
    for rank in completed:
        for counter in (launches, completed, started):
            assert np.ptp(during(counter[rank], start, end)) == 0
        ahead = during(started[rank], start, end) - during(completed[rank], start, end)
        assert (ahead == (0 if rank == ("3",) else 1)).all()


def test_published_figures_are_reproduced(tmp_path: Path) -> None:
    truth = simulate(load_scenario("straggler"), tmp_path / "straggler")
    start, end = truth.start + 200, truth.end - 30
    sm = {
        key: during(curve, start, end).mean()
        for key, curve in gpu_series(tmp_path / "straggler", "PROF_SM_ACTIVE").items()
    }
    slow = sm.pop(("gpu002", "3"))
    assert truth.gpus == ("gpu002:3",)
    assert slow == pytest.approx(0.55, abs=0.03)
    assert np.median(list(sm.values())) == pytest.approx(0.16, abs=0.02)

    truth = simulate(load_scenario("slow-interconnect"), tmp_path / "net")
    busy = {}
    for name, folder in (("net", tmp_path / "net"), ("plain", tmp_path / "plain")):
        if name == "plain":
            truth = simulate(load_scenario("healthy"), folder)
        start, end = truth.start + 200, truth.end - 30
        api = series_of(folder, "trackside_cuda_api_seconds_total", "rank", "api")
        busy[name] = sum(np.ptp(during(curve, start, end)) for key, curve in api.items() if key[0] == "5") / (
            end - start
        )
    assert busy["net"] / busy["plain"] == pytest.approx(40, rel=0.2)
    start, end = truth.start + 200, truth.end - 30
    assert during(gpu_series(tmp_path / "net", "PROF_SM_ACTIVE")["gpu001", "0"], start, end).mean() == pytest.approx(
        0.11, abs=0.03
    )
    assert during(gpu_series(tmp_path / "net", "PROF_GR_ENGINE_ACTIVE")["gpu001", "0"], start, end).mean() > 0.95
    assert "NET/Socket" in (tmp_path / "net/run/slurm-48213.out").read_text()


def test_a_hot_gpu_lowers_its_clocks_and_doubles_the_step_time(tmp_path: Path) -> None:
    throttle = "[[fault]]\nkind='clock-throttle'\nnode='1'\ngpu=2\nfactor=0.5\nat='40%'\n"
    truth = run(tmp_path, SMALL + throttle, "job.framework=custom")
    assert truth.since is not None
    key, model = ("gpu002", "2"), MODELS["H100-80GB"]
    start, end = truth.since + 30, truth.end - 20
    assert during(gpu_series(tmp_path, "DEV_GPU_TEMP")[key], start, end).mean() == pytest.approx(model.slowdown, abs=2)
    assert (during(gpu_series(tmp_path, "DEV_SM_CLOCK")[key], start, end) <= 0.51 * model.clock_max).all()
    assert (
        during(gpu_series(tmp_path, "DEV_CLOCK_THROTTLE_REASONS")[key], start, end).astype(int) & 0x48 == 0x48
    ).all()
    assert (
        during(gpu_series(tmp_path, "DEV_CLOCK_THROTTLE_REASONS")["gpu001", "2"], start, end).astype(int) & 0x48 == 0
    ).all()
    paces = [float(match) for match in re.findall(r"([\d.]+) s/step", (tmp_path / "run/slurm-48213.out").read_text())]
    assert paces[-1] / paces[2] == pytest.approx(1.87, abs=0.12)  # the exchange does not slow down
    assert (truth.family, truth.gpus, truth.cascade) == ("B3", ("gpu002:2",), ("D3",))


def test_integrals_agree_with_small_steps() -> None:
    track = Track()
    track.add(0.0, 3.0, RankState.LOAD)
    step = {RankState.DATA: 0.25, RankState.COMPUTE: 1.5, RankState.COLLECTIVE: 0.5}
    track.add(3.0, 20.0, step, launches=9.0, collectives=2.0, steps=1.0)
    track.add(20.0, 24.0, RankState.SPIN, in_flight=1.0)
    times = np.linspace(-1.0, 30.0, 311)
    totals = track.integral().at(times)
    fine_times = np.arange(-1.0, 30.0, 0.001) + 0.0005
    phase = (fine_times - 3.0) % 2.25
    in_step = (fine_times >= 3) & (fine_times < 20)
    for state, is_active in (
        (RankState.LOAD, (fine_times >= 0) & (fine_times < 3)),
        (RankState.DATA, in_step & (phase < 0.25)),
        (RankState.COMPUTE, in_step & (phase >= 0.25) & (phase < 1.75)),
        (RankState.COLLECTIVE, in_step & (phase >= 1.75)),
        (RankState.SPIN, (fine_times >= 20) & (fine_times < 24)),
    ):
        expected = np.interp(times, np.append(fine_times, 30.0), np.append(0, np.cumsum(is_active) * 0.001))
        assert np.abs(totals[:, state] - expected).max() < 0.003
    assert totals[-1, STATE_COUNT] == pytest.approx(9 * 17 / 2.25)
    assert (totals[(times > 20) & (times < 24), STATE_COUNT + 4] == 1).all()
    assert totals[-1, STATE_COUNT + 4] == 0


def test_numbers_have_the_format_of_exporters(tmp_path: Path) -> None:
    assert numbers(np.array([0.0, 1.0, 0.5, 0.123456, 1e-6]), "ratio") == [
        "0.000000", "1.000000", "0.500000", "0.123456", "0.000001",
    ]  # fmt: skip
    assert numbers(np.array([16.365, 699.9999]), "decimal") == ["16.365000", "700.000000"]
    assert numbers(np.array([1.7e13, 4.0]), "whole") == ["17000000000000", "4"]
    assert numbers(np.array([1772438400.123, 2.0]), "short") == ["1772438400.123", "2.0"]
    assert numbers(np.full(3, 0.25), "ratio") == ["0.250000"] * 3
    assert labels_text({"a": 'x"y\\z\n'}) == r'{a="x\"y\\z\n"}'
    with Exposition(tmp_path / "x.prom") as sink:
        sink.begin_metric("m", "gauge", "Help.")
        sink.series({"gpu": "0"}, np.array([1000, 2000]), np.array([1.0, 2.0]), "whole")
        sink.series({}, np.array([1000]), np.array([3.0]), "whole")
    assert (tmp_path / "x.prom").read_text() == (
        '# HELP m Help.\n# TYPE m gauge\nm{gpu="0"} 1 1000\nm{gpu="0"} 2 2000\nm 3 1000\n'
    )


def test_parquet_and_text_hold_the_same_samples(tmp_path: Path) -> None:
    import duckdb

    scenario = load_scenario(SMALL, ("telemetry.planes=['gpu','tracer']",))
    simulate(scenario, tmp_path / "text")
    simulate(scenario, tmp_path / "table", metrics="parquet")
    text = {
        (match[1] + "{" + match[2] + "}", int(match[4])): float(match[3])
        for path in (tmp_path / "text/run/metrics").glob("*.prom")
        for line in path.read_text().splitlines()
        if (match := LINE.match(line))
    }
    rows = duckdb.sql(f"SELECT metric || labels, ts_ms, value FROM '{tmp_path}/table/run/metrics/*.parquet'").fetchall()
    assert len(rows) == len(text)
    assert all(text[series, time] == pytest.approx(value, abs=1e-9) for series, time, value in rows)


@pytest.mark.parametrize("samples", [MAX_BUFFERED_SAMPLES - 1, MAX_BUFFERED_SAMPLES, 2 * MAX_BUFFERED_SAMPLES + 70_000])
def test_parquet_of_many_samples_is_ordered_in_full_row_groups(tmp_path: Path, samples: int) -> None:
    import duckdb

    times = np.arange(100_000, dtype=np.int64)
    expected = []
    with ParquetTable(tmp_path / "x.parquet") as sink:
        for number, first in enumerate(range(0, samples, len(times))):
            values = np.random.default_rng(number).random(min(len(times), samples - first))
            sink.begin_metric(f"m{number}", "gauge", "Help.")
            sink.series({"gpu": str(number)}, times[: len(values)], values, "ratio")
            expected.append((f"m{number}", f'{{gpu="{number}"}}', times[: len(values)], np.round(values, 6)))
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]
    table = duckdb.sql(f"SELECT * FROM '{tmp_path}/x.parquet'").fetchnumpy()
    lengths = [len(series[2]) for series in expected]
    assert table["metric"].tolist() == np.repeat([series[0] for series in expected], lengths).tolist()
    assert table["labels"].tolist() == np.repeat([series[1] for series in expected], lengths).tolist()
    assert (table["ts_ms"] == np.concatenate([series[2] for series in expected])).all()
    assert (table["value"] == np.concatenate([series[3] for series in expected])).all()
    groups = duckdb.sql(
        f"SELECT DISTINCT row_group_id, row_group_num_rows FROM parquet_metadata('{tmp_path}/x.parquet') ORDER BY 1"
    ).fetchall()
    assert all(rows == 122_880 for _, rows in groups[:-1])


def test_an_aborted_parquet_export_leaves_no_file(tmp_path: Path) -> None:
    def broken_off() -> None:
        with ParquetTable(tmp_path / "x.parquet") as sink:
            sink.series({}, np.arange(MAX_BUFFERED_SAMPLES), np.ones(MAX_BUFFERED_SAMPLES), "whole")
            raise ValueError("no such GPU")

    with pytest.raises(ValueError, match="no such GPU"):
        broken_off()
    assert not list(tmp_path.iterdir())


def test_nearly_every_metric_is_in_the_catalog(tmp_path: Path) -> None:
    run(tmp_path, SMALL, "telemetry.training=true")
    names = set()
    for path in (tmp_path / "run/metrics").glob("*.prom"):
        names |= set(re.findall(r"^# TYPE (\S+)", path.read_text(), re.M))
    unknown = {name for name in names if translate(name, {"gpu": "0", "mode": "user"}) is None}
    assert len(unknown) <= 3, unknown
    assert all(name in METRICS for name in names if name.startswith("trackside_"))


def test_gaps_jitter_skew_and_sticky_values(tmp_path: Path) -> None:
    text = SMALL + "[[fault]]\nkind='latent-remap'\nnode='0'\ngpu=1\nxid=63\n"
    truth = run(
        tmp_path, text,
        "telemetry.gap=[{at='30%',length_s='2m',node='gpu001'}]",
        "telemetry.restart=[{at='70%',node='gpu001'}]",
        "telemetry.clock_skew={gpu002=-40}",
        "telemetry.missing_nodes=[]",
    )  # fmt: skip
    for (node, _), curve in gpu_series(tmp_path, "DEV_GPU_TEMP").items():
        steps = np.diff(curve[:, 0])
        assert np.median(steps) == pytest.approx(15, abs=0.1)
        assert (steps.max() > 110) == (node == "gpu001")
        assert len(np.unique(np.round(steps, 3))) > 3
    last = gpu_series(tmp_path, "DEV_XID_ERRORS")["gpu001", "1"]
    assert (last[0, 1], last[-1, 1]) == (63, 0)
    ahead = {
        key[0]: np.median(curve[:, 1] - curve[:, 0])
        for key, curve in series_of(tmp_path, "node_time_seconds", "instance").items()
    }
    assert ahead == {"gpu001:9100": pytest.approx(0, abs=0.01), "gpu002:9100": pytest.approx(-40, abs=0.01)}
    assert (truth.family, [fault.gpus for fault in truth.latent]) == ("G1", [("gpu001:1",)])


def test_metrics_of_a_neighboring_job_stay_with_its_gpus(tmp_path: Path) -> None:
    simulate(load_scenario("healthy-with-a-faulty-neighbor"), tmp_path)
    jobs = series_of(tmp_path, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "gpu", "hpc_job")
    assert {key[0] for key in jobs if key[1] == "48213"} == {"0", "1", "2", "3"}
    assert jobs["5", "47991"][-1, 1] == 1
    assert all(curve[:, 1].max() == 0 for key, curve in jobs.items() if key[0] != "5")
    assert "Xid (PCI:0000:ab:00): 48" in (tmp_path / "run/kernel/gpu001.log").read_text()


def test_memory_does_not_grow_with_the_cluster(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from trackside.sim import Scenario, load_scenario, simulate;"
        "simulate(load_scenario('healthy', tuple(sys.argv[2:])), Path(sys.argv[1]));"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    changes = ["job.duration_s=8h", "telemetry.planes=['gpu','tracer']"]
    peaks = []
    for nodes in (1, 4):
        command = [sys.executable, "-c", code, str(tmp_path / str(nodes)), f"cluster.nodes={nodes}", *changes]
        peaks.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert peaks[1] - peaks[0] < 8, peaks  # MB; the output of a node is released before the next


def test_the_truth_is_written_next_to_the_run(tmp_path: Path) -> None:
    truth = run(tmp_path, SMALL)
    written = json.loads((tmp_path / "truth.json").read_text())
    assert (written["family"], written["steps"], written["disposition"]) == ("G1", truth.steps, "COMPLETED")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "truth.json"]
    assert not any("truth" in path.name for path in (tmp_path / "run").rglob("*"))


def test_a_run_has_its_own_start(tmp_path: Path) -> None:
    run(tmp_path, SMALL, "job.start=2026-03-02T12:00:00Z")
    assert "2026-03-02T12:00:00|" in (tmp_path / "run/sacct.txt").read_text()


def test_the_elapsed_time_of_a_job_is_that_of_its_printed_times(tmp_path: Path) -> None:
    run(tmp_path, SMALL)
    header, job, *_ = (tmp_path / "run" / "sacct.txt").read_text().splitlines()
    fields = dict(zip(header.split("|"), job.split("|"), strict=True))
    start, end = (datetime.fromisoformat(fields[name]) for name in ("Start", "End"))
    assert fields["Elapsed"] == f"0{end - start}"
