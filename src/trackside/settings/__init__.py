"""Settings from a TOML file, the environment and the command line; later sources override earlier ones. Each value has
its origin, so that an error can name the file, line and key."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import stat
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trackside.errors import UsageError

PREFIX = "TRACKSIDE_"
SECRETS = frozenset({"password", "bearer", "token"})
"""Given as text, as ``$NAME`` of an environment variable, or as a file under the key that ends in ``_file``."""
NAMED = frozenset({"headers", "extra_params"})
"""Tables that may contain secrets, recognized by key; each value may be ``$NAME``."""
PATHS = frozenset({"ca", "cert", "certificate", "key", "bin", "path"})
"""Keys whose values are paths, besides those that end in ``_file`` or ``_files``; relative to the file's folder."""
MAX_SECRET_BYTES = 64 << 10
"""Size limit of a file with a secret."""
Index = tuple[str, int]
"""(section name, number of the table among those of that name)."""


class ConfigError(UsageError, ValueError):
    """An invalid setting. One line: its origin, what is wrong, and a hint."""


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A value as it was set. ``folder``: base of relative paths. ``text``: set as plain text (environment, flag)."""

    value: Any
    origin: str
    folder: str = ""
    text: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """One table of the file. ``parts``: the dataclasses whose fields are its keys; the first with a key takes it."""

    name: str
    parts: tuple[type, ...]
    left_out: frozenset[str] = frozenset()
    several: bool = False
    inner: str = ""
    """The field of the first part that holds the second part, which has a ``url``."""
    prefix: str = PREFIX
    """Prefix of its environment variables."""

    @property
    def variable(self) -> str:
        """Prefix of the variables of its keys."""
        return f"{self.prefix}{self.name.replace('.', '_').upper()}_"

    def types(self) -> dict[str, Any]:
        """Key -> type of its value, including the ``_file`` keys of secrets."""
        types: dict[str, Any] = {}
        for part in self.parts:
            hints = typing.get_type_hints(part)
            for field in dataclasses.fields(part):
                if field.name not in self.left_out and field.name != self.inner:
                    types.setdefault(field.name, hints[field.name])
        return {**types, **{f"{name}_file": str for name in types if name in SECRETS}}

    def build(self, values: Mapping[str, Any]) -> Any:
        """The options object of the table. Raises ValueError for invalid values."""
        outer = self.parts[0]
        if not self.inner:
            return outer(**values)
        if not values.get("url"):
            raise ValueError("has no url")
        fields = {field.name: field for field in dataclasses.fields(outer) if field.name != self.inner}
        inner = self.parts[1](**{name: value for name, value in values.items() if name not in fields})
        for name, field in fields.items():
            if name not in values and field.default is field.default_factory is dataclasses.MISSING:
                raise ValueError(f"has no {name}")
        return outer(**{self.inner: inner}, **{name: value for name, value in values.items() if name in fields})

    def default(self, key: str) -> Any:
        """The default of a key; None if the key is required."""
        for part in self.parts:
            for field in dataclasses.fields(part):
                if field.name == key and field.default is not dataclasses.MISSING:
                    return field.default
                if field.name == key and field.default_factory is not dataclasses.MISSING:
                    return field.default_factory()
        return "" if key.endswith("_file") else None


class Settings:
    """All values that were set, by section and key."""

    def __init__(self, sections: Iterable[Section]) -> None:
        self.sections = {section.name: section for section in sections}
        self.set_values: dict[Index, dict[str, SettingValue]] = {}

    def indices(self, name: str) -> list[Index]:
        """The tables of a section, in the order of the file."""
        return sorted(index for index in self.set_values if index[0] == name)

    def read_file(self, path: Path) -> None:
        """Read a TOML file. Raises ConfigError."""
        try:
            text = path.read_text("utf-8")
            document = tomllib.loads(text)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
        lines, folder = _lines(text), str(path.resolve().parent)

        def origin(name: str, index: int, key: str = "") -> str:
            outer, _, inner = name.rpartition(".")
            line = lines.get((name, index, key)) or lines.get((name, index, "")) or lines.get((outer, 0, inner))
            return f"{path} line {line}" if line else str(path)

        for name, index, table in _tables(document, self.sections):
            section = self.sections.get(name)
            if section is None:
                raise ConfigError(f"{origin(name, 0)}: unknown section [{name}]{_nearest_section(name, self.sections)}")
            if not isinstance(table, dict) or (index and not section.several):
                form = f"[[{name}]] or [{name}]" if section.several else f"[{name}]"
                raise ConfigError(f"{origin(name, index)}: {name} must be a table: write {form} with its keys below")
            table_values = self.set_values.setdefault((name, index), {})
            for key, value in table.items():
                inner = f"{name}.{key}"
                if isinstance(value, dict) and key not in section.types() and (inner, 0, "") in lines:
                    near = _nearest_section(inner, self.sections)
                    raise ConfigError(f"{origin(inner, 0)}: unknown section [{inner}]{near}")
                table_values[self._known(section, key, origin(name, index, key))] = SettingValue(
                    value, origin(name, index, key), folder
                )

    def read_environment(self, environ: Mapping[str, str]) -> None:
        """Read ``TRACKSIDE_<SECTION>_<KEY>`` variables. Raises ConfigError for an unknown key of a known section."""
        longest_first = sorted(self.sections.values(), key=lambda section_: len(section_.variable), reverse=True)
        for name, value in sorted(environ.items()):
            section = next((section_ for section_ in longest_first if name.startswith(section_.variable)), None)
            if section is not None:
                key = name.removeprefix(section.variable).lower()
                self.set(section.name, key, SettingValue(value, name, os.getcwd(), True))

    def read_flags(self, flags: Mapping[str, object], names: Mapping[str, str]) -> None:
        """Read ``{"metrics.url": ...}`` from the command line; None means not given. ``names``: setting -> its option,
        if it is not ``--section-key``. Raises ConfigError."""
        for name, value in flags.items():
            section, _, key = name.rpartition(".")
            if value is not None:
                flag = names.get(name) or f"--{name.replace('.', '-').replace('_', '-')}"
                self.set(section, key, SettingValue(value, flag, os.getcwd(), isinstance(value, str)))

    def set(self, name: str, key: str, setting: SettingValue) -> None:
        """Set one value. Raises ConfigError for a key that the section does not have."""
        section = self.sections[name]
        indices = self.indices(name) or [(name, 0)]
        if len(indices) > 1:
            raise ConfigError(f"{setting.origin}: the file has {len(indices)} tables [[{name}]]; set it in the file")
        self.set_values.setdefault(indices[0], {})[self._known(section, key, setting.origin)] = setting

    @staticmethod
    def _known(section: Section, key: str, origin: str) -> str:
        if key in section.types():
            return key
        raise ConfigError(f"{origin}: [{section.name}] has no key {key!r}{nearest(key, section.types())}")

    def values(self, index: Index, environ: Mapping[str, str], warnings: list[str]) -> dict[str, Any]:
        """The values of one table: converted, with absolute paths and with secrets read. Raises ConfigError."""
        section = self.sections[index[0]]
        keys, table_values = section.types(), self.set_values.get(index, {})
        values: dict[str, Any] = {}
        for key, setting in table_values.items():
            value = _convert(keys[key], setting, f"{section.name}.{key}")
            if key in PATHS or key.endswith(("_file", "_files")):
                value = _make_absolute(value, setting.folder)
            if key in SECRETS or key in NAMED or key == "url":
                value = _with_variables(value, setting, environ)
            values[key] = value
        for key in [key for key in values if key.removesuffix("_file") in SECRETS and key.endswith("_file")]:
            plain = key.removesuffix("_file")
            if values.get(plain):
                raise ConfigError(f"{table_values[key].origin}: set {section.name}.{plain} or {key}, not both")
            values[plain] = _secret(values.pop(key), table_values[key], warnings)
        return values

    def error_at(self, index: Index, message: str) -> ConfigError:
        """The error to raise about a whole table, with the origin of the key that the message names, else of its first
        key."""
        table_values = self.set_values.get(index, {})
        key = next(
            (key for key in table_values if re.search(rf"\b{re.escape(key)}\b", message, re.IGNORECASE)),
            next(iter(table_values), None),
        )
        origin = table_values[key].origin if key is not None else "the settings"
        if origin.startswith("--"):  # the flag names the key
            return ConfigError(f"{origin}: {message.removeprefix(f'{key}: ')}")
        return ConfigError(f"{origin}: [{index[0]}] {message}")


def _tables(document: Mapping[str, Any], sections: Iterable[str]) -> Iterator[tuple[str, int, Any]]:
    """(section, index of the table, table) of a document; a table in a table is a section ``outer.inner`` if that is
    known, or if ``outer`` is not a section itself and holds only tables."""
    for name, content in document.items():
        is_section = name in sections or not (isinstance(content, dict) and all(map(_is_table, content.values())))
        for index, table in enumerate(content if isinstance(content, list) else [content]):
            if not is_section and isinstance(table, dict):
                yield from ((f"{name}.{key}", 0, inner_table) for key, inner_table in table.items())
                continue
            inner = [key for key in table if f"{name}.{key}" in sections] if isinstance(table, dict) else []
            for key in inner:
                yield f"{name}.{key}", 0, table[key]
            yield name, index, {key: value for key, value in table.items() if key not in inner} if inner else table


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?\Z")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*[=.]""")


def _lines(text: str) -> dict[tuple[str, int, str], int]:
    """(section, index of the table, key) -> line number; a section's own line has an empty key."""
    lines: dict[tuple[str, int, str], int] = {}
    counts: dict[str, int] = {}
    name, index = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            name = header[2].replace(" ", "").replace('"', "")
            index = counts.get(name, 0) if header[1] == "[[" else 0
            counts[name] = index + 1
            lines.setdefault((name, index, ""), number)
            outer, _, inner = name.partition(".")
            if inner:  # [metrics.labels] is the key labels of [metrics]
                lines.setdefault((outer, max(counts.get(outer, 1) - 1, 0), inner.partition(".")[0]), number)
        elif key := _KEY.match(line):
            lines.setdefault((name, index, key[1]), number)
            if not name:
                lines.setdefault((key[1], 0, ""), number)
    return lines


def nearest(word: str, candidates: Iterable[str]) -> str:
    """The end of an error message: the candidate nearest to the word, else all candidates."""
    names = sorted(candidates)
    close = difflib.get_close_matches(word, names, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


def _nearest_section(name: str, sections: Iterable[str]) -> str:
    """The end of an error message: the section whose parts are nearest to those of the name, else all sections."""
    parts = name.split(".")

    def similarity(section: str) -> tuple[float, float]:
        ratios = [difflib.SequenceMatcher(None, *pair).ratio() for pair in zip(parts, section.split("."), strict=True)]
        return min(ratios), sum(ratios)

    names = sorted(sections)
    best = max((section for section in names if section.count(".") == name.count(".")), key=similarity, default=None)
    if best is not None and similarity(best)[0] >= 0.5:
        return f"; did you mean [{best}]?"
    return f"; known: {', '.join(f'[{section}]' for section in names)}"


def _convert(hint: Any, setting: SettingValue, name: str) -> Any:
    value = setting.value
    if setting.text and not _takes_text(hint):
        try:
            value = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            raise _type_error(hint, setting, name, ", in TOML syntax") from None
    try:
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, TypeError):
        raise _type_error(hint, setting, name) from None


def _type_error(hint: Any, setting: SettingValue, name: str, form: str = "") -> ConfigError:
    hidden = name.rpartition(".")[2] in SECRETS | NAMED
    value = "the given value" if hidden else repr(setting.value)[:80]
    return ConfigError(f"{setting.origin}: {name} must be {_type_text(hint)}{form}, not {value}")


def _takes_text(hint: Any) -> bool:
    """Whether plain text is the value itself, not TOML."""
    origin = typing.get_origin(hint)
    return hint is str or origin is typing.Literal


def _type_text(hint: Any) -> str:
    """A type in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(argument) for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_text(argument) for argument in arguments if argument is not type(None))
    if origin is not None and issubclass(origin, Mapping):
        return "a table of strings"
    if origin is not None and issubclass(origin, (Sequence, frozenset)):
        return "a list of strings"
    plain = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}
    return plain.get(hint, "of another type")


def _make_absolute(value: Any, folder: str) -> Any:
    """A path, or a list of paths, made absolute."""
    if isinstance(value, (list, tuple)):
        return tuple(_make_absolute(path, folder) for path in value)
    return os.path.join(folder, os.path.expanduser(value)) if isinstance(value, str) and value else value


def _with_variables(value: Any, setting: SettingValue, environ: Mapping[str, str]) -> Any:
    """The value, or the values of a table, with ``$NAME`` replaced by that environment variable."""
    if isinstance(value, dict):
        return {key: _with_variables(item, setting, environ) for key, item in value.items()}
    if not isinstance(value, str) or not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", value):
        return value
    if value[1:] not in environ:
        raise ConfigError(f"{setting.origin}: the environment variable {value[1:]} is not set")
    return environ[value[1:]]


def _secret(path: str, setting: SettingValue, warnings: list[str]) -> str:
    """The contents of a file with a secret, stripped. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SECRET_BYTES + 1)
            readable = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o007
    except OSError as error:
        raise ConfigError(f"{setting.origin}: cannot read {path}: {error.strerror}") from None
    secret = data.decode("utf-8", "replace").strip()
    if not secret or len(data) > MAX_SECRET_BYTES or "\n" in secret:
        raise ConfigError(f"{setting.origin}: {path} must contain the secret on one line, and nothing else")
    if readable:
        warnings.append(f"{path} contains a secret, and every user can read or change it; run: chmod o= {path}")
    return secret
