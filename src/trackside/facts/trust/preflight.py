"""What limits a verdict: missing or partial inputs, corrected clocks, telemetry that cannot be trusted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trackside.catalog.xid import xid
from trackside.evidence import Evidence, Frame, Missing, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.hardware.reports import HardwareReports
from trackside.facts.logs.drained_nodes import DrainedNodes
from trackside.facts.logs.ending import BAD_STATES, Ending
from trackside.facts.training.learning import Trajectory
from trackside.facts.trust.sampling import NO_GPU_METRICS
from trackside.facts.trust.telemetry import TelemetryTrust
from trackside.facts.trust.unanswered import UnansweredSources
from trackside.finding import Claim, Sentence
from trackside.model import Record, Run
from trackside.query import events

NO_LOG = Sentence("no job output was given: progress and errors are unknown")
NO_SCHEDULER = Sentence("no scheduler record of the job was given: the final state is not certain")
NO_KERNEL = Sentence(
    "no kernel log was given: GPU hardware faults and processes that the kernel killed may be missing here"
)
ONLY_LOG = Sentence(
    "only the job's log was given (no Slurm record, kernel log or GPU metrics): hardware faults and processes that the "
    "kernel killed may be missing here"
)
NO_KERNEL_OF = Sentence("no kernel log of {nodes} was given: hardware faults there may be missing here")
ENDS_WITHOUT_NEWLINE = re.compile(
    r"slurmstepd|\d{1,3}%(?:\|[^|]{0,400}\|)? *\d{1,12}/\d{1,12} \[[^\]]{0,200}\]\s*$|\^C\s*$"
)
"""Last lines that lack a newline in complete logs: Slurm's last notice, a bar, the echo of an interrupt."""
CUT_OFF = Sentence(
    "{path} does not end with a newline: the log may be cut",
    running="{path} does not end with a newline: it is still being written",
)
LOGS_OF_SOME_RANKS = Sentence("logs of {ranks} were given, of {world} ranks in all")
STEPS_SAMPLED = Sentence(
    "this verdict uses {used} of at least {printed} logged steps",
    running="this verdict uses {used} of at least {printed} logged steps so far",
)
LOG_CLOCK_SHIFTED = Sentence("log times without a time zone were shifted by {offset} to match the scheduler's")
RECORDS_DISAGREE = Sentence(
    "two records of the same start disagree ({good}, {bad}): they may be of two runs with one job id, and the "
    "verdict may mix both"
)
SEVERAL_RUNS = Sentence(
    "two logs give different losses at {step} ({loss} and {other_loss}): they look like two runs, but are judged as one"
)
OTHER_GPU_FAULTY = Sentence(
    "another GPU of {node} (PCI {pci}), which this run did not use, reported Xid {xid} ({name}) at {time}: "
    "drain {node}, or report it to its administrators"
)
OTHER_GPU_FAULTY_UNDATED = Sentence(
    "another GPU of {node} (PCI {pci}), which this run did not use, reported Xid {xid} ({name}): drain {node}, or "
    "report it to its administrators"
)
LEFT_PROCESSES = Sentence("Slurm could not end all processes of the job, and some may still be on its node: {line}")
LEFT_PROCESSES_ON = Sentence("Slurm could not end all processes of the job, and some may still be on {node}: {line}")
OWN_DRAIN = re.compile(r"epilog|prolog|kill task failed", re.IGNORECASE)
"""Reasons for which Slurm itself drains a node."""
OWN_NODE = re.compile(r"TERMINATED ON (\S{1,63}) AT|\bslurmstepd-([^\s:]{1,63}):")
"""The node in slurmstepd's notice that it could not end a job's processes."""
NODE_DRAINED = Sentence(
    "the scheduler drained {node} during the job or right after it: {reason}; check it before it gets another job"
)
NODE_RETURNED = Sentence(
    "the scheduler drained {node} during the job or right after it: {reason}; it is back in service: "
    "check that its cause is repaired"
)
STILL_RUNNING = Sentence("the job is still running: {state}")


@dataclass(frozen=True, slots=True)
class Preflight:
    """What limits the verdict, each with its citation if there is one."""

    claims: tuple[Claim, ...]


@fact({
    "logs": events("log_activity"),
    "kernel": events("kernel_log"),
    "boots": events("boot"),
    "xids": events("xid"),
    "others": events("other_progress"),
})  # fmt: skip
def preflight(
    evidence: Evidence,
    unanswered: UnansweredSources,
    ending: Ending,
    trajectory: Maybe[Trajectory],
    telemetry: Maybe[TelemetryTrust],
    reports: Maybe[HardwareReports],
    drained: DrainedNodes,
    run: Run,
) -> Preflight:
    """Needs no particular input."""
    claims = [*unanswered.claims, *_input_claims(evidence, unanswered, ending, drained, run)]
    if evidence.has("logs"):
        progress = None if isinstance(trajectory, Missing) else trajectory.progress
        claims += _log_claims(evidence, ending, progress, run)
    claims += () if isinstance(telemetry, Missing) else telemetry.claims
    claims += () if isinstance(reports, Missing) else _other_gpu_claims(reports)
    others = [NO_SCHEDULER(), NO_KERNEL(), NO_GPU_METRICS()]
    if all(claim in claims for claim in others) and NO_LOG() not in claims:
        claims = [ONLY_LOG(), *(claim for claim in claims if claim not in others)]
    return Preflight(tuple(claims))


def _input_claims(
    evidence: Evidence, unanswered: UnansweredSources, ending: Ending, drained: DrainedNodes, run: Run
) -> Iterator[Claim]:
    """Missing inputs, and what the scheduler's records show."""
    if not evidence.has("logs") and "log" not in unanswered.planes:
        yield NO_LOG()
    if ending.job is None and "scheduler" not in unanswered.planes:
        yield NO_SCHEDULER()
    if "kernel" not in unanswered.planes:
        yield from _kernel_log_claims(evidence, ending, run)
    yield from _left_processes(ending.notices)
    yield from _drained_claims(drained)
    yield from _record_claims(ending.jobs)
    if ending.running and ending.state is not None:
        yield STILL_RUNNING(state=ending.state)


def _log_claims(evidence: Evidence, ending: Ending, progress: Frame | None, run: Run) -> Iterator[Claim]:
    """Logs that are incomplete, thinned, time-shifted or from another run."""
    logs = evidence["logs"]
    for row in logs.events:
        is_closed = ENDS_WITHOUT_NEWLINE.search(str(row.get("last_line"))) is not None
        if row.get("truncated") and (not run.log_paths or row.at.path in run.log_paths) and not is_closed:
            yield CUT_OFF(path=logs.value(row, "path"))
    yield from _rank_log_claims(logs, run)
    if progress and progress.rows[-1].get("ordinal") is not None:
        printed = progress.value(progress.rows[-1], "ordinal")
        yield STEPS_SAMPLED(printed=printed, used=progress.reduce("count"))
    if progress is not None:
        yield from _other_run_claims(progress, evidence["others"])
    if run.clock_offset_s and ending.job is not None and ending.job.get("start") is not None and logs.events:
        sources = ending.jobs.value(ending.job, "start", "time"), logs.value(logs.events[0], "first_time", "time")
        yield LOG_CLOCK_SHIFTED(offset=derived(run.clock_offset_s, *sources, unit="s"))


def _left_processes(notices: Frame) -> Iterator[Claim]:
    """Processes that Slurm could not end: they are no cause, but their node needs care."""
    row = next((row for row in notices.events if row.get("reason") == "unkillable"), None)
    if row is None:
        return
    line, match = notices.value(row, "text"), OWN_NODE.search(row.text)
    if match is None:
        yield LEFT_PROCESSES(line=line)
    else:
        yield LEFT_PROCESSES_ON(line=line, node=derived(match[1] or match[2], line))


def _drained_claims(drained: DrainedNodes) -> Iterator[Claim]:
    """Nodes that Slurm itself drained for what happened in the job: an epilog that failed, or processes that stay."""
    nodes = set[str]()
    for _, row, node, reason in drained.reports:
        name = str(node.value)
        if reason is None or name in nodes or OWN_DRAIN.search(str(reason.value)) is None:
            continue
        nodes.add(name)
        time = row.get("reason_time") if isinstance(row, Record) else row.time
        since = float(time) if isinstance(time, (int, float)) else None
        yield (NODE_RETURNED if drained.returned(name, since) else NODE_DRAINED)(node=node, reason=reason)


def _record_claims(jobs: Frame) -> Iterator[Claim]:
    """A record of a good end and one of a bad end for the same start: they cannot be the same job."""
    for good in (row for row in jobs.records if row.get("state") == "COMPLETED"):
        for bad in jobs.records:
            same = all(bad.get(name) == good.get(name) for name in ("id", "start"))
            if same and bad.get("state") in BAD_STATES and good.get("start") is not None:
                yield RECORDS_DISAGREE(good=jobs.value(good, "state"), bad=jobs.value(bad, "state"))
                return


def _other_run_claims(points: Frame, others: Frame) -> Iterator[Claim]:
    """A log that was not used and has different losses: it seems to be another run."""
    for other_row in others.events:
        own_row = next((row for row in points.events if row.get("step") == other_row.get("step")), None)
        if own_row is not None:
            step, own_loss = points.value(own_row, "step", "step"), points.value(own_row, "loss")
            yield SEVERAL_RUNS(step=step, loss=own_loss, other_loss=others.value(other_row, "loss"))


def _kernel_log_claims(evidence: Evidence, ending: Ending, run: Run) -> Iterator[Claim]:
    """Whether the kernel log was read; not every format names its node."""
    if not evidence.has("kernel"):
        yield NO_KERNEL()
        return
    covered = {row.node for name in ("kernel", "boots", "xids") for row in evidence[name].events if row.node}
    silent = tuple(node for node in run.nodes if node not in covered)
    if covered and silent and ending.job is not None:
        yield NO_KERNEL_OF(nodes=derived(silent, ending.jobs.value(ending.job, "nodes")))


def _other_gpu_claims(reports: HardwareReports) -> Iterator[Claim]:
    """The first hardware fault of each GPU of the nodes that the run did not use: it limits no verdict, but whoever
    reads this verdict may be the first to learn of it."""
    xids, gpus = reports.xids, set[tuple[str | None, object]]()
    for row in reports.foreign_xids:
        number, gpu = row.get("xid"), (row.node, row.get("pci"))
        if not isinstance(number, int) or xid(number).blame != "hardware" or row.node is None or gpu in gpus:
            continue
        gpus.add(gpu)
        value = xids.value(row, "xid")
        node, name = derived(row.node, value), derived(xid(number).name, value)
        names = {"pci": xids.value(row, "pci"), "node": node, "xid": value, "name": name}
        if row.time is None:
            yield OTHER_GPU_FAULTY_UNDATED(**names)
        else:
            yield OTHER_GPU_FAULTY(**names, time=derived(row.time, value, unit="time"))


def _rank_log_claims(logs: Frame, run: Run) -> Iterator[Claim]:
    """Separate logs for some ranks and not for others."""
    row_by_rank = {row.rank: row for row in logs.events if row.rank is not None}
    if run.n_ranks is None or not 1 < len(row_by_rank) < run.n_ranks:
        return
    cites = [logs.value(row, "rank") for row in row_by_rank.values()]
    ranks = derived(tuple(sorted(rank for rank in row_by_rank if rank is not None)), *cites)
    yield LOGS_OF_SOME_RANKS(ranks=ranks, world=derived(run.n_ranks, *cites))
