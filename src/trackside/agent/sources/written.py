"""What a job without a file writes to its standard output and error, caught at the system call: only when asked.

It costs every process of the node: 30 to 80 ns a system call, several hundred a write.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from trackside.agent.output.framing import Framer, Redraws, texts
from trackside.agent.source import Collector, Context, Reading, Source, Unavailable

MOST_PROCESSES = 4096
MOST_STREAMS = 8192
STREAMS = {1: "stdout", 2: "stderr"}
REDRAW_S = 5.0


@dataclass(frozen=True, slots=True)
class WrittenOptions:
    """``job``: whose output; there must be one. ``seconds``: how long, from when the agent begins: it is no way to
    live."""

    job: str = ""
    seconds: float = 600.0


class _Written(Collector):
    def __init__(self, context: Context) -> None:
        options: WrittenOptions = context.options
        if not options.job:
            raise Unavailable("no job was named", 'set job = "..." in [collect.written]')
        from trackside.agent.trace.written import Writes  # nothing of tracing is loaded before it is asked for

        self._job, self._proc, self._owners = options.job, context.node.proc, context.owners
        self._end = time.monotonic() + options.seconds
        self._ahead_ns = time.time_ns() - time.monotonic_ns()
        self._streams: dict[tuple[int, int], tuple[Framer, Redraws]] = {}
        self._writes: Writes | None = Writes()
        self._lost = 0
        context.say(
            f"written: for {options.seconds:g} s every system call of this node is looked at, for job {self._job}"
        )
        self._choose()

    def collect(self, reading: Reading) -> None:
        writes = self._writes
        if writes is None:
            reading.warnings.append(
                f"the time to catch what job {self._job} writes is over: restart the agent for more"
            )
            return
        self._choose()
        self._ahead_ns = time.time_ns() - time.monotonic_ns()
        for record in writes.records():
            stream = self._streams.get((record.pid, record.stream))
            if stream is None:
                if len(self._streams) >= MOST_STREAMS:
                    self._flush(reading, *next(iter(self._streams)))
                stream = self._streams[record.pid, record.stream] = Framer(), Redraws(REDRAW_S)
            if whole := stream[0].feed(record.data):
                self._give(reading, record.pid, record.stream, whole, record.at, stream[1])
        for pid, number in list(self._streams):
            if not os.path.exists(self._proc / str(pid)):
                self._flush(reading, pid, number)
        if (lost := writes.lost()) > self._lost:
            reading.lost["bytes"] = lost - self._lost
            self._lost = lost
        if time.monotonic() >= self._end:
            for pid, number in list(self._streams):
                self._flush(reading, pid, number)
            self.close()

    def _give(self, reading: Reading, pid: int, number: int, whole: bytes, at: int, redraws: Redraws) -> None:
        owner = self._owners.of_pid(pid)
        labels = {
            "slurm_job_id": self._job,
            "rank": owner.rank if owner is not None else None,
            "stream": STREAMS[number],
            "pid": pid,
        }
        for text in texts(whole, redraws, at * 1e-9):
            reading.line(text, at + self._ahead_ns, **labels)

    def _flush(self, reading: Reading, pid: int, number: int) -> None:
        framer, redraws = self._streams.pop((pid, number))
        if rest := framer.flush():
            self._give(reading, pid, number, rest, time.monotonic_ns(), redraws)

    def _choose(self) -> None:
        """The job's processes, less those streams that go to a file: that is read as one."""
        if self._writes is None:
            return
        pids = [each.pid for each in self._owners.processes() if each.owner.job == self._job][:MOST_PROCESSES]
        streams = {pid: self._without_file(pid) for pid in {*pids, *self._writes.pids()}}
        self._writes.choose({pid: bits for pid, bits in streams.items() if bits is not None})

    def _without_file(self, pid: int) -> int | None:
        """Bits of the streams that are no files; None where the process is gone."""
        bits = 0
        for number in STREAMS:
            try:
                target = os.readlink(self._proc / str(pid) / "fd" / str(number))
            except FileNotFoundError:
                if not os.path.exists(self._proc / str(pid)):
                    return None
                continue
            except OSError:
                continue
            if not target.startswith("/") or (target.startswith("/dev/") and target != "/dev/null"):
                bits |= 1 << number
        return bits

    def close(self) -> None:
        if self._writes is not None:
            self._writes.close()
            self._writes = None


SOURCE = Source(
    id="written",
    title="what a job without a file writes, caught at the system call (for a while, when asked)",
    open=_Written,
    lines="standard output and error of the job that is named",
    interval_s=1.0,
    on=False,
    needs="CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or root",
    options=WrittenOptions,
)
