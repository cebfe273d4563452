"""CPU, memory and pressure of each Slurm job, step and task on this node, from its cgroups.

    v2  /sys/fs/cgroup/system.slice/[NODE_]slurmstepd.scope/job_42/step_0/user/task_3
    v1  /sys/fs/cgroup/{memory,cpuacct}/slurm[_NODE]/uid_1000/job_42/step_0/task_3

A Slurm built for several slurmd per host puts the node's name into the path; then only this node's cgroups are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trackside.agent.jobs.cgroup_path import step_name
from trackside.agent.pseudo_files import key_values, number, parse_pressure, read_or_empty
from trackside.agent.source import (
    AgentSource,
    AgentSourceUnavailable,
    Collector,
    Context,
    Labels,
    Reading,
    Sample,
    pairs,
)
from trackside.settings.bounds import check_at_least

_LEVEL = re.compile(r"(job|step|task)_([A-Za-z0-9]{1,20})\Z")
_HERTZ = os.sysconf("SC_CLK_TCK")
_UNLIMITED = 1 << 60
"""In version 1, no limit is the largest multiple of a page."""
_EVENTS = {name.encode(): name for name in ("low", "high", "max", "oom", "oom_kill", "oom_group_kill")}
_KINDS_2 = {b"anon": "anon", b"file": "file", b"shmem": "shmem"}
_KINDS_1 = {b"total_rss": "anon", b"total_cache": "file", b"total_shmem": "shmem"}


@dataclass(frozen=True, slots=True)
class CgroupOptions:
    """``max_cgroups``: how many to read, jobs before steps before tasks. ``tasks``: whether to read those of tasks.
    ``roots``: paths of Slurm's cgroups below the mount, if not the default.

    Raises ValueError for invalid values.
    """

    max_cgroups: int = 200
    tasks: bool = True
    roots: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_at_least(1, self, "max_cgroups")


class Group(NamedTuple):
    """One cgroup of a job, step or task. ``name``: ``job_42/step_0/task_3``. ``path``: below its root."""

    level: int
    name: str
    path: str
    labels: Labels


def groups_in(root: str, tasks: bool = True, max_groups: int = 10_000) -> list[Group]:
    """Slurm's cgroups below a root, jobs first. Intermediate folders (``uid_1000``, ``user``) are entered where Slurm
    has them; others are skipped."""
    groups: list[Group] = []
    pending: list[tuple[str, tuple[str, ...]]] = [("", ())]
    while pending and len(groups) < max_groups:
        path, names = pending.pop(0)
        for entry in _folders(f"{root}/{path}"):
            child_path = f"{path}/{entry}" if path else entry
            match = _LEVEL.match(entry)
            if match is not None and match[1] == ("job", "step", "task", "")[len(names)]:
                child_names = (*names, entry)
                groups.append(_group(child_names, child_path))
                if len(child_names) < (3 if tasks else 2):
                    pending.append((child_path, child_names))
            elif (not names and entry.startswith("uid_")) or (len(names) == 2 and entry == "user"):
                pending.append((child_path, names))
    return sorted(groups, key=lambda group: group.level)[:max_groups]


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _group(names: tuple[str, ...], path: str) -> Group:
    parts = dict(part.split("_", 1) for part in names)
    if "step" in parts:
        parts["step"] = step_name(parts["step"])
    name = "/".join(names)
    return Group(len(names), name, path, pairs({"cgroup": name, **parts}))


class _Cgroups(Collector):
    """Reads Slurm's cgroups. It keeps no file open, because that would keep a cgroup that Slurm has removed."""

    def __init__(self, context: Context) -> None:
        self._mount, self._node, self._options = context.node.sys / "fs/cgroup", context.node.name, context.options
        self._version, self._roots = 0, dict[str, str]()
        if not any((self._mount / name).exists() for name in ("cgroup.procs", "unified", "memory", "cpuacct")):
            raise AgentSourceUnavailable(
                f"{self._mount} has no cgroups", "mount them there; in a container, mount the host's read-only"
            )

    def collect(self, reading: Reading) -> None:
        if not self._roots or not all(
            map(os.path.isdir, self._roots.values())
        ):  # slurmd creates them when it first needs them
            self._version, self._roots = roots_of(self._mount, self._node, self._options.roots)
        read = _version_2 if self._version == 2 else _version_1
        groups = self._groups()
        limit = self._options.max_cgroups
        if len(groups) > limit:
            reading.warnings.append(
                f"this node has more than {limit} cgroups of jobs: raise collect.cgroups.max_cgroups"
            )
        for group in groups[:limit]:
            for metric, value, labels in read(self._roots, group):
                reading.samples.append(Sample(metric, _add_labels(group.labels, labels), float(value)))

    def _groups(self) -> list[Group]:
        """The cgroups, up to one more than will be read."""
        groups: dict[str, Group] = {}
        for root in self._roots.values():
            for group in groups_in(root, self._options.tasks, self._options.max_cgroups + 1):
                groups.setdefault(group.name, group)
        return sorted(groups.values(), key=lambda group: group.level)


CgroupValues = Iterator[tuple[str, float, Mapping[str, str]]]
"""(metric, value, labels in addition to the cgroup's)"""


def _version_2(roots: Mapping[str, str], group: Group) -> CgroupValues:
    folder = f"{roots['']}/{group.path}"
    cpu = key_values(read_or_empty(f"{folder}/cpu.stat"), (b"user_usec", b"system_usec", b"throttled_usec"))
    for key, mode in ((b"user_usec", "user"), (b"system_usec", "system")):
        if key in cpu:
            yield "host_cgroup_cpu_seconds_total", cpu[key] / 1e6, {"mode": mode}
    if b"throttled_usec" in cpu:
        yield "host_cgroup_cpu_throttled_seconds_total", cpu[b"throttled_usec"] / 1e6, {}
    yield from _bytes(folder, {"memory.current": "used", "memory.peak": "peak", "memory.max": "limit"})
    for key, value in key_values(read_or_empty(f"{folder}/memory.stat"), _KINDS_2).items():
        yield "host_cgroup_memory_bytes", value, {"kind": _KINDS_2[key]}
    if group.level < 3:
        for key, value in key_values(read_or_empty(f"{folder}/memory.events"), _EVENTS).items():
            yield "host_cgroup_memory_events_total", value, {"kind": _EVENTS[key]}
    if group.level == 1:
        for resource in ("cpu", "io", "memory"):
            for level, seconds in parse_pressure(read_or_empty(f"{folder}/{resource}.pressure")).items():
                yield "host_cgroup_pressure_seconds_total", seconds, {"resource": resource, "level": level}
        tasks = number(read_or_empty(f"{folder}/pids.current").strip())
        if tasks is not None:
            yield "host_cgroup_tasks", tasks, {}


def _version_1(roots: Mapping[str, str], group: Group) -> CgroupValues:
    if "cpu" in roots:
        data = read_or_empty(f"{roots['cpu']}/{group.path}/cpuacct.stat")
        for key, ticks in key_values(data, (b"user", b"system")).items():
            yield "host_cgroup_cpu_seconds_total", ticks / _HERTZ, {"mode": key.decode()}
    if "memory" not in roots:
        return
    folder = f"{roots['memory']}/{group.path}"
    yield from _bytes(
        folder,
        {"memory.usage_in_bytes": "used", "memory.max_usage_in_bytes": "peak", "memory.limit_in_bytes": "limit"},
    )
    for key, value in key_values(read_or_empty(f"{folder}/memory.stat"), _KINDS_1).items():
        yield "host_cgroup_memory_bytes", value, {"kind": _KINDS_1[key]}
    limit_hits = number(read_or_empty(f"{folder}/memory.failcnt").strip())
    if limit_hits is not None:
        yield "host_cgroup_memory_events_total", limit_hits, {"kind": "max"}
    for value in key_values(read_or_empty(f"{folder}/memory.oom_control"), (b"oom_kill",)).values():
        yield "host_cgroup_memory_events_total", value, {"kind": "oom_kill"}


def _bytes(folder: str, files: Mapping[str, str]) -> CgroupValues:
    for file, name in files.items():
        value = number(read_or_empty(f"{folder}/{file}").strip())
        if value is not None and value < _UNLIMITED:
            yield f"host_cgroup_memory_{name}_bytes", value, {}


def _add_labels(labels: Labels, further_labels: Mapping[str, str]) -> Labels:
    return tuple(sorted((*labels, *further_labels.items()))) if further_labels else labels


def roots_of(cgroups: Path, node: str, extra_roots: Iterable[str] = ()) -> tuple[int, dict[str, str]]:
    """(version, controller -> folder) of Slurm's cgroups below a mount; version 0 if there are none."""
    scopes = (f"system.slice/{node}_slurmstepd.scope", "system.slice/slurmstepd.scope")
    for mount in (cgroups, cgroups / "unified"):
        for scope in (*extra_roots, *scopes):
            if (mount / "cgroup.procs").exists() and (mount / scope).is_dir():
                return 2, {"": os.fspath(mount / scope)}
    folder_by_controller: dict[str, str] = {}
    for controller, folders in (("memory", ("memory",)), ("cpu", ("cpuacct", "cpu,cpuacct", "cpuacct,cpu"))):
        for folder in folders:
            for name in (*extra_roots, f"slurm_{node}", "slurm"):
                if (cgroups / folder / name).is_dir():
                    folder_by_controller.setdefault(controller, os.fspath(cgroups / folder / name))
    return (1, folder_by_controller) if folder_by_controller else (0, {})


SOURCE = AgentSource(
    id="cgroups",
    title="CPU, memory and pressure of each Slurm job, step and task",
    open=_Cgroups,
    metrics=(
        "host_cgroup_cpu_seconds_total",
        "host_cgroup_cpu_throttled_seconds_total",
        "host_cgroup_memory_bytes",
        "host_cgroup_memory_events_total",
        "host_cgroup_memory_limit_bytes",
        "host_cgroup_memory_peak_bytes",
        "host_cgroup_memory_used_bytes",
        "host_cgroup_pressure_seconds_total",
        "host_cgroup_tasks",
    ),
    options=CgroupOptions,
)
