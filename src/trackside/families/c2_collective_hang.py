"""Collective hang.

Meaning
-------
The ranks had formed their group, then froze in a collective, in training or before the first step, because one rank
did not take part: it died, took another code path, waits for storage, or lost its network. A waiting rank spins, so
its GPU looks busy while no work is done.

What it looks like
------------------
NCCL's watchdog or gloo times out on some ranks; a peer's connection closes; or, without a watchdog, the log is
silent until the time limit. The rank at fault is the one that did not report an error: it printed no timeout, its
last enqueued collective is its last completed one, or it is missing from the others' reports. In metrics: no
launches and no collectives to the end while memory stays allocated; high engine activity with SM activity near
zero, or at the level of spinning; and the GPU that the others wait for idle, not sampled, or behind. Or, if the
ranks connected but completed no step: GPUs that are busy all the time and move no data. In stacks taken during
the hang (by the agent, or with py-spy): all ranks wait in one collective, at one line, except one.

Not this family when
--------------------
- The GPUs worked up to the end, or the pause is no longer than earlier ones from which the run recovered.
- SM activity or power fell equally on all GPUs without a log message: that may be lighter work.
- A rank raised an exception, was killed or ran out of memory: that is the cause, and the hang its consequence.
- The ranks never connected: that is a failed rendezvous.
- No rank's stack shows it waiting for others, or the run continued after its stacks were taken.
- The run evaluates, saves or compiles: these pause training, which then continues.

Impact
------
All GPUs stay allocated, and look busy, until a timeout or the time limit.

Do next
-------
Check the named rank: its log, its node, its data and storage. While it hangs, dump its stack (`py-spy dump --pid
PID`). Record the last collectives of each rank, so that the next hang shows which one is missing: `export
TORCH_NCCL_DUMP_ON_TIMEOUT=true TORCH_FR_BUFFER_SIZE=2000` (older PyTorch: `TORCH_NCCL_TRACE_BUFFER_SIZE=2000`).

What it cannot decide
---------------------
Why the rank was absent, if its host reports no reason and no stack of it was taken.

References
----------
- [PyTorch: Flight Recorder for stuck jobs](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html)
- [PyTorch: environment variables of ProcessGroupNCCL](https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html)
- [NCCL: troubleshooting](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html)
"""

from __future__ import annotations

from collections.abc import Sequence

from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe, all_missing, or_none
from trackside.facts.gpu.activity import MAX_CITED, GpuActivity, missing_activity
from trackside.facts.gpu.last_part import LastPart
from trackside.facts.gpu.stall_claims import Stall
from trackside.facts.gpus import gpus_of_ranks, nodes_of, ranks_of_gpus
from trackside.facts.logs.complaints import CollectiveComplaints
from trackside.facts.logs.ending import ENDED_WELL, Ending
from trackside.facts.logs.flight_records import FlightRecords
from trackside.facts.logs.hang_causes import HangCauses, MachineReport, Trigger
from trackside.facts.logs.hang_lead import HangLead
from trackside.facts.logs.hang_stacks import HangStacks
from trackside.facts.logs.silence import Silence
from trackside.facts.ranks import AbsentRanks
from trackside.facts.training.learning import last_logged
from trackside.family import Family
from trackside.finding import Action, Claim, Culprit, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Event, Run
from trackside.remedies import DUMP_STACKS, DUMP_STACKS_OF_RANK

STUCK_AT = Sentence("hung in a collective: the other ranks wait for one rank, which is stuck at {place}")
WAIT_FOR_ONE = Sentence("hung in a collective: the other ranks wait for one rank")
PAIR_STUCK_AT = Sentence("hung in a collective: one rank waits for the other, which is stuck at {place}")
PAIR_WAITS = Sentence("hung in a collective: one rank waits for the other")
WAIT_FOR_SOME = Sentence("hung in a collective: several ranks did not enter it")
HUNG = Sentence("hung in a collective")
FAILED_BETWEEN_RANKS = Sentence("failed in the communication between ranks")
LOST_CONNECTION = Sentence("a rank lost its connection to another")
FAILURE_ENDED_RUN = Sentence("an error in the communication between ranks ended the run; nothing shows that it hung")
STOPPED_AT_ONCE = Sentence(
    "several ranks fell silent, most likely in a collective",
    running="several ranks are silent, most likely in a collective",
)
ONLY_WAIT = Sentence(
    "the run hung in a collective: ranks that wait in it may look busy and do no work",
    running="the run hangs in a collective: ranks that wait in it may look busy and do no work",
)
USUALLY_STUCK = Sentence(
    "a run of several ranks that falls silent is usually stuck in a collective; GPUs that look busy then only wait"
)
RANK_UNKNOWN = Sentence("which rank did not enter the collective, and why")
ABSENCE_UNEXPLAINED = Sentence("why the rank did not enter the collective: nothing from its host shows it")
CLOSURE_UNEXPLAINED = Sentence("why the connection was lost: nothing from that rank or its host shows it")
FIND_LOST_RANK = Sentence(
    "find out why {place} ended or lost its network: read its own log and the kernel log of its node"
)
SHOW_KERNEL_LOG = (
    ShellCommand("ssh {node} 'journalctl -k | tail -n 200'"),
    ShellCommand("journalctl -k | tail -n 200"),
)
COMPARE_LOGS = Sentence(
    "compare the last lines of each rank's log; if the job hangs again, dump the stacks before the job ends",
    running="dump the stack of each rank while it hangs, compare the last lines of the logs, then cancel the job",
)
CHECK_RANK = Sentence(
    "find what {place} waited for: its log, data shard and storage; if the job hangs again, dump the stacks on that "
    "node",
    running="dump the stack of {place}, and check its log, data shard and storage",
)
CHECK_RANKS = Sentence(
    "find what {place} waited for: their logs, data shards and storage; if the job hangs again, dump the stacks",
    running="dump the stacks of {place}, and check their logs, data shards and storage",
)
CHECK_LINE = Sentence("read {place}: find what that rank waits for there, and why the rest did not get there")
FIND_SILENT_RANK = Sentence("find the rank that reported no error, and check its log and its node")
READ_BEFORE_ERROR = Sentence("read the lines before that error: the log shows a single process")
SHOW_KERNEL_STACKS = (
    ShellCommand("{on_node} sudo cat /proc/{pid}/stack"),
    ShellCommand("{node_shell} 'for p in {pids}; do sudo cat /proc/$p/stack; done'"),
)
CHECK_KERNEL_STACK = Sentence(
    "see where the process in state D waits in the kernel, and check that file system or driver"
)
RECORD_COLLECTIVES = Sentence(
    "record the last collectives of each rank with PyTorch's Flight Recorder, in the job script before torchrun or "
    "srun, so that the next hang shows which rank is missing"
)
RECORDER_SETTINGS = ShellCommand(
    "export TORCH_NCCL_DUMP_ON_TIMEOUT=true TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000"
)
"""The size of the Flight Recorder's buffer under its present name, and under the one of older PyTorch versions."""
IS_RENDEZVOUS_FAILURE = Sentence(
    "no collective had completed and no training step was logged: this is a rendezvous failure"
)
NO_TIMEOUT = Sentence("no timeout of a collective and no lost connection between ranks was recognized in the log")

SOME_STACKS_MISSING = "only the stacks of some ranks were taken"
LAST_PART_UNKNOWN = (
    "what the run did in its last part is unknown: the completed steps account for only part of its time"
)
NO_LOG_AND_NO_STALL = "no job log was given, and GPU activity does not show a hang"


def judge(
    run: Run, ending: Ending, silence: Silence, last: LastPart, causes: HangCauses,
    complaints: Maybe[CollectiveComplaints], flight: Maybe[FlightRecords], stacks: Maybe[HangStacks],
    activity: Maybe[GpuActivity], lead: Maybe[HangLead],
) -> Finding | Missing:  # fmt: skip
    """The strongest evidence leads; other evidence of the same is added, then the absent ranks and the reason."""
    if (missing := all_missing(complaints, flight, stacks, missing_activity(activity))) is not None:
        return missing
    if ending.completed is not None:
        return absent(ENDED_WELL(state=ending.completed))
    own_complaints, own_stacks = or_none(complaints), or_none(stacks)
    if own_complaints is not None and own_complaints.at_startup:
        return absent(IS_RENDEZVOUS_FAILURE(count=silence.signs["progress"].reduce("count")))
    if isinstance(lead, Missing):
        return _ruled_out(run, silence, last, own_complaints, own_stacks)
    own_stacks = own_stacks if own_stacks is not None and own_stacks.waiting else None
    absent_ranks, code_line, absent_claims = _absent_ranks(lead, own_stacks)
    ranks, gpus = _place_of(run, absent_ranks, lead.stall)
    machine = causes.machine
    trigger = causes.trigger(ranks) if machine is None else None
    last_point, stall = last.points[-1:], lead.stall
    cause = machine or trigger  # comes first, then who is absent, then that nothing moves
    shows = [] if cause is None else [*cause.claims]
    shows += [*lead.claims, *absent_claims] if lead.of_collective else [*absent_claims]
    shows += [*(stall.claims if stall is not None else ()), *(() if lead.of_collective else lead.claims)]
    if last_point and (lead.row is not last_point[0] or stall is not None):
        shows.append(last_logged(silence.signs["progress"], last_point[0]))
    own_work = stall is not None and stall.sign == "computing" and set(gpus) == set(stall.outliers)
    because = cause is not None or own_work or code_line is not None
    is_known = because or bool(ranks or gpus)
    reported = own_complaints is not None and bool(own_complaints.rows)
    witnesses = (lead.absent_ranks, machine, stall, own_stacks)
    is_collective = lead.of_collective or any(witness is not None for witness in witnesses)
    raised_only = own_complaints is not None and own_complaints.raised_only
    lost_only = own_complaints is not None and own_complaints.lost_only
    lost_only = (
        lost_only and trigger is None and not any(witness is not None for witness in (machine, stall, own_stacks))
    )
    failed = raised_only and trigger is None and not any(witness is not None for witness in witnesses)
    place, is_one = _awaited(ranks, gpus, shows)
    return present(
        lead.certainty,
        _culprit(lead, machine, trigger, own_work or code_line is not None),
        shows,
        headline=LOST_CONNECTION()
        if lost_only
        else FAILED_BETWEEN_RANKS()
        if failed
        else _headline(run, is_collective, machine, trigger, code_line, max(len(ranks), len(gpus))),
        implies=[FAILURE_ENDED_RUN() if failed or lost_only else ONLY_WAIT() if is_collective else USUALLY_STUCK()],
        cannot_decide=[]
        if because
        else [CLOSURE_UNEXPLAINED()]
        if lost_only and ranks
        else [ABSENCE_UNEXPLAINED() if ranks or gpus else RANK_UNKNOWN()],
        actions=[
            action(READ_BEFORE_ERROR)
            if lead.of_collective and trigger is None and run.n_ranks == 1
            else action(FIND_LOST_RANK, *SHOW_KERNEL_LOG, place=place)
            if lost_only and causes.stuck_process is None and ranks and place is not None
            else _next_step(causes, trigger, code_line, (place, is_one), reported),
            *([action(RECORD_COLLECTIVES, RECORDER_SETTINGS)] if isinstance(flight, Missing) and not is_known else []),
        ],
        since=_since(lead, last_point),
        at=None if lead.row is None else lead.row.at,
        ranks=ranks,
        gpus=gpus,
        nodes=nodes_of(gpus),
        exception=None if own_complaints is None else own_complaints.exception,
    )


def _ruled_out(
    run: Run, silence: Silence, last: LastPart, complaints: CollectiveComplaints | None, stacks: HangStacks | None
) -> Finding | Missing:
    """Why there is no evidence of a hang, and whether that is enough to rule it out."""
    if stacks is not None and stacks.covers_all_ranks(run):
        return absent(*stacks.claims)
    partial = stacks is not None and 0 < len(stacks.ranks) < (run.n_ranks or 2)
    if last.working is not None:
        return Missing(SOME_STACKS_MISSING) if partial else absent(last.working)
    if complaints is None:
        return Missing(NO_LOG_AND_NO_STALL)
    if last.ended_from_outside and not last.has_exception and silence.several_ranks and silence.unaccounted is not None:
        return Missing(LAST_PART_UNKNOWN)
    return (
        Missing(SOME_STACKS_MISSING)
        if partial
        else absent(NO_TIMEOUT(count=complaints.frames["timeouts"].reduce("count")))
    )


# -- the absent ranks and the owner


def _absent_ranks(lead: HangLead, stacks: HangStacks | None) -> tuple[AbsentRanks | None, Value | None, list[Claim]]:
    """(the absent ranks, their line of code if stacks agree, the claims about them)."""
    absent_ranks, code_line = lead.absent_ranks, None
    if stacks is None:
        return absent_ranks, None, [absent_ranks.claim] if absent_ranks is not None else []
    by_stacks, shows = stacks.absent_ranks, [*stacks.claims]
    absent_ranks = by_stacks if absent_ranks is None else absent_ranks
    if absent_ranks is not None and by_stacks is not None and set(by_stacks.ranks) & set(absent_ranks.ranks):
        code_line = stacks.code_line
        shows += stacks.lines(absent_ranks.ranks) if absent_ranks.claim != by_stacks.claim else []
    return absent_ranks, code_line, [*shows, absent_ranks.claim] if absent_ranks is not None else shows


def _place_of(
    run: Run, absent_ranks: AbsentRanks | None, stall: Stall | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ranks and GPUs that the others wait for: by the ranks' own reports, else by the GPUs."""
    if absent_ranks is not None:
        return absent_ranks.ranks, gpus_of_ranks(run, absent_ranks.ranks)
    return ((), ()) if stall is None else (ranks_of_gpus(run, stall.outliers), stall.outliers)


def _culprit(lead: HangLead, machine: MachineReport | None, trigger: Trigger | None, own_code: bool) -> Culprit:
    """Infrastructure if the machine reports a reason. The job if a rank reported why, if its stack shows its line of
    code, or if its GPU does other work. Otherwise open: code, data, storage, GPU or network may be the reason."""
    if machine is not None:
        return "infrastructure"
    return "job" if trigger is not None or own_code else lead.owner or "unknown"


def _headline(
    run: Run,
    is_collective: bool,
    machine: MachineReport | None,
    trigger: Trigger | None,
    code_line: Value | None,
    count: int,
) -> Claim:
    """The headline by the reason, if it is known: the machine's or the ranks' own. ``code_line``: where the awaited
    rank stays; ``count``: how many ranks the others wait for, 0 if unknown."""
    if not is_collective:
        return STOPPED_AT_ONCE()
    if (cause := machine or trigger) is not None:
        return cause.headline
    is_pair = run.n_ranks == 2
    if code_line is not None and count <= 1:
        return (PAIR_STUCK_AT if is_pair else STUCK_AT)(place=code_line)
    wait_for_one = PAIR_WAITS if is_pair else WAIT_FOR_ONE
    return (HUNG if count == 0 else wait_for_one if count == 1 else WAIT_FOR_SOME)()


def _awaited(ranks: Sequence[int], gpus: Sequence[str], shows: Sequence[Claim]) -> tuple[Value | None, bool]:
    """(the ranks or GPUs that the others wait for, in words; whether it is only one)."""
    if not ranks and not gpus:
        return None, False
    names: Sequence[object] = ranks or gpus
    nodes = nodes_of(gpus)
    what = ("rank" if ranks else "GPU") + ("s" if len(names) > 1 else "")
    on_nodes = f" on {', '.join(nodes)}" if ranks and 0 < len(nodes) <= MAX_CITED else ""
    listed = ", ".join(map(str, names[:MAX_CITED])) + (", ..." if len(names) > MAX_CITED else "")
    return derived(f"{what} {listed}{on_nodes}", *shows[0].values.values()), len(names) == 1


def _next_step(
    causes: HangCauses, trigger: Trigger | None, code_line: Value | None, awaited: tuple[Value | None, bool],
    reported: bool,
) -> Action:  # fmt: skip
    if causes.stuck_process is not None:
        return action(CHECK_KERNEL_STACK, *SHOW_KERNEL_STACKS)
    if trigger is not None:
        return trigger.remedy
    if code_line is not None:
        return action(CHECK_LINE, place=code_line)
    place, is_one = awaited
    if place is not None:
        return action(*((CHECK_RANK, *DUMP_STACKS_OF_RANK) if is_one else (CHECK_RANKS, *DUMP_STACKS)), place=place)
    return action(FIND_SILENT_RANK if reported else COMPARE_LOGS, *DUMP_STACKS)


def _since(lead: HangLead, last_point: tuple[Event, ...]) -> float | None:
    """When it began: by the lead, or by the line that it is based on, or by the GPUs if they stopped earlier."""
    since = lead.row.time if lead.since is None and lead.row is not None else lead.since
    if lead.stall is None:
        return since
    return lead.stall.since if since is None or lead.row in last_point else min(since, lead.stall.since)


FAMILY = Family(
    code="C2",
    id="collective-hang",
    title="Collective hang",
    example=("dead-loader-hang", "busy-wait"),
    judge=judge,
    explains=("F3", "H1", "H3"),
    rivals=("A2", "B2", "C1", "C3", "F1"),
    collect=(
        "every rank's output from all nodes, with timestamps",
        "Flight Recorder dumps (TORCH_FR_BUFFER_SIZE, formerly TORCH_NCCL_TRACE_BUFFER_SIZE, and "
        "TORCH_NCCL_DUMP_ON_TIMEOUT set)",
        "dmesg -T of the nodes (hung tasks, links)",
    ),
    cost_kind="stopped",
)
