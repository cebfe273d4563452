"""GPU out-of-memory errors as the framework printed them: with sizes, or as a bare exception.

An error after which training continued was handled. Advice about memory is not an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpus import gpus_of_ranks
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions, earliest_first, final_events, source_line
from trackside.facts.logs.order import last_after
from trackside.facts.ranks import cited_ranks, ranks_of
from trackside.facts.training.learning import Trajectory, numeric_field
from trackside.finding import Claim, Sentence
from trackside.model import Event, EventRole, Run
from trackside.query import events

MEMORY_RAN_OUT = Sentence("GPU memory ran out: {line}")
MEMORY_RAN_OUT_LINE = Sentence("GPU memory ran out on {ranks}: {line}")
MEMORY_RAN_OUT_ON = Sentence("GPU memory ran out on {ranks}")
NCCL_ALLOCATION_FAILED = Sentence("NCCL could not allocate GPU memory: {line}")
ALLOCATION_FAILED = Sentence("the allocation of {requested} failed on a GPU with {total}")
LARGER_THAN_GPU = Sentence("a single allocation of {requested} is larger than the GPU's memory of {total}")
ALLOCATION_FAILED_FREE = Sentence(
    "the allocation of {requested} failed on a GPU with {total}, of which {free} were free"
)
ALLOCATION_SIZE = Sentence("the failed allocation was {requested}")
FAILED_DURING = Sentence("the allocation failed in this phase: {phase}")
FAILED_AT_LOADING = Sentence("the allocation failed while the model or data were loaded onto the GPU")
FAILED_IN_PASS = Sentence("the allocation failed in the {phase} pass")
PHASES = {"load": FAILED_AT_LOADING, "forward": FAILED_IN_PASS, "backward": FAILED_IN_PASS}
MEMORY_FRAGMENTED = Sentence(
    "the allocator had reserved {reserved} and used only {allocated}: free memory was fragmented"
)
RESERVED_UNUSED = Sentence("of the {reserved} that the allocator had reserved, {allocated} were in use")
OWN_PROCESSES_USED = Sentence("other processes of this job used {other} of the GPU's {total}")
OWN_PROCESS_USED = Sentence("another process of this job (pid {pid}) used {other} of the GPU's {total}")
OTHER_PROCESSES_USED = Sentence("other processes used {other} of the GPU's {total}")
OTHER_PROCESS_USED = Sentence("another process (pid {pid}) used {other} of the GPU's {total}")
OTHER_PROCESS = re.compile(r"\bProcess (\d{1,9}) has \d")
PARTLY_OWN_USED = Sentence(
    "other processes used {other} of the GPU's {total}; the log shows process {pids} as one of this job"
)
USED_BY_UNNAMED = Sentence(
    "this process had reserved {reserved} of the GPU's {total}, and {free} were free: others used the rest, {other}"
)
ERROR_HANDLED = Sentence("the run caught the error and continued: {line}; later: {point}")

UNEXPLAINED_SHARE = 0.25
"""Share of the GPU's memory that is neither free nor reserved by the process from which other processes hold it: a
process's context, libraries and communication buffers take less. In the public logs at hand they take at most 5%, and
14% of a GPU of 6 GiB."""
ANNOUNCES_EXCEPTION = "THCudaCheck FAIL"
"""What PyTorch before 1.5 prints before it raises the error."""
MIN_UNUSED_SHARE = 0.05
"""Share of the GPU's memory: rounding leaves less of what the allocator reserves unused."""
SMALL_REQUEST_BYTES = 2**21
"""PyTorch's allocator asks for no less at a time."""
SIZES = ("requested_bytes", "total_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "other_process_bytes")


@dataclass(frozen=True, eq=False)
class GpuMemoryErrors:
    """GPU out-of-memory errors."""

    all: Frame
    """All rows about GPU memory."""
    frame: Frame
    """The errors with sizes, else the exceptions about GPU memory."""
    sized: bool
    roots: tuple[Event, ...]
    unhandled: tuple[Event, ...]
    """Those of ``roots`` without a later logged step, earliest first."""
    memory_exceptions: Frame
    """Exceptions about GPU memory."""
    exceptions: bool
    """Whether the log contains any exception."""
    trajectory: Maybe[Trajectory]
    ending: Ending
    run: Run
    own_pids: frozenset[str] = frozenset()
    """The processes of the job that its launcher names."""

    @property
    def cause(self) -> Event:
        """The earliest error that may have ended the run; the exception itself, if an old PyTorch announces it."""
        first, *others = self.unhandled
        if not first.text.startswith(ANNOUNCES_EXCEPTION):
            return first
        own = (row for row in others if row.at.path == first.at.path and not row.text.startswith(ANNOUNCES_EXCEPTION))
        return next(own, first)

    @cached_property
    def handled_claim(self) -> Claim | None:
        """The claim that the last error was handled: training, or the run's own end, came after it; None if not."""
        ends = self.ending.ends.filtered(lambda row: row.get("status") != "aborted")
        if self.unhandled:
            after = last_after(self.unhandled[-1], ends.events)
            handled = after is not None and self.ending.abnormal is None
            return (
                self._handled_by(self.unhandled[-1], ends.value(after, "text"))
                if after is not None and handled
                else None
            )
        if not self.roots or isinstance(self.trajectory, Missing):
            return None
        point = last_after(self.roots[-1], self.trajectory.points)
        return (
            None if point is None else self._handled_by(self.roots[-1], self.trajectory.progress.value(point, "text"))
        )

    def _handled_by(self, row: Event, later_line: Value) -> Claim:
        return ERROR_HANDLED(line=self.frame.value(row, "text"), point=later_line)

    @cached_property
    def sizes(self) -> Mapping[str, Value]:
        """The bytes that the earliest error names, by a name of :data:`SIZES`."""
        fields = (field for field in SIZES if numeric_field(self.cause, field) is not None)
        return {field: self.frame.value(self.cause, field, "bytes") for field in fields}

    def bytes(self, field: str) -> float:
        """One of the sizes; 0 if the error does not name it."""
        return self.sizes[field].number if field in self.sizes else 0.0

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The error and its ranks, the requested size, and the phase."""
        line, ranks, sizes = self.frame.value(self.cause, "text"), cited_ranks(self.frame, self.unhandled), self.sizes
        line_sentence = MEMORY_RAN_OUT_ON if "requested_bytes" in sizes else MEMORY_RAN_OUT_LINE
        claims = [MEMORY_RAN_OUT(line=line) if ranks is None else line_sentence(line=line, ranks=ranks)]
        if self.by_nccl:
            claims = [NCCL_ALLOCATION_FAILED(line=line)]
        if "requested_bytes" in sizes and "total_bytes" in sizes:
            sentence = (
                LARGER_THAN_GPU if self.bytes("requested_bytes") > self.bytes("total_bytes") else ALLOCATION_FAILED
            )
            values = {"requested": sizes["requested_bytes"], "total": sizes["total_bytes"]}
            if sentence is ALLOCATION_FAILED and "free_bytes" in sizes:
                sentence, values = ALLOCATION_FAILED_FREE, {**values, "free": sizes["free_bytes"]}
            claims.append(sentence(**values))
        elif "requested_bytes" in sizes:
            claims.append(ALLOCATION_SIZE(requested=sizes["requested_bytes"]))
        if self.cause.get("phase") not in (None, "unknown"):
            sentence = PHASES.get(str(self.cause.get("phase")), FAILED_DURING)
            claims.append(sentence(phase=self.frame.value(self.cause, "phase")))
        others = self.sizes.get("other_process_bytes")
        if others is not None and others.number > 0 and "total_bytes" in sizes:
            claims.append(self._used_by_others(others))
        return tuple(claims)

    def _used_by_others(self, others: Value) -> Claim:
        """The claim about what other processes used, with the process id if it was one."""
        total, text = self.sizes["total_bytes"], self.frame.value(self.cause, "text")
        pids = self._other_pids
        own = [pid for pid in pids if pid in self.own_pids]
        is_own = bool(pids) and len(own) == len(pids)
        if own and not is_own:
            return PARTLY_OWN_USED(pids=derived(", ".join(own), text), other=others, total=total)
        if len(pids) != 1:
            return (OWN_PROCESSES_USED if is_own else OTHER_PROCESSES_USED)(other=others, total=total)
        sentence = OWN_PROCESS_USED if is_own else OTHER_PROCESS_USED
        return sentence(pid=derived(pids[0], text), other=others, total=total)

    @property
    def _other_pids(self) -> list[str]:
        """The other processes that the error names."""
        return OTHER_PROCESS.findall(self.cause.text) if "this process has" in self.cause.text else []

    @property
    def unused_claim(self) -> Claim | None:
        """What the allocator had reserved, and used of it, if the request would have fit into the rest and what was
        free; None if not, or if the rest was small."""
        spare = self.bytes("reserved_bytes") - self.bytes("allocated_bytes")
        if not self.fitted_by_sum or spare < MIN_UNUSED_SHARE * self.bytes("total_bytes") or spare <= 0:
            return None
        return RESERVED_UNUSED(reserved=self.sizes["reserved_bytes"], allocated=self.sizes["allocated_bytes"])

    def fragmentation_claim(self, share: float) -> Claim | None:
        """The claim that free memory was fragmented: the allocator had reserved but not used more than a share of the
        GPU's memory, and the request was smaller. None if not."""
        spare = self.bytes("reserved_bytes") - self.bytes("allocated_bytes")
        if "allocated_bytes" not in self.sizes or spare < self.bytes("requested_bytes"):
            return None
        if not self.bytes("total_bytes") or spare <= share * self.bytes("total_bytes"):
            return None
        return MEMORY_FRAGMENTED(reserved=self.sizes["reserved_bytes"], allocated=self.sizes["allocated_bytes"])

    @property
    def fitted_by_sum(self) -> bool:
        """Whether free memory, and what the allocator had reserved but not used, add up to the request."""
        spare = max(0.0, self.bytes("reserved_bytes") - self.bytes("allocated_bytes"))
        known = {"free_bytes", "allocated_bytes"} <= self.sizes.keys()
        return known and 0 < self.bytes("requested_bytes") <= self.bytes("free_bytes") + spare

    @property
    def names_split_size(self) -> bool:
        """Whether the error is of a PyTorch before expandable segments: its advice, if any, is another option."""
        return "expandable_segments" not in f"{self.cause.text} {self.cause.get('message') or ''}"

    def neighbor(self, share: float) -> Claim | None:
        """The claim that other processes used more than a share of the GPU's memory; None if they did not."""
        total = self.bytes("total_bytes")
        if "other_process_bytes" not in self.sizes and (rest := self._unreserved) is not None:
            values = {name: self.sizes[f"{name}_bytes"] for name in ("reserved", "total", "free")}
            return USED_BY_UNNAMED(other=rest, **values) if rest.number > UNEXPLAINED_SHARE * total else None
        if not total or self.bytes("other_process_bytes") <= share * total:
            return None
        if (pids := self._other_pids) and self.own_pids.issuperset(pids):
            return None
        return self._used_by_others(self.sizes["other_process_bytes"])

    @property
    def names_strangers(self) -> bool:
        """Whether the error counts other processes, none of which is known to be the job's."""
        return self.bytes("other_process_bytes") > 0 and self.own_pids.isdisjoint(self._other_pids)

    @property
    def _unreserved(self) -> Value | None:
        """The memory that was neither free nor reserved by the process; None if unknown."""
        if not {"total_bytes", "free_bytes", "reserved_bytes"} <= self.sizes.keys():
            return None
        sizes = [self.sizes[name] for name in ("total_bytes", "free_bytes", "reserved_bytes")]
        return derived(sizes[0].number - sizes[1].number - sizes[2].number, *sizes, unit="bytes")

    @property
    def by_nccl(self) -> bool:
        """Whether NCCL asked for the memory, which it does in small pieces: too little memory is only one reason."""
        return self.cause.get("backend") == "nccl" and self.bytes("requested_bytes") < SMALL_REQUEST_BYTES

    @property
    def fits_alone(self) -> bool:
        """Whether the request would have fit if the process had the GPU for itself."""
        own_bytes = max(self.bytes("reserved_bytes"), self.bytes("allocated_bytes"))
        return own_bytes + self.bytes("requested_bytes") < self.bytes("total_bytes")

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that ran out of memory."""
        return ranks_of(self.unhandled)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their nodes."""
        return tuple(sorted({row.node for row in self.unhandled if row.node}))

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """The run's GPUs that ran out of memory, by rank, else by the index in the errors if the node is known."""
        if gpus := gpus_of_ranks(self.run, self.ranks):
            return gpus
        nodes = {row.node or (self.run.nodes[0] if len(self.run.nodes) == 1 else "") for row in self.unhandled}
        names = {
            f"{row.node or next(iter(nodes))}:{row.get('gpu')}" for row in self.unhandled if row.get("gpu") is not None
        }
        return tuple(name for name in self.run.gpus if name in names)

    @property
    def indices(self) -> tuple[str, ...]:
        """The indices of GPUs that the errors name."""
        return tuple(sorted({str(row.get("gpu")) for row in self.unhandled if row.get("gpu") is not None}))

    @property
    def place(self) -> Value | None:
        """The line of the job's own code where memory ran out, if a traceback shows it."""
        return source_line(self.memory_exceptions, self._sorted_exceptions[0]) if self._sorted_exceptions else None

    @property
    def _sorted_exceptions(self) -> list[Event]:
        """The Python exceptions about GPU memory, that of the error at the same line first."""
        location = self.cause.at.path, self.cause.at.line
        return sorted(self.memory_exceptions.events, key=lambda row: (row.at.path, row.at.line) != location)

    @property
    def exception(self) -> tuple[str, str] | None:
        """The Python exception of the error: at the same line, else the first about GPU memory."""
        rows = self._sorted_exceptions
        return (str(rows[0].get("type")), str(rows[0].get("message") or "")) if rows else None


@fact({"memory": events("cuda_oom"), "signals": events("signal_received")}, needs=("memory",))
def gpu_memory_errors(
    evidence: Evidence, exceptions: Exceptions, trajectory: Maybe[Trajectory], ending: Ending, run: Run
) -> GpuMemoryErrors:
    """Needs a job log; otherwise missing."""
    memory = evidence["memory"]
    about = exceptions.frame.filtered(lambda row: row.get("about") == "oom")
    sized = any(row.role is EventRole.ROOT for row in memory.events) or not about
    frame = memory if sized else about
    points = () if isinstance(trajectory, Missing) else trajectory.points
    roots = [row for row in frame.events if row.role is EventRole.ROOT]
    last = [row for row in roots if row.at.path not in exceptions.went_on]
    unhandled = earliest_first(final_events(last, points, crashed=ending.abnormal is not None))
    launched = (*evidence["signals"].events, *ending.exits.events, *ending.launchers.events)
    own_pids = frozenset(str(pid) for row in launched if (pid := row.get("pid")) is not None)
    return GpuMemoryErrors(
        memory,
        frame,
        sized,
        tuple(roots),
        tuple(unhandled),
        about,
        bool(exceptions.frame),
        trajectory,
        ending,
        run,
        own_pids,
    )
