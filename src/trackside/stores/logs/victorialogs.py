"""VictoriaLogs: lines by ``/select/logsql/query``, as JSON lines.

It streams lines in no order, so each page is sorted by it, which takes memory for a page only; and because it looks
through the whole of a window to find the earliest lines, windows are cut first to where a page's worth is. Lines of one
time come in no order that it keeps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from trackside.http.client import Response
from trackside.http.unavailable import SourceUnavailable
from trackside.stores.log_store import SECOND, Line, LogStream, Paging, decoded, in_slices, nanoseconds, stamp
from trackside.stores.log_streams import Condition, Conditions, LogServer

BUCKETS = 500
"""Stretches of a window whose lines are counted, to cut it where a page is full."""
_OWN = frozenset({"_time", "_msg", "_stream", "_stream_id"})
WHOSE = "VictoriaLogs'"
_ROW = msgspec.json.Decoder(dict[str, str])


class _Value(msgspec.Struct):
    value: str


class _Listed(msgspec.Struct):
    values: list[_Value] | None


class _Group(msgspec.Struct):
    timestamps: list[str]
    values: list[int]


class _Hits(msgspec.Struct):
    hits: list[_Group]


_LISTED = msgspec.json.Decoder(_Listed)
_HITS = msgspec.json.Decoder(_Hits)


class VictoriaLogs(LogServer):
    """The lines of one VictoriaLogs, single or cluster."""

    title = "VictoriaLogs"

    def names(self, start: int, end: int) -> Sequence[str]:
        """All fields but its own."""
        return [name for name in self._listed("field_names", start, end) if name not in _OWN]

    def values(self, name: str, start: int, end: int) -> Sequence[str]:
        return self._listed("field_values", start, end, name)

    def groups(self, by: Sequence[str], any_of: Sequence[Conditions], start: int, end: int) -> list[Mapping[str, str]]:
        """Counted by the store."""
        either = " or ".join(f"({self.selector(each)})" for each in any_of)
        query = f"({either}) | stats by ({', '.join(map(_name, by))}) count() hits"
        rows = in_slices(lambda start, end: self._rows(query, start, end), start, end)
        return [{name: row[name] for name in by if row.get(name)} for row in rows]

    def selector(self, conditions: Conditions) -> str:
        """Filters on fields, whether or not they are labels of its streams."""
        return " ".join(map(_filter, self.all_of(conditions)))

    def _listed(self, what: str, start: int, end: int, field: str = "") -> list[str]:
        def ask(start: int, end: int) -> list[str]:
            params = {"query": self.selector(()) or "*", **_times(start, end)} | ({"field": field} if field else {})
            got = self.endpoint.request("GET", f"/select/logsql/{what}", params=params)
            return [each.value for each in decoded(_LISTED, got.body, got.url, WHOSE).values or ()]

        return list(in_slices(ask, start, end))

    # -- lines

    def lines(self, stream: LogStream) -> Iterator[Sequence[Line]]:
        query = f"{stream.selector} {self.options.line_filter}".strip()

        def fetch(start: int, end: int, limit: int) -> list[Line]:
            asked = f"{query} | sort by (_time) | limit {limit}"
            rows = self._rows(asked, start, end)
            lines = [self._line(row, stream.labels) for row in rows]
            lines.sort(key=lambda line: line.time_ns)
            return lines

        for start, end in self._cuts(query, stream.start_ns, stream.end_ns):
            yield from Paging(fetch, self.options.page).lines(start, end)

    def _cuts(self, query: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The window, cut where a page is full by the store's counts; the whole where it doesn't count."""
        step = max(1, -(-(end - start) // (BUCKETS * SECOND)))
        params = {"query": query, "step": f"{step}s", **_times(start, end)}
        try:
            counts = _counts(self.endpoint.request("GET", "/select/logsql/hits", params=params))
        except SourceUnavailable:
            # Counting saves time only: paging says what is wrong, if the lines themselves can't be had.
            counts = {}
        begin, held = start, 0
        for at, count in sorted(counts.items()):
            if held and held + count >= self.options.page and begin < at < end:
                yield begin, at
                begin, held = at, 0
            held += count
        yield begin, end

    def _rows(self, query: str, start: int, end: int) -> list[dict[str, str]]:
        got = self.endpoint.request("POST", "/select/logsql/query", form={"query": query, **_times(start, end)})
        return [decoded(_ROW, text, got.url, WHOSE) for text in got.body.split(b"\n") if text.strip()]

    def _line(self, row: dict[str, str], known: Mapping[str, str]) -> Line:
        time_ns = nanoseconds(row.get("_time", ""))
        if time_ns is None:
            raise SourceUnavailable(
                "broken", f"{self.name}: a line whose _time is {row.get('_time', '')[:40]!r}, no time"
            )
        labels = {**known, **{name: value for name, value in row.items() if name not in _OWN}}
        return Line(time_ns, row.get("_msg", ""), labels)


def _counts(got: Response) -> dict[int, int]:
    """Lines from each counted time on, nanoseconds, over all groups. Raises SourceUnavailable."""
    counts: dict[int, int] = {}
    for group in decoded(_HITS, got.body, got.url, WHOSE).hits:
        for text, count in zip(group.timestamps, group.values, strict=False):
            if (at := nanoseconds(text)) is not None:
                counts[at] = counts.get(at, 0) + count
    return counts


def _times(start: int, end: int) -> dict[str, str]:
    """Bounds as the store takes them; whether the last is part of the window differs between its versions, so that what
    lies outside is left out afterwards."""
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
    return f"{name}:={_quoted(value)}" if value else f'{name}:""'  # not there


LOG_STORE = VictoriaLogs
