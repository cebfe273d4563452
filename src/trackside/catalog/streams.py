"""Labels of log streams: which job, node and rank a stream belongs to, and the path of its file.

Collectors use different names for the same label. Each role lists these names, most reliable first; names that the site
configures take precedence (``Mapping`` of the site's label name to the role).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from trackside.catalog.labels import Label, normalize

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
"""Role of a label -> names that collectors use, most reliable first, in the form of :func:`plain`. ``job`` is the last
job id because many collectors set it to the name of their own configuration."""
_FORMS = {"job": Label("job", "job"), "node": Label("node", "host"), "rank": Label("rank", "index")}
DAEMONS = frozenset({"slurmctld", "slurmd", "slurmdbd", "scontrol"})
"""Programs whose output is read as the scheduler's own statements, so each has a file of its own."""
OF_JOBS = frozenset({"hang", "scontrol"})
"""Names of the agent's own streams of a job: hang reports on its processes, and the controller's records."""
_PRINTED = frozenset({"stdout", "stderr"})
_KERNEL = re.compile(r"kern(?:el)?|kmsg|dmesg", re.IGNORECASE)
_KERNEL_FILE = re.compile(r"(?:^|/)(?:kern|kernel|dmesg|kmsg)(?:[._-][\w.-]*)?\Z", re.IGNORECASE)
MAX_NAME_BYTES = 240
"""Longest file name, bytes: file systems allow 255, and ``.zst`` may be appended."""
_TORCHRUN = re.compile(r"attempt_\d{1,6}/\d{1,6}/std(?:out|err)\.log\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")
_NODE_IN = re.compile(r"(?:^|[/!])slurm-[^/!@]+@([A-Za-z0-9][\w.-]*?)(?:\.log\Z|/)")
_NODE_LOG = re.compile(r"(?:^|[/!])nodes/(?P<node>[^/!]+)/(?P<name>[\w-]+)\.log(?:\.zst)?\Z")
_JOB_LOG = re.compile(r"(?:^|[/!])job-[^/!]+/slurm-")


def plain(name: str) -> str:
    """A label's name normalized for comparison: ``host.name``, ``_HOSTNAME`` and ``Host-Name`` differ only in spelling."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def candidates(role: str, names: Iterable[str], site_labels: Mapping[str, str]) -> list[str]:
    """The label names of a store that may have this role, most reliable first; names configured by the site exclude all
    others."""
    names = list(names)
    site_names = [name for name in site_labels if site_labels[name] == role]
    if site_names:
        available = set(names)
        return [name for name in site_names if name in available]
    by_plain: dict[str, list[str]] = {}
    for name in names:
        if name not in site_labels:
            by_plain.setdefault(plain(name), []).append(name)
    return [name for role_name in ROLES[role] for name in sorted(by_plain.get(role_name, ()))]


def label_value(role: str, labels: Mapping[str, str], site_labels: Mapping[str, str] | None = None) -> str:
    """The normalized value of the label with this role; empty without one."""
    form = _FORMS.get(role)
    for name in candidates(role, labels, site_labels or {}):
        value = normalize(labels[name], form) if form is not None else labels[name].strip()
        if value:
            return short(value) if role == "node" else value
    return ""


def short(node: str) -> str:
    """A host without its domain; an address unchanged."""
    return node if re.fullmatch(r"[0-9.]+|.*:.*", node) else node.partition(".")[0]


def host_of(node: str) -> str:
    """A node in the form in which nodes are compared: its short name in lower case; an address unchanged."""
    return node if re.fullmatch(r"[0-9.]+", node) else node.partition(".")[0].lower()


def tag_of(labels: Mapping[str, str], site_labels: Mapping[str, str] | None = None) -> str:
    """The program that wrote a stream of a node, as a syslog tag; ``kernel`` for kernel messages."""
    units = [labels[name] for name in candidates("unit", labels, site_labels or {})]
    file = label_value("file", labels, site_labels)
    # A job may name its output kern.log, but what a program prints is not from the kernel.
    is_output = label_value("stream", labels, site_labels) in _PRINTED
    if (not is_output and _KERNEL_FILE.search(file)) or any(_KERNEL.fullmatch(value) for value in units):
        return "kernel"
    name = units[0] if units else file.rpartition("/")[2].removesuffix(".log")
    name = _safe(name.removesuffix(".service").rpartition("/")[2], 60)
    return "unknown" if is_output and name == "kernel" else name or "unknown"


def stream_path(labels: Mapping[str, str], site_labels: Mapping[str, str] | None = None) -> str:
    """A relative path for a stream's lines, safe as a file name and equal for equal labels.

    A job's stream: ``job-4242/slurm-4242.rank3@gpu-01.log``, from which readers get job, rank and node. Any other
    stream of a node, and kernel messages even with a job label: ``nodes/gpu-01/system.log``, or ``slurmd.log``. Any
    other stream: ``streams/NAME.log``.
    """
    return _path(identifying_labels(labels, site_labels), _pairs(site_labels))


def identifying_labels(
    labels: Mapping[str, str], site_labels: Mapping[str, str] | None = None
) -> tuple[tuple[str, str], ...]:
    """The labels that determine the path; equal for lines that differ only in other labels."""
    return tuple((name, labels[name]) for name in _relevant_names(tuple(labels), _pairs(site_labels)))


def _pairs(site_labels: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(site_labels.items())) if site_labels else ()


@lru_cache(maxsize=1 << 10)
def _relevant_names(names: tuple[str, ...], site_pairs: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(sorted({name for role in ROLES for name in candidates(role, names, dict(site_pairs))}))


@lru_cache(maxsize=1 << 12)  # called for each batch of a receiver
def _path(pairs: tuple[tuple[str, str], ...], site_pairs: tuple[tuple[str, str], ...]) -> str:
    labels, site_labels = dict(pairs), dict(site_pairs)
    job, node = label_value("job", labels, site_labels), _safe(label_value("node", labels, site_labels), 100)
    tag = tag_of(labels, site_labels)
    if job and tag != "kernel":
        return f"job-{job}/{_job_leaf(job, node, label_value('rank', labels, site_labels), label_value('file', labels, site_labels))}"
    if node or tag == "kernel":
        return f"nodes/{node or 'unknown'}/{tag if tag in DAEMONS else 'system'}.log"
    file = label_value("file", labels, site_labels)
    name = _safe(file.strip("/"), 150) if file else tag
    return f"streams/{name.removesuffix('.log') or 'unknown'}.log"


def _job_leaf(job: str, node: str, rank: str, file: str) -> str:
    node_suffix = f"@{node}" if node else ""
    if match := _TORCHRUN.search(file):
        return f"slurm-{job}.torchrun{node_suffix}/{match[0]}"
    parts = [f"rank{rank}"] if rank else []
    folder, _, name = file.rpartition("/")
    name = re.sub(rf"^slurm-{re.escape(job)}[._-]?", "", name).removesuffix(".log")
    folder = folder.rpartition("/")[2]
    # ``rank3/train.log`` and ``node07/train.log``: the folder distinguishes the files.
    parts += [_safe(folder, 60)] if re.search(r"[A-Za-z]\w*\d+\Z", folder) and name and job not in folder else []
    parts += [_safe(name, 100)] if name else []
    stem = ".".join(part for part in parts if part)[: MAX_NAME_BYTES - len(f"slurm-{job}.{node_suffix}.log")].strip(
        "._-"
    )
    if stem.rpartition(".")[2] in OF_JOBS and file not in OF_JOBS:
        stem += ".out"  # a job's own file with that name
    return f"slurm-{job}.{stem or 'out'}{node_suffix}.log"


def _safe(text: str, max_chars: int) -> str:
    return _UNSAFE.sub("_", text)[:max_chars].strip("._-")


def node_in(path: str) -> str | None:
    """The node in the path of a job's stream; None without one."""
    match = _NODE_IN.search(path)
    return match[1] if match else None


def is_stream_of(path: str, job: str, file: str) -> bool:
    """Whether ``path`` is that of a stream (:func:`stream_path`) with the lines of a job's file, from any node."""
    folder, _, leaf = path.removesuffix(".zst").rpartition("/")
    own_leaf = re.sub(r"@[^/@]*\.log\Z", ".log", re.sub(r"^(slurm-[^.]+\.)rank\d+\.", r"\1", leaf))
    return re.search(rf"(?:^|[/!])job-{re.escape(job)}\Z", folder) is not None and own_leaf == _job_leaf(
        job, "", "", file
    )


def is_node_log(path: str) -> bool:
    """Whether ``path`` is that of a node's system log from streams, in which each line has its host and program."""
    match = _NODE_LOG.search(path)
    return match is not None and match["name"] == "system"


def streaming_node(path: str) -> str | None:
    """The node in the path of a stream whose lines start with time, host and program; None for other paths."""
    match = _NODE_LOG.search(path)
    return match["node"] if match is not None and match["name"] in ("system", *DAEMONS) else None


def is_printed(path: str) -> bool:
    """Whether ``path`` is that of a job's stream and not of the agent's own, so the job may have written anything in
    it."""
    leaf = path.removesuffix(".zst").rpartition("/")[2]
    return (
        _JOB_LOG.search(path) is not None and re.sub(r"(?:@[^/@]*)?\.log\Z", "", leaf).rpartition(".")[2] not in OF_JOBS
    )


def is_stream(path: str) -> bool:
    """Whether ``path`` is that of a stream, whose lines have their times before them."""
    return _JOB_LOG.search(path) is not None or streaming_node(path) is not None
