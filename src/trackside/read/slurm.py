"""Slurm's words: times, durations, node lists, states, exit codes, sizes, TRES and dependencies.

Shared by the readers of its commands. Each function takes a field as text and gives None (or an empty
tuple) for what Slurm writes when it has nothing to say: ``Unknown``, ``N/A``, ``(null)``, an empty field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from trackside.catalog.job_states import ALIVE, ALL_STATES, STATES, WAITING
from trackside.logs import hostlist
from trackside.logs.stamp import posix
from trackside.model import Scalar

Field = Scalar | tuple[Scalar, ...]

MAX_NODES = 20_000
"""Names that one node list may expand to (more than any Slurm cluster has); the rest is left out."""
MAX_GPUS = 64
"""GPUs that one node may list (no machine has more); further ones are left out."""
UNSET_TIMES = frozenset({0, 4294967294, 4294967295, 18446744073709551614, 18446744073709551615})
"""NO_VAL and INFINITE of 32 and 64 bits, which some versions print as plain numbers."""
_NOTHING = frozenset({"", "none", "unknown", "n/a", "(null)", "none assigned", "invalid", "not_set", "null", "na"})

_FLAG_STATES = ("REQUEUED", "SPECIAL_EXIT", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "CONFIGURING")
"""Flags that say more than the PENDING or RUNNING beside them, strongest first."""
_QUIET_FLAGS = frozenset({"COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "UPDATE_DB", "POWER_UP_NODE"})

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.\d{1,9})?(Z|[+-]\d\d:?\d\d)?\Z")
_DURATION = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d\d)(?:\.(\d{1,6}))?\Z")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([KMGTPE]?)i?B?([nc])?\Z", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_EXIT = re.compile(r"(-?\d{1,10}):(\d{1,5})\Z")
_JOB_ID = re.compile(r"(\d{1,10})(?:_(\d{1,10}|\[[^\]]{1,500}\]))?(?:\+(\d{1,5}))?(?:\.([\w+]{1,40}))?\Z")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^,()]*(?:\(null\)[^,()]*)?)?\(IDX:([\d,-]+)\)")
_DEPENDENCY = re.compile(
    r"(afterany|afterok|afternotok|aftercorr)((?::\d{1,10}(?:_\d{1,10}|_\*)?(?:\+\d+)?(?:\(\w+\))?)+)"
)
_DEPENDENCY_OPTION = re.compile(r"(?:--dependency[= ]|--depend[= ]|\s-d[= ]?)\s*[\"']?(\S{1,2000})")


def vocabulary(words: str) -> frozenset[str]:
    """A set of words written as one text."""
    return frozenset(words.split())


def known(text: str | None) -> str | None:
    """The text without its margins, or None where it says that nothing is known."""
    if not text:
        return None
    text = text.strip()
    return None if text.lower() in _NOTHING else text


def time_of(text: str | None) -> float | None:
    """``2026-11-21T07:52:36`` as POSIX seconds; without a zone it is read as UTC. Plain seconds too."""
    text = known(text)
    if text is None:
        return None
    if text.isdecimal() and len(text) <= 20:
        return None if int(text) in UNSET_TIMES else float(text)
    found = _TIME.match(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    return posix(year, month, day, hour, minute, second, zone=found[7])


def duration_of(text: str | None) -> float | None:
    """``1-02:03:04``, ``02:03:04``, ``03:04.567`` in seconds; None for UNLIMITED and the like."""
    found = _DURATION.match(known(text) or "")
    if found is None:
        return None
    days, hours, minutes, seconds, fraction = found.groups()
    whole = int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds)
    return whole + float(f"0.{fraction}") if fraction else float(whole)


def number_of(text: str | None) -> int | None:
    """A whole number; ``2K`` counts as 2,000 (as sacct shortens counts)."""
    text = known(text)
    if text is None:
        return None
    found = re.match(r"(\d{1,15})(?:\.(\d{1,3}))?([KMG]?)\Z", text)
    if found is None:
        return None
    value = float(f"{found[1]}.{found[2] or 0}")
    return int(value * 1000 ** _POWER[found[3]])


def bytes_of(text: str | None, unit: str = "", nodes: int | None = None, cpus: int | None = None) -> int | None:
    """``3960K``, ``62.50G``, ``4000Mc`` (a CPU), ``16Gn`` (a node) in bytes; ``unit`` is that of a bare number."""
    found = _SIZE.match(known(text) or "")
    if found is None:
        return None
    value = float(found[1]) * 1024 ** _POWER[(found[2] or unit).upper()]
    share = {"c": cpus, "n": nodes}.get((found[3] or "").lower(), 1)
    return None if share is None or not math.isfinite(value) else int(value * share)


def exit_of(text: str | None) -> tuple[int, int] | None:
    """``0:11`` as (exit code, signal)."""
    found = _EXIT.match(known(text) or "")
    return (int(found[1]), int(found[2])) if found else None


def exit_of_status(status: int) -> tuple[int, int]:
    """A wait status, as squeue's JSON has it before 23.02: 256 is (1, 0), 11 is (0, 11)."""
    return (status >> 8) & 0xFF, status & 0x7F


def state_of(text: str | None) -> tuple[str | None, str | None]:
    """(base state, who cancelled): knows ``CANCELLED by 1001``, short codes and sacct's cut ``OUT_OF_ME+``."""
    text = known(text)
    if text is None:
        return None, None
    word, _, rest = text.partition(" ")
    by = rest[3:].strip() or None if rest.startswith("by ") else None
    word = word.upper()
    if word.endswith("+"):
        longer = [state for state in ALL_STATES if state.startswith(word[:-1])]
        return (longer[0] if len(longer) == 1 else None), by
    return STATES.get(word, word), by


def state_among(states: Iterable[str]) -> str | None:
    """One state out of a base state and its flags: ``["PENDING", "REQUEUED"]`` is REQUEUED."""
    words = [word.upper() for word in states]
    for flag in _FLAG_STATES:
        if flag in words and (flag == "REQUEUED" or not set(words) - {flag, "PENDING", "RUNNING"}):
            return flag
    return next((word for word in words if word not in _QUIET_FLAGS), words[0] if words else None)


def split_job_id(text: str) -> tuple[str, str | None, str | None] | None:
    """(job id, array id, step) of ``60_3``, ``73+0``, ``7.batch``, ``60_3.0``; None for what is no job id."""
    found = _JOB_ID.match(text.strip())
    if found is None:
        return None
    job = text.strip().partition(".")[0]
    return job, (found[1] if found[2] else None), found[4]


def parents_of(text: str | None) -> tuple[str, ...]:
    """The jobs named by a dependency such as ``afterany:41:42,afterok:43_*(unfulfilled)``."""
    parents: list[str] = []
    for found in _DEPENDENCY.finditer((text or "")[:4000]):
        parents += [re.sub(r"\(.*|_\*", "", part) for part in found[2].split(":")[1:]]
    return tuple(dict.fromkeys(parents))


def dependency_of(command: str | None) -> str | None:
    """The dependency that a command line asks for: ``sbatch --dependency=afterany:41 train.sh``."""
    found = _DEPENDENCY_OPTION.search((command or "")[:4000])
    return found[1].strip("\"'") if found and "after" in found[1] else None


def nodes_of(text: str | None) -> tuple[str, ...]:
    """The names of a host list such as ``g[2-3,07-09],login1``."""
    text = known(text)
    return () if text is None or text.startswith("(") else hostlist.expand(text, MAX_NODES)


def tres_of(text: str | None) -> dict[str, str]:
    """``cpu=2,gres/gpu=2,mem=200M`` as a mapping."""
    pairs = (part.partition("=") for part in (known(text) or "").split(","))
    return {name.strip(): value for name, _, value in pairs if value}


def gpus_of(text: str | None) -> int | None:
    """GPUs in a TRES string: ``gres/gpu=8``, or the sum of ``gres/gpu:h100=4`` where only types are counted."""
    tres = tres_of(text)
    if "gres/gpu" in tres:
        return number_of(tres["gres/gpu"])
    typed = [number_of(value) or 0 for name, value in tres.items() if name.startswith("gres/gpu:")]
    return sum(typed) if typed else None


def held_gpus(nodes: Iterable[str], gres: str) -> tuple[str, ...]:
    """``node:index`` of the GPUs that ``gpu:h100:3(IDX:0-1,3),nic:1(IDX:0)`` gives on each of the nodes; before Slurm
    20.02 it is written ``gpu(IDX:0-1,3)``. Slurm counts the GPUs of a node as its gres.conf lists them."""
    indices = [
        number for found in _GPUS.finditer(gres[:10_000]) for part in found[1].split(",") for number in _numbers(part)
    ]
    return tuple(f"{node}:{index}" for node in nodes for index in dict.fromkeys(indices))


def _numbers(part: str) -> range:
    first, _, last = part.partition("-")
    if not first.isdecimal() or (last and not last.isdecimal()):
        return range(0)
    return range(int(first), min(int(last or first), int(first) + MAX_GPUS - 1) + 1)


def job_fields(fields: Mapping[str, Field], **more: Field) -> dict[str, Field]:
    """A job's or step's fields ready for a record: unknown ones left out, and what is not yet true as well
    (the forecast start and end, the exit code that nothing has given)."""
    merged = {**fields, **more}
    forecast: tuple[str, ...] = ()
    if merged.get("state") in WAITING:
        forecast = ("start", "end", "elapsed_s", "exit_code", "signal")
    elif merged.get("state") in ALIVE:
        forecast = ("end", "exit_code", "signal", "derived_exit_code")
    elif not merged.get("nodes") and merged.get("start") == merged.get("end"):
        forecast = ("start",)  # it ended without having begun; scontrol and 22.05 give the end twice
    return {name: value for name, value in merged.items() if value not in (None, (), "") and name not in forecast}


_NODE_STATES = {
    "alloc": "allocated",
    "mix": "mixed",
    "comp": "allocated",
    "completing": "allocated",
    "drng": "allocated",
    "draining": "allocated",
    "drain": "idle",
    "drained": "idle",
    "plnd": "idle",
    "planned": "idle",
    "maint": "idle",
    "resv": "idle",
    "reserved": "idle",
    "fail": "idle",
    "failg": "allocated",
    "failing": "allocated",
    "err": "error",
    "futr": "future",
    "unk": "unknown",
    "boot": "down",
    "reboot": "down",
}
"""sinfo's compact words (man sinfo, NODE STATE CODES) -> base state; some name a flag as well."""
_NODE_FLAGS = {
    "drng": "drain",
    "draining": "drain",
    "drain": "drain",
    "drained": "drain",
    "fail": "fail",
    "failg": "fail",
    "failing": "fail",
    "comp": "completing",
    "completing": "completing",
    "maint": "maint",
    "resv": "reserved",
    "reserved": "reserved",
    "plnd": "planned",
    "planned": "planned",
    "boot": "reboot",
    "reboot": "reboot",
}
_NODE_BASES = frozenset({"idle", "allocated", "mixed", "down", "error", "future", "unknown"})
_NODE_SUFFIXES = {
    "*": "not_responding",
    "~": "powered_down",
    "#": "powering_up",
    "!": "power_down",
    "%": "powering_down",
    "$": "maint",
    "@": "reboot_requested",
    "^": "reboot_issued",
    "-": "planned",
}


def node_state_of(text: str | Iterable[str] | None) -> tuple[str | None, tuple[str, ...]]:
    """(base state, flags) of ``DOWN*+DRAIN``, ``mixed-``, ``drng`` or ``["IDLE", "DRAIN"]``."""
    words = text.split("+") if isinstance(text, str) else list(text or ())
    base: str | None = None
    flags: list[str] = []
    for word in words:
        bare = word.strip().lower()
        while bare and bare[-1] in _NODE_SUFFIXES:
            flags.append(_NODE_SUFFIXES[bare[-1]])
            bare = bare[:-1]
        state = _NODE_STATES.get(bare, bare)
        if base is None and state in _NODE_BASES:
            base = state
            bare = _NODE_FLAGS.get(bare, "")
        bare = _NODE_FLAGS.get(bare, bare)
        if bare:
            flags.append(bare)
    return base, tuple(dict.fromkeys(flags))


def node_fields(name: str, state: str | Iterable[str] | None, **more: Field) -> dict[str, Field]:
    """A node's fields ready for a record, unknown ones left out."""
    base, flags = node_state_of(state)
    fields: dict[str, Field] = {"name": name, "state": base, "flags": flags, **more}
    return {key: value for key, value in fields.items() if value not in (None, (), "")}
