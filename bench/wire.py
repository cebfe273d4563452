"""Measure how fast pushes are decoded on this machine, compared with the official protobuf runtime on the same bodies.

    python bench/wire.py [--repeat 7]

A tick is 15,360 series of one sample each: 1,920 GPUs of 8 metrics, with the labels of NVIDIA's exporter. CPU time of
one core, the best of some rounds, all series known; ``cold`` is the first round, in which they are new. The official
runtime (in C) parses the message and is asked for each label, time and value, as a receiver must.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from google.protobuf.json_format import MessageToJson, Parse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.messages import FIRST, PUSH, SECOND
from trackside.serve.protocols import loki_push, otlp_logs, otlp_metrics, remote_write
from trackside.serve.protocols.series_key import KnownSeries
from trackside.stores.receiver.arrivals import MetricBlock
from trackside.stores.receiver.pending import LineStream

NOW = 1_795_253_628_000
SERIES, METRICS = 15_360, 8
LINES = 20_000
PROTOBUF, JSON = "application/x-protobuf", "application/json"
LINE = (
    "2026-11-21 09:33:48,000 INFO iteration {:6d}/ 50000 | loss 2.{:04d} | grad norm 1.20 | lr 3.0e-04 | 512.0 TFLOP/s"
)


def labels(number: int) -> list[tuple[bytes, bytes]]:
    gpu, node = number // METRICS % 8, number // METRICS // 8
    return [
        (b"__name__", b"DCGM_FI_DEV_METRIC_%d" % (number % METRICS)),
        (b"Hostname", b"node-%04d" % node),
        (b"UUID", b"GPU-%08x-1234-5678-9abc-%012x" % (node, gpu)),
        (b"device", b"nvidia%d" % gpu),
        (b"gpu", b"%d" % gpu),
        (b"hpc_job", b"4242"),
        (b"instance", b"10.0.0.%d:9400" % (node % 250)),
        (b"job", b"dcgm"),
        (b"modelName", b"NVIDIA H100 80GB HBM3"),
        (b"pci_bus_id", b"00000000:%02X:00.0" % gpu),
    ]


def _sample(number: int, step: int) -> tuple[int, float]:
    return NOW + step * 15_000, 0.0 if (number + step) % 3 == 0 else number + 0.5


def request_1(series: int, samples: int) -> bytes:
    request = FIRST["WriteRequest"]()
    for number in range(series):
        timeseries = request.timeseries.add()
        for name, text in labels(number):
            timeseries.labels.add(name=name, value=text)
        for step in range(samples):
            time_ms, value = _sample(number, step)
            timeseries.samples.add(timestamp=time_ms, value=value)
    return bytes(request.SerializeToString())


def request_2(series: int, samples: int) -> bytes:
    request, table = SECOND["Request"](), {b"": 0}
    for number in range(series):
        timeseries = request.timeseries.add()
        timeseries.labels_refs.extend(table.setdefault(text, len(table)) for pair in labels(number) for text in pair)
        for step in range(samples):
            time_ms, value = _sample(number, step)
            timeseries.samples.add(timestamp=time_ms, value=value)
        timeseries.metadata.type = 2
    request.symbols.extend(table)
    return bytes(request.SerializeToString())


def metrics(series: int) -> bytes:
    request = ExportMetricsServiceRequest()
    for node in range(series // METRICS // 8):
        resource = request.resource_metrics.add()
        resource.resource.attributes.add(key="host.name").value.string_value = f"node-{node:04d}"
        scope = resource.scope_metrics.add()
        for number in range(METRICS):
            metric = scope.metrics.add(name=f"hw.gpu.metric{number}", unit="1")
            for gpu in range(8):
                point = metric.gauge.data_points.add(time_unix_nano=NOW * 10**6, as_double=gpu + 0.5)
                for key, value in (("hw.id", str(gpu)), ("hw.model", "NVIDIA H100 80GB HBM3"), ("hw.type", "gpu")):
                    point.attributes.add(key=key).value.string_value = value
    return bytes(request.SerializeToString())


def logs(lines: int) -> bytes:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="host.name").value.string_value = "node-0001"
    scope = resource.scope_logs.add()
    for number in range(lines):
        record = scope.log_records.add(time_unix_nano=NOW * 10**6 + number, observed_time_unix_nano=NOW * 10**6)
        record.body.string_value = LINE.format(number, number % 10_000)
        record.attributes.add(key="log.file.name").value.string_value = "slurm-4242.out"
    return bytes(request.SerializeToString())


def push(lines: int) -> bytes:
    request = PUSH["PushRequest"]()
    stream = request.streams.add(labels='{job="4242", node="node-0001", rank="0"}')
    for number in range(lines):
        entry = stream.entries.add(line=LINE.format(number, number % 10_000))
        entry.timestamp.seconds, entry.timestamp.nanos = NOW // 1000, number
    return bytes(request.SerializeToString())


# -- reading the official messages, as a receiver must


def read_1(body: bytes) -> None:
    for timeseries in FIRST["WriteRequest"].FromString(body).timeseries:
        tuple([(item.name, item.value) for item in timeseries.labels])
        [(item.timestamp, item.value) for item in timeseries.samples]


def read_2(body: bytes) -> None:
    request = SECOND["Request"].FromString(body)
    symbols = list(request.symbols)
    for timeseries in request.timeseries:
        tuple([symbols[ref] for ref in timeseries.labels_refs])
        [(item.timestamp, item.value) for item in timeseries.samples]


def read_metrics(body: bytes) -> None:
    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        for metric in resource.scope_metrics[0].metrics:
            for point in metric.gauge.data_points:
                tuple([(item.key, item.value.string_value) for item in point.attributes])
                _ = point.time_unix_nano, point.as_double


def read_logs(body: bytes) -> None:
    for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
        for record in resource.scope_logs[0].log_records:
            tuple([(item.key, item.value.string_value) for item in record.attributes])
            _ = record.time_unix_nano, record.body.string_value


def read_push(body: bytes) -> None:
    for stream in PUSH["PushRequest"].FromString(body).streams:
        for entry in stream.entries:
            _ = entry.timestamp.seconds, entry.timestamp.nanos, entry.line


def read_json(body: bytes) -> None:
    Parse(body, ExportLogsServiceRequest() if b"resourceLogs" in body[:99] else ExportMetricsServiceRequest())


# -- the measurement


def rounds(work: Callable[[bytes], Any], body: bytes, repeat: int) -> tuple[float, float, Any]:
    """CPU seconds of the first round and of the best after it, and the result."""
    cpu_times, result = [], None
    for _ in range(repeat + 1):
        begin = time.process_time()
        result = work(body)
        cpu_times.append(time.process_time() - begin)
    return cpu_times[0], min(cpu_times[1:]), result


def item_count(result: MetricBlock | list[LineStream]) -> int:
    return len(result.values) if isinstance(result, MetricBlock) else sum(len(stream.lines) for stream in result)


def cases() -> Iterator[tuple[str, bytes, Callable[[bytes], Any], Callable[[bytes], None]]]:
    known_series = KnownSeries()
    yield (
        "remote write 1.0, tick",
        request_1(SERIES, 1),
        lambda body: remote_write.decode(body, 1, known_series),
        read_1,
    )
    yield (
        "remote write 1.0, 100 per series",
        request_1(154, 100),
        lambda body: remote_write.decode(body, 1, known_series),
        read_1,
    )
    yield (
        "remote write 2.0, tick",
        request_2(SERIES, 1),
        lambda body: remote_write.decode(body, 2, known_series),
        read_2,
    )
    yield (
        "remote write 2.0, 100 per series",
        request_2(154, 100),
        lambda body: remote_write.decode(body, 2, known_series),
        read_2,
    )
    yield (
        "OTLP metrics, 3 attributes",
        metrics(SERIES),
        lambda body: otlp_metrics.decode(body, PROTOBUF, known_series),
        read_metrics,
    )
    yield "OTLP logs, 1 attribute", logs(LINES), lambda body: otlp_logs.decode(body, PROTOBUF), read_logs
    yield "Loki push", push(LINES), lambda body: loki_push.decode(body, PROTOBUF), read_push
    text = MessageToJson(ExportMetricsServiceRequest.FromString(metrics(SERIES)), indent=None).encode()
    yield "OTLP metrics in JSON", text, lambda body: otlp_metrics.decode(body, JSON, known_series), read_json
    text = MessageToJson(ExportLogsServiceRequest.FromString(logs(LINES)), indent=None).encode()
    yield "OTLP logs in JSON", text, lambda body: otlp_logs.decode(body, JSON), read_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    repeat = parser.parse_args().repeat
    print(
        f"{'':32}{'MB':>6}{'count':>8}{'k/s':>9}{'MB/s':>7}{'cold_s k/s':>10}{'official_decoder k/s':>14}{'ratio':>7}"
    )
    for name, body, our_decoder, official_decoder in cases():
        cold_s, best_s, result = rounds(our_decoder, body, repeat)
        count, size = item_count(result), len(body) / 1e6
        official_s = rounds(official_decoder, body, repeat)[1]
        rates = f"{count / best_s / 1e3:9,.0f}{size / best_s:7,.0f}{count / cold_s / 1e3:10,.0f}{count / official_s / 1e3:14,.0f}"
        print(f"{name:32}{size:6.2f}{count:8,}{rates}{official_s / best_s:7.1f}")


if __name__ == "__main__":
    main()
