"""Log lines of a log store: which are wanted, how they are asked for, and paging that neither loses nor doubles any.

A store is asked twice: for the streams that concern a run, then for each one's lines in time order. Labels and times
are left to the store to filter by; words are not, unless the site says so: a filter on words may hide the cause.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from trackside.catalog.streams import ROLES
from trackside.http.options import HttpOptions
from trackside.http.unavailable import SourceUnavailable, error_message
from trackside.settings.secrets import shown_url
from trackside.stores.registry import LOGS, check_kind, engine

T = TypeVar("T")
D = TypeVar("D", covariant=True)
SECOND = 1_000_000_000
"""Nanoseconds."""
_MS = 1_000_000
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:?00)", re.ASCII)
SHORTEST = SECOND
"""A slice of time is not halved below this to get around a store's limits."""
_TOO_LONG = re.compile(
    r"time range exceeds|range (?:is )?too (?:long|large|big)|too many bytes|read too many|exceeds the limit"
    r"|too_many_buckets|circuit_breaking|deadline exceeded|timed? ?out|query.{0,20}too (?:long|large)"
    r"|not enough memory|cannot allocate",
    re.IGNORECASE,
)
_TOO_MANY = re.compile(r"max entries limit|max_entries_limit|Result window is too large", re.IGNORECASE)
_ALLOWED = re.compile(r"\(\d+ > (\d+)\)|less than or equal to: \[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """A log store and how its labels are called.

    ``kind``: a module of :mod:`trackside.stores.logs`. ``labels``: the site's label -> ``job``, ``node``,
    ``rank``, ``file``, ``unit`` or ``stream``. ``match``: label values that every stream must have. ``line_filter``:
    what lines must pass, in the store's own query language; empty: all lines. ``margin_s``: looked at before and after
    the run. ``lookback_s``: how far back, where nothing tells when the run began. ``page``: lines asked for at once.
    ``most_lines`` and ``most_bytes``: of one verdict. ``index``, ``time_field``, ``message_field``: Elasticsearch's.

    Raises ValueError for what can't be meant.
    """

    kind: str
    endpoint: HttpOptions
    labels: Mapping[str, str] = field(default_factory=dict)
    match: Mapping[str, str] = field(default_factory=dict)
    line_filter: str = ""
    margin_s: float = 300.0
    lookback_s: float = 7 * 86400.0
    page: int = 5000
    most_lines: int = 20_000_000
    most_bytes: int = 4 << 30
    index: str = "*"
    time_field: str = "@timestamp"
    message_field: str = "message"

    def __post_init__(self) -> None:
        check_kind(LOGS, self.kind, "log store")
        if wrong := sorted(set(self.labels.values()) - ROLES.keys()):
            raise ValueError(f"a label can tell job, node, rank, file, unit or stream, not {wrong[0]!r}")
        if min(self.page, self.most_lines, self.most_bytes) < 1 or self.margin_s < 0 or self.lookback_s <= 0:
            raise ValueError("page, most_lines and most_bytes must be 1 or more, times not negative")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose lines: of these jobs, and what these nodes' systems said meanwhile. POSIX seconds, None where unknown."""

    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None

    def window(self, options: LogOptions, now: float) -> tuple[int, int]:
        """(from, until but not at) in nanoseconds, whole milliseconds, margins included."""
        end = now if self.end is None else min(self.end + options.margin_s, max(now, self.end))
        start = end - options.lookback_s if self.start is None else self.start - options.margin_s
        first = max(0, int(start * 1000))
        return first * _MS, max(first + 1, int(end * 1000) + 1) * _MS


class Line(NamedTuple):
    """One entry of a store. ``labels`` as the site calls them; its text may hold several lines."""

    time_ns: int
    text: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LogStream:
    """Lines that agree in job, node, rank and file. ``of``: what was asked for that they belong to; ``labels``: those
    that tell so, as the site calls them; ``selector``: how the store is asked for just these; ``start_ns`` and
    ``end_ns``: from, and until but not at."""

    of: Literal["job", "node"]
    labels: Mapping[str, str]
    selector: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams that concern a run, no line in two of them, and what is to be said on how they were found."""

    streams: tuple[LogStream, ...] = ()
    notes: tuple[str, ...] = ()


class LogStore(Protocol):
    """A log store that can be asked. Both raise SourceUnavailable; ``lines`` maybe after some batches."""

    @property
    def name(self) -> str:
        """How it is called in messages: what it is and its URL."""

    def streams(self, wanted: Wanted) -> Streams:
        """The streams of the jobs, and of the nodes outside any job."""

    def lines(self, stream: LogStream) -> Iterator[Sequence[Line]]:
        """All lines of a stream once, in time order; those of one time in the store's order."""


def _kind_of(options: LogOptions) -> Any:
    """What a module of :mod:`trackside.stores.logs` names as its ``LOG_STORE``."""
    return engine(LOGS, options.kind, "LOG_STORE")


def open_store(options: LogOptions) -> LogStore:
    """The store of this kind. Raises ValueError for certificates that can't be used."""
    store: LogStore = _kind_of(options)(options)
    return store


def name_of(options: LogOptions) -> str:
    """How messages call the store, without opening it."""
    return f"{_kind_of(options).title} {shown_url(options.endpoint.url)}"


# -- paging

Fetch = Callable[[int, int, int], Sequence[Line]]
"""(from, until but not at, limit) -> the earliest lines there, at most so many, in time order."""


@dataclass(slots=True)
class Paging:
    """Pages of one stream, forward in time: the next page begins at the last one's last time, of which nothing was
    given yet, so that lines of one time never fall between two pages, nor into both.

    ``limit``: lines asked for at once; a store that allows fewer lowers it, many lines of one time raise it for that
    time, up to ``most``.
    """

    fetch: Fetch
    limit: int
    most: int = 1 << 20

    def lines(self, start: int, end: int) -> Iterator[Sequence[Line]]:
        """All lines in the window. Raises SourceUnavailable, also where a time has more lines than the store gives at once."""
        window = whole = end - start
        limit = self.limit
        while start < end:
            until = end if window >= end - start else max(start + 1, (start + window) // _MS * _MS)
            try:
                page = self.fetch(start, until, limit)
            except SourceUnavailable as error:
                if (fewer := fewer_of(error, limit)) and limit <= self.limit:
                    self.limit = limit = fewer
                elif limit > self.limit and (_TOO_MANY.search(str(error)) or error.kind == "too_large"):
                    raise _crowded(start, limit) from error
                else:
                    window = shorter(error, until - start, whole)
                continue
            here = [line for line in page if start <= line.time_ns < until]
            if len(page) < limit:
                if here:
                    yield here
                start, window, limit = until, max(window, min(2 * window, end - until)), self.limit
                continue
            last = max((line.time_ns for line in page), default=start)
            before = [line for line in here if line.time_ns < last]
            if before:
                yield before
                start, limit = last, self.limit
            elif limit < self.most:
                limit = min(2 * limit, self.most)
            else:
                raise _crowded(last, limit)


def _crowded(time_ns: int, limit: int) -> SourceUnavailable:
    return SourceUnavailable(
        "partial",
        f"more lines at the one time {time_ns} ns than the {limit:,} that the store gives at once; raise its limit on "
        "lines of an answer",
    )


def fewer_of(error: SourceUnavailable, limit: int) -> int:
    """How many lines the store gives at once, where it refused for that; 0 otherwise."""
    if _TOO_MANY.search(str(error)) is None:
        return 0
    found = _ALLOWED.search(str(error))
    allowed = int(found[1] or found[2]) if found else limit // 2
    return allowed if 0 < allowed < limit else 0


def shorter(error: SourceUnavailable, window: int, whole: int) -> int:
    """A shorter slice of time, where that may get around what the store refused for; raises the error otherwise.

    ``whole``: what was asked first. A server that times out for an eighth of it is not helped by less.
    """
    late = error.kind == "timeout"
    may_help = late or error.kind == "too_large" or _TOO_LONG.search(str(error)) is not None
    if not may_help or window <= (max(SHORTEST, whole // 8) if late else SHORTEST):
        raise error
    return max(SHORTEST, window // 2)


def in_slices(ask: Callable[[int, int], Iterable[T]], start: int, end: int) -> Iterator[T]:
    """What is found in a window, asked as a whole, or by slices that the store still answers for; things in several
    slices come several times. Raises SourceUnavailable."""
    window = whole = end - start
    while start < end:
        until = min(end, start + window)
        try:
            answer = ask(start, until)
        except SourceUnavailable as error:
            window = shorter(error, until - start, whole)
            continue
        yield from answer
        start = until


def stamp(time_ns: int) -> str:
    """RFC 3339 in UTC with nine digits."""
    seconds, rest = divmod(time_ns, SECOND)
    return f"{_to_second(seconds)}.{rest:09d}Z"


@lru_cache(maxsize=1 << 10)
def _to_second(seconds: int) -> str:
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%S}"


# -- answers, taken apart: anything may come, and what is no answer is said to be none


class _Decoder(Protocol[D]):
    def decode(self, buf: bytes | str, /) -> D: ...


def decoded(decoder: _Decoder[T], body: bytes, where: str, whose: str) -> T:
    """An answer, as its decoder tells it. Raises SourceUnavailable for what is none.

    A byte that is no UTF-8 is one that some program wrote into its log: the lines are worth more than it.
    """
    try:
        try:
            return decoder.decode(body)
        except UnicodeDecodeError:
            return decoder.decode(body.decode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError):
        shown = error_message(body)[:80]
        raise SourceUnavailable(
            "broken", f"{where} sent what is no answer of {whose}: {shown!r}; is it the right URL?"
        ) from None


def nanoseconds(text: str) -> int | None:
    """POSIX nanoseconds of an RFC 3339 time in UTC; None for what is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    try:
        seconds = int(dt.datetime.fromisoformat(found[1] + "+00:00").timestamp())
    except ValueError:
        return None
    return seconds * SECOND + int((found[2] or "0").ljust(9, "0"))
