"""torch.distributed: the NCCL watchdog, its heartbeat monitor, desync reports, monitored barriers, collective
mismatches."""

from __future__ import annotations

import re

from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.logs.rendezvous import LOST_STORE
from trackside.model import Event, EventRole

ID = "c10d"

_TIMED_OUT_WORK = re.compile(r"Work\w{0,8}\((?P<fields>.{0,600}?)\) ran for (?P<ms>\d{1,12}) milliseconds")
_FIELD = re.compile(r"(SeqNum|OpType|Timeout\(ms\))=([\w.]{1,60})")
_RANK = re.compile(r"\bRank (\d{1,7})\]")
_GROUP = re.compile(r"\[PG (?:ID )?(\w{1,40})(?: PG GUID (?:\w{1,40})?(?:\(([\w.:-]{1,80})\))?| \(([\w.:-]{1,80})\))?")
_LAST_WORK = re.compile(
    r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,12})(?:, last started (?:NCCL )?work: -?\d{1,"
    r"12})?(?:, |\. )last completed (?:NCCL )?work: (-?\d{1,12})",
    re.IGNORECASE,
)
_AT_WORK = re.compile(
    r"(?:[Tt]imeout at (?:NCCL )?work(?: sequence id)?|detected by watchdog at work(?: sequence id)?):? (\d{1,12})"
)
_DESYNC = re.compile(
    r"\[(?P<ranks>[\d, .-]{1,2000})\] finished collective #(?P<done>\d{1,12}), but didn't join "
    r"collective #(?P<seq>\d{1,12})"
)
_NEVER_JOINED = re.compile(r"\[(?P<ranks>[\d, .-]{1,2000})\] (?:never joined|didn't join) (?:any|the first) collective")
_STUCK = re.compile(r"got stuck for (\d{1,8}) seconds")
MAX_LINES_AHEAD = 60
"""Lines after a timeout in which the same rank's "last enqueued, last completed" can follow."""


def _rank(line: Line) -> int | None:
    """The rank that a line names, else that of its label."""
    match = _RANK.search(line.full)
    return int(match[1]) if match else line.rank


def _group_name(text: str) -> str | None:
    """The process group's description, else its id; None if the line names none."""
    match = _GROUP.search(text)
    return (match[2] or match[3] or match[1]) if match else None


def _is_new(line: Line, key: object) -> bool:
    """Whether the key is new in this file: the same text is printed again inside exceptions and their chains."""
    keys: set[object] = line.notes(ID).setdefault("seen", set())
    if key in keys or len(keys) > 100_000:
        return False
    keys.add(key)
    return True


def _last_work(line: Line, rank: int | None) -> tuple[int, int] | None:
    """(last enqueued, last completed) that the rank prints on this line or soon after."""
    match = _LAST_WORK.search(line.text)
    if match is None:
        for neighbor in line.following(MAX_LINES_AHEAD):
            if (
                "ast enqueued" in neighbor.text
                and _rank(neighbor) == rank
                and (match := _LAST_WORK.search(neighbor.text))
            ):
                break
    return (int(match[1]), int(match[2])) if match else None


PARSER = Parser(ID, "torch.distributed watchdog and debug reports", "system")


@PARSER.pattern(
    rb"Watchdog caught collective operation timeout: Work",
    safety="The rank that times out was waiting for another: always a cascade. Repeats of it inside exceptions are "
    "not counted.",
    matches=(
        (
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, "
            "Timeout(ms)=1800000) ran for 1808499 milliseconds before timing out."
        ),
        (
            "[rank3]:[E ProcessGroupNCCL.cpp:523] [Rank 3] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1234, OpType=ALLREDUCE, NumelIn=1, NumelOut=2, Timeout(ms)=600000) ran for "
            "600042 milliseconds before timing out."
        ),
        (
            "[rank1]:[E1003 18:37:01.832146912 ProcessGroupNCCL.cpp:607] [PG ID 0 PG GUID 0(default_pg) "
            "Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, "
            "OpType=_ALLGATHER_BASE, NumelIn=5, NumelOut=9, Timeout(ms)=1800000) ran for 1800017 "
            "milliseconds before timing out."
        ),
        (
            "[E ProcessGroupNCCL.cpp:828] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, TensorShape=[1], Timeout(ms)=1800000) ran for 1804000 "
            "milliseconds before timing out."
        ),
    ),
    avoids=("Watchdog caught collective operation timeout: Work of another library",),
)
def _timeout(line: Line) -> Event | None:
    match = _TIMED_OUT_WORK.search(line.text)
    exits.note_watchdog_abort(line)
    fields = dict(_FIELD.findall(match["fields"])) if match else {}
    rank = _rank(line)
    seq = int(fields["SeqNum"]) if fields.get("SeqNum", "").isdigit() else None
    if match is None or not _is_new(line, (rank, seq, fields.get("OpType"), match["ms"])):
        return None
    last = _last_work(line, rank)
    limit = fields.get("Timeout(ms)", "")
    return line.event(
        "collective_timeout",
        EventRole.CASCADE,
        rank=rank,
        op=fields.get("OpType"),
        seq=seq,
        timeout_s=int(limit) / 1000 if limit.isdigit() else None,
        elapsed_s=int(match["ms"]) / 1000,
        last_enqueued=last[0] if last else None,
        last_completed=last[1] if last else None,
        group=_group_name(line.full),
        backend="nccl",
    )


@PARSER.pattern(
    rb"ast enqueued (NCCL )?work: -?[0-9]",
    _LAST_WORK,
    safety="A rank's own position; if enqueued equals completed, it never entered the collective that the others "
    "wait in.",
    matches=(
        (
            "[PG 0 (default_pg) Rank 1] Timeout at NCCL work: 6463, last enqueued NCCL work: 6463, last "
            "completed NCCL work: 6462."
        ),
        (
            "[PG ID 0 PG GUID 0(default_pg) Rank 2] failure detected by watchdog at work sequence id: 9 "
            "PG status: last enqueued work: 9, last completed work: 8"
        ),
        (
            "[PG ID 0 PG GUID 0 Rank 0] Received a dump signal due to a collective timeout from rank 1 "
            "and we will try our best to dump the debug info. Last enqueued NCCL work: 5, last completed "
            "NCCL work: 5."
        ),
    ),
    avoids=("last enqueued work: none",),
)
def _collective_position(line: Line, match: re.Match[str]) -> Event | None:
    """The rank's own position in its collectives; it may not have timed out itself."""
    rank, group = _rank(line), _group_name(line.full)
    enqueued, completed = int(match[1]), int(match[2])
    at_work = _AT_WORK.search(line.text)
    if not _is_new(line, ("position", rank, group, enqueued, completed)):
        return None
    return line.event(
        "collective_state",
        EventRole.CASCADE,
        rank=rank,
        last_enqueued=enqueued,
        last_completed=completed,
        seq=int(at_work[1]) if at_work else None,
        group=group,
        backend="nccl",
    )


@PARSER.pattern(
    rb"(taking the entire process down|Some NCCL operations have failed or timed out|watchdog "
    rb"thread terminated with exception)",
    safety="Teardown: the watchdog sends the SIGABRT that follows.",
    matches=(
        "[rank0]:[E ProcessGroupNCCL.cpp:543] To avoid data inconsistency, we are taking the entire process down.",
        (
            "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA "
            "kernels, subsequent GPU operations might run on corrupted/incomplete data."
        ),
        (
            "[PG 0 (default_pg) Rank 1] Process group watchdog thread terminated with exception: NCCL "
            "error: remote process exited"
        ),
    ),
    avoids=("taking the whole process down to stdout",),
)
def _abort(line: Line) -> Event | None:
    exits.note_watchdog_abort(line)
    if not _is_new(line, ("abort", _rank(line), line.label)):
        return None
    return line.event(
        "signal_received", EventRole.TEARDOWN, rank=_rank(line), signal=6, signal_name="SIGABRT", by="NCCL watchdog"
    )


@PARSER.pattern(
    rb"(Heartbeat monitor timed out! |watchdog got stuck for [0-9]{1,8} seconds)",
    safety="A stuck watchdog is a symptom: CUDA or NCCL hangs, or a thread holds the GIL.",
    matches=(
        (
            "[rank25]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 25] Heartbeat monitor timed out! Process "
            "will be terminated after dumping debug info. workMetaList_.size()=2"
        ),
        (
            "[PG 0 Rank 25] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making "
            "progress in monitoring enqueued collectives."
        ),
    ),
    avoids=("the watchdog got stuck for a while",),
)
def _lost_heartbeat(line: Line) -> Event | None:
    exits.note_watchdog_abort(line)
    match = _STUCK.search(line.text)
    subject = "watchdog stuck" if match else "heartbeat monitor"
    if not _is_new(line, (subject, _rank(line), line.label)):
        return None
    return line.event(
        "heartbeat_lost", EventRole.CASCADE, rank=_rank(line), what=subject, seconds=int(match[1]) if match else None
    )


@PARSER.pattern(
    rb"(failed to send a keep-alive heartbeat|since they had no heartbeat)",
    r"failed to send a keep-alive heartbeat to the rendezvous|had no heartbeat|no heartbeat from",
    safety="This agent lost its peers: look at the other node.",
    matches=(
        (
            "The node 'n2_815_0' has failed to send a keep-alive heartbeat to the rendezvous '42' due to "
            "an error of type RendezvousConnectionError."
        ),
        (
            "As part of the sync operation the node(s) n3_1_0 have been removed from the rendezvous '42' "
            "since they had no heartbeat."
        ),
    ),
    avoids=("failed to send a keep-alive heartbeat to the coffee machine",),
)
def _lost_keepalive(line: Line, _: re.Match[str]) -> Event:
    line.notes(LOST_STORE)["lost"] = True
    return line.event("heartbeat_lost", EventRole.CASCADE, what="rendezvous keep-alive")


@PARSER.pattern(
    rb"Detected mismatch between collectives on ranks",
    safety="The job's own ranks ran different collectives: a root cause.",
    matches=(
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE), but Rank 2 is running "
            "collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLGATHER)."
        ),
    ),
    avoids=("no mismatch between collectives on ranks",),
)
def _collective_mismatch(line: Line) -> Event:
    text = line.text[line.text.find("Detected mismatch") :]
    return line.event("collective_mismatch", EventRole.ROOT, rank=_rank(line), detail=text[:1000])


@PARSER.pattern(
    rb"failed to pass monitoredBarrier in [0-9]",
    r"Ranks? (?P<ranks>[\d, ]{1,2000}) failed to pass monitoredBarrier in (?P<ms>\d{1,12}) ms",
    safety="Names the ranks that did not arrive; the rank that reports them is not at fault.",
    matches=(
        "RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms",
        "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 300000 ms",
    ),
    avoids=("all passed: none failed to pass monitoredBarrier in 2 tries",),
)
def _barrier_timeout(line: Line, match: re.Match[str]) -> Event | None:
    ranks = ",".join(re.findall(r"\d+", match["ranks"]))
    if not _is_new(line, ("barrier", ranks, match["ms"])):
        return None
    seconds = int(match["ms"]) / 1000
    return line.event(
        "collective_timeout",
        EventRole.CASCADE,
        rank=_rank(line),
        op="BARRIER",
        timeout_s=seconds,
        elapsed_s=seconds,
        backend="gloo",
        missing_ranks=ranks,
    )


@PARSER.pattern(
    rb"\] (finished collective #[0-9]{1,12}, but didn't join|never joined|didn't join)",
    safety="The TORCH_DISTRIBUTED_DEBUG report names the ranks that lag.",
    matches=("  - [1] finished collective #12, but didn't join collective #13 (count from 1)",),
    avoids=("  - [0] joined but didn't finish collective #13 (count from 1)", "[bob] didn't join the call"),
)
def _desync_report(line: Line) -> Event | None:
    match = _DESYNC.search(line.text) or _NEVER_JOINED.search(line.text)
    if match is None:
        return None
    group = match.groupdict()
    ranks = ",".join(re.findall(r"\d+", group["ranks"]))
    seq = int(group["seq"]) if group.get("seq") else None
    if not _is_new(line, ("desync", ranks, seq)):
        return None
    return line.event(
        "collective_timeout",
        EventRole.CASCADE,
        rank=_rank(line),
        seq=seq,
        last_completed=int(group["done"]) if group.get("done") else None,
        backend="nccl",
        missing_ranks=ranks,
    )
