"""The columns of sacct's output without its header, recognized by their values: ids, states, exit codes, times."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from trackside.catalog.job_states import ALL_STATES
from trackside.catalog.slurm.values import split_job_id
from trackside.read.format import InputSource
from trackside.read.slurm_table import SlurmRow

DEFAULT = ("jobid", "jobname", "partition", "account", "alloccpus", "state", "exitcode")
"""sacct's columns without --format."""
MAX_ROWS_READ = 2_000
"""Rows by which the columns are recognized."""
MAX_ROW_CHARS = 4_000
_TIME_NAMES = {2: ("start", "end"), 3: ("submit", "start", "end"), 4: ("submit", "eligible", "start", "end")}
_STATE = re.compile(
    rf"(?:CANCELLED by \S+|CANCELLED\+|(?:{'|'.join(sorted(ALL_STATES))})\+?|OUT_OF_ME\+|NODE_FAIL\+?)\Z"
)
_PATTERNS = {
    "state": _STATE,
    "exitcode": re.compile(r"\d{1,3}:\d{1,3}\Z"),
    "time": re.compile(r"(?:20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d|Unknown|None)\Z"),
    "duration": re.compile(r"(?:\d{1,4}-)?\d{1,3}:\d\d:\d\d\Z"),
    "nodelist": re.compile(
        r"[A-Za-z][\w.-]{0,60}?(?:\d{1,8}|\[[\d,-]{1,200}\])(?:,[A-Za-z][\w.-]{0,60}?(?:\d{1,8}|\[[\d,-]{1,200}\])){0,200}\Z"
    ),
}


def headerless_rows(source: InputSource) -> Iterator[SlurmRow]:
    """The rows of a file without a header."""
    rows = (line for line in source.lines() if line[2].strip())
    first = list(itertools.islice(rows, MAX_ROWS_READ))
    lines = itertools.chain(first, rows)
    if sum(1 for *_, text in first[:20] if text.count("|") >= 2) <= 0.5 * len(first[:20]):
        for number, offset, text in lines:
            if is_job_row(words := _words(text)):
                yield SlurmRow(number, offset, text, _of_words(words))
        return
    fields_of_first = [_fields(text) for *_, text in first]
    (width, _), *_ = Counter(map(len, fields_of_first)).most_common(1)
    names = _columns([fields for fields in fields_of_first if len(fields) == width], width)
    for number, offset, text in lines:
        if len(fields := _fields(text)) == width:
            values = {name: value for name, value in zip(names, fields, strict=True) if name}
            if split_job_id(values.get("jobid", "")) is not None:
                yield SlurmRow(number, offset, text, values)


def _fields(text: str) -> list[str]:
    return [value.strip() for value in text.rstrip("|").split("|")]


def _words(text: str) -> list[str]:
    return text[:MAX_ROW_CHARS].replace("CANCELLED by ", "CANCELLED_by_").split()


def is_job_row(words: Sequence[str]) -> bool:
    """Whether the words of a line begin with a job or step id and hold a state and an exit code, time or duration."""
    return (
        len(words) >= 3
        and re.match(r"\d{2,}", words[0]) is not None
        and split_job_id(words[0]) is not None
        and any(_STATE.match(word.replace("CANCELLED_by_", "CANCELLED by ")) for word in words[1:])
        and any(_PATTERNS[kind].match(word) for word in words[1:] for kind in ("exitcode", "time", "duration"))
    )


def _of_words(words: list[str]) -> dict[str, str]:
    """Values of a row whose columns are separated by blanks: empty columns leave no word, so only patterns count."""
    words = [word.replace("CANCELLED_by_", "CANCELLED by ") for word in words]
    values = {"jobid": words[0]}
    times = [word for word in words if _PATTERNS["time"].match(word)]
    for name in ("state", "exitcode"):
        value = next((word for word in words[1:] if _PATTERNS[name].match(word)), None)
        if value is not None:
            values[name] = value
    durations = [word for word in words[1:] if _PATTERNS["duration"].match(word)]
    if len(durations) == 1:
        values["elapsed"] = durations[0]
    values |= dict(zip(_TIME_NAMES.get(len(times), ()), times, strict=False))
    if _STATE.match(words[1]) is None and not _is_typed(words[1]):
        values["jobname"] = words[1]
    return values


def _is_typed(word: str) -> bool:
    return any(_PATTERNS[kind].match(word) for kind in ("exitcode", "time", "duration"))


def _columns(rows: list[list[str]], width: int) -> list[str]:
    """A name for each column; empty where unknown."""
    kinds = [_kind([row[index] for row in rows]) for index in range(width)]
    if width == len(DEFAULT) and kinds[5] == "state" and kinds[6] == "exitcode":
        return list(DEFAULT)
    names = [""] * width
    # Other columns of plain numbers (CPUs) look like ids, too: the first is the id.
    for kind, *targets in (("jobid", "jobid"), ("state", "state"), ("exitcode", "exitcode", "derivedexitcode")):
        for index, name in zip([i for i, other in enumerate(kinds) if other == kind], targets, strict=False):
            names[index] = name
    times = [index for index, kind in enumerate(kinds) if kind == "time"]
    for index, name in zip(times, _TIME_NAMES.get(len(times), ()), strict=False):
        names[index] = name
    steps = [row for row in rows if "." in row[names.index("jobid")]] if "jobid" in names else []
    durations = [index for index, kind in enumerate(kinds) if kind == "duration"]
    # Only a job has a time limit: the column is empty in the rows of its steps.
    limits = [index for index in durations if steps and not any(row[index] for row in steps)]
    elapsed = [index for index in durations if index not in limits]
    if len(limits) == 1:
        names[limits[0]] = "timelimit"
    if len(elapsed) == 1:
        names[elapsed[0]] = "elapsed"
    nodes = [index for index, kind in enumerate(kinds) if kind == "nodelist" and steps]
    if len(nodes) == 1 and all(row[nodes[0]] for row in steps):
        names[nodes[0]] = "nodelist"
    return names


def _kind(values: list[str]) -> str:
    """What a column holds: a key of the patterns, or ``jobid``; empty if unknown."""
    known_values = [value for value in values if value]
    if not known_values:
        return ""
    if all(split_job_id(value) for value in known_values) and any(re.match(r"\d{2,}", value) for value in known_values):
        return "jobid" if len(known_values) == len(values) else ""
    return next((kind for kind, pattern in _PATTERNS.items() if all(map(pattern.match, known_values))), "")
