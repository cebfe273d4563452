"""Lines as Loki's push has them in JSON, compressed by gzip. What is spooled are streams with a comma between them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trackside.agent.out.identity import Identity
from trackside.agent.out.receiver import ReceiverOptions
from trackside.agent.source import Labels, Reading

PATH = "/loki/api/v1/push"
PIECE_BYTES = 256 << 10
"""Of one record's text; a larger reading is several."""
LEVEL = 1
HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class LokiOptions:
    """The table ``[send.loki]``, beside how the receiver is reached. ``tenant``: of a Loki that has several."""

    receiver: ReceiverOptions
    tenant: str = ""


class LokiPush:
    """Lines as this protocol has them."""

    name = "loki"
    path = PATH

    def __init__(self, identity: Identity, tenant: str = "") -> None:
        self._identity = identity
        self._headers = {**HEADERS, "X-Scope-OrgID": tenant} if tenant else HEADERS

    def records(self, reading: Reading) -> Iterator[tuple[bytes, int]]:
        """A reading's lines: streams in JSON, and how many lines they hold. A stream's lines keep their order."""
        streams: dict[Labels, list[tuple[str, str]]] = {}
        count = size = 0
        for line in reading.lines:
            streams.setdefault(line.labels, []).append((str(line.time_ns), line.text))
            count += 1
            size += len(line.text) + 40
            if size >= PIECE_BYTES:
                yield self._streams(streams), count
                streams, count, size = {}, 0, 0
        if streams:
            yield self._streams(streams), count

    def _streams(self, streams: Mapping[Labels, Sequence[tuple[str, str]]]) -> bytes:
        named = ((dict(self._identity.of_line(labels)), values) for labels, values in streams.items())
        made = [{"stream": labels, "values": values} for labels, values in named]
        return _encode(made)[1:-1].encode("utf-8", "replace")  # half of a surrogate pair can't be sent

    def body(self, records: Sequence[bytes]) -> tuple[bytes, Mapping[str, str]]:
        """A push of these, and its headers."""
        return gzip.compress(b'{"streams":[' + b",".join(records) + b"]}", LEVEL, mtime=0), self._headers
