"""Ask every citation of a verdict again, and say which no longer gives the same value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from trackside.evidence import MissingAnswer, Store, reduced
from trackside.model import Scalar
from trackside.query import Query, QueryError


class Cited(Protocol):
    """What of a citation is needed to ask it again: the question or its text form, the answer then, and where it is."""

    @property
    def query(self) -> str | Query: ...
    @property
    def value(self) -> Scalar: ...
    @property
    def where(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Checked:
    """One citation asked again: ``now`` is its value, or ``problem`` why there is none."""

    id: str
    cite: Cited
    now: Scalar = None
    problem: str = ""

    @property
    def holds(self) -> bool:
        """Whether it still gives the same value."""
        return not self.problem and same(self.cite.value, self.now)


def check(cites: Mapping[str, Cited], store: Store) -> Iterable[Checked]:
    """Every citation, in order."""
    for name, cite in cites.items():
        try:
            query = Query.parse(str(cite.query))
        except QueryError as error:
            yield Checked(name, cite, problem=str(error))
            continue
        answer = store.ask(query.rows)
        if isinstance(answer, MissingAnswer):
            none = 0 if query.reducer == "count" else None  # how often it was sampled: never; what it was: nothing
            if not answer.source and query.subject == "metric" and (none == 0 or cite.value is None):
                yield Checked(name, cite, none)
            else:
                yield Checked(name, cite, problem=answer.reason)
            continue
        try:
            yield Checked(name, cite, reduced(answer, query))
        except QueryError as error:
            yield Checked(name, cite, problem=str(error))


def same(then: Scalar, now: Scalar) -> bool:
    """Equal, where numbers may have passed through JSON: non-finite ones are words there."""
    if isinstance(then, (int, float)) and isinstance(now, (int, float)):
        return then == now or math.isclose(then, now, rel_tol=1e-9) or (math.isnan(then) and math.isnan(now))
    if isinstance(now, float) and not math.isfinite(now):
        return str(now) == str(then)
    return then == now
