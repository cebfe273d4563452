"""Samples in remote write arrive unchanged in our receiver, VictoriaMetrics and Prometheus."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.receivers import Request
from tests.serve.receiving import RunningReceiver
from tests.services import Prometheus, Victoria, wait_until
from trackside.agent.delivery.identity import Identity
from trackside.agent.delivery.receiver import ReceiverOptions
from trackside.agent.delivery.remote_write import RECORD_BYTES, RemoteWrite, literals
from trackside.agent.source import Reading
from trackside.http.client import HttpClient
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.receiver.options import ServeOptions


def decoded_samples(reading: Reading, identity: Identity | None = None) -> list[tuple[str, dict[str, str], int, float]]:
    """The samples that a receiver decodes from a reading."""
    wire = RemoteWrite(identity or Identity("n1"))
    body, headers = wire.body([record for record, _ in wire.records(reading)])
    return Request("", headers, body).samples()


def test_a_reading_arrives_unchanged() -> None:
    reading = Reading(time_ns=1_772_438_400_123_456_789)
    reading.sample("gpu_power_watts", 312.5, gpu=3, job=4242)
    reading.sample("host_load1", 0.1)
    assert decoded_samples(reading) == [
        ("gpu_power_watts", {"gpu": "3", "node": "n1", "slurm_job_id": "4242"}, 1_772_438_400_123, 312.5),
        ("host_load1", {"node": "n1"}, 1_772_438_400_123, 0.1),
    ]


def test_the_headers_are_those_of_the_protocol() -> None:
    _, headers = RemoteWrite(Identity("n1")).body([])
    assert headers == {
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }


def test_labels_including_the_name_are_sorted() -> None:
    reading = Reading()
    reading.sample("host_load1", 1.0, zone="a")
    [(record, count)] = RemoteWrite(Identity("n1", "", {"Rack": "7", "_x": "1"})).records(reading)
    names = [b"Rack", b"__name__", b"_x", b"node", b"zone"]
    assert [record.index(name) for name in names] == sorted(record.index(name) for name in names)
    assert count == 1


def test_labels_of_a_source_override_those_of_the_settings() -> None:
    reading = Reading()
    reading.sample("host_load1", 1.0, node="n7", job=1)
    reading.sample("host_load1", 2.0)
    labels_of_samples = [labels for _, labels, _, _ in decoded_samples(reading, Identity("n1", "9", {"cluster": "a"}))]
    assert labels_of_samples == [
        {"cluster": "a", "node": "n7", "slurm_job_id": "1"},
        {"cluster": "a", "node": "n1", "slurm_job_id": "9"},
    ]


@given(st.floats(), st.integers(-(1 << 50), 1 << 60), st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_value_time_and_text_survives(value: float, time_ns: int, text: str) -> None:
    reading = Reading(time_ns=time_ns)
    reading.sample("training_loss", value, user=text or None)
    ((_, labels, time_ms, received_value),) = decoded_samples(reading)
    assert labels.get("user", "") == text
    assert time_ms == time_ns // 1_000_000
    assert received_value == value or (math.isnan(received_value) and math.isnan(value))


def test_a_nan_is_not_sent_as_a_staleness_marker() -> None:
    reading = Reading()
    reading.sample("training_loss", json.loads("NaN"))
    [(record, _)] = RemoteWrite(Identity("n1")).records(reading)
    assert (0x7FF0000000000002).to_bytes(8, "little") not in record


def test_a_large_reading_is_split_into_several_records() -> None:
    reading = Reading()
    for pid in range(20_000):
        reading.sample("gpu_process_memory_used_bytes", pid, pid=pid)
    wire = RemoteWrite(Identity("n1"))
    records = list(wire.records(reading))
    assert len(records) > 3
    assert max(len(record) for record, _ in records) < RECORD_BYTES + 1000
    assert sum(count for _, count in records) == 20_000
    assert [value for *_, value in Request("", {}, wire.body([record for record, _ in records])[0]).samples()] == list(
        range(20_000)
    )


@given(st.binary(max_size=300) | st.integers(0, 200_000).map(lambda size: random.Random(size).randbytes(size)))
def test_a_block_of_literals_is_valid_snappy(data: bytes) -> None:
    assert bytes(cramjam.snappy.decompress_raw(literals(data))) == data if data else literals(data) == b"\x00"


def test_without_cramjam_the_receiver_can_still_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.agent.delivery.remote_write.compressor", lambda: (literals, False))
    reading = Reading()
    for gpu in range(5000):
        reading.sample("gpu_power_watts", gpu, gpu=gpu)
    assert [value for *_, value in decoded_samples(reading)] == list(range(5000))


def readings() -> list[Reading]:
    """Three recent readings of a node: Prometheus refuses samples that are older than its newest block."""
    begin = time.time_ns() // 1_000_000_000 * 1_000_000_000 - 60_000_000_000
    result = []
    for tick in range(3):
        reading = Reading(time_ns=begin + tick * 15_000_000_000)
        for gpu in range(8):
            reading.sample("gpu_power_watts", 300 + gpu + tick / 8, gpu=gpu, job=4242)
            reading.sample("gpu_energy_joules_total", 1e9 + 4500.0 * tick + gpu, gpu=gpu)
            reading.sample("gpu_sm_active_ratio", gpu / 8, gpu=gpu)
        reading.sample("host_memory_total_bytes", float(2 << 40))
        reading.sample("host_pressure_seconds_total", 1.5 + tick, level="some", resource="io")
        result.append(reading)
    return result


Table = dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[int, float]]]


def expected_table() -> Table:
    table: Table = {}
    for reading in readings():
        for sample in reading.samples:
            labels = Identity("n1").of_sample(sample.labels)
            table.setdefault((sample.metric, labels), []).append((reading.time_ns // 1_000_000, sample.value))
    return table


def post(url: str) -> None:
    wire = RemoteWrite(Identity("n1"))
    client = HttpClient(ReceiverOptions(url=url).with_path(wire.path))
    for reading in readings():
        body, headers = wire.body([record for record, _ in wire.records(reading)])
        assert client.request("POST", "", body=body, headers=headers).status in (200, 204)
    client.close()


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixes the time, so that each store gets the same readings."""
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)


@pytest.mark.service
@pytest.mark.usefixtures("frozen")
def test_every_store_has_the_same_samples(victoria: Victoria, prometheus: Prometheus, tmp_path: Path) -> None:
    """The embedded store behind the receiver, VictoriaMetrics and Prometheus agree on each sample of each series."""
    victoria.clear()
    receiver = RunningReceiver(ServeOptions(store=str(tmp_path / "store")))
    try:
        post(receiver.url)
    finally:
        receiver.close()
    post(victoria.url)
    post(prometheus.url)
    victoria.flush()
    expected = expected_table()
    assert embedded_table(tmp_path / "store") == expected
    wait_until(lambda: queried_table(victoria) == expected, "VictoriaMetrics to show it", 10)
    assert queried_table(prometheus) == expected


def embedded_table(store: Path) -> Table:
    table: Table = {}
    with Snapshot.open(store) as snapshot:
        sql = f"SELECT s.metric, s.labels, time_ms, value FROM {snapshot.table('samples')} JOIN {snapshot.table('series')} s USING (series) ORDER BY time_ms"
        for metric, labels, time_ms, value in snapshot.rows(sql):
            named = Identity("n1").of_sample(tuple(json.loads(labels).items()))  # translates the label job back
            table.setdefault((metric, named), []).append((time_ms, value))
    return table


def queried_table(server: Victoria | Prometheus) -> Table:
    """All raw samples of the last minutes, from an instant query for a range."""
    answer = server.ask("GET", "/api/v1/query", fields={"query": '{node="n1"}[5m]'})
    return {
        (
            series["metric"]["__name__"],
            tuple(sorted((name, value) for name, value in series["metric"].items() if name != "__name__")),
        ): [(round(time_s * 1000), float(value)) for time_s, value in series["values"]]
        for series in json.loads(answer)["data"]["result"]
    }
