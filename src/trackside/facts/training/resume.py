"""A resume as the run reports it: requested, loaded, missing, or failed with an exception during the load.

A load message that a later line contradicts does not count. An exception about a checkpoint that was being written is
not a failed load. A checkpoint that the log does not mention may still have been loaded: then only the first training
points show it (:mod:`trackside.facts.training.parent_run`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from trackside.evidence import Evidence, Frame, Value
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.order import follows, last_after
from trackside.facts.logs.restarts import WORKERS_RESTARTED
from trackside.finding import Claim, Sentence
from trackside.model import Event, Run
from trackside.query import events

RESUME_REQUESTED = Sentence("a resume was requested: {line}")
NO_LOAD_REPORTED = Sentence("no line reports a loaded checkpoint")
LOADS_CONTRADICTED = Sentence("later lines contradict the messages of a loaded checkpoint ({count:messages})")
SCHEDULER_RESTARTS = Sentence("restarts by the scheduler: {restarts}")
HAS_DEPENDENCY = Sentence("the job was submitted with dependency {dependency}")
CONTINUES_JOB = Sentence("job {id} continues an earlier one")

LoadFailure = Literal["mismatch", "corrupt", "absent", "unreadable", "old_torch", "not_weights", "world_size"]
NEEDED_TORCH = re.compile(r"upgrade torch to at least v?([\d.]*\d)")
"""What transformers says if torch is too old to load a file that is not safetensors."""
OTHER_WORLD_SIZE = re.compile(r"used a DP world size of (\d+) but the current world size is (\d+)")
"""What DeepSpeed says if ZeRO's optimizer states were saved by another number of ranks."""
FAILURES: tuple[tuple[LoadFailure, re.Pattern[str]], ...] = (
    ("old_torch", NEEDED_TORCH),
    ("world_size", OTHER_WORLD_SIZE),
    ("not_weights", re.compile(r"Weights only load failed|WeightsUnpickler")),
    ("mismatch", re.compile(r"size mismatch|shape|Missing key|Unexpected key|loading state_dict|not match|incompatib",
                            re.IGNORECASE)),
    ("corrupt", re.compile(
        r"central directory|zip archive|unexpected EOF|Ran out of input|EOFError|corrupt|truncat|deserializ"
        r"|invalid load key|unpickl|PytorchStreamReader|invalid header|HeaderTooSmall|MetadataIncomplete",
        re.IGNORECASE)),
    ("absent", re.compile(
        r"no such file|not found|does not exist|doesn't exist|no valid|can't find|cannot find|couldn't|empty",
        re.IGNORECASE)),
)  # fmt: skip
"""Patterns for what is wrong with the checkpoint, in an exception's text."""
CHECKPOINT_PATH = re.compile(
    r"(?:^|[\s'\"(=])((?:\.{0,2}/|[\w.-]+/)[\w./=+-]{1,200}|[\w=+-][\w.=+-]{0,100}\.(?:pth?|ckpt|bin|safetensors|pkl|tar))"
    r"(?=$|[\s'\",;:!)])"
)
"""The path of a checkpoint in a message."""
SAYS_RESUME = re.compile(r"\bresum(?!e_or_load)|find a valid checkpoint", re.IGNORECASE)
"""What an error of a resume says; the last is the Trainer's. detectron2 calls any load ``resume_or_load``."""
WRITING = re.compile(
    r"\b(save|saving|saved|write|writing|writer)\b|inline_container|PytorchStreamWriter|No space", re.I
)
WRITING_FRAME = re.compile(r"\b_?save\w*$")
WRITING_FRAMES = re.compile(r" in (_?save|save_checkpoint|_save\w*)(;|$)")
NOT_A_PATH = ("none", "false", "", "null")
"""Arguments that request no resume."""


@dataclass(frozen=True, eq=False)
class Resume:
    """What the log and the scheduler report about a checkpoint to resume from."""

    exceptions: Exceptions
    ending: Ending
    run: Run
    loads: Frame
    missing_messages: Frame
    """Library messages about a missing checkpoint."""
    requests: Frame
    restarts: Frame
    """The launcher's restarts of its workers."""

    @cached_property
    def failed_load(self) -> Event | None:
        """The unhandled exception raised by a load."""
        about = (row for row in self.exceptions.unhandled if row.get("about") == "checkpoint")
        return next((row for row in about if not _is_in_save(row)), None)

    @cached_property
    def failed_ranks(self) -> tuple[int, ...]:
        """The ranks that raised the same exception."""
        kind = None if self.failed_load is None else self.failed_load.get("type")
        rows = (row for row in self.exceptions.frame.events if row.get("type") == kind)
        return tuple(sorted({row.rank for row in rows if row.rank is not None}))

    @cached_property
    def loaded(self) -> Value | None:
        """The load message that no later line contradicts."""
        for row in self.loads.events:
            if last_after(row, self.missing_messages.events) is None:
                return self.loads.value(row, "text")
        return None

    @property
    def no_load(self) -> Claim:
        """The claim that no load message counts."""
        return (LOADS_CONTRADICTED if self.loads else NO_LOAD_REPORTED)(count=self.loads.reduce("count"))

    @cached_property
    def missing(self) -> Event | None:
        """The first message about a missing checkpoint."""
        return next(iter(self.missing_messages.events), None)

    def missing_between(self, last: Event, first: Event) -> Value | None:
        """The last message about a missing checkpoint between the last step of one attempt and the first of the
        next."""
        rows = [row for row in self.missing_messages.events if follows(row, last) and follows(first, row)]
        return self.missing_messages.value(rows[-1], "text") if rows else None

    @cached_property
    def request(self) -> Event | None:
        """The first request that names a checkpoint."""
        return next((row for row in self.requests.events if str(row.get("path")).lower() not in NOT_A_PATH), None)

    @property
    def is_resume(self) -> bool:
        """Whether a line or the failed load itself shows that the run was to resume."""
        row = self.failed_load
        texts = [] if row is None else [str(row.get(name) or "") for name in ("message", "frames", "user_code")]
        return self.request is not None or any(map(SAYS_RESUME.search, texts))

    @property
    def names_checkpoint(self) -> bool:
        """Whether an argument names the folder or file to resume from."""
        row = self.request
        return row is not None and row.get("by") == "argument" and "/" in str(row.get("path"))

    @cached_property
    def requested(self) -> tuple[Claim, ...]:
        """The first request line, whatever it names."""
        return tuple(self.request_claim(row) for row in self.requests.events[:1])

    def request_claim(self, row: Event) -> Claim:
        """The claim for one of ``requests``."""
        return RESUME_REQUESTED(line=self.requests.value(row, "text"))

    @cached_property
    def history(self) -> tuple[Claim, ...]:
        """Evidence of an earlier start of the run."""
        jobs, continues = self.ending.jobs, self.run.parent is not None
        claims: list[Claim] = []
        for row in jobs.records[-1:]:
            if isinstance(row.get("restarts"), int) and row.get("restarts"):
                claims.append(SCHEDULER_RESTARTS(restarts=jobs.value(row, "restarts")))
            elif continues and row.get("dependency"):
                claims.append(HAS_DEPENDENCY(dependency=jobs.value(row, "dependency")))
            elif continues:
                claims.append(CONTINUES_JOB(id=jobs.value(row, "id")))
        restarts = self.restarts
        return (*claims, *(WORKERS_RESTARTED(line=restarts.value(row, "text")) for row in restarts.events[:1]))


@fact({
    "loads": events("checkpoint_loaded"),
    "missing_messages": events("checkpoint_missing"),
    "requests": events("resume_requested"),
    "restarts": events("launcher_restart"),
})  # fmt: skip
def resume(evidence: Evidence, exceptions: Exceptions, ending: Ending, run: Run) -> Resume:
    """Needs no particular input; empty if no line reports a resume."""
    frames = (evidence[name] for name in ("loads", "missing_messages", "requests", "restarts"))
    return Resume(exceptions, ending, run, *frames)


def load_failure(exception: Event) -> LoadFailure:
    """What is wrong with the checkpoint, by the exception of its load."""
    root = f"{_text(exception)} {exception.get('root_type')}: {exception.get('root_message')}"
    return next((failure for failure, pattern in FAILURES if pattern.search(root)), "unreadable")


def _text(exception: Event) -> str:
    return f"{exception.get('type')}: {exception.get('message')}"


def _is_in_save(exception: Event) -> bool:
    """Whether a save raised it, by its text or its innermost frames."""
    frame, frames = str(exception.get("frame") or ""), str(exception.get("frames") or "")
    return any(
        pattern.search(text)
        for pattern, text in ((WRITING, _text(exception)), (WRITING_FRAME, frame), (WRITING_FRAMES, frames))
    )
