"""What a fact is, and how facts are derived: each at most once for a run, from queries and from other facts.

A fact is a frozen dataclass: a typed answer about one run. One function derives it; its parameters, by their
annotations, say what it is derived from:

    Evidence    the answers to the questions that the fact declares (``asks``)
    Run         the run
    limits      the fact's own limits
    Other       another fact; where that is missing, so is this one, for the same reason
    Maybe[X]    another fact, or a :class:`~trackside.evidence.Missing` that says why it can't be had
"""

from __future__ import annotations

import importlib
import pkgutil
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias, TypeVar

from trackside.errors import TracksideError
from trackside.evidence import Answer, Evidence, Missing, Store, ask_many
from trackside.model import Run
from trackside.query import Query

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Maybe: TypeAlias = T | Missing
"""A fact that may be missing."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a derivation or of a family's ``judge``."""

    kind: type
    """Evidence, Run, or the type of a fact."""
    optional: bool = False
    """Whether it is handed over even if it is missing."""


@dataclass(frozen=True)
class Derivation:
    """How one fact is derived."""

    kind: type
    derive: Callable[..., Any]
    asks: Mapping[str, Query]
    needs: tuple[str | tuple[str, ...], ...]
    limits: object
    lazy: bool = False

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters of the function, ``limits`` left out."""
        return parameters(self.derive)


_DERIVATIONS: dict[type, Derivation] = {}
"""Filled when the module of a fact is imported, and not changed afterwards."""


def fact(
    asks: Mapping[str, Query] | None = None,
    *,
    needs: tuple[str | tuple[str, ...], ...] = (),
    limits: object = None,
    lazy: bool = False,
) -> Callable[[F], F]:
    """Declare the function that derives the fact of its return type.

    ``asks``: the questions, by name. ``needs``: names of those without whose answer there is no fact; of a tuple, any
    one is enough. ``lazy``: each question is asked when its answer is looked at, for a fact that mostly needs few of
    them; else they are asked together. The function stays as it is, so that a test can call it with evidence made by
    hand.
    Raises TypeError if the signature does not take what is declared, or another function derives that type already.
    """

    def declare(derive: F) -> F:
        hints = typing.get_type_hints(derive)
        kind = _fact_type(hints["return"])
        if kind in _DERIVATIONS:
            raise TypeError(f"{kind.__name__} is derived twice: by {_DERIVATIONS[kind].derive} and {derive}")
        for name, declared, accepted in (
            ("asks", bool(asks), Evidence in hints.values()),
            ("limits", limits is not None, "limits" in hints),
        ):
            if declared != accepted:
                raise TypeError(f"{kind.__name__}: {name} are {'declared and not taken' if declared else 'taken only'}")
        _DERIVATIONS[kind] = Derivation(kind, derive, asks or {}, needs, limits, lazy)
        return derive

    return declare


def derivation(kind: type) -> Derivation:
    """How a fact is derived. Raises KeyError for a type that is no fact."""
    return _DERIVATIONS[kind]


@cache
def facts() -> tuple[Derivation, ...]:
    """How every fact is derived, by module and name. A fact registers by being there."""
    room = importlib.import_module("trackside.facts")
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        importlib.import_module(module.name)
    own = [one for one in _DERIVATIONS.values() if one.kind.__module__.startswith(f"{room.__name__}.")]
    return tuple(sorted(own, key=lambda one: (one.kind.__module__, one.kind.__name__)))


def parameters(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    """What a derivation or a ``judge`` takes, by parameter; ``limits`` left out."""
    hints = typing.get_type_hints(function)
    return {
        name: Parameter(_fact_type(hint), Missing in typing.get_args(hint))
        for name, hint in hints.items()
        if name not in ("return", "limits")
    }


def _fact_type(hint: Any) -> type:
    """``X`` of ``X`` and of ``X | Missing``."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = (part for part in typing.get_args(hint) if part is not Missing)
    return typing.cast(type, hint)


class Facts:
    """The facts of one run, each derived when it is first asked for, and once."""

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
        """Gives an answer, or says why it can't be trusted."""
        self._answers: dict[Query, Answer] = {}
        self._facts: dict[type, Any] = dict(known)
        """``known``: facts that were derived already, of unchecked answers."""

    def get(self, kind: type[T]) -> Maybe[T]:
        """The fact, or why it can't be had."""
        if kind not in self._facts:
            self._facts[kind] = self._derive(derivation(kind))
        fact: Maybe[T] = self._facts[kind]
        return fact

    def ask(self, queries: Iterable[Query]) -> None:
        """Fetch the answers that are not here yet, together where the store can."""
        fresh = [query for query in dict.fromkeys(queries) if query not in self._answers]
        answers = ask_many(self.store, fresh) if fresh else ()
        for query, answer in zip(fresh, answers, strict=True):
            self._answers[query] = self._checked(query, answer)

    def answer(self, query: Query) -> Answer:
        """The answer to one question."""
        self.ask([query])
        return self._answers[query]

    def evidence(self, asks: Mapping[str, Query], lazy: bool = False) -> Evidence:
        """The answers to questions, by name."""
        if lazy:
            return Evidence(_LazyAnswers(self, asks))
        self.ask(asks.values())
        return Evidence({name: self._answers[query] for name, query in asks.items()})

    def arguments(self, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
        """The run and the facts to hand to a function, by parameter; see :meth:`missing` first."""
        return {name: self.run if one.kind is Run else self.get(one.kind) for name, one in parameters.items()}

    def missing(self, parameters: Mapping[str, Parameter]) -> list[str]:
        """Why facts that a function can't do without are missing, each reason once."""
        needed = (self.get(one.kind) for one in parameters.values() if one.kind is not Run and not one.optional)
        return list(dict.fromkeys(one.reason for one in needed if isinstance(one, Missing)))

    def silent_sources(self, kinds: Iterable[type]) -> list[str]:
        """Why questions behind these facts have no answer, of those whose source did not answer."""
        answers = (self._answers[query] for kind in kinds for query in questions(kind) if query in self._answers)
        return list(dict.fromkeys(a.reason for a in answers if isinstance(a, Missing) and a.source))

    def _derive(self, derivation: Derivation) -> Any:
        needed = {name: one for name, one in derivation.parameters.items() if one.kind is not Evidence}
        if reasons := self.missing(needed):
            return Missing(" and ".join(reasons))
        values = self.arguments(needed)
        for name, one in derivation.parameters.items():
            if one.kind is Evidence:
                values[name] = self.evidence(derivation.asks, derivation.lazy)
                if (missing := unmet(values[name], derivation.needs)) is not None:
                    return missing
        if derivation.limits is not None:
            values["limits"] = derivation.limits
        return guarded(derivation.kind.__name__, lambda: derivation.derive(**values))


class _LazyAnswers(Mapping[str, Answer]):
    """Answers to questions, by name; each is asked when it is looked at."""

    def __init__(self, facts: Facts, asks: Mapping[str, Query]) -> None:
        self._facts, self._asks = facts, asks

    def __getitem__(self, name: str) -> Answer:
        return self._facts.answer(self._asks[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._asks)

    def __len__(self) -> int:
        return len(self._asks)


def unmet(evidence: Evidence, needs: Iterable[str | tuple[str, ...]]) -> Missing | None:
    """The first need that no answer meets: why."""
    for need in needs:
        names = (need,) if isinstance(need, str) else need
        missing = [answer for name in names if (answer := evidence.missing(name)) is not None]
        if len(missing) == len(names):
            reasons = tuple(dict.fromkeys(answer.reason for answer in missing))
            source = next((answer.source for answer in missing if answer.source), "")
            return Missing(" or ".join(reasons), source=source, reasons=reasons)
    return None


def neither(*answers: object) -> Missing | None:
    """Why none of these can be had, as one reason; None if any can."""
    missing = [answer for answer in answers if isinstance(answer, Missing)]
    reasons = tuple(dict.fromkeys(reason for one in missing for reason in one.reasons or (one.reason,)))
    return Missing(" or ".join(reasons), reasons=reasons) if len(missing) == len(answers) else None


def known(fact: Maybe[T]) -> T | None:
    """The fact, if it can be had."""
    return None if isinstance(fact, Missing) else fact


def guarded(name: str, derive: Callable[[], T]) -> Maybe[T]:
    """The result; after an internal error a warning (which tests treat as an error) and Missing, so that one defect
    leaves one answer open and not the whole verdict. What a person can act upon, such as a damaged store, is raised."""
    try:
        return derive()
    except TracksideError:
        raise
    except Exception as error:  # noqa: BLE001
        warnings.warn(f"internal error in {name}: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)
        return Missing(f"internal error in {name}: {type(error).__name__}: {error}")


def questions(kind: type) -> tuple[Query, ...]:
    """All questions behind a fact: its own, and those of the facts that it is derived from."""
    return tuple(dict.fromkeys(query for one in closure([kind]) for query in derivation(one).asks.values()))


def closure(kinds: Iterable[type]) -> tuple[type, ...]:
    """These facts and all that they are derived from, each once. Raises ValueError for a circle."""
    order: dict[type, None] = {}

    def visit(kind: type, above: tuple[type, ...]) -> None:
        if kind in above:
            raise ValueError(f"facts in a circle: {' -> '.join(one.__name__ for one in (*above, kind))}")
        for one in derivation(kind).parameters.values():
            if one.kind not in (Evidence, Run) and one.kind not in order:
                visit(one.kind, (*above, kind))
        order[kind] = None

    for kind in kinds:
        visit(kind, ())
    return tuple(order)
