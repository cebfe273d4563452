"""The backend for Prometheus-compatible servers gives the values of the memory backend, with real and scripted servers."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode

import numpy as np
import pytest
import urllib3

from tests import services
from tests.http.scripted import Request, answer, scripted
from trackside.http.options import HttpOptions
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Samples
from trackside.read.measurements import Measurements
from trackside.stores.memory_backend import MemoryBackend
from trackside.stores.metric_backend import EngineRollup, RollupRequest
from trackside.stores.metric_server import MetricOptions, RunScope
from trackside.stores.metrics.prometheus import PrometheusBackend
from trackside.stores.prometheus import matrix
from trackside.stores.prometheus.api import Api
from trackside.stores.prometheus.series import MetricSource

START_S = 1_790_000_000
ROLLUPS: tuple[EngineRollup, ...] = ("avg", "min", "max", "sum", "count", "last")
BLANKS = (float(0x7FFFFFF0), 140737488355328.0, 9.223372036854775792e18, 4294967295.0)
CASES = range(16)


@dataclass
class Case:
    """Samples as exporters might write them: (name, labels, times in ms, values)."""

    number: int
    lines: list[tuple[str, dict[str, str], np.ndarray, np.ndarray]] = field(default_factory=list)

    @property
    def text(self) -> str:
        written = []
        for name, labels, times, values in self.lines:
            pairs = ",".join(f'{label}="{value}"' for label, value in {**labels, "case": str(self.number)}.items())
            points = zip(times.tolist(), values.tolist(), strict=True)
            written += [f"{name}{{{pairs}}} {value!r} {time}\n" for time, value in points]
        return "".join(written)

    @property
    def memory(self) -> MemoryBackend:
        """The backend that ``trackside diagnose FILES`` would use."""
        backend = MemoryBackend()
        measured = Measurements("x", _Sink(backend), nan_is_blank=False)
        for name, labels, times, values in self.lines:
            foreign = measured.series(name, labels, 1)
            measured.add(np.full(len(times), foreign), times, values)
        measured.result()
        return backend


@dataclass
class _Sink:
    backend: MemoryBackend

    def samples(self, samples: Samples) -> None:
        self.backend.add(samples)

    def rows(self, rows: object) -> None:
        raise AssertionError


def case(number: int) -> Case:
    """A few nodes with GPUs, with random gaps, blanks, resets and duplicates."""
    random = np.random.default_rng(number)
    made = Case(number)
    length, every = int(random.integers(600, 30_000)), float(random.choice([1.0, 5.0, 15.0, 60.0]))
    every = max(every, length / 2000)
    for node in range(int(random.integers(1, 4))):
        for gpu in range(int(random.integers(1, 4))):
            labels = {
                "Hostname": f"node{node}.cluster",
                "gpu": str(gpu),
                "UUID": f"GPU-{node}-{gpu}",
                "device": f"nvidia{gpu}",
            }
            for name, scale in (("DCGM_FI_DEV_GPU_TEMP", 90.0), ("DCGM_FI_DEV_GPU_UTIL", 100.0), ("DCGM_FI_DEV_FB_USED", 80_000.0),
                                ("DCGM_FI_PROF_SM_ACTIVE", 1.0), ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e9)):  # fmt: skip
                times = (
                    START_S * 1000
                    + np.round(np.arange(0, length, every) * 1000).astype(np.int64)
                    + int(random.integers(0, 1000))
                )
                if random.random() < 0.3:
                    times = times + random.integers(0, int(every * 400), len(times))
                if random.random() < 0.4:
                    times = np.delete(times, slice(*sorted(random.integers(0, len(times), 2).tolist())))
                if not len(times):
                    continue
                values = np.round(random.random(len(times)) * scale, int(random.integers(0, 6)))
                if name.endswith("CONSUMPTION"):
                    values = np.cumsum(values)
                    values[len(values) // 2 :] -= values[len(values) // 2]
                if random.random() < 0.15:  # VictoriaMetrics loses fractions in a series with a number of 19 digits
                    values = np.round(values)
                    values[random.integers(0, len(values), 3)] = random.choice(BLANKS)
                if random.random() < 0.05:
                    values[:] = random.choice(BLANKS)
                if random.random() < 0.1:
                    values[random.integers(0, len(values))] = -5.0
                cuts = sorted(random.integers(0, len(times), 2).tolist()) if random.random() < 0.5 else [0, 0]
                pieces = np.split(np.arange(len(times)), cuts)
                for piece, job in zip(pieces, ("", "4242", ""), strict=True):
                    if len(piece):
                        extra = {"hpc_job": job} if job else {}
                        made.lines.append((name, labels | extra, times[piece], values[piece]))
                if random.random() < 0.1:  # a second exporter that measures the same
                    made.lines.append((name, labels | {"replica": "b"}, times, values))
    return _merged(made)


def _merged(made: Case) -> Case:
    """The case with the pieces of each series joined."""
    indices_by_series: dict[tuple[str, frozenset[tuple[str, str]]], list[int]] = {}
    for index, (name, labels, _, _) in enumerate(made.lines):
        indices_by_series.setdefault((name, frozenset(labels.items())), []).append(index)
    lines = []
    for indices in indices_by_series.values():
        name, labels = made.lines[indices[0]][:2]
        times, values = (np.concatenate([made.lines[index][i] for index in indices]) for i in (2, 3))
        times, first = np.unique(times, return_index=True)
        lines.append((name, labels, times, values[first]))
    return Case(made.number, lines)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that holds all cases."""
    text = "".join(case(number).text for number in CASES)
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "victoria-metrics":
        with services.victoria_metrics(folder) as victoria:
            victoria.load(text)
            yield victoria.url
    else:
        lines = [line.rsplit(" ", 1) for line in text.splitlines()]
        metrics = "".join(f"{sample} {int(time) / 1000:.3f}\n" for sample, time in lines) + "# EOF\n"
        with services.prometheus_server(folder, openmetrics=metrics) as prometheus:
            yield prometheus.url


def infos_by_series(
    backend: MemoryBackend | PrometheusBackend,
) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], tuple[int, int, int, int]]:
    return {
        (info.series.metric, info.series.labels): (info.id, info.first_ms, info.last_ms, info.count)
        for info in backend.series()
    }


@pytest.mark.service
@pytest.mark.parametrize("server", ["victoria-metrics", "prometheus"], indirect=True)
@pytest.mark.parametrize("number", CASES)
def test_a_server_gives_the_values_of_the_memory_backend(server: str, number: int) -> None:
    source, random = case(number), np.random.default_rng(number)
    memory = source.memory
    backend = PrometheusBackend(
        MetricOptions(endpoint=HttpOptions(url=server), match={"case": str(number)}),
        RunScope(START_S, START_S + 30_000),
    )
    memory_series, server_series = infos_by_series(memory), infos_by_series(backend)
    assert {key: info[1:] for key, info in server_series.items()} == {
        key: info[1:] for key, info in memory_series.items()
    }
    by_curve: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[str, tuple[tuple[str, str], ...]]]] = {}
    for key in sorted(memory_series):
        metric, labels = key
        by_curve.setdefault((metric, tuple(pair for pair in labels if pair[0] != "job")), []).append(key)
    groups = list(by_curve.values())
    for step_ms in (15_000, 60_000, 900_000):
        start_ms = (START_S * 1000 + int(random.integers(-600_000, 3_000_000))) // step_ms * step_ms
        end_ms = start_ms + step_ms * int(random.integers(1, 400))
        selections = [
            (rollup, [group for group in groups if group[0][0] == metric])
            for rollup in ROLLUPS
            for metric in sorted({g[0][0] for g in groups})
        ]
        requests = [
            RollupRequest(
                [[server_series[key][0] for key in group] for group in selected], start_ms, end_ms, step_ms, rollup
            )
            for rollup, selected in selections
        ]
        backend.expect(requests)
        for (rollup, selected), rolled in zip(selections, backend.rollups(requests), strict=True):
            expected, used = memory.rollup(
                [[memory_series[key][0] for key in group] for group in selected], start_ms, end_ms, step_ms, rollup
            )
            assert not isinstance(rolled, SourceUnavailable), rolled
            np.testing.assert_allclose(
                rolled[0],
                expected,
                rtol=1e-9,
                atol=0.0,
                err_msg=f"{rollup} {step_ms} {selected[0]}",
            )
            assert rolled[1] == used, (rollup, step_ms)
    backend.close()


@pytest.mark.service
@pytest.mark.parametrize("server", ["victoria-metrics", "prometheus"], indirect=True)
def test_a_run_is_found_without_its_time(server: str) -> None:
    number = next(
        candidate for candidate in CASES if any("hpc_job" in labels for _, labels, _, _ in case(candidate).lines)
    )
    options = MetricOptions(endpoint=HttpOptions(url=server), match={"case": str(number)})
    backend = PrometheusBackend(options, RunScope(jobs=("4242",)))
    expected = {
        key: info[1:] for key, info in infos_by_series(case(number).memory).items() if ("job", "4242") in key[1]
    }
    assert {key: info[1:] for key, info in infos_by_series(backend).items()} == expected
    other_backend = PrometheusBackend(options, RunScope(jobs=("1",)))
    assert other_backend.series() == []
    for opened in (backend, other_backend):
        opened.close()


@pytest.mark.service
@pytest.mark.parametrize("server", ["victoria-metrics", "prometheus"], indirect=True)
def test_the_sites_label_names_are_mapped(server: str) -> None:
    options = MetricOptions(endpoint=HttpOptions(url=server), match=('case="0"',), labels={"device": "node"})
    backend = PrometheusBackend(options, RunScope(START_S, START_S + 30_000, nodes=("nvidia0",)))
    assert {info.series.get("node") for info in backend.series()} == {"nvidia0"}
    backend.close()


def align_to_step(by: float) -> Callable[[bytes], bytes]:
    """Changes start and end of a form to multiples of the step, as Thanos and Mimir do, plus ``by`` steps."""

    def change(body: bytes) -> bytes:
        params = dict(pairs := parse_qsl(body.decode()))
        if "step" not in params:
            return body
        step = float(params["step"])
        ends = {name: f"{(float(params[name]) // step + by) * step:.3f}" for name in ("start", "end")}
        return urlencode([(name, ends.get(name, text)) for name, text in pairs]).encode()

    return change


def front_end(url: str, change: Callable[[bytes], bytes]) -> Callable[[Request], bytes]:
    """A front end of a server, which changes the requests."""
    pool = urllib3.PoolManager(retries=False, maxsize=8)

    def reply(request: Request) -> bytes:
        headers = {"Content-Type": request.headers.get("content-type", "")}
        response = pool.request(request.method, url + request.target, body=change(request.body), headers=headers)
        return answer(response.data, f"{response.status} {response.reason}")

    return reply


@pytest.mark.service
@pytest.mark.parametrize("server", ["victoria-metrics", "prometheus"], indirect=True)
@pytest.mark.parametrize("number", [1, 4])
def test_a_front_end_that_aligns_to_the_step_changes_nothing(server: str, number: int) -> None:
    def results_of(url: str, scope: RunScope) -> tuple[object, list[np.ndarray]]:
        backend = PrometheusBackend(MetricOptions(endpoint=HttpOptions(url=url), match={"case": str(number)}), scope)
        infos, step_ms = infos_by_series(backend), 60_000
        start_ms = START_S * 1000 // step_ms * step_ms
        rolled = [
            backend.rollup([[info[0]] for info in infos.values()], start_ms, start_ms + 500 * step_ms, step_ms, rollup)[
                0
            ]
            for rollup in (("avg", "count") if infos else ())
        ]
        backend.close()
        return {key: info[1:] for key, info in infos.items()}, rolled

    scopes = RunScope(START_S + 7, START_S + 29_993), RunScope(jobs=("4242",))
    with scripted(front_end(server, align_to_step(0))) as front:
        for scope in scopes:
            (series, rolled), (expected_series, expected) = results_of(front.url, scope), results_of(server, scope)
            assert series == expected_series
            assert series or scope.start is None
            for values, expected_values in zip(rolled, expected, strict=True):
                np.testing.assert_array_equal(values, expected_values)
    with (
        scripted(front_end(server, align_to_step(0.5))) as front,
        pytest.raises(SourceUnavailable, match="other times") as caught,
    ):
        results_of(front.url, scopes[0])
    assert caught.value.kind == "broken"


# -- a scripted server


class FakePrometheus:
    """A Prometheus 2 of one metric: each GPU of node-1 is at 50 degrees every 15 s for an hour."""

    def __init__(self, gpus: int = 2) -> None:
        self.series = [
            {"__name__": "DCGM_FI_DEV_GPU_TEMP", "Hostname": "node-1", "gpu": str(gpu)} for gpu in range(gpus)
        ]
        self.times = START_S + 15 * np.arange(1, 241)
        self.value = "50"
        self.extra: dict[str, object] = {}
        self.labels: tuple[str, ...] | str = ("slurm_job_id",)
        self.max_points = 11_000
        self.max_requested_points = 0
        self.refused = ""

    def __call__(self, request: Request) -> bytes:
        path, params = request.path.rpartition("/api/v1/")[2], request.params
        query = params.get("query", "")
        if self.refused and self.refused in query:
            return answer({"status": "error", "errorType": "execution", "error": "query touches too much"}, "422 No")
        if path == "label/__name__/values":
            return self.success([*{labels["__name__"]: "" for labels in self.series}, "go_goroutines"])
        if path == "labels":
            if isinstance(self.labels, str):
                return answer({"status": "error", "error": "no such thing"}, self.labels)
            return self.success(sorted({*self.labels, *(label for labels in self.series for label in labels)}))
        if path == "series":
            return self.success(self.series)
        if "vector(1)" in query:
            if "count_le" in query:
                return answer({"status": "error", "error": "unknown function"}, "400 Bad")
            return self.success(
                {"resultType": "vector", "result": [{"metric": {}, "value": [float(params["time"]), "2"]}]}
            )
        return self.rolled(query, params)

    def success(self, data: object) -> bytes:
        return answer({"status": "success", "data": data, **self.extra})

    def rolled(self, query: str, params: Mapping[str, str]) -> bytes:
        length = int(re.search(r"\[(\d+)ms\]", query)[1]) / 1000 + 0.001  # type: ignore[index]
        if "time" in params:
            ends = np.array([float(params["time"])])
        else:
            ends = np.arange(float(params["start"]), float(params["end"]) + 0.5, float(params["step"]))
            self.max_requested_points = max(self.max_requested_points, len(ends))
        if len(ends) > self.max_points:
            return answer({"status": "error", "error": "exceeded maximum resolution of 11,000 points"}, "400 Bad")
        points: list[list[object]] = []
        for end in ends.tolist():
            inside = self.times[(self.times > end - length) & (self.times <= end)]
            if "_over_time" not in query:
                points += [[time, self.value] for time in inside.tolist()]
            elif len(inside):
                value = {"count": str(len(inside)), "sum": str(50 * len(inside))}.get(
                    query.partition("_")[0], self.value
                )
                points.append([end, value])
        kind = (
            {"values": points}
            if "time" not in params or "_over_time" not in query
            else {"value": points[0]}
            if points
            else None
        )
        matching = [labels for labels in self.series if kind and labels["__name__"] in query]
        result = [
            {"metric": {k: v for k, v in labels.items() if k != "__name__"}, **(kind or {})} for labels in matching
        ]
        return self.success({"resultType": "matrix", "result": result})


def backend_for(url: str, **options: Any) -> PrometheusBackend:
    endpoint = HttpOptions(url=url, retries=0, timeout_s=5, **options)
    return PrometheusBackend(
        MetricOptions(endpoint=endpoint), RunScope(START_S, START_S + 3600, nodes=("node-1.example",), jobs=("7",))
    )


def test_a_run_is_queried_by_its_nodes_and_job() -> None:
    with scripted(fake := FakePrometheus()) as server:
        backend = backend_for(server.url, headers={"X-Scope-OrgID": "team-a"})
        infos = backend.series()
        assert [(info.series.metric, info.series.get("gpu"), info.count) for info in infos] == [
            ("gpu_temperature_celsius", "0", 240), ("gpu_temperature_celsius", "1", 240),
        ]  # fmt: skip
        assert (infos[0].first_ms, infos[0].last_ms) == ((START_S + 15) * 1000, (START_S + 3600) * 1000)
        values, used = backend.rollup(
            [[info.id] for info in infos], START_S * 1000, (START_S + 3600) * 1000, 60_000, "avg"
        )
        assert values.shape == (2, 60)
        assert (values == 50.0).all()
        assert used == 480
        bodies = [unquote_plus(request.body.decode()) for request in server.requests]
        assert all(request.headers["x-scope-orgid"] == "team-a" for request in server.requests)
        series_query = next(
            body for request, body in zip(server.requests, bodies, strict=True) if request.path.endswith("/series")
        )
        assert 'Hostname=~"(?i:' in series_query
        assert 'slurm_job_id=~"(7)' in series_query
        queries = [body for body in bodies if "avg_over_time" in body]
        assert len(queries) == 1
        assert 'avg_over_time(DCGM_FI_DEV_GPU_TEMP{Hostname="node-1"}[59999ms])' in queries[0]
        backend.close()
    assert fake.max_requested_points <= 128


def test_the_newest_samples_are_not_read() -> None:
    fake, now = FakePrometheus(), time.time()
    start_s = int(now) // 60 * 60 - 3600
    fake.times = start_s + 15 * np.arange(1, 300)
    with scripted(fake) as server:
        options = MetricOptions(endpoint=HttpOptions(url=server.url))
        backend = PrometheusBackend(options, RunScope(start_s, None, nodes=("node-1",)))
        infos = backend.series()
        assert now - 50 < infos[0].last_ms / 1000 <= now - 30
        end_ms = (start_s + 3720) * 1000
        for rollup in ("avg", "count"):
            values, used = backend.rollup([[info.id] for info in infos], start_s * 1000, end_ms, 60_000, rollup)
            filled_windows = int((infos[0].last_ms / 1000 - start_s - 1) // 60) + 1  # windows that hold a sample
            assert np.isfinite(values[:, :filled_windows]).all()
            assert np.isnan(values[:, filled_windows:]).all()
            assert np.nansum(values if rollup == "count" else values / 50) == (
                used if rollup == "count" else 2 * filled_windows
            )
            assert used == 2 * infos[0].count
        latest = [float(request.params.get("end", request.params.get("time", 0))) for request in server.requests]
        assert max(latest) <= now - 30
        backend.close()


def test_repeated_requests_are_answered_from_the_cache() -> None:
    with scripted(FakePrometheus()) as server:
        backend = backend_for(server.url)
        start_ms = START_S * 1000 // 60_000 * 60_000
        request = RollupRequest([[info.id] for info in backend.series()], start_ms, start_ms + 3_600_000, 60_000, "max")
        backend.rollups([request])
        count = len(server.requests)
        backend.rollups([request, replace(request, end_ms=request.end_ms - 600_000)])
        assert len(server.requests) == count
        backend.close()


def test_pages_shrink_to_the_limit_of_the_server() -> None:
    fake = FakePrometheus()
    with scripted(fake) as server:
        backend = backend_for(server.url)
        ids = [[info.id] for info in backend.series()]
        fake.max_points = 100
        values, _ = backend.rollup(ids, START_S * 1000, (START_S + 3600) * 1000, 10_000, "max")
        assert np.isfinite(values).sum() == 2 * 240
        backend.close()


@pytest.mark.parametrize("extra", [{"isPartial": True}, {"warnings": ["store gateway 3 is away"]}])
def test_partial_answers_are_refused_unless_allowed(extra: dict[str, object]) -> None:
    fake = FakePrometheus()
    with scripted(fake) as server:
        backend = backend_for(server.url)
        ids = [[info.id] for info in backend.series()]
        fake.extra = extra
        request = RollupRequest(ids, START_S * 1000, (START_S + 3600) * 1000, 60_000, "max")
        (reason,) = backend.rollups([request])
        assert isinstance(reason, SourceUnavailable)
        assert reason.kind == "partial"
        with pytest.raises(SourceUnavailable, match="a part of the answer"):
            backend_for(server.url).series()
        options = MetricOptions(endpoint=HttpOptions(url=server.url), allow_partial=True)
        assert len(PrometheusBackend(options, RunScope(START_S, START_S + 3600)).series()) == 2
        fake.extra = {"infos": ["all well"], "warnings": ["PromQL info: metric might not be a counter"]}
        assert not isinstance(backend.rollups([request])[0], SourceUnavailable)
        backend.close()


def test_a_refused_query_does_not_affect_the_others() -> None:
    fake = FakePrometheus()
    fake.refused = "avg_over_time"
    with scripted(fake) as server:
        backend = backend_for(server.url)
        ids = [[info.id] for info in backend.series()]
        span = START_S * 1000, (START_S + 3600) * 1000, 60_000
        first, second = backend.rollups([RollupRequest(ids, *span, "avg"), RollupRequest(ids, *span, "max")])
        assert isinstance(first, SourceUnavailable)
        assert first.kind == "refused"
        assert "query touches too much" in str(first)
        assert not isinstance(second, SourceUnavailable)
        fake.refused = ""
        assert not isinstance(backend.rollups([RollupRequest(ids, *span, "avg")])[0], SourceUnavailable)
        backend.close()


def test_a_metric_that_cannot_be_read_is_reported() -> None:
    fake = FakePrometheus()
    fake.series += [{**labels, "__name__": "DCGM_FI_DEV_POWER_USAGE"} for labels in fake.series]
    fake.refused = "min_over_time(DCGM_FI_DEV_POWER"
    with scripted(fake) as server:
        backend = backend_for(server.url)
        assert {info.series.metric for info in backend.series()} == {"gpu_temperature_celsius"}
        assert {metric: reason.kind for metric, reason in backend.unavailable.items()} == {"gpu_power_watts": "refused"}
        fake.refused = "min_over_time"
        with pytest.raises(SourceUnavailable, match="too much"):
            backend_for(server.url).series()
        backend.close()


@pytest.mark.parametrize(("reply", "kind"), [
    (answer(b"<html>login</html>"), "broken"),
    (answer({"status": "success", "data": [[1]]}), "broken"),
    (answer({"nothing": 1}), "refused"),
    (answer(b"", "401 Who"), "unauthorized"),
    (b"", "broken"),
    (answer({"status": "success", "data": ["x" * 300]}), "too_large"),
])  # fmt: skip
def test_answers_that_are_not_from_prometheus_are_refused(reply: bytes, kind: str) -> None:
    with scripted(reply) as server, pytest.raises(SourceUnavailable) as caught:
        backend_for(server.url, max_answer_bytes=200).series()
    assert caught.value.kind == kind


def test_a_server_that_is_down_fails_at_once() -> None:
    with scripted(b"") as server:
        url = server.url
    with pytest.raises(SourceUnavailable, match="cannot be reached") as caught:
        backend_for(url).series()
    assert caught.value.kind == "unreachable"


def test_data_that_was_not_requested_is_ignored() -> None:
    """Other series, times outside the range and repeated points are ignored."""
    fake = FakePrometheus()
    with scripted(fake) as server:
        backend = backend_for(server.url)
        ids = [[info.id] for info in backend.series()]
        fake.series = [{**labels, **other} for labels in fake.series for other in ({}, {"gpu": "9"}, {"tenant": "b"})]
        rolled = fake.rolled

        def more(query: str, params: Mapping[str, str]) -> bytes:
            document = json.loads(rolled(query, params).split(b"\r\n\r\n", 1)[1])
            for series in document["data"]["result"]:
                if "values" in series and "max" in query:
                    series["values"] = [
                        [START_S - 60, "7"],
                        *series["values"],
                        *series["values"],
                        [START_S + 7200, "7"],
                    ]
            return answer(document)

        fake.rolled = more  # type: ignore[method-assign]
        values, used = backend.rollup(ids, START_S * 1000, (START_S + 3600) * 1000, 60_000, "max")
        assert (values == 50.0).all()
        assert used == 480
        backend.close()


@pytest.mark.parametrize(
    "times", [[START_S + 61], [START_S + 30 + 60 * number for number in range(60)], [START_S + 7200]]
)
def test_points_at_other_times_are_an_error(times: list[int]) -> None:
    with scripted(fake := FakePrometheus()) as server:
        backend = backend_for(server.url)
        ids = [[info.id] for info in backend.series()]
        metric = {"Hostname": "node-1", "gpu": "0"}
        fake.rolled = lambda query, params: fake.success(  # type: ignore[method-assign]
            {"resultType": "matrix", "result": [{"metric": metric, "values": [[time, "50"] for time in times]}]}
        )
        (reason,) = backend.rollups([RollupRequest(ids, START_S * 1000, (START_S + 3600) * 1000, 60_000, "max")])
        assert isinstance(reason, SourceUnavailable)
        assert reason.kind == "broken"
        assert "other times than requested" in str(reason)
        backend.close()


def test_counts_are_requested_at_multiples_of_their_step() -> None:
    with scripted(FakePrometheus()) as server:
        backend = backend_for(server.url)
        backend.series()
        ranges = [request.params for request in server.requests if "step" in request.params]
        assert ranges
        assert all(float(params[end]) % float(params["step"]) == 0 for params in ranges for end in ("start", "end"))
        backend.close()


@pytest.mark.parametrize(("spelled", "matcher"), [
    ("NodeName", 'NodeName=~"(?i:'), ("host.name", '"host.name"=~"(?i:'), ("exported_Instance", "exported_Instance=~"),
])  # fmt: skip
def test_labels_are_queried_in_the_servers_spelling(spelled: str, matcher: str) -> None:
    fake = FakePrometheus()
    fake.series = [{spelled if name == "Hostname" else name: labels[name] for name in labels} for labels in fake.series]
    with scripted(fake) as server:
        backend = backend_for(server.url)
        assert {info.series.get("node") for info in backend.series()} == {"node-1"}
        series_query = next(
            request.params["match[]"] for request in server.requests if request.path.endswith("/series")
        )
        assert matcher in "".join(
            unquote_plus(request.body.decode()) for request in server.requests if request.path.endswith("/series")
        )
        assert "kubernetes_node" not in series_query
        backend.close()


@pytest.mark.parametrize("status", ["404 None", "405 Not so", "403 Not you"])
def test_common_labels_are_queried_if_a_server_lists_none(status: str) -> None:
    fake = FakePrometheus()
    fake.labels = status
    with scripted(fake) as server:
        backend = backend_for(server.url)
        assert len(backend.series()) == 2
        bodies = [
            unquote_plus(request.body.decode()) for request in server.requests if request.path.endswith("/series")
        ]
        assert all('Hostname=~"(?i:' in body and 'slurm_job_id=~"(7)' in body for body in bodies)
        backend.close()


@pytest.mark.service
def test_labels_with_dots_in_victoriametrics(tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = [{"metric": {"__name__": "DCGM_FI_DEV_GPU_TEMP", spelled: node, "gpu": "0"},
              "values": [50, 51], "timestamps": [START_S * 1000, START_S * 1000 + 15_000]}
             for spelled in ("host.name", "NodeName") for node in (f"{spelled[0]}1", "other")]  # fmt: skip
    with services.victoria_metrics(tmp_path_factory.mktemp("dots")) as victoria:
        http = urllib3.PoolManager()
        http.request("POST", victoria.url + "/api/v1/import", body="\n".join(map(json.dumps, lines)))
        http.request("GET", victoria.url + "/internal/force_flush")
        options = MetricOptions(endpoint=HttpOptions(url=victoria.url))
        backend = PrometheusBackend(options, RunScope(START_S, START_S + 600, nodes=("h1", "N1")))
        assert {info.series.get("node") for info in backend.series()} == {"h1", "N1"}
        values, used = backend.rollup([[info.id] for info in backend.series()], START_S * 1000 - 20_000,
                                     START_S * 1000 + 100_000, 60_000, "max")  # fmt: skip
        assert np.nanmax(values) == 51
        assert used == 4
        backend.close()


def test_counts_are_correct_when_queried_from_many_threads() -> None:
    """The cache of counts grows while other threads search it."""
    with scripted(FakePrometheus()) as server:
        api = Api(MetricOptions(endpoint=HttpOptions(url=server.url)))
        span = START_S * 1000, (START_S + 3600) * 1000
        source = MetricSource(api, "DCGM_FI_DEV_GPU_TEMP", "gpu_temperature_celsius", "", span, True,
                        [{"Hostname": "node-1", "gpu": "0"}], [0], [1.0])  # fmt: skip
        source.inspect()
        source._rollup_at = lambda rollup, start_ms, end_ms, rows=None: np.array([  # type: ignore[method-assign]
            float((end_ms - span[0]) // 15_000 - max(0, (start_ms - span[0]) // 15_000))
        ])  # fmt: skip
        switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(8) as pool:
                times_ms = [span[0] + 15_000 * int(index) for index in np.random.default_rng(0).permutation(240)] * 8
                counts = list(pool.map(lambda time_ms: source.count_until(time_ms)[0], times_ms))
        finally:
            sys.setswitchinterval(switch_interval)
        assert counts == [(time_ms - span[0]) // 15_000 for time_ms in times_ms]
        api.close()


def test_a_server_is_probed_once_by_many_threads() -> None:
    with scripted(FakePrometheus()) as server, ThreadPoolExecutor(8) as pool:
        api = Api(MetricOptions(endpoint=HttpOptions(url=server.url)))
        assert list(pool.map(lambda _: (api.is_closed, api.is_victoria), range(8))) == [(True, False)] * 8
        assert len(server.requests) == 2
        api.close()


def test_closing_cancels_running_requests() -> None:
    release = threading.Event()

    def hang(request: Request) -> bytes:
        release.wait(20)
        return b""

    with scripted(hang) as server:
        backend = PrometheusBackend(
            MetricOptions(endpoint=HttpOptions(url=server.url)), RunScope(START_S, START_S + 60)
        )
        backend.prefetch()
        time.sleep(0.2)
        start = time.monotonic()
        backend.close()
        with pytest.raises(SourceUnavailable, match="closed"):
            backend.series()
        assert time.monotonic() - start < 1
        release.set()


def test_the_name_holds_no_credentials() -> None:
    options = MetricOptions(endpoint=HttpOptions(url="http://ann:s3cret@metrics:9090/prom"))
    assert PrometheusBackend(options).name == "prometheus http://metrics:9090/prom"
    assert "s3cret" not in repr(options)


# -- decoding


@pytest.mark.parametrize(("points", "expected"), [
    (b'[[60,"1"],[120,"2.5"],[180,"-3e-05"]]', [1, 2.5, -3e-05]),
    (b'[[60,"1"],[180,"3"]]', [1, np.nan, 3]),
    (b'[[60,"NaN"],[120,"+Inf"],[180,"-Inf"]]', [np.nan, np.inf, -np.inf]),
    (b'[ [60, "1"], [120.000, "2"], [1.8e2, "3"] ]', [1, 2, 3]),
    (b"[]", [np.nan] * 3),
])  # fmt: skip
def test_points_are_decoded_into_windows(points: bytes, expected: list[float]) -> None:
    np.testing.assert_array_equal(matrix.windows(points, 0, 60_000, 3, "x"), expected)


@pytest.mark.parametrize(
    "points", [b'[[60,"a"]]', b"[[60]]", b'[[1e300,"1"]]', b'[["NaN","1"],[2,"3"]]', b'[[60,"1",2]]']
)
def test_malformed_points_are_refused(points: bytes) -> None:
    with pytest.raises(SourceUnavailable, match="not of Prometheus"):
        matrix.windows(points, 0, 60_000, 3, "x")
