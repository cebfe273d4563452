"""The windows of curves whose samples a Prometheus-compatible server holds: rolled up there, and where need be here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trackside.http.unanswered import Unanswered
from trackside.stores.curves import Wanted
from trackside.stores.memory_curves import roll
from trackside.stores.prometheus.matrix import Times, Values
from trackside.stores.prometheus.series import MOST_RAW, Source, spans_of

MOST_SAMPLES = 20_000_000
"""Samples fetched for one answer, where the server can't roll up what is one curve."""
Part = tuple[Source, int]
"""A series of the server: its source, and its row there."""
Flags = NDArray[np.bool_]


def windows_of(groups: Sequence[Sequence[Part]], wanted: Wanted) -> Values:
    """(groups, windows) of each group of the server's series taken as one curve. Raises Unanswered."""
    shape = len(groups), wanted.width
    whole, apart = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
    parts = [part for group in groups for part in group]
    if not parts or not wanted.width:
        return whole
    values, first = _rolled(parts, wanted), 0
    for row, group in enumerate(groups):
        own = values[first : first + len(group)]
        first += len(group)
        if len(group) == 1:
            whole[row] = own[0]
        elif group:
            held = (~np.isnan(own)).sum(axis=0)
            if wanted.how in ("sum", "count"):
                whole[row] = np.where(held > 0, np.nansum(own, axis=0), np.nan)
            else:  # of windows that only one of them has a value for, it is that one
                whole[row] = (np.fmin if wanted.how == "min" else np.fmax).reduce(own, axis=0)
                apart[row] = (held > 1) & (wanted.how not in ("min", "max"))
    apart[:, _whole(parts[0][0], wanted) :] = True
    if apart.any():
        _from_samples(groups, wanted, apart, whole)
    return whole


def by_source(parts: Iterable[Part]) -> dict[Source, list[int]]:
    """The rows of each source, in order."""
    found: dict[Source, set[int]] = {}
    for source, row in parts:
        found.setdefault(source, set()).add(row)
    return {source: sorted(rows) for source, rows in found.items()}


def _whole(source: Source, wanted: Wanted) -> int:
    """How many windows end before the newest samples, which are not asked for."""
    return int(np.clip((source.end_ms - wanted.start_ms) // wanted.step_ms, 0, None))


def _rolled(parts: Sequence[Part], wanted: Wanted) -> Values:
    """(parts, windows) of each series, in our unit."""
    values = np.full((len(parts), wanted.width), np.nan)
    places = {part: place for place, part in enumerate(parts)}
    for source, rows in by_source(parts).items():
        clean = [row for row in rows if row not in source.raw]
        end_ms = min(wanted.end_ms, wanted.start_ms + _whole(source, wanted) * wanted.step_ms)
        found = source.rolled(clean, wanted.start_ms, end_ms, wanted.step_ms, wanted.how)
        if wanted.how != "count":
            with np.errstate(over="ignore", invalid="ignore"):
                found *= source.scales[clean][:, None]
        values[[places[source, row] for row in clean], : found.shape[1]] = found
        for row in rows:
            if row in source.raw:
                _roll(values[places[source, row]], *source.raw[row], wanted)
    return values


def _roll(out: Values, times: Times, values: Values, wanted: Wanted) -> None:
    """Fill in the windows of samples that are in order of time."""
    first, last = np.searchsorted(times, [wanted.start_ms, wanted.end_ms], side="right")
    roll(out, times[first:last], values[first:last], wanted)


def _from_samples(groups: Sequence[Sequence[Part]], wanted: Wanted, apart: Flags, whole: Values) -> None:
    """Roll up here those windows that are marked in ``apart``."""
    concerned = [row for row in range(len(groups)) if groups[row] and apart[row].any()]
    read: dict[Part, list[tuple[Times, Values]]] = {}
    for source, rows in by_source(part for row in concerned for part in groups[row]).items():
        _read(source, rows, wanted, np.asarray(apart[concerned].any(axis=0)), read)
    for row in concerned:
        pieces = [piece for part in groups[row] for piece in read.get(part, ())]
        if pieces:
            times, values = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
            order = np.lexsort((values, times))
            out = np.full(whole.shape[1], np.nan)
            _roll(out, times[order], values[order], wanted)
            whole[row, apart[row]] = out[apart[row]]


def _read(
    source: Source, rows: Sequence[int], wanted: Wanted, marked: Flags, read: dict[Part, list[tuple[Times, Values]]]
) -> None:
    """The samples of some rows in the windows that are marked, in our unit."""
    clean = [row for row in rows if row not in source.raw]
    each = source.counts[clean].sum() / (source.end_ms - source.start_ms) * wanted.step_ms
    if each * marked.sum() > MOST_SAMPLES:
        raise Unanswered("too_large", f"{source.server}: several series of {source.name} measure the same at the same "
                         f"time, and their {each * marked.sum():,.0f} samples are more than are fetched; choose one of "
                         "each with match, or let the server leave out doubles")  # fmt: skip
    for begin, end in spans_of(marked * max(each, 1.0), MOST_RAW):
        start_ms, end_ms = (wanted.start_ms + place * wanted.step_ms for place in (begin, end))
        end_ms = min(end_ms, source.end_ms)
        for row in rows:
            if row in source.raw:
                times, values = source.raw[row]
                first, last = np.searchsorted(times, [start_ms, end_ms], side="right")
                read.setdefault((source, row), []).append((times[first:last], values[first:last]))
        if clean and start_ms < end_ms:
            for row, (times, values) in source.samples(set(clean), start_ms, end_ms).items():
                read.setdefault((source, row), []).append((times, values * source.scales[row]))
