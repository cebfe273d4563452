"""Grafana Loki: streams by their labels, lines by ``query_range``.

Entries of one time stay in the order in which their stream received them; of exact repeats in a stream Loki keeps one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from trackside.http.client import Response
from trackside.http.unavailable import SourceUnavailable, plain
from trackside.stores.log_store import Line, LogStream, Paging, decoded, in_slices
from trackside.stores.log_streams import Condition, Conditions, LogServer

WHOSE = "Loki's"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Entry(msgspec.Struct, array_like=True):
    """And structured metadata, where these are asked for apart."""

    nanoseconds: str
    text: str


class _Result(msgspec.Struct):
    stream: dict[str, str]
    values: list[_Entry]


class _Data(msgspec.Struct, rename="camel"):
    result: list[_Result]
    result_type: str


class _Answer(msgspec.Struct):
    data: _Data
    warnings: list[str] | None = None


class _Texts(msgspec.Struct):
    data: list[str] | None = None


class _Series(msgspec.Struct):
    data: list[dict[str, str]] | None = None


_LINES = msgspec.json.Decoder(_Answer)
_TEXTS = msgspec.json.Decoder(_Texts)
_SERIES = msgspec.json.Decoder(_Series)


class Loki(LogServer):
    """The lines of one Loki, or of what speaks as it does."""

    title = "Loki"

    def names(self, start: int, end: int) -> Sequence[str]:
        """All labels of streams; structured metadata has no part in it."""
        return [name for name in self._texts("labels", start, end) if _NAME.fullmatch(name)]

    def values(self, name: str, start: int, end: int) -> Sequence[str]:
        return self._texts(f"label/{name}/values", start, end)

    def groups(self, by: Sequence[str], any_of: Sequence[Conditions], start: int, end: int) -> list[Mapping[str, str]]:
        """The labels of all streams that any of these selects."""
        selected = [("match[]", self.selector(each)) for each in any_of]

        def ask(start: int, end: int) -> list[dict[str, str]]:
            got = self._asked("series", start, end, selected)
            return decoded(_SERIES, got.body, got.url, WHOSE).data or []

        return list(in_slices(ask, start, end))

    def selector(self, conditions: Conditions) -> str:
        """A stream selector: a label that must be empty must not be there."""
        return "{" + ", ".join(map(_matcher, self.all_of(conditions))) + "}"

    def _texts(self, path: str, start: int, end: int) -> list[str]:
        def ask(start: int, end: int) -> list[str]:
            got = self._asked(path, start, end)
            return decoded(_TEXTS, got.body, got.url, WHOSE).data or []

        return list(in_slices(ask, start, end))

    def _asked(self, path: str, start: int, end: int, more: Sequence[tuple[str, str]] = ()) -> Response:
        params = [("start", str(start)), ("end", str(end)), *more]
        return self.endpoint.request("GET", f"/loki/api/v1/{path}", params=params)

    # -- lines

    def lines(self, stream: LogStream) -> Iterator[Sequence[Line]]:
        query = f"{stream.selector} {self.options.line_filter}".strip()

        def fetch(start: int, end: int, limit: int) -> list[Line]:
            params = {"query": query, "start": str(start), "end": str(end), "limit": str(limit), "direction": "forward"}
            return _lines(self.endpoint.request("GET", "/loki/api/v1/query_range", params=params), stream.labels)

        yield from Paging(fetch, self.options.page).lines(stream.start_ns, stream.end_ns)


def _lines(got: Response, known: Mapping[str, str]) -> list[Line]:
    """An answer's entries in time order: it has them apart by labels and structured metadata."""
    answer = decoded(_LINES, got.body, got.url, WHOSE)
    if answer.data.result_type != "streams":
        raise SourceUnavailable(
            "refused", f"{got.url} gave a {plain(answer.data.result_type)}, not lines: line_filter must be a filter"
        )
    if answer.warnings:
        raise SourceUnavailable("partial", f"{got.url} gave a part only: {plain('; '.join(answer.warnings))}")
    lines = []
    for result in answer.data.result:
        labels = {**known, **result.stream}
        lines += [Line(_time(each.nanoseconds, got.url), each.text, labels) for each in result.values]
    lines.sort(key=lambda line: line.time_ns)  # stable: those of one stream stay as they came
    return lines


def _matcher(condition: Condition) -> str:
    value = "|".join(map(re.escape, condition.values)) if condition.operator == "in" else condition.value
    operator = {"is": "=", "in": "=~", "like": "=~", "unlike": "!~"}[condition.operator]
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{condition.name}{operator}"{escaped}"'


def _time(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise SourceUnavailable("broken", f"{where} sent a line whose time is {text[:40]!r}, no nanoseconds")
    return int(text)


LOG_STORE = Loki
