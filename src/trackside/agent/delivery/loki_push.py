"""Log lines as JSON of the Loki push API, compressed with gzip. A spooled record is a comma-separated list of
streams."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trackside.agent.delivery.identity import Identity
from trackside.agent.delivery.receiver import ReceiverOptions
from trackside.agent.source import Labels, Reading

PATH = "/loki/api/v1/push"
RECORD_TEXT_BYTES = 256 << 10
"""Text size at which a reading is split into several records."""
GZIP_LEVEL = 1
HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class LokiOptions:
    """The table ``[send.loki]``, in addition to the receiver's options. ``tenant``: for a multi-tenant Loki."""

    receiver: ReceiverOptions
    tenant: str = ""


class LokiPush:
    """Encodes log lines for the Loki push API."""

    name = "loki"
    path = PATH

    def __init__(self, identity: Identity, tenant: str = "") -> None:
        self._identity = identity
        self._headers = {**HEADERS, "X-Scope-OrgID": tenant} if tenant else HEADERS

    def records(self, reading: Reading) -> Iterator[tuple[bytes, int]]:
        """(streams in JSON, number of lines) for each record of a reading. The lines of a stream keep their order."""
        streams: dict[Labels, list[tuple[str, str]]] = {}
        count = size = 0
        for line in reading.lines:
            streams.setdefault(line.labels, []).append((str(line.time_ns), line.text))
            count += 1
            size += len(line.text) + 40
            if size >= RECORD_TEXT_BYTES:
                yield self._streams(streams), count
                streams, count, size = {}, 0, 0
        if streams:
            yield self._streams(streams), count

    def _streams(self, streams: Mapping[Labels, Sequence[tuple[str, str]]]) -> bytes:
        labeled_streams = ((dict(self._identity.of_line(labels)), values) for labels, values in streams.items())
        entries = [{"stream": labels, "values": values} for labels, values in labeled_streams]
        return _encode(entries)[1:-1].encode("utf-8", "replace")  # unpaired surrogates cannot be encoded

    def body(self, records: Sequence[bytes]) -> tuple[bytes, Mapping[str, str]]:
        """The request body of these records, and its headers."""
        return gzip.compress(b'{"streams":[' + b",".join(records) + b"]}", GZIP_LEVEL, mtime=0), self._headers
