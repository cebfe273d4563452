"""Which series belong to the run, by label, scheduler record or occupancy, and on which clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from trackside.evidence import Grid, MissingAnswer
from trackside.model import Event, Position, Record, Run, Samples, Series
from trackside.query import Query, metric
from trackside.runs.metrics import run_metrics
from trackside.runs.resolve import NoSuchRun, SeveralRuns
from trackside.runs.series_location import NodeNames
from trackside.stores.memory import MemoryStore
from trackside.stores.memory_backend import MemoryBackend
from trackside.verify import check

START, END = 90_000.0, 97_200.0
GIB = float(1 << 30)
MEMORY = "gpu_memory_used_bytes"


class Data:
    """A backend that is filled series by series, sampled every 15 s."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()

    def put(
        self, name: str, values: ArrayLike, start: float = START, end: float = END, path: str = "m.prom",
        every: float = 15.0, **labels: str,
    ) -> Data:  # fmt: skip
        times = np.round(np.arange(start, end + 0.1, every) * 1000).astype(np.int64)
        values = np.broadcast_to(np.asarray(values, dtype=np.float64), times.shape).copy()
        series = Series(name, tuple(sorted(labels.items())), Position(path, 1))
        self.backend.add(Samples([series], np.zeros(len(times), np.int32), times, values))
        return self

    def memory(self, node: str, gpu: str, in_use: tuple[float, float] | None, **more: Any) -> Data:
        """Memory in use: 40 GiB between two times, 4 MB otherwise; from an hour before the run to an hour after."""
        start, end = more.pop("start", START - 3600), more.pop("end", END + 3600)
        times = np.arange(start, end + 0.1, 15)
        low, high = in_use if in_use is not None else (np.inf, np.inf)
        values = np.where((times >= low) & (times < high), 40 * GIB, 4e6)
        return self.put(MEMORY, values, start, end, node=node, gpu=gpu, **more)

    def resolved(self, *rows: Record | Event, **fields: Any) -> tuple[Run, MemoryStore]:
        run = Run(**{"id": "7", "start": START, "end": END, "nodes": ("n1",), **fields})
        store = MemoryStore(
            [row for row in rows if isinstance(row, Event)], [row for row in rows if isinstance(row, Record)]
        )
        run, store.metrics = run_metrics(self.backend, run, store)
        return run, store


def grid(store: MemoryStore, query: Query) -> Grid:
    answer = store.ask(query)
    assert isinstance(answer, Grid), answer
    return answer


def job(**fields: Any) -> Record:
    known = {"id": "7", "state": "COMPLETED", "start": START, "end": END, "source": "sacct", **fields}
    return Record("job", Position("sacct.txt", 2), "scheduler", known)


def log(first: float, last: float) -> Event:
    return Event("log_activity", Position("train.log", 3), "log", fields={"first_time": first, "last_time": last})


def no_scheduler(**fields: Any) -> dict[str, Any]:
    return {"start": None, "end": None, "nodes": (), "id": None, **fields}


# -- by job label


def test_labels_separate_the_jobs_gpus_from_its_neighbors() -> None:
    data = Data()
    for gpu in range(8):
        data.put("gpu_sm_active_ratio", 0.9, node="n1", gpu=str(gpu), job="7" if gpu >= 4 else "8")
    run, store = data.resolved()
    assert (run.gpus, run.gpus_by, run.n_gpus) == (("n1:4", "n1:5", "n1:6", "n1:7"), "label", 4)
    assert grid(store, metric("gpu_sm_active_ratio").over("run", "avg")).labels("gpu") == [
        ("4",),
        ("5",),
        ("6",),
        ("7",),
    ]


def test_a_label_may_change_over_time() -> None:
    """One GPU, three consecutive jobs: only the run's own series counts, but hardware counters continue."""
    data = Data()
    for start, end, id_, level in ((0, START, "6", 0.1), (START, END, "7", 0.9), (END, END + 5000, "8", 0.2)):
        data.put("gpu_sm_active_ratio", level, start, end - 1, node="n1", gpu="0", job=id_)
        data.put("gpu_ecc_uncorrectable_total", 2, start, end - 1, node="n1", gpu="0", job=id_)
    _, store = data.resolved()
    assert grid(store, metric("gpu_sm_active_ratio").over("around", "avg")).value("min").value == 0.9
    # The count was 2 before the run: no increase, not even in the first window.
    assert grid(store, metric("gpu_ecc_uncorrectable_total").over("run", "increase")).value("sum").value == 0


def test_an_alias_is_the_same_job() -> None:
    run, _ = Data().put("gpu_sm_active_ratio", 1, node="n1", gpu="3", job="64").resolved(id="60_3", aliases=("64",))
    assert run.gpus == ("n1:3",)


def test_earlier_attempt_on_other_nodes_is_not_this_one() -> None:
    data = Data().put("gpu_sm_active_ratio", 1, START - 9000, START - 5000, node="n9", gpu="0", job="7")
    run, _ = data.put("gpu_sm_active_ratio", 1, node="n1", gpu="0", job="7").resolved()
    assert run.gpus == ("n1:0",)


def test_mig_instances() -> None:
    data = Data().put("gpu_power_watts", 300, node="n1", gpu="0")
    for mig, id_ in (("1", "7"), ("2", "8")):
        data.put("gpu_sm_active_ratio", 0.1 * int(mig), node="n1", gpu="0", mig=mig, job=id_)
    run, store = data.resolved(n_gpus=1)
    assert run.gpus == ("n1:0",)
    assert grid(store, metric("gpu_sm_active_ratio").over("run", "avg")).labels("mig") == [("1",)]
    assert grid(store, metric("gpu_power_watts").over("run", "avg")).value("avg").value == 300


# -- without labels


def test_scheduler_detail() -> None:
    data = Data()
    for node in ("n1", "n2"):
        for gpu in range(8):
            data.put("gpu_sm_active_ratio", 0.5, node=node, gpu=str(gpu))
    detail = job(gpus=("n1:0", "n1:1", "n2:6", "n2:7"))
    run, _ = data.resolved(detail, nodes=("n1", "n2"), n_gpus=4)
    assert (run.gpus, run.gpus_by) == (("n1:0", "n1:1", "n2:6", "n2:7"), "scheduler")


def test_whole_nodes_in_the_order_of_the_scheduler() -> None:
    data = Data()
    for node in ("n10", "n9"):
        for gpu in (0, 2, 10):
            data.put("gpu_sm_active_ratio", 0.5, node=node, gpu=str(gpu))
    run, _ = data.resolved(nodes=("n9", "n10"), n_gpus=6)
    assert (run.gpus, run.gpus_by) == (("n9:0", "n9:2", "n9:10", "n10:0", "n10:2", "n10:10"), "whole")


def test_tracer_ranks_give_the_gpus_and_their_order() -> None:
    data = Data()
    for gpu in range(4):
        data.put("gpu_sm_active_ratio", 0.5, START - 3000, END + 3000, node="n1", gpu=str(gpu))
    for rank, gpu in ((0, "3"), (1, "1")):
        data.put(
            "trackside_cuda_kernel_launches_total", 5, START + 20, END - 20, node="n1", gpu=gpu, pid="9", rank=str(rank)
        )
    run, _ = data.resolved(n_gpus=2)
    assert (run.gpus, run.gpus_by, run.n_ranks) == (("n1:3", "n1:1"), "tracer", 2)


def test_occupancy_separates_the_runs_gpus_from_others() -> None:
    data = Data().memory("n1", "0", (START + 40, END)).memory("n1", "1", (START + 45, END + 10))
    data.memory("n1", "2", (START - 3000, END + 3000))  # another job's, before and after
    data.memory("n1", "3", (START + 3000, END + 3000))  # another job's, which started later and stayed
    data.memory("n1", "4", (START - 3000, START + 3000))  # another job's, which ended during the run
    data.memory("n1", "5", None)
    run, _ = data.resolved(n_gpus=2)
    assert (run.gpus, run.gpus_by) == (("n1:0", "n1:1"), "occupancy")


def test_occupancy_separates_jobs_back_to_back() -> None:
    """Another job had the GPU until shortly before the run, and another has it shortly after."""
    times = np.arange(START - 3600, END + 3600.1, 15)
    free = ((times > START - 20) & (times < START + 40)) | ((times > END) & (times < END + 40))
    data = Data().put(MEMORY, np.where(free, 0, 40 * GIB), START - 3600, END + 3600, node="n1", gpu="0")
    run, _ = data.memory("n1", "1", (START - 4000, END + 4000)).resolved(n_gpus=1)
    assert run.gpus == ("n1:0",)


def test_idle_gpus_are_the_runs_if_all_others_are_in_use() -> None:
    data = Data().memory("n1", "0", None).memory("n1", "1", (START - 3000, END + 3000))
    run, _ = data.resolved(n_gpus=1)
    assert (run.gpus, run.gpus_by) == (("n1:0",), "occupancy")


def test_gpus_that_cannot_be_distinguished_are_all_included() -> None:
    data = Data()
    for gpu in range(8):
        data.put("gpu_utilization_ratio", 0.5, START - 3000, END + 3000, node="n1", gpu=str(gpu))
    run, _ = data.resolved(n_gpus=2)
    assert (len(run.gpus), run.gpus_by) == (8, "all")


def test_gpus_labeled_for_other_jobs_are_excluded() -> None:
    data = Data()
    for gpu in range(4):
        labels = {"job": "8"} if gpu < 2 else {}
        data.put("gpu_utilization_ratio", 0.5, node="n1", gpu=str(gpu), **labels)
    run, _ = data.resolved(n_gpus=2)
    assert (run.gpus, run.gpus_by) == (("n1:2", "n1:3"), "whole")


# -- names of nodes and GPUs


@pytest.mark.parametrize("host", ["gpu-1", "GPU-1", "gpu-1.cluster.local"])
def test_hosts_match_in_any_spelling(host: str) -> None:
    run, store = Data().put("gpu_sm_active_ratio", 0.5, node=host, gpu="0").resolved(nodes=("gpu-1", "gpu-2"), n_gpus=1)
    assert run.gpus == ("gpu-1:0",)
    assert grid(store, metric("gpu_sm_active_ratio").over("run", "avg")).labels("node") == [("gpu-1",)]


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ("metrics/gpu-1/nvidia-smi.csv", "gpu-1"),
        ("nvidia-smi_gpu-12.csv.gz", "gpu-12"),
        ("nvidia-smi-gpu-1.log", "gpu-1"),
        ("run.tar.gz!gpu-12.cluster/smi.csv", "gpu-12"),
        ("gpu-1/gpu-12/smi.csv", ""),
        ("gpu-123/smi.csv", ""),
    ],
)
def test_node_in_a_path(path: str, node: str) -> None:
    assert NodeNames(("gpu-1", "gpu-12")).node_named_in(path) == node


def test_files_without_a_node_get_it_from_their_path() -> None:
    data = Data()
    for node, level in (("n1", 0.2), ("n2", 0.8)):
        data.put("gpu_utilization_ratio", level, path=f"smi/{node}/smi.csv", gpu="0")
    _, store = data.resolved(nodes=("n1", "n2"), n_gpus=2)
    util = grid(store, metric("gpu_utilization_ratio").over("run", "avg"))
    assert util.labels("node", "gpu") == [("n1", "0"), ("n2", "0")]
    assert util.where(node="n2").value("avg").value == pytest.approx(0.8)


def test_files_without_a_node_in_folders_of_hosts() -> None:
    data = Data()
    for node in ("dgx01", "dgx02"):
        data.put("gpu_utilization_ratio", 0.5, path=f"run/{node}/smi.csv", gpu="0")
    run, _ = data.resolved(**no_scheduler())
    assert run.gpus == ("dgx01:0", "dgx02:0")


def test_uuids_are_resolved_to_node_and_index() -> None:
    data = Data().put("gpu_power_watts", 100, node="n1", gpu="2", gpu_uuid="GPU-AB-1")
    data.put("gpu_utilization_ratio", 0.5, gpu_uuid="ab-1").put("gpu_utilization_ratio", 0.7, gpu_uuid="ab-2")
    _, store = data.resolved(nodes=("n1", "n2"))
    labels = grid(store, metric("gpu_utilization_ratio").over("run", "avg")).labels("node", "gpu")
    assert ("n1", "2") in labels
    assert ("", "ab-2") in labels  # known only by its UUID, and not merged with another GPU


def test_the_gpu_index_comes_from_the_value_of_a_gauge() -> None:
    data = (
        Data().put("gpu_index", 3, node="n1", gpu_uuid="ab-1").put("gpu_power_watts", 100, node="n1", gpu_uuid="ab-1")
    )
    run, store = data.resolved()
    assert run.gpus == ("n1:3",)
    assert grid(store, metric("gpu_power_watts").over("run", "avg")).labels("gpu") == [("3",)]


def test_metrics_of_other_nodes_are_excluded_with_a_reason() -> None:
    run, store = Data().put("gpu_utilization_ratio", 0.5, node="login1", gpu="0").resolved()
    answer = store.ask(metric("gpu_utilization_ratio").over("run", "avg"))
    assert isinstance(answer, MissingAnswer)
    assert "other nodes" in answer.reason
    assert run.gpus == ()


def test_a_job_label_on_another_node_is_ignored_if_the_runs_node_has_metrics() -> None:
    data = Data().put(MEMORY, 40 * GIB, node="n1", gpu="0").put(MEMORY, 60 * GIB, node="zz07", gpu="0", job="7")
    run, store = data.resolved(job(), n_gpus=1)
    assert run.gpus == ("n1:0",)
    assert grid(store, metric(MEMORY).over("run", "max")).labels("node", "gpu") == [("n1", "0")]


def test_incomplete_windows_of_a_running_job_are_left_out() -> None:
    data = Data().put(MEMORY, 40 * GIB, node="n1", gpu="0", start=START - 900)
    ended_run, ended = data.resolved(job(), n_gpus=1)
    _, running = data.resolved(job(state="RUNNING", end=None), disposition="RUNNING", n_gpus=1)
    query = metric(MEMORY).over("around", "count")
    assert ended_run.end == END
    assert grid(ended, query).times[-1] > END
    last = grid(running, query)
    assert END - last.step < last.times[-1] <= END
    data.put(MEMORY, 40 * GIB, node="n1", gpu="0", start=END + 15, end=END + 900)
    _, later = data.resolved(job(state="RUNNING", end=None), disposition="RUNNING", end=END + 900, n_gpus=1)
    np.testing.assert_array_equal(grid(later, last.query).values, last.values)


def test_a_single_node_may_have_another_name() -> None:
    run, _ = Data().put("gpu_utilization_ratio", 0.5, node="ip-10-0-0-9", gpu="0", job="7").resolved()
    assert run.gpus == ("n1:0",)


# -- clocks


@pytest.mark.parametrize("zone", [-8, 5.75, 1])
def test_local_times_against_utc_metrics_by_label(zone: float) -> None:
    start, end = START + zone * 3600, END + zone * 3600
    data = Data().put("gpu_sm_active_ratio", 0.5, start + 20, end - 10, node="n1", gpu="0", job="7")
    run, store = data.resolved()
    assert run.metric_offset_s == -zone * 3600
    value = grid(store, metric("gpu_sm_active_ratio").over("run", "avg")).value("count")
    assert value.number > 200
    assert all(result.holds for result in check({"c": value.cites[0]}, store))


def test_local_times_by_occupancy() -> None:
    hours = 9 * 3600
    data = Data()
    for gpu in range(2):
        in_use = (START + hours + 30, END + hours)
        data.memory("n1", str(gpu), in_use, start=END + 600, end=END + hours + 3600)
    run, _ = data.resolved(n_gpus=2)
    assert (run.metric_offset_s, run.gpus) == (-hours, ("n1:0", "n1:1"))


def test_local_times_of_a_run_longer_than_its_zone() -> None:
    """The window holds samples, but memory was in use an hour earlier, for as long as the run."""
    data = Data()
    for gpu in range(2):
        data.memory("n1", str(gpu), (START - 3600 + 30, END - 3600), start=START - 3900, end=END - 3300)
    run, _ = data.resolved(n_gpus=2)
    assert (run.metric_offset_s, len(run.gpus)) == (3600, 2)
    early = Data().memory("n1", "0", (START, END - 1800), start=START - 300, end=END - 1800)
    assert early.resolved(n_gpus=1)[0].metric_offset_s == 0  # an exporter that stopped does not mean another zone


def test_local_times_of_a_log_that_falls_silent_early() -> None:
    data = Data().memory("n1", "0", (START + 20, END))
    run, _ = data.resolved(log(START + 2 * 3600 * 2, START + 2 * 3600 * 2 + 600), **no_scheduler())
    assert (run.metric_offset_s, run.gpus) == (4 * 3600, ("n1:0",))


def test_metrics_of_another_day_are_excluded() -> None:
    data = Data().put("gpu_sm_active_ratio", 0.5, START + 30000, END + 30500, node="n1", gpu="0")
    run, store = data.resolved()
    assert run.metric_offset_s == 0
    assert isinstance(store.ask(metric("gpu_sm_active_ratio").over("run", "avg")), MissingAnswer)


def test_no_zone_is_guessed_if_the_window_holds_samples() -> None:
    data = Data().put("gpu_sm_active_ratio", 0.5, START + 3600, END + 3600, node="n1", gpu="0")
    assert data.resolved()[0].metric_offset_s == 0


def test_a_step_that_does_not_divide_the_shift_is_refused() -> None:
    data = Data().put("gpu_power_watts", 1, START + 900, END + 900, node="n1", gpu="0", job="7")
    run, store = data.resolved()
    assert run.metric_offset_s == -900
    answer = store.ask(metric("gpu_power_watts").during(0, 1e5).rollup(120, "avg"))
    assert isinstance(answer, MissingAnswer)
    assert "step" in answer.reason
    assert grid(store, metric("gpu_power_watts").over("run", "avg"))


# -- without scheduler records


def test_a_single_job_is_found_by_its_label() -> None:
    data = Data().put("gpu_sm_active_ratio", 0.5, START - 9000, END + 9000, node="n2", gpu="1")
    data.put("gpu_sm_active_ratio", 0.5, node="n2", gpu="0", job="31").put("host_load1", 3, node="n2")
    run, store = data.resolved(**no_scheduler())
    assert (run.id, run.gpus, run.nodes, run.n_gpus) == ("31", ("n2:0",), ("n2",), 1)
    assert (run.start, run.end) == (START - 15, END)
    assert grid(store, metric("host_load1").over("run", "avg"))


def test_edges_of_the_data_are_not_edges_of_the_run() -> None:
    run, _ = Data().put("gpu_sm_active_ratio", 0.5, node="n2", gpu="0", job="31").resolved(**no_scheduler())
    assert (run.start, run.end) == (None, None)


def test_several_jobs_need_a_choice() -> None:
    data = Data().put("gpu_sm_active_ratio", 0.5, node="n2", gpu="0", job="31")
    data.put("gpu_sm_active_ratio", 0.5, node="n2", gpu="1", job="9")
    with pytest.raises(SeveralRuns, match="9, 31"):
        data.resolved(**no_scheduler())
    assert data.resolved(**no_scheduler(id="9"))[0].gpus == ("n2:1",)
    with pytest.raises(NoSuchRun, match="9, 31"):
        data.resolved(**no_scheduler(id="5"))


def test_a_log_among_several_jobs_is_matched_by_time() -> None:
    data = Data().put("gpu_sm_active_ratio", 0.5, START - 9000, END + 9000, node="n2", gpu="0", job="31")
    data.put("gpu_sm_active_ratio", 0.5, node="n2", gpu="1", job="9")
    assert data.resolved(log(START + 20, END - 20), **no_scheduler())[0].id == "9"
    run, store = data.resolved(log(START + 3000, START + 3100), **no_scheduler())
    answer = store.ask(metric("gpu_sm_active_ratio").over("run", "avg"))
    assert run.id is None
    assert isinstance(answer, MissingAnswer)
    assert "--job" in answer.reason


def test_a_run_without_labels_is_found_by_occupancy() -> None:
    data = Data().memory("n1", "0", (START, END)).memory("n1", "1", (START, END)).memory("n1", "2", None)
    run, _ = data.resolved(**no_scheduler())
    assert (run.id, run.gpus, run.gpus_by) == (None, ("n1:0", "n1:1"), "occupancy")
    assert run.start == pytest.approx(START, abs=120)
    assert run.end == pytest.approx(END, abs=120)


def test_memory_in_use_all_the_time_gives_no_window() -> None:
    """Memory left in use by a neighbor, in addition to the run's own."""
    data = Data().memory("n1", "0", (START, END)).memory("n1", "1", (0, 9e9))
    run, _ = data.resolved(**no_scheduler())
    assert run.gpus == ("n1:0",)
    assert run.start == pytest.approx(START, abs=120)


def test_a_log_with_only_its_last_line_gives_no_window() -> None:
    """The log has one line with a time, written by the scheduler at the end, just after the last sample."""
    data = Data().put("gpu_sm_active_ratio", 0.5, START, END - 23, node="n2", gpu="0", job="31")
    run, store = data.resolved(log(END, END), **no_scheduler(id="31"))
    assert run.gpus_by == "label"
    assert grid(store, metric("gpu_sm_active_ratio").over("run", "avg")).samples > 400
    run_by_memory, _ = Data().memory("n1", "0", (START, END)).resolved(log(END, END), **no_scheduler())
    assert run_by_memory.start == pytest.approx(START, abs=120)


def test_a_single_scrape_is_used() -> None:
    data = Data().put("gpu_utilization_ratio", 0.5, START, START, node="n1", gpu="0")
    run, store = data.resolved(**no_scheduler())
    assert run.gpus == ("n1:0",)
    assert grid(store, metric("gpu_utilization_ratio").over("run", "last")).value("last").value == 0.5


def test_log_times_give_the_window() -> None:
    data = Data().put("gpu_utilization_ratio", 0.5, START - 9000, END + 9000, node="n1", gpu="0")
    _, store = data.resolved(log(START, END), **no_scheduler())
    window = grid(store, metric("gpu_utilization_ratio").over("run", "avg")).times
    assert window[0] >= START
    assert window[-1] <= END + 60


def test_a_run_without_metrics_has_no_gpus() -> None:
    run, store = Data().resolved()
    assert run.gpus == ()
    assert isinstance(store.ask(metric("gpu_power_watts").over("run", "avg")), MissingAnswer)


def test_the_citation_of_a_part_covers_only_samples_of_the_grid() -> None:
    """Checking the citation must not include samples from before the queried window."""
    values = np.where(np.arange(START - 3000, END + 3000.1, 15) < START, 1.0, 0.5)
    data = Data().put("gpu_utilization_ratio", values, START - 3000, END + 3000, node="n1", gpu="0")
    _, store = data.resolved()
    util = grid(store, metric("gpu_utilization_ratio").over("run", "avg"))
    value = util.during(START - 2000, START + 600).value("median")
    assert value.value == 0.5
    assert all(result.holds for result in check({"c": value.cites[0]}, store))


def test_the_citation_of_a_count_of_zero_holds() -> None:
    _, store = Data().put("gpu_utilization_ratio", 0.5, START, START + 3000, node="n1", gpu="0").resolved()
    util = grid(store, metric("gpu_utilization_ratio").over("run", "avg"))
    value = util.during(START + 4000, END).value("count")
    assert (value.value, value.unit) == (0, "")
    assert all(result.holds for result in check({"c": value.cites[0]}, store))


def test_files_of_several_machines_are_separated_by_uuid() -> None:
    data = Data()
    for name in ("smi_a", "smi_b"):
        data.put("gpu_utilization_ratio", 0.5, path=f"{name}.csv", gpu="0", gpu_uuid=f"GPU-{name}")
    run, _ = data.resolved(**no_scheduler())
    assert run.gpus == ("smi_a:0", "smi_b:0")
