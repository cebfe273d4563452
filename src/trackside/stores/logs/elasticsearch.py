"""Elasticsearch and OpenSearch: lines by ``_search`` on an index pattern, the same way on both.

Pages go forward in time as in the other stores, so the server has to keep no point in time open and no tie-breaker is
needed that only one of the two supports. Lines with the same timestamp come in the order of their offset in the file,
if the collector kept it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from trackside.http.client import HttpClient
from trackside.http.unavailable import SourceUnavailable
from trackside.stores.log_server import Condition, Conditions, LogServer
from trackside.stores.log_store import (
    LogEntry,
    LogOptions,
    LogStream,
    Paging,
    decode_answer,
    in_slices,
    nanoseconds,
    stamp,
)

PAGE_BUCKETS = 1000
"""Value combinations per page of an aggregation."""
MAX_GROUPS = 200_000
"""Maximum number of streams of one run."""
MAX_DEPTH = 20
"""Deepest nesting of objects that is read in a document: as deep as an index maps."""
OFFSETS = ("log.offset", "offset")
"""Fields in which collectors keep a line's offset in its file."""
_INTEGER_TYPES = frozenset({"long", "integer", "short", "byte", "unsigned_long"})
_EXACT_TYPES = _INTEGER_TYPES | {"keyword", "constant_keyword", "wildcard"}
PRODUCT = "Elasticsearch's"
Json = dict[str, Any]


class _Fields(msgspec.Struct):
    fields: dict[str, dict[str, Any]]


class _Hit(msgspec.Struct):
    source: Json | None = msgspec.field(default=None, name="_source")
    fields: dict[str, list[Any]] | None = None


class _SearchHits(msgspec.Struct):
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


class _SearchAnswer(msgspec.Struct):
    """``aggregations`` is missing if no index matches the pattern."""

    hits: _SearchHits
    aggregations: _Aggregations | None = None
    shards: _Shards | None = msgspec.field(default=None, name="_shards")
    timed_out: bool = False


_FIELDS = msgspec.json.Decoder(_Fields)
_SEARCH_ANSWER = msgspec.json.Decoder(_SearchAnswer)


class Elasticsearch(LogServer):
    """The lines of the indices that a pattern selects."""

    title = "Elasticsearch"

    def __init__(self, options: LogOptions, endpoint: HttpClient | None = None) -> None:
        super().__init__(options, endpoint)
        self._fields: dict[str, str] = {}
        """Field -> the field for exact matches: itself, or its ``.keyword``."""
        self._integer_fields: frozenset[str] = frozenset()

    def names(self, start: int, end: int) -> Sequence[str]:
        """Fields that support exact matches, for all times: mappings hold no times."""
        response = self.endpoint.request("GET", f"{self._index}/_field_caps", params={"fields": "*", **_ALLOW_MISSING})
        fields = decode_answer(_FIELDS, response.body, response.url, PRODUCT).fields
        exact = {name for name, types in fields.items() if types and _EXACT_TYPES.issuperset(types)}
        self._integer_fields = frozenset(name for name in exact if not _INTEGER_TYPES.isdisjoint(fields[name]))
        plain = {name.removesuffix(".keyword") for name in exact}
        self._fields = {
            name: name if name in exact else f"{name}.keyword" for name in plain if not name.startswith("_")
        }
        return sorted(self._fields)

    def values(self, name: str, start: int, end: int) -> Sequence[str]:
        return [labels[name] for labels in self.groups((name,), ((),), start, end) if name in labels]

    def groups(self, by: Sequence[str], any_of: Sequence[Conditions], start: int, end: int) -> list[Mapping[str, str]]:
        """Groups by a composite aggregation, page after page."""
        either = {"bool": {"should": [{"bool": json.loads(self.selector(conditions))} for conditions in any_of]}}
        return list(in_slices(lambda start, end: self._groups(by, either, start, end), start, end))

    def selector(self, conditions: Conditions) -> str:
        """The content of a ``bool`` query as JSON."""
        clauses = [self._clause(condition) for condition in self.all_of(conditions)]
        must, must_not = (
            [query for is_required, query in clauses if is_required is required] for required in (True, False)
        )
        return json.dumps({"filter": must, "must_not": must_not})

    def _clause(self, condition: Condition) -> tuple[bool, Json]:
        """(whether the query must match, the query)."""
        field = self._fields.get(condition.name, condition.name)
        if (
            condition.operator == "unlike" and field in self._integer_fields
        ):  # patterns do not work on numeric fields; a number there is a job id
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
        names = {f"f{key}": name for key, name in enumerate(by)}
        composite: Json = {
            "size": PAGE_BUCKETS,
            "sources": [
                {key: {"terms": {"field": self._fields.get(name, name), "missing_bucket": True}}}
                for key, name in names.items()
            ],
        }
        for _ in range(MAX_GROUPS // PAGE_BUCKETS):
            body = {"size": 0, "query": self._within(query, start, end), "aggs": {"groups": {"composite": composite}}}
            aggregations = self._search(body).aggregations
            for bucket in aggregations.groups.buckets if aggregations is not None else ():
                values = {name: bucket.key.get(key) for key, name in names.items()}
                yield {name: str(value) for name, value in values.items() if value is not None}
            if aggregations is None or not aggregations.groups.after_key:
                return
            composite["after"] = aggregations.groups.after_key
        raise SourceUnavailable(
            "partial", f"{self.name} has more than {MAX_GROUPS:,} streams of the run; narrow the search with match"
        )

    # -- lines

    def lines(self, stream: LogStream) -> Iterator[Sequence[LogEntry]]:
        query: Json = {"bool": json.loads(stream.selector)}
        if self.options.line_filter:
            query["bool"].setdefault("filter", []).append({"query_string": {"query": self.options.line_filter}})
        sort: list[Json] = [{self.options.time_field: {"order": "asc"}}]
        sort += [{name: {"order": "asc", "unmapped_type": "long"}} for name in OFFSETS]

        def fetch(start: int, end: int, limit: int) -> list[LogEntry]:
            body = {
                "size": limit,
                "query": self._within(query, start, end),
                "sort": sort,
                "fields": [{"field": self.options.time_field, "format": "strict_date_optional_time_nanos"}],
                "track_total_hits": False,
            }
            return [self._line(hit, stream.labels) for hit in self._search(body).hits.hits]

        # An index returns at most 10,000 at once by default.
        yield from Paging(fetch, min(self.options.page, 10_000)).lines(stream.start_ns, stream.end_ns)

    def _line(self, hit: _Hit, known_labels: Mapping[str, str]) -> LogEntry:
        source = _flat(hit.source or {})
        times = (hit.fields or {}).get(self.options.time_field) or [source.get(self.options.time_field)]
        time_ns = nanoseconds(times[0]) if isinstance(times[0], str) else None
        if time_ns is None:
            field, value = self.options.time_field, times[0]
            problem = (
                f"a line's {field} is {repr(value)[:40]}, which is not a time"
                if isinstance(value, (str, float, int))
                else f"a line has no field {field}; set time_field in the log server's settings"
            )
            raise SourceUnavailable("broken", f"{self.name}: {problem}")
        text = next(
            (source[name] for name in (self.options.message_field, "log", "event.original") if name in source), ""
        )
        return LogEntry(time_ns, text, {**known_labels, **source})

    @property
    def _index(self) -> str:
        return "/" + quote(self.options.index, safe="*,-")

    def _within(self, query: Json, start: int, end: int) -> Json:
        bounds = {"gte": stamp(start), "lt": stamp(end), "format": "strict_date_optional_time_nanos"}
        return {"bool": {"filter": [query, {"range": {self.options.time_field: bounds}}]}}

    def _search(self, body: Json) -> _SearchAnswer:
        response = self.endpoint.request(
            "POST",
            f"{self._index}/_search",
            params=_ALLOW_MISSING,
            body=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        answer = decode_answer(_SEARCH_ANSWER, response.body, response.url, PRODUCT)
        failed = answer.shards.failed if answer.shards is not None else 0
        if answer.timed_out or failed:
            reason = "it ran out of time" if answer.timed_out else f"{failed} shards failed"
            raise SourceUnavailable("partial", f"{response.url} searched only a part: {reason}")
        return answer


_ALLOW_MISSING = {"ignore_unavailable": "true", "allow_no_indices": "true"}


def _flat(source: Mapping[str, Any], prefix: str = "", depth: int = MAX_DEPTH) -> dict[str, str]:
    """A document's scalars by their dotted names; of a list the first element. Deeper nesting is left out."""
    scalars: dict[str, str] = {}
    for name, value in source.items():
        if isinstance(value, list):
            value = value[0] if value else None
        if isinstance(value, dict):
            scalars |= _flat(value, f"{prefix}{name}.", depth - 1) if depth else {}
        elif isinstance(value, str):
            scalars[prefix + name] = value
        elif isinstance(value, (bool, int, float)):
            scalars[prefix + name] = json.dumps(value)
    return scalars


LOG_SERVER = Elasticsearch
