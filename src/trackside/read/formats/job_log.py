"""Any text, as a job's output: the fallback format, read by the log scan."""

from __future__ import annotations

import re
from dataclasses import replace

from trackside.catalog.streams import node_in
from trackside.logs.line import FileContext
from trackside.logs.scan import ScanStats, scan
from trackside.model import Event, Position
from trackside.read.format import Format, InputSource, Match, Result, Sink

_RANK_DIR = re.compile(r"(?:^|[/!])attempt_(\d{1,6})/(\d{1,6})/(?:stdout|stderr)\.log")
_RANK_FILE = re.compile(r"(?:^|[/_.!-])rank[_-]?(\d{1,6})(?=[/_.!@-]|$)", re.IGNORECASE)
_OUTPUT_NAME = re.compile(
    r"(?:^|[/!])(?:slurm-[^/]{1,200}|std(?:out|err)[^/]{0,40}|[^/]{0,200}\.(?:out|err|log|o\d{1,9})|[^/]{0,200}logs?\.txt)$"
)
_NOT_OUTPUT_NAME = re.compile(r"dmesg|kern|messages|syslog|journal|sacct|slurmctld|slurmd", re.IGNORECASE)
_CONTROL = bytes(set(range(32)) - {7, 8, 9, 10, 11, 12, 13, 27}) + b"\x7f"
_WIDE_TEXT = re.compile(rb"(?:[\t\n\r\x1b\x20-\x7e]\0){16,}")
"""A stretch of UTF-16 in plain text; the scan takes shorter ones, too."""
_HOLE = re.compile(rb"\0{32,}")
"""A run of NULs that no text or binary header has by chance: a block never written, or lost in a crash."""
_PROGRAM_NAME = re.compile(
    r"\.(?:py|pyi|ipynb|sh|bash|sbatch|slurm|c|cc|cpp|cu|cuh|h|hpp|js|ts|html|css|ya?ml|toml|cfg|ini|lock|jinja)$"
    r"|(?:^|/)(?:README|LICENSE|Makefile|Dockerfile|requirements|merges|vocab)(?:\.(?:md|txt|rst))?$"
)
_OUTPUT = re.compile(rb"^(?:Traceback \(most recent call last\)|\{'|\[rank\d|srun: |slurmstepd: )", re.MULTILINE)
_MEASUREMENTS = re.compile(
    rb"\s*(?:# (?:HELP|TYPE) \w|<\?xml |\{\"status\":\"success\",\"data\":|\{\"metric\":\{"
    rb"|[^\n]{0,300}\b(?:utilization\.gpu|memory\.used|temperature\.gpu)\b[^\n]{0,20}[,\n]"
    rb"|\[[A-Z][a-z]{2} \d\d 20\d\d [\d:]{8}\] \[\w+\] \[tid \d"
    rb"|strace: Process \d)"
)
_DOCUMENT = re.compile(rb"\s*[{\[]\s*?\n\s*[\"{\[\]}\d]")


def looks_like_text(head: bytes) -> bool:
    """Whether a head is text in an ASCII-compatible encoding: few control bytes, NULs only in long runs.

    Binary headers have a NUL or two between other bytes; a sparse hole has hundreds in a row.
    """
    text = _WIDE_TEXT.sub(b"", _HOLE.sub(b"", head))
    if b"\0" in text[:64]:
        return False
    return len(text.translate(None, _CONTROL)) >= 0.98 * len(text)


def _sniff(source: InputSource) -> Match | None:
    if not looks_like_text(source.head):
        return None
    return Match(0.1, "text, read as job output" if source.head.strip(b"\0") else "starts with a hole (NUL bytes)")


def rank_of(path: str) -> int | None:
    """The rank in a path: torchrun's ``attempt_0/3/stdout.log`` (local to a node) or ``rank3.log``; None without
    one."""
    if match := _RANK_DIR.search(path):
        return int(match[2])
    match = _RANK_FILE.search(path)
    return int(match[1]) if match else None


def read_log(source: InputSource, sink: Sink, node: str | None = None, rank: int | None = None) -> Result:
    """Scan text as job output. ``node``, ``rank``: where known from the format's content."""
    folder = _RANK_DIR.search(source.path)

    def add_event(event: Event) -> None:
        if folder is not None and event.kind == "log_activity":
            torchrun_fields = {"attempt": int(folder[1]), "rank_dir": int(folder[2])}
            event = replace(event, fields={**event.fields, **torchrun_fields})
        sink.event(event)

    rank = rank_of(source.path) if rank is None else rank
    context = FileContext(source.path, "log", rank=rank, node=node or node_in(source.path))
    stats = scan(source.stream, add_event, context)
    if stats.bytes and stats.nuls == stats.bytes:
        return Result(0, "unrecognised", "only NUL bytes: never written, or lost in a crash")
    return Result(stats.lines, note=note_on(stats))


def note_on(stats: ScanStats) -> str:
    """The note on a scanned file."""
    notes = [
        f"{stats.dropped:,} repeated events dropped" if stats.dropped else "",
        f"{stats.passed_over:,} lines passed over, as a million like them were read" if stats.passed_over else "",
        f"{stats.nuls:,} NUL bytes (holes left by a crash or a truncated file)" if stats.nuls else "",
        *(f"{count:,} lines skipped because of a bug in {parser}" for parser, count in sorted(stats.defects.items())),
    ]
    return "; ".join(note for note in notes if note)


def empty_output(path: str) -> Event | None:
    """The event for an empty file with the name of a job's output: the job wrote nothing. None for other names."""
    if not _OUTPUT_NAME.search(path) or _NOT_OUTPUT_NAME.search(path):
        return None
    return Event(
        "log_activity", Position(path, 0), "log", rank=rank_of(path), parser="scan", fields={"lines": 0, "bytes": 0}
    )


def _sniff_other(source: InputSource) -> Match | None:
    """Match text that no run printed: programs and settings by name, JSON documents by their first lines."""
    if not looks_like_text(source.head):
        return None
    if _PROGRAM_NAME.search(source.name) and not _OUTPUT.search(source.head):
        return Match(0.2, "source code or configuration, not job output")
    if _MEASUREMENTS.match(source.head):
        return Match(0.2, "measurements or a service log in an unknown format, not job output")
    if _DOCUMENT.match(source.head) and not _OUTPUT_NAME.search(source.path):
        return Match(0.2, "a JSON document in an unknown format")
    return None


def _skip(source: InputSource, sink: Sink) -> Result:
    return Result(0, "unrecognised")


FORMATS = (
    Format("job-log", "job output (any text)", "log", _sniff, read_log),
    Format("other-text", "programs, settings and unknown JSON documents: not read", "log", _sniff_other, _skip),
)
