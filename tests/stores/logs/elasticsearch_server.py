"""A stand-in for Elasticsearch, as documented: ``_field_caps``, and ``_search`` with the queries of the client.

It follows the documentation and was not compared with a real server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import count
from typing import Any

from tests.stores.logs.servers import Answer, Entry, Params, Server, refused
from tests.stores.logs.victorialogs_server import nanoseconds, rfc

Json = dict[str, Any]


class ElasticsearchServer(Server):
    """``unit_ns``: resolution of its times: 1,000,000 for ``date``, 1 for ``date_nanos``. ``max_hits``: its limit per page."""

    def __init__(
        self, *entries: Entry, max_hits: int = 10_000, unit_ns: int = 1, text_fields: frozenset[str] = frozenset()
    ):
        super().__init__(*entries)
        self.max_hits, self.unit_ns, self.text_fields = max_hits, unit_ns, text_fields
        self._ties = count()
        self.docs = [
            (entry.time_ns // unit_ns * unit_ns, next(self._ties), {**entry.labels, **entry.more}, entry.text)
            for entry in entries
        ]

    def answer(self, method: str, path: str, params: Params, body: bytes) -> Answer:
        if method == "GET" and path.endswith("/_field_caps"):
            names = {name for _, _, fields, _ in self.docs for name in fields}
            caps: Json = {"message": {"text": {}}, "@timestamp": {"date": {}}}
            for name in names:
                if name in self.text_fields:
                    caps[name], caps[f"{name}.keyword"] = {"text": {}}, {"keyword": {}}
                else:
                    caps[name] = {"keyword": {}}
            return _ok({"fields": caps})
        if method != "POST" or not path.endswith("/_search"):
            return self.unknown(f"{method} {path}")
        document = json.loads(body)
        if document["size"] > self.max_hits:
            reason = (
                "Result window is too large, from + size must be less than or equal to: "
                f"[{self.max_hits}] but was [{document['size']}]."
            )
            return refused(
                json.dumps({"error": {"type": "illegal_argument_exception", "reason": reason}, "status": 400})
            )
        try:
            docs = [doc for doc in self.docs if self._matches(doc, document["query"])]
        except (KeyError, ValueError) as error:
            return self.unknown(f"{error!r} in {document['query']}")
        if "aggs" in document:
            groups = self._composite(docs, document["aggs"]["groups"]["composite"])
            return _ok({"hits": {"hits": []}, "aggregations": {"groups": groups}})
        return self._hits(docs, document)

    def _hits(self, docs: list[Any], request: Json) -> Answer:
        if request["sort"][0] != {"@timestamp": {"order": "asc"}} or request["fields"][0]["field"] != "@timestamp":
            return self.unknown(json.dumps(request))
        hits = [
            {
                "_source": {**_nested(fields), "message": text, "@timestamp": time // 1_000_000},
                "fields": {"@timestamp": [rfc(time)]},
            }
            for time, _, fields, text in sorted(docs)[: request["size"]]
        ]
        return _ok({"timed_out": False, "_shards": {"total": 1, "failed": 0}, "hits": {"hits": hits}})

    def _composite(self, docs: list[Any], request: Json) -> Json:
        sources = [next(iter(source.items())) for source in request["sources"]]
        keys = {
            tuple(fields.get(source["terms"]["field"].removesuffix(".keyword")) for _, source in sources)
            for _, _, fields, _ in docs
        }
        ordered = sorted(keys, key=lambda key: [value or "" for value in key])
        if "after" in request:
            after = tuple(request["after"][name] for name, _ in sources)
            ordered = ordered[ordered.index(after) + 1 :]
        page = [{name: value for (name, _), value in zip(sources, key, strict=True)} for key in ordered[:2]]
        return {"buckets": [{"key": key, "doc_count": 1} for key in page]} | ({"after_key": page[-1]} if page else {})

    def _matches(self, doc: tuple[int, int, Mapping[str, str], str], query: Json) -> bool:
        (kind, inside), *others = query.items()
        if others:
            raise ValueError("two queries in one")
        if kind == "bool":
            if inside.keys() - {"filter", "must_not", "should"}:
                raise ValueError(str(inside))
            return (
                all(self._matches(doc, clause) for clause in inside.get("filter", ()))
                and not any(self._matches(doc, clause) for clause in inside.get("must_not", ()))
                and (not inside.get("should") or any(self._matches(doc, clause) for clause in inside["should"]))
            )
        if kind == "range":
            low, high = inside["@timestamp"]["gte"], inside["@timestamp"]["lt"]
            # Bounds are cut to the resolution of the field, as Elasticsearch does.
            unit = self.unit_ns
            return nanoseconds(low) // unit * unit <= doc[0] < nanoseconds(high) // unit * unit
        if kind == "exists":
            return inside["field"].removesuffix(".keyword") in doc[2]
        ((field, expected),) = inside.items()
        if field.endswith(".keyword") != (field.removesuffix(".keyword") in self.text_fields):
            raise ValueError(f"exact values of {field}")
        value = doc[2].get(field.removesuffix(".keyword"))
        if value is None:
            return False
        tests = {"term": lambda: value == expected, "terms": lambda: value in expected}
        tests["regexp"] = lambda: re.fullmatch(expected, value) is not None
        return tests[kind]()


def _nested(fields: Mapping[str, str]) -> Json:
    nested: Json = {}
    for name, value in fields.items():
        *parents, last = name.split(".")
        inside = nested
        for part in parents:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return nested


def _ok(body: Json) -> Answer:
    return Answer(200, json.dumps(body).encode())
