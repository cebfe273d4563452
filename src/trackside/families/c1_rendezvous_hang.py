"""Rendezvous failure: the ranks never connected.

Meaning
-------
A job with several ranks stops before training because its ranks cannot find each other: the coordinator's name
does not resolve, nothing listens at its address, an interface or port is wrong, or a rank never started. No
collective ever completed.

What it looks like
------------------
Timeouts of the store, the rendezvous or NCCL's bootstrap at startup, "connection refused", names that do not
resolve, a port in use, two ranks with the same number or on the same GPU; or a distributed-init line and then
silence up to the time limit. A watchdog timeout in the first collective still counts as startup, unless the log says
that the process group came up. In metrics: the GPUs of all nodes idle from the start on, no more memory than a
context, no launch and no collective.

Not this family when
--------------------
- A rank crashed during its setup while the others waited for it: that is the crash at startup.
- A node failed first.
- Steps were logged: a later freeze is a collective hang.
- The log only warns of retries that succeeded.

Impact
------
The whole allocation on all nodes is idle until the timeout.

Do next
-------
While the job waits, check from every node that the coordinator's name resolves and its port responds (`getent hosts
HOST`, `nc -vz HOST PORT`), that one task per node (or GPU) runs with its own rank, and that the configured socket
interface connects the nodes (`ip -brief address`). Port in use: find who holds it (`ss -ltnp`), or use another.

What it cannot decide
---------------------
With a bare timeout: whether the cause is an unreachable coordinator, a firewall, DNS or a rank that was never
started.

References
----------
- [PyTorch: rendezvous](https://docs.pytorch.org/docs/stable/elastic/rendezvous.html)
- [NCCL: environment variables](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)
- [NCCL: troubleshooting](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trackside.evidence import Frame, Missing, Value, derived
from trackside.facts.fact import Maybe, all_missing, or_none
from trackside.facts.gpu.activity import GpuActivity, missing_activity
from trackside.facts.gpu.idle import IdleGpus
from trackside.facts.gpus import nodes_of, ranks_of_gpus
from trackside.facts.logs.complaints import CollectiveComplaints
from trackside.facts.logs.ending import ENDED_WELL, Ending, how_it_ended
from trackside.facts.logs.exceptions import Exceptions, earliest_first
from trackside.facts.logs.rendezvous_failures import (
    FIX_ADDRESS,
    FIX_INTERFACE,
    FIX_LOOPBACK,
    FIX_NAME,
    FIX_NETWORK,
    FIX_PEERS,
    FIX_PORT,
    FIX_RANKS,
    FIX_START,
    HEADLINES,
    NEVER_CONNECTED,
    REPORTED_BY,
    RendezvousFailures,
)
from trackside.facts.logs.silence import Silence
from trackside.facts.ranks import cited_ranks, ranks_of, world_size
from trackside.facts.training.learning import place_of
from trackside.family import Family
from trackside.finding import (
    Action,
    Certainty,
    Claim,
    Culprit,
    Finding,
    Sentence,
    ShellCommand,
    absent,
    action,
    present,
)
from trackside.model import Event, EventRole, Run

GPU_WORK = {
    "collectives": Sentence("{level} collectives completed, so the ranks had connected"),
    "launches": Sentence("{level} kernels were launched, so the ranks were past startup"),
    "sm": Sentence("SM activity rose to {level}, so the ranks were past startup"),
    "power": Sentence("a GPU drew {level}, so the ranks were past startup"),
}
SETUP_RAISED = Sentence("setting up the process group raised {type}: {message}")
FIRST_COLLECTIVE_TIMED_OUT = Sentence("the very first collective timed out: {line}")
TIMED_OUT_AFTER = Sentence("the ranks' first collective timed out after {seconds}")
FIRST_NEVER_COMPLETED = Sentence("the ranks' first collective did not complete, so training did not begin")
OTHER_LAUNCH_FAILED = Sentence("another launch in this log could not bind its port: {line}")
TRANSPORT_UNKNOWN = Sentence(
    "the cause: a transport between the GPUs that does not work (peer-to-peer, network, firewall), or a rank that did "
    "not enter the collective"
)
SHOW_TRANSPORT = Sentence(
    "rerun with NCCL's messages in the log: they show the interface and the transport that each rank uses; on a single "
    "node, try it without peer-to-peer transport, too"
)
SET_TRANSPORT = ShellCommand("export NCCL_DEBUG=INFO  # without peer-to-peer: export NCCL_P2P_DISABLE=1")
READ_TRANSPORT = Sentence(
    "read NCCL's messages in the log (NCCL INFO), which show the interface and the transport that each rank uses; on a "
    "single node, try it without peer-to-peer transport, too"
)
AVOID_PEER_TO_PEER = ShellCommand("export NCCL_P2P_DISABLE=1")
CONNECTING_BEGAN = Sentence("the ranks started to connect: {line}")
NOTHING_PRINTED = Sentence(
    "the job itself printed no line with a time in the last {seconds} of the run",
    running="the job has printed no line with a time for {seconds}",
)
NEVER_PRINTED = Sentence(
    "the job itself printed no line with a time during the whole run ({seconds})",
    running="the job has printed no line with a time since its start ({seconds})",
)
ONLY_THESE_STARTED = Sentence("only {ranks} printed a startup message")
NO_STEP_LOGGED = Sentence("no training step was logged")
GROUP_NEVER_FORMED = Sentence(
    "the ranks never formed their process group, so no training step was done",
    running="the ranks have not formed their process group, so no training step has been done",
)
CAUSE_UNKNOWN = Sentence(
    "the cause: an unreachable coordinator, a firewall, name resolution, or a rank that never started"
)
PROBE_ADDRESS = ShellCommand(
    "srun --jobid=NEW_JOB_ID --overlap --label --ntasks-per-node=1 nc -vz FIRST_NODE MASTER_PORT",
    running="srun --jobid={job} --overlap --label --ntasks-per-node=1 nc -vz FIRST_NODE MASTER_PORT",
)
SET_FIRST_NODE = ShellCommand('export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
SET_OWN_PORT = ShellCommand("export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))")
SHOW_INTERFACES = ShellCommand("srun --label --ntasks-per-node=1 ip -brief address")
SHOW_TASKS = ShellCommand("srun --label bash -c 'echo $(hostname): rank $SLURM_PROCID of $SLURM_NTASKS'")
COMMANDS = {
    FIX_NAME: (SET_FIRST_NODE,),
    FIX_ADDRESS: (SET_FIRST_NODE,),
    FIX_NETWORK: (PROBE_ADDRESS,),
    FIX_PORT: (SET_OWN_PORT,),
    FIX_INTERFACE: (SHOW_INTERFACES,),
    FIX_LOOPBACK: (SHOW_INTERFACES,),
    FIX_PEERS: (SHOW_INTERFACES,),
    FIX_START: (SHOW_TASKS,),
    FIX_RANKS: (SHOW_TASKS,),
}
"""Remedy -> the command of Slurm that applies or checks it, in the job script."""
USE_OTHER_PORT = Sentence(
    "another process, often an earlier run, uses the port on the first node: end it, or use another port (torchrun: "
    "--master-port, or --standalone on a single node)"
)
SHOW_OWN_PROCESSES = ShellCommand('pgrep -af -u "$USER" python')
FIND_PORT_HOLDER = Sentence(
    "another process, often an earlier run, uses the port on the first node: find it there with ss, which without sudo "
    "names only your own processes, and end it; or use another port (torchrun: --master-port, or --standalone on a "
    "single node)"
)
SHOW_PORT_HOLDER = ShellCommand("ss -ltnp | grep ':{port} '")
TRAINING_RAN = Sentence("training was running, so the ranks had connected: the log shows {point}")
GROUP_FORMED = Sentence("the process group came up: {line}")
NO_FAILED_RENDEZVOUS = Sentence("no failed rendezvous in the log")


@dataclass(frozen=True)
class StartupFacts:
    """The facts about a startup; None if not given."""

    run: Run
    ending: Ending
    silence: Silence
    failures: RendezvousFailures | None
    complaints: CollectiveComplaints | None
    exceptions: Exceptions
    activity: GpuActivity | None
    idle: IdleGpus | None
    """GPUs of several ranks that never worked."""

    @property
    def cold(self) -> tuple[Claim, ...]:
        """Evidence that the GPUs never worked."""
        return () if self.idle is None else self.idle.claims

    @property
    def timeouts(self) -> tuple[Event, ...]:
        """Collectives that timed out."""
        return () if self.complaints is None else self.complaints.frames["timeouts"].events

    @property
    def has_own_exception(self) -> bool:
        """Whether the run raised its own error."""
        return any(row.role is EventRole.ROOT for row in self.exceptions.frame.events)

    @property
    def work_claim(self) -> Claim | None:
        """GPU work or completed collectives: the group had formed, or was not needed."""
        activity = self.activity
        if activity is None or not activity.working_gpus.any():
            return None
        levels = ((sentence, activity.level(name, "max")) for name, sentence in GPU_WORK.items())
        return next((sentence(level=level) for sentence, level in levels if level is not None and level.value), None)


MAX_STARTUP_LINES_S = 900.0
"""Longest time in which ranks that wait for each other still print lines of their startup."""


@dataclass(frozen=True, slots=True)
class StartupLead:
    """The first evidence of a startup hang."""

    certainty: Certainty
    claims: tuple[Claim, ...]
    culprit: Culprit = "unknown"
    remedy: Sentence = FIX_NETWORK
    row: Event | None = None
    """The line that the lead is based on."""
    end: Value | None = None
    """How the run ended; required for certainty ESTABLISHED."""
    everywhere: bool = False
    """Whether all GPUs that stay idle are affected."""
    headline: Claim | None = None
    """The answer, if the failure names an address or who arrived; else by the remedy."""
    meaning: Sentence = GROUP_NEVER_FORMED
    open_question: Sentence = CAUSE_UNKNOWN


def judge(
    run: Run, ending: Ending, silence: Silence, failures: Maybe[RendezvousFailures],
    complaints: Maybe[CollectiveComplaints], exceptions: Exceptions, activity: Maybe[GpuActivity],
    idle: Maybe[IdleGpus],
) -> Finding | Missing:  # fmt: skip
    """Startup failures without a later group, collective or logged step; else GPUs that stay idle on all nodes, or
    silence after init."""
    if (missing := all_missing(failures, missing_activity(activity))) is not None:
        return missing
    progress = silence.signs["progress"]
    if silence.points:
        return absent(TRAINING_RAN(point=place_of(progress, silence.points[0])))
    if ending.completed is not None:
        return absent(ENDED_WELL(state=ending.completed))
    idle_gpus = or_none(idle)
    idle_gpus = idle_gpus if idle_gpus is not None and len(idle_gpus.activity.gpus) > 1 else None
    facts = StartupFacts(
        run, ending, silence, or_none(failures), or_none(complaints), exceptions, or_none(activity), idle_gpus
    )
    lead = next(_leads(facts), None)
    return _ruled_out(facts) if lead is None else _finding(facts, lead)


def _leads(facts: StartupFacts) -> Iterator[StartupLead]:
    """A reported failure; a startup exception; a timeout of the first collective; GPUs that stay idle; a silence."""
    failures, bad_end = facts.failures, facts.ending.abnormal
    if failures is not None and (failures.final or (failures.rows and bad_end is not None)):
        yield _failure_lead(facts, failures)
    if failures is not None and failures.startup_exceptions:
        row = failures.startup_exceptions[0]
        shows = (SETUP_RAISED(**facts.exceptions.values(row)), *facts.cold)
        yield StartupLead(Certainty.ESTABLISHED, shows, row=row, end=bad_end, everywhere=True)
    first = [row for row in facts.timeouts if row.get("seq") in (0, 1)]
    if first and len(first) == len(facts.timeouts) and facts.complaints is not None:
        yield _first_collective_lead(facts, facts.complaints.frames["timeouts"], first)
    if facts.silence.formed or facts.work_claim is not None or facts.has_own_exception:
        return
    ending, starts = facts.ending, facts.silence.starts
    open_end = ending.ended_from_outside or ending.state is None or failures is None
    if facts.idle is not None and open_end and not ending.ends:
        yield from _idle_lead(facts, facts.idle)
    is_waiting = facts.silence.several_ranks and not facts.timeouts and not _went_on(facts)
    if ending.ended_from_outside and starts and is_waiting:
        is_sure = facts.silence.stall is not None and bool(facts.silence.signs["inits"])
        shows = (*_start_claims(facts), *([] if ending.state is None else [how_it_ended(ending.state)]))
        yield _waiting_lead(facts, shows, Certainty.SUPPORTED if is_sure else Certainty.POSSIBLE, None)


def _went_on(facts: StartupFacts) -> bool:
    """Whether the job printed lines long after its ranks began to connect: then they did not wait for each other."""
    times = [row.time for row in facts.silence.starts if row.time is not None]
    return bool(times) and facts.silence.sign_after(max(times) + MAX_STARTUP_LINES_S) is not None


def _failure_lead(facts: StartupFacts, failures: RendezvousFailures) -> StartupLead:
    certainty = Certainty.ESTABLISHED if failures.final else Certainty.SUPPORTED
    shows, first = (*failures.claims, *facts.cold), earliest_first(failures.rows)[0]
    end, headline = facts.ending.abnormal, failures.headline
    return StartupLead(certainty, shows, *failures.remedy, first, end, everywhere=True, headline=headline)


def _first_collective_lead(facts: StartupFacts, timeouts: Frame, first: list[Event]) -> StartupLead:
    row, ranks, failures = first[0], cited_ranks(timeouts, first), facts.failures
    shows = [FIRST_COLLECTIVE_TIMED_OUT(line=timeouts.value(row, "text"))]
    shows += [] if ranks is None else [REPORTED_BY(ranks=ranks)]
    if failures is not None and failures.other_launches:
        shows.append(OTHER_LAUNCH_FAILED(line=failures.frame.value(failures.other_launches[0], "text")))
    waited = timeouts.value(row, "elapsed_s", "s") if row.get("elapsed_s") is not None else None
    return StartupLead(
        Certainty.SUPPORTED,
        tuple(shows),
        remedy=SHOW_TRANSPORT,
        row=row,
        end=facts.ending.abnormal,
        headline=None if waited is None else TIMED_OUT_AFTER(seconds=waited),
        meaning=FIRST_NEVER_COMPLETED,
        open_question=TRANSPORT_UNKNOWN,
    )


def _start_claims(facts: StartupFacts) -> list[Claim]:
    """The last logged start of a rank, and the silence after it."""
    silence, starts = facts.silence, facts.silence.starts
    frame = silence.signs["inits"] if silence.signs["inits"] else silence.hosts
    shows = [CONNECTING_BEGAN(line=frame.value(starts[-1], "text"))]
    if silence.stall is None:
        return shows
    seconds, elapsed = silence.stall[0], facts.ending.elapsed
    never = elapsed is not None and facts.ending.state is not None and seconds.number >= 0.99 * elapsed.number
    return [*shows, (NEVER_PRINTED if never else NOTHING_PRINTED)(seconds=seconds)]


def _idle_lead(facts: StartupFacts, idle: IdleGpus) -> Iterator[StartupLead]:
    """GPUs idle on all nodes for long enough: established if the log shows that the ranks had begun to connect."""
    if idle.seconds.number < facts.silence.limits.min_silence_s or not idle.forming:
        return
    state = facts.ending.state  # cold GPUs say enough of a run that still goes on
    if facts.silence.starts:
        connecting, *silence_claims = _start_claims(facts)
        shows, certainty = (connecting, *silence_claims, *idle.claims), Certainty.ESTABLISHED
    else:
        is_sure = idle.context_only is False or idle.attached
        shows, certainty = idle.claims, Certainty.SUPPORTED if is_sure else Certainty.POSSIBLE
    yield _waiting_lead(facts, shows, certainty, state, everywhere=True)


def _waiting_lead(
    facts: StartupFacts, shows: tuple[Claim, ...], certainty: Certainty, end: Value | None, everywhere: bool = False
) -> StartupLead:
    """Ranks that waited for others: for those that logged no start, if these are known."""
    inits, row = facts.silence.signs["inits"], next(iter(facts.silence.starts[-1:]), None)
    started = cited_ranks(inits, inits.events)
    world = max(world_size(facts.run, inits, facts.silence.hosts) or 0, len(facts.run.nodes))
    if started is None or not isinstance(started.value, tuple) or len(started.value) >= world:
        return StartupLead(certainty, shows, row=row, end=end, everywhere=everywhere)
    return StartupLead(certainty, (*shows, ONLY_THESE_STARTED(ranks=started)), "job", FIX_START, row, end)


def _ruled_out(facts: StartupFacts) -> Finding | Missing:
    """Why there is no evidence of a startup hang, and whether that is enough to rule it out."""
    if facts.silence.formed:
        ready, communicators = (facts.silence.signs[name] for name in ("ready", "communicators"))
        frame: Frame = ready if ready else communicators
        return absent(GROUP_FORMED(line=frame.value(frame.events[0], "text")))
    if facts.work_claim is not None:
        return absent(facts.work_claim)
    if facts.failures is None:
        lost = "no job log was given"
        return Missing(lost if facts.idle is None else f"{lost} that shows what the ranks waited for")
    return absent(NO_FAILED_RENDEZVOUS(count=facts.failures.frame.reduce("count")))


def _finding(facts: StartupFacts, lead: StartupLead) -> Finding:
    shows, certainty, row = [*lead.claims], lead.certainty, lead.row
    if lead.end is not None:
        end = None if facts.ending.state is not None else facts.ending.bad_end
        shows.append(how_it_ended(lead.end) if end is None else end)
    elif certainty is Certainty.ESTABLISHED:
        certainty = Certainty.SUPPORTED
    if not isinstance(facts.silence.trajectory, Missing):
        shows.append(NO_STEP_LOGGED(count=facts.silence.signs["progress"].reduce("count")))
    failed = [row for row in facts.exceptions.frame.events if row.get("about") == "rendezvous"]
    cold = facts.idle.activity.gpus if lead.everywhere and facts.idle is not None else ()
    same_rank = row is not None and row.get("reason") == "duplicate_rank"
    return present(
        certainty,
        lead.culprit,
        shows,
        headline=lead.headline or HEADLINES.get(lead.remedy, NEVER_CONNECTED)(),
        implies=[lead.meaning()],
        cannot_decide=[lead.open_question()] if lead.culprit == "unknown" else [],
        actions=[_remedy(facts, lead)],
        since=None if row is None else row.time,
        at=None if row is None else row.at,
        ranks=ranks_of([row]) if row is not None and same_rank else ranks_of_gpus(facts.run, cold),
        nodes=nodes_of(cold),
        exception=(str(failed[0].get("type")), str(failed[0].get("message") or "")) if failed else None,
    )


def _remedy(facts: StartupFacts, lead: StartupLead) -> Action:
    """What to change. Slurm's commands are of use in a job of Slurm only."""
    if lead.remedy is SHOW_TRANSPORT:
        if facts.silence.signs["communicators"]:  # NCCL prints them at the level INFO only
            return action(READ_TRANSPORT, AVOID_PEER_TO_PEER)
        return action(SHOW_TRANSPORT, SET_TRANSPORT)
    if facts.ending.by_slurm:
        return action(lead.remedy, *COMMANDS.get(lead.remedy, ()))
    if lead.remedy is not FIX_PORT:
        return action(lead.remedy)
    address = lead.headline.values.get("address") if lead.headline is not None else None
    port = re.search(r"\d{1,5}$", str(address.value)) if address is not None else None
    if address is None or port is None:
        return action(USE_OTHER_PORT, SHOW_OWN_PROCESSES)
    return action(FIND_PORT_HOLDER, SHOW_PORT_HOLDER, port=derived(port[0], address))


FAMILY = Family(
    code="C1",
    id="rendezvous-hang",
    title="Rendezvous failure: the ranks never connected",
    example=("rendezvous-timeout", "timeline"),
    judge=judge,
    explains=("C2", "C3", "F3", "H1", "H3"),
    rivals=("A1", "C2", "C3", "F1"),
    collect=(
        "every rank's and the launcher's output from all nodes",
        "NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=INFO output of one more try",
        "sacct -P -j JOB_ID --format=JobID,State,ExitCode,Start,End,NodeList",
    ),
    absence_based=True,
    cost_kind="stopped",
)
