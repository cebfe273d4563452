"""Charts of a run: drawings, captions and tables, with missing data and hostile texts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.families.grids import Cluster, named
from tests.families.rows import END, START, Row, event, job, points
from trackside.evidence import Store
from trackside.facts.fact import Facts
from trackside.finding import Verdict
from trackside.model import Event, EventRole, Record, Run
from trackside.show.charts import busy_wait, event_lanes, reduce
from trackside.show.charts.chart import PAINT, Chart, Drawing, charts, drawings
from trackside.show.charts.phases import display_name, finding_onset
from trackside.show.charts.static_image import LIGHT, standalone
from trackside.stores.memory import MemoryStore
from trackside.verdict import engine

vl_convert = pytest.importorskip("vl_convert")
GIB = 2.0**30
DARK = {
    "ink": "#e4e8ec", "faint": "#3a4149", "ground": "#14181d", "accent": "#74b3ff", "second": "#f2a25c",
    "third": "#a9d46f", "bad": "#ff7b72", "warn": "#f0b83d", "good": "#7bd08b", "band": "#222830",
}  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)>' + 1 + '\\\";\n\x1b[31m\u202e{datum.t}"


def working(nodes: int = 2, gpus: int = 8, **more: Any) -> Cluster:
    """A cluster whose GPUs work from one minute after the start."""
    cluster = Cluster(nodes=nodes, gpus=gpus, **more)
    cluster.per_gpu("gpu_sm_active_ratio", cluster.after(START + 60, 0.7))
    cluster.per_gpu("gpu_engine_active_ratio", cluster.after(START + 60, 0.95))
    cluster.per_gpu("gpu_memory_used_bytes", cluster.after(START + 60, 60 * GIB, GIB))
    cluster.per_gpu("gpu_memory_total_bytes", 80 * GIB)
    return cluster.per_gpu("gpu_temperature_celsius", 60.0).per_gpu("gpu_sm_clock_hertz", 1.98e9)


def cluster_charts(cluster: Cluster, *rows: Row, run: Run | None = None) -> dict[str, Drawing]:
    """The charts of a cluster's run by slug."""
    resolved, store = cluster.store(*rows, run=run)
    return verdict_charts(engine.verdict_of(engine.facts_of(store, resolved)), store)


def verdict_charts(verdict: Verdict, store: Store) -> dict[str, Drawing]:
    """The charts of a verdict by slug; each one is checked."""
    by_slug = {chart.slug: drawing for chart, drawing in drawings(verdict, Facts(store, verdict.run))}
    for drawing in by_slug.values():
        check_drawing(drawing)
    return by_slug


def check_drawing(drawing: Drawing) -> None:
    """Check that the parts of a drawing agree, its spec is JSON and its colors are the page's."""
    text = json.dumps(drawing.spec, allow_nan=False)
    assert '"#' not in text
    names = [signal["name"] for signal in drawing.spec["signals"]]
    assert {"full", "shown", "moment"} <= set(names)
    assert not set(PAINT) & set(names)
    assert drawing.spec["width"] > 0
    assert drawing.caption.endswith(".")
    assert drawing.rows
    assert len(drawing.rows) <= 50
    assert all(len(row) == len(drawing.columns) for row in drawing.rows)
    sets = {data["name"] for data in drawing.spec["data"]}
    assert set(drawing.rasters) <= sets
    if drawing.rasters:
        assert signal(drawing, "choice") in drawing.rasters


def signal(drawing: Drawing, name: str) -> Any:
    """The initial value of a signal."""
    return next(entry["value"] for entry in drawing.spec["signals"] if entry["name"] == name)


def columns(drawing: Drawing, name: str = "curve") -> Mapping[str, list[float]]:
    """The columns of a data set of comma-separated numbers; NaN for empty cells."""
    text = next(data["values"] for data in drawing.spec["data"] if data["name"] == name)
    head, *lines = text.split("\n")
    rows = [[float(cell) if cell else float("nan") for cell in line.split(",")] for line in lines]
    return dict(zip(head.split(","), map(list, zip(*rows, strict=True)), strict=True))


def svg(drawing: Drawing, theme: Mapping[str, str] = LIGHT) -> str:
    """A drawing as SVG."""
    return str(vl_convert.vega_to_svg(standalone(drawing, theme)))


def empty_run() -> tuple[Verdict, MemoryStore]:
    """A run without any data."""
    store = MemoryStore()
    return engine.verdict_of(engine.facts_of(store, Run())), store


# -- which charts a run has


def test_every_chart_file_is_found_once_and_ordered() -> None:
    all_charts = charts()
    assert [chart.slug for chart in all_charts] == ["timeline", "ranks", "busy-wait", "memory", "learning"]
    assert [chart.order for chart in all_charts] == sorted({chart.order for chart in all_charts})


def test_an_empty_run_has_no_charts() -> None:
    assert verdict_charts(*empty_run()) == {}


def test_scheduler_records_alone_give_only_a_timeline() -> None:
    store = MemoryStore(records=[job("FAILED", submit=START - 3600.0, exit_code=1)], planes={"scheduler"})
    by_slug = verdict_charts(
        engine.verdict_of(engine.facts_of(store, Run(id="7", start=START, end=END, disposition="FAILED"))), store
    )
    assert list(by_slug) == ["timeline"]
    assert any("waited 60 min" in row[4] for row in by_slug["timeline"].rows)


def test_an_unstamped_log_gives_the_learning_chart_over_steps() -> None:
    rows = [event("progress", 10 + i, step=10 * i, loss=4.0 - i / 10) for i in range(20)]
    store = MemoryStore(rows, planes={"log"})
    by_slug = verdict_charts(engine.verdict_of(engine.facts_of(store, Run(id="7"))), store)
    assert list(by_slug) == ["learning"]
    assert by_slug["learning"].axis == "step"


@pytest.mark.parametrize(
    ("fields", "unit"),
    [([{"epoch": i} for i in range(20)], "epoch"), ([{"epoch": i // 5} for i in range(20)], "logged line")],
    ids=["one-line-an-epoch", "several-lines-an-epoch"],
)
def test_a_chart_of_a_log_without_steps_names_none(fields: list[dict[str, int]], unit: str) -> None:
    rows = [event("progress", 10 + i, loss=4.0 - i / 10, **position) for i, position in enumerate(fields)]
    store = MemoryStore(rows, planes={"log"})
    chart = verdict_charts(engine.verdict_of(engine.facts_of(store, Run(id="7"))), store)["learning"]
    assert chart.unit == chart.columns[0] == unit
    assert chart.rows[1][0].startswith(f"{unit} ")
    assert '"step' not in json.dumps([chart.spec["axes"], chart.rows])


def test_a_measured_run_has_all_charts() -> None:
    assert list(cluster_charts(working(), *points(), job("COMPLETED"))) == [chart.slug for chart in charts()]


def test_all_charts_query_the_store_in_one_batch() -> None:
    class CountingStore:
        name = "files"

        def __init__(self, store: MemoryStore) -> None:
            self.store, self.batches, self.single = store, 0, 0

        def ask(self, query: Any) -> Any:
            self.single += 1
            return self.store.ask(query)

        def ask_many(self, queries: Any) -> Any:
            self.batches += 1
            return self.store.ask_many(queries)

        def expect(self, queries: Any) -> None:
            self.store.expect(queries)

    run, store = working().store(*points(), job("COMPLETED"))
    verdict = engine.verdict_of(engine.facts_of(store, run))
    counting = CountingStore(store)
    assert len(list(drawings(verdict, Facts(counting, run)))) == len(charts())
    assert (counting.batches, counting.single) == (1, 0)


# -- peaks survive


def test_a_peak_of_one_window_survives_reduction() -> None:
    values = np.zeros(5000)
    values[1234], values[4321] = 9.0, -7.0
    assert {9.0, -7.0} <= set(reduce.downsample_line(values))
    band = reduce.downsample_band(reduce.Band(values, values - 1, values + 1))
    assert len(band.median) <= reduce.MAX_POINTS
    assert (band.high.max(), band.low.min()) == (10.0, -8.0)
    indices = reduce.points(np.arange(5000.0), values)
    assert len(indices) <= reduce.MAX_POINTS + 2
    assert {0, 1234, 4321, 4999} <= set(indices)


def test_reduction_keeps_points_outside_a_dense_region() -> None:
    x = np.concatenate([np.linspace(0, 1, 10_000), np.linspace(1, 1000, 300)])
    indices = reduce.points(x, np.sin(x))
    assert len(indices) <= reduce.MAX_POINTS + 2
    assert len([place for place in indices if x[place] > 1]) > 250


def test_cells_keep_the_peak_or_the_mean_and_gaps() -> None:
    values = np.array([[1.0, 5.0, np.nan, np.nan, 2.0], [3.0, 1.0, 4.0, np.nan, np.nan]])
    assert reduce.downsample_cells(values, 3, "max").tolist()[1][:2] == [3.0, 4.0]
    assert reduce.downsample_cells(values, 3, "avg")[0, 0] == 3.0
    assert np.isnan(reduce.downsample_cells(values, 3, "avg")[0, 1])
    assert reduce.downsample_cells(values, 5, "max") is values


def test_a_short_memory_peak_is_in_the_chart_and_the_table() -> None:
    cluster = Cluster(start=0.0, end=200_000.0, interval=60.0, nodes=1, gpus=2)
    level = np.full(len(cluster.times), 20 * GIB)
    level[777] = 79 * GIB
    cluster.per_gpu("gpu_memory_used_bytes", 20 * GIB, {"n1:1": level})
    cluster.per_gpu("gpu_memory_total_bytes", 80 * GIB)
    memory = cluster_charts(cluster)["memory"]
    assert max(columns(memory)["used_high"]) == pytest.approx(79, rel=1e-3)
    assert len(columns(memory)["t"]) <= reduce.MAX_POINTS
    assert memory.rows[0] == ("n1:1", "79 GiB", "20 GiB", "99%")


# -- one row per GPU


def test_heatmap_rows_are_in_rank_order() -> None:
    cluster = working()
    cluster.per_gpu("gpu_power_watts", 300.0, {"n2:1": 100.0})
    ranks = cluster_charts(cluster)["ranks"]
    power = ranks.rasters["power"]
    assert signal(ranks, "names")[9] == "n2:1, rank 9"
    rows = np.frombuffer(power.cells, np.uint8).reshape(power.height, power.width)
    assert (power.low, power.high) == (100.0, 300.0)
    assert set(rows[9]) == {0}
    assert set(rows[8]) == {254}
    assert power.title == "power"


def test_unsampled_cells_are_blank() -> None:
    cluster = working()
    cluster.per_gpu("gpu_power_watts", 300.0, {"n1:2": cluster.until(START + 1000, 300.0)})
    power = cluster_charts(cluster)["ranks"].rasters["power"]
    rows = np.frombuffer(power.cells, np.uint8).reshape(power.height, power.width)
    assert rows[2, -1] == 255
    assert 255 not in rows[3]


def test_utilization_replaces_missing_engine_activity() -> None:
    cluster = Cluster().per_gpu("gpu_utilization_ratio", 0.9)
    spec = cluster_charts(cluster)
    assert list(spec["ranks"].rasters) == ["utilization"]
    assert "cannot be distinguished" in spec["busy-wait"].caption


def test_two_samples_give_no_chart_over_time() -> None:
    size = len(working().times)
    for count, slugs in ((2, set()), (12, {"busy-wait", "ranks"})):
        shares = np.full(size, np.nan)
        shares[np.linspace(size // 4, size // 2, count, dtype=int)] = 0.9
        by_slug = cluster_charts(Cluster().per_gpu("gpu_utilization_ratio", shares), *points(), job("COMPLETED"))
        assert {"busy-wait", "ranks", "memory"} & set(by_slug) == slugs


def test_the_colors_of_memory_end_at_the_capacity_of_the_card() -> None:
    raster = cluster_charts(working())["ranks"].rasters["memory"]
    assert (raster.low, raster.high) == (0.0, 80.0)


def straggling() -> Cluster:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.noisy(0.16), {"n2:3": cluster.noisy(0.55)})
    cluster.per_gpu("gpu_engine_active_ratio", cluster.noisy(0.96, 0.005))
    return cluster.per_gpu("gpu_power_watts", cluster.noisy(200.0), {"n2:3": cluster.noisy(480.0)})


def test_the_named_gpu_is_marked_in_rows_table_caption_and_lines() -> None:
    by_slug = cluster_charts(straggling(), *points(), job("COMPLETED"))
    assert "Marked: n2:3, named by the verdict." in by_slug["ranks"].caption
    assert by_slug["ranks"].rows[1][:3] == ("marked", "n2:3", "11")
    assert np.nanmedian(columns(by_slug["busy-wait"])["own0"]) == pytest.approx(0.55, abs=0.05)
    assert np.nanmedian(columns(by_slug["busy-wait"])["sm"]) == pytest.approx(0.16, abs=0.02)
    assert "n2:3" in json.dumps(by_slug["busy-wait"].spec)


def test_the_cited_metric_is_selected_first() -> None:
    straggler = straggling().per_gpu("gpu_temperature_celsius", 50.0, {"n2:3": 90.0})
    assert (
        signal(cluster_charts(straggler, *points(), job("COMPLETED"))["ranks"], "choice") == "sm"
    )  # cited by the finding
    assert signal(cluster_charts(working(), *points(), job("COMPLETED"))["ranks"], "choice") == "sm"


def test_a_fault_from_the_start_has_no_onset() -> None:
    spec = cluster_charts(straggling(), *points(), job("COMPLETED"))
    for slug in ("timeline", "busy-wait", "ranks"):
        assert "Straggler" not in json.dumps(spec[slug].spec)
    assert "Verdict:" not in spec["timeline"].caption


def test_a_later_fault_has_an_onset() -> None:
    run, steady = straggling().store(*points(), job("COMPLETED"))
    verdict = engine.verdict_of(engine.facts_of(steady, run))
    assert verdict.family == "D3"
    _, store = straggling().store(*points(10, START + 60, 20.0), *points(10, START + 300, 60.0), job("COMPLETED"))
    for since, has_begun in ((START + 90, False), (START + 290, True)):
        moved = replace(verdict, primary=replace(verdict.primary, since=since))
        assert (finding_onset(moved, Facts(store, moved.run)) is not None) is has_begun


def test_unsampled_time_has_no_phase() -> None:
    cluster = Cluster(nodes=1, gpus=4)
    busy = np.where((cluster.times < START + 300) | (cluster.times > END - 300), 1.0, np.nan)
    cluster.per_gpu("gpu_utilization_ratio", busy)
    spec = cluster_charts(cluster, job("COMPLETED"))
    spans = [row for row in spec["timeline"].rows if row[2] == "phases"]
    assert [row[4].partition(":")[0] for row in spans] == ["GPUs busy", "GPUs busy"]  # utilization proves no work
    assert spec["busy-wait"].caption.startswith("While the GPUs were busy")


def test_the_label_of_the_gap_ignores_a_gpu_that_stopped() -> None:
    no_values = np.full(8, np.nan)
    columns = {"t": np.arange(8.0), "busy": np.ones(8), "under": np.zeros(8), "own0": no_values}
    (label,) = busy_wait._gap_label(columns)
    assert 0 < label["encode"]["update"]["y"]["value"] < busy_wait.HEIGHT


def test_an_isolated_sample_is_a_dot() -> None:
    assert reduce.isolated_flags(np.array([1.0, np.nan, 1.0, 2.0, np.nan, 3.0])).tolist() == [1, 0, 0, 0, 0, 1]
    cluster = Cluster(nodes=1, gpus=2)
    middle = cluster.times[np.abs(cluster.times - (START + END) / 2).argmin()]
    dense = (cluster.times < START + 300) | (cluster.times > END - 300)
    busy = np.where(dense | (cluster.times == middle), 0.5, np.nan)
    cluster.per_gpu("gpu_utilization_ratio", busy).per_gpu("gpu_memory_used_bytes", busy * GIB)
    spec = cluster_charts(cluster, job("COMPLETED"))
    for slug in ("busy-wait", "memory"):
        assert sum(columns(spec[slug])["alone"]) == 1
        assert '"datum.alone' in json.dumps(spec[slug].spec)


def test_a_gpu_without_a_node_is_named_by_its_index() -> None:
    assert (display_name(":2"), display_name("n1:2")) == ("GPU 2", "n1:2")


def test_a_thousand_heatmap_rows_stay_small_and_fast() -> None:
    cluster = Cluster(nodes=128, gpus=8, interval=100.0)
    for name, level in (("gpu_sm_active_ratio", 0.2), ("gpu_engine_active_ratio", 0.9), ("gpu_power_watts", 200.0),
                        ("gpu_temperature_celsius", 60.0)):  # fmt: skip
        cluster.per_gpu(name, level, {"n77:3": level / 2})
    run, store = cluster.store()
    verdict = engine.verdict_of(engine.facts_of(store, run))
    started = time.perf_counter()
    ranks = verdict_charts(verdict, store)["ranks"]
    assert time.perf_counter() - started < 5
    raster = ranks.rasters["sm"]
    assert raster.height == 1024
    assert sum(len(raster.cells) for raster in ranks.rasters.values()) <= 900_000
    assert len(json.dumps(ranks.spec)) < 120_000
    labels = [mark for mark in ranks.spec["marks"] if mark["type"] == "text"]
    assert len(labels) < 120
    assert any("n77:3" in row for row in ranks.rows)
    assert "n77:3" in signal(ranks, "names")[76 * 8 + 3]


# -- the timeline


def test_the_timeline_lists_all_phases() -> None:
    timeline = cluster_charts(working(), *points(20), job("TIMEOUT"), run=None)["timeline"]
    phases = [row for row in timeline.rows if row[2] == "phases"]
    assert [row[4].partition(":")[0] for row in phases] == ["startup", "training", "after the last step"]


def test_every_attempt_and_its_queue_time_are_bars() -> None:
    from trackside.model import Attempt

    attempts = (Attempt(1, "PREEMPTED", 1000.0, 2000.0), Attempt(2, "COMPLETED", 2600.0, 5000.0))
    rows = [
        job("PREEMPTED", submit=900.0, start=1000.0, end=2000.0),
        job("COMPLETED", submit=2000.0, start=2600.0, end=5000.0),
    ]
    run = Run(id="7", start=2600.0, end=5000.0, attempts=attempts, disposition="COMPLETED")
    store = MemoryStore(records=rows)
    timeline = verdict_charts(engine.verdict_of(engine.facts_of(store, run)), store)["timeline"]
    bars = next(data["values"] for data in timeline.spec["data"] if data["name"] == "bars")
    assert [bar["text"] for bar in bars] == [
        "queued 100 s",
        "queued 10 min",
        "attempt 1: PREEMPTED",
        "attempt 2: COMPLETED",
    ]


def test_close_events_are_merged_with_a_count() -> None:
    rows = [
        event("peer_lost", i, time=START + 2000 + i * 0.01, role=EventRole.CASCADE, text=f"lost {i}")
        for i in range(500)
    ]
    rows.append(
        event("exception", 900, time=START + 1990, role=EventRole.ROOT, text="ValueError: no", type="ValueError")
    )
    timeline = cluster_charts(working(), *rows, *points(), job("FAILED"))["timeline"]
    marks = next(data["values"] for data in timeline.spec["data"] if data["name"] == "events")
    assert [(mark["count"], mark["root"]) for mark in marks] == [("", True), ("\N{MULTIPLICATION SIGN}500", False)]
    assert "and 496 more until" in marks[1]["tip"]
    assert any(row[2:4] == ("collectives", "500") for row in timeline.rows)


def test_too_many_events_are_merged_over_wider_intervals() -> None:
    span = (0.0, 1000.0)
    rows = [event_lanes.TimelineEvent(f"lane {i % 9}", float(i) / 10, event("exception", i)) for i in range(10_000)]
    merged = event_lanes.merge_close(rows, span)
    assert len(merged) <= event_lanes.MAX_MARKS
    assert sum(mark.count for mark in merged) == 10_000


def test_events_without_any_time_are_listed() -> None:
    first = event("exception", 5, text="RuntimeError: somewhere")  # before the first line with a time
    alone = event("exception", 500, text="RuntimeError: elsewhere", path="other.log")
    timeline = cluster_charts(working(), first, alone, *points(), job("FAILED"))["timeline"]
    assert ("unknown", "", "exceptions", "2", "RuntimeError: somewhere, and others") in timeline.rows
    assert "2 events without a time are only in the table." in timeline.caption
    assert next(data["values"] for data in timeline.spec["data"] if data["name"] == "events") == []


def test_a_run_without_a_time_zone_has_charts_without_one() -> None:
    rows = [*points(), event("exception", 5, text="RuntimeError: somewhere"), job("FAILED")]
    run, store = working().store(*rows)
    verdict = engine.verdict_of(engine.facts_of(store, replace(run, has_time_zone=False)))
    for name, drawing in verdict_charts(verdict, store).items():
        assert "UTC" not in f"{drawing.caption} {drawing.rows} {json.dumps(drawing.spec)}", name


def test_an_unstamped_event_lies_between_its_neighbors_in_the_file() -> None:
    inside = event("cuda_error", 12, text="CUDA error: unspecified launch failure", role=EventRole.ROOT)
    behind = event("exception", 900, text="RuntimeError: after all")
    other = event("checkpoint_saved", 13, time=START + 1e3, path="other.log")
    timeline = cluster_charts(working(), inside, behind, other, *points(), job("FAILED"))["timeline"]
    marks = next(data["values"] for data in timeline.spec["data"] if data["name"] == "events")
    spans = {(mark["t"] / 1000 - START, mark["to"] / 1000 - START) for mark in marks if mark["between"]}
    assert spans == {(180.0, 240.0), (1200.0, END - START)}
    assert "2 of them without a time of their own: dotted, and marked at the latest possible time" in timeline.caption
    tip = next(mark["tip"] for mark in marks if mark["to"] == (START + 240) * 1000)
    assert tip.startswith("between 1970-01-01 00:19:40 and 00:20:40 UTC")
    assert any(row[2:] == ("exceptions", "1", "between: RuntimeError: after all") for row in timeline.rows)
    assert "NaN" not in svg(timeline)


def test_faults_that_only_metrics_show_are_events() -> None:
    cluster = working()
    cluster.per_gpu("gpu_ecc_uncorrectable_total", 0.0, {"n1:4": cluster.after(START + 1500, 2.0)})
    cluster.per_gpu("gpu_throttle_reasons", 0.0, {"n2:0": cluster.between(START + 900, START + 1800, float(0x40))})
    rows = cluster_charts(cluster, job("COMPLETED"))["timeline"].rows
    assert any("2 uncorrectable ECC errors on n1:4" in row[4] for row in rows)
    assert any(row[2] == "clocks throttled" and "n2:0" in row[4] for row in rows)


def test_out_of_memory_is_marked_where_it_was_logged() -> None:
    oom = event("cuda_oom", 50, time=START + 2500, rank=3, role=EventRole.ROOT, text="torch.OutOfMemoryError")
    memory = cluster_charts(working(), oom, *points(), job("FAILED"))["memory"]
    assert "Out of memory at 1970-01-01 00:58:20 UTC." in memory.caption
    assert "out of memory" in json.dumps(memory.spec)


# -- the learning chart


def learned(*rows: Event | Record, **run: Any) -> Drawing:
    store = MemoryStore([row for row in rows if isinstance(row, Event)], planes={"log"})
    return verdict_charts(engine.verdict_of(engine.facts_of(store, Run(id="7", start=START, end=END, **run))), store)[
        "learning"
    ]


def test_a_flat_loss_has_no_onset_to_mark() -> None:
    flat = [
        event("progress", 10 + i, step=i + 1, loss=2 + 0.01 * (i % 3), lr=0.0, time=START + 60 * i) for i in range(30)
    ]
    risen = [
        event("progress", 10 + i, step=i + 1, loss=2 if i < 10 else 90 + i, time=START + 60 * i) for i in range(30)
    ]
    assert "divergence begins" in json.dumps(learned(*risen).spec)
    assert "divergence begins" not in json.dumps(learned(*flat).spec)


def test_non_finite_points_are_marked_and_worded() -> None:
    losses = [4.0, 3.5, 3.0, float("nan"), float("inf"), float("nan")]
    rows = [event("progress", i, step=i, loss=loss, time=START + 60 * i) for i, loss in enumerate(losses)]
    learning = learned(*rows)
    assert len(columns(learning, "loss_non_finite")["t"]) == 3
    assert columns(learning, "loss")["y"] == [4.0, 3.5, 3.0]
    assert "not finite" in learning.caption
    assert learning.axis == "time"
    assert [row[1] for row in learning.rows[-3:]] == ["nan"] * 3


def test_the_parents_curve_precedes_the_run() -> None:
    parent = [event("parent_progress", i, step=10 * i, loss=8.0 - i / 10, path="parent.log") for i in range(1, 41)]
    anew = learned(*parent, *[event("progress", i, step=10 * i, loss=8.0 - i / 10) for i in range(1, 21)])
    assert min(columns(anew, "loss")["t"]) == 410.0
    assert (min(columns(anew, "loss_parent")["t"]), max(columns(anew, "loss_parent")["t"])) == (210.0, 400.0)
    resumed = learned(*parent, *[event("progress", i, step=400 + 10 * i, loss=4.0) for i in range(1, 21)])
    assert min(columns(resumed, "loss")["t"]) == 410.0
    assert "its last loss was 4." in resumed.caption
    assert resumed.axis == "step"


def test_a_loss_over_several_decades_is_on_a_logarithmic_scale() -> None:
    falling = [event("progress", i, step=i, loss=100.0 * 0.8**i, time=START + i) for i in range(40)]
    assert "loss, logarithmic" in json.dumps(learned(*falling).spec)
    level = [event("progress", i, step=i, loss=4.0 - i / 100, time=START + i) for i in range(40)]
    assert "logarithmic" not in json.dumps(learned(*level).spec)


def test_odd_points_do_not_raise() -> None:
    rows = [
        event("progress", i, step=step, loss=loss, time=START + 1)
        for i, (step, loss) in enumerate([(5, 0.0), (5, -1.0), (float("inf"), 3.0), (2, 1e300), (1, float("-inf"))])
    ]
    store = MemoryStore(rows, planes={"log"})
    verdict_charts(engine.verdict_of(engine.facts_of(store, Run(id="7", start=START, end=END))), store)


# -- hostile texts


def test_hostile_texts_are_inert_in_charts() -> None:
    run, store = named(HOSTILE)
    by_slug = verdict_charts(engine.verdict_of(engine.facts_of(store, run)), store)
    assert set(by_slug) == {chart.slug for chart in charts()}
    for drawing in by_slug.values():
        text = json.dumps(drawing.spec, ensure_ascii=False) + drawing.caption + str(drawing.rows)
        assert "\\u001b" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "<img" not in svg(drawing)  # and an expression that a label broke out of would not parse


# -- as pictures


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_chart_renders_as_svg(theme: Mapping[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    for chart, drawing in ((chart, drawing) for chart, drawing in _straggler()):
        picture = svg(drawing, theme)
        assert picture.startswith("<svg"), chart.slug
        assert theme["ink"] in picture
        assert "NaN" not in picture
        assert ("data:image/png" in picture) == bool(drawing.rasters)
    assert capfd.readouterr().err == ""  # where Vega reports problems


def _straggler() -> list[tuple[Chart, Drawing]]:
    cluster = straggling().per_gpu("gpu_memory_used_bytes", 40 * GIB)
    run, store = cluster.store(*points(), job("COMPLETED", submit=START - 100))
    return list(drawings(engine.verdict_of(engine.facts_of(store, run)), Facts(store, run)))


def test_a_static_image_defines_all_colors_and_leaves_the_chart_unchanged() -> None:
    _, ranks = next(pair for pair in _straggler() if pair[0].slug == "ranks")
    before = json.dumps(ranks.spec)
    image = standalone(ranks)
    assert set(PAINT) <= {signal["name"] for signal in image["signals"]}
    assert json.dumps(ranks.spec) == before
    assert "heatmap" not in json.dumps(image)


def test_a_caption_separates_the_gpus_that_the_verdict_names() -> None:
    cluster = Cluster(gpus=4)
    slow = {f"n1:{gpu}": cluster.noisy(0.46) for gpu in range(4)}
    cluster.per_gpu("gpu_engine_active_ratio", cluster.noisy(0.98, 0.005), slow)
    cluster.per_gpu("gpu_sm_active_ratio", 0.35)
    caption = cluster_charts(cluster, *points(), job("COMPLETED"))["busy-wait"].caption
    assert "the busy share of time was 46% on n1:0-3 and 98% on the others (engine active)" in caption
