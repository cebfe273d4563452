"""VictoriaLogs: lines by ``/select/logsql/query``, as JSON lines.

It streams lines unordered, so each page is sorted by the server, which takes memory for one page only. Since the server
scans a whole window to find its earliest lines, windows are first cut to about one page. Lines of one time have no
stable order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from trackside.http.client import Response
from trackside.http.unavailable import SourceUnavailable
from trackside.stores.log_server import Condition, Conditions, LogServer
from trackside.stores.log_store import (
    SECOND_NS,
    LogEntry,
    LogStream,
    Paging,
    decode_answer,
    in_slices,
    nanoseconds,
    stamp,
)

MAX_BUCKETS = 500
"""Maximum number of intervals of a window whose lines are counted, to cut it into pages."""
_BUILT_IN = frozenset({"_time", "_msg", "_stream", "_stream_id"})
PRODUCT = "VictoriaLogs'"
_ROW = msgspec.json.Decoder(dict[str, str])


class _Value(msgspec.Struct):
    value: str


class _ValueList(msgspec.Struct):
    values: list[_Value] | None


class _HitSeries(msgspec.Struct):
    timestamps: list[str]
    values: list[int]


class _HitCounts(msgspec.Struct):
    hits: list[_HitSeries]


_VALUE_LIST = msgspec.json.Decoder(_ValueList)
_HIT_COUNTS = msgspec.json.Decoder(_HitCounts)


class VictoriaLogs(LogServer):
    """The lines of one VictoriaLogs, single-node or cluster."""

    title = "VictoriaLogs"

    def names(self, start: int, end: int) -> Sequence[str]:
        """All fields except the built-in ones."""
        return [name for name in self._values_of("field_names", start, end) if name not in _BUILT_IN]

    def values(self, name: str, start: int, end: int) -> Sequence[str]:
        return self._values_of("field_values", start, end, name)

    def groups(self, by: Sequence[str], any_of: Sequence[Conditions], start: int, end: int) -> list[Mapping[str, str]]:
        """Groups that the server counts."""
        any_condition = " or ".join(f"({self.selector(conditions)})" for conditions in any_of)
        query = f"({any_condition}) | stats by ({', '.join(map(_name, by))}) count() hits"
        rows = in_slices(lambda start, end: self._rows(query, start, end), start, end)
        return [{name: row[name] for name in by if row.get(name)} for row in rows]

    def selector(self, conditions: Conditions) -> str:
        """Filters on fields, whether or not they are stream labels."""
        return " ".join(map(_filter, self.all_of(conditions)))

    def _values_of(self, endpoint: str, start: int, end: int, field: str = "") -> list[str]:
        def request(start: int, end: int) -> list[str]:
            params = {"query": self.selector(()) or "*", **_times(start, end)} | ({"field": field} if field else {})
            response = self.endpoint.request("GET", f"/select/logsql/{endpoint}", params=params)
            return [
                item.value for item in decode_answer(_VALUE_LIST, response.body, response.url, PRODUCT).values or ()
            ]

        return list(in_slices(request, start, end))

    # -- lines

    def lines(self, stream: LogStream) -> Iterator[Sequence[LogEntry]]:
        query = f"{stream.selector} {self.options.line_filter}".strip()

        def fetch(start: int, end: int, limit: int) -> list[LogEntry]:
            page_query = f"{query} | sort by (_time) | limit {limit}"
            rows = self._rows(page_query, start, end)
            lines = [self._line(row, stream.labels) for row in rows]
            lines.sort(key=lambda line: line.time_ns)
            return lines

        for start, end in self._cuts(query, stream.start_ns, stream.end_ns):
            yield from Paging(fetch, self.options.page).lines(start, end)

    def _cuts(self, query: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The window, cut into pages by the server's counts; uncut if the server does not count."""
        step = max(1, -(-(end - start) // (MAX_BUCKETS * SECOND_NS)))
        params = {"query": query, "step": f"{step}s", **_times(start, end)}
        try:
            counts = _counts(self.endpoint.request("GET", "/select/logsql/hits", params=params))
        except SourceUnavailable:
            # Counting only saves time. If the lines themselves are unavailable, paging reports why.
            counts = {}
        begin, line_count = start, 0
        for time_ns, count in sorted(counts.items()):
            if line_count and line_count + count >= self.options.page and begin < time_ns < end:
                yield begin, time_ns
                begin, line_count = time_ns, 0
            line_count += count
        yield begin, end

    def _rows(self, query: str, start: int, end: int) -> list[dict[str, str]]:
        response = self.endpoint.request("POST", "/select/logsql/query", form={"query": query, **_times(start, end)})
        return [decode_answer(_ROW, text, response.url, PRODUCT) for text in response.body.split(b"\n") if text.strip()]

    def _line(self, row: dict[str, str], known_labels: Mapping[str, str]) -> LogEntry:
        time_ns = nanoseconds(row.get("_time", ""))
        if time_ns is None:
            raise SourceUnavailable(
                "broken", f"{self.name}: a line whose _time is {row.get('_time', '')[:40]!r}, which is not a time"
            )
        labels = {**known_labels, **{name: value for name, value in row.items() if name not in _BUILT_IN}}
        return LogEntry(time_ns, row.get("_msg", ""), labels)


def _counts(response: Response) -> dict[int, int]:
    """Start of each interval in nanoseconds -> its lines, over all groups. Raises SourceUnavailable."""
    counts: dict[int, int] = {}
    for group in decode_answer(_HIT_COUNTS, response.body, response.url, PRODUCT).hits:
        for text, count in zip(group.timestamps, group.values, strict=False):
            if (time_ns := nanoseconds(text)) is not None:
                counts[time_ns] = counts.get(time_ns, 0) + count
    return counts


def _times(start: int, end: int) -> dict[str, str]:
    """Bounds as request parameters. Versions differ in whether the window includes its end, so lines outside are
    dropped afterwards."""
    return {"start": stamp(start), "end": stamp(end)}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else _quoted(name)


def _filter(condition: Condition) -> str:
    name, value = _name(condition.name), condition.value
    match condition.operator:
        case "in":
            return f"{name}:in({','.join(map(_quoted, condition.values))})"
        case "like":
            return f"{name}:~{_quoted(f'^({value})$')}"
        case "unlike":
            return f"!{name}:~{_quoted(f'^({value})$')}"
    return f"{name}:={_quoted(value)}" if value else f'{name}:""'  # absent


LOG_SERVER = VictoriaLogs
