"""The live journal, with scripts in place of journalctl: these test the reading of its output, not systemd."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from trackside.model import Input
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource
from trackside.site.journal import JournalOptions, journal
from trackside.stores.log_store import LogRequest

REQUEST = LogRequest((), ("gpu-00",), 1_795_253_600, 1_795_253_700)
ENTRIES = [
    {"__REALTIME_TIMESTAMP": "1795253648000020", "_HOSTNAME": "gpu-00", "_TRANSPORT": "kernel",
     "MESSAGE": "NVRM: Xid (PCI:0000:1b:00): 79, pid=4002, name=python, GPU has fallen off the bus."},
    {"__REALTIME_TIMESTAMP": "1795253649000020", "_HOSTNAME": "gpu-00", "SYSLOG_IDENTIFIER": "systemd", "MESSAGE": "x"},
]  # fmt: skip


def program(folder: Path, entries: str) -> str:
    """A journalctl script for two hosts, which prints ``entries`` and records its arguments."""
    path = folder / "journalctl"
    path.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--field=_HOSTNAME*) printf "gpu-00.cluster\\ngpu-07\\n"; exit 0;; esac\n'
        f'echo "$*" > {folder}/arguments\n{entries}\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def read(options: JournalOptions, request: LogRequest = REQUEST) -> tuple[Input, CollectingSink]:
    sink = CollectingSink()
    (row,) = [
        read_source(result, sink) if isinstance(result, InputSource) else result for result in journal(options, request)
    ]
    return row, sink


def printing(folder: Path) -> str:
    (folder / "entries").write_text("".join(json.dumps(entry) + "\n" for entry in ENTRIES))
    return f"cat {folder}/entries"


def test_entries_of_the_nodes_in_the_window_are_read(tmp_path: Path) -> None:
    row, sink = read(JournalOptions(command=program(tmp_path, printing(tmp_path)), directory="/var/log/journal/remote"))
    assert (row.status, row.format) == ("read", "journal-json")
    assert (tmp_path / "arguments").read_text().split() == [
        "--directory=/var/log/journal/remote",
        "--output=json",
        "--no-pager",
        "--quiet",
        "--since=@1795253300",
        "--until=@1795254001",
        "_HOSTNAME=gpu-00.cluster",
    ]
    assert [(event.kind, event.node) for event in sink.events if event.kind == "xid"] == [("xid", "gpu-00")]


def test_a_failure_after_some_entries_is_reported(tmp_path: Path) -> None:
    row, sink = read(JournalOptions(command=program(tmp_path, f"{printing(tmp_path)}; echo no access >&2; exit 1")))
    assert row.status == "partial"
    assert "no access" in row.note
    assert sink.events


def test_a_hanging_journalctl_is_ended(tmp_path: Path) -> None:
    options = JournalOptions(command=program(tmp_path, f"{printing(tmp_path)}; exec sleep 60"), timeout_s=1.0)
    row, sink = read(options)
    assert row.status == "partial"
    assert "ended after 1 s" in row.note
    assert sink.events


def test_a_journal_without_the_nodes_is_reported_as_empty(tmp_path: Path) -> None:
    row, _ = read(JournalOptions(command=program(tmp_path, "")), LogRequest((), ("gpu-09",), 1.0, 2.0))
    assert (row.status, row.note) == ("empty", "has no entries of the run's 1 nodes")


def test_a_missing_journalctl_is_reported() -> None:
    row, _ = read(JournalOptions(command="/nowhere/journalctl"))
    assert row.status == "unreadable"
    assert row.note == "unable to check: /nowhere/journalctl: No such file or directory; set its path"
