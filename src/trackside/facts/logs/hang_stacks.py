"""Where each rank is in the code, by stacks taken during a hang.

Only the training thread of each process counts: one in a collective, else the main thread. Stacks after which the run
continued are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.fact import fact
from trackside.facts.logs.order import last_after
from trackside.facts.logs.silence import Silence
from trackside.facts.ranks import AbsentRanks, cited_ranks, rank_of
from trackside.finding import Claim, Sentence
from trackside.model import Event, Run
from trackside.query import events

WAIT_IN = Sentence("{ranks} waited in {call}, at {place}", running="{ranks} wait in {call}, at {place}")
WAIT_GPU = Sentence(
    "{ranks} waited for a backward pass or the GPU, at {place}",
    running="{ranks} wait for a backward pass or the GPU, at {place}",
)
STAYED_ELSEWHERE = Sentence(
    "{ranks} did not reach it: the stack shows {place}", running="{ranks} have not reached it and are at {place}"
)
OTHER_COLLECTIVE = Sentence(
    "{ranks} waited in another collective than the others: {call}, at {place}",
    running="{ranks} wait in another collective than the others: {call}, at {place}",
)
STAYED_AT = Sentence("the stack of {ranks} shows {place}", running="{ranks} are at {place}")
WAIT_IN_PROCESSES, WAIT_GPU_PROCESSES, STAYED_ELSEWHERE_PROCESSES, STAYED_AT_PROCESSES = (
    Sentence(sentence.text.replace("{ranks}", "{processes}"), sentence.running.replace("{ranks}", "{processes}"))
    for sentence in (WAIT_IN, WAIT_GPU, STAYED_ELSEWHERE, STAYED_AT)
)
"""The sentences about ranks for processes whose ranks are unknown."""

AGENT_PARSER = "hang-report"
"""The parser of the agent's lines."""
DUMP_S = 120.0
"""Time within which the stacks of one process are taken once."""
MAX_PLACES = 4
"""Maximum number of code locations of one kind in the claims, those of the most ranks first."""


@dataclass(frozen=True, eq=False)
class HangStacks:
    """The relevant threads, one per process: waiting for others, elsewhere, and (of the waiting) the few in another
    collective than most."""

    frame: Frame
    waiting: tuple[Event, ...]
    elsewhere: tuple[Event, ...]
    other_collective: tuple[Event, ...] = ()

    @property
    def has_stacks(self) -> bool:
        """Whether any stack shows where the run was."""
        return bool(self.waiting or self.elsewhere)

    @property
    def suspected(self) -> bool:
        """Whether the agent took them because it saw a stall; anyone may take stacks of a healthy run."""
        return any(row.parser == AGENT_PARSER for row in (*self.waiting, *self.elsewhere))

    @property
    def ranks(self) -> frozenset[int]:
        """All ranks with a stack."""
        return frozenset(rank for row in (*self.waiting, *self.elsewhere) if (rank := rank_of(row)) is not None)

    def covers_all_ranks(self, run: Run) -> bool:
        """Whether all ranks of a run have a stack."""
        return 1 < (run.n_ranks or 2) <= len(self.ranks)

    @cached_property
    def absent_ranks(self) -> AbsentRanks | None:
        """The ranks that the others wait for, if known."""
        rows = self.elsewhere or self.other_collective
        ranks = tuple(sorted({rank for row in rows if (rank := rank_of(row)) is not None}))
        return AbsentRanks(ranks, self._elsewhere_claims()[0]) if self.waiting and ranks else None

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The claims about all of them, except the one in :attr:`absent_ranks`."""
        in_collective = [
            row for row in self.waiting if row.get("collective") is not None and row not in self.other_collective
        ]
        busy = [row for row in self.waiting if row.get("collective") is None and row not in self.other_collective]
        shows = self._places(in_collective, WAIT_IN, WAIT_IN_PROCESSES, call=True) + self._places(
            busy, WAIT_GPU, WAIT_GPU_PROCESSES
        )
        elsewhere_claims = self._elsewhere_claims()
        return (*shows, *(elsewhere_claims[1:] if self.absent_ranks is not None else elsewhere_claims))

    @cached_property
    def code_line(self) -> Value | None:
        """The line of code to check: of the ranks that others wait for, else of any rank."""
        rows = [row for row in (*self.elsewhere, *self.other_collective, *self.waiting) if row.get("place") is not None]
        return self.frame.value(rows[0], "place") if rows else None

    def lines(self, ranks: Iterable[int]) -> list[Claim]:
        """Code locations of these ranks, which other evidence shows to be absent."""
        selected = set(ranks)
        return self._places(
            [row for row in (*self.elsewhere, *self.other_collective) if rank_of(row) in selected],
            STAYED_AT,
            STAYED_AT_PROCESSES,
        )

    def _elsewhere_claims(self) -> list[Claim]:
        """Code locations of the ranks that the others wait for; of all ranks if none wait."""
        by_process = STAYED_ELSEWHERE_PROCESSES if self.waiting else STAYED_AT_PROCESSES
        if not self.elsewhere:
            return self._places(self.other_collective, OTHER_COLLECTIVE, by_process, call=True)
        return self._places(self.elsewhere, STAYED_ELSEWHERE if self.waiting else STAYED_AT, by_process)

    def _places(
        self, rows: Iterable[Event], by_rank: Sentence, by_process: Sentence, *, call: bool = False
    ) -> list[Claim]:
        """One claim per code location, those with the most processes first."""
        places: dict[tuple[object, object], list[Event]] = {}
        for row in rows:
            places.setdefault((row.get("collective"), row.get("place") or row.get("top")), []).append(row)
        shows = []
        for group in sorted(places.values(), key=len, reverse=True)[:MAX_PLACES]:
            first = group[0]
            values = {"place": self.frame.value(first, "place" if first.get("place") is not None else "top")}
            if call:
                values["call"] = self.frame.value(first, "collective")
            ranks = cited_ranks(self.frame, group)
            if ranks is not None:
                shows.append(by_rank(ranks=ranks, **values))
            else:
                processes = tuple(f"process {row.get('pid')}" for row in group)
                cited = derived(processes, *(self.frame.value(row, "pid") for row in group))
                shows.append(by_process(processes=cited, **values))
        return shows


@fact({"stacks": events("stack")}, needs=("stacks",))
def hang_stacks(evidence: Evidence, silence: Silence) -> HangStacks:
    """Needs a source of stacks; otherwise missing. Empty if no stack was taken, or if the run continued after it."""
    frame = evidence["stacks"]
    rows = [row for row in frame.events if row.get("resumed_s") is None and last_after(row, silence.points) is None]
    by_process: dict[object, list[Event]] = {}
    for row in rows:
        rank = rank_of(row)
        by_process.setdefault((row.node, rank) if rank is not None else (row.at.path, row.get("pid")), []).append(row)
    chosen = [thread for group in by_process.values() if (thread := _training_thread(group)) is not None]
    waiting_in_call = [row for row in chosen if row.get("collective") is not None]
    busy = [row for row in chosen if row.get("collective") is None and row.get("waits") is not None]
    # A single rank in a backward pass may be working, unless the agent saw that it was idle.
    in_collective = (
        waiting_in_call or len(busy) > 1 or (len(chosen) > 1 and any(row.parser == AGENT_PARSER for row in busy))
    )
    waiting = [*waiting_in_call, *busy] if in_collective else []
    elsewhere = [row for row in chosen if row not in waiting]
    return HangStacks(frame, tuple(waiting), tuple(elsewhere), () if elsewhere else _in_other_collective(waiting))


def _training_thread(rows: Sequence[Event]) -> Event | None:
    """The training thread: of the last time that stacks were taken, one in a collective, else the main thread."""
    newest = max(rows, key=lambda row: (row.time or 0.0, row.at.line))
    earliest = (newest.time or 0.0) - DUMP_S
    ordered = [row for row in rows if row.get("pid") == newest.get("pid") and (row.time or 0.0) >= earliest]
    main = [row for row in ordered if row.get("thread") in (None, "MainThread") or row.get("tid") == row.get("pid")]
    in_collective = [row for row in ordered if row.get("collective") is not None]
    if main and (main[0].get("collective") is not None or not in_collective):
        return main[0]
    return in_collective[0] if in_collective else None


def _in_other_collective(waiting: Sequence[Event]) -> tuple[Event, ...]:
    """The few that wait in another collective than more than half of all do."""
    in_collective = [row for row in waiting if row.get("collective") is not None and row.get("place") is not None]
    groups: dict[tuple[object, object], list[Event]] = {}
    for row in in_collective:
        groups.setdefault((row.get("collective"), row.get("place")), []).append(row)
    largest = max(groups.values(), key=len, default=[])
    if len(groups) < 2 or len(in_collective) < len(waiting) or len(largest) * 2 <= len(waiting):
        return ()
    return tuple(row for row in in_collective if row not in largest)
