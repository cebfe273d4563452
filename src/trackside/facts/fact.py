"""Facts and how they are derived: each at most once per run, from queries and from other facts.

A fact is a frozen dataclass: a typed answer about one run. One function derives it. The annotations of its parameters
declare the inputs:

    Evidence    the answers to the queries that the fact declares (``queries``)
    Run         the run
    limits      the fact's own limits
    Other       another fact; if it is missing, so is this one, for the same reason
    Maybe[X]    another fact, or a :class:`~trackside.evidence.Missing` with the reason why it is not available
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias, TypeVar

from trackside.errors import TracksideError
from trackside.evidence import Answer, Evidence, Missing, Store, ask_many
from trackside.model import Run
from trackside.query import Query

_NO_INPUT = re.compile(r"no (\w+(?: or \w+)*) input was given")
_NOT_MEASURED = re.compile(r"(\w+(?: for [^;]+)?) was not measured(?:;|\Z)")
"""Reasons of stores why a query has no answer."""
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Maybe: TypeAlias = T | Missing
"""A fact that may be missing."""


@dataclass(frozen=True, slots=True)
class FactParameter:
    """One parameter of a derive function or of a family's ``judge``."""

    kind: type
    """Evidence, Run, or the type of a fact."""
    optional: bool = False
    """Whether it is passed even if it is missing."""


@dataclass(frozen=True)
class Derivation:
    """How one fact is derived."""

    kind: type
    derive: Callable[..., Any]
    queries: Mapping[str, Query]
    needs: tuple[str | tuple[str, ...], ...]
    limits: object
    lazy: bool = False

    @cached_property
    def parameters(self) -> Mapping[str, FactParameter]:
        """The parameters of the function, without ``limits``."""
        return parameters(self.derive)


_DERIVATIONS: dict[type, Derivation] = {}
"""Filled when a fact's module is imported; not changed afterwards."""


def fact(
    queries: Mapping[str, Query] | None = None,
    *,
    needs: tuple[str | tuple[str, ...], ...] = (),
    limits: object = None,
    lazy: bool = False,
) -> Callable[[F], F]:
    """Declare the function that derives the fact of its return type.

    ``queries``: queries by name. ``needs``: names of queries that must have an answer; of a tuple, any one is enough.
    ``lazy``: run each query when its answer is first read, for a fact that usually needs few of them; otherwise all are
    run together. The function is returned unchanged, so that a test can call it with its own evidence.

    Raises TypeError if the signature does not match the declaration, or if another function derives the same type.
    """

    def declare(derive: F) -> F:
        hints = typing.get_type_hints(derive)
        kind = _fact_type(hints["return"])
        if kind in _DERIVATIONS:
            raise TypeError(f"{kind.__name__} is derived twice: by {_DERIVATIONS[kind].derive} and {derive}")
        for name, parameter, declared, accepted in (
            ("queries", "evidence: Evidence", bool(queries), Evidence in hints.values()),
            ("limits", "limits: Limits", limits is not None, "limits" in hints),
        ):
            if declared and not accepted:
                raise TypeError(f"{kind.__name__}: {derive.__name__} has no parameter `{parameter}` for its {name}")
            if accepted and not declared:
                raise TypeError(f"{kind.__name__}: {derive.__name__} has `{parameter}`, but @fact declares no {name}")
        _DERIVATIONS[kind] = Derivation(kind, derive, queries or {}, needs, limits, lazy)
        return derive

    return declare


def derivation(kind: type) -> Derivation:
    """How a fact is derived. Raises KeyError if the type is not a fact."""
    return _DERIVATIONS[kind]


@cache
def facts() -> tuple[Derivation, ...]:
    """How every fact is derived, sorted by module and name. A module registers its facts when it is imported."""
    package = importlib.import_module("trackside.facts")
    prefix = f"{package.__name__}."
    for module in pkgutil.walk_packages(package.__path__, prefix):
        importlib.import_module(module.name)
    derivations = (item for item in _DERIVATIONS.values() if item.kind.__module__.startswith(prefix))
    return tuple(sorted(derivations, key=lambda item: (item.kind.__module__, item.kind.__name__)))


def parameters(function: Callable[..., Any]) -> Mapping[str, FactParameter]:
    """The parameters of a derive function or a ``judge``, without ``limits``."""
    hints = typing.get_type_hints(function)
    return {
        name: FactParameter(_fact_type(hint), Missing in typing.get_args(hint))
        for name, hint in hints.items()
        if name not in ("return", "limits")
    }


def _fact_type(hint: Any) -> type:
    """``X`` for both ``X`` and ``X | Missing``."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = (part for part in typing.get_args(hint) if part is not Missing)
    return typing.cast(type, hint)


class Facts:
    """The facts of one run. Each is derived once, when it is first requested."""

    def __init__(
        self,
        store: Store,
        run: Run,
        checked: Callable[[Query, Answer], Answer] = lambda _, answer: answer,
        known: Mapping[type, Any] = types.MappingProxyType({}),
    ) -> None:
        self.store = store
        self.run = run
        self._checked = checked
        """Returns an answer, or why it cannot be trusted."""
        self._answers: dict[Query, Answer] = {}
        self._facts: dict[type, Any] = dict(known)
        """Begins with ``known``: facts that were derived already, from unchecked answers."""

    def get(self, kind: type[T]) -> Maybe[T]:
        """The fact, or why it is missing."""
        if kind not in self._facts:
            self._facts[kind] = self._derive(derivation(kind))
        fact: Maybe[T] = self._facts[kind]
        return fact

    def ask(self, queries: Iterable[Query]) -> None:
        """Run the queries that have no answer yet, as one batch where the store can."""
        fresh = [query for query in dict.fromkeys(queries) if query not in self._answers]
        answers = ask_many(self.store, fresh) if fresh else ()
        for query, answer in zip(fresh, answers, strict=True):
            self._answers[query] = self._checked(query, answer)

    def answer(self, query: Query) -> Answer:
        """The answer to one query."""
        self.ask([query])
        return self._answers[query]

    def evidence(self, queries: Mapping[str, Query], lazy: bool = False) -> Evidence:
        """The answers to queries, by name."""
        if lazy:
            return Evidence(_LazyAnswers(self, queries))
        self.ask(queries.values())
        return Evidence({name: self._answers[query] for name, query in queries.items()})

    def arguments(self, parameters: Mapping[str, FactParameter]) -> dict[str, Any]:
        """The run and the facts to pass to a function, by parameter. Check :meth:`missing` first."""
        return {
            name: self.run if parameter.kind is Run else self.get(parameter.kind)
            for name, parameter in parameters.items()
        }

    def missing(self, parameters: Mapping[str, FactParameter]) -> list[str]:
        """Why required facts are missing; each reason once."""
        required = (item.kind for item in parameters.values() if item.kind is not Run and not item.optional)
        facts = (self.get(kind) for kind in required)
        return list(dict.fromkeys(fact.reason for fact in facts if isinstance(fact, Missing)))

    def unanswered_reasons(self, kinds: Iterable[type]) -> list[str]:
        """Why queries behind these facts have no answer, if it is because their source did not respond."""
        answers = (self._answers[query] for kind in kinds for query in queries_of(kind) if query in self._answers)
        return list(dict.fromkeys(answer.reason for answer in answers if isinstance(answer, Missing) and answer.source))

    def _derive(self, derivation: Derivation) -> Any:
        needed = {name: item for name, item in derivation.parameters.items() if item.kind is not Evidence}
        if reasons := self.missing(needed):
            return Missing(" and ".join(reasons))
        values = self.arguments(needed)
        for name, parameter in derivation.parameters.items():
            if parameter.kind is Evidence:
                values[name] = self.evidence(derivation.queries, derivation.lazy)
                if (missing := unmet_need(values[name], derivation.needs)) is not None:
                    return missing
        if derivation.limits is not None:
            values["limits"] = derivation.limits
        return guard(derivation.kind.__name__, lambda: derivation.derive(**values))


class _LazyAnswers(Mapping[str, Answer]):
    """Answers to queries, by name; each query runs when its answer is first read."""

    def __init__(self, facts: Facts, queries: Mapping[str, Query]) -> None:
        self._facts, self._queries = facts, queries

    def __getitem__(self, name: str) -> Answer:
        return self._facts.answer(self._queries[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._queries)

    def __len__(self) -> int:
        return len(self._queries)


def unmet_need(evidence: Evidence, needs: Iterable[str | tuple[str, ...]]) -> Missing | None:
    """Why the first unmet need has no answer; None if all needs are met."""
    for need in needs:
        names = (need,) if isinstance(need, str) else need
        missing = [answer for name in names if (answer := evidence.missing(name)) is not None]
        if len(missing) == len(names):
            reasons = tuple(dict.fromkeys(answer.reason for answer in missing))
            source = next((answer.source for answer in missing if answer.source), "")
            return Missing(joined_reasons(reasons), source=source, reasons=reasons)
    return None


def all_missing(*answers: object) -> Missing | None:
    """One reason why all of these are missing; None if any is available."""
    missing = [answer for answer in answers if isinstance(answer, Missing)]
    reasons = tuple(dict.fromkeys(reason for answer in missing for reason in answer.reasons or (answer.reason,)))
    return Missing(joined_reasons(reasons), reasons=reasons) if len(missing) == len(answers) else None


def joined_reasons(reasons: Sequence[str]) -> str:
    """Several reasons as one text: the inputs that were not given and the metrics that were not measured each in one
    clause, without how to collect each metric."""
    if len(reasons) < 2:
        return "".join(reasons)
    inputs: dict[str, None] = {}
    metrics: dict[str, None] = {}
    others = []
    for reason in reasons:
        if match := _NO_INPUT.fullmatch(reason):
            inputs |= dict.fromkeys(match[1].split(" or "))
        elif match := _NOT_MEASURED.match(reason):
            metrics[match[1]] = None
        else:
            others.append(reason)
    clauses = [f"no {_enumeration(list(inputs), 'or')} input was given"] if inputs else []
    if len(metrics) == 1:
        clauses.append(f"{''.join(metrics)} was not measured")
    elif metrics:
        clauses.append(f"none of {_enumeration(list(metrics), 'and')} was measured")
    return "; ".join([*clauses, *others])


def _enumeration(names: Sequence[str], conjunction: str) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    head, last = ", ".join(names[:-1]), names[-1]
    return f"{head} {conjunction} {last}" if head else last


def or_none(fact: Maybe[T]) -> T | None:
    """The fact, or None if it is missing."""
    return None if isinstance(fact, Missing) else fact


def guard(name: str, derive: Callable[[], T]) -> Maybe[T]:
    """The result of ``derive``. An internal error becomes a warning (an error in tests) and Missing, so that one defect
    leaves one answer open instead of the whole verdict. Errors that a person can act on, such as a damaged store, are
    raised."""
    try:
        return derive()
    except TracksideError:
        raise
    except Exception as error:  # noqa: BLE001
        warnings.warn(f"internal error in {name}: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)
        return Missing(f"internal error in {name}: {type(error).__name__}: {error}")


def queries_of(kind: type) -> tuple[Query, ...]:
    """All queries behind a fact: its own, and those of the facts it is derived from."""
    return tuple(dict.fromkeys(query for needed in closure([kind]) for query in derivation(needed).queries.values()))


def closure(kinds: Iterable[type]) -> tuple[type, ...]:
    """These facts and all facts they are derived from, each once. Raises ValueError for a cycle."""
    order: dict[type, None] = {}

    def visit(kind: type, above: tuple[type, ...]) -> None:
        if kind in above:
            raise ValueError(f"circular facts: {' -> '.join(item.__name__ for item in (*above, kind))}")
        for parameter in derivation(kind).parameters.values():
            if parameter.kind not in (Evidence, Run) and parameter.kind not in order:
                visit(parameter.kind, (*above, kind))
        order[kind] = None

    for kind in kinds:
        visit(kind, ())
    return tuple(order)
