"""What jobs print: the files that their processes write to, followed from their first byte on."""

from __future__ import annotations

import time
from collections.abc import Iterable

from trackside.agent.output.choosing import Sent
from trackside.agent.output.followed import Followed, Told
from trackside.agent.output.holders import Held, Holders, Key
from trackside.agent.output.marks import Marks
from trackside.agent.output.measures import ALL
from trackside.agent.output.named import Named
from trackside.agent.output.options import JobOutputOptions
from trackside.agent.output.sharing import Sharing
from trackside.agent.source import Collector, Context, LogLine, Reading, Sample, Source

LOOK_S = 2.0
"""How often all processes are looked at; new ones are each time."""
NAMES_S = 10.0
"""How often names are."""
PIECE = 256 << 10
"""Bytes of one file that are read before it is another's turn."""
MOST_BYTES = 4 << 20
"""Of all files in one reading. What is more waits where it is: in the files."""
MOST_LINES = 25_000
SHARE = 7
"""Files of one job are followed up to so many times the room that is left."""
IDLE_S = 10.0
"""Quiet for so long, a file is looked at only so often,"""
IDLE_LOOK_S = 1.0
UNHELD_S = 90.0
"""and let go so long after a process was last seen to hold it."""
BACK_NS = 2_000_000_000
"""The clock was set back where it stands so far before the last line's time."""


class JobOutput(Collector):
    """Follows them. What the runner has not accepted is offered again, and nothing else is read meanwhile."""

    def __init__(self, context: Context) -> None:
        options: JobOutputOptions = context.options
        self._options, self._say = options, context.say
        sharing = Sharing(context.node.proc, options.shared)
        self._holders = Holders(context.node.proc, context.node.name, context.owners, sharing)
        self._named = Named(options.paths)
        self._marks = Marks(None if context.state is None else context.state / "job_output.json")
        if self._marks.warning:
            context.say(self._marks.warning)
        self._files: dict[Key, Followed] = {}
        self._refused: dict[Key, float] = {}
        """Files that can't be opened -> when that was tried."""
        self._offered: tuple[list[Sample], list[LogLine]] | None = None
        self._looked = self._globbed = float("-inf")
        self._is_first = True
        self._clock = 0
        self._turn = 0
        self._told: set[str] = set()

    # -- the contract

    def collect(self, reading: Reading) -> None:
        if self._offered is not None:
            reading.samples += self._offered[0]
            reading.lines += self._offered[1]
            return
        now = time.monotonic()
        self._find(now, reading)
        self._follow(now, reading)
        self._let_go(now, reading)
        if reading.lines or reading.samples:
            self._offered = list(reading.samples), list(reading.lines)

    def accepted(self) -> None:
        """The last reading is in the spool, or was read away: it is not offered again."""
        self._offered = None
        moved = [file for file in self._files.values() if file.moved]
        if moved:
            self._write(moved)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    # -- its parts

    def _find(self, now: float, reading: Reading) -> None:
        found = self._holders.newest()
        if now - self._looked >= LOOK_S:
            self._looked = now
            found += self._holders.look(now)
            found += self._named.logged(self._holders.logged)
        if self._options.paths and now - self._globbed >= NAMES_S:
            self._globbed = now
            found += self._named.given()
        for held in found:
            known = self._files.get(held.key)
            if known is not None:
                known.held_at = now
            elif now - self._refused.get(held.key, float("-inf")) >= UNHELD_S:
                self._open(held, now, reading)
        self._is_first = self._is_first and not found
        for job in self._holders.refused - self._told:
            self._told.add(job)
            reading.warnings.append(
                f"the output of job {job} can't be found: /proc/PID/fd of its processes may not be read; run as root,"
                " or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
            )
        for path in self._named.nameless - self._told:
            self._told.add(path)
            reading.warnings.append(
                f"{path} is not followed: its name tells no job; put %j into paths where the id stands"
            )

    def _open(self, held: Held, now: float, reading: Reading) -> None:
        most = self._options.most_files
        of_job = sum(file.held.job == held.job for file in self._files.values())
        free = most - len(self._files)
        if free > 0 and of_job >= SHARE * free:  # whatever one job does, the others' find room
            words = f"job {held.job} has more than {of_job} files of output; raise most_files to follow all"
            self._once(reading, f"files of {held.job}", words)
            return
        if not free:
            self._once(reading, "files", f"more than {most} files of output; raise most_files to follow all")
            return
        try:
            file = Followed(held, self._options, self._marks.get(held.key), now, self._is_first)
        except OSError as error:
            self._refused[held.key] = now
            why = f"{held.path} of job {held.job} can't be read ({error.strerror})"
            self._once(
                reading, held.path, f"{why}: let the agent's user read it, or run it as root with CAP_DAC_READ_SEARCH"
            )
            return
        self._files[held.key] = file
        self._refused.pop(held.key, None)
        if file.skipped:
            reading.lost["skipped_bytes"] += file.skipped

    def _follow(self, now: float, reading: Reading) -> None:
        """Read a piece of each file in turn until none has more, or a reading is full."""
        left = MOST_BYTES
        files = [f for f in self._files.values() if now - f.grew < IDLE_S or now - f.seen >= IDLE_LOOK_S]
        if files:
            self._turn = (self._turn + 1) % len(files)
            files = files[self._turn :] + files[: self._turn]
        figures: dict[tuple[str, str | None, str], float] = {}
        while files and left > 0 and len(reading.lines) < MOST_LINES:
            more = []
            for file in files:
                if left <= 0 or len(reading.lines) >= MOST_LINES:
                    break
                told = self._read(file, min(PIECE, left), now, reading)
                left -= told.bytes
                if told.bytes and file.has_more:
                    more.append(file)
                rank = dict(file.labels).get("rank")
                figures |= {(file.held.job, rank, name): value for name, value in file.measured().items()}
            files = more
        for (job, rank, metric), value in figures.items():
            reading.sample(metric, value, job=job, rank=rank)

    def _read(self, file: Followed, most: int, now: float, reading: Reading) -> Told:
        file.seen = now
        try:
            told = file.read(most, now, self._now(reading))
        except OSError as error:
            self._once(reading, file.held.path, f"{file.held.path} can't be read any more ({error.strerror})")
            return Told([])
        self._add(reading, file, told.sent)
        if told.lost:
            reading.lost["bytes"] += told.lost
        return told

    def _let_go(self, now: float, reading: Reading) -> None:
        for key, file in list(self._files.items()):
            if now - file.held_at > UNHELD_S and now - file.grew > UNHELD_S:
                self._add(reading, file, file.end(now, self._now(reading)))
                self._write([file])
                file.close()
                del self._files[key]

    def _add(self, reading: Reading, file: Followed, sent: Iterable[Sent]) -> None:
        """Add lines. No two have one time: so the receiver tells a line that was sent twice from two alike."""
        for time_ns, text in sent:
            behind = self._clock - time_ns
            self._clock = time_ns if behind < 0 or behind > BACK_NS else self._clock + 1
            reading.lines.append(LogLine(self._clock, file.labels, text))

    def _now(self, reading: Reading) -> int:
        return max(time.time_ns(), reading.time_ns)

    def _write(self, files: Iterable[Followed]) -> None:
        marks = []
        for file in files:
            try:
                marks.append(file.mark)
                file.moved = False
            except OSError:
                continue
        try:
            self._marks.put(marks)
        except OSError as error:
            if "marks" not in self._told:
                self._told.add("marks")
                self._say(f"how far output was sent can't be written down ({error}): after a restart it is sent again")

    def _once(self, reading: Reading, about: str, words: str) -> None:
        if about not in self._told:
            self._told.add(about)
            reading.warnings.append(words)


SOURCE = Source(
    id="job_output",
    title="what jobs print",
    open=JobOutput,
    metrics=ALL,
    lines="standard output and error of jobs, as the option text allows",
    interval_s=0.25,
    timeout_s=30.0,
    needs="root, or CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, to see and read the output of other users' jobs",
    options=JobOutputOptions,
)
