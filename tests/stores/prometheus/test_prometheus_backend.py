"""MetricBackend in Prometheus-compatible servers: the same values as curves in memory, from real servers and scripted ones."""

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
from trackside.stores.metric_store import MetricOptions, RunScope
from trackside.stores.metrics.prometheus import PrometheusBackend
from trackside.stores.prometheus import matrix
from trackside.stores.prometheus.api import Api
from trackside.stores.prometheus.series import MetricSource

START_S = 1_790_000_000
HOWS: tuple[EngineRollup, ...] = ("avg", "min", "max", "sum", "count", "last")
BLANKS = (float(0x7FFFFFF0), 140737488355328.0, 9.223372036854775792e18, 4294967295.0)
CASES = range(16)


@dataclass
class Case:
    """Samples as exporters might have given them: (name, labels, times in ms, values)."""

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
        """What ``trackside diagnose FILES`` would hold of it."""
        curves = MemoryBackend()
        measured = Measurements("x", _Sink(curves), holes=False)
        for name, labels, times, values in self.lines:
            foreign = measured.series(name, labels, 1)
            measured.add(np.full(len(times), foreign), times, values)
        measured.result()
        return curves


@dataclass
class _Sink:
    curves: MemoryBackend

    def samples(self, samples: Samples) -> None:
        self.curves.add(samples)

    def rows(self, rows: object) -> None:
        raise AssertionError


def case(number: int) -> Case:
    """A few nodes with GPUs, of which anything may be odd."""
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
                if random.random() < 0.15:  # VictoriaMetrics keeps no fractions beside a number of 19 digits
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
    """Pieces of one series as one."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], list[int]] = {}
    for place, (name, labels, _, _) in enumerate(made.lines):
        found.setdefault((name, frozenset(labels.items())), []).append(place)
    lines = []
    for places in found.values():
        name, labels = made.lines[places[0]][:2]
        times, values = (np.concatenate([made.lines[place][i] for place in places]) for i in (2, 3))
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
        metrics = "".join(f"{rest} {int(time) / 1000:.3f}\n" for rest, time in lines) + "# EOF\n"
        with services.prometheus_server(folder, openmetrics=metrics) as prometheus:
            yield prometheus.url


def keyed(
    curves: MemoryBackend | PrometheusBackend,
) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], tuple[int, int, int, int]]:
    return {
        (each.series.metric, each.series.labels): (each.id, each.first_ms, each.last_ms, each.count)
        for each in curves.series()
    }


@pytest.mark.service
@pytest.mark.parametrize("server", ["victoria-metrics", "prometheus"], indirect=True)
@pytest.mark.parametrize("number", CASES)
def test_a_server_gives_what_memory_gives(server: str, number: int) -> None:
    given, random = case(number), np.random.default_rng(number)
    memory = given.memory
    curves = PrometheusBackend(
        MetricOptions(endpoint=HttpOptions(url=server), match={"case": str(number)}),
        RunScope(START_S, START_S + 30_000),
    )
    theirs, ours = keyed(memory), keyed(curves)
    assert {key: held[1:] for key, held in ours.items()} == {key: held[1:] for key, held in theirs.items()}
    by_curve: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[str, tuple[tuple[str, str], ...]]]] = {}
    for key in sorted(theirs):
        metric, labels = key
        by_curve.setdefault((metric, tuple(pair for pair in labels if pair[0] != "job")), []).append(key)
    groups = list(by_curve.values())
    for step_ms in (15_000, 60_000, 900_000):
        start_ms = (START_S * 1000 + int(random.integers(-600_000, 3_000_000))) // step_ms * step_ms
        end_ms = start_ms + step_ms * int(random.integers(1, 400))
        asked = [
            (how, [group for group in groups if group[0][0] == metric])
            for how in HOWS
            for metric in sorted({g[0][0] for g in groups})
        ]
        wanted = [
            RollupRequest([[ours[key][0] for key in group] for group in some], start_ms, end_ms, step_ms, how)
            for how, some in asked
        ]
        curves.expect(wanted)
        for (how, some), rolled in zip(asked, curves.rollups(wanted), strict=True):
            expected, used = memory.rollup(
                [[theirs[key][0] for key in group] for group in some], start_ms, end_ms, step_ms, how
            )
            assert not isinstance(rolled, SourceUnavailable), rolled
            np.testing.assert_allclose(
                rolled[0],
                expected,
                rtol=1e-9,
                atol=0.0,
                err_msg=f"{how} {step_ms} {some[0]}",
            )
            assert rolled[1] == used, (how, step_ms)
    curves.close()


@pytest.mark.service
@pytest.mark.parametrize("server", ["victoria-metrics", "prometheus"], indirect=True)
def test_a_run_is_found_without_its_time(server: str) -> None:
    number = next(each for each in CASES if any("hpc_job" in labels for _, labels, _, _ in case(each).lines))
    options = MetricOptions(endpoint=HttpOptions(url=server), match={"case": str(number)})
    curves = PrometheusBackend(options, RunScope(jobs=("4242",)))
    expected = {key: held[1:] for key, held in keyed(case(number).memory).items() if ("job", "4242") in key[1]}
    assert {key: held[1:] for key, held in keyed(curves).items()} == expected
    nobodys = PrometheusBackend(options, RunScope(jobs=("1",)))
    assert nobodys.series() == []
    for each in (curves, nobodys):
        each.close()


@pytest.mark.service
@pytest.mark.parametrize("server", ["victoria-metrics", "prometheus"], indirect=True)
def test_labels_as_a_site_names_them(server: str) -> None:
    options = MetricOptions(endpoint=HttpOptions(url=server), match=('case="0"',), labels={"device": "node"})
    curves = PrometheusBackend(options, RunScope(START_S, START_S + 30_000, nodes=("nvidia0",)))
    assert {each.series.get("node") for each in curves.series()} == {"nvidia0"}
    curves.close()


def moved(by: float) -> Callable[[bytes], bytes]:
    """Forms in which start and end are multiples of the step, as Thanos and Mimir make them, and so many steps on."""

    def change(body: bytes) -> bytes:
        asked = dict(pairs := parse_qsl(body.decode()))
        if "step" not in asked:
            return body
        step = float(asked["step"])
        ends = {name: f"{(float(asked[name]) // step + by) * step:.3f}" for name in ("start", "end")}
        return urlencode([(name, ends.get(name, text)) for name, text in pairs]).encode()

    return change


def before(url: str, change: Callable[[bytes], bytes]) -> Callable[[Request], bytes]:
    """A front end of a server, which changes what is asked."""
    pool = urllib3.PoolManager(retries=False, maxsize=8)

    def reply(request: Request) -> bytes:
        headers = {"Content-Type": request.headers.get("content-type", "")}
        got = pool.request(request.method, url + request.target, body=change(request.body), headers=headers)
        return answer(got.data, f"{got.status} {got.reason}")

    return reply


@pytest.mark.service
@pytest.mark.parametrize("server", ["victoria-metrics", "prometheus"], indirect=True)
@pytest.mark.parametrize("number", [1, 4])
def test_a_front_end_that_aligns_to_the_step_changes_nothing(server: str, number: int) -> None:
    def asked(url: str, scope: RunScope) -> tuple[object, list[np.ndarray]]:
        curves = PrometheusBackend(MetricOptions(endpoint=HttpOptions(url=url), match={"case": str(number)}), scope)
        held, step_ms = keyed(curves), 60_000
        start_ms = START_S * 1000 // step_ms * step_ms
        rolled = [
            curves.rollup([[each[0]] for each in held.values()], start_ms, start_ms + 500 * step_ms, step_ms, how)[0]
            for how in (("avg", "count") if held else ())
        ]
        curves.close()
        return {key: each[1:] for key, each in held.items()}, rolled

    scopes = RunScope(START_S + 7, START_S + 29_993), RunScope(jobs=("4242",))
    with scripted(before(server, moved(0))) as front:
        for scope in scopes:
            (held, rolled), (plainly, expected) = asked(front.url, scope), asked(server, scope)
            assert held == plainly
            assert held or scope.start is None
            for values, those in zip(rolled, expected, strict=True):
                np.testing.assert_array_equal(values, those)
    with scripted(before(server, moved(0.5))) as front, pytest.raises(SourceUnavailable, match="other times") as caught:
        asked(front.url, scopes[0])
    assert caught.value.kind == "broken"


# -- a scripted server


class Fake:
    """A Prometheus 2 of one metric: each GPU of node-1 is at 50 degrees every 15 s for an hour."""

    def __init__(self, gpus: int = 2) -> None:
        self.series = [
            {"__name__": "DCGM_FI_DEV_GPU_TEMP", "Hostname": "node-1", "gpu": str(gpu)} for gpu in range(gpus)
        ]
        self.times = START_S + 15 * np.arange(1, 241)
        self.value = "50"
        self.extra: dict[str, object] = {}
        self.labels: tuple[str, ...] | str = ("slurm_job_id",)
        self.most_points = 11_000
        self.widest = 0
        self.refused = ""

    def __call__(self, request: Request) -> bytes:
        path, asked = request.path.rpartition("/api/v1/")[2], request.asked
        query = asked.get("query", "")
        if self.refused and self.refused in query:
            return answer({"status": "error", "errorType": "execution", "error": "query touches too much"}, "422 No")
        if path == "label/__name__/values":
            return self.told([*{each["__name__"]: "" for each in self.series}, "go_goroutines"])
        if path == "labels":
            if isinstance(self.labels, str):
                return answer({"status": "error", "error": "no such thing"}, self.labels)
            return self.told(sorted({*self.labels, *(label for each in self.series for label in each)}))
        if path == "series":
            return self.told(self.series)
        if "vector(1)" in query:
            if "count_le" in query:
                return answer({"status": "error", "error": "unknown function"}, "400 Bad")
            return self.told({"resultType": "vector", "result": [{"metric": {}, "value": [float(asked["time"]), "2"]}]})
        return self.rolled(query, asked)

    def told(self, data: object) -> bytes:
        return answer({"status": "success", "data": data, **self.extra})

    def rolled(self, query: str, asked: Mapping[str, str]) -> bytes:
        length = int(re.search(r"\[(\d+)ms\]", query)[1]) / 1000 + 0.001  # type: ignore[index]
        if "time" in asked:
            ends = np.array([float(asked["time"])])
        else:
            ends = np.arange(float(asked["start"]), float(asked["end"]) + 0.5, float(asked["step"]))
            self.widest = max(self.widest, len(ends))
        if len(ends) > self.most_points:
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
            if "time" not in asked or "_over_time" not in query
            else {"value": points[0]}
            if points
            else None
        )
        chosen = [each for each in self.series if kind and each["__name__"] in query]
        result = [{"metric": {k: v for k, v in each.items() if k != "__name__"}, **(kind or {})} for each in chosen]
        return self.told({"resultType": "matrix", "result": result})


def asking(url: str, **options: Any) -> PrometheusBackend:
    endpoint = HttpOptions(url=url, retries=0, timeout_s=5, **options)
    return PrometheusBackend(
        MetricOptions(endpoint=endpoint), RunScope(START_S, START_S + 3600, nodes=("node-1.example",), jobs=("7",))
    )


def test_a_run_is_asked_for_by_its_nodes_and_its_job() -> None:
    with scripted(fake := Fake()) as server:
        curves = asking(server.url, headers={"X-Scope-OrgID": "team-a"})
        held = curves.series()
        assert [(each.series.metric, each.series.get("gpu"), each.count) for each in held] == [
            ("gpu_temperature_celsius", "0", 240), ("gpu_temperature_celsius", "1", 240),
        ]  # fmt: skip
        assert (held[0].first_ms, held[0].last_ms) == ((START_S + 15) * 1000, (START_S + 3600) * 1000)
        values, used = curves.rollup(
            [[each.id] for each in held], START_S * 1000, (START_S + 3600) * 1000, 60_000, "avg"
        )
        assert values.shape == (2, 60)
        assert (values == 50.0).all()
        assert used == 480
        bodies = [unquote_plus(request.body.decode()) for request in server.seen]
        assert all(request.headers["x-scope-orgid"] == "team-a" for request in server.seen)
        listed = next(
            body for request, body in zip(server.seen, bodies, strict=True) if request.path.endswith("/series")
        )
        assert 'Hostname=~"(?i:' in listed
        assert 'slurm_job_id=~"(7)' in listed
        asked = [body for body in bodies if "avg_over_time" in body]
        assert len(asked) == 1
        assert 'avg_over_time(DCGM_FI_DEV_GPU_TEMP{Hostname="node-1"}[59999ms])' in asked[0]
        curves.close()
    assert fake.widest <= 128


def test_the_newest_samples_are_left_alone() -> None:
    fake, now = Fake(), time.time()
    begun = int(now) // 60 * 60 - 3600
    fake.times = begun + 15 * np.arange(1, 300)
    with scripted(fake) as server:
        options = MetricOptions(endpoint=HttpOptions(url=server.url))
        curves = PrometheusBackend(options, RunScope(begun, None, nodes=("node-1",)))
        held = curves.series()
        assert now - 50 < held[0].last_ms / 1000 <= now - 30
        end_ms = (begun + 3720) * 1000
        for how in ("avg", "count"):
            values, used = curves.rollup([[each.id] for each in held], begun * 1000, end_ms, 60_000, how)
            there = int((held[0].last_ms / 1000 - begun - 1) // 60) + 1  # windows that hold a sample
            assert np.isfinite(values[:, :there]).all()
            assert np.isnan(values[:, there:]).all()
            assert np.nansum(values if how == "count" else values / 50) == (used if how == "count" else 2 * there)
            assert used == 2 * held[0].count
        latest = [float(each.asked.get("end", each.asked.get("time", 0))) for each in server.seen]
        assert max(latest) <= now - 30
        curves.close()


def test_a_question_asked_again_costs_nothing() -> None:
    with scripted(Fake()) as server:
        curves = asking(server.url)
        start_ms = START_S * 1000 // 60_000 * 60_000
        wanted = RollupRequest([[each.id] for each in curves.series()], start_ms, start_ms + 3_600_000, 60_000, "max")
        curves.rollups([wanted])
        count = len(server.seen)
        curves.rollups([wanted, replace(wanted, end_ms=wanted.end_ms - 600_000)])
        assert len(server.seen) == count
        curves.close()


def test_pages_shrink_to_what_a_server_gives() -> None:
    fake = Fake()
    with scripted(fake) as server:
        curves = asking(server.url)
        ids = [[each.id] for each in curves.series()]
        fake.most_points = 100
        values, _ = curves.rollup(ids, START_S * 1000, (START_S + 3600) * 1000, 10_000, "max")
        assert np.isfinite(values).sum() == 2 * 240
        curves.close()


@pytest.mark.parametrize("extra", [{"isPartial": True}, {"warnings": ["store gateway 3 is away"]}])
def test_a_part_is_no_answer_unless_it_is_allowed_to_be(extra: dict[str, object]) -> None:
    fake = Fake()
    with scripted(fake) as server:
        curves = asking(server.url)
        ids = [[each.id] for each in curves.series()]
        fake.extra = extra
        wanted = RollupRequest(ids, START_S * 1000, (START_S + 3600) * 1000, 60_000, "max")
        (reason,) = curves.rollups([wanted])
        assert isinstance(reason, SourceUnavailable)
        assert reason.kind == "partial"
        with pytest.raises(SourceUnavailable, match="a part of the answer"):
            asking(server.url).series()
        options = MetricOptions(endpoint=HttpOptions(url=server.url), allow_partial=True)
        assert len(PrometheusBackend(options, RunScope(START_S, START_S + 3600)).series()) == 2
        fake.extra = {"infos": ["all well"], "warnings": ["PromQL info: metric might not be a counter"]}
        assert not isinstance(curves.rollups([wanted])[0], SourceUnavailable)
        curves.close()


def test_a_refused_question_leaves_the_others() -> None:
    fake = Fake()
    fake.refused = "avg_over_time"
    with scripted(fake) as server:
        curves = asking(server.url)
        ids = [[each.id] for each in curves.series()]
        span = START_S * 1000, (START_S + 3600) * 1000, 60_000
        first, second = curves.rollups([RollupRequest(ids, *span, "avg"), RollupRequest(ids, *span, "max")])
        assert isinstance(first, SourceUnavailable)
        assert first.kind == "refused"
        assert "query touches too much" in str(first)
        assert not isinstance(second, SourceUnavailable)
        fake.refused = ""
        assert not isinstance(curves.rollups([RollupRequest(ids, *span, "avg")])[0], SourceUnavailable)
        curves.close()


def test_a_metric_that_cannot_be_looked_at_is_said_to_be() -> None:
    fake = Fake()
    fake.series += [{**each, "__name__": "DCGM_FI_DEV_POWER_USAGE"} for each in fake.series]
    fake.refused = "min_over_time(DCGM_FI_DEV_POWER"
    with scripted(fake) as server:
        curves = asking(server.url)
        assert {each.series.metric for each in curves.series()} == {"gpu_temperature_celsius"}
        assert {metric: reason.kind for metric, reason in curves.failed.items()} == {"gpu_power_watts": "refused"}
        fake.refused = "min_over_time"
        with pytest.raises(SourceUnavailable, match="too much"):
            asking(server.url).series()
        curves.close()


@pytest.mark.parametrize(("reply", "kind"), [
    (answer(b"<html>login</html>"), "broken"),
    (answer({"status": "success", "data": [[1]]}), "broken"),
    (answer({"nothing": 1}), "refused"),
    (answer(b"", "401 Who"), "unauthorized"),
    (b"", "broken"),
    (answer({"status": "success", "data": ["x" * 300]}), "too_large"),
])  # fmt: skip
def test_what_is_no_prometheus(reply: bytes, kind: str) -> None:
    with scripted(reply) as server, pytest.raises(SourceUnavailable) as caught:
        asking(server.url, most_bytes=200).series()
    assert caught.value.kind == kind


def test_a_server_that_is_down_fails_at_once() -> None:
    with scripted(b"") as server:
        url = server.url
    with pytest.raises(SourceUnavailable, match="cannot be reached") as caught:
        asking(url).series()
    assert caught.value.kind == "unreachable"


def test_ten_times_the_data_asked_for() -> None:
    """Series of others, times before and after and points given twice are left aside."""
    fake = Fake()
    with scripted(fake) as server:
        curves = asking(server.url)
        ids = [[each.id] for each in curves.series()]
        fake.series = [{**each, **other} for each in fake.series for other in ({}, {"gpu": "9"}, {"tenant": "b"})]
        rolled = fake.rolled

        def more(query: str, asked: Mapping[str, str]) -> bytes:
            document = json.loads(rolled(query, asked).split(b"\r\n\r\n", 1)[1])
            for each in document["data"]["result"]:
                if "values" in each and "max" in query:
                    each["values"] = [
                        [START_S - 60, "7"],
                        *each["values"],
                        *each["values"],
                        [START_S + 7200, "7"],
                    ]
            return answer(document)

        fake.rolled = more  # type: ignore[method-assign]
        values, used = curves.rollup(ids, START_S * 1000, (START_S + 3600) * 1000, 60_000, "max")
        assert (values == 50.0).all()
        assert used == 480
        curves.close()


@pytest.mark.parametrize(
    "times", [[START_S + 61], [START_S + 30 + 60 * place for place in range(60)], [START_S + 7200]]
)
def test_points_of_other_times_are_not_taken_for_none(times: list[int]) -> None:
    with scripted(fake := Fake()) as server:
        curves = asking(server.url)
        ids = [[each.id] for each in curves.series()]
        metric = {"Hostname": "node-1", "gpu": "0"}
        fake.rolled = lambda query, asked: fake.told(  # type: ignore[method-assign]
            {"resultType": "matrix", "result": [{"metric": metric, "values": [[time, "50"] for time in times]}]}
        )
        (reason,) = curves.rollups([RollupRequest(ids, START_S * 1000, (START_S + 3600) * 1000, 60_000, "max")])
        assert isinstance(reason, SourceUnavailable)
        assert reason.kind == "broken"
        assert "other times than requested" in str(reason)
        curves.close()


def test_counts_are_asked_for_at_multiples_of_their_step() -> None:
    with scripted(Fake()) as server:
        curves = asking(server.url)
        curves.series()
        ranges = [each.asked for each in server.seen if "step" in each.asked]
        assert ranges
        assert all(float(each[end]) % float(each["step"]) == 0 for each in ranges for end in ("start", "end"))
        curves.close()


@pytest.mark.parametrize(("spelled", "matcher"), [
    ("NodeName", 'NodeName=~"(?i:'), ("host.name", '"host.name"=~"(?i:'), ("exported_Instance", "exported_Instance=~"),
])  # fmt: skip
def test_labels_are_asked_for_as_they_are_spelled(spelled: str, matcher: str) -> None:
    fake = Fake()
    fake.series = [{spelled if name == "Hostname" else name: each[name] for name in each} for each in fake.series]
    with scripted(fake) as server:
        curves = asking(server.url)
        assert {each.series.get("node") for each in curves.series()} == {"node-1"}
        listed = next(each.asked["match[]"] for each in server.seen if each.path.endswith("/series"))
        assert matcher in "".join(
            unquote_plus(each.body.decode()) for each in server.seen if each.path.endswith("/series")
        )
        assert "kubernetes_node" not in listed
        curves.close()


@pytest.mark.parametrize("status", ["404 None", "405 Not so", "403 Not you"])
def test_a_server_that_lists_no_labels_is_asked_for_the_common_ones(status: str) -> None:
    fake = Fake()
    fake.labels = status
    with scripted(fake) as server:
        curves = asking(server.url)
        assert len(curves.series()) == 2
        bodies = [unquote_plus(request.body.decode()) for request in server.seen if request.path.endswith("/series")]
        assert all('Hostname=~"(?i:' in body and 'slurm_job_id=~"(7)' in body for body in bodies)
        curves.close()


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
        curves = PrometheusBackend(options, RunScope(START_S, START_S + 600, nodes=("h1", "N1")))
        assert {each.series.get("node") for each in curves.series()} == {"h1", "N1"}
        values, used = curves.rollup([[each.id] for each in curves.series()], START_S * 1000 - 20_000,
                                     START_S * 1000 + 100_000, 60_000, "max")  # fmt: skip
        assert np.nanmax(values) == 51
        assert used == 4
        curves.close()


def test_times_are_asked_for_from_many_threads() -> None:
    """What is known of a source grows while other threads look for the nearest of it."""
    with scripted(Fake()) as server:
        api = Api(MetricOptions(endpoint=HttpOptions(url=server.url)))
        span = START_S * 1000, (START_S + 3600) * 1000
        source = MetricSource(api, "DCGM_FI_DEV_GPU_TEMP", "gpu_temperature_celsius", "", span, True,
                        [{"Hostname": "node-1", "gpu": "0"}], [0], [1.0])  # fmt: skip
        source.inspect()
        source._rollup_at = lambda rollup, start_ms, end_ms, rows=None: np.array([  # type: ignore[method-assign]
            float((end_ms - span[0]) // 15_000 - max(0, (start_ms - span[0]) // 15_000))
        ])  # fmt: skip
        was = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(8) as pool:
                asked = [span[0] + 15_000 * int(each) for each in np.random.default_rng(0).permutation(240)] * 8
                found = list(pool.map(lambda time_ms: source.count_until(time_ms)[0], asked))
        finally:
            sys.setswitchinterval(was)
        assert found == [(each - span[0]) // 15_000 for each in asked]
        api.close()


def test_a_server_is_probed_once_by_many_threads() -> None:
    with scripted(Fake()) as server, ThreadPoolExecutor(8) as pool:
        api = Api(MetricOptions(endpoint=HttpOptions(url=server.url)))
        assert list(pool.map(lambda _: (api.is_closed, api.is_victoria), range(8))) == [(True, False)] * 8
        assert len(server.seen) == 2
        api.close()


def test_closing_ends_what_is_under_way() -> None:
    over = threading.Event()

    def hang(request: Request) -> bytes:
        over.wait(20)
        return b""

    with scripted(hang) as server:
        curves = PrometheusBackend(MetricOptions(endpoint=HttpOptions(url=server.url)), RunScope(START_S, START_S + 60))
        curves.prefetch()
        time.sleep(0.2)
        begun = time.monotonic()
        curves.close()
        with pytest.raises(SourceUnavailable, match="closed"):
            curves.series()
        assert time.monotonic() - begun < 1
        over.set()


def test_a_name_without_credentials() -> None:
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
def test_windows_of_an_answer(points: bytes, expected: list[float]) -> None:
    np.testing.assert_array_equal(matrix.windows(points, 0, 60_000, 3, "x"), expected)


@pytest.mark.parametrize(
    "points", [b'[[60,"a"]]', b"[[60]]", b'[[1e300,"1"]]', b'[["NaN","1"],[2,"3"]]', b'[[60,"1",2]]']
)
def test_points_that_are_none(points: bytes) -> None:
    with pytest.raises(SourceUnavailable, match="not of Prometheus"):
        matrix.windows(points, 0, 60_000, 3, "x")
