"""Hardware faults of the run's GPUs on its time line: which ones happened during the run with no work after them, and
when.

Clocks of the kernel, the scheduler and the monitor differ, and a dying GPU is often reported during job shutdown. A
logged step or GPU work after a fault shows that the fault did not end the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Missing, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import GpuActivity
from trackside.facts.hardware.health import HardwareFault
from trackside.facts.hardware.reports import HardwareReports
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.order import last_after
from trackside.facts.training.learning import Trajectory
from trackside.finding import Claim, Sentence
from trackside.model import Event, Record, Run

MAX_CLAIMS = 6
"""Maximum number of claims of one kind: a failed switch makes many GPUs report."""

TOO_EARLY = Sentence("on {gpus}, before the run began, at {when}")
TOO_LATE = Sentence("on {gpus}, after the run had ended, at {when}")
FAILED_AT_OTHER_TIME = Sentence("the run failed at another time")
DRAIN_UNDATED = Sentence(
    "the time when node {node} was drained is not recorded: it may have been before or long after the run"
)


@dataclass(frozen=True)
class Limits:
    """When a fault belongs to the run."""

    before_start_s: float = 60.0
    """Maximum difference between the clocks of kernel log and scheduler; earlier faults are not the run's."""
    after_end_s: float = 120.0
    """A dying GPU is often reported during job shutdown (Slurm's KillWait is 30 s)."""
    clock_slack_s: float = 120.0
    """dmesg -T drifts against the wall clock; failures this close to a fault count as its consequence."""
    coincident_s: float = 2100.0
    """From a counter's rise to the run's end, if nothing shows whether work continued: peers wait up to 30 minutes for
    a lost GPU (PyTorch's longest default timeout), and shutdown takes some minutes."""


@dataclass(frozen=True, eq=False)
class FaultHistory:
    """All hardware faults that were reported or measured, compared with the run's time."""

    reports: HardwareReports
    ending: Ending
    trajectory: Maybe[Trajectory]
    exceptions: Exceptions
    activity: Maybe[GpuActivity]
    run: Run
    limits: Limits

    @cached_property
    def faults(self) -> tuple[HardwareFault, ...]:
        """All faults: those reported in logs, then those measured."""
        return (*self.reports.faults, *self.reports.health.faults)

    @cached_property
    def active(self) -> tuple[HardwareFault, ...]:
        """Faults that may have ended the run: during the run, with no work after them. Empty if the run ended well."""
        if self.ending.completed is not None:
            return ()
        return tuple(fault for fault in self.faults if self._was_active(fault))

    def same_process(self, faults: Sequence[HardwareFault]) -> bool:
        """Whether one of these faults names a process that a launcher names, too."""
        pids = {row.get("pid") for row in self.ending.launchers.events} - {None}
        return any(fault.row is not None and fault.row.get("pid") in pids for fault in faults)

    @cached_property
    def outside(self) -> list[Claim]:
        """Faults before the run began or after its end; empty if any may have happened during it."""
        run = self.run
        early: dict[str, HardwareFault] = {}
        late: dict[str, HardwareFault] = {}
        for fault in self.faults:
            before = run.start is not None and fault.until is not None and fault.until < run.start
            if not before and not (run.end is not None and fault.time is not None and fault.time > run.end):
                return []
            (early if before else late).setdefault(str(fault.gpu or fault.node or "a GPU"), fault)
        sides = ((TOO_EARLY, "start", run.start, early), (TOO_LATE, "end", run.end, late))
        return [self._outside_claim(*side) for side in sides if side[3]]

    @property
    def not_then(self) -> Claim:
        """Why none of these faults is the cause: they happened at another time, or have no recorded time."""
        undated = [fault.row for fault in self.faults if isinstance(fault.row, Record) and fault.time is None]
        if len(undated) < len(self.faults):
            return FAILED_AT_OTHER_TIME()
        return DRAIN_UNDATED(node=self.reports.nodes.value(undated[0], "name"))

    def since(self, faults: Sequence[HardwareFault]) -> float | None:
        """The fault's time, or that of a failure so close to it that only clock differences separate them.

        Reported times are to the second; measurements only give the samples between which it happened. The time when
        somebody drained the node is later than the fault.
        """
        dated = [fault for fault in faults if fault.time is not None and fault.plane != "scheduler"]
        exact = [fault for fault in dated if fault.plane != "metric"] or dated
        times = [fault.time for fault in exact if fault.time is not None]
        if not times:
            return None
        start, until = min(times), max(fault.until or 0.0 for fault in exact if fault.time == min(times))
        slack = self.limits.clock_slack_s
        for frame in (self.reports.errors, self.exceptions.frame, self.ending.launchers, self.ending.exits):
            near = [row.time for row in frame.events if row.time is not None]
            times += [time for time in near if start - slack <= time <= until + slack]
        return min(times)

    def _was_active(self, fault: HardwareFault) -> bool:
        """Whether it happened during the run and no work of the run followed."""
        run, limits = self.run, self.limits
        points = self.trajectory.points if isinstance(self.trajectory, Trajectory) else ()
        if isinstance(fault.row, Record):  # the scheduler's, of the run's time if it has a time
            return fault.time is not None or run.end is None
        if fault.time is None or fault.until is None:
            return not isinstance(fault.row, Event) or last_after(fault.row, points) is None
        is_inside = run.start is None or fault.until >= run.start - limits.before_start_s
        is_inside &= run.end is None or fault.time <= run.end + limits.after_end_s
        if not is_inside:
            return False
        if isinstance(fault.row, Event):
            return last_after(fault.row, points) is None
        last_relevant = fault.until + limits.clock_slack_s
        stamped = [point.time for point in points if point.time is not None]
        if stamped:
            return max(stamped) <= last_relevant
        worked_since = self.activity.worked_after(last_relevant) if isinstance(self.activity, GpuActivity) else None
        if worked_since is None and run.end is not None and not self.ending.running:
            return run.end - fault.until <= limits.coincident_s
        return not worked_since

    def _outside_claim(
        self, sentence: Sentence, name: str, bound: float | None, faults: Mapping[str, HardwareFault]
    ) -> Claim:
        source = next(iter(next(iter(faults.values())).claim.values.values()))
        job, when = self.ending.job, derived(bound, source, unit="time")
        if job is not None and job.get(name) == bound:
            when = self.ending.jobs.value(job, name, "time")
        return sentence(gpus=derived(tuple(faults), source), when=when)


@fact(limits=Limits())
def fault_history(
    reports: HardwareReports, ending: Ending, trajectory: Maybe[Trajectory], exceptions: Exceptions,
    activity: Maybe[GpuActivity], run: Run, limits: Limits,
) -> Maybe[FaultHistory]:  # fmt: skip
    """Needs a kernel log or a counter of errors; otherwise missing."""
    if not reports.has_input and not reports.health.measured:
        return NOT_GIVEN
    return FaultHistory(reports, ending, trajectory, exceptions, activity, run, limits)


NOT_GIVEN = Missing("neither a kernel log nor error counters of the run's GPUs were given")


def few_of_each(faults: Sequence[HardwareFault]) -> list[HardwareFault]:
    """The first fault of each kind and number, so that a storm of one Xid is shown once; of measured faults, one per
    GPU. The first of each kind of data comes first."""
    first: dict[tuple[object, ...], HardwareFault] = {}
    for fault in faults:
        number = fault.number or (fault.row.get("sxid") if fault.row is not None else None)
        first.setdefault((fault.sign, number, fault.gpu if fault.plane == "metric" else None), fault)
    counts: dict[str, int] = defaultdict(int)
    by_plane: dict[str, int] = defaultdict(int)
    few = []
    for fault in first.values():
        counts[fault.sign] += 1
        if counts[fault.sign] <= MAX_CLAIMS:
            by_plane[fault.plane] += 1
            few.append((by_plane[fault.plane] > 1, fault))
    return [fault for _, fault in sorted(few, key=lambda pair: pair[0])]
