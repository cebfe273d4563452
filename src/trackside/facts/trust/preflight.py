"""Can this telemetry be trusted: what is covered, what is cut off, whose clock is off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trackside.evidence import UNANSWERED, Frame, Store, Value, derived
from trackside.facts.logs.ending import BAD_STATES, LIVE_STATES, last_job
from trackside.facts.trust import telemetry
from trackside.facts.trust.telemetry import Examined
from trackside.finding import Claim
from trackside.model import Event, Record, Run
from trackside.query import Query, events, record

SAYS: dict[str, str] = {
    "unanswered": "{source} did not answer, or not wholly: {reason}",
    "no_log": "no output of the job was given: progress and errors are not known",
    "no_scheduler": "no scheduler record was given: the final state is not known for certain",
    "no_kernel": "no kernel log was given: GPU and memory faults of the nodes can't be ruled out",
    "no_kernel_of": "no kernel log of {nodes} was given: faults there can't be ruled out",
    "cut_off": "{path} ends in the middle of a line: its last words may be missing",
    "some_ranks": "logs of {ranks} were given, of {world} ranks in all",
    "thinned": "of {printed} and more training points printed, the claims here rest on {held}",
    "clock": "naive times of the log were moved by {offset} to fit the scheduler's",
    "contradicted": "of one start of the job a record says {good} and another {bad}: these are several runs of one id, "
    "and what is said may mix them",
    "several_runs": "two logs give different losses at {step}, {one} and {other}, and nothing makes them ranks of one "
    "run: they are judged as one, so give one run at a time",
    "still_running": "the job is still going: {state}",
    **telemetry.SAYS,
}
"""Sentence templates of the claims that :func:`check` makes."""
GOING: dict[str, str] = {
    "cut_off": "{path} ends in the middle of a line: its next words are still to come",
    "thinned": "of {printed} and more training points printed so far, the claims here rest on {held}",
    **telemetry.GOING,
}
"""The same of a run that goes on."""


def check(store: Store, run: Run, examined: Examined | None = None) -> tuple[Claim, ...]:
    """What limits the verdict, each with its citation where there is something to cite.

    ``examined``: what :func:`trackside.facts.trust.telemetry.examine` said, where it was asked already.
    """
    metrics = examined if examined is not None else telemetry.examine(store, run)
    return (*_claims(store, run), *metrics.claims)


def _claims(store: Store, run: Run) -> Iterator[Claim]:
    unread = set()
    if (silent := _ask(store, events(UNANSWERED))) is not None:
        unread = {row.plane for row in silent.events}
        for row in silent.events:
            yield Claim("unanswered", {name: silent.value(row, name) for name in ("source", "reason")})
    logs, jobs = _ask(store, events("log_activity")), _ask(store, record("job"))
    if logs is None and "log" not in unread:
        yield Claim("no_log")
    job = None if jobs is None else last_job(jobs)
    if (jobs is None or job is None) and "scheduler" not in unread:
        yield Claim("no_scheduler")
    if "kernel" not in unread:
        yield from _kernel([_ask(store, events(kind)) for kind in ("kernel_log", "boot", "xid")], run, jobs, job)
    if jobs is not None:
        yield from _contradicted(jobs)
    if jobs is not None and job is not None and job.get("state") in LIVE_STATES:
        yield Claim("still_running", {"state": jobs.value(job, "state")})
    if logs is None:
        return
    for row in logs.events:
        if row.get("truncated") and (not run.log_paths or row.at.path in run.log_paths) and not _closed_by_slurm(row):
            yield Claim("cut_off", {"path": logs.value(row, "path")})
    yield from _ranks(logs, run)
    points = _ask(store, events("progress"))
    if points is not None and points and points.rows[-1].get("ordinal") is not None:
        printed = points.value(points.rows[-1], "ordinal")
        yield Claim("thinned", {"printed": printed, "held": points.reduce("count")})
    others = _ask(store, events("other_progress"))
    if points is not None and others is not None:
        yield from _several(points, others)
    if run.clock_offset_s and jobs is not None and job is not None and job.get("start") is not None and logs.events:
        sources = jobs.value(job, "start", "time"), logs.value(logs.events[0], "first_time", "time")
        yield Claim("clock", {"offset": derived(run.clock_offset_s, *sources, unit="s")})


def _ask(store: Store, query: Query) -> Frame | None:
    answer = store.ask(query)
    return answer if isinstance(answer, Frame) else None


def _contradicted(jobs: Frame) -> Iterator[Claim]:
    """Ended well and ended badly, of one start: no such job was."""
    for good in (row for row in jobs.records if row.get("state") == "COMPLETED"):
        for bad in jobs.records:
            same = all(bad.get(name) == good.get(name) for name in ("id", "start"))
            if same and bad.get("state") in BAD_STATES and good.get("start") is not None:
                yield Claim("contradicted", {"good": jobs.value(good, "state"), "bad": jobs.value(bad, "state")})
                return


def _several(points: Frame, others: Frame) -> Iterator[Claim]:
    """A log that was left aside, and trained differently: a run of its own, as far as anybody can tell."""
    for other in others.events:
        mine = next((row for row in points.events if row.get("step") == other.get("step")), None)
        if mine is not None:
            step, one = points.value(mine, "step", "step"), points.value(mine, "loss")
            yield Claim("several_runs", {"step": step, "one": one, "other": others.value(other, "loss")})


def _kernel(kernel: Sequence[Frame | None], run: Run, jobs: Frame | None, job: Record | None) -> Iterator[Claim]:
    """Whether the kernel's messages were read at all; which nodes they are from isn't told by every format."""
    if kernel[0] is None:
        yield Claim("no_kernel")
        return
    seen = {row.node for frame in kernel if frame is not None for row in frame.events if row.node}
    silent = tuple(node for node in run.nodes if node not in seen)
    if seen and silent and jobs is not None and job is not None:
        yield Claim("no_kernel_of", {"nodes": derived(silent, jobs.value(job, "nodes"))})


def _closed_by_slurm(row: Event) -> bool:
    return "slurmstepd" in str(row.get("last_line"))


def _ranks(logs: Frame, run: Run) -> Iterator[Claim]:
    """A log of its own for some ranks and not for others."""
    own = {row.rank: row for row in logs.events if row.rank is not None}
    if run.n_ranks is None or not 1 < len(own) < run.n_ranks:
        return
    cites: list[Value] = [logs.value(row, "rank") for row in own.values()]
    ranks = derived(tuple(sorted(rank for rank in own if rank is not None)), *cites)
    yield Claim("some_ranks", {"ranks": ranks, "world": derived(run.n_ranks, *cites)})
