"""Elasticsearch and OpenSearch: lines by ``_search`` on an index pattern, the same way on both.

Pages go forward in time as in the other stores, so that no point in time, nor a tie-breaker that only one of the two
knows, has to be held open on the server. Lines of one time come in the order of their offset in the file, where the
collector kept it.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from trackside.stores.endpoint import Endpoint, Unanswered
from trackside.stores.log_store import SECOND, Line, LogOptions, LogStream, Paging, Streams, Wanted, in_slices, stamp
from trackside.stores.log_streams import Condition, Conditions, find

MOST_BUCKETS = 1000
"""Values of fields that are asked for at once."""
OFFSETS = ("log.offset", "offset")
"""Fields where collectors keep where in its file a line stood."""
_NUMBERS = frozenset({"long", "integer", "short", "byte", "unsigned_long"})
_EXACT = _NUMBERS | {"keyword", "constant_keyword", "wildcard"}
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:?00)")
Json = dict[str, Any]


class Elasticsearch:
    """The lines of the indices that a pattern names."""

    def __init__(self, options: LogOptions, endpoint: Endpoint | None = None) -> None:
        self.options = options
        self.endpoint = endpoint or Endpoint(options.endpoint)
        self.name = f"Elasticsearch {self.endpoint.name}"
        self._fields: dict[str, str] = {}
        """Field -> the one to ask for exact values of it: itself, or its ``.keyword``."""
        self._numbers: frozenset[str] = frozenset()

    def streams(self, wanted: Wanted) -> Streams:
        """See :class:`trackside.stores.log_store.LogStore`."""
        return find(self, wanted)

    # -- see :class:`trackside.stores.log_streams.Dialect`

    def names(self, start: int, end: int) -> Sequence[str]:
        """Fields that can be asked for exact values, of all times: mappings know none."""
        got = self.endpoint.request("GET", f"{self._index}/_field_caps", params={"fields": "*", **_LENIENT}).json()
        fields = got.get("fields") if isinstance(got, dict) else None
        if not isinstance(fields, dict):
            raise Unanswered("broken", f"{self.name} sent no fields; is it the right URL?")
        exact = {name for name, types in fields.items() if isinstance(types, dict) and _EXACT.issuperset(types)}
        self._numbers = frozenset(name for name in exact if not _NUMBERS.isdisjoint(fields[name]))
        plain = {name.removesuffix(".keyword") for name in exact}
        self._fields = {
            name: name if name in exact else f"{name}.keyword" for name in plain if not name.startswith("_")
        }
        return sorted(self._fields)

    def values(self, name: str, start: int, end: int) -> Sequence[str]:
        """All values of a field in the window."""
        return [labels[name] for labels in self.groups((name,), ((),), start, end) if name in labels]

    def groups(self, by: Sequence[str], any_of: Sequence[Conditions], start: int, end: int) -> list[Mapping[str, str]]:
        """By a composite aggregation, page after page."""
        either = {"bool": {"should": [{"bool": json.loads(self.selector(each))} for each in any_of]}}
        return list(in_slices(lambda start, end: self._groups(by, either, start, end), start, end))

    def selector(self, conditions: Conditions) -> str:
        """The inside of a ``bool`` query as JSON."""
        fixed = (Condition(name, "is", value) for name, value in sorted(self.options.match.items()))
        return json.dumps(_bool([self._clause(each) for each in (*conditions, *fixed)]))

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
        while True:
            body = {"size": 0, "query": self._within(query, start, end), "aggs": {"groups": {"composite": composite}}}
            found = self._search(body).get("aggregations", {}).get("groups", {})
            for bucket in found.get("buckets", ()):
                values = {name: bucket["key"].get(place) for place, name in places.items()}
                yield {name: str(value) for name, value in values.items() if value is not None}
            if not found.get("after_key"):
                return
            composite["after"] = found["after_key"]

    # -- lines

    def lines(self, stream: LogStream) -> Iterator[Sequence[Line]]:
        """See :class:`trackside.stores.log_store.LogStore`."""
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
            hits = self._search(body).get("hits", {}).get("hits", [])
            return [self._line(hit, stream.labels) for hit in hits]

        # An index gives at most 10,000 at once unless it is told otherwise.
        yield from Paging(fetch, min(self.options.page, 10_000)).lines(stream.start_ns, stream.end_ns)

    def _line(self, hit: Json, known: Mapping[str, str]) -> Line:
        source = _flat(hit.get("_source") or {})
        times = (hit.get("fields") or {}).get(self.options.time_field) or [source.get(self.options.time_field)]
        found = _TIME.fullmatch(str(times[0]))
        if found is None:
            raise Unanswered("broken", f"{self.name}: a line whose {self.options.time_field} is {times[0]!r}, no time")
        seconds = int(dt.datetime.fromisoformat(found[1] + "+00:00").timestamp())
        time_ns = seconds * SECOND + int((found[2] or "0").ljust(9, "0"))
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

    def _search(self, body: Json) -> Json:
        got = self.endpoint.request(
            "POST",
            f"{self._index}/_search",
            params=_LENIENT,
            body=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        answer = got.json()
        if not isinstance(answer, dict):
            raise Unanswered("broken", f"{got.url} sent no answer to a search; is it the right URL?")
        failed = (answer.get("_shards") or {}).get("failed", 0)
        if answer.get("timed_out") or failed:
            why = "it ran out of time" if answer.get("timed_out") else f"{failed} shards failed"
            raise Unanswered("partial", f"{got.url} searched a part only: {why}")
        return answer


_LENIENT = {"ignore_unavailable": "true", "allow_no_indices": "true"}


def _bool(clauses: Sequence[tuple[bool, Json]]) -> Json:
    """The inside of a ``bool`` query."""
    must, must_not = ([query for met, query in clauses if met is wanted] for wanted in (True, False))
    return {"filter": must, "must_not": must_not}


def _flat(source: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """A document's scalars by their dotted names; of a list its first."""
    found: dict[str, str] = {}
    for name, value in source.items():
        if isinstance(value, list):
            value = value[0] if value else None
        if isinstance(value, dict):
            found |= _flat(value, f"{above}{name}.")
        elif value is not None:
            found[above + name] = value if isinstance(value, str) else json.dumps(value)
    return found


LOG_STORE = Elasticsearch
