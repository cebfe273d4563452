"""Standard output and error of a job that writes no file, captured at the write system call; only on request.

It slows down every process of the node: 30 to 80 ns per system call, several hundred ns per write.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from trackside.agent.output.framing import Framer, Redraws, texts
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Reading

MAX_PROCESSES = 4096
MAX_STREAMS = 8192
STREAMS = {1: "stdout", 2: "stderr"}
REDRAW_S = 5.0


@dataclass(frozen=True, slots=True)
class WrittenOptions:
    """``job``: whose output to capture; required. ``seconds``: how long to capture, from the start of the agent; not
    meant for permanent use."""

    job: str = ""
    seconds: float = 600.0


class _CapturedOutput(Collector):
    def __init__(self, context: Context) -> None:
        options: WrittenOptions = context.options
        if not options.job:
            raise AgentSourceUnavailable("no job is set", 'set job = "..." in [collect.written]')
        from trackside.agent.trace.written import Writes  # tracing code is loaded only when it is used

        self._job, self._proc, self._owners = options.job, context.node.proc, context.owners
        self._end = time.monotonic() + options.seconds
        self._clock_offset_ns = time.time_ns() - time.monotonic_ns()
        self._streams: dict[tuple[int, int], tuple[Framer, Redraws]] = {}
        self._writes: Writes | None = Writes()
        self._lost = 0
        context.say(
            f"written: for {options.seconds:g} s every system call on this node is inspected, for job {self._job}"
        )
        self._select_streams()

    def collect(self, reading: Reading) -> None:
        writes = self._writes
        if writes is None:
            reading.warnings.append(
                f"the time to capture the output of job {self._job} is over; restart the agent to capture more"
            )
            return
        self._select_streams()
        self._clock_offset_ns = time.time_ns() - time.monotonic_ns()
        for record in writes.records():
            stream = self._streams.get((record.pid, record.stream))
            if stream is None:
                if len(self._streams) >= MAX_STREAMS:
                    self._flush(reading, *next(iter(self._streams)))
                stream = self._streams[record.pid, record.stream] = Framer(), Redraws(REDRAW_S)
            if complete := stream[0].feed(record.data):
                self._add(reading, record.pid, record.stream, complete, record.time_ns, stream[1])
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

    def _add(self, reading: Reading, pid: int, number: int, complete: bytes, time_ns: int, redraws: Redraws) -> None:
        owner = self._owners.of_pid(pid)
        labels = {
            "slurm_job_id": self._job,
            "rank": owner.rank if owner is not None else None,
            "stream": STREAMS[number],
            "pid": pid,
        }
        for text in texts(complete, redraws, time_ns * 1e-9):
            reading.line(text, time_ns + self._clock_offset_ns, **labels)

    def _flush(self, reading: Reading, pid: int, number: int) -> None:
        framer, redraws = self._streams.pop((pid, number))
        if unfinished := framer.flush():
            self._add(reading, pid, number, unfinished, time.monotonic_ns(), redraws)

    def _select_streams(self) -> None:
        """Select the job's processes, without streams that go to a file, because files are followed."""
        if self._writes is None:
            return
        processes = (process for process in self._owners.processes() if process.owner.job == self._job)
        pids = [process.pid for process in processes][:MAX_PROCESSES]
        streams = {pid: self._streams_without_file(pid) for pid in {*pids, *self._writes.copied_pids()}}
        self._writes.select_streams({pid: bits for pid, bits in streams.items() if bits is not None})

    def _streams_without_file(self, pid: int) -> int | None:
        """Bit mask of the streams that are not files; None if the process has ended."""
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


SOURCE = AgentSource(
    id="written",
    title="output of a job that writes no file, captured at the write system call (temporarily, on request)",
    open=_CapturedOutput,
    lines="standard output and error of the selected job",
    interval_s=1.0,
    on=False,
    needs="CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or root",
    options=WrittenOptions,
)
