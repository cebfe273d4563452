"""What a process's environment shows: job, step, task, rank in the training, visible GPUs."""

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
_HET_PREFIX = "SLURM_JOB_ID_HET_GROUP_"
"""Variables with the numbers of a heterogeneous job's components; ``SLURM_JOB_ID`` is the first component's in all of
them."""
PREFIXES = (b"NCCL_", b"TORCH_NCCL_", b"TORCH_FR_", _HET_PREFIX.encode())
"""Prefixes of further variables that are kept."""
_NAME_PATTERNS = [*NAMES, *(prefix + rb"[^=\0]{0,80}" for prefix in PREFIXES)]
_INITIALS = b"".join(sorted({pattern[:1] for pattern in _NAME_PATTERNS}))
_ITEM = re.compile(rb"\0(?=[%s])(%s)=([^\0]{0,4096})" % (_INITIALS, b"|".join(_NAME_PATTERNS)))
"""A variable that is kept, with the first 4,096 bytes of its value. Matching it is most of the cost of reading a
process, so other variables are rejected by their first letter."""
MAX_PREFIXED = 128
"""Maximum number of variables of :data:`PREFIXES`."""
MAX_CHARS = 8 << 10
"""Maximum characters kept per process: a job may give half a megabyte to each of thousands."""
_USER = re.compile(r"[\w.@+-]{1,64}")
_ID = re.compile(r"[0-9]{1,10}\Z")
_RANKS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
    ("PMI_RANK", "SLURM_LOCALID", "PMI_SIZE"),
)
"""Variables in which launchers set rank, local rank and world size, in the order in which trainers read them."""
_LAUNCHER_COUNT = 2
"""Number of the first entries of :data:`_RANKS`: those that a launcher sets for each process that it starts."""


def variables(data: bytes) -> dict[str, str]:
    """The variables of ``/proc/PID/environ`` that are kept; the first value of each name, cut to 4,096 bytes."""
    values: dict[str, str] = {}
    prefixed, chars_left = 0, MAX_CHARS
    for item in _ITEM.finditer(b"\0" + data):
        name, value = item.groups()
        if name not in NAMES:
            prefixed += 1
            if prefixed > MAX_PREFIXED:
                continue
        if len(name) + len(value) > chars_left:
            continue
        chars_left -= len(name) + len(value)
        values.setdefault(NAMES.get(name) or name.decode("ascii", "replace"), value.decode("utf-8", "replace"))
    return values


def is_elsewhere(member: Membership, environ: Mapping[str, str], node: str) -> bool:
    """Whether the process belongs to another node: several may share a kernel."""
    process_node = member.node or environ.get("SLURMD_NODENAME") or node
    return process_node != node and short(process_node) != short(node)


def job_number(member: Membership, environ: Mapping[str, str]) -> str | None:
    """Slurm's numeric job id. The cgroup decides: users can pass an environment anywhere, so it counts only if Slurm
    started the process on this node, or if a container hides the cgroup."""
    if member.job is not None:
        return member.job
    number = _id(environ, "SLURM_JOB_ID") or _id(environ, "SLURM_JOBID")
    is_trusted = number not in (None, "0") and ("SLURMD_NODENAME" in environ or member.container is not None)
    return number if is_trusted else None


def job_id(number: str, environ: Mapping[str, str]) -> str | None:
    """A job id as users write it: ``60_3`` for an array task, ``73+1`` for a component of a heterogeneous job. None if
    the environment is another job's or has no job. The first job's id must not be above this job's, because ids
    increase."""
    if (first_id := environ.get(f"{_HET_PREFIX}0")) is not None and _is_not_after(first_id, number):
        for name, value in environ.items():
            if name.startswith(_HET_PREFIX) and value == number:
                return f"{first_id}+{name.removeprefix(_HET_PREFIX)}"
    if number not in (environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOBID")):
        return None
    array, task = _id(environ, "SLURM_ARRAY_JOB_ID"), _id(environ, "SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task and _is_not_after(array, number) else number


def _is_not_after(first_id: str, number: str) -> bool:
    return _ID.match(first_id) is not None and int(first_id) <= int(number)


def is_ranked(environ: Mapping[str, str]) -> bool:
    """Whether a launcher set this process's rank; then the process that started it has none."""
    return any(_int(environ, names[0]) is not None for names in _RANKS[:_LAUNCHER_COUNT])


def process_job(member: Membership, environ: Mapping[str, str], number: str | None, job: str | None) -> Owner:
    """The job, step and rank of a process. ``number``: numeric id from :func:`job_number`; ``job``: id as users write
    it."""
    if number is not None and job_id(number, environ) is None:
        environ = {}  # it was inherited from another job
    step_id = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID"))
    step = member.step or (step_name(step_id) if step_id else None)
    # A batch script also has SLURM_PROCID=0 but is not a task.
    is_task = step is not None and step.isdecimal()
    task = _int(environ, "SLURM_PROCID") if is_task else None
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


def visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The entries of ``CUDA_VISIBLE_DEVICES`` up to the first invalid one, as CUDA reads them; None if it is not
    set."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    names: list[str] = []
    for part in value.split(",")[:64]:
        name = part.strip().strip("'\"")
        if not re.fullmatch(r"[0-9]{1,3}|(?:GPU|MIG)-[0-9a-zA-Z/-]{1,80}", name):
            break
        names.append(name)
    return tuple(names)


def certain_gpus(environ: Mapping[str, str], visible: tuple[str, ...] | None) -> frozenset[str]:
    """Node-wide numbers or UUIDs of the GPUs that a process may use; empty if they are ambiguous.

    Slurm's lists have node-wide numbers. So has ``CUDA_VISIBLE_DEVICES``, unless the device cgroup hides the other
    GPUs: then it counts the step's GPUs from 0. If both readings are possible and differ, neither is used.
    """
    allocated = slurm_gpus(environ)
    if visible is None:
        return frozenset()
    if not allocated or not all(name.isdecimal() for name in visible):
        return frozenset(visible)
    numbers = [int(name) for name in visible]
    is_node_wide = all(name in allocated for name in visible)
    allocated_in_order = sorted(allocated, key=int)
    by_position = [allocated_in_order[number] for number in numbers if number < len(allocated_in_order)]
    if len(by_position) < len(numbers):
        return frozenset(visible) if is_node_wide else frozenset()
    if is_node_wide and set(by_position) != set(visible):
        return frozenset()
    return frozenset(by_position)


def slurm_gpus(environ: Mapping[str, str]) -> frozenset[str]:
    """Numbers of the GPUs allocated to the step, else to the job, on this node."""
    value = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    return frozenset(part for part in value.split(",")[:64] if part.isdecimal() and len(part) <= 3)


def _rank(environ: Mapping[str, str], task: int | None) -> tuple[int | None, int | None, int | None]:
    for names in _RANKS:
        rank = _int(environ, names[0])
        if rank is not None:
            return rank, _int(environ, names[1]), _int(environ, names[2])
    if task is None:
        return None, None, None
    world = _int(environ, "SLURM_STEP_NUM_TASKS")
    return task, _int(environ, "SLURM_LOCALID"), _int(environ, "SLURM_NTASKS") if world is None else world


def _int(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name)
    return int(value) if value is not None and len(value) <= 7 and value.isdecimal() else None


def _id(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(name)
    return value if value is not None and _ID.match(value) else None
