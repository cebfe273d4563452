"""Answers that are asked for when they are looked at: most runs need few of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trackside.evidence import Frame, Grid, MissingAnswer, Store
from trackside.facts.trust.trust import Trust
from trackside.query import Query

Answer = Frame | Grid | MissingAnswer


class Asked(Mapping[str, Answer]):
    """The answers to some questions, by name; each is asked once."""

    def __init__(self, store: Store, trust: Trust, queries: Mapping[str, Query]) -> None:
        self._store, self._trust, self._queries = store, trust, queries
        self._answers: dict[str, Answer] = {}

    def __getitem__(self, name: str) -> Answer:
        if name not in self._answers:
            query = self._queries[name]
            self._answers[name] = self._trust.checked(query, self._store.ask(query))
        return self._answers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._queries)

    def __len__(self) -> int:
        return len(self._queries)
