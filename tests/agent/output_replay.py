"""Replays a run's recorded output: the source follows it, a receiver stores it, and the result is diagnosed."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.serve.receiving import StoreLineFileReader, decode_entry, labels_of
from tools.cases import Case
from trackside.agent.output import followed_file
from trackside.agent.output.holders import OpenOutput
from trackside.agent.output.options import JobOutputOptions, TextPolicy
from trackside.finding import Verdict
from trackside.logs.stamp import find_time
from trackside.model import Run
from trackside.runs.resolve import SeveralRuns
from trackside.session.choice import choose_run
from trackside.session.inputs import LoadedInputs
from trackside.session.paths import load
from trackside.stores.receiver.intake import Intake
from trackside.stores.receiver.options import ReceiverLimits, RetentionOptions
from trackside.stores.receiver.pending import LineStream
from trackside.stores.receiver.write_ahead import Header
from trackside.verdict import engine

START = 1_772_438_400.0
_JOB = re.compile(r"slurm[-_](\d{1,10}(?:_\d{1,10})?)")


def verdict_on(loaded: LoadedInputs, job: str | None = None) -> tuple[Verdict, Run]:
    """The verdict on loaded inputs, and the run."""
    try:
        run, store = choose_run(loaded)
    except SeveralRuns:
        run, store = choose_run(replace(loaded, job=job))
    return engine.verdict_of(engine.facts_of(store, run), loaded.inputs), run


def replay(case: Case, text: TextPolicy, folder: Path) -> tuple[str, str, Counter[str]]:
    """(family from the files, family from what the agent sent of them, numbers of bytes and lines of each).

    The second family is empty if the case has no job log to replay.
    """
    with case.inputs() as inputs:
        loaded = load([inputs])
        verdict, run = verdict_on(loaded, case.expected.get("job"))
        logs = [row.path for row in loaded.inputs if row.format == "job-log" and "!" not in row.path]
        # Archives and empty files are not replayed: no process writes them.
        logs = [path for path in logs if (inputs / path).is_file() and (inputs / path).stat().st_size]
        if not logs:
            return verdict.primary.family, "", Counter()
        replayed = folder / "run"
        shutil.copytree(inputs, replayed)
        counts: Counter[str] = Counter()
        store = folder / "store"
        intake = Intake(
            store, decode_entry, labels_of, ReceiverLimits(), RetentionOptions(flush_s=3600.0), StoreLineFileReader
        )
        try:
            for path in logs:
                (replayed / path).unlink()
                for stream in sent_streams(inputs / path, path, run, text, counts, folder / "growing"):
                    header = Header("lines", received_ns=1)
                    body = _body(stream)
                    intake.accept(header, body, decode_entry((header, body))).result(30)
            intake.flush(True).result(60)
        finally:
            intake.close()
        shutil.copytree(store / "received" / "logs", replayed, dirs_exist_ok=True)
        received_verdict, _ = verdict_on(load([replayed]), run.id)
        return verdict.primary.family, received_verdict.primary.family, counts


def _body(stream: LineStream) -> bytes:
    return json.dumps([[stream.labels, stream.times_ns, stream.lines]]).encode()


def sent_streams(
    file: Path, path: str, run: Run, text: TextPolicy, counts: Counter[str], growing: Path
) -> list[LineStream]:
    """What the source sends of a file that grows in pieces, as ``growing``, to its recorded content over the run's time."""
    data = file.read_bytes()
    job_match = _JOB.search(path)
    job = job_match[1] if job_match else (run.id or "4242")
    growing.write_bytes(b"")
    try:
        output = OpenOutput((0, 0), path, str(growing), "stdout", job)
        follower = followed_file.FollowedFile(output, JobOutputOptions(text=text), None, 0.0, False)
        stream = LineStream(dict(follower.labels), [], [])
        if len(run.nodes) == 1:
            stream.labels["node"] = run.nodes[0]
        pieces = _timed_pieces(data, run)
        start = now = pieces[0][0]
        with growing.open("ab") as writer:
            for clock, piece in pieces:
                writer.write(piece)
                writer.flush()
                now = max(now + 0.01, clock)
                content = follower.read(1 << 20, now - start, int(now * 1e9))
                _append_lines(stream, content.lines)
                _append_lines(stream, follower.read(1 << 20, now - start, int(now * 1e9)).lines)
        now -= start
        clock = now + start
        for wait in (2.0, 20.0, 60.0):
            _append_lines(stream, follower.read(1 << 20, now + wait, int(clock * 1e9)).lines)
        _append_lines(stream, follower.end(now + 90.0, int(clock * 1e9)))
        follower.close()
    finally:
        growing.unlink()
    counts["lines"] += len(stream.lines)
    counts["of lines"] += data.count(b"\n")
    counts["bytes"] += sum(map(len, stream.lines))
    counts["of bytes"] += len(data)
    return [stream] if stream.lines else []


def _timed_pieces(data: bytes, run: Run) -> list[tuple[float, bytes]]:
    """Pieces of the output with the times when they were written.

    A line without a time has that of the line before it. If no line has a time, they are spread evenly over the run.
    """
    lines = data.splitlines(keepends=True)
    line_times = [find_time(line.decode("utf-8", "replace"), None) for line in lines]
    known_times = [time for time in line_times if time]
    start = run.start or (known_times[0] if known_times else START)
    if not known_times:
        end = run.end or start + 3600.0
        line_times = [start + (end - start) * number / len(lines) for number in range(len(lines))]
    pieces: list[tuple[float, bytes]] = []
    clock = start
    for time, line in zip(line_times, lines, strict=True):
        clock = max(clock, time or clock)
        if pieces and pieces[-1][0] == clock and len(pieces[-1][1]) < 4000:
            pieces[-1] = clock, pieces[-1][1] + line
        else:
            pieces.append((clock, line))
    return pieces


def _append_lines(stream: LineStream, sent: list[tuple[int, str]]) -> None:
    for time_ns, text in sent:
        last = stream.times_ns[-1] if stream.times_ns else 0
        stream.times_ns.append(max(time_ns, last + 1))
        stream.lines.append(text)
