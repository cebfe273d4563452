"""Errors that ranks report about a collective that failed, or about a lost peer.

Only errors after which training did not continue count, and only those before the run's own end. The rank that reports
is rarely the one at fault: ranks that wait time out, the one they wait for is silent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trackside.catalog.natural import whole_number
from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions, earliest_first, final_events
from trackside.facts.logs.order import last_after
from trackside.facts.logs.silence import Silence
from trackside.facts.ranks import AbsentRanks, cited_ranks, rank_of, ranks_of, world_size
from trackside.finding import Claim, Sentence
from trackside.model import Event, EventRole, Run
from trackside.query import Query, events

STRONG_EVIDENCE: Mapping[str, Query] = {
    "mismatches": events("collective_mismatch"),
    "timeouts": events("collective_timeout"),
    "heartbeats": events("heartbeat_lost"),
    "states": events("collective_state"),
}
"""Rows of these kinds prove by themselves that a collective failed."""
WEAK_EVIDENCE: Mapping[str, Query] = {"peers": events("peer_lost"), "nccl": events("nccl_error")}
"""A lost peer, as seen by the others; exceptions about collectives count as weak, too."""
SUMMARY_KINDS = ("heartbeats", "states")
"""A single row of these kinds may come from a side process."""

CONNECTION_LOST = Sentence("a rank lost its connection to another: {line}")
FIRST_ERRORS: Mapping[str, Sentence] = {
    "timeouts": Sentence("a collective timed out: {line}"),
    "heartbeats": Sentence("a rank's watchdog stopped responding: {line}"),
    "states": Sentence("a rank reported its last collectives: {line}"),
    "mismatches": Sentence("the ranks did not enter the same collective: {line}"),
    "peers": CONNECTION_LOST,
    "nccl": Sentence("NCCL reported an error: {line}"),
}
PROCESS_RAISED = Sentence("a process raised {line}")
LOST = re.compile(
    r"connection (?:was )?(?:closed|reset|lost|refused|aborted)|closed by (?:remote )?peer|remote process exited"
    r"|reset by peer|broken pipe|lost (?:connection|peer)",
    re.IGNORECASE,
)
"""An error that says that a connection was lost."""
TIMED_OUT = re.compile(r"time ?out|timed out", re.IGNORECASE)
RANKS_REPORTED = Sentence("{ranks} reported the failed collective")
RANKS_MISSING = Sentence("{ranks} did not arrive, by the reports of the rest")
RANKS_BEHIND = Sentence("{ranks} had enqueued fewer collectives than the rest")
RANKS_SILENT = Sentence("{ranks} reported no error, while the rest did")


@dataclass(frozen=True, eq=False)
class CollectiveComplaints:
    """Errors that ranks report about others."""

    frames: Mapping[str, Frame]
    """Kind -> its events: the kinds of :data:`STRONG_EVIDENCE` and :data:`WEAK_EVIDENCE`, and ``exceptions``."""
    rows: tuple[tuple[str, Event], ...]
    """(kind, row) of the errors that count."""
    silence: Silence
    launchers: Frame
    run: Run

    @property
    def strong(self) -> tuple[tuple[str, Event], ...]:
        """The rows of the kinds in :data:`STRONG_EVIDENCE`."""
        return tuple((name, row) for name, row in self.rows if name in STRONG_EVIDENCE)

    @property
    def single(self) -> bool:
        """Whether the only strong evidence is one rank's summary."""
        return len(self.strong) == 1 and self.strong[0][0] in SUMMARY_KINDS

    @cached_property
    def first(self) -> Event | None:
        """The earliest of the strongest rows."""
        return next(iter(earliest_first(row for _, row in self.strong or self.rows)), None)

    @property
    def raised_only(self) -> bool:
        """Whether there are only exceptions and NCCL's errors, and none says that something timed out: nothing hung."""
        texts = (f"{row.text} {row.get('message')}" for _, row in self.rows)
        return (
            bool(self.rows)
            and {name for name, _ in self.rows} <= {"exceptions", "nccl"}
            and not any(map(TIMED_OUT.search, texts))
        )

    @property
    def lost_only(self) -> bool:
        """Whether the first error is a lost connection and none says that something timed out: nothing hung, the other
        side is gone."""
        texts = [f"{row.text} {row.get('message')}" for _, row in self.rows]
        first = self.first
        return (
            first is not None
            and not self.strong
            and LOST.search(f"{first.text} {first.get('message')}") is not None
            and not any(map(TIMED_OUT.search, texts))
        )

    @property
    def exception(self) -> tuple[str, str] | None:
        """Type and message of the first exception about a collective."""
        rows = (row for row in self.frames["exceptions"].events if row.get("about") == "collective")
        first = next(rows, None)
        return None if first is None else (str(first.get("type")), str(first.get("message") or ""))

    @property
    def kind(self) -> str | None:
        """The kind of the first row."""
        return next((name for name, row in self.rows if row is self.first), None)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The first error, and the ranks that reported it."""
        kind, first = self.kind, self.first
        if kind is None or first is None:
            return ()
        frame = self.frames[kind]
        lost = CONNECTION_LOST if LOST.search(f"{first.text} {first.get('message')}") else PROCESS_RAISED
        shows = [FIRST_ERRORS.get(kind, lost)(line=frame.value(first, "text"))]
        ranks = cited_ranks(frame, [row for name, row in self.rows if name == kind])
        return (*shows, RANKS_REPORTED(ranks=ranks)) if ranks is not None and kind != "mismatches" else tuple(shows)

    @cached_property
    def at_startup(self) -> bool:
        """Whether no collective can have completed yet, so that it is a rendezvous problem."""
        if self.silence.points or not self.rows:
            return False
        timed = [row for name, row in self.rows if name == "timeouts"]
        if timed and all(row.get("seq") in (0, 1) for row in timed):
            return True
        signs = self.silence.signs
        done = [row for row in signs["communicators"].events if row.get("complete")]
        return not timed and not signs["ready"] and not done and all(name != "mismatches" for name, _ in self.rows)

    @cached_property
    def stopped_at(self) -> float | None:
        """When training stopped: a watchdog reports one timeout after the collective was entered."""
        first = min((row.time for _, row in self.rows if row.time is not None), default=None)
        last = max((row.time for row in self.silence.points if row.time is not None), default=None)
        waited = [row.get("timeout_s") for _, row in self.rows]
        longest = max((float(seconds) for seconds in waited if isinstance(seconds, (int, float))), default=0.0)
        if first is None:
            return last
        return first - longest if last is None else max(last, first - longest)

    @cached_property
    def absent_ranks(self) -> AbsentRanks | None:
        """The ranks that did not take part, by the reports of the others."""
        timeouts = self.frames["timeouts"]
        for row in timeouts.events:
            parts = str(row.get("missing_ranks") or "").replace(",", " ").split()
            ranks = tuple(sorted({rank for part in parts if (rank := whole_number(part)) is not None}))
            if ranks:
                return AbsentRanks(ranks, RANKS_MISSING(ranks=derived(ranks, timeouts.value(row, "missing_ranks"))))
        return _ranks_behind(timeouts, self.frames["states"]) or self._silent_ranks()

    def _silent_ranks(self) -> AbsentRanks | None:
        """The few silent ranks if at least half of all ranks reported an error."""
        signs = self.silence.signs
        world = world_size(self.run, signs["ready"], signs["communicators"], self.silence.hosts, signs["inits"])
        reporting = ranks_of((row for _, row in self.rows), self.launchers)
        if (
            world is None and reporting and reporting[-1] + 1 == self.run.n_gpus
        ):  # one rank a GPU: the last of them spoke
            world = self.run.n_gpus
        if world is None or len(reporting) * 2 < world or len(reporting) >= world:
            return None
        silent = tuple(sorted(set(range(world)) - set(reporting)))
        kinds = dict(self.rows)
        reports = [cited_ranks(self.frames[kind], [row for name, row in self.rows if name == kind]) for kind in kinds]
        return AbsentRanks(
            silent, RANKS_SILENT(ranks=derived(silent, *(report for report in reports if report is not None)))
        )


@fact({**STRONG_EVIDENCE, **WEAK_EVIDENCE}, needs=("timeouts",))
def collective_complaints(
    evidence: Evidence, exceptions: Exceptions, ending: Ending, silence: Silence, run: Run
) -> CollectiveComplaints:
    """Needs a job log; otherwise missing."""
    frames = {name: evidence[name] for name in (*STRONG_EVIDENCE, *WEAK_EVIDENCE)}
    frames["exceptions"] = exceptions.frame
    clean_ends = [row for row in ending.ends.events if row.get("status") != "aborted"]
    rows: list[tuple[str, Event]] = []
    for name, frame in frames.items():
        candidates = [row for row in frame.events if row.role in (EventRole.CASCADE, EventRole.ROOT)]
        if name == "exceptions":
            candidates = [row for row in candidates if row.get("about") == "collective"]
        last = final_events(candidates, silence.points, crashed=ending.abnormal is not None)
        rows += [(name, row) for row in last if not clean_ends or last_after(clean_ends[-1], [row]) is None]
    return CollectiveComplaints(frames, tuple(rows), silence, ending.launchers, run)


def _ranks_behind(*frames: Frame) -> AbsentRanks | None:
    """Ranks whose last enqueued work is behind that of the others."""
    last: dict[int, tuple[int, Value]] = {}
    for frame in frames:
        for row in frame.events:
            rank, enqueued = rank_of(row), row.get("last_enqueued")
            if rank is not None and isinstance(enqueued, int):
                last[rank] = enqueued, frame.value(row, "last_enqueued")
    if len(last) < 2:
        return None
    ahead = max(enqueued for enqueued, _ in last.values())
    behind = {rank: value for rank, (enqueued, value) in last.items() if enqueued < ahead}
    if not behind or len(behind) * 2 > len(last):
        return None
    ranks = tuple(sorted(behind))
    return AbsentRanks(ranks, RANKS_BEHIND(ranks=derived(ranks, *behind.values())))
