"""Rows built by hand for tests of families, and a judge that checks what a finding says."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import trackside
from tools.cases import SCENARIOS, simulated_run
from trackside.facts.cost.wasted_time import CostPart
from trackside.facts.trust.telemetry import trusted_facts
from trackside.families import families, find_family
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Outcome, Sentence, claim_sentence, clause
from trackside.model import Event, EventRole, Plane, Position, Record, Run
from trackside.stores.memory import MemoryStore
from trackside.verdict import engine
from trackside.verdict.arbiter import arbitrate
from trackside.verdict.commands import fill_commands

START, END = 1000.0, 5000.0
FOUND, ABSENT, UNKNOWN = Outcome.FOUND, Outcome.ABSENT, Outcome.UNKNOWN
ESTABLISHED, SUPPORTED, POSSIBLE = Certainty.ESTABLISHED, Certainty.SUPPORTED, Certainty.POSSIBLE
GIB = 1 << 30
NAN = math.nan
Row = Event | Record


# -- rows


def event(kind: str, line: int = 1, role: EventRole = EventRole.OBSERVATION, **fields: Any) -> Event:
    """A log event; text, time, rank, node, plane and path are attributes, the rest are its fields."""
    known = {name: fields.pop(name) for name in ("text", "time", "rank", "node") if name in fields}
    plane: Plane = fields.pop("plane", "log")
    path = fields.pop("path", "train.log")
    return Event(kind, Position(path, line, line * 100), plane, role=role, fields=fields, **{"text": kind, **known})


def root(kind: str, line: int = 50, **fields: Any) -> Event:
    """An event that may be a root cause."""
    return event(kind, line, EventRole.ROOT, **fields)


def job(state: str, line: int = 2, **fields: Any) -> Record:
    """The scheduler's record of the run."""
    fields = {"id": "7", "state": state, "start": START, "end": END, "elapsed_s": END - START, **fields}
    return Record("job", Position("sacct.txt", line), "scheduler", fields)


def short_job(state: str, line: int = 2, **fields: Any) -> Record:
    """The record of a run of 1,000 s, without its elapsed time."""
    fields = {"id": "7", "state": state, "start": START, "end": 2000.0, "source": "sacct", **fields}
    return Record("job", Position("sacct.txt", line), "scheduler", fields)


FAILED, COMPLETED, TIMEOUT = job("FAILED", exit_code=1), job("COMPLETED", exit_code=0), job("TIMEOUT")
DONE = event("training_end", 900, text="train_runtime", status="success")


def unhandled_exception(name: str, line: int = 50, about: str = "application", **fields: Any) -> Event:
    """An unhandled exception."""
    return root("exception", line, type=name, message="it went wrong", about=about, **fields)


def exception(name: str, message: str, line: int = 500, about: str = "application", **fields: Any) -> Event:
    """An unhandled exception with its message, after all training points."""
    return root("exception", line, type=name, message=message, about=about, **fields)


def log_points(count: int = 5, line: int = 10, time: float | None = 1010.0) -> list[Event]:
    """Training points of a learning model, one every 10 s."""
    return [
        event("progress", line + i, step=i + 1, loss=4.0 - i / 10, time=None if time is None else time + 10 * i)
        for i in range(count)
    ]


def points(count: int = 20, first: float = START + 60, every: float = 60.0, loss: float = 4.0) -> list[Event]:
    """Training points of a learning model, one every ``every`` seconds."""
    return [
        event("progress", 10 + i, step=i + 1, loss=loss - i * loss / (2 * count), time=first + every * i)
        for i in range(count)
    ]


def curve(losses: Iterable[float | None], every: int = 10, kind: str = "progress", **fields: Any) -> list[Row]:
    """Training points with these losses, one every 10 s; a field may be a function of the point's number."""
    rows: list[Row] = []
    for i, loss in enumerate(losses, 1):
        values: dict[str, Any] = {"step": i * every, "loss": loss, "framework": "hf-trainer", **fields}
        values = {name: value(i) if callable(value) else value for name, value in values.items()}
        time = values.pop("time", 1000.0 + 10 * i)
        rows.append(event(kind, 10 + i, time=time, **{k: v for k, v in values.items() if v is not None}))
    return rows


FALLING = [4.0 - 0.1 * i for i in range(30)]
STEPS = {"every": 1}


def store(*rows: Row | list[Row], planes: tuple[Plane, ...] = ("log", "scheduler")) -> MemoryStore:
    """A store that holds these rows."""
    flat = [row for part in rows for row in (part if isinstance(part, list) else [part])]
    return MemoryStore(
        [row for row in flat if isinstance(row, Event)], [row for row in flat if isinstance(row, Record)], planes
    )


def xid_number(number: int, line: int = 5, time: float | None = 4990.0, **fields: Any) -> Event:
    """An Xid line of the kernel, by its number."""
    role = EventRole.OBSERVATION if number in (13, 31, 43, 45) else EventRole.CONFIRMATION
    location = {"plane": "kernel", "path": "dmesg.txt", "node": "n1", "pci": "0000:4e:00", **fields}
    return event("xid", line, role, xid=number, time=time, **location)


def activity(lines: int, **fields: Any) -> Event:
    """The size of one log, with its first and last time in ``fields``."""
    return event("log_activity", lines, lines=lines, bytes=lines * 80, time=fields.get("last_time"), **fields)


def notice(reason: str, line: int = 800, text: str = "", **fields: Any) -> Event:
    """Slurm's line in the log with the reason why it ended the run."""
    return event(
        "scheduler_notice", line, EventRole.ROOT, reason=reason, text=text or f"CANCELLED DUE TO {reason}", **fields
    )


# -- findings


def family_of(code: str) -> Family:
    """The family with this code."""
    family = find_family(code)
    assert family is not None
    return family


def claims(finding: Finding) -> list[Claim]:
    """All claims of a finding; not its actions."""
    return [*finding.shows, *finding.implies, *finding.cannot_decide, *finding.because]


def check_worded(finding: Finding) -> None:
    """Check that every sentence and every command fills."""
    for claim in claims(finding):
        assert claim_sentence(claim)
    for act in finding.actions:
        assert all(clause(Claim(sentence, act.values)) for sentence in (act.sentence, *act.commands))


def judge_store(code: str, evidence_store: MemoryStore, run: Run | None = None) -> Finding:
    """One family's finding on a store."""
    facts = trusted_facts(evidence_store, run or Run())
    finding = fill_commands(engine.judge_by(facts, [family_of(code)])[0], facts)
    check_worded(finding)
    return finding


def judge(code: str, *rows: Row | list[Any], run: Run | None = None, planes: tuple[Plane, ...] = ()) -> Finding:
    """One family's finding on these rows."""
    return judge_store(code, store(*rows, planes=planes or ("log", "scheduler")), run)


def primary(evidence_store: MemoryStore, run: Run | None = None) -> Finding:
    """The primary finding of all families."""
    return arbitrate(engine.judge_all(evidence_store, run or Run(), families()), families()).primary


def example(code: str) -> Finding:
    """The primary finding on the catalog's example of a family, a simulated run."""
    return trackside.diagnose(simulated_run(SCENARIOS / code / "sim-example-of-the-catalog" / "scenario.toml")).primary


def sentence_name(part: Claim | Action) -> str:
    """The name of a sentence's constant in lower case; with its key if the constant is a table."""
    return constants()[id(part.sentence)]


@cache
def constants() -> dict[int, str]:
    """The names of all sentences of facts and families, by identity."""
    return {id(sentence): name for name, sentence in sentences()}


def sentences() -> list[tuple[str, Sentence]]:
    """All sentences that are constants of facts and families, with their names in lower case."""
    families()
    modules = [module for path, module in sys.modules.items() if path.startswith("trackside.")]
    named: list[tuple[str, Sentence]] = []
    for constant, value in (pair for module in modules for pair in vars(module).items()):
        if isinstance(value, Sentence):
            named.append((constant.lower(), value))
        elif isinstance(value, dict):
            named += [
                (f"{constant}_{key}".lower(), entry) for key, entry in value.items() if isinstance(entry, Sentence)
            ]
        elif isinstance(value, CostPart):
            named.append((f"{constant}_what".lower(), value.what))
    return named


def keys(finding: Finding) -> list[str]:
    """The names of the sentences that a finding shows, or of the reasons why it is absent."""
    return [sentence_name(claim) for claim in (*finding.shows, *finding.because)]


def text_of(finding: Finding) -> str:
    """The claims that a finding shows, or the reasons why it is absent, as text."""
    return "; ".join(claim_sentence(claim) for claim in (*finding.shows, *finding.because))


def decision(finding: Finding) -> tuple[Outcome, Certainty | None]:
    """Outcome and certainty."""
    return finding.outcome, finding.certainty


def outcome(finding: Finding) -> tuple[Outcome, Certainty | None, bool]:
    """Outcome, certainty and whether it is latent."""
    return finding.outcome, finding.certainty, finding.latent
