"""A run's recorded output as if it were printed now: followed by the source, sent, received, and judged."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tools.cases import Case

from tests.serve.receiving import LineReader, decode_entry, labels_of
from trackside.agent.output import followed_file
from trackside.agent.output.holders import OpenOutput
from trackside.agent.output.options import JobOutputOptions, Text
from trackside.finding import Verdict
from trackside.logs.stamp import find_time
from trackside.model import Run
from trackside.runs.resolve import SeveralRuns
from trackside.session.choice import choose
from trackside.session.inputs import LoadedInputs
from trackside.session.paths import load
from trackside.stores.receiver.intake import Intake
from trackside.stores.receiver.options import Limits, RetentionOptions
from trackside.stores.receiver.pending import LineStream
from trackside.stores.receiver.write_ahead import Header
from trackside.verdict import engine

START = 1_772_438_400.0
_JOB = re.compile(r"slurm[-_](\d{1,10}(?:_\d{1,10})?)")


def judged(loaded: LoadedInputs, job: str | None = None) -> tuple[Verdict, Run]:
    """The verdict on what was loaded."""
    try:
        run, store = choose(loaded)
    except SeveralRuns:
        run, store = choose(replace(loaded, job=job))
    return engine.verdict_of(engine.facts_of(store, run), loaded.inputs), run


def played(case: Case, text: Text, folder: Path) -> tuple[str, str, Counter[str]]:
    """(family of the files, family of what was sent of them, how many bytes and lines of each)."""
    with case.inputs() as inputs:
        direct = load([inputs])
        verdict, run = judged(direct, case.expected.get("job"))
        logs = [row.path for row in direct.inputs if row.format == "job-log" and "!" not in row.path]
        # Not received here: what stands in archives, and what no process writes.
        logs = [path for path in logs if (inputs / path).is_file() and (inputs / path).stat().st_size]
        if not logs:
            return verdict.primary.family, "", Counter()
        left = folder / "run"
        shutil.copytree(inputs, left)
        counts: Counter[str] = Counter()
        store = folder / "store"
        intake = Intake(store, decode_entry, labels_of, Limits(), RetentionOptions(flush_s=3600.0), LineReader)
        try:
            for path in logs:
                (left / path).unlink()
                for stream in sent_of(inputs / path, path, run, text, counts):
                    header = Header("lines", received_ns=1)
                    body = _body(stream)
                    intake.accept(header, body, decode_entry((header, body))).result(30)
            intake.flush(True).result(60)
        finally:
            intake.close()
        shutil.copytree(store / "received" / "logs", left, dirs_exist_ok=True)
        again, _ = judged(load([left]), run.id)
        return verdict.primary.family, again.primary.family, counts


def _body(stream: LineStream) -> bytes:
    return json.dumps([[stream.labels, stream.times_ns, stream.lines]]).encode()


def sent_of(file: Path, path: str, run: Run, text: Text, counts: Counter[str]) -> list[LineStream]:
    """What the source sends of a file that grows to this, in so many pieces over the run's time."""
    data = file.read_bytes()
    named = _JOB.search(path)
    job = named[1] if named else (run.id or "4242")
    growing = file.with_suffix(".growing")
    growing.write_bytes(b"")
    try:
        held = OpenOutput((0, 0), path, str(growing), "stdout", job)
        one = followed_file.FollowedFile(held, JobOutputOptions(text=text), None, 0.0, False)
        stream = LineStream(dict(one.labels), [], [])
        if len(run.nodes) == 1:
            stream.labels["node"] = run.nodes[0]
        times = _times(data, run)
        start = now = times[0][0]
        with growing.open("ab") as writer:
            for clock, piece in times:
                writer.write(piece)
                writer.flush()
                now = max(now + 0.01, clock)
                content = one.read(1 << 20, now - start, int(now * 1e9))
                _add(stream, content.sent)
                _add(stream, one.read(1 << 20, now - start, int(now * 1e9)).sent)
        now -= start
        clock = now + start
        for wait in (2.0, 20.0, 60.0):
            _add(stream, one.read(1 << 20, now + wait, int(clock * 1e9)).sent)
        _add(stream, one.end(now + 90.0, int(clock * 1e9)))
        one.close()
    finally:
        growing.unlink()
    counts["lines"] += len(stream.lines)
    counts["of lines"] += data.count(b"\n")
    counts["bytes"] += sum(map(len, stream.lines))
    counts["of bytes"] += len(data)
    return [stream] if stream.lines else []


def _times(data: bytes, run: Run) -> list[tuple[float, bytes]]:
    """What was written when: each line at its own time or that of the one before, all of them spread over the run's
    time where none has any."""
    lines = data.splitlines(keepends=True)
    told = [find_time(line.decode("utf-8", "replace"), None) for line in lines]
    known = [time for time in told if time]
    start = run.start or (known[0] if known else START)
    if not known:
        end = run.end or start + 3600.0
        told = [start + (end - start) * number / len(lines) for number in range(len(lines))]
    found: list[tuple[float, bytes]] = []
    clock = start
    for time, line in zip(told, lines, strict=True):
        clock = max(clock, time or clock)
        if found and found[-1][0] == clock and len(found[-1][1]) < 4000:
            found[-1] = clock, found[-1][1] + line
        else:
            found.append((clock, line))
    return found


def _add(stream: LineStream, sent: list[tuple[int, str]]) -> None:
    for time_ns, text in sent:
        last = stream.times_ns[-1] if stream.times_ns else 0
        stream.times_ns.append(max(time_ns, last + 1))
        stream.lines.append(text)
