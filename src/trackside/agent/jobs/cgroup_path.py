"""What the path of a cgroup says of a process: Slurm's job and step, a container, Kubernetes' pod."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_V1 = re.compile(
    rb":(?P<controllers>[^:\n]*):[^\n]*?/slurm(?:_(?P<node>[\w.-]+))?/uid_\d{1,10}/job_(?P<job>\d{1,10})"
    rb"(?:/step_(?P<step>\w{1,20}))?(?:/task_(?P<task>\d{1,7}))?"
)
_V2 = re.compile(rb"/(?:(?P<node>[\w.-]+)_)?slurmstepd\.scope/job_(?P<job>\d{1,10})(?:/step_(?P<step>\w{1,20}))?")
"""A Slurm that was built for several slurmd on a host, as Debian's is, puts the node's name before."""
_CONTAINER = re.compile(rb"(?:^|[/:-])(?P<id>[0-9a-f]{64})(?:\.scope)?(?=/|\n|\Z)", re.MULTILINE)
_POD = re.compile(rb"[/-]pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?/")
_STEPS = {
    "4294967290": "interactive", "4294967291": "batch", "4294967292": "extern",
    "4294967294": "batch", "4294967295": "extern",
}  # fmt: skip
"""Numbers that stand for steps without one: since 20.11, and before."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What is told; None for what is not. ``node``: of the slurmd, where several share a host. ``job``: Slurm's own
    number, that of an array's task too. ``task``: the number over the whole step."""

    job: str | None = None
    step: str | None = None
    task: int | None = None
    node: str | None = None
    container: str | None = None
    pod: str | None = None


NOTHING = Membership()
_USERS = re.compile(rb"/user\.slice/|/user@\d")
"""Below it users make cgroups of whatever name."""


@lru_cache(maxsize=4096)
def membership(text: bytes) -> Membership:
    """What ``/proc/PID/cgroup`` holds, of either version of cgroups or both."""
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
    """A step as its records have it."""
    return _STEPS.get(step, step)


def _slurm(text: bytes) -> tuple[str | None, str | None, str | None]:
    """Job, step and node; of several hierarchies the one that tells most."""
    told = [each for each in (*_V1.finditer(text), *_V2.finditer(text)) if not _is_users(text, each.start("job"))]
    found = max(told, key=lambda each: each["step"] is not None, default=None)
    if found is None:
        return None, None, None
    step, node = found["step"], found["node"]
    return found["job"].decode(), step_name(step.decode()) if step else None, node.decode() if node else None


def _is_users(text: bytes, place: int) -> bool:
    """Whether what stands at a place lies below a slice of users."""
    return _USERS.search(text, text.rfind(b"\n", 0, place) + 1, place) is not None


def _task(text: bytes) -> int | None:
    """Of version 1, and there of the accounting's hierarchy alone: the others count tasks from 0 on each node."""
    for found in _V1.finditer(text):
        if found["task"] and not _is_users(text, found.start("job")) and b"cpuacct" in found["controllers"].split(b","):
            return int(found["task"])
    return None
