"""HPE Cray's launchers: PALS (mpiexec under PBS) and ALPS (aprun)."""

from __future__ import annotations

import re

from trackside.catalog.signals import Exit, read_code, signal_number
from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("cray", "HPE Cray PALS and ALPS", "system")


@PARSER.pattern(
    rb": rank [0-9]{1,7} (?:died from signal|exited with code) [0-9]",
    r"^(\S{1,120}): rank (\d{1,7}) (?:died from signal (\d{1,2})|exited with code (\d{1,3}))(?: and dumped core)?\s*$",
    safety="PALS ends the other ranks with SIGTERM: only the first report that is not one is the first failure.",
    matches=(
        "x1003c0s1b0n0.hsn.site.org: rank 2 died from signal 6 and dumped core",
        "x1003c0s1b0n0: rank 12 exited with code 1",
        "x1003c0s1b0n0: rank 5 died from signal 15",
    ),
    avoids=("rank 3 died from signal 9", "we saw that n1: rank 3 exited with code 1 and then went on"),
)
def _pals_rank_end(line: Line, match: re.Match[str]) -> Event:
    end = Exit(signal=int(match[3])) if match[3] else read_code(int(match[4]))
    notes = line.notes("cray")
    first = end.signal != 15 and not notes.get("failed")
    notes["failed"] = notes.get("failed") or first
    return line.event(
        "launcher_failure",
        exits.role_of(line, end.signal, first=first),
        rank=int(match[2]),
        node=match[1].split(".")[0],
        launcher="pals",
        global_rank=int(match[2]),
        exit_code=end.code,
        signal=end.signal,
        signal_name=end.signal_name,
        host=match[1],
        first=first,
    )


@PARSER.pattern(
    rb": shepherd died from signal [0-9]",
    r"^(\S{1,120}): shepherd died from signal (\d{1,2})",
    safety="The launcher's own process on a node: the ranks there end with it.",
    matches=("x1003c0s1b0n0.hsn.site.org: shepherd died from signal 9",),
    avoids=("the shepherd died from signal 9",),
)
def _shepherd_end(line: Line, match: re.Match[str]) -> Event:
    return exits.process_exit(line, Exit(signal=int(match[2])), "pals", node=match[1].split(".")[0])


@PARSER.pattern(
    rb"PE RANK [0-9]{1,7} exit signal ",
    r"\[NID (\d{1,6})\].{0,120}PE RANK (\d{1,7}) exit signal ([A-Z][\w ]{2,30}?)\s*$",
    safety="ALPS reports the rank that died first, before it ends the application.",
    matches=(
        "_pmiu_daemon(SIGCHLD): [NID 00123] [c0-0c0s3n1] [Fri Jan  2 03:04:05 2026] PE RANK 5 exit signal Killed",
        "[NID 00123] 2026-01-02 03:04:05 PE RANK 5 exit signal Segmentation fault",
    ),
    avoids=("PE RANK 5 exit signal handler installed",),
)
def _aprun_rank_end(line: Line, match: re.Match[str]) -> Event | None:
    number = signal_number(match[3])
    if number is None:
        return None
    end = Exit(signal=number)
    return line.event(
        "launcher_failure",
        exits.role_of(line, number, first=True),
        rank=int(match[2]),
        launcher="aprun",
        global_rank=int(match[2]),
        signal=number,
        signal_name=end.signal_name,
        host=f"nid{match[1]}",
        first=True,
    )
