"""Output of jobs: the files that their processes write to, followed from the first byte."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from trackside.agent.output.followed_file import FollowedFile, NewLines
from trackside.agent.output.holders import Holders, Key, OpenOutput
from trackside.agent.output.job_rates import JobRates
from trackside.agent.output.line_policy import TimedLine
from trackside.agent.output.options import JobOutputOptions
from trackside.agent.output.pattern_files import PatternFiles
from trackside.agent.output.positions import SavedPositions
from trackside.agent.output.sharing import FileOwnership
from trackside.agent.output.training_metrics import ALL
from trackside.agent.source import AgentSource, Collector, Context, LogLine, Reading, Sample

CHECK_S = 2.0
"""Interval at which all processes are checked; new ones are checked in each reading."""
PATTERNS_S = 10.0
"""Interval at which file name patterns are evaluated."""
READ_BYTES = 256 << 10
"""Maximum bytes read of one file before the next file's turn."""
MAX_BYTES = 4 << 20
"""Limit of all files per reading; the rest is read later."""
MAX_LINES = 25_000
JOB_SHARE = 7
"""One job may use up to this multiple of the number of files that are still free."""
IDLE_S = 10.0
"""After this time without new lines, a file is only read every IDLE_READ_S."""
IDLE_READ_S = 1.0
QUIET_S = 2.0
"""After this time without new lines, a file's last lines are sent, whatever its job sent before."""
CLOSE_AFTER_S = 90.0
"""A file is closed this long after a process was last seen to have it open."""
MIN_CLOCK_SETBACK_NS = 2_000_000_000
"""If a line's time is this far before the last one's, the clock was set back."""


class JobOutput(Collector):
    """Follows output files. A reading that the runner has not accepted is offered again, and nothing else is read
    meanwhile."""

    def __init__(self, context: Context) -> None:
        options: JobOutputOptions = context.options
        self._options, self._say = options, context.say
        sharing = FileOwnership(context.node.proc, options.shared)
        self._holders = Holders(context.node.proc, context.node.name, context.owners, sharing)
        self._pattern_files = PatternFiles(options.paths)
        self._positions = SavedPositions(None if context.state is None else context.state / "job_output.json")
        if self._positions.warning:
            context.say(self._positions.warning)
        self._rates = JobRates(options.job_bytes_per_s, options.job_burst_bytes)
        self._files: dict[Key, FollowedFile] = {}
        self._failed_at: dict[Key, float] = {}
        """Key of a file that cannot be opened -> time of the last attempt."""
        self._offered: tuple[list[Sample], list[LogLine]] | None = None
        self._checked_at = self._globbed_at = float("-inf")
        self._is_first = True
        self._last_line_ns = 0
        self._first_index = 0
        self._warned: set[str] = set()

    # -- the Collector interface

    def collect(self, reading: Reading) -> None:
        if self._offered is not None:
            reading.samples += self._offered[0]
            reading.lines += self._offered[1]
            return
        now = time.monotonic()
        self._find(now, reading)
        self._follow(now, reading)
        self._close_unused(now, reading)
        if reading.lines or reading.samples:
            self._offered = list(reading.samples), list(reading.lines)

    def accepted(self) -> None:
        """The last reading is in the spool, so it is not offered again."""
        self._offered = None
        changed = [file for file in self._files.values() if file.position_changed]
        if changed:
            self._save_positions(changed)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    # -- implementation

    def _find(self, now: float, reading: Reading) -> None:
        outputs = self._holders.newest()
        if now - self._checked_at >= CHECK_S:
            self._checked_at = now
            outputs += self._holders.check(now)
            outputs += self._pattern_files.worker_logs(self._holders.log_folders)
        if self._options.paths and now - self._globbed_at >= PATTERNS_S:
            self._globbed_at = now
            outputs += self._pattern_files.matching_files()
        for output in outputs:
            file = self._files.get(output.key)
            if file is not None:
                file.open_at = now
            elif now - self._failed_at.get(output.key, float("-inf")) >= CLOSE_AFTER_S:
                self._open(output, now, reading)
        self._is_first = self._is_first and not outputs
        for job in self._holders.refused - self._warned:
            self._warned.add(job)
            reading.warnings.append(
                f"the output files of job {job} are unknown: no permission to read /proc/PID/fd of its processes; run "
                "the agent as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
            )
        for path in self._pattern_files.without_job_id - self._warned:
            self._warned.add(path)
            reading.warnings.append(
                f"{path} is not followed: its name contains no job id; write %j in paths where the job id is"
            )

    def _open(self, output: OpenOutput, now: float, reading: Reading) -> None:
        max_files = self._options.max_files
        files_of_job = sum(file.output.job == output.job for file in self._files.values())
        free = max_files - len(self._files)
        if free > 0 and files_of_job >= JOB_SHARE * free:  # one job must not use up the files of the others
            warning = f"job {output.job} has more than {files_of_job} output files; raise max_files to follow all"
            self._warn_once(reading, f"files of {output.job}", warning)
            return
        if not free:
            self._warn_once(reading, "files", f"more than {max_files} output files; raise max_files to follow all")
            return
        try:
            file = FollowedFile(output, self._options, self._positions.get(output.key), now, self._is_first)
        except OSError as error:
            self._failed_at[output.key] = now
            reason = f"{output.path} of job {output.job} cannot be read ({error.strerror})"
            self._warn_once(
                reading,
                output.path,
                f"{reason}: give the agent's user access, or run it as root or with CAP_DAC_READ_SEARCH",
            )
            return
        self._files[output.key] = file
        self._failed_at.pop(output.key, None)
        if file.skipped:
            reading.lost["skipped_bytes"] += file.skipped

    def _follow(self, now: float, reading: Reading) -> None:
        """Read the files in turns, until none has more or the reading is full."""
        bytes_left = MAX_BYTES
        files = [
            file for file in self._files.values() if now - file.grew_at < IDLE_S or now - file.read_at >= IDLE_READ_S
        ]
        if files:
            self._first_index = (self._first_index + 1) % len(files)
            files = files[self._first_index :] + files[: self._first_index]
        measurements: dict[tuple[str, str | None, str], float] = {}
        while files and bytes_left > 0 and len(reading.lines) < MAX_LINES:
            unfinished = []
            for file in files:
                if bytes_left <= 0 or len(reading.lines) >= MAX_LINES:
                    break
                result = self._read(file, min(READ_BYTES, bytes_left), now, reading)
                bytes_left -= result.bytes
                if result.bytes and file.has_more:
                    unfinished.append(file)
                rank = dict(file.labels).get("rank")
                measurements |= {
                    (file.output.job, rank, name): value for name, value in file.take_measurements().items()
                }
            files = unfinished
        for (job, rank, metric), value in measurements.items():
            reading.sample(metric, value, job=job, rank=rank)

    def _read(self, file: FollowedFile, max_bytes: int, now: float, reading: Reading) -> NewLines:
        file.read_at = now
        try:
            result = file.read(max_bytes, now, self._now_ns(reading))
        except OSError as error:
            self._warn_once(reading, file.output.path, f"{file.output.path} can no longer be read ({error.strerror})")
            return NewLines([])
        self._add(reading, file, result.lines, now, now - file.grew_at > QUIET_S)
        if result.lost:
            reading.lost["bytes"] += result.lost
        return result

    def _close_unused(self, now: float, reading: Reading) -> None:
        for key, file in list(self._files.items()):
            if now - file.open_at > CLOSE_AFTER_S and now - file.grew_at > CLOSE_AFTER_S:
                self._add(reading, file, file.end(now, self._now_ns(reading)), now, True)
                self._save_positions([file])
                file.close()
                del self._files[key]
                self._rates.forget(frozenset(file.output.job for file in self._files.values()))

    def _add(
        self, reading: Reading, file: FollowedFile, lines: Sequence[TimedLine], now: float, is_quiet: bool
    ) -> None:
        """Add the lines that are within the job's rate, with unique times, so that the receiver can tell a line that
        was sent twice from two equal lines."""
        job, left_out_before = file.output.job, self._rates.left_out_bytes
        selected = self._rates.select(job, file.key, lines, now, is_quiet)
        if left_out := self._rates.left_out_bytes - left_out_before:
            reading.lost["over_rate_bytes"] += left_out
            warning = (
                f"job {job} prints more than {self._options.job_bytes_per_s:,} bytes per second (job_bytes_per_s): "
                "only the last lines of the rest are sent"
            )
            self._warn_once(reading, f"rate of {job}", warning)
        for time_ns, text in selected:
            step_back_ns = self._last_line_ns - time_ns
            self._last_line_ns = (
                time_ns if step_back_ns < 0 or step_back_ns > MIN_CLOCK_SETBACK_NS else self._last_line_ns + 1
            )
            reading.lines.append(LogLine(self._last_line_ns, file.labels, text))

    def _now_ns(self, reading: Reading) -> int:
        return max(time.time_ns(), reading.time_ns)

    def _save_positions(self, files: Iterable[FollowedFile]) -> None:
        positions = []
        for file in files:
            try:
                positions.append(file.position)
                file.position_changed = False
            except OSError:
                continue
        try:
            self._positions.put(positions)
        except OSError as error:
            if "positions" not in self._warned:
                self._warned.add("positions")
                self._say(
                    f"read positions of output files cannot be saved ({error}); lines are sent again after a restart"
                )

    def _warn_once(self, reading: Reading, topic: str, warning: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            reading.warnings.append(warning)


SOURCE = AgentSource(
    id="job_output",
    title="output of jobs",
    open=JobOutput,
    metrics=ALL,
    lines="standard output and error of jobs, as selected by the option text",
    interval_s=0.25,
    timeout_s=30.0,
    needs="root, or CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, to read the output of other users' jobs",
    capabilities=("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"),
    options=JobOutputOptions,
)
