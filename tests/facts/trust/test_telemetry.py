"""Limits of the metrics are reported and cited, and keep families from judging on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.families.grids import Cluster
from tests.families.rows import END, START, Row, event, job, sentence_name
from trackside.cli import main
from trackside.evidence import Evidence, Grid, MissingAnswer, Value
from trackside.facts.fact import Facts, fact
from trackside.facts.logs.unread_errors import UnreadErrors
from trackside.facts.trust.telemetry import TelemetryTrust
from trackside.facts.trust.unanswered import UnansweredSources
from trackside.family import Family
from trackside.finding import Certainty, Finding, Outcome, Sentence, Verdict, absent, claim_sentence, present
from trackside.model import Run
from trackside.query import Query, metric
from trackside.show.document import citation, decode, document, encode
from trackside.show.plot import downsample, line
from trackside.sim import load_scenario, simulate
from trackside.stores.memory import MemoryStore
from trackside.verdict import engine, plots
from trackside.verify import check
from trackside.wording import metric_phrase, span, word


def metric_limits(cluster: Cluster, *rows: Row, run: Run | None = None) -> dict[str, str]:
    """Key -> sentence of each preflight claim about the metrics; checks every citation."""
    resolved, store = cluster.store(*rows, run=run)
    claims = trust_of(store, resolved).claims
    cites = [citation(cite) for claim in claims for cite in claim.cites]
    broken = [result for result in check({str(i): cite for i, cite in enumerate(cites)}, store) if not result.holds]
    assert not broken, broken
    return {sentence_name(claim): claim_sentence(claim) for claim in claims}


def trust_of(store: MemoryStore, run: Run) -> TelemetryTrust:
    """The trust in the run's metrics."""
    trust = Facts(store, run).get(TelemetryTrust)
    assert isinstance(trust, TelemetryTrust)
    return trust


def monitored(**shape: Any) -> Cluster:
    """A cluster with complete metrics."""
    cluster = Cluster(**shape).per_gpu("gpu_utilization_ratio", 0.9).per_gpu("gpu_sm_active_ratio", 0.7)
    return cluster.per_node("host_load1", 8)


def test_complete_metrics_have_no_limits() -> None:
    cluster = monitored().per_node("scrape_up", 1, target="gpu").per_node("host_boot_time_seconds", 5)
    cluster.per_gpu("gpu_energy_joules_total", cluster.growing(500)).per_node("host_time_seconds", cluster.times)
    assert metric_limits(cluster) == {}


def test_missing_metrics_and_metrics_of_other_nodes_are_reported() -> None:
    assert list(metric_limits(Cluster())) == ["no_gpu_metrics"]
    assert list(metric_limits(monitored(), run=Run(id="7", start=START, end=END, nodes=("n8", "n9")))) == [
        "metrics_elsewhere"
    ]


# -- coverage


def test_nodes_without_metrics_are_reported() -> None:
    nodes = ("n1", "n2", "n3", "n4")
    limits = metric_limits(
        monitored(), job("FAILED", nodes=nodes), run=Run(id="7", start=START, end=END, nodes=nodes, n_gpus=32)
    )
    assert limits == {
        "nodes_unmeasured": "No GPU metrics of n3 and n4 were given: GPU faults there may be missing here"
    }


def test_gpus_without_metrics_are_reported() -> None:
    cluster = monitored(nodes=1, gpus=6)
    run = Run(id="7", start=START, end=END, nodes=("n1",), n_gpus=8)
    assert metric_limits(cluster, job("FAILED", n_gpus=8), run=run) == {
        "gpus_unmeasured": "Only 6 of the run's 8 GPUs were measured"
    }


def test_missing_sm_activity_is_reported() -> None:
    assert "sm_not_measured" in metric_limits(Cluster().per_gpu("gpu_utilization_ratio", 0.9))


def test_gpus_of_unknown_jobs_are_not_judged() -> None:
    cluster = monitored(nodes=1)
    run = cluster.run(n_gpus=2)
    assert "2 of the 8 GPUs measured" in metric_limits(cluster, job("FAILED", n_gpus=2), run=run)["gpus_guessed"]
    resolved, store = cluster.store(run=run)
    trust = trust_of(store, resolved)
    query = metric("gpu_sm_active_ratio").over("run", "avg")
    assert isinstance(trust.checked(query, store.ask(query)), MissingAnswer)
    other = metric("host_load1").over("run", "avg")
    assert isinstance(trust.checked(other, store.ask(other)), Grid)


def test_gpus_are_identified_by_their_memory_use() -> None:
    cluster = Cluster(start=400, end=5600, nodes=1, gpus=4)
    cluster.per_gpu("gpu_utilization_ratio", 0.9).per_gpu("gpu_sm_active_ratio", 0.7)
    inside = cluster.between(START + 60, END - 15, 4e10, 1e6)
    cluster.per_gpu("gpu_memory_used_bytes", 4e10, but={"n1:0": inside, "n1:1": inside})
    sentences = metric_limits(cluster, run=cluster.run(n_gpus=2, start=START, end=END))
    assert sentences == {
        "gpus_by_memory": "The run's GPUs are those whose memory was in use during the run: n1:0 and n1:1"
    }


@pytest.mark.parametrize("gpus", [1, 2])
def test_one_gpu_is_not_called_all_gpus(gpus: int) -> None:
    cluster = Cluster(nodes=1, gpus=gpus)
    cluster.per_gpu("gpu_utilization_ratio", 0.9).per_gpu("gpu_sm_active_ratio", 0.7)
    run = Run(start=START, end=END, gpus=cluster.gpus, gpus_by="all")
    texts = metric_limits(cluster, run=run)
    unknown = "Which GPUs the run used is unknown: "
    if gpus == 1:
        assert texts["gpu_unsure"] == f"{unknown}n1:0, the only one measured, is assumed to be its own"
    else:
        assert texts["gpus_unsure"] == f"{unknown}all 2 measured GPUs are assumed to be its own"


# -- gaps


def test_a_gap_of_all_nodes_is_reported() -> None:
    cluster = Cluster()
    values = cluster.between(2000, 2900, np.nan, 0.9)
    sentences = metric_limits(cluster.per_gpu("gpu_utilization_ratio", values).per_gpu("gpu_sm_active_ratio", values))
    assert sentences["metrics_missing"] == (
        "21% of the GPU metrics of n1 and n2 are missing; the longest gap is 14 min, from 1970-01-01 00:34:00 UTC"
    )


def test_one_lost_scrape_is_no_gap() -> None:
    cluster = Cluster()
    values = cluster.between(2000, 2060, np.nan, 0.9)
    assert metric_limits(cluster.per_gpu("gpu_utilization_ratio", values).per_gpu("gpu_sm_active_ratio", values)) == {}


def test_rare_samples_are_no_gap() -> None:
    """One metric is sampled every four minutes, the others every 15 s."""
    cluster = monitored()
    seldom = np.where(np.arange(len(cluster.times)) % 16 == 0, 0.5, np.nan)
    cluster.per_gpu("gpu_tensor_active_ratio", seldom)
    resolved, store = cluster.store()
    query = metric("gpu_tensor_active_ratio").over("run", "avg")
    answer = store.ask(query)
    assert isinstance(trust_of(store, resolved).checked(query, answer), Grid)


def test_metrics_that_start_late_and_end_early_are_reported() -> None:
    cluster = Cluster()
    values = cluster.between(START + 600, END - 900, 0.9, np.nan)
    sentences = metric_limits(cluster.per_gpu("gpu_utilization_ratio", values).per_gpu("gpu_sm_active_ratio", values))
    assert sentences["metrics_start_late"] == "GPU metrics start 10 min after the run"
    assert sentences["metrics_end_early"] == "GPU metrics end 15 min before the run does"


@pytest.mark.parametrize(("host", "key"), [(8.0, "exporter_dead"), (np.nan, "node_silent")])
def test_a_dead_exporter_is_distinguished_from_a_dead_node(host: float, key: str) -> None:
    cluster = monitored()
    dead = cluster.until(3000, 0.9)
    fresh = Cluster().per_gpu("gpu_utilization_ratio", 0.9, but={f"n2:{i}": dead for i in range(8)})
    fresh.per_gpu("gpu_sm_active_ratio", 0.9).per_node("host_load1", 8, but={"n2": cluster.after(3000, host, 8)})
    sentences = metric_limits(fresh)
    assert "n2 stop at 1970-01-01 00:50:00 UTC" in sentences[key]
    assert {"exporter_dead", "node_silent"} & set(sentences) == {key}


def test_failed_scrapes_are_reported() -> None:
    cluster = monitored()
    cluster.per_node("scrape_up", 1, but={"n2": cluster.between(2000, 3000, 0, 1)}, target="gpu")
    assert "exporters of n2 answered 7" in metric_limits(cluster)["exporter_down"].lower()


def test_failed_collectors_are_reported() -> None:
    cluster = monitored().per_node("trackside_collector_success", 1, but={"n2": 0.0}, collector="nvml")
    assert metric_limits(cluster)["collector_failed"] == "The collectors nvml of n2 failed"


def test_few_samples_are_reported() -> None:
    cluster = monitored(interval=500)
    assert "9 samples per GPU" in metric_limits(cluster)["few_samples"]


# -- counters, clocks, tracers


def test_reboots_and_counter_resets_are_reported() -> None:
    cluster = monitored().per_node("host_boot_time_seconds", 5, but={"n1": Cluster().after(3000, 2950, 5)})
    energy = cluster.growing(500, 1e9)
    again = np.where(cluster.times >= 3000, cluster.growing(500), energy)
    cluster.per_gpu("gpu_energy_joules_total", energy, but={f"n2:{i}": again for i in range(8)})
    sentences = metric_limits(cluster)
    assert sentences["booted"].startswith("n1 rebooted")
    assert sentences["counters_reset"].startswith("Counters of n2 restarted at 1970-01-01 00:50")


def test_each_reboot_has_its_own_time() -> None:
    boots = {"n1": Cluster().after(2000, 1950, 5), "n2": Cluster().after(3000, 2950, 5)}
    run, rows = monitored().per_node("host_boot_time_seconds", 5, but=boots).store()
    texts = [text for claim in trust_of(rows, run).claims if "rebooted" in (text := claim_sentence(claim))]
    assert [text.partition(",")[0] for text in texts] == [
        "n1 rebooted at 1970-01-01 00:32:30 UTC", "n2 rebooted at 1970-01-01 00:49:10 UTC"
    ]  # fmt: skip


def test_the_counter_reset_of_one_gpu_is_not_reported() -> None:
    cluster = monitored()
    again = np.where(cluster.times >= 3000, 0, cluster.growing(500))
    cluster.per_gpu("gpu_energy_joules_total", cluster.growing(500), but={"n2:3": again})
    assert "counters_reset" not in metric_limits(cluster)


@pytest.mark.parametrize(("skew", "key"), [(95.0, "clock_ahead"), (-40.0, "clock_behind"), (3.0, ""), (-3.0, "")])
def test_clock_skew_is_reported(skew: float, key: str) -> None:
    cluster = monitored()
    cluster.per_node("host_time_seconds", cluster.times, but={"n2": cluster.times + skew})
    sentences = metric_limits(cluster)
    assert [name for name in sentences if name.startswith("clock_")] == [key] * bool(key)
    if key:
        figure = sentences[key].split(" is about ")[1].split(" s ")[0]
        assert float(figure) == pytest.approx(abs(skew), abs=8)


@pytest.mark.parametrize(("skew", "key"), [(240, "samples_late"), (-180, "samples_early"), (30, "")])
def test_samples_with_a_skewed_node_clock_are_reported(skew: float, key: str) -> None:
    cluster = Cluster(start=400, end=5600, nodes=4).per_gpu("gpu_utilization_ratio", 0.9)
    usual, off = (cluster.between(START + 60 + by, END - 30 + by, 4e10, 1e6) for by in (0, skew))
    cluster.per_gpu("gpu_memory_used_bytes", usual, but={f"n2:{i}": off for i in range(8)})
    sentences = metric_limits(cluster, run=cluster.run(start=START, end=END))
    assert [name for name in sentences if name.startswith("samples_")] == [key] * bool(key)
    if key:
        assert f"{abs(skew) // 60} min" in sentences[key]


def test_an_unattached_tracer_and_lost_events_are_reported() -> None:
    cluster = monitored().per_gpu("trackside_tracer_attached", 1, but={f"n2:{i}": 0 for i in range(8)}, pid="5")
    cluster.per_node("trackside_tracer_lost_events_total", cluster.growing(0.1))
    sentences = metric_limits(cluster)
    assert "any process on n2" in sentences["tracer_saw_nothing"]
    assert "events" in sentences["lost_events"]


def test_launches_of_an_unattached_tracer_are_missing() -> None:
    cluster = monitored().per_gpu("trackside_tracer_attached", 0, pid="5")
    cluster.per_gpu("trackside_cuda_kernel_launches_total", 0)
    resolved, store = cluster.store()
    trust = trust_of(store, resolved)
    query = metric("trackside_cuda_kernel_launches_total").over("run", "increase")
    answer = trust.checked(query, store.ask(query))
    assert isinstance(answer, MissingAnswer)
    assert "attached" in answer.reason


def test_a_clock_shift_is_reported() -> None:
    cluster = monitored(job="7", start=START + 36000, end=END + 36000)
    run = Run(id="7", start=START, end=END, nodes=("n1", "n2"), n_gpus=16)
    assert metric_limits(cluster, job("FAILED"), run=run)["metric_clock"] == (
        "Metric times were shifted by -10 h to match the run's"
    )


# -- effect on families


def checked(cluster: Cluster, query: Query) -> Grid | MissingAnswer:
    _, store = cluster.store()
    answer = TelemetryTrust().checked(query, store.ask(query))
    assert isinstance(answer, (Grid, MissingAnswer))
    return answer


def test_an_average_over_few_samples_is_missing() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.until(2400, 0.9)).per_gpu("gpu_xid_last", cluster.until(2400, 0))
    for query in (metric("gpu_sm_active_ratio").over("run", "avg"), metric("gpu_sm_active_ratio").over("run", "max")):
        answer = checked(cluster, query)
        assert isinstance(answer, MissingAnswer)
        assert "less than 50%" in answer.reason
    assert isinstance(checked(cluster, metric("gpu_sm_active_ratio").over("run", "count")), Grid)
    assert isinstance(checked(cluster, metric("gpu_xid_last").over("run", "onset")), Grid)


def test_a_tail_without_samples_at_the_end_is_missing() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.until(END - 400, 0.9))
    answer = checked(cluster, metric("gpu_sm_active_ratio").over("tail", "avg"))
    assert isinstance(answer, MissingAnswer)
    assert "end" in answer.reason
    assert isinstance(checked(cluster, metric("gpu_sm_active_ratio").over("run", "avg")), Grid)


def test_two_samples_give_no_average() -> None:
    cluster = Cluster(interval=3000).per_gpu("gpu_sm_active_ratio", 0.9).per_gpu("gpu_memory_used_bytes", 5e9)
    assert isinstance(checked(cluster, metric("gpu_sm_active_ratio").over("run", "avg")), MissingAnswer)
    assert isinstance(checked(cluster, metric("gpu_memory_used_bytes").over("run", "max")), Grid)


def test_processes_may_end_before_the_run() -> None:
    cluster = Cluster()
    cluster.per_gpu("trackside_cuda_kernel_launches_total", cluster.until(2000, 5.0), rank="0")
    assert isinstance(
        checked(cluster, metric("trackside_cuda_kernel_launches_total").over("tail", "last")), MissingAnswer
    )
    assert isinstance(checked(cluster, metric("trackside_cuda_kernel_launches_total").over("run", "increase")), Grid)


SM = metric("gpu_sm_active_ratio").over("run", "avg")
RATIO = Sentence("{v}")


@dataclass(frozen=True)
class Busy:
    """How busy the GPUs were."""

    sm: Value


@dataclass(frozen=True)
class BusyTwice:
    """The same, by two signals."""

    sm: Value


@fact({"sm": SM}, needs=("sm",))
def busy_gpus(evidence: Evidence) -> Busy:
    return Busy(mean_activity(evidence))


@fact({"sm": SM, "util": metric("gpu_utilization_ratio").over("run", "avg")}, needs=("sm", "util"))
def busy_by_two(evidence: Evidence) -> BusyTwice:
    return BusyTwice(mean_activity(evidence))


def mean_activity(evidence: Evidence) -> Value:
    grid = evidence.grid("sm")
    assert grid is not None
    return grid.value("avg")


def busy(gpus: Busy) -> Finding:
    return absent(RATIO(v=gpus.sm))


def busy_twice(gpus: BusyTwice) -> Finding:
    return absent(RATIO(v=gpus.sm))


def family(code: str, judge: Any) -> Family:
    return Family(code, code.lower(), code, judge, collect=("more",))


def test_metrics_of_some_nodes_do_not_rule_out_a_family() -> None:
    cluster = monitored()
    whole, store = cluster.store()
    assert engine.judge_all(store, whole, [family("X1", busy)])[0].outcome is Outcome.ABSENT
    part = replace(whole, nodes=("n1", "n2", "n3"))
    finding = engine.judge_all(store, part, [family("X1", busy)])[0]
    assert (finding.outcome, finding.missing) == (Outcome.UNKNOWN, ("no GPU metrics of n3 were given",))


def test_metrics_that_stop_early_do_not_rule_out_a_family() -> None:
    cluster = monitored()
    late = dict.fromkeys(cluster.gpus[8:], cluster.until(4000, 0.7))
    fresh = Cluster().per_gpu("gpu_utilization_ratio", 0.9, late).per_gpu("gpu_sm_active_ratio", 0.7, late)
    run, store = fresh.store()
    finding = engine.judge_all(store, run, [family("X1", busy)])[0]
    assert (finding.outcome, finding.missing) == (Outcome.UNKNOWN, ("the GPU metrics of n2 end before the run",))


# -- end to end, on simulated runs

DEFECTS: dict[str, tuple[str, tuple[str, ...], str, set[str], tuple[str, str]]] = {
    "a gap of ten minutes": (
        "healthy", ('telemetry.gap=[{at="40%", length_s="10m"}]',),
        "of the GPU metrics of gpu001 and gpu002 are missing; the longest gap is 10 min", set(), ("G1", "established"),
    ),
    "a dead exporter": (
        "healthy", ('telemetry.gap=[{at="60%", length_s="2h", node="gpu002", plane="gpu"}]',),
        "the exporter died, not the node", {"B3", "D1", "D2", "D3"}, ("G1", "supported"),
    ),
    "all exporters dead from the start on": (
        "healthy", ('telemetry.gap=[{at="10%", length_s="3h", plane="gpu"}]',),
        "GPU metrics end 2", {"B3", "D1", "D3"}, ("G1", "supported"),
    ),
    "a node without metrics": (
        "healthy", ('telemetry.missing_nodes=["gpu002"]',),
        "No GPU metrics of gpu002 were given", {"B3", "D1", "D2", "D3"}, ("G1", "supported"),
    ),
    "a clock that is ahead": (
        "healthy", ("telemetry.clock_skew={gpu002=180}",), "The clock of gpu002 is about 2 min 58 s ahead", set(),
        ("G1", "established"),
    ),
    "a hang behind dead exporters": (
        "stuck-rank-watchdog",
        ('telemetry.gap=[{at="30%", length_s="5h"}]', 'telemetry.planes=["gpu", "host", "scheduler"]'),
        "GPU metrics end", {"B3", "C1", "C2", "D3"}, ("U0", "possible"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DEFECTS)
def test_untrusted_metrics_are_reported_first_and_not_judged(case: str, tmp_path: Path) -> None:
    scenario, changes, sentence, unknown, primary = DEFECTS[case]
    simulate(load_scenario(scenario, changes), tmp_path)
    result = CliRunner().invoke(main, ["diagnose", str(tmp_path / "run"), "--json"])
    doc = json.loads(result.stdout)
    assert sentence in " ".join(claim["text"] for claim in doc["preflight"])
    assert list(doc).index("preflight") < list(doc).index("primary")
    assert unknown <= {finding["family"] for finding in doc["unknown"]}
    assert (doc["primary"]["family"], doc["primary"]["certainty"]) == primary
    text = CliRunner().invoke(main, ["diagnose", str(tmp_path / "run")]).stdout
    assert 0 < text.find("\nevidence") < text.find("\ncaution")
    assert sentence in " ".join(text.split())
    if not unknown:
        assert not {"B2", "B3", "D3"} & {finding["family"] for finding in doc["unknown"]}


def test_a_family_whose_need_is_untrusted_is_unknown() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.until(2000, 0.9))
    run, store = cluster.store()
    finding = engine.judge_all(store, run, [family("X1", busy)])[0]
    assert finding.outcome is Outcome.UNKNOWN
    assert "less than 50%" in finding.missing[0]


class BatchRecordingStore(MemoryStore):
    """A store that records its batches of queries."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(planes=store.planes)
        self._rows, self.metrics = store._rows, store.metrics
        self.batches: list[Sequence[Query]] = []

    def ask_many(self, queries: Sequence[Query]) -> list[Any]:
        self.batches.append(queries)
        return super().ask_many(queries)


def test_queries_run_once_and_in_one_batch_per_family() -> None:
    run, plain = monitored().store()
    store = BatchRecordingStore(plain)
    chosen = [
        family("X1", busy),
        family("X2", busy_twice),
        family("X3", busy),
    ]
    facts = Facts(store, run, known={TelemetryTrust: TelemetryTrust()})
    facts.get(UnansweredSources), facts.get(UnreadErrors)
    store.batches.clear()
    engine.judge_by(facts, chosen)
    assert [len(batch) for batch in store.batches] == [1, 1]


# -- wording


def test_gpu_hours_without_a_scheduler() -> None:
    cluster = monitored(job="7")
    run, store = cluster.store(run=Run(), planes=())
    verdict = engine.verdict_of(engine.facts_of(store, run))
    assert verdict.gpu_hours is not None
    assert verdict.gpu_hours.number == pytest.approx(16 * (END - START) / 3600, rel=0.02)
    assert all(result.holds for result in check({"c": citation(verdict.gpu_hours.cites[0])}, store))


def test_a_finding_has_the_curves_that_it_cites() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.after(3000, 0.0, 0.9)).per_gpu("gpu_utilization_ratio", 1.0)
    _, store = cluster.store()
    grid = store.ask(metric("gpu_sm_active_ratio").over("run", "avg"))
    assert isinstance(grid, Grid)
    one_gpu = grid.where(node="n1", gpu="3")
    shows = [RATIO(v=value) for value in (one_gpu.value("last"), grid.value("avg"), grid.value("max"))]
    curves = plots.curves(store, present(Certainty.SUPPORTED, "job", shows))
    assert [(dict(curve.labels), curve.series) for curve in curves] == [({"node": "n1", "gpu": "3"}, 1), ({}, 16)]
    assert curves[1].values[0] == 0.9
    assert curves[1].values[-1] == 0.0
    assert len(curves[0].values) <= plots.MAX_POINTS


def test_curves_are_drawn_as_text() -> None:
    assert line([0.0, 0.5, 1.0, None], "ratio") == "\u2581\u2585\u2588 "
    assert line([5.0, 5.0]) == "\u2588\u2588"
    assert line([0.0, 0.0]) == "\u2581\u2581"
    assert downsample([1.0, 3.0, None, None, 5.0], 3) == [2.0, None, 5.0]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9823, "ratio", "98%"),
        (0.0042, "ratio", "0.42%"),
        (1.98e9, "Hz", "1,980 MHz"),
        (683.2, "W", "683 W"),
        (84.0, "C", "84 \N{DEGREE SIGN}C"),
        (2.5e9, "J", "2.5 GJ"),
        (3 * 2**30, "B/s", "3 GiB/s"),
        (1.0, "bool", "yes"),
        (63.0, "code", "63"),
        (-25200.0, "s", "-7 h"),
        (26123.5, "launches", "26,124 launches"),
    ],
)
def test_measurements_are_worded_with_units(value: float, unit: str, text: str) -> None:
    assert word(value, unit) == text


def test_queries_are_worded() -> None:
    query = metric("gpu_sm_active_ratio").where(node="n1", gpu="3").during(0, 60).rollup(15, "avg").reduce("median")
    assert metric_phrase(str(query)) == ("median of gpu_sm_active_ratio of n1:3", "ratio")
    assert span((0.0, 5400.0)) == "1970-01-01 00:00:00 to 01:30:00 UTC"


def test_a_verdict_with_curves_passes_through_json() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.between(2000, 3000, np.nan, 0.9))
    run, store = cluster.store(event("progress", step=1, loss=2.0))
    grid = store.ask(metric("gpu_sm_active_ratio").over("run", "avg"))
    assert isinstance(grid, Grid)
    sentence = Sentence("the GPUs worked for {share} of the time")
    primary = replace(
        present(Certainty.SUPPORTED, "job", [sentence(share=grid.value("avg"))]), family="U0", id="unknown"
    )
    verdict = Verdict(run, primary, curves=plots.curves(store, primary))
    doc = decode(encode(document(verdict)))
    assert doc.curves[0].metric == "gpu_sm_active_ratio"
    assert None in doc.curves[0].values
    assert doc.cites["c1"].window is not None
