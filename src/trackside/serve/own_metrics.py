"""What the receiver tells of itself, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trackside.serve.limits import Bodies
from trackside.stores.receiver.arrivals import unknown_name
from trackside.stores.receiver.intake import Intake

PREFIX = "trackside_receiver_"


@dataclass(frozen=True, slots=True)
class _Metric:
    """One metric: its values by their labels, each as (name, value) pairs."""

    name: str
    kind: str
    help: str
    values: Mapping[tuple[tuple[str, str], ...], float]

    def lines(self) -> Iterator[str]:
        full = PREFIX + self.name
        yield f"# HELP {full} {self.help}"
        yield f"# TYPE {full} {self.kind}"
        for labels, value in self.values.items():
            told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
            yield f"{full}{{{told}}} {_number(value)}" if told else f"{full} {_number(value)}"


def text(intake: Intake, bodies: Bodies, answered: Mapping[tuple[str, int], int], seconds: float) -> str:
    """All of them as of now."""
    metrics = [*_accepted(intake), *_requests(bodies, answered, seconds), *_waiting(intake), *_flushes(intake)]
    return "\n".join(line for each in metrics for line in each.lines()) + "\n"


def _accepted(intake: Intake) -> Iterator[_Metric]:
    counts = intake.waits.counted()
    refused = dict(counts.refused + intake.counts.left_out)
    unknown = {name: count for reason, count in refused.items() if (name := unknown_name(reason)) is not None}
    others = {reason: count for reason, count in refused.items() if unknown_name(reason) is None}
    yield _plain("samples_total", "counter", "Samples accepted.", counts.samples)
    yield _plain("lines_total", "counter", "Log lines accepted.", counts.lines)
    yield _plain("bodies_total", "counter", "Requests accepted.", counts.bodies)
    yield _by("left_out_total", "Samples and lines not kept, by reason.", "reason", others)
    yield _by("unknown_samples_total", "Samples of metrics that nothing here asks for, by name.", "name", unknown)
    yield _plain("series", "gauge", "Series met today.", intake.waits.series)
    yield _plain("streams", "gauge", "Streams of log lines met today.", intake.waits.streams)


def _requests(bodies: Bodies, answered: Mapping[tuple[str, int], int], seconds: float) -> Iterator[_Metric]:
    values: dict[tuple[tuple[str, str], ...], float] = {
        (("protocol", id_), ("code", str(status))): float(count) for (id_, status), count in answered.items()
    }
    yield _Metric("requests_total", "counter", "Pushes answered.", values)
    yield _plain("request_seconds_total", "counter", "Seconds that pushes took until their answer.", seconds)
    yield _plain("bodies_open", "gauge", "Requests in memory.", bodies.count)
    yield _plain("bodies_open_bytes", "gauge", "Bytes of these.", bodies.bytes)


def _waiting(intake: Intake) -> Iterator[_Metric]:
    samples, line_bytes = intake.pending
    yield _plain("unflushed_samples", "gauge", "Samples that are in the log and not in segments.", samples)
    yield _plain("unflushed_line_bytes", "gauge", "Bytes of lines that are in the log and not in files.", line_bytes)
    yield _plain("wal_bytes", "gauge", "Bytes of the write-ahead log.", intake.log.bytes)
    waiting = {name: float(count) for name, count in intake.waiting.items()}
    yield _by("unsettled_samples", "Samples whose unit only a larger value can tell.", "name", waiting, "gauge")


def _flushes(intake: Intake) -> Iterator[_Metric]:
    counts = intake.counts
    yield _plain("syncs_total", "counter", "Times that the log was synced.", counts.syncs)
    yield _plain("flushes_total", "counter", "Times that what waited was written.", counts.flushes)
    yield _plain("flush_seconds_total", "counter", "Seconds that this took.", counts.flush_s)
    yield _plain("failures_total", "counter", "Times that the log or a flush could not be written.", counts.failures)
    yield _plain("writable", "gauge", "1 where the last flush succeeded.", 0 if intake.trouble else 1)
    yield _plain("replayed_bodies", "gauge", "Requests read again from the log at the start.", counts.replayed)
    yield _plain("damaged_bytes", "gauge", "Bytes of the log that were damaged and skipped.", counts.damaged_bytes)
    yield _plain("torn_bytes", "gauge", "Bytes of half-written requests cut off at the start.", counts.torn_bytes)


def _plain(name: str, kind: str, help_: str, value: float) -> _Metric:
    return _Metric(name, kind, help_, {(): float(value)})


def _by(name: str, help_: str, label: str, values: Mapping[str, float], kind: str = "counter") -> _Metric:
    return _Metric(name, kind, help_, {((label, told),): float(value) for told, value in values.items()})


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6f}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
