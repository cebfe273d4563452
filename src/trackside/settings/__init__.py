"""Settings from a TOML file, the environment and the command line, each later one over the earlier; known by where each
came from, so that a wrong one can be named with its file, line and key."""

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

PREFIX = "TRACKSIDE_"
SECRETS = frozenset({"password", "bearer", "token"})
"""May be given as text, as ``$NAME`` of an environment variable, or as a file under the key ending in ``_file``."""
NAMED = frozenset({"headers", "extra_params"})
"""Tables of which some are secrets, told by their names; each may be ``$NAME``."""
PATHS = frozenset({"ca", "cert", "certificate", "key", "bin", "path"})
"""Keys whose values are paths; and all that end in ``_file`` or ``_files``. In a file they count from its folder."""
MOST_SECRET = 64 << 10
"""Bytes of a file with a secret."""
Index = tuple[str, int]
"""A section and which of several of that name."""


class ConfigError(ValueError):
    """A setting that can't be meant. One line: where it stands, what is wrong, what may help."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was set. ``folder``: what a relative path in it counts from. ``text``: it came as a plain text."""

    value: Any
    origin: str
    folder: str = ""
    text: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """One table of the file. ``parts``: the dataclasses whose fields are its keys; the first that has one takes it."""

    name: str
    parts: tuple[type, ...]
    left_out: frozenset[str] = frozenset()
    several: bool = False
    inner: str = ""
    """The field of the first part that holds the second part, which has a ``url``."""
    prefix: str = PREFIX
    """What its variables in the environment begin with."""

    @property
    def variable(self) -> str:
        """The beginning of its keys' variables."""
        return f"{self.prefix}{self.name.replace('.', '_').upper()}_"

    def types(self) -> dict[str, Any]:
        """Key -> the type of its value, secrets' files included."""
        found: dict[str, Any] = {}
        for part in self.parts:
            hints = typing.get_type_hints(part)
            for each in dataclasses.fields(part):
                if each.name not in self.left_out and each.name != self.inner:
                    found.setdefault(each.name, hints[each.name])
        return {**found, **{f"{name}_file": str for name in found if name in SECRETS}}

    def build(self, values: Mapping[str, Any]) -> Any:
        """The options of the table. Raises ValueError for what can't be meant."""
        outer = self.parts[0]
        if not self.inner:
            return outer(**values)
        if not values.get("url"):
            raise ValueError("has no url")
        fields = {each.name: each for each in dataclasses.fields(outer) if each.name != self.inner}
        inner = self.parts[1](**{name: value for name, value in values.items() if name not in fields})
        for name, each in fields.items():
            if name not in values and each.default is each.default_factory is dataclasses.MISSING:
                raise ValueError(f"has no {name}")
        return outer(**{self.inner: inner}, **{name: value for name, value in values.items() if name in fields})

    def default(self, key: str) -> Any:
        """What holds where nothing is set; None for a key that must be."""
        for part in self.parts:
            for each in dataclasses.fields(part):
                if each.name == key and each.default is not dataclasses.MISSING:
                    return each.default
                if each.name == key and each.default_factory is not dataclasses.MISSING:
                    return each.default_factory()
        return "" if key.endswith("_file") else None


class Settings:
    """All that was set, by section and key."""

    def __init__(self, sections: Iterable[Section]) -> None:
        self.sections = {section.name: section for section in sections}
        self.given: dict[Index, dict[str, Given]] = {}

    def indices(self, name: str) -> list[Index]:
        """The tables of a section, in the order of the file."""
        return sorted(index for index in self.given if index[0] == name)

    def read_file(self, path: Path) -> None:
        """Take a TOML file. Raises ConfigError."""
        try:
            text = path.read_text("utf-8")
            document = tomllib.loads(text)
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is no TOML: {error}") from None
        lines, folder = _lines(text), str(path.resolve().parent)

        def origin(name: str, at: int, key: str = "") -> str:
            outer, _, inner = name.rpartition(".")
            line = lines.get((name, at, key)) or lines.get((name, at, "")) or lines.get((outer, 0, inner))
            return f"{path} line {line}" if line else str(path)

        for name, at, table in _tables(document, self.sections):
            section = self.sections.get(name)
            if section is None:
                raise ConfigError(f"{origin(name, 0)}: there is no section [{name}]{nearest(name, self.sections)}")
            if not isinstance(table, dict) or (at and not section.several):
                form = f"[[{name}]] or [{name}]" if section.several else f"[{name}]"
                raise ConfigError(f"{origin(name, at)}: {name} is a table: write {form} with its keys below")
            kept = self.given.setdefault((name, at), {})
            for key, value in table.items():
                kept[self._known(section, key, origin(name, at, key))] = Given(value, origin(name, at, key), folder)

    def read_environment(self, environ: Mapping[str, str]) -> None:
        """Take ``TRACKSIDE_<SECTION>_<KEY>`` variables. Raises ConfigError for a section's that is none of its keys."""
        longest_first = sorted(self.sections.values(), key=lambda each: len(each.variable), reverse=True)
        for name, value in sorted(environ.items()):
            section = next((each for each in longest_first if name.startswith(each.variable)), None)
            if section is not None:
                key = name.removeprefix(section.variable).lower()
                self.set(section.name, key, Given(value, name, os.getcwd(), True))

    def read_flags(self, flags: Mapping[str, object]) -> None:
        """Take ``{"metrics.url": ...}`` of the command line; None is one that was not given. Raises ConfigError."""
        for name, value in flags.items():
            section, _, key = name.rpartition(".")
            if value is not None:
                flag = f"--{name.replace('.', '-').replace('_', '-')}"
                self.set(section, key, Given(value, flag, os.getcwd(), isinstance(value, str)))

    def set(self, name: str, key: str, given: Given) -> None:
        """Take one value. Raises ConfigError for a key that the section hasn't."""
        section = self.sections[name]
        there = self.indices(name) or [(name, 0)]
        if len(there) > 1:
            raise ConfigError(f"{given.origin}: the file has {len(there)} tables [[{name}]]; set it there")
        self.given.setdefault(there[0], {})[self._known(section, key, given.origin)] = given

    @staticmethod
    def _known(section: Section, key: str, origin: str) -> str:
        if key in section.types():
            return key
        raise ConfigError(f"{origin}: [{section.name}] has no key {key!r}{nearest(key, section.types())}")

    def values(self, index: Index, environ: Mapping[str, str], warnings: list[str]) -> dict[str, Any]:
        """The values of one table, converted, paths made whole and secrets fetched. Raises ConfigError."""
        section = self.sections[index[0]]
        keys, given = section.types(), self.given.get(index, {})
        values: dict[str, Any] = {}
        for key, each in given.items():
            value = _converted(keys[key], each, f"{section.name}.{key}")
            if key in PATHS or key.endswith(("_file", "_files")):
                value = _whole(value, each.folder)
            if key in SECRETS or key in NAMED or key == "url":
                value = _referred(value, each, environ)
            values[key] = value
        for key in [key for key in values if key.removesuffix("_file") in SECRETS and key.endswith("_file")]:
            plain = key.removesuffix("_file")
            if values.get(plain):
                raise ConfigError(f"{given[key].origin}: give {section.name}.{plain} or {key}, not both")
            values[plain] = _secret(values.pop(key), given[key], warnings)
        return values

    def where(self, index: Index, message: str) -> ConfigError:
        """An error of a whole table, by the key that its message names or else its first."""
        given = self.given.get(index, {})
        key = next((key for key in given if re.search(rf"\b{re.escape(key)}\b", message)), next(iter(given), None))
        origin = given[key].origin if key is not None else "the settings"
        return ConfigError(f"{origin}: [{index[0]}] {message}")


def _tables(document: Mapping[str, Any], sections: Iterable[str]) -> Iterator[tuple[str, int, Any]]:
    """(section, which of several, table) of a document; a table in a table is a section ``outer.inner`` if known, or
    if ``outer`` is none by itself."""
    for name, content in document.items():
        alone = name in sections or not any(each.startswith(f"{name}.") for each in sections)
        for at, table in enumerate(content if isinstance(content, list) else [content]):
            if not alone and isinstance(table, dict):
                yield from ((f"{name}.{key}", 0, each) for key, each in table.items())
                continue
            inner = [key for key in table if f"{name}.{key}" in sections] if isinstance(table, dict) else []
            for key in inner:
                yield f"{name}.{key}", 0, table[key]
            yield name, at, {key: value for key, value in table.items() if key not in inner} if inner else table


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?\Z")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*[=.]""")


def _lines(text: str) -> dict[tuple[str, int, str], int]:
    """(section, which of several, key) -> its line; the section's own under an empty key."""
    found: dict[tuple[str, int, str], int] = {}
    counts: dict[str, int] = {}
    name, at = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            name = header[2].replace(" ", "").replace('"', "")
            at = counts.get(name, 0) if header[1] == "[[" else 0
            counts[name] = at + 1
            found.setdefault((name, at, ""), number)
            outer, _, inner = name.partition(".")
            if inner:  # [metrics.labels] is the key labels of [metrics]
                found.setdefault((outer, max(counts.get(outer, 1) - 1, 0), inner.partition(".")[0]), number)
        elif key := _KEY.match(line):
            found.setdefault((name, at, key[1]), number)
            if not name:
                found.setdefault((key[1], 0, ""), number)
    return found


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name that a word may be meant for, or all of them, as the end of a message."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, 1, 0.5)
    return f"; do you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


def _converted(hint: Any, given: Given, name: str) -> Any:
    value = given.value
    if given.text and not _takes_text(hint):
        try:
            value = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            raise _mistaken(hint, given, name, ", written as in TOML,") from None
    try:
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, TypeError):
        raise _mistaken(hint, given, name) from None


def _mistaken(hint: Any, given: Given, name: str, form: str = "") -> ConfigError:
    hidden = name.rpartition(".")[2] in SECRETS | NAMED
    value = "what is given" if hidden else repr(given.value)[:80]
    return ConfigError(f"{given.origin}: {name} must be {_wanted(hint)}{form} and not {value}")


def _takes_text(hint: Any) -> bool:
    """Whether a plain text is meant as it stands, not as TOML."""
    origin = typing.get_origin(hint)
    return hint is str or origin is typing.Literal


def _wanted(hint: Any) -> str:
    """A type in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(each) for each in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_wanted(each) for each in arguments if each is not type(None))
    if origin is not None and issubclass(origin, Mapping):
        return "a table of texts"
    if origin is not None and issubclass(origin, (Sequence, frozenset)):
        return "a list of texts"
    plain = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
    return plain.get(hint, "of another kind")


def _whole(value: Any, folder: str) -> Any:
    """A path, or a list of them, made absolute."""
    if isinstance(value, (list, tuple)):
        return tuple(_whole(each, folder) for each in value)
    return os.path.join(folder, os.path.expanduser(value)) if isinstance(value, str) and value else value


def _referred(value: Any, given: Given, environ: Mapping[str, str]) -> Any:
    """``$NAME`` replaced by that variable, in a value or the values of a table."""
    if isinstance(value, dict):
        return {key: _referred(each, given, environ) for key, each in value.items()}
    if not isinstance(value, str) or not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", value):
        return value
    if value[1:] not in environ:
        raise ConfigError(f"{given.origin}: the environment variable {value[1:]} that it names is not set")
    return environ[value[1:]]


def _secret(path: str, given: Given, warnings: list[str]) -> str:
    """What a file with a secret holds, without the line's end. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_SECRET + 1)
            readable = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o007
    except OSError as error:
        raise ConfigError(f"{given.origin}: {path} can't be read: {error.strerror}") from None
    secret = data.decode("utf-8", "replace").strip()
    if not secret or len(data) > MOST_SECRET or "\n" in secret:
        raise ConfigError(f"{given.origin}: {path} must hold the secret on one line, and nothing else")
    if readable:
        warnings.append(f"{path} holds a secret, and every user may read or change it: chmod o= {path}")
    return secret
