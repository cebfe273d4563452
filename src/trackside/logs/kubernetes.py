"""Kubernetes and Docker: why a container or pod ended, as their tools show it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trackside.logs import exits
from trackside.logs.job_report import notice
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

REASONS: Mapping[str, str] = {
    "DeadlineExceeded": "time_limit",
    "Preempted": "preemption",
    "Preempting": "preemption",
    "PreemptionByScheduler": "preemption",
    "NodeShutdown": "preemption",
    "Shutdown": "preemption",
    "Terminated": "preemption",
    "TaintManagerEviction": "preemption",
    "DeletionByTaintManager": "preemption",
    "NodeLost": "node_failure",
    "NodeNotReady": "node_failure",
    "NodeNotAvailable": "node_failure",
    "Evicted": "preemption",
    "TerminationByKubelet": "preemption",
}
"""Reason of a pod's status, its DisruptionTarget condition, a job's condition or an event -> reason of a notice."""
_EVENT = re.compile(
    r"^\s{0,8}(?:\S{1,64}\s{1,20})?(?:\S{1,64}\s{1,20}(?:\(x\d{1,6} over \S{1,12}\)\s{1,20})?)?"
    r"(?:Normal|Warning)\s{1,40}(?P<reason>[A-Z]\w{3,40})\s{1,60}(?P<text>\S.{0,600})"
)
_STORAGE = re.compile(r"low on resource: (?:ephemeral-storage|inodes)|[Ee]phemeral (?:local )?storage usage exceeds")

PARSER = Parser("kubernetes", "Kubernetes and Docker", "system", planes=("log", "scheduler"))


def reason_of(reason: str | None, message: str = "") -> str | None:
    """The reason of the notice for a status, condition or event; None if it does not end a job from outside.

    A pod is evicted for lack of memory or disk on its node, which is not a preemption.
    """
    if reason == "Evicted" and "low on resource: memory" in message:
        return "out_of_memory"
    if reason == "Evicted" and _STORAGE.search(message):
        return "resource_limit"
    return REASONS.get(reason or "")


@PARSER.pattern(
    rb"OOMKilled",
    r'(?:Reason:\s{0,40}|\d/\d\s{1,40}|[Tt]erminated[:\s(]{1,20})OOMKilled\b|"OOMKilled": ?true',
    safety="Only as a container's state: the field's name alone, or false, says nothing.",
    matches=(
        "      Reason:       OOMKilled",
        "train-llama-0   0/1     OOMKilled   0          5m",
        '"OOMKilled": true,',
    ),
    avoids=('"OOMKilled": false,', "raise the limit if you see OOMKilled"),
)
def _oom_kill(line: Line, _: re.Match[str]) -> Event:
    return line.event("oom_kill", EventRole.ROOT, scope="container")


@PARSER.pattern(
    rb"(Normal|Warning)[ \t]{1,40}(DeadlineExceeded|Preempted|Evicted|NodeNotReady|NodeShutdown|TaintManagerEviction)[ \t]",
    _EVENT,
    safety="A row of the events table: type, reason, then the object or the reporting component.",
    matches=(
        "5m12s   Warning   Evicted   pod/train-0   The node was low on resource: memory. Threshold quantity: 100Mi",
        "  Normal   DeadlineExceeded  43s (x3 over 74s)  kubelet   Pod was active on the node longer than the specified deadline",
        "2m   Normal    Preempted   pod/train-1   Preempted by pod 5e1c on node gpu-3",
        "1s   Warning   DeadlineExceeded   job/train   Job was active longer than specified deadline",
    ),
    avoids=("Warning Evicted", "a Normal Preempted run"),
)
def _pod_event(line: Line, match: re.Match[str]) -> Iterator[Event]:
    reason = reason_of(match["reason"], match["text"])
    if reason == "resource_limit":
        yield line.event("storage_fault", EventRole.ROOT, reason="full")
    elif reason is not None and re.search(r"\b(?:pod|job|node)s?/|\bkubelet\b|-scheduler|-controller", match["text"]):
        yield from _end_events(line, reason)


@PARSER.pattern(
    rb"(Pod was active on the node longer than|Job was active longer than specified deadline|"
    rb"Pod was terminated in response to imminent node shutdown|The node was low on resource: )",
    r"(?P<limit>was active (?:on the node )?longer than (?:the )?specified deadline)"
    r"|(?P<shutdown>in response to imminent node shutdown)|(?P<low>The node was low on resource: \S+)",
    safety="The sentences of the kubelet and the job controller.",
    matches=(
        "Message:        Pod was active on the node longer than the specified deadline",
        "message: Pod was terminated in response to imminent node shutdown.",
    ),
    avoids=("The node was low on resource: see the dashboard",),
)
def _end_message(line: Line, match: re.Match[str]) -> Iterator[Event]:
    reason = reason_of("Evicted", match["low"]) if match["low"] else "time_limit" if match["limit"] else "preemption"
    if reason == "resource_limit":
        yield line.event("storage_fault", EventRole.ROOT, reason="full")
    elif reason is not None and (match["low"] is None or reason == "out_of_memory"):
        yield from _end_events(line, reason)


def _end_events(line: Line, reason: str) -> Iterator[Event]:
    """The events of a pod's end; a pod that was evicted for memory was on a node that had none left."""
    if reason == "out_of_memory":
        exits.note_ending(line, reason)
        yield line.event("oom_kill", EventRole.ROOT, scope="kubelet")
    else:
        yield from notice(line, reason)
