"""How two runs ended, where they ran, and how they were set up. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trackside.compare.side import Row, Setting, Side, either
from trackside.evidence import Cite, Value, derived
from trackside.facts.training.learning import steps_planned
from trackside.finding import Outcome
from trackside.verdict import cost

MOST_SETTINGS = 40
"""Differences of settings that are told one by one."""
SHOWN = 8
"""Names of those that only one log prints."""
PLAN = {
    "total_steps": "steps planned",
    "epochs": "epochs planned",
    "examples": "training examples",
    "batch_size": "batch size",
    "save_steps": "steps between checkpoints, as planned",
}


def rows(a: Side, b: Side) -> Iterator[Row]:
    """Verdict, state, time, nodes and GPUs, framework; then the settings."""
    yield either("outcome", "verdict", _verdict(a), _verdict(b))
    yield either("outcome", "state", a.recorded("state"), b.recorded("state"))
    yield either("outcome", "exit code", a.recorded("exit_code"), b.recorded("exit_code"))
    yield either("outcome", "time held", a.recorded("elapsed_s", "s"), b.recorded("elapsed_s", "s"), 0.1)
    yield _nodes(a, b)
    yield either("place", "GPUs", _gpus(a), _gpus(b))
    yield either("setup", "framework", _framework(a), _framework(b))
    yield _commands(a, b)
    for field, label in PLAN.items():
        one, other = _planned(a, field), _planned(b, field)
        if one is not None or other is not None:
            yield either("setup", label, one, other)
    yield from _flags(a, b)
    yield from _settings(a, b)


def onset(a: Side, b: Side) -> Iterator[Row]:
    """When the fault of one began, counted from its start; where both have one, the earlier."""
    for letter, side in (("A", a), ("B", b)):
        if side.primary.outcome is Outcome.FOUND and side.primary.role != "health":
            yield from _onset(letter, side)


def _onset(letter: str, side: Side) -> Iterator[Row]:
    """By its time, else by the training point at which it stands."""
    primary, held = side.primary, side.allocation
    label = f"the fault of run {letter} begins: {primary.title}"
    since = cost.onset(primary, held) if held is not None else None
    seconds: float | None
    at = primary.at
    before = (row for row in reversed(side.points) if at and row.at.path == at.path and row.at.line <= at.line)
    near = next(before, None)
    if since is not None and held is not None:
        value, seconds, step = derived(primary.id, since), since.number - held.start.number, None
    elif near is not None and isinstance(last := near.get("step"), (int, float)):
        value, step = derived(primary.id, side.progress.value(near, "step")), float(last)
        seconds = side.since_start(near)
    else:
        return
    mine, others = (value, None) if letter == "A" else (None, value)
    yield Row("outcome", label, mine, others, True, step=step, seconds=seconds)


def _gpus(side: Side) -> Value | None:
    """How many GPUs it held."""
    return None if side.allocation is None else side.allocation.gpus


def _verdict(side: Side) -> Value | None:
    """The primary family, cited by what it shows."""
    primary = side.primary
    cites = tuple(dict.fromkeys(cite for claim in primary.shows for cite in claim.cites))[:4]
    variant = f" ({primary.variant})" if primary.variant not in (None, primary.id) else ""
    return Value(f"{primary.family} {primary.id}{variant}", cites) if cites else None


def _nodes(a: Side, b: Side) -> Row:
    one, other = _node_names(a), _node_names(b)
    row = either("place", "nodes", one, other)
    if one is None or other is None or row.differs is not True:
        return row
    shared = sorted(set(a.run.nodes) & set(b.run.nodes))
    told = f"{len(shared)} of them are the same: {', '.join(shared[:8])}" if shared else "none of them is the same"
    return Row("place", "nodes", one, other, True, rule=told)


def _node_names(side: Side) -> Value | None:
    told = side.recorded("nodes")
    return None if told is None or not side.run.nodes else derived(tuple(sorted(side.run.nodes)), told)


def _framework(side: Side) -> Value | None:
    for frame in (side.progress, side.plans, side.printed("training_start")):
        for row in frame.events:
            if row.get("framework") is not None:
                return frame.value(row, "framework")
    return None


def _commands(a: Side, b: Side) -> Row:
    """What was run, as the same source tells it of both."""
    told = [(_echoed(each), each.recorded("submit_line"), each.recorded("command")) for each in (a, b)]
    pairs = list(zip(*told, strict=True))
    one, other = next((pair for pair in pairs if None not in pair), pairs[0])
    return either("setup", "command", _anonymous(a, one), _anonymous(b, other))


def _echoed(side: Side) -> Value | None:
    hosts = side.printed("host")
    row = next((row for row in hosts.events if row.get("command")), None)
    return None if row is None else hosts.value(row, "command")


def _anonymous(side: Side, told: Value | None) -> Value | None:
    """Without the job's id, which is another in each."""
    if told is None or side.run.id is None or not isinstance(told.value, str):
        return told
    return derived(re.sub(rf"(?<!\d){re.escape(side.run.id)}(?!\d)", "JOB", told.value), told)


def _planned(side: Side, field: str) -> Value | None:
    if field == "total_steps":
        return steps_planned(side.progress, side.plans)
    row = next((row for row in reversed(side.plans.events) if row.get(field) is not None), None)
    return None if row is None else side.plans.value(row, field)


def _flags(a: Side, b: Side) -> Iterator[Row]:
    """Environment settings that a log shows to be in force."""
    told = [side.environment or {} for side in (a, b)]
    for name in sorted(told[0].keys() | told[1].keys()):
        one, other = (each.get(name) for each in told)
        logs = a.environment is not None and b.environment is not None
        if one is None or other is None:
            letter = "A" if one is None else "B"
            yield Row(
                "setup", name, one, other, True if logs else None, why=f"the log of run {letter} does not show it"
            )
        else:
            yield either("setup", name, one, other)


def _settings(a: Side, b: Side) -> Iterator[Row]:
    """Lines of the logs that say how the run was set up and differ."""
    label = "settings that the log prints"
    if a.settings is None or b.settings is None:
        yield Row(
            "setup", label, why="the logs themselves are not at hand: a store keeps what they tell, not their lines"
        )
        return
    if not a.settings or not b.settings:
        letter = "either run" if not a.settings and not b.settings else f"run {'B' if a.settings else 'A'}"
        yield Row("setup", label, why=f"the log of {letter} prints none that is known as such")
        return
    both = [name for name in a.settings if name in b.settings]
    if not both:
        yield Row("setup", label, why="no setting is printed by both logs")
        return
    apart = [name for name in both if _normal(a, a.settings[name]) != _normal(b, b.settings[name])]
    for name in apart[:MOST_SETTINGS]:
        yield Row("setup", name, _quoted(a.settings[name]), _quoted(b.settings[name]), True)
    if len(apart) > MOST_SETTINGS:
        yield Row("setup", "further settings", why=f"{len(apart) - MOST_SETTINGS} more differ")
    if not apart:
        label = f"{len(both)} settings that both logs print"
        yield Row("setup", label, _quoted(a.settings[both[0]]), _quoted(b.settings[both[0]]), False)
    mine, others = _alone(a.settings, b.settings), _alone(b.settings, a.settings)
    if mine is not None or others is not None:
        yield Row("alone", "settings that only one log prints", mine, others, True)


def _alone(mine: Mapping[str, Setting], others: Mapping[str, Setting]) -> Value | None:
    names = sorted(mine.keys() - others.keys())
    cites = tuple(cite for name in names[:SHOWN] for cite in _quoted(mine[name]).cites)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return Value(", ".join(names[:SHOWN]) + more, cites) if names else None


_VOLATILE = re.compile(r"0x[0-9a-f]{6,}|\b\d{4}-?\d\d-?\d\d[T_ -]?\d\d[:-]?\d\d[:-]?\d\d\b|\b1[5-9]\d{8,11}\b")


def _normal(side: Side, setting: Setting) -> str:
    """A value without what is another in each run: its id, its nodes, addresses in memory, times."""
    text = _VOLATILE.sub("~", setting.value)
    for name in sorted(filter(None, (side.run.id, *side.run.nodes)), key=len, reverse=True):
        text = text.replace(name, "~")
    return text


def _quoted(setting: Setting) -> Value:
    """A line of the log, cited by its place: it is no event, so that there is no query for it."""
    return Value(setting.value, (Cite("log", "files", None, str(setting.at), setting.value, text=setting.text),))
