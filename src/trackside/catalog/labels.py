"""Foreign labels: which label they map to, how their values are normalized, and sets that many sources share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

LabelForm = Literal["text", "host", "pci", "index", "name", "number", "job", "part"]
"""The form of a label's value. host: optionally with scheme, port and path. pci: a bus address. index: a number,
optionally after a name (``nvidia3``, ``GPU 3``). name: an index, else any text. number: digits only. job: a Slurm job
id; other values are dropped. part: number of a part of a GPU; 0 means the whole GPU or its first part."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a foreign label maps to: Trackside's label, the form of its value, and values that are renamed."""

    name: str
    form: LabelForm = "text"
    values: Mapping[str, str] = field(default_factory=dict)


MACHINE_LABELS: Mapping[str, Label] = dict.fromkeys(
    ("node", "nodename", "kubernetes_node", "hostname", "host", "host_name", "exported_instance", "instance"),
    Label("node", "host"),
)
"""Labels that name the machine, most reliable first: ``instance`` is only the address of the exporter."""

JOB_LABELS: Mapping[str, Label] = {
    **dict.fromkeys(
        ("hpc_job", "slurm_job_id", "slurm_jobid", "slurmjobid", "job_id", "jobid", "exported_job"), Label("job", "job")
    ),
    **dict.fromkeys(("job_user", "username", "user"), Label("user")),
}
"""Labels that name job and user, without ``job``, which Prometheus sets to the name of its scrape configuration."""

GPU_LABELS: Mapping[str, Label] = {
    **dict.fromkeys(("gpu", "gpu_id", "index", "minor_number"), Label("gpu", "index")),
    **dict.fromkeys(("uuid", "gpu_uuid"), Label("gpu_uuid")),
    **dict.fromkeys(("modelname", "gpu_model"), Label("gpu_model")),
    **dict.fromkeys(("pci_bus_id", "pci"), Label("pci", "pci")),
}
"""Labels that name the GPU."""

_HOST = re.compile(r"(?:\w+://)?(?:\[([0-9a-fA-F:.]+)\]|([^\s/:\[\]]+))(?::\d+)?(?:/.*)?")
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
_PCI = re.compile(r"(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE)
_INDEX = re.compile(r"(?:[a-zA-Z_/]+[ _-]?)?0*([0-9]{1,4})")
_DIGITS = re.compile(r"[0-9]{1,18}")
_ID = re.compile(r"([0-9]{1,12}(?:[_+][0-9]{1,8})?)(?:\.\w+)?")
_BLANK_VALUES = frozenset({"", "n/a", "[n/a]", "none", "unknown", "[unknown error]", "[not supported]", "null", "-"})


def normalize(value: str, label: Label) -> str:
    """The normalized value of a label; empty if it carries no information."""
    own_value = _normalized_form(value, label.form)
    return label.values.get(own_value, own_value)


@lru_cache(maxsize=1 << 12)  # cached: all metrics of a GPU have the same labels
def _normalized_form(value: str, form: LabelForm) -> str:
    value = value.strip()
    return "" if value.lower() in _BLANK_VALUES else _NORMALIZERS[form](value)


def pci_address(value: str) -> str:
    """A PCI address as ``domain:bus:device`` in lower case with a four-digit domain; empty if it is invalid."""
    match = _PCI.fullmatch(value.strip())
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}".lower() if match else ""


def _host(value: str) -> str:
    match = _HOST.fullmatch(value)
    host = (match[1] or match[2]) if match else value
    return "" if host.lower() in _LOCAL_HOSTS else host


def _index(value: str) -> str:
    match = _INDEX.fullmatch(value)
    return match[1] if match else ""


def _part(value: str) -> str:
    number = _index(value)
    return "" if number == "0" else number


def _job(value: str) -> str:
    match = _ID.fullmatch(value)
    return match[1] if match and match[1] != "0" else ""


_NORMALIZERS: Mapping[LabelForm, Callable[[str], str]] = {
    "text": str,
    "host": _host,
    "pci": pci_address,
    "index": _index,
    "name": lambda value: _index(value) or value,
    "number": lambda value: str(int(value)) if _DIGITS.fullmatch(value) else "",
    "job": _job,
    "part": _part,
}
