"""The site's settings: ``trackside.toml``, ``TRACKSIDE_...`` variables and flags, as options of each part."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trackside.http.options import HttpOptions
from trackside.settings import PREFIX, Index, Section, Settings
from trackside.settings.price import NO_PRICE, Price
from trackside.settings.shown import EffectiveSetting, as_toml, effective_settings, exposure_warnings
from trackside.site.file import find
from trackside.site.journal import JournalOptions
from trackside.site.slurm_options import SlurmOptions
from trackside.stores.log_store import LogOptions
from trackside.stores.metric_server import MetricOptions
from trackside.stores.receiver.options import ReceiverLimits, RetentionOptions, ServeOptions


@dataclass(frozen=True, slots=True)
class _Store:
    path: str = ""


@dataclass(frozen=True, slots=True)
class _Metadata:
    url: str = ""


SECTIONS = (
    Section("metrics", (MetricOptions, HttpOptions), inner="endpoint"),
    Section("logs", (LogOptions, HttpOptions), several=True, inner="endpoint"),
    Section("journal", (JournalOptions,)),
    Section("slurm", (SlurmOptions,)),
    Section("store", (_Store,)),
    Section("metadata", (_Metadata,)),
    Section("cost", (Price,)),
    Section("serve", (ServeOptions,), frozenset({"store", "metadata", "limits", "keeping"})),
    Section("serve.limits", (ReceiverLimits,)),
    Section("serve.keeping", (RetentionOptions,)),
)
"""All tables of the file. Each key is declared once, as a field of the options class of its part."""
OPTIONS = {
    "cost.currency": "--price",
    "cost.price_per_gpu_hour": "--price",
    "logs.kind": "--logs-url",
    "metadata.url": "--archive",
    "metrics.kind": "--metrics-url",
    "serve.allow_open": "--allow-open",
    "serve.listen": "--listen",
    "slurm.clusters": "--cluster",
    "slurm.mode": "--slurm",
    "slurm.url": "--slurm",
    "store.path": "--store",
}
"""Setting -> its option of the command line, if that is not ``--section-key``."""


@dataclass(frozen=True, slots=True)
class Site:
    """The sources of this site. None or empty: not set."""

    metrics: MetricOptions | None
    logs: tuple[LogOptions, ...]
    journal: JournalOptions | None
    """None if the section is absent."""
    slurm: SlurmOptions | None
    """None if ``slurm.mode`` is off."""
    store: str
    metadata: str
    """URL of the database of runs and verdicts."""
    serve: ServeOptions
    price: Price = NO_PRICE
    """Per GPU-hour."""
    file: str = ""
    """The settings file; empty: none was read."""
    settings: tuple[EffectiveSetting, ...] = ()
    warnings: tuple[str, ...] = ()


def load(
    path: str | os.PathLike[str] | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Site:
    """Read the settings: ``flags`` override the environment, which overrides the file, which overrides the defaults.

    ``path``: the file; None: ``$TRACKSIDE_CONFIG``, else the first existing one of ``./trackside.toml``, the user's and
    ``/etc/trackside``'s. ``flags``: ``{"metrics.url": ...}``. Raises ConfigError.
    """
    warnings: list[str] = []
    file = find(path, environ, warnings)
    settings = Settings(SECTIONS)
    if file is not None:
        settings.read_file(file)
    settings.read_environment({name: value for name, value in environ.items() if name != f"{PREFIX}CONFIG"})
    settings.read_flags(flags or {}, OPTIONS)
    if file is not None:
        warnings += exposure_warnings(file, settings)

    def build(index: Index) -> Any:
        values = settings.values(index, environ, warnings)
        try:
            return settings.sections[index[0]].build(values)
        except (ValueError, TypeError) as error:
            raise settings.error_at(index, str(error)) from None

    store, metadata = build(("store", 0)).path, build(("metadata", 0)).url
    slurm = build(("slurm", 0))
    limits, keeping = build(("serve.limits", 0)), build(("serve.keeping", 0))
    listening = settings.values(("serve", 0), environ, warnings)
    try:
        serve = ServeOptions(store=store, metadata=metadata, limits=limits, keeping=keeping, **listening)
    except ValueError as error:
        raise settings.error_at(("serve", 0), str(error)) from None
    site = Site(
        metrics=build(("metrics", 0)) if ("metrics", 0) in settings.set_values else None,
        logs=tuple(build(index) for index in settings.indices("logs")),
        journal=build(("journal", 0)) if ("journal", 0) in settings.set_values else None,
        slurm=slurm if slurm.mode != "off" else None,
        store=store,
        metadata=metadata,
        serve=serve,
        price=build(("cost", 0)),
        file=str(file or ""),
        settings=tuple(effective_settings(settings, ("metrics", "logs", "journal"))),
    )
    return dataclasses.replace(site, warnings=tuple(dict.fromkeys(warnings)))


SLURM_UNSET = "default of diagnose --job; serve does not query Slurm, because [slurm] is not set"
"""The origin of the mode if no key of ``[slurm]`` is set."""


def dump(site: Site) -> str:
    """The effective configuration as TOML, each key with its origin; secrets are hidden."""
    settings = site.settings
    if all(setting.origin == "default" for setting in settings if setting.name.startswith("slurm.")):
        settings = tuple(
            dataclasses.replace(setting, origin=SLURM_UNSET) if setting.name == "slurm.mode" else setting
            for setting in settings
        )
    return as_toml(settings, ("logs",))
