"""Settings as they may be shown: in force, each with where it came from, secrets hidden."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trackside.settings import NAMED, SECRETS, Settings
from trackside.settings.secrets import HIDDEN, is_secret, shown_url


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the effective configuration, with secrets hidden."""

    name: str
    value: str
    origin: str


def in_force(settings: Settings, unless_given: Collection[str] = ()) -> list[Setting]:
    """Every key of every section in use, with its value and where that came from. Sections of ``unless_given`` are in
    use only where something of them is set."""
    found: list[Setting] = []
    for section in settings.sections.values():
        indices = settings.indices(section.name)
        if not indices and section.name not in unless_given:
            indices = [(section.name, 0)]
        for index in indices:
            name = f"{section.name}[{index[1]}]" if len(indices) > 1 else section.name
            given = settings.set_values.get(index, {})
            for key in section.types():
                each = given.get(key)
                value = section.default(key) if each is None else each.value
                if each is None and (key.endswith("_file") or value is None):
                    continue
                origin = "default" if each is None else each.origin
                found.append(Setting(f"{name}.{key}", _hidden(key, value), origin))
    return found


def as_toml(settings: Iterable[Setting], several: Collection[str] = ()) -> str:
    """The effective configuration as TOML, each key with where it came from; ``several``: sections that may be more
    than one."""
    tables: dict[str, list[str]] = {}
    for each in settings:
        table, _, key = each.name.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {each.value}  # {each.origin}")
    heads = {table: f"[[{name}]]" if (name := table.partition("[")[0]) in several else f"[{table}]" for table in tables}
    return "\n".join(f"{heads[table]}\n" + "\n".join(lines) + "\n" for table, lines in tables.items())


def exposed(file: Path, settings: Settings) -> list[str]:
    """A warning where a secret stands in a file that every user may read."""
    if not file.stat().st_mode & 0o007:
        return []
    for (section, _), given in settings.set_values.items():
        for key, each in given.items():
            if each.origin.startswith(str(file)) and (remedy := _remedy(key, each.value)):
                return [f"{file} holds a secret ({section}.{key}), and every user may read it: {remedy}"]
    return []


def _remedy(key: str, value: object) -> str:
    """How else to give a secret that stands in a file; empty where none does."""
    if key in NAMED:
        pairs = value.items() if isinstance(value, Mapping) else ()
        bare = any(is_secret(name) and not str(each).startswith("$") for name, each in pairs)
        return "use a $VARIABLE" if bare else ""
    if not isinstance(value, str) or value.startswith("$"):
        return ""
    if key in SECRETS:
        return f"use {key}_file or a $VARIABLE"
    return "set user and password_file" if key == "url" and shown_url(value) != value else ""


def _hidden(key: str, value: object) -> str:
    """A value as it may be shown."""
    if key in SECRETS:
        return f'"{HIDDEN}"' if value else '""'
    if key in NAMED and isinstance(value, Mapping):
        value = {name: HIDDEN if is_secret(name) else each for name, each in value.items()}
    return _toml(shown_url(value) if key == "url" and isinstance(value, str) else value)


def _toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(each if each.isprintable() else f"\\u{ord(each):04X}" for each in text) + '"'
