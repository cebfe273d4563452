"""The first evidence of a hang of several ranks.

In order of strength: errors reported by ranks that no later line clears; Flight Recorder dumps; stacks taken during the
hang; stalled GPUs; ranks that connected but never completed a step; a silence.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Missing, Value
from trackside.facts.fact import Maybe, fact, or_none
from trackside.facts.gpu.first_step import FirstStepHang
from trackside.facts.gpu.last_part import LastPart
from trackside.facts.gpu.stall_claims import Stall
from trackside.facts.logs.complaints import CollectiveComplaints
from trackside.facts.logs.ending import OUTSIDE_END_STATES, Ending, how_it_ended
from trackside.facts.logs.flight_records import FlightRecords
from trackside.facts.logs.hang_causes import HangCauses
from trackside.facts.logs.hang_stacks import HangStacks
from trackside.facts.logs.silence import Silence
from trackside.facts.ranks import AbsentRanks
from trackside.facts.training.learning import last_logged
from trackside.finding import Certainty, Claim, Culprit, Sentence
from trackside.model import Event, Run

NOTHING_PRINTED = Sentence(
    "the job itself printed no line with a time in the last {seconds} of the run",
    running="the job has printed no line with a time for {seconds}",
)
UNACCOUNTED = Sentence("the completed steps, at their pace, do not account for {seconds} of the run")
ENDED_AT = Sentence("the run ended at {time}")

NO_HANG = Missing("nothing points to a hang")


@dataclass(frozen=True, slots=True)
class HangLead:
    """The strongest evidence of a hang: its certainty, its claims, and the ranks that it names."""

    certainty: Certainty
    claims: tuple[Claim, ...] = ()
    row: Event | None = None
    """The line that the lead is based on."""
    since: float | None = None
    absent_ranks: AbsentRanks | None = None
    stall: Stall | None = None
    owner: Culprit | None = None
    """The owner, by this evidence alone; None if it leaves that open."""
    of_collective: bool = False
    """Whether it concerns a collective, not only a silence."""


@fact()
def hang_lead(
    run: Run, ending: Ending, silence: Silence, last: LastPart, causes: HangCauses,
    complaints: Maybe[CollectiveComplaints], flight: Maybe[FlightRecords], stacks: Maybe[HangStacks],
    first_step: Maybe[FirstStepHang],
) -> Maybe[HangLead]:  # fmt: skip
    """Needs evidence of a hang, of a run that did not end well; otherwise missing."""
    ranks_complaints, hang_stacks, dumped = (
        or_none(complaints),
        or_none(stacks),
        None if isinstance(flight, Missing) else flight.absent_ranks,
    )
    if ending.completed is not None:
        return NO_HANG
    if ranks_complaints is not None and ranks_complaints.rows:
        return _from_complaints(ranks_complaints, dumped, ending, last)
    if dumped is not None:  # shows which rank is absent, but not whether its code or its machine is the reason
        return HangLead(Certainty.SUPPORTED, absent_ranks=dumped, stall=last.find_stall(), owner="unknown")
    if hang_stacks is not None and hang_stacks.waiting:
        return _from_stacks(hang_stacks, ending, silence, last, causes)
    if hang_stacks is not None and hang_stacks.covers_all_ranks(run):
        return NO_HANG
    if last.final_stall is not None and _is_between_ranks(last.final_stall, ending, silence, last):
        return _from_stall(last.final_stall, ending, last)
    if last.working is not None or ranks_complaints is None or last.has_exception:
        return NO_HANG
    if last.ended_from_outside and not isinstance(first_step, Missing):
        return _from_first_step(first_step, ending)
    return NO_HANG if last.quiet is None else _from_silence(*last.quiet, ending, silence, last)


def _from_complaints(
    complaints: CollectiveComplaints, dumped: AbsentRanks | None, ending: Ending, last: LastPart
) -> HangLead:
    ended = ending.abnormal is not None
    return HangLead(
        Certainty.ESTABLISHED if complaints.strong and ended and not complaints.single else Certainty.SUPPORTED,
        complaints.claims,
        complaints.first,
        complaints.stopped_at,
        absent_ranks=dumped or complaints.absent_ranks,
        stall=last.find_stall(stopped_at=complaints.stopped_at),
        owner="job" if complaints.kind == "mismatches" else None,
        of_collective=True,
    )


def _from_stacks(stacks: HangStacks, ending: Ending, silence: Silence, last: LastPart, causes: HangCauses) -> HangLead:
    """Stacks in a collective, taken because the run did not move. Stacks of the ranks themselves, which show who is
    absent, are independent evidence."""
    absent_ranks, stall, state = stacks.absent_ranks, last.find_stall(), ending.state
    second = stall is not None or causes.machine is not None or silence.stall is not None
    certainty = Certainty.SUPPORTED if second or (absent_ranks is not None and stacks.suspected) else Certainty.POSSIBLE
    if second and absent_ranks is not None and state is not None and state.value in OUTSIDE_END_STATES:
        certainty = Certainty.ESTABLISHED
    return HangLead(
        certainty, absent_ranks=absent_ranks, stall=stall, owner=None if absent_ranks is not None else "unknown"
    )


def _is_between_ranks(stall: Stall, ending: Ending, silence: Silence, last: LastPart) -> bool:
    """Whether idle GPUs are a problem between ranks that no closing line or error explains."""
    if int(stall.activity.working_gpus.sum()) < 2 and not silence.several_ranks:
        return False
    spoken_of = ending.state is not None or bool(ending.notices) or bool(stall.outliers)
    if not spoken_of and stall.activity.basis in ("power", "utilization") and silence.missing_log is None:
        return False  # a log excerpt, and signals that need a silent log to be conclusive
    return not ending.ends and (not last.has_exception or (stall.sure and stall.busy_waiting))


def _from_stall(stall: Stall, ending: Ending, last: LastPart) -> HangLead:
    """Stalled GPUs; more than supported if a second plane agrees."""
    quiet, state, end = last.quiet, ending.state, ending.time
    shows = [] if quiet is None else [(NOTHING_PRINTED if quiet[1] else UNACCOUNTED)(seconds=quiet[0])]
    if state is not None:
        shows.append(how_it_ended(state))
    elif end is not None:
        shows.append(ENDED_AT(time=end))
    second = (quiet is not None and quiet[1]) or state is not None
    certainty = Certainty.POSSIBLE if quiet is None else Certainty.SUPPORTED
    if stall.sure:
        strong = (stall.busy_waiting or stall.traced) and second
        certainty = Certainty.ESTABLISHED if strong else Certainty.SUPPORTED
    return HangLead(certainty, tuple(shows), next(reversed(last.points), None), stall=stall)


def _from_first_step(stuck: FirstStepHang, ending: Ending) -> HangLead:
    """Ranks that connected, spun and never completed a step: they wait in one of their first collectives."""
    shows = stuck.claims if ending.state is None else (*stuck.claims, how_it_ended(ending.state))
    return HangLead(Certainty.SUPPORTED if stuck.sure else Certainty.POSSIBLE, shows, since=stuck.since)


def _from_silence(quiet: Value, stamped: bool, ending: Ending, silence: Silence, last: LastPart) -> HangLead:
    """A hang without a watchdog: several ranks trained, then nothing more until the run was ended."""
    point, state = last.points[-1], ending.state
    shows = [(NOTHING_PRINTED if stamped else UNACCOUNTED)(seconds=quiet)]
    shows.append(last_logged(silence.signs["progress"], point))
    if state is not None:
        shows.append(how_it_ended(state))
    certainty = Certainty.SUPPORTED if stamped else Certainty.POSSIBLE
    return HangLead(certainty, tuple(shows), point, stall=last.final_stall)
