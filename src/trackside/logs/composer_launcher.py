"""Composer's launcher: the rank that crashed first, the ranks that it ended, and their exit codes."""

from __future__ import annotations

import re

from trackside.catalog.signals import read_code
from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

LAUNCHER = "composer"

PARSER = Parser("composer-launcher", "MosaicML Composer launcher", "system")


@PARSER.pattern(
    rb"Rank [0-9]{1,7} crashed with exit code -?[0-9]",
    r"(?:^|[:\s])Rank (\d{1,7}) crashed with exit code (-?\d{1,5})\.?\s*$",
    safety="The first rank that the launcher found dead.",
    matches=(
        "ERROR:composer.cli.launcher:Rank 3 crashed with exit code 1.",
        "Rank 0 crashed with exit code -9.",
    ),
    avoids=("the tool of Rank 3 crashed with exit code x",),
)
def _first_crash(line: Line, match: re.Match[str]) -> Event:
    return _failure(line, int(match[1]), int(match[2]), None, first=True)


@PARSER.pattern(
    rb"lobal rank [0-9]{1,7} \(PID [0-9]{1,10}\) exited with code -?[0-9]",
    r"Global rank (\d{1,7}) \(PID (\d{1,10})\) exited with code (-?\d{1,5})\s*$",
    safety="Every rank that failed; a signal that the launcher sent is teardown.",
    matches=(
        "Global rank 3 (PID 4711) exited with code 1",
        "ERROR:composer.cli.launcher:Global rank 0 (PID 4708) exited with code -6",
    ),
    avoids=("Global rank 3 (PID 4711) exited with code zero",),
)
def _rank_exit(line: Line, match: re.Match[str]) -> Event:
    return _failure(line, int(match[1]), int(match[3]), int(match[2]), first=False)


@PARSER.pattern(
    rb"global rank [0-9]{1,7} \(PID [0-9]{1,10}\) with SIG",
    r"(?:Killing|Failed to kill) global rank (\d{1,7}) \(PID (\d{1,10})\) with SIGTERM",
    safety="Always teardown: the launcher ends the other ranks once one has failed.",
    matches=(
        "INFO:composer.cli.launcher:Killing global rank 1 (PID 4709) with SIGTERM",
        "Failed to kill global rank 1 (PID 4709) with SIGTERM; terminating with SIGKILL instead",
    ),
    avoids=("Killing global rank by hand",),
)
def _kill_notice(line: Line, match: re.Match[str]) -> Event:
    exits.note_launcher_kill(line, int(match[2]))
    return line.event("signal_received", EventRole.TEARDOWN, rank=int(match[1]), pid=int(match[2]), by=LAUNCHER)


def _failure(line: Line, rank: int, code: int, pid: int | None, *, first: bool) -> Event:
    """The launcher's report about one rank."""
    end = read_code(code)
    return line.event(
        "launcher_failure",
        exits.role_of(line, end.signal, pid, first=first),
        rank=rank,
        launcher=LAUNCHER,
        global_rank=rank,
        exit_code=end.code,
        signal=end.signal,
        signal_name=end.signal_name,
        pid=pid,
        first=first,
    )
