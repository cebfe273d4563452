"""Kernel messages as text: dmesg with any time format, syslog files, journalctl, kmsg and pstore records."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace

from trackside.catalog.streams import is_node_log, streaming_node
from trackside.logs.line import FileContext
from trackside.logs.scan import scan
from trackside.model import Event
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.formats.job_log import looks_like_text, note_on

_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_LEVEL = r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"
_FACILITY = r"(?:kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d|res\d|security)"
_ISO = r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_STAMPED = re.compile(
    r"(?:<\d{1,3}>)?(?:"
    rf"{_FACILITY}\s{{0,6}}:{_LEVEL}\s{{0,6}}: "  # dmesg -x, before any time
    r"|\[\s{0,9}\d{1,9}\.\d{3,9}\](?:\[[TC]\s{0,6}\d{1,7}\])?"  # seconds since boot
    rf"|\[{_DAY} {_MONTH} [ \d]\d \d\d:\d\d:\d\d 20\d\d\] "  # dmesg -T
    r"|20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d "  # dmesg --time-format iso: a comma
    r"|\d{1,3},\d{1,12},\d{1,18},[-c+](?:,[\w=]{1,40})?;"  # /dev/kmsg
    r")"
)
_SYSLOG = re.compile(
    r"(?:<\d{1,3}>1? ?)?"
    rf"(?:{_MONTH} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{{1,9}})?(?: 20\d\d)?"  # syslog, journalctl -o short, short-precise
    rf"|{_ISO}"  # RFC 3339 and 5424, journalctl -o short-iso
    rf"|{_DAY} 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{{1,9}})? [A-Z+\-\d:]{{1,6}}"  # short-full
    r") (?P<host>[\w.:-]{0,254}[\w-]) (?P<tag>[\w./@() -]{1,80}?)(?:\[\d{1,10}\])?(?::| - - | \d+ - )"
)
_BARE = re.compile(
    r"NVRM: |nvidia(?:-\w+)?[ :]|Linux version \d|Command line: |ACPI: |BIOS-e820|mce: |EDAC |pcieport |pci \d{4}:"
    r"|mlx\d_core |nvme nvme\d"
    r"|usb \d|EXT4-fs|XFS \(|oom-kill:|Out of memory: |Memory cgroup out of memory|audit: |Call Trace:"
    r"|SXid|blk_update_request|systemd\[1\]: |hrtimer: |perf: interrupt"
)
_BANNER = re.compile(r"-- (?:Logs begin|Journal begins|Boot |No entries|Reboot)")
_CONTINUATION = re.compile(r"\s|Message payload")
_NODE_FILE = re.compile(
    r"(?:^|[/!])(?:(?:dmesg|kern(?:el)?|messages|syslog|journal(?:ctl)?|kmsg)[-_.](?P<after>[A-Za-z][\w-]*\d)"
    r"|(?P<before>[A-Za-z][\w-]*\d)[-_.](?:dmesg|kern(?:el)?|messages|syslog|journal(?:ctl)?|kmsg)\b"
    r"|(?P<folder>[A-Za-z][\w-]*\d)/(?:dmesg|kern(?:el)?|messages|syslog|journal(?:ctl)?|kmsg)\b"
    r"|(?:dmesg|kern(?:el)?|messages|syslog|journal(?:ctl)?|kmsg)/(?P<inside>[A-Za-z][\w-]*\d)(?:\.\w{1,5}){0,2}$)"
)
_NOT_A_NODE = re.compile(r"(?i)(?:rank|step|run|job|attempt|slurm|part|node_?rank|s?xid|case|boot|error)[-_]?\d+$")
"""Numbered words in log names that are not node names."""
MAJORITY = 0.6
_DAEMONS = """
kernel systemd systemd-logind sshd CRON cron rsyslogd dbus-daemon NetworkManager chronyd ntpd auditd audit sudo su
containerd dockerd kubelet slurmd slurmstepd munged nvidia-persistenced nv-fabricmanager nv-hostengine mcelog
rasdaemon smartd lldpd irqbalance polkitd snmpd postfix multipathd lustre nscd sssd dhclient snapd dracut
"""
DAEMONS = frozenset(_DAEMONS.split())
"""Programs that write to a node's system log. Lines from several of them distinguish it from one service's journal."""


def _sniff(source: InputSource) -> Match | None:
    if not looks_like_text(source.head):
        return None
    lines = [line for line in source.text.splitlines()[:500] if line.strip() and not _BANNER.match(line)]
    messages = [line for line in lines if not _CONTINUATION.match(line)]
    if not messages:
        return None
    stamped = sum(1 for line in messages if _STAMPED.match(line) or _BARE.match(line))
    if stamped >= MAJORITY * len(messages):
        return Match(0.8, f"{stamped} of its first {len(messages)} lines are kernel messages")
    tags = [match["tag"].strip() for line in messages if (match := _SYSLOG.match(line)) is not None]
    kernel = tags.count("kernel")
    system = sum(1 for tag in tags if tag in DAEMONS)
    if stamped + len(tags) < MAJORITY * len(messages):
        return None
    if is_node_log(source.path):
        return Match(0.8, "a node's system log from a log store")
    if kernel + stamped == 0 and len(set(tags)) < 3:
        return None
    if kernel + stamped >= 0.1 * len(messages) or system >= 0.5 * len(tags):
        return Match(0.8, f"a node's system log: {kernel} of its first {len(messages)} lines are from the kernel")
    return None


def node_of(path: str) -> str | None:
    """The node in a file's name or folder: ``dmesg-gpu017.txt``, ``gpu017.dmesg``, ``gpu017/dmesg``,
    ``dmesg/gpu017.txt``; None without one."""
    match = _NODE_FILE.search(path)
    name = match and (match["after"] or match["before"] or match["folder"] or match["inside"])
    return None if not name or _NOT_A_NODE.match(name) else name


def host_in(line: str) -> str | None:
    """The host column of a syslog or journal line without its domain; None for other lines."""
    match = None if _STAMPED.match(line) else _SYSLOG.match(line)
    if match is None or match["host"] in ("localhost", "-"):
        return None
    return match["host"].split(".", 1)[0]


def year_near(head: str, modified: float | None) -> int | None:
    """The year of timestamps without one: the lines are not newer than the file's mtime. None if unknown."""
    if modified is None:
        return None
    try:
        modified_date = dt.datetime.fromtimestamp(modified, dt.UTC)
    except (OverflowError, OSError, ValueError):
        return None
    first_stamp = re.search(rf"^(?:<\d+>)?({_MONTH}) [ \d]\d ", head, re.MULTILINE)
    if first_stamp is None:
        return None
    month = dt.datetime.strptime(first_stamp[1], "%b").month
    return modified_date.year if month <= modified_date.month else modified_date.year - 1


def _read(source: InputSource, sink: Sink) -> Result:
    def add_event(event: Event) -> None:
        if event.kind == "log_activity":  # log_activity is for job output only
            event = replace(event, kind="kernel_log")
        host = host_in(event.text)
        sink.event(event if host is None else replace(event, node=host))

    streaming = streaming_node(source.path)
    node = node_of(source.path) if streaming in (None, "unknown") else streaming
    scratch = FileContext(source.path, "kernel", node=node, has_syslog_prefix=streaming is not None)
    inferred_year = year_near(source.text, source.modified)
    if inferred_year is not None and not re.search(r"\b20\d\d\b", source.text[:4000]):
        scratch.year = inferred_year
    scan_result = scan(source.stream, add_event, scratch)
    year_note = (
        f"year {inferred_year} taken from the file's date" if scratch.year == inferred_year and inferred_year else ""
    )
    return Result(scan_result.lines, note="; ".join(part for part in (note_on(scan_result), year_note) if part))


FORMAT = Format("kernel-log", "kernel messages: dmesg, syslog, journalctl, kmsg", "kernel", _sniff, _read)
