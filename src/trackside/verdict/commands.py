"""Fills the commands of a finding's actions with the names of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from trackside.evidence import Missing, Value
from trackside.facts.fact import Facts
from trackside.facts.logs.ending import BAD_STATES
from trackside.facts.run_names import RunNames
from trackside.finding import Action, Finding, Sentence

ENDED_STATES = BAD_STATES | {"COMPLETED"}


def fill_commands(finding: Finding, facts: Facts) -> Finding:
    """The finding whose actions have at most one command each: the first that can be filled.

    An action whose sentence names what is not known is left out.
    """
    names: Mapping[str, Value] = {}
    if any(_placeholders(action.sentence, *action.commands) - action.values.keys() for action in finding.actions):
        run_names = facts.get(RunNames)  # not before: its queries may be expensive
        names = {} if isinstance(run_names, Missing) else run_names.of(finding)
    if facts.run.disposition in ENDED_STATES:  # its processes are gone
        names = {name: value for name, value in names.items() if name not in ("pid", "pids")}
    return replace(finding, actions=tuple(_fill_actions(finding.actions, names)))


def _fill_actions(actions: Iterable[Action], names: Mapping[str, Value]) -> Iterable[Action]:
    for action in actions:
        values = {**names, **action.values}
        if _placeholders(action.sentence) <= values.keys():
            commands = [command for command in action.commands if _placeholders(command) <= values.keys()]
            used = _placeholders(action.sentence, *commands[:1])
            yield Action(action.sentence, {name: values[name] for name in used}, tuple(commands[:1]))


def _placeholders(*sentences: Sentence) -> set[str]:
    """The names of the placeholders."""
    return {name for sentence in sentences for name in sentence.placeholders}
