"""The receiver's own metrics, in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trackside.serve.limits import Bodies
from trackside.stores.receiver.arrivals import unknown_name
from trackside.stores.receiver.intake import Intake

PREFIX = "trackside_receiver_"
Values = Mapping[tuple[tuple[str, str], ...], float]
"""Value by labels; each key holds (name, value) pairs."""


def text(intake: Intake, bodies: Bodies, answered: Mapping[tuple[str, int], int], seconds: float) -> str:
    """All metrics with their current values."""
    accepted, counts = intake.queue.totals(), intake.counts
    refused = dict(accepted.refused + counts.left_out)
    unknown = {name: count for reason, count in refused.items() if (name := unknown_name(reason)) is not None}
    others = {reason: count for reason, count in refused.items() if unknown_name(reason) is None}
    requests: Values = {(("protocol", id_), ("code", str(status))): count for (id_, status), count in answered.items()}
    samples, line_bytes = intake.pending
    metrics: tuple[tuple[str, str, str, float | Values], ...] = (
        ("samples_total", "counter", "Samples accepted.", accepted.samples),
        ("lines_total", "counter", "Log lines accepted.", accepted.lines),
        ("bodies_total", "counter", "Requests accepted.", accepted.bodies),
        ("left_out_total", "counter", "Samples and lines not kept, by reason.", _by("reason", others)),
        ("unknown_samples_total", "counter", "Samples of metrics that nothing here asks for, by name.",
         _by("name", unknown)),
        ("series", "gauge", "Series met today.", intake.queue.series),
        ("streams", "gauge", "Streams of log lines met today.", intake.queue.streams),
        ("requests_total", "counter", "Pushes answered.", requests),
        ("request_seconds_total", "counter", "Seconds that pushes took until their answer.", seconds),
        ("bodies_open", "gauge", "Requests in memory.", bodies.count),
        ("bodies_open_bytes", "gauge", "Bytes of these.", bodies.bytes),
        ("unflushed_samples", "gauge", "Samples that are in the log and not in segments.", samples),
        ("unflushed_line_bytes", "gauge", "Bytes of lines that are in the log and not in files.", line_bytes),
        ("wal_bytes", "gauge", "Bytes of the write-ahead log.", intake.log.bytes),
        ("unsettled_samples", "gauge", "Samples whose unit is still ambiguous.",
         _by("name", intake.unsettled)),
        ("syncs_total", "counter", "Times that the log was synced.", counts.syncs),
        ("flushes_total", "counter", "Times that what waited was written.", counts.flushes),
        ("flush_seconds_total", "counter", "Seconds that this took.", counts.flush_s),
        ("failures_total", "counter", "Times that the log or a flush could not be written.", counts.failures),
        ("writable", "gauge", "1 where the last flush succeeded.", 0 if intake.last_error else 1),
        ("replayed_bodies", "gauge", "Requests read again from the log at the start.", counts.replayed),
        ("damaged_bytes", "gauge", "Bytes of the log that were damaged and skipped.", counts.damaged_bytes),
        ("torn_bytes", "gauge", "Bytes of half-written requests cut off at the start.", counts.torn_bytes),
    )  # fmt: skip
    return "".join(f"{line}\n" for metric in metrics for line in _lines(*metric))


def _by(label: str, values: Mapping[str, float]) -> Values:
    return {((label, name),): value for name, value in values.items()}


def _lines(name: str, kind: str, help_: str, values: float | Values) -> Iterator[str]:
    full = PREFIX + name
    yield f"# HELP {full} {help_}"
    yield f"# TYPE {full} {kind}"
    for labels, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        label_text = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
        yield f"{full}{{{label_text}}} {_number(value)}" if label_text else f"{full} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6f}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
