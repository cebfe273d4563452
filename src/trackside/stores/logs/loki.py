"""Grafana Loki: streams by their labels, lines by ``query_range``.

Entries of one time stay in the order in which their stream received them; Loki drops exact repeats in a stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from trackside.http.client import Response
from trackside.http.unavailable import SourceUnavailable, plain
from trackside.stores.log_server import Condition, Conditions, LogServer
from trackside.stores.log_store import LogEntry, LogStream, Paging, decode_answer, in_slices

PRODUCT = "Loki's"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Entry(msgspec.Struct, array_like=True):
    """Time and text, followed by structured metadata if it was requested separately."""

    nanoseconds: str
    text: str


class _StreamResult(msgspec.Struct):
    stream: dict[str, str]
    values: list[_Entry]


class _Data(msgspec.Struct, rename="camel"):
    result: list[_StreamResult]
    result_type: str


class _LinesAnswer(msgspec.Struct):
    data: _Data
    warnings: list[str] | None = None


class _TextsAnswer(msgspec.Struct):
    data: list[str] | None = None


class _SeriesAnswer(msgspec.Struct):
    data: list[dict[str, str]] | None = None


_LINES = msgspec.json.Decoder(_LinesAnswer)
_TEXTS = msgspec.json.Decoder(_TextsAnswer)
_SERIES = msgspec.json.Decoder(_SeriesAnswer)


class Loki(LogServer):
    """The lines of one Loki, or of a server with the same API."""

    title = "Loki"

    def names(self, start: int, end: int) -> Sequence[str]:
        """All labels of streams, without structured metadata."""
        return [name for name in self._texts("labels", start, end) if _NAME.fullmatch(name)]

    def values(self, name: str, start: int, end: int) -> Sequence[str]:
        return self._texts(f"label/{name}/values", start, end)

    def groups(self, by: Sequence[str], any_of: Sequence[Conditions], start: int, end: int) -> list[Mapping[str, str]]:
        """The labels of all streams that match any of the conditions."""
        selected = [("match[]", self.selector(conditions)) for conditions in any_of]

        def request(start: int, end: int) -> list[dict[str, str]]:
            response = self._get("series", start, end, selected)
            return decode_answer(_SERIES, response.body, response.url, PRODUCT).data or []

        return list(in_slices(request, start, end))

    def selector(self, conditions: Conditions) -> str:
        """A stream selector; a label that must be empty must be absent."""
        return "{" + ", ".join(map(_matcher, self.all_of(conditions))) + "}"

    def _texts(self, path: str, start: int, end: int) -> list[str]:
        def request(start: int, end: int) -> list[str]:
            response = self._get(path, start, end)
            return decode_answer(_TEXTS, response.body, response.url, PRODUCT).data or []

        return list(in_slices(request, start, end))

    def _get(self, path: str, start: int, end: int, extra_params: Sequence[tuple[str, str]] = ()) -> Response:
        params = [("start", str(start)), ("end", str(end)), *extra_params]
        return self.endpoint.request("GET", f"/loki/api/v1/{path}", params=params)

    # -- lines

    def lines(self, stream: LogStream) -> Iterator[Sequence[LogEntry]]:
        query = f"{stream.selector} {self.options.line_filter}".strip()

        def fetch(start: int, end: int, limit: int) -> list[LogEntry]:
            params = {"query": query, "start": str(start), "end": str(end), "limit": str(limit), "direction": "forward"}
            return _lines(self.endpoint.request("GET", "/loki/api/v1/query_range", params=params), stream.labels)

        yield from Paging(fetch, self.options.page).lines(stream.start_ns, stream.end_ns)


def _lines(response: Response, known_labels: Mapping[str, str]) -> list[LogEntry]:
    """An answer's entries in time order; the answer groups them by labels and structured metadata."""
    answer = decode_answer(_LINES, response.body, response.url, PRODUCT)
    if answer.data.result_type != "streams":
        raise SourceUnavailable(
            "refused",
            f"{response.url} gave a {plain(answer.data.result_type)}, not lines: line_filter must be a line filter",
        )
    if answer.warnings:
        raise SourceUnavailable("partial", f"{response.url} gave only a part: {plain('; '.join(answer.warnings))}")
    lines = []
    for result in answer.data.result:
        labels = {**known_labels, **result.stream}
        lines += [LogEntry(_time(entry.nanoseconds, response.url), entry.text, labels) for entry in result.values]
    lines.sort(key=lambda line: line.time_ns)  # stable: entries of one stream keep their order
    return lines


def _matcher(condition: Condition) -> str:
    value = "|".join(map(re.escape, condition.values)) if condition.operator == "in" else condition.value
    operator = {"is": "=", "in": "=~", "like": "=~", "unlike": "!~"}[condition.operator]
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{condition.name}{operator}"{escaped}"'


def _time(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise SourceUnavailable(
            "broken", f"{where} sent a line whose time is {text[:40]!r}, which is not in nanoseconds"
        )
    return int(text)


LOG_SERVER = Loki
