"""Kernel messages as text: dmesg in all its time formats, syslog files, journalctl, kmsg and pstore records."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace

from trackside.catalog.streams import is_node_log, streaming_node
from trackside.logs.line import FileContext
from trackside.logs.scan import scan
from trackside.model import Event
from trackside.read.format import Format, Match, Result, Sink, Source
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
"""What else is numbered in the names of logs."""
MAJORITY = 0.6
_DAEMONS = """
kernel systemd systemd-logind sshd CRON cron rsyslogd dbus-daemon NetworkManager chronyd ntpd auditd audit sudo su
containerd dockerd kubelet slurmd slurmstepd munged nvidia-persistenced nv-fabricmanager nv-hostengine mcelog
rasdaemon smartd lldpd irqbalance polkitd snmpd postfix multipathd lustre nscd sssd dhclient snapd dracut
"""
DAEMONS = frozenset(_DAEMONS.split())
"""Programs that share a node's system log: lines of several of them tell it from one service's journal."""


def _sniff(source: Source) -> Match | None:
    if not looks_like_text(source.head):
        return None
    lines = [line for line in source.text.splitlines()[:500] if line.strip() and not _BANNER.match(line)]
    whole = [line for line in lines if not _CONTINUATION.match(line)]
    if not whole:
        return None
    stamped = sum(1 for line in whole if _STAMPED.match(line) or _BARE.match(line))
    if stamped >= MAJORITY * len(whole):
        return Match(0.8, f"{stamped} of its first {len(whole)} lines are kernel messages")
    tags = [found["tag"].strip() for line in whole if (found := _SYSLOG.match(line)) is not None]
    kernel = tags.count("kernel")
    system = sum(1 for tag in tags if tag in DAEMONS)
    if stamped + len(tags) < MAJORITY * len(whole):
        return None
    if is_node_log(source.path):
        return Match(0.8, "a node's system log, from a log store")
    if kernel + stamped == 0 and len(set(tags)) < 3:
        return None
    if kernel + stamped >= 0.1 * len(whole) or system >= 0.5 * len(tags):
        return Match(0.8, f"a node's system log: {kernel} of its first {len(whole)} lines are the kernel's")
    return None


def node_of(path: str) -> str | None:
    """The node that a file's name or folder gives: ``dmesg-gpu017.txt``, ``gpu017.dmesg``, ``gpu017/dmesg``,
    ``dmesg/gpu017.txt``."""
    found = _NODE_FILE.search(path)
    name = found and (found["after"] or found["before"] or found["folder"] or found["inside"])
    return None if not name or _NOT_A_NODE.match(name) else name


def host_of(line: str) -> str | None:
    """The host column of a syslog or journal line, without its domain."""
    found = None if _STAMPED.match(line) else _SYSLOG.match(line)
    if found is None or found["host"] in ("localhost", "-"):
        return None
    return found["host"].split(".", 1)[0]


def year_near(head: str, modified: float | None) -> int | None:
    """The year to complete stamps that have none, from when the file was written: its lines are not later."""
    if modified is None:
        return None
    try:
        written = dt.datetime.fromtimestamp(modified, dt.UTC)
    except (OverflowError, OSError, ValueError):
        return None
    first = re.search(rf"^(?:<\d+>)?({_MONTH}) [ \d]\d ", head, re.MULTILINE)
    if first is None:
        return None
    month = dt.datetime.strptime(first[1], "%b").month
    return written.year if month <= written.month else written.year - 1


def _read(source: Source, sink: Sink) -> Result:
    def take(event: Event) -> None:
        if event.kind == "log_activity":  # tells of a job's output; this is none
            event = replace(event, kind="kernel_log")
        host = host_of(event.text)
        sink.event(event if host is None else replace(event, node=host))

    streaming = streaming_node(source.path)
    node = node_of(source.path) if streaming in (None, "unknown") else streaming
    context = FileContext(source.path, "kernel", node=node, headed=streaming is not None)
    guessed = year_near(source.text, source.modified)
    if guessed is not None and not re.search(r"\b20\d\d\b", source.text[:4000]):
        context.year = guessed
    done = scan(source.stream, take, context)
    year = f"year {guessed} taken from the file's date" if context.year == guessed and guessed else ""
    return Result(done.lines, note="; ".join(part for part in (note_on(done), year) if part))


FORMAT = Format("kernel-log", "kernel messages: dmesg, syslog, journalctl, kmsg", "kernel", _sniff, _read)
