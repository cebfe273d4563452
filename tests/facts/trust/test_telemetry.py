"""What limits the metric plane is said, cited, and keeps the families from judging on it."""

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
from trackside.facts.trust.telemetry import TelemetryTrust
from trackside.facts.trust.unanswered import UnansweredSources
from trackside.family import Family
from trackside.finding import Certainty, Finding, Outcome, Sentence, Verdict, absent, present
from trackside.model import Run
from trackside.query import Query, metric
from trackside.show.document import citation, decode, document, encode
from trackside.show.plot import downsampled, line
from trackside.show.wording import measured, span, word, worded
from trackside.sim import load_scenario, simulate
from trackside.stores.memory import MemoryStore
from trackside.verdict import engine, plots
from trackside.verify import check


def told(cluster: Cluster, *rows: Row, run: Run | None = None) -> dict[str, str]:
    """Key -> sentence of what preflight says of the metrics; every citation must hold again."""
    resolved, store = cluster.store(*rows, run=run)
    claims = trust_of(store, resolved).claims
    cites = [citation(cite) for claim in claims for cite in claim.cites]
    broken = [one for one in check({str(i): cite for i, cite in enumerate(cites)}, store) if not one.holds]
    assert not broken, broken
    return {sentence_name(claim): worded(claim) for claim in claims}


def trust_of(store: MemoryStore, run: Run) -> TelemetryTrust:
    """What limits the run's metrics."""
    trust = Facts(store, run).get(TelemetryTrust)
    assert isinstance(trust, TelemetryTrust)
    return trust


def watched(**shape: Any) -> Cluster:
    """A cluster on which nothing is amiss."""
    cluster = Cluster(**shape).per_gpu("gpu_utilization_ratio", 0.9).per_gpu("gpu_sm_active_ratio", 0.7)
    return cluster.per_node("host_load1", 8)


def test_nothing_amiss_nothing_said() -> None:
    cluster = watched().per_node("scrape_up", 1, target="gpu").per_node("host_boot_time_seconds", 5)
    cluster.per_gpu("gpu_energy_joules_total", cluster.growing(500)).per_node("host_time_seconds", cluster.times)
    assert told(cluster) == {}


def test_no_metrics_and_none_of_the_runs() -> None:
    assert list(told(Cluster())) == ["no_gpu_metric"]
    assert list(told(watched(), run=Run(id="7", start=START, end=END, nodes=("n8", "n9")))) == ["metrics_elsewhere"]


# -- what is covered


def test_nodes_without_metrics() -> None:
    nodes = ("n1", "n2", "n3", "n4")
    said_ = told(watched(), job("FAILED", nodes=nodes), run=Run(id="7", start=START, end=END, nodes=nodes, n_gpus=32))
    assert said_ == {"nodes_unmeasured": "No GPU metrics of n3 and n4 were given: faults there cannot be ruled out"}


def test_gpus_without_metrics() -> None:
    cluster = watched(nodes=1, gpus=6)
    run = Run(id="7", start=START, end=END, nodes=("n1",), n_gpus=8)
    assert told(cluster, job("FAILED", n_gpus=8), run=run) == {"gpus_unmeasured": "6 of the run's 8 GPUs were measured"}


def test_no_sm_activity() -> None:
    assert "no_sm" in told(Cluster().per_gpu("gpu_utilization_ratio", 0.9))


def test_gpus_that_nothing_tells_apart_are_not_judged() -> None:
    cluster = watched(nodes=1)
    run = cluster.run(n_gpus=2)
    assert "2 of the 8 GPUs measured" in told(cluster, job("FAILED", n_gpus=2), run=run)["gpus_guessed"]
    resolved, store = cluster.store(run=run)
    trust = trust_of(store, resolved)
    query = metric("gpu_sm_active_ratio").over("run", "avg")
    assert isinstance(trust.checked(query, store.ask(query)), MissingAnswer)
    other = metric("host_load1").over("run", "avg")
    assert isinstance(trust.checked(other, store.ask(other)), Grid)


def test_gpus_told_by_their_memory() -> None:
    cluster = Cluster(start=400, end=5600, nodes=1, gpus=4)
    cluster.per_gpu("gpu_utilization_ratio", 0.9).per_gpu("gpu_sm_active_ratio", 0.7)
    inside = cluster.between(START + 60, END - 15, 4e10, 1e6)
    cluster.per_gpu("gpu_memory_used_bytes", 4e10, but={"n1:0": inside, "n1:1": inside})
    sentences = told(cluster, run=cluster.run(n_gpus=2, start=START, end=END))
    assert sentences == {
        "gpus_by_memory": "The run's GPUs are those whose memory was in use during the run: n1:0 and n1:1"
    }


# -- gaps


def test_gap_of_all_nodes() -> None:
    cluster = Cluster()
    values = cluster.between(2000, 2900, np.nan, 0.9)
    sentences = told(cluster.per_gpu("gpu_utilization_ratio", values).per_gpu("gpu_sm_active_ratio", values))
    assert sentences["gaps"] == (
        "21% of the GPU metrics of n1 and n2 are missing; the longest gap is 14 min, from 1970-01-01 00:34:00 UTC"
    )


def test_a_lost_scrape_is_no_gap() -> None:
    cluster = Cluster()
    values = cluster.between(2000, 2060, np.nan, 0.9)
    assert told(cluster.per_gpu("gpu_utilization_ratio", values).per_gpu("gpu_sm_active_ratio", values)) == {}


def test_seldom_sampled_is_no_gap() -> None:
    """Host metrics each four minutes beside GPU metrics each 15 s."""
    cluster = watched()
    seldom = np.where(np.arange(len(cluster.times)) % 16 == 0, 0.5, np.nan)
    cluster.per_gpu("gpu_tensor_active_ratio", seldom)
    resolved, store = cluster.store()
    query = metric("gpu_tensor_active_ratio").over("run", "avg")
    answer = store.ask(query)
    assert isinstance(trust_of(store, resolved).checked(query, answer), Grid)


def test_metrics_that_begin_late_and_end_early() -> None:
    cluster = Cluster()
    values = cluster.between(START + 600, END - 900, 0.9, np.nan)
    sentences = told(cluster.per_gpu("gpu_utilization_ratio", values).per_gpu("gpu_sm_active_ratio", values))
    assert sentences["late"] == "GPU metrics start 10 min after the run"
    assert sentences["early"] == "GPU metrics end 15 min before the run does"


@pytest.mark.parametrize(("host", "key"), [(8.0, "exporter_dead"), (np.nan, "node_silent")])
def test_dead_exporter_is_told_from_dead_node(host: float, key: str) -> None:
    cluster = watched()
    dead = cluster.until(3000, 0.9)
    fresh = Cluster().per_gpu("gpu_utilization_ratio", 0.9, but={f"n2:{i}": dead for i in range(8)})
    fresh.per_gpu("gpu_sm_active_ratio", 0.9).per_node("host_load1", 8, but={"n2": cluster.after(3000, host, 8)})
    sentences = told(fresh)
    assert "n2 stop at 1970-01-01 00:50:00 UTC" in sentences[key]
    assert {"exporter_dead", "node_silent"} & set(sentences) == {key}


def test_scrapes_that_failed() -> None:
    cluster = watched()
    cluster.per_node("scrape_up", 1, but={"n2": cluster.between(2000, 3000, 0, 1)}, target="gpu")
    assert "exporters of n2 answered 7" in told(cluster)["exporter_down"].lower()


def test_collectors_that_failed() -> None:
    cluster = watched().per_node("trackside_collector_success", 1, but={"n2": 0.0}, collector="nvml")
    assert told(cluster)["collector_failed"] == "The collectors nvml of n2 failed"


def test_few_readings() -> None:
    cluster = watched(interval=500)
    assert "9 samples per GPU" in told(cluster)["coarse"]


# -- counters, clocks, tracers


def test_boot_and_driver_restart() -> None:
    cluster = watched().per_node("host_boot_time_seconds", 5, but={"n1": Cluster().after(3000, 2950, 5)})
    energy = cluster.growing(500, 1e9)
    again = np.where(cluster.times >= 3000, cluster.growing(500), energy)
    cluster.per_gpu("gpu_energy_joules_total", energy, but={f"n2:{i}": again for i in range(8)})
    sentences = told(cluster)
    assert sentences["booted"].startswith("n1 rebooted")
    assert sentences["counters_reset"].startswith("Counters of n2 restarted at 1970-01-01 00:50")


def test_one_gpus_reset_is_its_own() -> None:
    cluster = watched()
    again = np.where(cluster.times >= 3000, 0, cluster.growing(500))
    cluster.per_gpu("gpu_energy_joules_total", cluster.growing(500), but={"n2:3": again})
    assert "counters_reset" not in told(cluster)


@pytest.mark.parametrize(("skew", "key"), [(95.0, "clock_ahead"), (-40.0, "clock_behind"), (3.0, ""), (-3.0, "")])
def test_clock_skew(skew: float, key: str) -> None:
    cluster = watched()
    cluster.per_node("host_time_seconds", cluster.times, but={"n2": cluster.times + skew})
    sentences = told(cluster)
    assert [name for name in sentences if name.startswith("clock_")] == [key] * bool(key)
    if key:
        figure = sentences[key].split(" is ")[1].split(" s ")[0]
        assert float(figure) == pytest.approx(abs(skew), abs=8)


@pytest.mark.parametrize(("skew", "key"), [(240, "samples_late"), (-180, "samples_early"), (30, "")])
def test_samples_that_bear_the_nodes_own_clock(skew: float, key: str) -> None:
    cluster = Cluster(start=400, end=5600, nodes=4).per_gpu("gpu_utilization_ratio", 0.9)
    usual, off = (cluster.between(START + 60 + by, END - 30 + by, 4e10, 1e6) for by in (0, skew))
    cluster.per_gpu("gpu_memory_used_bytes", usual, but={f"n2:{i}": off for i in range(8)})
    sentences = told(cluster, run=cluster.run(start=START, end=END))
    assert [name for name in sentences if name.startswith("samples_")] == [key] * bool(key)
    if key:
        assert f"{abs(skew) // 60} min" in sentences[key]


def test_tracer() -> None:
    cluster = watched().per_gpu("trackside_tracer_attached", 1, but={f"n2:{i}": 0 for i in range(8)}, pid="5")
    cluster.per_node("trackside_tracer_lost_events_total", cluster.growing(0.1))
    sentences = told(cluster)
    assert "any process on n2" in sentences["untraced"]
    assert "events" in sentences["lost_events"]


def test_launches_of_an_unattached_tracer_prove_nothing() -> None:
    cluster = watched().per_gpu("trackside_tracer_attached", 0, pid="5")
    cluster.per_gpu("trackside_cuda_kernel_launches_total", 0)
    resolved, store = cluster.store()
    trust = trust_of(store, resolved)
    query = metric("trackside_cuda_kernel_launches_total").over("run", "increase")
    answer = trust.checked(query, store.ask(query))
    assert isinstance(answer, MissingAnswer)
    assert "attached" in answer.reason


def test_clock_shift_is_said() -> None:
    cluster = watched(job="7", start=START + 36000, end=END + 36000)
    run = Run(id="7", start=START, end=END, nodes=("n1", "n2"), n_gpus=16)
    assert told(cluster, job("FAILED"), run=run)["metric_clock"] == (
        "Metric times were shifted by -10 h to match the run's"
    )


# -- what the families may make of it


def checked(cluster: Cluster, query: Query) -> Grid | MissingAnswer:
    _, store = cluster.store()
    answer = TelemetryTrust().checked(query, store.ask(query))
    assert isinstance(answer, (Grid, MissingAnswer))
    return answer


def test_little_seen_is_no_level() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.until(2400, 0.9)).per_gpu("gpu_xid_last", cluster.until(2400, 0))
    for query in (metric("gpu_sm_active_ratio").over("run", "avg"), metric("gpu_sm_active_ratio").over("run", "max")):
        answer = checked(cluster, query)
        assert isinstance(answer, MissingAnswer)
        assert "less than half" in answer.reason
    assert isinstance(checked(cluster, metric("gpu_sm_active_ratio").over("run", "count")), Grid)
    assert isinstance(checked(cluster, metric("gpu_xid_last").over("run", "onset")), Grid)


def test_the_end_must_have_been_seen() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.until(END - 400, 0.9))
    answer = checked(cluster, metric("gpu_sm_active_ratio").over("tail", "avg"))
    assert isinstance(answer, MissingAnswer)
    assert "end" in answer.reason
    assert isinstance(checked(cluster, metric("gpu_sm_active_ratio").over("run", "avg")), Grid)


def test_two_readings_are_no_share_of_time() -> None:
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
    return Busy(one(evidence))


@fact({"sm": SM, "util": metric("gpu_utilization_ratio").over("run", "avg")}, needs=("sm", "util"))
def busy_by_two(evidence: Evidence) -> BusyTwice:
    return BusyTwice(one(evidence))


def one(evidence: Evidence) -> Value:
    grid = evidence.grid("sm")
    assert grid is not None
    return grid.value("avg")


def busy(gpus: Busy) -> Finding:
    return absent(RATIO(v=gpus.sm))


def busy_twice(gpus: BusyTwice) -> Finding:
    return absent(RATIO(v=gpus.sm))


def family(code: str, judge: Any) -> Family:
    return Family(code, code.lower(), code, judge, collect=("more",))


def test_metrics_of_some_nodes_rule_nothing_out() -> None:
    cluster = watched()
    whole, store = cluster.store()
    assert engine.judge_all(store, whole, [family("X1", busy)])[0].outcome is Outcome.ABSENT
    part = replace(whole, nodes=("n1", "n2", "n3"))
    finding = engine.judge_all(store, part, [family("X1", busy)])[0]
    assert (finding.outcome, finding.missing) == (Outcome.UNKNOWN, ("GPU metrics of n3",))


def test_metrics_that_stop_early_rule_nothing_out() -> None:
    cluster = watched()
    late = dict.fromkeys(cluster.gpus[8:], cluster.until(4000, 0.7))
    fresh = Cluster().per_gpu("gpu_utilization_ratio", 0.9, late).per_gpu("gpu_sm_active_ratio", 0.7, late)
    run, store = fresh.store()
    finding = engine.judge_all(store, run, [family("X1", busy)])[0]
    assert (finding.outcome, finding.missing) == (Outcome.UNKNOWN, ("GPU metrics of n2 up to the run's end",))


# -- from end to end, on simulated runs

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
        "healthy", ("telemetry.clock_skew={gpu002=180}",), "The clock of gpu002 is 3 min ahead", set(),
        ("G1", "established"),
    ),
    "a hang behind dead exporters": (
        "stuck-rank-watchdog",
        ('telemetry.gap=[{at="30%", length_s="5h"}]', 'telemetry.planes=["gpu", "host", "scheduler"]'),
        "GPU metrics end", {"B3", "C1", "C2", "D3"}, ("U0", "possible"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DEFECTS)
def test_what_cannot_be_trusted_is_said_first_and_judged_by_nobody(case: str, tmp_path: Path) -> None:
    scenario, changes, sentence, unknown, primary = DEFECTS[case]
    simulate(load_scenario(scenario, changes), tmp_path)
    result = CliRunner().invoke(main, ["diagnose", str(tmp_path / "run"), "--json"])
    doc = json.loads(result.stdout)
    assert sentence in " ".join(each["text"] for each in doc["preflight"])
    assert list(doc).index("preflight") < list(doc).index("primary")
    assert unknown <= {each["family"] for each in doc["unknown"]}
    assert (doc["primary"]["family"], doc["primary"]["certainty"]) == primary
    text = CliRunner().invoke(main, ["diagnose", str(tmp_path / "run")]).stdout
    assert 0 < text.find("\ncaution") < text.find("\nwhy")
    assert sentence in " ".join(text.partition("\nwhy")[0].split())
    if not unknown:
        assert not {"B2", "B3", "D3"} & {each["family"] for each in doc["unknown"]}


def test_an_untrusted_need_is_unknown_without_the_author() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.until(2000, 0.9))
    run, store = cluster.store()
    finding = engine.judge_all(store, run, [family("X1", busy)])[0]
    assert finding.outcome is Outcome.UNKNOWN
    assert "less than half" in finding.missing[0]


class Counting(MemoryStore):
    """Counts what is asked, and in how many batches."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(planes=store.planes)
        self._rows, self.metrics = store._rows, store.metrics
        self.batches: list[Sequence[Query]] = []

    def ask_many(self, queries: Sequence[Query]) -> list[Any]:
        self.batches.append(queries)
        return super().ask_many(queries)


def test_each_question_is_asked_once_and_a_familys_together() -> None:
    run, plain = watched().store()
    store = Counting(plain)
    chosen = [
        family("X1", busy),
        family("X2", busy_twice),
        family("X3", busy),
    ]
    facts = Facts(store, run, known={TelemetryTrust: TelemetryTrust()})
    facts.get(UnansweredSources)
    store.batches.clear()
    engine.judge_by(facts, chosen)
    assert [len(batch) for batch in store.batches] == [1, 1]


# -- how it is told


def test_gpu_hours_without_a_scheduler() -> None:
    cluster = watched(job="7")
    run, store = cluster.store(run=Run(), planes=())
    verdict = engine.verdict_of(engine.facts_of(store, run))
    assert verdict.gpu_hours is not None
    assert verdict.gpu_hours.number == pytest.approx(16 * (END - START) / 3600, rel=0.02)
    assert all(one.holds for one in check({"c": citation(verdict.gpu_hours.cites[0])}, store))


def test_curves_of_the_finding() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.after(3000, 0.0, 0.9)).per_gpu("gpu_utilization_ratio", 1.0)
    _, store = cluster.store()
    grid = store.ask(metric("gpu_sm_active_ratio").over("run", "avg"))
    assert isinstance(grid, Grid)
    one = grid.where(node="n1", gpu="3")
    shows = [RATIO(v=value) for value in (one.value("last"), grid.value("avg"), grid.value("max"))]
    curves = plots.curves(store, present(Certainty.SUPPORTED, "job", shows))
    assert [(dict(curve.labels), curve.series) for curve in curves] == [({"node": "n1", "gpu": "3"}, 1), ({}, 16)]
    assert curves[1].values[0] == 0.9
    assert curves[1].values[-1] == 0.0
    assert len(curves[0].values) <= plots.MAX_POINTS


def test_lines_of_text() -> None:
    assert line([0.0, 0.5, 1.0, None], "ratio") == "\u2581\u2585\u2588 "
    assert line([5.0, 5.0]) == "\u2588\u2588"
    assert line([0.0, 0.0]) == "\u2581\u2581"
    assert downsampled([1.0, 3.0, None, None, 5.0], 3) == [2.0, None, 5.0]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9823, "ratio", "0.98"),
        (0.0042, "ratio", "0.0042"),
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
def test_units_of_measurements(value: float, unit: str, text: str) -> None:
    assert word(value, unit) == text


def test_questions_in_words() -> None:
    query = metric("gpu_sm_active_ratio").where(node="n1", gpu="3").during(0, 60).rollup(15, "avg").reduce("median")
    assert measured(str(query)) == ("median of gpu_sm_active_ratio of n1:3", "ratio")
    assert span((0.0, 5400.0)) == "1970-01-01 00:00:00 to 01:30:00 UTC"


def test_a_verdict_with_curves_passes_through_json() -> None:
    cluster = Cluster()
    cluster.per_gpu("gpu_sm_active_ratio", cluster.between(2000, 3000, np.nan, 0.9))
    run, store = cluster.store(event("progress", step=1, loss=2.0))
    grid = store.ask(metric("gpu_sm_active_ratio").over("run", "avg"))
    assert isinstance(grid, Grid)
    worked = Sentence("the GPUs worked for {share} of the time")
    primary = replace(present(Certainty.SUPPORTED, "job", [worked(share=grid.value("avg"))]), family="U0", id="unknown")
    verdict = Verdict(run, primary, curves=plots.curves(store, primary))
    doc = decode(encode(document(verdict)))
    assert doc.curves[0].metric == "gpu_sm_active_ratio"
    assert None in doc.curves[0].values
    assert doc.cites["c1"].window is not None
