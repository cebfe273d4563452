"""Compares the outcome, hardware and setup of two runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trackside.compare.side import ComparedRow, RunSetting, Side, compare_values
from trackside.evidence import Cite, Value, derived
from trackside.facts.training.learning import steps_planned
from trackside.families import families
from trackside.finding import Outcome
from trackside.verdict import cost

UNNAMED = "custom"
"""The framework name of an unrecognized log; such a log may come from any framework."""
MAX_SETTINGS = 40
"""Maximum number of differing settings with a row each."""
MAX_NAMES = 8
"""Maximum number of names listed of settings that only one log prints."""
PLAN_LABELS = {
    "total_steps": "planned steps",
    "epochs": "planned epochs",
    "examples": "training examples",
    "batch_size": "batch size",
    "save_steps": "planned steps between checkpoints",
}


def rows(a: Side, b: Side) -> Iterator[ComparedRow]:
    """Verdict, state, elapsed time, nodes, GPUs and framework, then the settings."""
    yield compare_values("outcome", "family", _verdict(a), _verdict(b))
    yield compare_values("outcome", "state", a.record_value("state"), b.record_value("state"))
    yield compare_values("outcome", "exit code", a.record_value("exit_code"), b.record_value("exit_code"))
    elapsed_a, elapsed_b = (side.record_value("elapsed_s", "s") for side in (a, b))
    yield compare_values("outcome", "elapsed time", elapsed_a, elapsed_b, 0.1)
    yield _nodes(a, b)
    yield compare_values("place", "GPUs", _gpus(a), _gpus(b))
    framework_a, framework_b = _framework(a), _framework(b)
    unnamed = "either run" if framework_a is framework_b is None else f"run {'A' if framework_a is None else 'B'}"
    yield compare_values("setup", "framework", framework_a, framework_b, why=f"not recognized for {unnamed}")
    yield _commands(a, b)
    for field, label in PLAN_LABELS.items():
        value_a, value_b = _plan_value(a, field), _plan_value(b, field)
        if value_a is not None or value_b is not None:
            yield compare_values("setup", label, value_a, value_b)
    yield from _flags(a, b)
    yield from _settings(a, b)


def onset(a: Side, b: Side) -> Iterator[ComparedRow]:
    """When the fault of each run began, counted from the start of that run."""
    for letter, side in (("A", a), ("B", b)):
        if side.primary.outcome is Outcome.FOUND and side.primary.role != "health":
            yield from _onset(letter, side)


def _onset(letter: str, side: Side) -> Iterator[ComparedRow]:
    """The onset by its time, otherwise by the last logged step before it in the log; nothing if the fault may have been
    there from the start."""
    primary, allocation = side.primary, side.allocation
    if not _has_onset(side):
        return
    ended = primary.culprit in ("none", "scheduler")  # a cancellation is no fault
    label = f"run {letter} ends ({primary.title})" if ended else f"the fault of run {letter} begins"
    since = cost.onset_of(primary, allocation) if allocation is not None else None
    seconds: float | None
    position = primary.at
    earlier = (
        row
        for row in reversed(side.points)
        if position and row.at.path == position.path and row.at.line <= position.line
    )
    nearest = next(earlier, None)
    if since is not None and allocation is not None:
        value, seconds, step = derived(primary.id, since), since.number - allocation.start.number, None
    elif nearest is not None and isinstance(last := nearest.get("step"), (int, float)):
        value, step = derived(primary.id, side.progress.value(nearest, "step")), float(last)
        seconds = side.since_start(nearest)
    else:
        return
    value_a, value_b = (value, None) if letter == "A" else (None, value)
    yield ComparedRow("outcome", label, value_a, value_b, True, step=step, seconds=seconds)


def _has_onset(side: Side) -> bool:
    """Whether the fault is known to have begun during the run: a slow run had a faster phase before, a fault of
    learning is not there from the first logged step, and no other fault is older than the run."""
    primary, allocation, cost = side.primary, side.allocation, side.verdict.cost
    kind = next((family.cost_kind for family in families() if family.code == primary.family), "nothing")
    if kind == "slow":
        return cost is not None and any(part.kind == "slow" for part in cost.wasted)
    first = side.points[0].at if side.points else None
    if kind in ("spoilt", "repeated") and primary.at is not None and first is not None:
        return primary.at.path != first.path or primary.at.line > first.line
    return primary.since is None or allocation is None or primary.since >= allocation.start.number


def _gpus(side: Side) -> Value | None:
    """The number of allocated GPUs."""
    return None if side.allocation is None else side.allocation.gpus


def _verdict(side: Side) -> Value | None:
    """The primary family, with the citations of its evidence."""
    primary = side.primary
    cites = tuple(dict.fromkeys(cite for claim in primary.shows for cite in claim.cites))[:4]
    variant = f" ({primary.variant})" if primary.variant and primary.variant not in primary.id else ""
    return Value(f"{primary.family} {primary.id}{variant}", cites) if cites else None


def _nodes(a: Side, b: Side) -> ComparedRow:
    nodes_a, nodes_b = _node_names(a), _node_names(b)
    row = compare_values("place", "nodes", nodes_a, nodes_b)
    if nodes_a is None or nodes_b is None or row.differs is not True:
        return row
    shared = sorted(set(a.run.nodes) & set(b.run.nodes))
    overlap = (
        f"{len(shared)} node{'s' if len(shared) > 1 else ''} in common: {', '.join(shared[:8])}"
        if shared
        else "no node in common"
    )
    return ComparedRow("place", "nodes", nodes_a, nodes_b, True, rule=overlap)


def _node_names(side: Side) -> Value | None:
    recorded = side.record_value("nodes")
    return None if recorded is None or not side.run.nodes else derived(tuple(sorted(side.run.nodes)), recorded)


def _framework(side: Side) -> Value | None:
    """The framework; None if it was not recognized."""
    for frame in (side.progress, side.plans, side.log_events("training_start")):
        for row in frame.events:
            if row.get("framework") not in (None, UNNAMED):
                return frame.value(row, "framework")
    return None


def _commands(a: Side, b: Side) -> ComparedRow:
    """The command line, from the first source that shows it for both runs."""
    by_side = [
        (_logged_command(side), side.record_value("submit_line"), side.record_value("command")) for side in (a, b)
    ]
    pairs = list(zip(*by_side, strict=True))
    command_a, command_b = next((pair for pair in pairs if None not in pair), pairs[0])
    return compare_values("setup", "command", _without_job_id(a, command_a), _without_job_id(b, command_b))


def _logged_command(side: Side) -> Value | None:
    hosts = side.log_events("host")
    row = next((row for row in hosts.events if row.get("command")), None)
    return None if row is None else hosts.value(row, "command")


def _without_job_id(side: Side, command: Value | None) -> Value | None:
    """The command with the job's id replaced by JOB, because the id always differs."""
    if command is None or side.run.id is None or not isinstance(command.value, str):
        return command
    return derived(re.sub(rf"(?<!\d){re.escape(side.run.id)}(?!\d)", "JOB", command.value), command)


def _plan_value(side: Side, field: str) -> Value | None:
    if field == "total_steps":
        return steps_planned(side.progress, side.plans)
    row = next((row for row in reversed(side.plans.events) if row.get(field) is not None), None)
    return None if row is None else side.plans.value(row, field)


def _flags(a: Side, b: Side) -> Iterator[ComparedRow]:
    """Environment variables that a log shows to be in effect."""
    environments = [side.environment or {} for side in (a, b)]
    for name in sorted(environments[0].keys() | environments[1].keys()):
        value_a, value_b = (environment.get(name) for environment in environments)
        logs = a.environment is not None and b.environment is not None
        if value_a is None or value_b is None:
            letter = "A" if value_a is None else "B"
            yield ComparedRow(
                "setup", name, value_a, value_b, True if logs else None, why=f"the log of run {letter} does not show it"
            )
        else:
            yield compare_values("setup", name, value_a, value_b)


def _settings(a: Side, b: Side) -> Iterator[ComparedRow]:
    """Settings printed in the logs: those that differ, a row each; otherwise one row that says how many agree."""
    label = "settings printed in the log"
    if a.settings is None or b.settings is None:
        yield ComparedRow(
            "setup", label, why="the log lines are not available: a store keeps the parsed events, not the lines"
        )
        return
    if not a.settings or not b.settings:
        letter = "either run" if not a.settings and not b.settings else f"run {'B' if a.settings else 'A'}"
        yield ComparedRow("setup", label, why=f"no settings were recognized in the log of {letter}")
        return
    both = [name for name in a.settings if name in b.settings]
    if not both:
        yield ComparedRow("setup", label, why="the logs have no setting in common")
        return
    differing = [name for name in both if _normalize(a, a.settings[name]) != _normalize(b, b.settings[name])]
    for name in differing[:MAX_SETTINGS]:
        yield ComparedRow("setup", name, _setting_value(a.settings[name]), _setting_value(b.settings[name]), True)
    if len(differing) > MAX_SETTINGS:
        yield ComparedRow("setup", "further settings", why=f"{len(differing) - MAX_SETTINGS} more differ")
    if not differing:
        label = f"{len(both)} setting{'s' if len(both) > 1 else ''} printed by both logs"
        yield ComparedRow(
            "setup", label, _setting_value(a.settings[both[0]]), _setting_value(b.settings[both[0]]), False
        )
    only_a, only_b = _only_in(a.settings, b.settings), _only_in(b.settings, a.settings)
    if only_a is not None or only_b is not None:
        yield ComparedRow("alone", "settings", only_a, only_b, True)


def _only_in(settings: Mapping[str, RunSetting], others: Mapping[str, RunSetting]) -> Value | None:
    """The names of the settings that ``others`` lacks; None if there are none."""
    names = sorted(settings.keys() - others.keys())
    cites = tuple(cite for name in names[:MAX_NAMES] for cite in _setting_value(settings[name]).cites)
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return Value(", ".join(names[:MAX_NAMES]) + more, cites) if names else None


_VOLATILE = re.compile(r"0x[0-9a-f]{6,}|\b\d{4}-?\d\d-?\d\d[T_ -]?\d\d[:-]?\d\d[:-]?\d\d\b|\b1[5-9]\d{8,11}\b")


def _normalize(side: Side, setting: RunSetting) -> str:
    """A value without the parts that differ in every run: job id, node names, memory addresses, times."""
    text = _VOLATILE.sub("~", setting.value)
    for name in sorted(filter(None, (side.run.id, *side.run.nodes)), key=len, reverse=True):
        text = text.replace(name, "~")
    return text


def _setting_value(setting: RunSetting) -> Value:
    """A setting, cited by its log line. It has no query, because settings are not events."""
    return Value(setting.value, (Cite("log", "files", None, str(setting.at), setting.value, text=setting.text),))
