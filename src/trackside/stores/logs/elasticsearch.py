"""Elasticsearch and OpenSearch: lines by ``_search`` on an index pattern, the same way on both.

Pages go forward in time as in the other stores, so that no point in time, nor a tie-breaker that only one of the two
knows, has to be held open on the server. Lines of one time come in the order of their offset in the file, where the
collector kept it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from trackside.http.client import HttpClient
from trackside.http.unavailable import SourceUnavailable
from trackside.stores.log_store import Line, LogOptions, LogStream, Paging, decoded, in_slices, nanoseconds, stamp
from trackside.stores.log_streams import Condition, Conditions, LogServer

MOST_BUCKETS = 1000
"""Values of fields that are asked for at once."""
MOST_GROUPS = 200_000
"""Streams of one run."""
DEPTH = 20
"""Objects in objects of a document that are looked into: as many as an index maps."""
OFFSETS = ("log.offset", "offset")
"""Fields where collectors keep where in its file a line stood."""
_NUMBERS = frozenset({"long", "integer", "short", "byte", "unsigned_long"})
_EXACT = _NUMBERS | {"keyword", "constant_keyword", "wildcard"}
WHOSE = "Elasticsearch's"
Json = dict[str, Any]


class _Fields(msgspec.Struct):
    fields: dict[str, dict[str, Any]]


class _Hit(msgspec.Struct):
    source: Json | None = msgspec.field(default=None, name="_source")
    fields: dict[str, list[Any]] | None = None


class _Hits(msgspec.Struct):
    hits: list[_Hit]


class _Bucket(msgspec.Struct):
    key: dict[str, str | int | float | bool | None]


class _Groups(msgspec.Struct):
    buckets: list[_Bucket]
    after_key: dict[str, str | int | float | bool | None] | None = None


class _Aggregations(msgspec.Struct):
    groups: _Groups


class _Shards(msgspec.Struct):
    failed: int = 0


class _Found(msgspec.Struct):
    """``aggregations`` are missing where no index fits the pattern."""

    hits: _Hits
    aggregations: _Aggregations | None = None
    shards: _Shards | None = msgspec.field(default=None, name="_shards")
    timed_out: bool = False


_FIELDS = msgspec.json.Decoder(_Fields)
_FOUND = msgspec.json.Decoder(_Found)


class Elasticsearch(LogServer):
    """The lines of the indices that a pattern names."""

    title = "Elasticsearch"

    def __init__(self, options: LogOptions, endpoint: HttpClient | None = None) -> None:
        super().__init__(options, endpoint)
        self._fields: dict[str, str] = {}
        """Field -> the one to ask for exact values of it: itself, or its ``.keyword``."""
        self._numbers: frozenset[str] = frozenset()

    def names(self, start: int, end: int) -> Sequence[str]:
        """Fields that can be asked for exact values, of all times: mappings know none."""
        got = self.endpoint.request("GET", f"{self._index}/_field_caps", params={"fields": "*", **_LENIENT})
        fields = decoded(_FIELDS, got.body, got.url, WHOSE).fields
        exact = {name for name, types in fields.items() if types and _EXACT.issuperset(types)}
        self._numbers = frozenset(name for name in exact if not _NUMBERS.isdisjoint(fields[name]))
        plain = {name.removesuffix(".keyword") for name in exact}
        self._fields = {
            name: name if name in exact else f"{name}.keyword" for name in plain if not name.startswith("_")
        }
        return sorted(self._fields)

    def values(self, name: str, start: int, end: int) -> Sequence[str]:
        return [labels[name] for labels in self.groups((name,), ((),), start, end) if name in labels]

    def groups(self, by: Sequence[str], any_of: Sequence[Conditions], start: int, end: int) -> list[Mapping[str, str]]:
        """By a composite aggregation, page after page."""
        either = {"bool": {"should": [{"bool": json.loads(self.selector(each))} for each in any_of]}}
        return list(in_slices(lambda start, end: self._groups(by, either, start, end), start, end))

    def selector(self, conditions: Conditions) -> str:
        """The inside of a ``bool`` query as JSON."""
        clauses = [self._clause(each) for each in self.all_of(conditions)]
        must, must_not = ([query for met, query in clauses if met is wanted] for wanted in (True, False))
        return json.dumps({"filter": must, "must_not": must_not})

    def _clause(self, condition: Condition) -> tuple[bool, Json]:
        """(whether it must be met, the query)"""
        field = self._fields.get(condition.name, condition.name)
        if condition.operator == "unlike" and field in self._numbers:  # numbers have no patterns; ids are what they are
            return False, {"exists": {"field": field}}
        match condition.operator:
            case "in":
                return True, {"terms": {field: list(condition.values)}}
            case "like":
                return True, {"regexp": {field: condition.value}}
            case "unlike":
                return False, {"regexp": {field: condition.value}}
        if not condition.value:
            return False, {"exists": {"field": field}}
        return True, {"term": {field: condition.value}}

    def _groups(self, by: Sequence[str], query: Json, start: int, end: int) -> Iterator[Mapping[str, str]]:
        places = {f"f{place}": name for place, name in enumerate(by)}
        composite: Json = {
            "size": MOST_BUCKETS,
            "sources": [
                {place: {"terms": {"field": self._fields.get(name, name), "missing_bucket": True}}}
                for place, name in places.items()
            ],
        }
        for _ in range(MOST_GROUPS // MOST_BUCKETS):
            body = {"size": 0, "query": self._within(query, start, end), "aggs": {"groups": {"composite": composite}}}
            found = self._search(body).aggregations
            for bucket in found.groups.buckets if found is not None else ():
                values = {name: bucket.key.get(place) for place, name in places.items()}
                yield {name: str(value) for name, value in values.items() if value is not None}
            if found is None or not found.groups.after_key:
                return
            composite["after"] = found.groups.after_key
        raise SourceUnavailable(
            "partial", f"{self.name} has more than {MOST_GROUPS:,} streams of the run; narrow it with match"
        )

    # -- lines

    def lines(self, stream: LogStream) -> Iterator[Sequence[Line]]:
        query: Json = {"bool": json.loads(stream.selector)}
        if self.options.line_filter:
            query["bool"].setdefault("filter", []).append({"query_string": {"query": self.options.line_filter}})
        sort: list[Json] = [{self.options.time_field: {"order": "asc"}}]
        sort += [{name: {"order": "asc", "unmapped_type": "long"}} for name in OFFSETS]

        def fetch(start: int, end: int, limit: int) -> list[Line]:
            body = {
                "size": limit,
                "query": self._within(query, start, end),
                "sort": sort,
                "fields": [{"field": self.options.time_field, "format": "strict_date_optional_time_nanos"}],
                "track_total_hits": False,
            }
            return [self._line(hit, stream.labels) for hit in self._search(body).hits.hits]

        # An index gives at most 10,000 at once unless it is told otherwise.
        yield from Paging(fetch, min(self.options.page, 10_000)).lines(stream.start_ns, stream.end_ns)

    def _line(self, hit: _Hit, known: Mapping[str, str]) -> Line:
        source = _flat(hit.source or {})
        told = (hit.fields or {}).get(self.options.time_field) or [source.get(self.options.time_field)]
        time_ns = nanoseconds(told[0]) if isinstance(told[0], str) else None
        if time_ns is None:
            shown = repr(told[0])[:40] if isinstance(told[0], (str, float, int)) else "not there"
            raise SourceUnavailable(
                "broken", f"{self.name}: a line whose {self.options.time_field} is {shown}, no time"
            )
        text = next(
            (source[name] for name in (self.options.message_field, "log", "event.original") if name in source), ""
        )
        return Line(time_ns, text, {**known, **source})

    @property
    def _index(self) -> str:
        return "/" + quote(self.options.index, safe="*,-")

    def _within(self, query: Json, start: int, end: int) -> Json:
        bounds = {"gte": stamp(start), "lt": stamp(end), "format": "strict_date_optional_time_nanos"}
        return {"bool": {"filter": [query, {"range": {self.options.time_field: bounds}}]}}

    def _search(self, body: Json) -> _Found:
        got = self.endpoint.request(
            "POST",
            f"{self._index}/_search",
            params=_LENIENT,
            body=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        answer = decoded(_FOUND, got.body, got.url, WHOSE)
        failed = answer.shards.failed if answer.shards is not None else 0
        if answer.timed_out or failed:
            why = "it ran out of time" if answer.timed_out else f"{failed} shards failed"
            raise SourceUnavailable("partial", f"{got.url} searched a part only: {why}")
        return answer


_LENIENT = {"ignore_unavailable": "true", "allow_no_indices": "true"}


def _flat(source: Mapping[str, Any], above: str = "", depth: int = DEPTH) -> dict[str, str]:
    """A document's scalars by their dotted names; of a list its first. What lies deeper is left out."""
    found: dict[str, str] = {}
    for name, value in source.items():
        if isinstance(value, list):
            value = value[0] if value else None
        if isinstance(value, dict):
            found |= _flat(value, f"{above}{name}.", depth - 1) if depth else {}
        elif isinstance(value, str):
            found[above + name] = value
        elif isinstance(value, (bool, int, float)):
            found[above + name] = json.dumps(value)
    return found


LOG_STORE = Elasticsearch
