"""The site's settings: ``trackside.toml``, ``TRACKSIDE_...`` variables and flags, as the options of each part."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackside.settings import NAMED, PREFIX, SECRETS, Index, Section, Settings
from trackside.show.price import NO_PRICE, Price
from trackside.site.file import find
from trackside.site.journal import JournalOptions
from trackside.site.slurm_options import SlurmOptions
from trackside.stores.http.endpoint import EndpointOptions
from trackside.stores.logs.store import LogOptions
from trackside.stores.prometheus.api import PrometheusOptions
from trackside.stores.receiver.options import Keeping, Limits, ServeOptions
from trackside.stores.unanswered import HIDDEN, is_secret, shown_url


@dataclass(frozen=True, slots=True)
class _Store:
    path: str = ""


@dataclass(frozen=True, slots=True)
class _Metadata:
    url: str = ""


_ENDPOINT = frozenset({"endpoint"})
SECTIONS = (
    Section("metrics", (PrometheusOptions, EndpointOptions), _ENDPOINT),
    Section("logs", (LogOptions, EndpointOptions), _ENDPOINT, several=True),
    Section("journal", (JournalOptions,)),
    Section("slurm", (SlurmOptions,)),
    Section("store", (_Store,)),
    Section("metadata", (_Metadata,)),
    Section("cost", (Price,)),
    Section("serve", (ServeOptions,), frozenset({"store", "metadata", "limits", "keeping"})),
    Section("serve.limits", (Limits,)),
    Section("serve.keeping", (Keeping,)),
)
"""Every table of the file. A key is a field of the options that the part itself takes: it is declared there alone."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the effective configuration, with secrets hidden."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class Site:
    """Where things are at this site. None or empty: not set."""

    metrics: PrometheusOptions | None
    logs: tuple[LogOptions, ...]
    journal: JournalOptions | None
    """None unless the section is there."""
    slurm: SlurmOptions | None
    """None where ``slurm.mode`` is off."""
    store: str
    metadata: str
    """URL of the database of runs and verdicts."""
    serve: ServeOptions
    price: Price = NO_PRICE
    """Of a GPU-hour."""
    file: str = ""
    """The file that was read; empty: none."""
    settings: tuple[Setting, ...] = ()
    warnings: tuple[str, ...] = ()


def load(
    path: str | os.PathLike[str] | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Site:
    """Read the settings: ``flags`` over the environment over the one file that counts over the defaults.

    ``path``: the file; None: ``$TRACKSIDE_CONFIG``, or the first there is of ``./trackside.toml``, the user's and
    ``/etc/trackside``'s. ``flags``: ``{"metrics.url": ...}``. Raises ConfigError.
    """
    warnings: list[str] = []
    file = find(path, environ, warnings)
    settings = Settings(SECTIONS)
    if file is not None:
        settings.read_file(file)
    settings.read_environment({name: value for name, value in environ.items() if name != f"{PREFIX}CONFIG"})
    settings.read_flags(flags or {})
    if file is not None:
        warnings += _exposed(file, settings)

    def built(index: Index) -> Any:
        values = settings.values(index, environ, warnings)
        try:
            return _build(settings.sections[index[0]], values)
        except (ValueError, TypeError) as error:
            raise settings.where(index, str(error)) from None

    store, metadata = built(("store", 0)).path, built(("metadata", 0)).url
    slurm = built(("slurm", 0))
    limits, keeping = built(("serve.limits", 0)), built(("serve.keeping", 0))
    listening = settings.values(("serve", 0), environ, warnings)
    serve = ServeOptions(store=store, metadata=metadata, limits=limits, keeping=keeping, **listening)
    site = Site(
        metrics=built(("metrics", 0)) if ("metrics", 0) in settings.given else None,
        logs=tuple(built(index) for index in settings.indices("logs")),
        journal=built(("journal", 0)) if ("journal", 0) in settings.given else None,
        slurm=slurm if slurm.mode != "off" else None,
        store=store,
        metadata=metadata,
        serve=serve,
        price=built(("cost", 0)),
        file=str(file or ""),
        settings=tuple(_shown(settings)),
    )
    return dataclasses.replace(site, warnings=tuple(dict.fromkeys(warnings)))


def dump(site: Site) -> str:
    """The effective configuration as TOML, each key with where it came from; secrets hidden."""
    tables: dict[str, list[str]] = {}
    for each in site.settings:
        table, _, key = each.name.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {each.value}  # {each.origin}")
    heads = {table: "[[logs]]" if table.startswith("logs") else f"[{table}]" for table in tables}
    return "\n".join(f"{heads[table]}\n" + "\n".join(lines) + "\n" for table, lines in tables.items())


def _build(section: Section, values: dict[str, Any]) -> Any:
    """The options of a section: the first part, with the second under its key ``endpoint``."""
    taken: set[str] = set()
    built: list[Any] = []
    for part in section.parts:
        names = {each.name for each in dataclasses.fields(part)} - taken - section.left_out
        taken |= names
        built.append((part, {name: value for name, value in values.items() if name in names}))
    outer, own = built[0]
    if "url" not in values and len(built) > 1:
        raise ValueError("has no url")
    inner: dict[str, Any] = {}
    for part, rest in built[1:]:
        inner["endpoint"] = part(**rest)
    missing = [
        each.name
        for each in dataclasses.fields(outer)
        if each.name not in own and each.name not in inner
        and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    if missing:
        raise ValueError(f"has no {missing[0]}")
    return outer(**inner, **own)


def _exposed(file: Path, settings: Settings) -> list[str]:
    """A warning where a secret stands in a file that every user may read."""
    if not file.stat().st_mode & 0o007:
        return []
    for (section, _), given in settings.given.items():
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


def _shown(settings: Settings) -> list[Setting]:
    """Every key of every section in use, with its value and where that came from."""
    found: list[Setting] = []
    for section in settings.sections.values():
        indices = settings.indices(section.name)
        if not indices and section.name not in ("metrics", "logs", "journal"):
            indices = [(section.name, 0)]
        for index in indices:
            name = f"{section.name}[{index[1]}]" if len(indices) > 1 else section.name
            given = settings.given.get(index, {})
            for key in section.types():
                each = given.get(key)
                value = section.default(key) if each is None else each.value
                if each is None and (key.endswith("_file") or value is None):
                    continue
                origin = "default" if each is None else each.origin
                found.append(Setting(f"{name}.{key}", _hidden(key, value), origin))
    return found


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
