"""Processes that the kernel killed: OOM kills and crashes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trackside.catalog.signals import signal_name
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_SIZES = re.compile(r"(?:anon|file|shmem)-rss:(\d{1,15})kB")
_KEY = re.compile(r"(oom_memcg|task_memcg|task|pid)=([^,\s]{1,300})")
_LIMIT = re.compile(r"memory: usage \d{1,15}kB, limit (\d{1,15})kB")
_SLURM = re.compile(r"job_(\d{1,12})/step_(\w{1,20})")
_TRAPS = {"segfault at": 11, "general protection": 11, "trap invalid opcode": 4, "trap divide error": 8}
_TRAINS = re.compile(
    r"^(?:python|pt_|ray|torch|train|deepspeed|accelerate|mpi|julia|cuda|nccl|megatron|java|"
    r"tensorflow|jax|vllm|worker)",
    re.IGNORECASE,
)
MAX_REPORT_LINES = 150
"""Lines of an OOM report between the cgroup's limit and the kill."""

PARSER = Parser("kernel", "processes that the kernel killed", "system", planes=("kernel", "log"))


@PARSER.pattern(
    rb"ut of memory: Kill(ed)? process [0-9]",
    r"Kill(?:ed)? process (?P<pid>\d{1,10})(?:, UID \d{1,10},)? \((?P<comm>[^)]{1,40})\)",
    safety="Host memory; a GPU's 'CUDA out of memory' kills no process.",
    matches=(
        (
            "[ 3132.57] Memory cgroup out of memory: Killed process 21461 (python3) total-vm:1899440kB, "
            "anon-rss:193424kB, file-rss:121096kB, shmem-rss:0kB, UID:0 pgtables:1064kB oom_score_adj:0"
        ),
        "Out of memory: Kill process 456 (python) score 50 or sacrifice child",
        "Out of memory: Killed process 123, UID 48, (httpd).",
    ),
    avoids=("CUDA out of memory. Tried to allocate 2.00 GiB", "out of memory: Killed by hand"),
)
def _oom_kill(line: Line, match: re.Match[str]) -> Event:
    pid = int(match["pid"])
    sizes = [int(size) for size in _SIZES.findall(line.text)]
    in_group = "cgroup out of memory" in line.text
    fields: dict[str, str] = line.notes("kernel").get(str(pid), {})
    group = fields.get("oom_memcg")
    return line.event(
        "oom_kill",
        EventRole.ROOT,
        scope="cgroup" if in_group or fields.get("constraint") == "CONSTRAINT_MEMCG" else "host",
        pid=pid,
        comm=match["comm"],
        rss_bytes=sum(sizes) * 1024 if sizes else None,
        limit_bytes=_cgroup_limit(line) if in_group else None,
        cgroup=group,
        step=_slurm_step(fields),
    )


@PARSER.pattern(
    rb"oom-kill:constraint=",
    r"oom-kill:constraint=(?P<constraint>\w{1,40})(?P<rest>.{0,2000})",
    safety="Counted once, with the kill that follows it.",
    matches=(
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
            "oom_memcg=/slurm_n1/uid_1000/job_49148/step_batch,"
            "task_memcg=/slurm_n1/uid_1000/job_49148/step_batch,task=python3,pid=21461,uid=0"
        ),
        (
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
            "task_memcg=/user.slice,task=python,pid=9,uid=0"
        ),
    ),
    avoids=("oom-kill: constraint unknown",),
)
def _oom_choice(line: Line, match: re.Match[str]) -> Event | None:
    """The kill that the OOM killer's record of its choice announces; if a line below reports the kill, that one gives
    the event."""
    fields = {"constraint": match["constraint"], **dict(_KEY.findall(match["rest"]))}
    pid = int(fields["pid"]) if fields.get("pid", "").isdigit() else None
    if pid is not None:
        line.notes("kernel")[str(pid)] = fields
        if any(
            f"ill process {pid} " in neighbor.text or f"illed process {pid} " in neighbor.text
            for neighbor in line.following(3)
        ):
            return None
    group = fields.get("oom_memcg")
    return line.event(
        "oom_kill",
        EventRole.ROOT,
        scope="cgroup" if fields["constraint"] == "CONSTRAINT_MEMCG" else "host",
        pid=pid,
        comm=fields.get("task"),
        limit_bytes=_cgroup_limit(line) if group else None,
        cgroup=group,
        step=_slurm_step(fields),
    )


def _cgroup_limit(line: Line) -> int | None:
    """The cgroup's limit in bytes, from the OOM report above the kill; None if there is none."""
    for neighbor in line.preceding(MAX_REPORT_LINES):
        if match := _LIMIT.search(neighbor.text):
            return int(match[1]) * 1024
        if "invoked oom-killer" in neighbor.text:
            break
    return None


def _slurm_step(fields: Mapping[str, str]) -> str | None:
    """Slurm's job and step of the killed task: the limit that was reached may be the whole job's or the machine's."""
    match = _SLURM.search(fields.get("task_memcg", "")) or _SLURM.search(fields.get("oom_memcg", ""))
    return f"{match[1]}.{match[2]}" if match else None


@PARSER.pattern(
    rb"\]:? (segfault at [0-9a-f]{1,16} ip|general protection |trap (invalid opcode|divide error|int3))",
    r"(?P<comm>[^\s\[\]:]{1,40}(?: [^\s\[\]:]{1,20})?)\[(?P<pid>\d{1,10})\]:? (?P<what>segfault "
    r"at (?=[0-9a-f]+ ip)|general protection|trap [a-z ]{4,24})",
    safety="Any program on the node: a crash of one that looks like training is a confirmation, of others an observation.",
    matches=(
        "[171167.6] python[123]: segfault at 7f0 ip 00007f sp 00007ffe error 4 in libtorch_cpu.so[7f+1000]",
        "traps: pt_main_thread[99] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+1]",
        "traps: python3[5] trap invalid opcode ip:7f sp:7f error:0 in libfoo.so[7f+1]",
    ),
    avoids=("the array[3] segfault at night",),
)
def _crash(line: Line, match: re.Match[str]) -> Event:
    number = next((n for text, n in _TRAPS.items() if match["what"].startswith(text)), 5)
    comm = match["comm"].split("traps: ")[-1].strip()
    return line.event(
        "process_exit",
        EventRole.CONFIRMATION if _TRAINS.match(comm) else EventRole.OBSERVATION,
        source="kernel",
        signal=number,
        signal_name=signal_name(number),
        pid=int(match["pid"]),
        comm=comm,
    )
