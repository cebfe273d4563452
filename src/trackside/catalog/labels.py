"""Foreign labels: which of ours they are, how their values are written, and those that many sources share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

Form = Literal["text", "host", "pci", "index", "name", "number", "job", "part"]
"""How a label's value is written. host: maybe with scheme, port and path. pci: a bus address. index: a number, maybe
behind a name (``nvidia3``, ``GPU 3``). name: an index, else the text itself. number: digits only. job: a Slurm job id; anything else there is no job of Slurm's. part: the number
of a part of a GPU, 0 for the whole or its first."""


@dataclass(frozen=True, slots=True)
class Label:
    """One foreign label: ours, how its value is written, and values that we call otherwise."""

    name: str
    form: Form = "text"
    values: Mapping[str, str] = field(default_factory=dict)


PLACE: Mapping[str, Label] = dict.fromkeys(
    ("node", "nodename", "kubernetes_node", "hostname", "host", "host_name", "exported_instance", "instance"),
    Label("node", "host"),
)
"""Which machine, the surest first: ``instance`` is only where a scraper found the exporter."""

OWNER: Mapping[str, Label] = {
    **dict.fromkeys(
        ("hpc_job", "slurm_job_id", "slurm_jobid", "slurmjobid", "job_id", "jobid", "exported_job"), Label("job", "job")
    ),
    **dict.fromkeys(("job_user", "username", "user"), Label("user")),
}
"""Whose job. ``job`` itself isn't here: Prometheus puts the name of its scrape configuration there."""

DEVICE: Mapping[str, Label] = {
    **dict.fromkeys(("gpu", "gpu_id", "index", "minor_number"), Label("gpu", "index")),
    **dict.fromkeys(("uuid", "gpu_uuid"), Label("gpu_uuid")),
    **dict.fromkeys(("modelname", "gpu_model"), Label("gpu_model")),
    **dict.fromkeys(("pci_bus_id", "pci"), Label("pci", "pci")),
}
"""Which GPU."""

_HOST = re.compile(r"(?:\w+://)?(?:\[([0-9a-fA-F:.]+)\]|([^\s/:\[\]]+))(?::\d+)?(?:/.*)?")
_HERE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
_PCI = re.compile(r"(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE)
_INDEX = re.compile(r"(?:[a-zA-Z_/]+[ _-]?)?0*([0-9]{1,4})")
_DIGITS = re.compile(r"[0-9]{1,18}")
_ID = re.compile(r"([0-9]{1,12}(?:[_+][0-9]{1,8})?)(?:\.\w+)?")
_NONE = frozenset({"", "n/a", "[n/a]", "none", "unknown", "[unknown error]", "[not supported]", "null", "-"})


def written(value: str, label: Label) -> str:
    """A label's value as ours; empty where it says nothing."""
    ours = _formed(value, label.form)
    return label.values.get(ours, ours)


@lru_cache(maxsize=1 << 12)  # all metrics of a GPU have the same labels
def _formed(value: str, form: Form) -> str:
    value = value.strip()
    return "" if value.lower() in _NONE else _FORMS[form](value)


def pci_address(value: str) -> str:
    """A PCI address as ``domain:bus:device`` in lower case, the domain in four digits; empty if it is none."""
    found = _PCI.fullmatch(value.strip())
    return f"{int(found[1] or '0', 16):04x}:{found[2]}:{found[3]}".lower() if found else ""


def _host(value: str) -> str:
    found = _HOST.fullmatch(value)
    host = (found[1] or found[2]) if found else value
    return "" if host.lower() in _HERE else host


def _index(value: str) -> str:
    found = _INDEX.fullmatch(value)
    return found[1] if found else ""


def _part(value: str) -> str:
    number = _index(value)
    return "" if number == "0" else number


def _job(value: str) -> str:
    found = _ID.fullmatch(value)
    return found[1] if found and found[1] != "0" else ""


_FORMS: Mapping[Form, Callable[[str], str]] = {
    "text": str,
    "host": _host,
    "pci": pci_address,
    "index": _index,
    "name": lambda value: _index(value) or value,
    "number": lambda value: str(int(value)) if _DIGITS.fullmatch(value) else "",
    "job": _job,
    "part": _part,
}
