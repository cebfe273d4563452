"""Says which run a verdict is about if the inputs hold others, with a command that diagnoses one of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

from trackside.evidence import Frame, derived
from trackside.finding import Claim, Sentence, Verdict
from trackside.model import Event, Input
from trackside.query import events
from trackside.read.walk import list_files
from trackside.runs.logs import leaf_of
from trackside.runs.other_runs import KIND
from trackside.session.request import Paths
from trackside.stores.memory import MemoryStore

OTHER_JOBS = Sentence("this verdict is about job {job}; the inputs also hold {jobs}: `{command:whole}`")
OTHER_LOGS = Sentence("the verdict on job {job} leaves out {logs}, whose job is not known: `{command:whole}`")
SEPARATE_LOGS = Sentence(
    "{logs} look like separate runs, but are judged as one, and the answer is from {own}; for another one alone: "
    "`{command:whole}`"
)
MAX_NAMES = 5
MAX_COMMAND_CHARS = 200
"""A longer command would be cut on the screen: then only its option is shown."""


def other_runs(verdict: Verdict, store: MemoryStore, paths: Paths) -> Iterator[Claim]:
    """The cautions about other runs. ``paths``: the inputs as the user gave them."""
    frame = store.ask(events(KIND))
    if not isinstance(frame, Frame) or not frame:
        return
    input_paths = [os.fspath(path) for path in paths]
    if verdict.run.id is not None:
        jobs = [row for row in frame.events if row.get("job") is not None]
        if jobs:
            cited = [frame.value(row, "job") for row in jobs]
            names = [str(value.value) for value in cited]
            command = shlex.join(["trackside", "diagnose", *input_paths, "--job", names[0]])
            noun = "jobs" if len(names) > 1 else "job"
            yield OTHER_JOBS(
                job=derived(verdict.run.id, *cited),
                jobs=derived(f"{noun} {_listed(names)}", *cited),
                command=derived(command if len(command) <= MAX_COMMAND_CHARS else f"--job {names[0]}", *cited),
            )
        yield from _logs(
            OTHER_LOGS, frame, [row for row in frame.events if row.get("job") is None], input_paths, verdict
        )
        return
    primary = verdict.primary.at
    last = store.ask(events("progress"))
    points = last.events if isinstance(last, Frame) else ()
    own = primary.path if primary is not None else points[-1].at.path if points else None
    yield from _logs(SEPARATE_LOGS, frame, [row for row in frame.events if row.get("used")], input_paths, verdict, own)


def _logs(
    sentence: Sentence,
    frame: Frame,
    rows: Sequence[Event],
    input_paths: Sequence[str],
    verdict: Verdict,
    own: str | None = None,
) -> Iterator[Claim]:
    """The caution about other logs; ``own``: the one that the answer is from."""
    others = [row for row in rows if row.at.path != own]
    files = {name: os.fspath(path) for path, name in list_files(input_paths) if not isinstance(path, Input)}
    path = next((files[row.at.path] for row in others if row.at.path in files), None)
    if path is None:
        return
    cited = [frame.value(row, "path") for row in rows]
    values = {"logs": derived(_listed([leaf_of(row.at.path) for row in rows]), *cited)}
    if sentence is OTHER_LOGS:
        values["job"] = derived(verdict.run.id, *cited)
    elif own is None:
        return
    else:
        values["own"] = derived(leaf_of(own), *cited)
    yield sentence(**values, command=derived(shlex.join(["trackside", "diagnose", path]), *cited))


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:MAX_NAMES], *([f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else [])]
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]
