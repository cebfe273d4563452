"""Parses the cgroup path of a process: Slurm job and step, container, Kubernetes pod."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_V1 = re.compile(
    rb":(?P<controllers>[^:\n]*):[^\n]*?/slurm(?:_(?P<node>[\w.-]+))?/uid_\d{1,10}/job_(?P<job>\d{1,10})"
    rb"(?:/step_(?P<step>\w{1,20}))?(?:/task_(?P<task>\d{1,7}))?"
)
_V2 = re.compile(rb"/(?:(?P<node>[\w.-]+)_)?slurmstepd\.scope/job_(?P<job>\d{1,10})(?:/step_(?P<step>\w{1,20}))?")
"""A Slurm built for several slurmd per host, such as Debian's, puts the node's name first."""
_CONTAINER = re.compile(rb"(?:^|[/:-])(?P<id>[0-9a-f]{64})(?:\.scope)?(?=/|\n|\Z)", re.MULTILINE)
_POD = re.compile(rb"[/-]pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?/")
_STEPS = {
    "4294967290": "interactive", "4294967291": "batch", "4294967292": "extern",
    "4294967294": "batch", "4294967295": "extern",
}  # fmt: skip
"""Names of special steps by their numbers in Slurm 20.11 and later, and in earlier versions."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The contents of a cgroup path; None where it has none. ``node``: node of the slurmd, if several share a host.
    ``job``: Slurm's numeric id, also of an array task. ``task``: task number in the whole step."""

    job: str | None = None
    step: str | None = None
    task: int | None = None
    node: str | None = None
    container: str | None = None
    pod: str | None = None


NOTHING = Membership()
_USERS = re.compile(rb"/user\.slice/|/user@\d")
"""Below these paths users can create cgroups with any name."""


@lru_cache(maxsize=4096)
def membership(text: bytes) -> Membership:
    """Parse ``/proc/PID/cgroup``, with cgroups v1, v2 or both."""
    job, step, node = _slurm(text)
    container, pod = _CONTAINER.search(text), _POD.search(text)
    if job is None and container is None and pod is None:
        return NOTHING
    return Membership(
        job=job,
        step=step,
        task=_task(text),
        node=node,
        container=container["id"].decode() if container else None,
        pod=pod["uid"].decode().replace("_", "-") if pod else None,
    )


def step_name(step: str) -> str:
    """A step as Slurm's records name it."""
    return _STEPS.get(step, step)


def _slurm(text: bytes) -> tuple[str | None, str | None, str | None]:
    """Job, step and node; from the hierarchy with the most detail."""
    matches = [
        match for match in (*_V1.finditer(text), *_V2.finditer(text)) if not _is_in_user_slice(text, match.start("job"))
    ]
    best = max(matches, key=lambda match: match["step"] is not None, default=None)
    if best is None:
        return None, None, None
    step, node = best["step"], best["node"]
    return best["job"].decode(), step_name(step.decode()) if step else None, node.decode() if node else None


def _is_in_user_slice(text: bytes, offset: int) -> bool:
    """Whether an offset in the text is below a slice of users."""
    return _USERS.search(text, text.rfind(b"\n", 0, offset) + 1, offset) is not None


def _task(text: bytes) -> int | None:
    """The task number, from cgroups v1 and only its cpuacct hierarchy: the others count tasks from 0 on each node."""
    for match in _V1.finditer(text):
        if (
            match["task"]
            and not _is_in_user_slice(text, match.start("job"))
            and b"cpuacct" in match["controllers"].split(b",")
        ):
            return int(match["task"])
    return None
