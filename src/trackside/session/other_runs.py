"""Says which run a verdict is about if the inputs hold others, and how to diagnose one of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace

from trackside.evidence import Frame, derived
from trackside.finding import Action, Claim, Sentence, ShellCommand, Verdict, action
from trackside.model import Event, Input
from trackside.query import events
from trackside.read.walk import list_files
from trackside.runs.logs import leaf_of
from trackside.runs.other_runs import KIND
from trackside.session.request import Paths
from trackside.stores.memory import MemoryStore

OTHER_JOBS = Sentence("this verdict is about job {job}; the inputs also hold {jobs}")
OTHER_LOGS = Sentence("the verdict on job {job} leaves out {logs}, whose job is not known")
SEPARATE_LOGS = Sentence("{logs} look like separate runs, but are judged as one; the answer is from {own}")
DIAGNOSE_OTHER = Sentence("for a verdict on {other}, run this")
DIAGNOSE_JOBS = Sentence("for a verdict on one of the other jobs, name it in this command")
COMMAND = ShellCommand("{command:whole}")
MAX_NAMES = 5


def with_other_runs(verdict: Verdict, store: MemoryStore, paths: Paths) -> Verdict:
    """The verdict with cautions about other runs, and commands that diagnose one of them. ``paths``: the inputs as the
    user gave them."""
    frame = store.ask(events(KIND))
    if not isinstance(frame, Frame) or not frame:
        return verdict
    input_paths = [os.fspath(path) for path in paths]
    advice = [
        *_about_jobs(verdict, frame, input_paths),
        *(_about_logs(verdict, frame, input_paths) if verdict.run.id is not None else ()),
        *_about_separate_logs(verdict, frame, store, input_paths),
    ]
    primary = replace(verdict.primary, actions=(*verdict.primary.actions, *(step for _, step in advice if step)))
    return replace(verdict, primary=primary, preflight=(*(claim for claim, _ in advice), *verdict.preflight))


def has_other_jobs(store: MemoryStore) -> bool:
    """Whether the inputs hold other jobs than that of the run."""
    frame = store.ask(events(KIND))
    return isinstance(frame, Frame) and any(row.get("job") is not None for row in frame.events)


def _about_jobs(verdict: Verdict, frame: Frame, paths: Sequence[str]) -> list[tuple[Claim, Action | None]]:
    """Other jobs that have a log or ended badly."""
    jobs = [frame.value(row, "job") for row in frame.events if row.get("job") is not None]
    if not jobs or verdict.run.id is None:
        return []
    names = [str(value.value) for value in jobs]
    listed = derived(f"job{'s' if len(names) > 1 else ''} {_listed(names)}", *jobs)
    command = derived(shlex.join(["trackside", "diagnose", *paths, "--job", names[0]]), jobs[0])
    sentence = DIAGNOSE_OTHER if len(names) == 1 else DIAGNOSE_JOBS
    step = action(sentence, COMMAND, other=derived(f"job {names[0]}", jobs[0]), command=command)
    return [(OTHER_JOBS(job=derived(verdict.run.id, *jobs), jobs=listed), step)]


def _about_logs(verdict: Verdict, frame: Frame, paths: Sequence[str]) -> list[tuple[Claim, Action | None]]:
    """Logs of no known job that were not used."""
    rows = [row for row in frame.events if row.get("job") is None and not row.get("used")]
    if not rows:
        return []
    logs, cites = [row.at.path for row in rows], [frame.value(row, "path") for row in rows]
    claim = OTHER_LOGS(
        job=derived(verdict.run.id, *cites), logs=derived(_listed([leaf_of(log) for log in logs]), *cites)
    )
    return [(claim, _diagnose_log(frame, rows, paths))]


def _about_separate_logs(
    verdict: Verdict, frame: Frame, store: MemoryStore, paths: Sequence[str]
) -> list[tuple[Claim, Action | None]]:
    """Logs that were used together although they look like separate runs."""
    rows = [row for row in frame.events if row.get("used")]
    progress = store.ask(events("progress"))
    last = progress.events[-1:] if isinstance(progress, Frame) else ()
    own = verdict.primary.at.path if verdict.primary.at is not None else next((row.at.path for row in last), None)
    if len(rows) < 2 or own is None:
        return []
    cites = [frame.value(row, "path") for row in rows]
    logs = derived(_listed([leaf_of(row.at.path) for row in rows]), *cites)
    others = [row for row in rows if row.at.path != own]
    return [(SEPARATE_LOGS(logs=logs, own=derived(leaf_of(own), *cites)), _diagnose_log(frame, others, paths))]


def _diagnose_log(frame: Frame, rows: Sequence[Event], paths: Sequence[str]) -> Action | None:
    """The command for the first of these logs that is a file, rather than a part of an archive."""
    files = {name: os.fspath(path) for path, name in list_files(paths) if not isinstance(path, Input)}
    row = next((row for row in rows if row.at.path in files), None)
    if row is None:
        return None
    log = frame.value(row, "path")
    command = derived(shlex.join(["trackside", "diagnose", files[row.at.path]]), log)
    return action(DIAGNOSE_OTHER, COMMAND, other=derived(leaf_of(row.at.path), log), command=command)


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:MAX_NAMES], *([f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else [])]
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]
