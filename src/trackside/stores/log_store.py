"""Log lines of a log store: which to request, how, and paging that neither loses nor repeats lines.

A store is queried twice: for the streams that concern a run, then for each stream's lines in time order. The store
filters by labels and times. It does not filter by words unless the site configures it, because such a filter may hide
the cause.
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
from trackside.settings.bounds import check_at_least, check_positive
from trackside.settings.secrets import url_without_secrets
from trackside.stores.registry import LOGS, check_kind, engine

T = TypeVar("T")
D = TypeVar("D", covariant=True)
SECOND_NS = 1_000_000_000
"""Nanoseconds per second."""
_MS_NS = 1_000_000
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:?00)", re.ASCII)
MIN_SLICE_NS = SECOND_NS
"""A slice of time is not halved below this to stay within a store's limits."""
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
    """A log store, and how its site names labels.

    ``kind``: a module of :mod:`trackside.stores.logs`. ``labels``: the site's label -> ``job``, ``node``, ``rank``,
    ``file``, ``unit`` or ``stream``. ``match``: label values that every stream must have. ``line_filter``: a filter on
    lines, in the store's own query language; empty: all lines. ``margin_s``: seconds read before and after the run.
    ``lookback_s``: seconds to look back if the start of the run is unknown. ``page``: lines per request. ``max_lines``
    and ``max_bytes``: limits of one verdict. ``index``, ``time_field``, ``message_field``: for Elasticsearch.

    Raises ValueError for invalid options.
    """

    kind: str
    endpoint: HttpOptions
    labels: Mapping[str, str] = field(default_factory=dict)
    match: Mapping[str, str] = field(default_factory=dict)
    line_filter: str = ""
    margin_s: float = 300.0
    lookback_s: float = 7 * 86400.0
    page: int = 5000
    max_lines: int = 20_000_000
    max_bytes: int = 4 << 30
    index: str = "*"
    time_field: str = "@timestamp"
    message_field: str = "message"

    def __post_init__(self) -> None:
        check_kind(LOGS, self.kind, "log store")
        if unknown_roles := sorted(set(self.labels.values()) - ROLES.keys()):
            raise ValueError(f"a label can mean job, node, rank, file, unit or stream, not {unknown_roles[0]!r}")
        check_at_least(1, self, "page", "max_lines", "max_bytes")
        check_at_least(0, self, "margin_s")
        check_positive(self, "lookback_s")


@dataclass(frozen=True, slots=True)
class LogRequest:
    """The lines to request: those of these jobs, and those of these nodes' systems at that time. POSIX seconds, None if
    unknown."""

    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None

    def window(self, options: LogOptions, now: float) -> tuple[int, int]:
        """(start, end) in nanoseconds with margins, rounded to milliseconds; the end is exclusive."""
        end = now if self.end is None else min(self.end + options.margin_s, max(now, self.end))
        start = end - options.lookback_s if self.start is None else self.start - options.margin_s
        first = max(0, int(start * 1000))
        return first * _MS_NS, max(first + 1, int(end * 1000) + 1) * _MS_NS


class LogEntry(NamedTuple):
    """One entry of a store. ``labels``: with the site's names. ``text`` may hold several lines."""

    time_ns: int
    text: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LogStream:
    """Lines with the same job, node, rank and file. ``owner_kind``: whether they belong to a job or to a node;
    ``labels``: those that identify them, with the site's names; ``selector``: the store's query for exactly these
    lines; ``start_ns`` and ``end_ns``: the window, whose end is exclusive."""

    owner_kind: Literal["job", "node"]
    labels: Mapping[str, str]
    selector: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams that concern a run, without overlap, and notes on how they were found."""

    streams: tuple[LogStream, ...] = ()
    notes: tuple[str, ...] = ()


class LogStore(Protocol):
    """A log store. Both methods raise SourceUnavailable; ``lines`` possibly after some batches."""

    @property
    def name(self) -> str:
        """Product and URL, for messages."""

    def streams(self, request: LogRequest) -> Streams:
        """The streams of the jobs, and those of the nodes outside any job."""

    def lines(self, stream: LogStream) -> Iterator[Sequence[LogEntry]]:
        """All lines of a stream once, in time order; those of one time in the store's order."""


def _kind_of(options: LogOptions) -> Any:
    """The ``LOG_SERVER`` of a module of :mod:`trackside.stores.logs`."""
    return engine(LOGS, options.kind, "LOG_SERVER")


def open_log_store(options: LogOptions) -> LogStore:
    """The store of this kind. Raises ValueError for unusable certificates."""
    store: LogStore = _kind_of(options)(options)
    return store


def name_of(options: LogOptions) -> str:
    """How messages call the store; does not open it."""
    return f"{_kind_of(options).title} {url_without_secrets(options.endpoint.url)}"


# -- paging

Fetch = Callable[[int, int, int], Sequence[LogEntry]]
"""(start, exclusive end, limit) -> the earliest lines in the window, at most ``limit``, in time order."""


@dataclass(slots=True)
class Paging:
    """Pages of one stream, forward in time. A full page is cut before its last time, and the next page begins there, so
    that the lines of one time are always in the same page.

    ``limit``: lines per request. A store that allows fewer lowers it; if many lines have one time, it is raised for
    that time, up to ``max_limit``.
    """

    fetch: Fetch
    limit: int
    max_limit: int = 1 << 20

    def lines(self, start: int, end: int) -> Iterator[Sequence[LogEntry]]:
        """All lines in the window. Raises SourceUnavailable, also if one time has more lines than the store returns at
        once."""
        window = total = end - start
        limit = self.limit
        while start < end:
            until = end if window >= end - start else max(start + 1, (start + window) // _MS_NS * _MS_NS)
            try:
                page = self.fetch(start, until, limit)
            except SourceUnavailable as error:
                if (allowed := allowed_limit(error, limit)) and limit <= self.limit:
                    self.limit = limit = allowed
                elif limit > self.limit and (_TOO_MANY.search(str(error)) or error.kind == "too_large"):
                    raise _too_many_at_once(start, limit) from error
                else:
                    window = shorter_window(error, until - start, total)
                continue
            in_window = [line for line in page if start <= line.time_ns < until]
            if len(page) < limit:
                if in_window:
                    yield in_window
                start, window, limit = until, max(window, min(2 * window, end - until)), self.limit
                continue
            last_time = max((line.time_ns for line in page), default=start)
            earlier = [line for line in in_window if line.time_ns < last_time]
            if earlier:
                yield earlier
                start, limit = last_time, self.limit
            elif limit < self.max_limit:
                limit = min(2 * limit, self.max_limit)
            else:
                raise _too_many_at_once(last_time, limit)


def _too_many_at_once(time_ns: int, limit: int) -> SourceUnavailable:
    return SourceUnavailable(
        "partial",
        f"more lines at the single time {time_ns} ns than the {limit:,} that the store returns at once; raise its limit"
        " on lines per answer",
    )


def allowed_limit(error: SourceUnavailable, limit: int) -> int:
    """The limit on lines that the store allows, if its error is about that; 0 otherwise."""
    if _TOO_MANY.search(str(error)) is None:
        return 0
    match = _ALLOWED.search(str(error))
    allowed = int(match[1] or match[2]) if match else limit // 2
    return allowed if 0 < allowed < limit else 0


def shorter_window(error: SourceUnavailable, window: int, total: int) -> int:
    """A shorter window, if that may help against the error; raises the error otherwise.

    ``total``: the first window. If a server times out for an eighth of it, a shorter one does not help.
    """
    is_timeout = error.kind == "timeout"
    may_help = is_timeout or error.kind == "too_large" or _TOO_LONG.search(str(error)) is not None
    if not may_help or window <= (max(MIN_SLICE_NS, total // 8) if is_timeout else MIN_SLICE_NS):
        raise error
    return max(MIN_SLICE_NS, window // 2)


def in_slices(request: Callable[[int, int], Iterable[T]], start: int, end: int) -> Iterator[T]:
    """Items in a window, requested as a whole, or in slices that the store can answer; an item in several slices comes
    several times. Raises SourceUnavailable."""
    window = total = end - start
    while start < end:
        until = min(end, start + window)
        try:
            answer = request(start, until)
        except SourceUnavailable as error:
            window = shorter_window(error, until - start, total)
            continue
        yield from answer
        start = until


def stamp(time_ns: int) -> str:
    """RFC 3339 in UTC with nine digits."""
    seconds, rest = divmod(time_ns, SECOND_NS)
    return f"{_to_second(seconds)}.{rest:09d}Z"


@lru_cache(maxsize=1 << 10)
def _to_second(seconds: int) -> str:
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%S}"


# -- decoding answers: any bytes may come, and an invalid answer is reported as such


class _Decoder(Protocol[D]):
    def decode(self, buf: bytes | str, /) -> D: ...


def decode_answer(decoder: _Decoder[T], body: bytes, where: str, product: str) -> T:
    """An answer, decoded. Raises SourceUnavailable if it is invalid.

    Bytes that are not UTF-8 come from a program's own output and are replaced, so that the other lines are kept.
    """
    try:
        try:
            return decoder.decode(body)
        except UnicodeDecodeError:
            return decoder.decode(body.decode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError):
        shown = error_message(body)[:80]
        raise SourceUnavailable(
            "broken", f"{where} sent something that is not {product} answer: {shown!r}; is it the right URL?"
        ) from None


def nanoseconds(text: str) -> int | None:
    """POSIX nanoseconds of an RFC 3339 time in UTC; None for other text."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    try:
        seconds = int(dt.datetime.fromisoformat(match[1] + "+00:00").timestamp())
    except ValueError:
        return None
    return seconds * SECOND_NS + int((match[2] or "0").ljust(9, "0"))
