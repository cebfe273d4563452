"""Small verdicts, shared by the tests of the archive and of the HTTP API."""

from __future__ import annotations

from typing import Any

from trackside.evidence import Cite, Value
from trackside.finding import Certainty, Cost, Finding, Outcome, Verdict
from trackside.model import Attempt, Run
from trackside.show.document import document, encode

T0 = 1_772_438_400.0
"""2026-03-02T08:00:00Z"""


def run(job: str | None = "4242", **facts: Any) -> Run:
    """A run that was submitted at T0 and failed ten minutes after its start."""
    fields: dict[str, Any] = {
        "name": "lm", "cluster": "alpha", "disposition": "FAILED", "submit": T0, "start": T0 + 10, "end": T0 + 600,
        "nodes": ("gpu017", "gpu018"), "n_gpus": 16, "gpus": ("gpu017:0",), "attempts": (Attempt(1, start=T0 + 10),),
        "framework": "hf_trainer", **facts,
    }  # fmt: skip
    return Run(id=job, **fields)


def verdict(subject: Run | None = None, family: str = "A1", exception: str = "ModuleNotFoundError") -> Verdict:
    """One cited sentence; ``exception`` makes one document differ from another."""
    cite = Cite("log", "files", "events(exception).first(type)", "train.log:3", exception)
    title, id_ = {"A1": ("Crash at start", "startup-crash"), "G1": ("Healthy", "healthy")}[family]
    finding = Finding(
        Outcome.FOUND, family, id_, title, Certainty.ESTABLISHED, "job" if family == "A1" else "none", confidence=0.9,
        exception=(exception, "No module named 'x'"),
    )  # fmt: skip
    return Verdict(subject or run(), finding, cost=Cost(Value(2.5, (cite,))), version="1.0")


def written(made: Verdict) -> bytes:
    """As ``trackside diagnose --json`` prints it."""
    return encode(document(made, ["/site"]))
