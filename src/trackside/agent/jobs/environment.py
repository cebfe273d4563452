"""What the environment of a process says of it: job, step, task, the rank in the training, the GPUs it may see."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trackside.agent.jobs.cgroup_path import Membership, step_name
from trackside.agent.owners import Owner
from trackside.catalog.streams import short

_NAMES = """
SLURM_JOB_ID SLURM_JOBID SLURM_STEP_ID SLURM_STEPID SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_STEP_NUM_TASKS
SLURM_NODEID SLURM_JOB_NUM_NODES SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID
SLURM_JOB_USER SLURM_JOB_NAME SLURM_JOB_GPUS SLURM_STEP_GPUS SLURM_RESTART_COUNT SLURMD_NODENAME
RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT
TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT
OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE PMIX_RANK PMI_RANK PMI_SIZE
CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING
"""
NAMES = {name.encode(): name for name in _NAMES.split()}
_PART = "SLURM_JOB_ID_HET_GROUP_"
"""Before the numbers of a job's parts: all of them have ``SLURM_JOB_ID`` from the first."""
FAMILIES = (b"NCCL_", b"TORCH_NCCL_", b"TORCH_FR_", _PART.encode())
"""And all whose names begin so."""
_ITEM = re.compile(
    rb"\0((?:SLURMD_NODE|SLURM_(?:JOB|STEP|PROC|LOCAL|NTASK|NODEID|ARR|REST)|RANK|LOCAL_|WORLD_|GROUP_R|MASTER_|"
    rb"TORCH|OMPI_COMM|PMI|CUDA_|NCCL_)[^=\0]{0,80})=([^\0]{0,4096})"
)
"""One that may be among them: this is most of what reading a process costs."""
MOST_FAMILY = 128
"""Variables of :data:`FAMILIES`."""
MOST_KEPT = 8 << 10
"""Characters of all that is kept of a process: a job may give each of thousands half a megabyte."""
_USER = re.compile(r"[\w.@+-]{1,64}")
_ID = re.compile(r"[0-9]{1,10}\Z")
_RANKS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
    ("PMI_RANK", "SLURM_LOCALID", "PMI_SIZE"),
)
"""Where launchers write rank, local rank and world, the one that trainers read first."""
_BY_LAUNCHER = 2
"""So many of them are set by a launcher for each process that it starts."""


def variables(data: bytes) -> dict[str, str]:
    """Those variables of ``/proc/PID/environ`` that are asked for, the first of a name."""
    found: dict[str, str] = {}
    families, left = 0, MOST_KEPT
    for item in _ITEM.finditer(b"\0" + data):
        name, value = item.groups()
        if name not in NAMES:
            families += 1
            if not name.startswith(FAMILIES) or families > MOST_FAMILY:
                continue
        if len(name) + len(value) > left:
            continue
        left -= len(name) + len(value)
        found.setdefault(NAMES.get(name) or name.decode("ascii", "replace"), value.decode("utf-8", "replace"))
    return found


def is_elsewhere(member: Membership, environ: Mapping[str, str], node: str) -> bool:
    """Whether it is another node's: several may have one kernel."""
    told = member.node or environ.get("SLURMD_NODENAME") or node
    return told != node and short(told) != short(node)


def job_number(member: Membership, environ: Mapping[str, str]) -> str | None:
    """Slurm's number of the job. The cgroup's word holds: an environment goes wherever a user takes it, and counts
    only where Slurm started the process on this node, or a container keeps its cgroup from telling."""
    if member.job is not None:
        return member.job
    number = _id(environ, "SLURM_JOB_ID") or _id(environ, "SLURM_JOBID")
    told = number not in (None, "0") and ("SLURMD_NODENAME" in environ or member.container is not None)
    return number if told else None


def job_id(number: str, environ: Mapping[str, str]) -> str | None:
    """A job as users write it: ``60_3`` for a task of an array, ``73+1`` for a part of a job; None where the
    environment is another job's, or tells nothing. Numbers rise, so neither can be of a job that came later."""
    if (first := environ.get(f"{_PART}0")) is not None and _is_before(first, number):
        parts = {value: name[len(_PART) :] for name, value in environ.items() if name.startswith(_PART)}
        if number in parts:
            return f"{first}+{parts[number]}"
    if number not in (environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOBID")):
        return None
    array, task = _id(environ, "SLURM_ARRAY_JOB_ID"), _id(environ, "SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task and _is_before(array, number) else number


def _is_before(first: str, number: str) -> bool:
    return _ID.match(first) is not None and int(first) <= int(number)


def is_ranked(environ: Mapping[str, str]) -> bool:
    """Whether a launcher told this process its rank, so that what started it has none."""
    return any(_whole(environ, names[0]) is not None for names in _RANKS[:_BY_LAUNCHER])


def owner_of(member: Membership, environ: Mapping[str, str], number: str | None, job: str | None) -> Owner:
    """Whose a process is. ``number``, ``job``: as :func:`job_number` has it, and as users write it."""
    if number is not None and job_id(number, environ) is None:
        environ = {}  # it was taken along from another job
    told = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID"))
    step = member.step or (step_name(told) if told else None)
    # A batch script has SLURM_PROCID=0 as well, and is no task.
    is_task = step is not None and step.isdecimal()
    task = _whole(environ, "SLURM_PROCID") if is_task else None
    task = member.task if task is None and is_task else task
    rank, local_rank, world = _rank(environ, task)
    return Owner(
        job=job,
        step=step,
        task=task,
        rank=rank,
        local_rank=local_rank,
        world_size=world,
        user=_user(environ),
        container=member.container,
        pod=member.pod,
    )


def _user(environ: Mapping[str, str]) -> str | None:
    name = environ.get("SLURM_JOB_USER", "")
    return name if _USER.fullmatch(name) else None


def visible(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """What ``CUDA_VISIBLE_DEVICES`` holds; nothing after the first that can be none, as CUDA has it."""
    told = environ.get("CUDA_VISIBLE_DEVICES")
    if told is None:
        return None
    found: list[str] = []
    for part in told.split(",")[:64]:
        name = part.strip().strip("'\"")
        if not re.fullmatch(r"[0-9]{1,3}|(?:GPU|MIG)-[0-9a-zA-Z/-]{1,80}", name):
            break
        found.append(name)
    return tuple(found)


def sure_gpus(environ: Mapping[str, str], seen: tuple[str, ...] | None) -> frozenset[str]:
    """The GPUs, as the node counts them, that a process may use; empty where that can't be told.

    Slurm's lists have the node's numbers. ``CUDA_VISIBLE_DEVICES`` has too, unless the device cgroup hides the other
    GPUs: then it counts the step's own from 0. Where one list can be read both ways, none is taken.
    """
    given = slurm_gpus(environ)
    if seen is None:
        return frozenset()
    if not given or not all(name.isdecimal() for name in seen):
        return frozenset(seen)
    numbers = [int(name) for name in seen]
    as_given = all(name in given for name in seen)
    in_order = sorted(given, key=int)
    as_counted = [in_order[number] for number in numbers if number < len(in_order)]
    if len(as_counted) < len(numbers):
        return frozenset(seen) if as_given else frozenset()
    if as_given and set(as_counted) != set(seen):
        return frozenset()
    return frozenset(as_counted)


def slurm_gpus(environ: Mapping[str, str]) -> frozenset[str]:
    """The numbers of the GPUs that the step, else the job, has on this node."""
    told = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    return frozenset(part for part in told.split(",")[:64] if part.isdecimal() and len(part) <= 3)


def _rank(environ: Mapping[str, str], task: int | None) -> tuple[int | None, int | None, int | None]:
    for names in _RANKS:
        rank = _whole(environ, names[0])
        if rank is not None:
            return rank, _whole(environ, names[1]), _whole(environ, names[2])
    if task is None:
        return None, None, None
    world = _whole(environ, "SLURM_STEP_NUM_TASKS")
    return task, _whole(environ, "SLURM_LOCALID"), _whole(environ, "SLURM_NTASKS") if world is None else world


def _whole(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name)
    return int(value) if value is not None and len(value) <= 7 and value.isdecimal() else None


def _id(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(name)
    return value if value is not None and _ID.match(value) else None
