"""Prometheus remote write 1.0 and 2.0: the version of a push, its samples, and the response."""

from __future__ import annotations

from trackside.serve.protocols import remote_write_1, remote_write_2
from trackside.serve.protocols.decoded import PushAnswer, UnsupportedMedia
from trackside.serve.protocols.series_key import KnownSeries
from trackside.stores.receiver.arrivals import MetricBlock

_MESSAGES = {"": 1, "prometheus.WriteRequest": 1, "io.prometheus.write.v2.Request": 2}


def decode(body: bytes, version: int = 1, known_series: KnownSeries | None = None) -> MetricBlock:
    """The samples of a decompressed request. ``known_series``: series of earlier requests. Raises BadRequest."""
    read = remote_write_1.decode if version == 1 else remote_write_2.decode
    return read(body, known_series or KnownSeries())


def version_of(content_type: str) -> int:
    """1 or 2, from the Content-Type of a push; raises UnsupportedMedia if it is not remote write."""
    media, *parameters = (part.strip() for part in content_type.split(";"))
    parameters_by_name = dict(part.partition("=")[::2] for part in parameters)
    message = parameters_by_name.get("proto", "").strip('"')
    if media.lower() != "application/x-protobuf" or message not in _MESSAGES:
        raise UnsupportedMedia(
            f"Content-Type {content_type[:200]!r}: remote write is application/x-protobuf, with proto=one of "
            f"{', '.join(name for name in _MESSAGES if name)}"
        )
    return _MESSAGES[message]


def answer(block: MetricBlock, version: int, lost: int = 0, reason: str = "") -> PushAnswer:
    """The response once the block is stored, except ``lost`` samples, with the reason.

    Version 2 reports how many samples were written. Dropped samples of unknown metrics count as written: a sender whose
    request had no others would take "0 written" for a receiver that does not support version 2, and count them as
    failed.
    """
    dropped_texts = [block.reason_text] if block.reason_text and version > 1 else []
    stored_texts = (
        [f"the rest was stored: {reason}"] if reason else ["all samples were stored"] if dropped_texts else []
    )
    message = "; ".join([*dropped_texts, *stored_texts])
    text = "text/plain; charset=utf-8"
    if version == 1:
        return PushAnswer(400, f"{message}\n".encode(), text) if message else PushAnswer()
    headers = {
        "X-Prometheus-Remote-Write-Samples-Written": str(block.received - lost),
        "X-Prometheus-Remote-Write-Histograms-Written": "0",
        "X-Prometheus-Remote-Write-Exemplars-Written": "0",
    }
    # 2xx only if everything was stored
    return PushAnswer(400, message.encode(), text, headers) if message else PushAnswer(headers=headers)
