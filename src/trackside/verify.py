"""Checks every citation of a verdict again; reports those that no longer give the same value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from trackside.evidence import MissingAnswer, Store, reduce_answer
from trackside.model import Scalar
from trackside.query import Query, QueryError


class CitationLike(Protocol):
    """What is needed to check a citation: its query (or the text form), its value and its location."""

    @property
    def query(self) -> str | Query: ...
    @property
    def value(self) -> Scalar: ...
    @property
    def where(self) -> str: ...


@dataclass(frozen=True, slots=True)
class CitationCheck:
    """The check of one citation: ``now`` is its current value, or ``problem`` says why there is none."""

    id: str
    cite: CitationLike
    now: Scalar = None
    problem: str = ""

    @property
    def holds(self) -> bool:
        """Whether the value is still the same."""
        return not self.problem and is_same_value(self.cite.value, self.now)


def check(cites: Mapping[str, CitationLike], store: Store) -> Iterable[CitationCheck]:
    """Check every citation, in order."""
    for name, cite in cites.items():
        try:
            query = Query.parse(str(cite.query))
        except QueryError as error:
            yield CitationCheck(name, cite, problem=str(error))
            continue
        answer = store.ask(query.rows)
        if isinstance(answer, MissingAnswer):
            none = 0 if query.reducer == "count" else None  # nothing was sampled: a count is 0, any other value is None
            if not answer.source and query.subject == "metric" and (none == 0 or cite.value is None):
                yield CitationCheck(name, cite, none)
            else:
                yield CitationCheck(name, cite, problem=answer.reason)
            continue
        try:
            yield CitationCheck(name, cite, reduce_answer(answer, query))
        except QueryError as error:
            yield CitationCheck(name, cite, problem=str(error))


def is_same_value(then: Scalar, now: Scalar) -> bool:
    """Whether two values are equal, although one may have passed through JSON, where non-finite numbers are text."""
    if isinstance(then, (int, float)) and isinstance(now, (int, float)):
        return then == now or math.isclose(then, now, rel_tol=1e-9) or (math.isnan(then) and math.isnan(now))
    if isinstance(now, float) and not math.isfinite(now):
        return str(now) == str(then)
    return then == now
