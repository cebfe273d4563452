"""A log stream's labels: whose lines it holds, and the path that names it where logs are files.

Collectors call the same things differently. Each of our names has those of theirs, the surest first; a site's own come
before them (``Mapping`` of the site's name to ours).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from trackside.catalog.labels import Label, written

_ROLES = {
    "job": "slurm_job_id slurm_jobid slurmjobid slurm_job slurm_id job_id jobid hpc_job job",
    "node": "node nodename node_name kubernetes_node hostname host host_name host_hostname agent_hostname instance",
    "rank": "rank global_rank torch_rank slurm_procid",
    "file": "filename file log_file_path file_path filepath path log_source",
    "unit": "syslog_identifier identifier appname app_name program systemd_unit unit process_name source transport"
    " facility app service_name service container job",
    "stream": "stream logstream log_iostream iostream",
}
ROLES: Mapping[str, tuple[str, ...]] = {role: tuple(names.split()) for role, names in _ROLES.items()}
"""Our name of what a label tells -> names that collectors give it, the surest first. Compared as :func:`plain` has them.
``job`` comes last among the ids: many collectors put the name of their own configuration there."""
_FORMS = {"job": Label("job", "job"), "node": Label("node", "host"), "rank": Label("rank", "index")}
DAEMONS = frozenset({"slurmctld", "slurmd", "slurmdbd", "scontrol"})
"""Their logs, and what that command says, are read as the scheduler's own words, so each has a file of its own."""
OF_JOBS = frozenset({"hang", "scontrol"})
"""Names of the agent's own streams of a job: what it saw of its processes, and what the controller says."""
_PRINTED = frozenset({"stdout", "stderr"})
_KERNEL = re.compile(r"kern(?:el)?|kmsg|dmesg", re.IGNORECASE)
_KERNEL_FILE = re.compile(r"(?:^|/)(?:kern|kernel|dmesg|kmsg)(?:[._-][\w.-]*)?\Z", re.IGNORECASE)
MOST_NAME = 240
"""Bytes of a file's name, most of them: file systems take 255, and ``.zst`` may follow."""
_TORCHRUN = re.compile(r"attempt_\d{1,6}/\d{1,6}/std(?:out|err)\.log\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")
_NODE_IN = re.compile(r"(?:^|[/!])slurm-[^/!@]+@([A-Za-z0-9][\w.-]*?)(?:\.log\Z|/)")
_NODE_LOG = re.compile(r"(?:^|[/!])nodes/(?P<node>[^/!]+)/(?P<name>[\w-]+)\.log(?:\.zst)?\Z")
_JOB_LOG = re.compile(r"(?:^|[/!])job-[^/!]+/slurm-")


def plain(name: str) -> str:
    """A label's name as names are compared: ``host.name``, ``_HOSTNAME`` and ``Host-Name`` differ in writing only."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def candidates(role: str, names: Iterable[str], site: Mapping[str, str]) -> list[str]:
    """Those of a store's label names that may tell this, the surest first; the site's word rules out all guesses."""
    names = list(names)
    told = [name for name in site if site[name] == role]
    if told:
        known = set(names)
        return [name for name in told if name in known]
    by_plain: dict[str, list[str]] = {}
    for name in names:
        if name not in site:
            by_plain.setdefault(plain(name), []).append(name)
    return [name for wanted in ROLES[role] for name in sorted(by_plain.get(wanted, ()))]


def told(role: str, labels: Mapping[str, str], site: Mapping[str, str] | None = None) -> str:
    """What a stream's labels say of this, in our spelling; empty where they don't."""
    form = _FORMS.get(role)
    for name in candidates(role, labels, site or {}):
        value = written(labels[name], form) if form is not None else labels[name].strip()
        if value:
            return short(value) if role == "node" else value
    return ""


def short(node: str) -> str:
    """A host without its domain; an address whole."""
    return node if re.fullmatch(r"[0-9.]+|.*:.*", node) else node.partition(".")[0]


def tag_of(labels: Mapping[str, str], site: Mapping[str, str] | None = None) -> str:
    """Which program of a node wrote a stream, as syslog's tag has it; ``kernel`` for the kernel's messages."""
    units = [labels[name] for name in candidates("unit", labels, site or {})]
    file = told("file", labels, site)
    # A job may call its output kern.log: what a program printed is no word of the kernel's.
    printed = told("stream", labels, site) in _PRINTED
    if (not printed and _KERNEL_FILE.search(file)) or any(_KERNEL.fullmatch(value) for value in units):
        return "kernel"
    name = units[0] if units else file.rpartition("/")[2].removesuffix(".log")
    name = _safe(name.removesuffix(".service").rpartition("/")[2], 60)
    return "unknown" if printed and name == "kernel" else name or "unknown"


def stream_path(labels: Mapping[str, str], site: Mapping[str, str] | None = None) -> str:
    """A relative path for a stream's lines, safe as a file's name and equal for equal labels.

    A job's stream: ``job-4242/slurm-4242.rank3@gpu-01.log``, which names job, rank and node to those who read it. Any
    other stream of a node, and its kernel's whosever label it has: ``nodes/gpu-01/system.log``, or ``slurmd.log``. One
    of neither: ``streams/NAME.log``.
    """
    return _path(telling(labels, site), _pairs(site))


def telling(labels: Mapping[str, str], site: Mapping[str, str] | None = None) -> tuple[tuple[str, str], ...]:
    """Those of a stream's labels that tell any of this: equal for lines whose other labels differ."""
    return tuple((name, labels[name]) for name in _matter(tuple(labels), _pairs(site)))


def _pairs(site: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(site.items())) if site else ()


@lru_cache(maxsize=1 << 10)
def _matter(names: tuple[str, ...], site: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(sorted({name for role in ROLES for name in candidates(role, names, dict(site))}))


@lru_cache(maxsize=1 << 12)  # asked anew for each batch that a receiver takes
def _path(pairs: tuple[tuple[str, str], ...], site_pairs: tuple[tuple[str, str], ...]) -> str:
    labels, site = dict(pairs), dict(site_pairs)
    job, node = told("job", labels, site), _safe(told("node", labels, site), 100)
    tag = tag_of(labels, site)
    if job and tag != "kernel":
        return f"job-{job}/{_job_leaf(job, node, told('rank', labels, site), told('file', labels, site))}"
    if node or tag == "kernel":
        return f"nodes/{node or 'unknown'}/{tag if tag in DAEMONS else 'system'}.log"
    file = told("file", labels, site)
    name = _safe(file.strip("/"), 150) if file else tag
    return f"streams/{name.removesuffix('.log') or 'unknown'}.log"


def _job_leaf(job: str, node: str, rank: str, file: str) -> str:
    at = f"@{node}" if node else ""
    if found := _TORCHRUN.search(file):
        return f"slurm-{job}.torchrun{at}/{found[0]}"
    parts = [f"rank{rank}"] if rank else []
    above, _, name = file.rpartition("/")
    name = re.sub(rf"^slurm-{re.escape(job)}[._-]?", "", name).removesuffix(".log")
    above = above.rpartition("/")[2]
    # ``rank3/train.log`` and ``node07/train.log``: the folder tells one file from the others.
    parts += [_safe(above, 60)] if re.search(r"[A-Za-z]\w*\d+\Z", above) and name and job not in above else []
    parts += [_safe(name, 100)] if name else []
    told = ".".join(part for part in parts if part)[: MOST_NAME - len(f"slurm-{job}.{at}.log")].strip("._-")
    if told.rpartition(".")[2] in OF_JOBS and file not in OF_JOBS:
        told += ".out"  # a job's own file of that name
    return f"slurm-{job}.{told or 'out'}{at}.log"


def _safe(text: str, most: int) -> str:
    return _UNSAFE.sub("_", text)[:most].strip("._-")


def node_in(path: str) -> str | None:
    """The node that the path of a job's stream names."""
    found = _NODE_IN.search(path)
    return found[1] if found else None


def is_stream_of(path: str, job: str, file: str) -> bool:
    """Whether it is the path of a stream (:func:`stream_path`) that holds the lines of a job's file, sent from whatever
    node."""
    folder, _, leaf = path.removesuffix(".zst").rpartition("/")
    own = re.sub(r"@[^/@]*\.log\Z", ".log", re.sub(r"^(slurm-[^.]+\.)rank\d+\.", r"\1", leaf))
    return re.search(rf"(?:^|[/!])job-{re.escape(job)}\Z", folder) is not None and own == _job_leaf(job, "", "", file)


def is_node_log(path: str) -> bool:
    """Whether it is the path of a node's system log out of streams: each line has its host and program."""
    found = _NODE_LOG.search(path)
    return found is not None and found["name"] == "system"


def streaming_node(path: str) -> str | None:
    """The node of whose programs a stream's path says that it holds lines, each headed by time, host and program."""
    found = _NODE_LOG.search(path)
    return found["node"] if found is not None and found["name"] in ("system", *DAEMONS) else None


def is_printed(path: str) -> bool:
    """Whether it is the path of a job's stream, and none of the agent's own: whatever stands there, the job may have
    written it."""
    leaf = path.removesuffix(".zst").rpartition("/")[2]
    return (
        _JOB_LOG.search(path) is not None and re.sub(r"(?:@[^/@]*)?\.log\Z", "", leaf).rpartition(".")[2] not in OF_JOBS
    )


def is_stream(path: str) -> bool:
    """Whether it is the path of a stream's lines, whose times stand beside them."""
    return _JOB_LOG.search(path) is not None or streaming_node(path) is not None
