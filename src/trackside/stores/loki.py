"""Grafana Loki: streams by their labels, lines by ``query_range``.

Entries of one time stay in the order in which their stream received them; of exact repeats in a stream Loki keeps one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from trackside.stores.endpoint import Endpoint, Response, Unanswered
from trackside.stores.log_store import Line, LogOptions, LogStream, Paging, Streams, Wanted, in_slices
from trackside.stores.log_streams import Condition, Conditions, find


class _Result(msgspec.Struct):
    stream: dict[str, str]
    values: list[list[Any]]
    """[nanoseconds as text, line], and structured metadata where these are asked for apart."""


class _Data(msgspec.Struct, rename="camel"):
    result: list[_Result]
    result_type: str


class _Answer(msgspec.Struct):
    data: _Data
    warnings: list[str] = []


class _Listed(msgspec.Struct):
    data: list[Any] | None = None


_LINES = msgspec.json.Decoder(_Answer)
_LISTED = msgspec.json.Decoder(_Listed)


class Loki:
    """The lines of one Loki, or of what speaks as it does."""

    def __init__(self, options: LogOptions, endpoint: Endpoint | None = None) -> None:
        self.options = options
        self.endpoint = endpoint or Endpoint(options.endpoint)
        self.name = f"Loki {self.endpoint.name}"

    def streams(self, wanted: Wanted) -> Streams:
        """See :class:`trackside.stores.log_store.LogStore`."""
        return find(self, wanted)

    # -- see :class:`trackside.stores.log_streams.Dialect`

    def names(self, start: int, end: int) -> Sequence[str]:
        """All labels of streams; structured metadata has no part in it."""
        return self._listed("labels", start, end)

    def values(self, name: str, start: int, end: int) -> Sequence[str]:
        """All values of a label."""
        return self._listed(f"label/{name}/values", start, end)

    def groups(self, by: Sequence[str], any_of: Sequence[Conditions], start: int, end: int) -> list[Mapping[str, str]]:
        """The labels of all streams that any of these selects."""
        return self._listed("series", start, end, [("match[]", self.selector(each)) for each in any_of])

    def selector(self, conditions: Conditions) -> str:
        """A stream selector: a label that must be empty must not be there."""
        fixed = (Condition(name, "is", value) for name, value in sorted(self.options.match.items()))
        return "{" + ", ".join(map(_matcher, (*conditions, *fixed))) + "}"

    def _listed(self, path: str, start: int, end: int, more: Sequence[tuple[str, str]] = ()) -> list[Any]:
        def ask(start: int, end: int) -> list[Any]:
            params = [("start", str(start)), ("end", str(end)), *more]
            got = self.endpoint.request("GET", f"/loki/api/v1/{path}", params=params)
            try:
                return _LISTED.decode(got.body).data or []
            except msgspec.DecodeError:
                raise _strange(got) from None

        return list(in_slices(ask, start, end))

    # -- lines

    def lines(self, stream: LogStream) -> Iterator[Sequence[Line]]:
        """See :class:`trackside.stores.log_store.LogStore`."""
        query = f"{stream.selector} {self.options.line_filter}".strip()

        def fetch(start: int, end: int, limit: int) -> list[Line]:
            params = {"query": query, "start": str(start), "end": str(end), "limit": str(limit), "direction": "forward"}
            return _lines(self.endpoint.request("GET", "/loki/api/v1/query_range", params=params), stream.labels)

        yield from Paging(fetch, self.options.page).lines(stream.start_ns, stream.end_ns)


def _lines(got: Response, known: Mapping[str, str]) -> list[Line]:
    """An answer's entries in time order: it has them apart by labels and structured metadata."""
    try:
        answer = _LINES.decode(got.body)
    except msgspec.DecodeError:
        raise _strange(got) from None
    if answer.data.result_type != "streams":
        raise Unanswered(
            "refused", f"{got.url} gave a {answer.data.result_type}, not lines: line_filter must be a filter"
        )
    if answer.warnings:
        raise Unanswered("partial", f"{got.url} gave a part only: {'; '.join(answer.warnings)[:300]}")
    lines = []
    try:
        for result in answer.data.result:
            labels = {**known, **result.stream}
            lines += [Line(int(time), text, labels) for time, text, *_ in result.values]
    except (ValueError, TypeError):
        raise _strange(got) from None
    lines.sort(key=lambda line: line.time_ns)  # stable: those of one stream stay as they came
    return lines


def _matcher(condition: Condition) -> str:
    value = "|".join(map(re.escape, condition.values)) if condition.operator == "in" else condition.value
    operator = {"is": "=", "in": "=~", "like": "=~", "unlike": "!~"}[condition.operator]
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{condition.name}{operator}"{escaped}"'


def _strange(got: Response) -> Unanswered:
    shown = got.body[:80].decode("utf-8", "replace")
    return Unanswered("broken", f"{got.url} sent what is no answer of Loki's: {shown!r}; is it the right URL?")


LOG_STORE = Loki
