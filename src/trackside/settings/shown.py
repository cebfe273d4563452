"""Settings for display: the effective values, each with its origin, secrets hidden."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trackside.settings import NAMED, SECRETS, Settings
from trackside.settings.secrets import HIDDEN, is_secret, url_without_secrets


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One line of the effective configuration, secrets hidden."""

    name: str
    value: str
    origin: str


def effective_settings(settings: Settings, unless_given: Collection[str] = ()) -> list[EffectiveSetting]:
    """Every key of every section in use, with its value and origin. A section of ``unless_given`` is in use only if one
    of its keys is set."""
    effective: list[EffectiveSetting] = []
    for section in settings.sections.values():
        indices = settings.indices(section.name)
        if not indices and section.name not in unless_given:
            indices = [(section.name, 0)]
        for index in indices:
            name = f"{section.name}[{index[1]}]" if len(indices) > 1 else section.name
            table_values = settings.set_values.get(index, {})
            for key in section.types():
                setting = table_values.get(key)
                value = section.default(key) if setting is None else setting.value
                if setting is None and (key.endswith("_file") or value is None):
                    continue
                origin = "default" if setting is None else setting.origin
                effective.append(EffectiveSetting(f"{name}.{key}", _hide_secrets(key, value), origin))
    return effective


def as_toml(settings: Iterable[EffectiveSetting], several: Collection[str] = ()) -> str:
    """The effective configuration as TOML, each key with its origin; ``several``: sections that may occur more than
    once."""
    tables: dict[str, list[str]] = {}
    for setting in settings:
        table, _, key = setting.name.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {setting.value}  # {setting.origin}")
    heads = {table: f"[[{name}]]" if (name := table.partition("[")[0]) in several else f"[{table}]" for table in tables}
    return "\n".join(f"{heads[table]}\n" + "\n".join(lines) + "\n" for table, lines in tables.items())


def exposure_warnings(file: Path, settings: Settings) -> list[str]:
    """A warning if a file that every user can read contains a secret."""
    if not file.stat().st_mode & 0o007:
        return []
    for (section, _), table_values in settings.set_values.items():
        for key, setting in table_values.items():
            if setting.origin.startswith(str(file)) and (remedy := _remedy(key, setting.value)):
                return [f"{file} contains a secret ({section}.{key}), and every user can read it: {remedy}"]
    return []


def _remedy(key: str, value: object) -> str:
    """Another way to set a secret that is written in the file; empty if the value is not a secret."""
    if key in NAMED:
        pairs = value.items() if isinstance(value, Mapping) else ()
        bare = any(is_secret(name) and not str(item).startswith("$") for name, item in pairs)
        return "use a $VARIABLE" if bare else ""
    if not isinstance(value, str) or value.startswith("$"):
        return ""
    if key in SECRETS:
        return f"use {key}_file or a $VARIABLE"
    return "set user and password_file" if key == "url" and url_without_secrets(value) != value else ""


def _hide_secrets(key: str, value: object) -> str:
    """A value for display, secrets hidden."""
    if key in SECRETS:
        return f'"{HIDDEN}"' if value else '""'
    if key in NAMED and isinstance(value, Mapping):
        value = {name: HIDDEN if is_secret(name) else item for name, item in value.items()}
    return _toml(url_without_secrets(value) if key == "url" and isinstance(value, str) else value)


def _toml(value: object) -> str:
    """A value in TOML syntax."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(item if item.isprintable() else f"\\u{ord(item):04X}" for item in text) + '"'
