"""TOML to scenario: every key is checked; every error says where it is and which values are valid."""

from __future__ import annotations

import dataclasses
import datetime as dt
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from trackside.sim.faults import faults
from trackside.sim.frameworks import frameworks
from trackside.sim.hardware import MODELS
from trackside.sim.scenario import PLANES, Scenario, ScenarioError, seconds

MIN_SIMILARITY = 0.6
"""Similarity, 0 to 1, from which a name may be what was meant."""
MAX_HINTS = 2
"""Scenarios named in an error."""
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "cluster.gpu": tuple(MODELS),
    "cluster.fabric": ("infiniband", "ethernet"),
    "job.launcher": ("torchrun", "srun", "python"),
    "job.layout": ("slurm", "tree", "ranks"),
    "job.transport": ("", "IB", "Socket"),
    "telemetry.fields": ("full", "default"),
    "telemetry.dialect": ("dcgm", "lower"),
    "telemetry.planes": PLANES,
    "neighbors.activity": ("busy", "idle", "spin", "leftover"),
}
_SINGULAR = {"neighbor": "neighbors", "fault": "faults", "gap": "gaps", "restart": "restarts"}
"""Singular names, because tables of arrays read better: [[fault]]."""


def built_in() -> dict[str, str]:
    """Name -> title of the built-in scenarios."""
    titles = {}
    for entry in resources.files("trackside.sim.scenarios").iterdir():
        if entry.name.endswith(".toml"):
            table = tomllib.loads(entry.read_text(encoding="utf-8"))
            titles[entry.name.removesuffix(".toml")] = str(table.get("title", ""))
    return dict(sorted(titles.items()))


def load_scenario(source: str | Path, changes: Sequence[str] = (), seed: int | None = None) -> Scenario:
    """A built-in scenario by name, a TOML file by path, or TOML text (anything with a line break).

    ``changes``: ``key=value`` with dotted keys. Raises ScenarioError.
    """
    text, source_name, name = _text(source)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source_name} is not valid TOML: {error}") from None
    for change in changes:
        _set(table, change)
    table.setdefault("name", name)
    if seed is not None:
        table["seed"] = seed
    scenario: Scenario = build(Scenario, table, source_name, "")
    _check(scenario, source_name)
    return scenario


def _text(source: str | Path) -> tuple[str, str, str]:
    if isinstance(source, str) and "\n" in source:
        return source, "scenario", "scenario"
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        try:
            return path.read_text(encoding="utf-8"), str(path), path.stem
        except (OSError, UnicodeDecodeError) as error:
            raise ScenarioError(f"{path} cannot be read: {error}") from None
    entry = resources.files("trackside.sim.scenarios") / f"{source}.toml"
    if not entry.is_file():
        raise ScenarioError(f"no scenario {str(source)!r}{_scenario_hint(str(source))}")
    return entry.read_text(encoding="utf-8"), str(source), str(source)


def _scenario_hint(name: str) -> str:
    """How to get what was meant by a name that no scenario has."""
    if name in faults():
        scenarios = " or ".join(_scenarios_with(name)[:MAX_HINTS])
        alternative = f", or use {scenarios}" if scenarios else ""
        return f": it is a fault; write a scenario with it (docs/simulator.md){alternative}"
    similar = get_close_matches(name, built_in(), 1, MIN_SIMILARITY)
    hint = f"; did you mean {similar[0]}?" if similar else ";"
    return f"{hint} 'trackside simulate --list' lists them all"


def _scenarios_with(fault: str) -> list[str]:
    """The built-in scenarios with a fault."""
    tables = {
        name: tomllib.loads((resources.files("trackside.sim.scenarios") / f"{name}.toml").read_text(encoding="utf-8"))
        for name in built_in()
    }
    return [
        name
        for name, table in tables.items()
        if any(entry.get("kind") == fault for entry in (*table.get("fault", ()), *table.get("faults", ())))
    ]


def _set(table: dict[str, Any], change: str) -> None:
    """Apply ``a.b=value``; the value is TOML, or else plain text; a number selects an entry of an array."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(f"--set {change}: write key=value, such as job.step_s=2.5")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    node: Any = table
    parts = key.strip().split(".")
    parts[0] = next((name for name, plural in _SINGULAR.items() if plural == parts[0] and name in table), parts[0])
    if len(parts) > 1 and parts[1].isdigit() and parts[0] not in table:
        raise ScenarioError(f"--set {change}: the scenario has no {parts[0]}; add [[{parts[0]}]] to a copy of its file")
    *path, last_part = parts
    for part in path:
        if isinstance(node, list):
            node = node[_entry(node, part, change)]
            continue
        node = node.setdefault(part, {})
        if not isinstance(node, (dict, list)):
            raise ScenarioError(f"--set {change}: {part} is not a table")
    if isinstance(node, list):
        node[_entry(node, last_part, change)] = value
    else:
        node[last_part] = value


def _entry(entries: list[Any], part: str, change: str) -> int:
    if not part.isdigit():
        name, _, rest = change.partition(f".{part}")
        raise ScenarioError(
            f"--set {change}: {name} is a list; give the number of the entry, such as {name}.0.{part}{rest}"
        )
    if int(part) >= len(entries):
        raise ScenarioError(f"--set {change}: no entry {part}; there are {len(entries)}, counted from 0")
    return int(part)


def build(cls: Any, table: Mapping[str, Any], source_name: str, path: str) -> Any:
    """A dataclass from a table. Raises ScenarioError for an unknown key or a value of the wrong type."""
    fields = {field_.name: field_ for field_ in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = _SINGULAR.get(name, name)
        if key not in fields:
            similar = get_close_matches(key, fields, 2, 0.6)
            hint = f"did you mean {' or '.join(similar)}?" if similar else f"known: {', '.join(fields)}"
            raise ScenarioError(f"{source_name}: {path}{name}: unknown key; {hint}")
        values[key] = _value(hints[key], value, source_name, f"{path}{name}", key)
    return cls(**values)


def _value(hint: Any, value: Any, source_name: str, path: str, key: str) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        hint = next(item for item in inner if item is not type(None))
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, dict):
            return build(hint, value, source_name, f"{path}.")
        expected = "a table"
    elif origin is tuple:
        if isinstance(value, list):
            return tuple(_value(inner[0], item, source_name, f"{path}[{i}]", key) for i, item in enumerate(value))
        expected = "an array"
    elif origin is not None or hint is typing.Any:
        if isinstance(value, dict) or hint is typing.Any:
            return value
        expected = "a table"
    elif hint is float and key.endswith("_s"):
        if (number := seconds(value)) is not None and number >= 0:
            return number
        expected = "a duration; write seconds, or a length such as 10m"
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif type(value) is hint:
        return value
    elif hint is str and isinstance(value, (int, float, dt.datetime)) and not isinstance(value, bool):
        return str(value)
    else:
        expected = {"int": "a whole number", "str": "text", "bool": "true or false", "float": "a number"}[hint.__name__]
    shown = "a table" if isinstance(value, dict) else repr(value)
    raise ScenarioError(f"{source_name}: {path}: {shown} is not {expected}")


def _check(scenario: Scenario, source_name: str) -> None:
    cluster, job = scenario.cluster, scenario.job
    for path, choices in _CHOICES.items():
        section, name = path.split(".")
        for owner in scenario.neighbors if section == "neighbors" else (getattr(scenario, section),):
            chosen = getattr(owner, name)
            for item in chosen if isinstance(chosen, tuple) else (chosen,):
                if item not in choices:
                    valid = ", ".join(choice or "(empty)" for choice in choices)
                    raise ScenarioError(f"{source_name}: {path}: {item!r} is not one of: {valid}")
    if job.framework not in frameworks():
        raise ScenarioError(f"{source_name}: job.framework: {job.framework!r} is not one of: {', '.join(frameworks())}")
    sizes = {
        "cluster.nodes": (cluster.nodes, 1, 100_000),
        "cluster.gpus_per_node": (cluster.gpus_per_node, 1, 64),
        "job.nodes": (job.nodes, 0, cluster.nodes),
        "job.first_gpu + job.gpus_per_node": (job.first_gpu + job.gpus_per_node, 0, cluster.gpus_per_node),
        "job.steps": (job.steps, 0, 100_000_000),
        "job.step_s": (job.step_s, 0.001, 1e6),
        "job.duration_s": (job.duration_s, 1, 1e8),
        "job.log_every": (job.log_every, 1, 10**9),
        "job.memory_share": (job.memory_share, 0.0, 1.0),
        "job.compute_share + job.data_share + job.gap_share": (
            job.compute_share + job.data_share + job.gap_share,
            0.01,
            1.0,
        ),
        "telemetry.interval_s": (scenario.telemetry.interval_s, 0.1, 86400),
    }
    for path, (chosen, minimum, maximum) in sizes.items():
        if not minimum <= chosen <= maximum:
            raise ScenarioError(f"{source_name}: {path}: {chosen} is out of range ({minimum} to {maximum})")
