"""The receiver's own metrics, in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trackside.serve.limits import Bodies
from trackside.stores.receiver.arrivals import unknown_name
from trackside.stores.receiver.intake import Intake

PREFIX = "trackside_receiver_"
CountsByLabel = Mapping[tuple[tuple[str, str], ...], float]
"""Value by labels; each key holds (name, value) pairs."""


def render(intake: Intake, bodies: Bodies, responses: Mapping[tuple[str, int], int], push_s: float) -> str:
    """All metrics with their current values. ``responses``: number by protocol and status; ``push_s``: seconds spent on
    pushes."""
    accepted, counts = intake.queue.totals(), intake.counts
    refused = dict(accepted.refused + counts.left_out)
    unknown = {name: count for reason, count in refused.items() if (name := unknown_name(reason)) is not None}
    left_out = {reason: count for reason, count in refused.items() if unknown_name(reason) is None}
    requests: CountsByLabel = {
        (("protocol", id_), ("code", str(status))): count for (id_, status), count in responses.items()
    }
    samples, line_bytes = intake.pending
    metrics: tuple[tuple[str, str, str, float | CountsByLabel], ...] = (
        ("samples_total", "counter", "Samples accepted.", accepted.samples),
        ("lines_total", "counter", "Log lines accepted.", accepted.lines),
        ("bodies_total", "counter", "Requests accepted.", accepted.bodies),
        ("left_out_total", "counter", "Samples and lines that were not stored, by reason.",
         _by_label("reason", left_out)),
        ("unknown_samples_total", "counter", "Samples of metrics that Trackside does not use, by name.",
         _by_label("name", unknown)),
        ("series", "gauge", "Distinct series received today (UTC).", intake.queue.series),
        ("streams", "gauge", "Distinct streams of log lines received today (UTC).", intake.queue.streams),
        ("requests_total", "counter", "Pushes answered, by protocol and status code.", requests),
        ("request_seconds_total", "counter", "Seconds spent on pushes until they were answered.", push_s),
        ("bodies_open", "gauge", "Requests in memory now.", bodies.count),
        ("bodies_open_bytes", "gauge", "Bytes of the requests in memory now.", bodies.bytes),
        ("unflushed_samples", "gauge", "Samples in the write-ahead log that no segment has yet.", samples),
        ("unflushed_line_bytes", "gauge", "Bytes of lines in the write-ahead log that no file has yet.", line_bytes),
        ("wal_bytes", "gauge", "Bytes of the write-ahead log.", intake.log.bytes),
        ("unsettled_samples", "gauge", "Samples whose unit is still ambiguous.",
         _by_label("name", intake.unsettled)),
        ("syncs_total", "counter", "Syncs of the write-ahead log to disk.", counts.syncs),
        ("flushes_total", "counter", "Flushes of pending data to the store.", counts.flushes),
        ("flush_seconds_total", "counter", "Seconds spent in flushes.", counts.flush_s),
        ("failures_total", "counter", "Failed writes of the write-ahead log or of a flush.", counts.failures),
        ("writable", "gauge", "1 if the last flush succeeded, else 0.", 0 if intake.last_error else 1),
        ("replayed_bodies", "gauge", "Requests replayed from the write-ahead log at the last start.", counts.replayed),
        ("damaged_bytes", "gauge", "Bytes of the write-ahead log that were damaged and skipped.", counts.damaged_bytes),
        ("torn_bytes", "gauge", "Bytes of incomplete requests cut off at the last start.", counts.torn_bytes),
    )  # fmt: skip
    return "".join(f"{line}\n" for metric in metrics for line in _lines(*metric))


def _by_label(label: str, values: Mapping[str, float]) -> CountsByLabel:
    return {((label, name),): value for name, value in values.items()}


def _lines(name: str, kind: str, help_: str, values: float | CountsByLabel) -> Iterator[str]:
    full_name = PREFIX + name
    yield f"# HELP {full_name} {help_}"
    yield f"# TYPE {full_name} {kind}"
    for labels, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        label_text = ",".join(f'{name}="{_escape(text)}"' for name, text in labels)
        yield f"{full_name}{{{label_text}}} {_number(value)}" if label_text else f"{full_name} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6f}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
