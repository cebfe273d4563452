"""Parsers for Slurm's values: times, durations, node lists, states, exit codes, sizes, TRES and dependencies.

Each function takes text, a JSON value of openapi v0.0.37 (21.08) to data_parser v0.0.45 (26.05), or None. It returns None
(or an empty tuple) for a missing value: ``Unknown``, ``N/A``, ``(null)``, an empty field, ``{"set": false}``, NO_VAL.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable
from typing import Any

from trackside.catalog import hostlist
from trackside.catalog.job_states import ALL_STATES, STATES

MAX_NODES = 20_000
"""Maximum number of names of one node list (more than any Slurm cluster has); the rest is dropped."""
MAX_GPUS = 64
"""Maximum number of GPUs of one node (no machine has more); the rest is dropped."""
UNSET_TIMES = frozenset({0, 4294967294, 4294967295, 18446744073709551614, 18446744073709551615})
"""32- and 64-bit NO_VAL and INFINITE, which some versions print as plain numbers."""
_UNKNOWN_VALUES = frozenset(
    {"", "none", "unknown", "n/a", "(null)", "none assigned", "invalid", "not_set", "null", "na"}
)

_FLAG_STATES = ("REQUEUED", "SPECIAL_EXIT", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "CONFIGURING")
"""Flags that replace the base state PENDING or RUNNING, highest priority first."""
_QUIET_FLAGS = frozenset({"COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "UPDATE_DB", "POWER_UP_NODE"})

_NODE_WORDS = {
    word: (base, flag)
    for base, flag, words in (
        ("allocated", "", "alloc"),
        ("allocated", "completing", "comp completing"),
        ("allocated", "drain", "drng draining"),
        ("allocated", "fail", "failg failing"),
        ("mixed", "", "mix"),
        ("idle", "drain", "drain drained"),
        ("idle", "planned", "plnd planned"),
        ("idle", "maint", "maint"),
        ("idle", "reserved", "resv reserved"),
        ("idle", "fail", "fail"),
        ("down", "reboot", "boot reboot"),
        ("error", "", "err"),
        ("future", "", "futr"),
        ("unknown", "", "unk"),
    )
    for word in words.split()
}
"""sinfo's compact words (man sinfo, NODE STATE CODES) -> base state and flag"""
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

_TIME = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.\d{1,9})?(Z|[+-]\d\d:?\d\d)?\Z")
_DURATION = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d\d)(?:\.(\d{1,6}))?\Z")
_NUMBER = re.compile(r"(\d{1,15})(?:\.(\d{1,3}))?([KMG]?)\Z")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([KMGTPE]?)i?B?([nc])?\Z", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_EXIT = re.compile(r"(-?\d{1,10}):(\d{1,5})\Z")
_JOB_ID = re.compile(r"(\d{1,10})(?:_(\d{1,10}|\[[^\]]{1,500}\]))?(?:\+(\d{1,5}))?(?:\.([\w+]{1,40}))?\Z")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^,()]*(?:\(null\)[^,()]*)?)?\(IDX:([\d,-]+)\)")
_GPU_DETAIL = re.compile(r"(\S+) CPU_IDs=\S* Mem=\S* GRES(?:_IDX)?=(\S+)")
_DEPENDENCY = re.compile(
    r"(afterany|afterok|afternotok|aftercorr)((?::\d{1,10}(?:_\d{1,10}|_\*)?(?:\+\d+)?(?:\(\w+\))?)+)"
)
_DEPENDENCY_OPTION = re.compile(r"(?:--dependency[= ]|--depend[= ]|\s-d[= ]?)\s*[\"']?(\S{1,2000})")
_SIGNED = re.compile(r"(?s)(.*?)\s*\[([^@\[\]]+)@([^\]]+)\]\s*\Z")


def vocabulary(words: str) -> frozenset[str]:
    """The set of words in a text."""
    return frozenset(words.split())


def raw(value: Any) -> str | None:
    """Text unchanged, even a word such as ``none``: for names."""
    return value if isinstance(value, str) else None


def known_text(value: Any) -> str | None:
    """The stripped text; None if it means that the value is unknown."""
    if not isinstance(value, str):
        return None
    value = value.strip()
    return None if value.lower() in _UNKNOWN_VALUES else value


def number(value: Any) -> int | None:
    """A whole number: plain, ``{"set": true, "infinite": false, "number": 5}``, or 2,000 for sacct's ``2K``."""
    if isinstance(value, dict):
        if value.get("infinite") is True or value.get("set") is False:
            return None
        value = value.get("number")
    if isinstance(value, str):
        match = _NUMBER.match(value.strip())
        return int(float(f"{match[1]}.{match[2] or 0}") * 1000 ** _POWER[match[3]]) if match else None
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def count(value: Any) -> int | None:
    """A number of nodes or tasks, of ``2-4`` the first."""
    return number(value.partition("-")[0] if isinstance(value, str) else value)


def time(value: Any) -> float | None:
    """``2026-11-21T07:52:36`` as POSIX seconds; without a zone it is read as UTC. Plain seconds too; None for NO_VAL."""
    text = value.strip() if isinstance(value, str) else ""
    if match := _TIME.match(text):
        try:
            return dt.datetime.fromisoformat(match[1] + (match[2] or "+00:00")).timestamp()
        except ValueError:
            return None
    seconds = int(text) if text.isdecimal() and len(text) <= 20 else None if text else number(value)
    return None if seconds is None or seconds in UNSET_TIMES else float(seconds)


def zoned(value: Any) -> bool | None:
    """True for a time that gives its zone, or is POSIX seconds; None for ``2026-11-21T07:52:36``, which is local, and
    for what is no time."""
    match = _TIME.match(value.strip()) if isinstance(value, str) else None
    return True if time(value) is not None and (match is None or match[2]) else None


def duration(value: Any) -> float | None:
    """``1-02:03:04``, ``02:03:04``, ``03:04.567`` or plain seconds in seconds; None for UNLIMITED and the like."""
    match = _DURATION.match(value.strip()) if isinstance(value, str) else None
    if match is None:
        seconds = number(value)
        return None if seconds is None else float(seconds)
    days, hours, minutes, seconds_text, fraction = match.groups()
    whole = int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds_text)
    return whole + float(f"0.{fraction}") if fraction else float(whole)


def time_limit(value: Any) -> float | None:
    """A time limit in seconds: a duration, or plain minutes."""
    if isinstance(value, str) and ":" in value:
        return duration(value)
    minutes = number(value)
    return None if minutes is None or minutes in UNSET_TIMES else minutes * 60.0


def flag(value: Any) -> bool | None:
    """``1`` or true."""
    return value == "1" if isinstance(value, str) else value if isinstance(value, bool) else None


def size(text: str | None, unit: str = "", nodes: int | None = None, cpus: int | None = None) -> int | None:
    """``3960K``, ``62.50G``, ``4000Mc`` (per CPU), ``16Gn`` (per node) in bytes. ``unit``: unit of a bare number."""
    match = _SIZE.match((text or "").strip())
    if match is None:
        return None
    value = float(match[1]) * 1024 ** _POWER[(match[2] or unit).upper()]
    share = {"c": cpus, "n": nodes}.get((match[3] or "").lower(), 1)
    return None if share is None or not math.isfinite(value) else int(value * share)


def resident(value: Any) -> int | None:
    """The largest resident size in bytes, from ``MaxRSS`` or from the peaks of a TRES list."""
    if isinstance(value, str):
        return size(value)
    return max((amount for kind, _, amount in tres_list(value) if kind == "mem"), default=None) or None


def requested_memory(share: str, value: Any) -> str | None:
    """Memory requested per node (``n``) or CPU (``c``), in the form of sacct's ReqMem: ``16Gn``, in MiB if without a unit;
    see :func:`size`."""
    text = value.strip() if isinstance(value, str) else str(number(value) or 0)
    return f"{text}{share}" if size(text) else None


def exit_status(value: Any) -> tuple[int | None, int | None]:
    """(exit code, signal) from ``0:11``, a plain code as text, an exit_code object, or a plain wait status."""
    if isinstance(value, str):
        match = _EXIT.match(value.strip())
        return (int(match[1]), int(match[2])) if match else (number(value), None)
    if not isinstance(value, dict) or "return_code" not in value:
        status = number(value)
        return wait_status(status) if status is not None and 0 <= status < 1 << 16 else (None, None)
    of_signal = value.get("signal")
    signal = number(dig(of_signal, "id")) or number(dig(of_signal, "signal_id")) or 0
    code = number(value.get("return_code"))
    return (0 if signal else code), (signal if signal or code is not None else None)


def wait_status(status: int) -> tuple[int, int]:
    """(exit code, signal) from a wait status, as in squeue's JSON before 23.02: 256 is (1, 0), 11 is (0, 11)."""
    return (status >> 8) & 0xFF, status & 0x7F


def state_of(text: str | None) -> tuple[str | None, str | None]:
    """(base state, who canceled the job). Supports ``CANCELLED by 1001``, short codes and sacct's truncated ``OUT_OF_ME+``."""
    text = known_text(text)
    if text is None:
        return None, None
    word, _, rest = text.partition(" ")
    by = rest[3:].strip() or None if rest.startswith("by ") else None
    word = word.upper()
    if word.endswith("+"):
        longer = [state for state in ALL_STATES if state.startswith(word[:-1])]
        return (longer[0] if len(longer) == 1 else None), by
    return STATES.get(word, word), by


def job_state(value: Any) -> tuple[str | None, str | None]:
    """(state, who canceled the job) from text, or from a JSON list of a base state and its flags."""
    return state_of(value) if isinstance(value, str) else (state_among(words(value)), None)


def state_among(states: Iterable[str]) -> str | None:
    """The state from a base state and its flags: ``["PENDING", "REQUEUED"]`` is REQUEUED."""
    words = [word.upper() for word in states]
    for flag in _FLAG_STATES:
        if flag in words and (flag == "REQUEUED" or not set(words) - {flag, "PENDING", "RUNNING"}):
            return flag
    return next((word for word in words if word not in _QUIET_FLAGS), words[0] if words else None)


def node_state_of(text: str | Iterable[str] | None) -> tuple[str | None, tuple[str, ...]]:
    """(base state, flags) from ``DOWN*+DRAIN``, ``mixed-``, ``drng`` or ``["IDLE", "DRAIN"]``."""
    words = text.split("+") if isinstance(text, str) else list(text or ())
    base: str | None = None
    flags: list[str] = []
    for word in words:
        bare = word.strip().lower()
        while bare and bare[-1] in _NODE_SUFFIXES:
            flags.append(_NODE_SUFFIXES[bare[-1]])
            bare = bare[:-1]
        state, flag = _NODE_WORDS.get(bare, (bare, bare))
        if base is None and state in _NODE_BASES:
            base, bare = state, "" if state == bare else flag
        else:
            bare = flag or bare
        if bare:
            flags.append(bare)
    return base, tuple(dict.fromkeys(flags))


def split_job_id(text: str) -> tuple[str, str | None, str | None] | None:
    """(job id, array id, step) from ``60_3``, ``73+0``, ``7.batch``, ``60_3.0``; None if it is not a job id."""
    match = _JOB_ID.match(text.strip())
    if match is None:
        return None
    job = text.strip().partition(".")[0]
    return job, (match[1] if match[2] else None), match[4]


def parents_of(text: str | None) -> tuple[str, ...]:
    """The job ids in a dependency such as ``afterany:41:42,afterok:43_*(unfulfilled)``."""
    parents: list[str] = []
    for match in _DEPENDENCY.finditer((text or "")[:4000]):
        parents += [re.sub(r"\(.*|_\*", "", part) for part in match[2].split(":")[1:]]
    return tuple(dict.fromkeys(parents))


def waiting_reason(value: Any) -> str | None:
    """The reason that squeue prints instead of nodes: ``(Resources)``."""
    return known_text(value[1:-1]) if isinstance(value, str) and value.startswith("(") else None


def dependency_of(command: str | None) -> str | None:
    """The dependency in a command line: ``sbatch --dependency=afterany:41 train.sh``."""
    match = _DEPENDENCY_OPTION.search((command or "")[:4000])
    return match[1].strip("\"'") if match and "after" in match[1] else None


def words(value: Any) -> list[str]:
    """State and flags as a list, from one string or a list."""
    return [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str) and word]


def user(value: Any) -> tuple[str | None, int | None]:
    """(name, uid) from ``alice(1001)`` or ``alice``."""
    name, _, number_text = (known_text(value) or "").partition("(")
    return name or None, number(number_text.rstrip(")"))


def nodes(value: Any) -> tuple[str, ...]:
    """The names of a host list such as ``g[2-3,07-09],login1``, or of an object with ``list``, ``range``, ``nodes``."""
    if isinstance(value, dict):
        value = value.get("list") or value.get("nodes") or value.get("range")
    if isinstance(value, list):
        return tuple(name for part in value if isinstance(part, str) for name in nodes(part))
    text = known_text(value)
    return () if text is None or text.startswith("(") else hostlist.expand(text, MAX_NODES)


def signed_reason(value: Any) -> tuple[str | None, str | None, float | None]:
    """(reason, user, time) from ``bad fan [root@2026-11-21T07:52:36]``; user and time are None if not printed."""
    match = _SIGNED.match(known_text(value) or "")
    return (match[1], match[2], time(match[3])) if match else (known_text(value), None, None)


def gpus(value: Any) -> int | None:
    """GPUs in a TRES string or list: ``gres/gpu=8``, or the sum of ``gres/gpu:h100=4`` if only types are listed."""
    if isinstance(value, str):
        pairs = (part.partition("=") for part in value.split(","))
        counts = {name.strip().removeprefix("gres/"): number(amount) or 0 for name, _, amount in pairs if amount}
    else:
        counts = {name: amount for kind, name, amount in tres_list(value) if kind == "gres"}
    counts = {name: amount for name, amount in counts.items() if name.split(":")[0] == "gpu"}
    return counts.get("gpu", sum(counts.values())) if counts else None


def tres_list(value: Any) -> list[tuple[str, str, int]]:
    """(type, name, count) of each entry of a TRES list."""
    rows = ((row, number(dig(row, "count"))) for row in (value if isinstance(value, list) else ()))
    return [
        (str(dig(row, "type") or ""), str(dig(row, "name") or ""), amount) for row, amount in rows if amount is not None
    ]


def dig(value: Any, *keys: str) -> Any:
    """A value in nested objects; None if a level is missing."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def allocated_gpus(detail: Any) -> tuple[str, ...]:
    """The GPUs in lines ``n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:h100:4(IDX:0-3)`` of scontrol's ``Nodes=``."""
    lines = [_GPU_DETAIL.match(line) for line in detail.splitlines()] if isinstance(detail, str) else []
    return tuple(gpu for line in lines if line for gpu in gpus_on(nodes(line[1]), line[2]))


def gpus_on(names: Iterable[str], gres: str) -> tuple[str, ...]:
    """``node:index`` of the GPUs in ``gpu:h100:3(IDX:0-1,3),nic:1(IDX:0)`` on each node; before Slurm 20.02
    ``gpu(IDX:0-1,3)``. Slurm numbers the GPUs of a node in the order of its gres.conf."""
    indices = [
        number for match in _GPUS.finditer(gres[:10_000]) for part in match[1].split(",") for number in _numbers(part)
    ]
    return tuple(f"{node}:{index}" for node in names for index in dict.fromkeys(indices))


def _numbers(part: str) -> range:
    first, _, last = part.partition("-")
    if not first.isdecimal() or (last and not last.isdecimal()):
        return range(0)
    return range(int(first), min(int(last or first), int(first) + MAX_GPUS - 1) + 1)
