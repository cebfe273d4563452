"""The site options that several commands share, and the commands ``config`` and ``serve``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import click

from trackside.cli.exit_codes import EXIT_OUTPUT, fail
from trackside.extras import install_command
from trackside.settings import nearest
from trackside.show.sanitize import replace_unsafe
from trackside.stores.registry import DEFAULT_METRICS, LOGS, METRICS, kinds

if TYPE_CHECKING:
    from trackside.site.config import Site


def _kinds_text(package: str) -> str:
    """The kinds of store of a package, as an enumeration: ``loki, elasticsearch or victorialogs``."""
    *others, last = kinds(package)
    return f"{', '.join(others)} or {last}" if others else last


SLURM_DEFAULT = "auto if a job is given without PATHS, else off"
"""The default of commands that diagnose."""


def site_flags(
    command: Callable[..., Any], slurm_default: str = SLURM_DEFAULT, archive_help: str = ""
) -> Callable[..., Any]:
    """Decorate a command with the site options. The command receives them as one mapping, ``site``. ``slurm_default``:
    as the help names it. ``archive_help``: what the command does with --archive; without it there is no such option."""

    @wraps(command)
    def wrapper(**options: Any) -> Any:
        names = ("config", "metrics_url", "logs_url", "slurm", "archive", "clusters")
        site = {name: value for name in names if (value := options.pop(name, None)) not in (None, ())}
        return command(site=site, **options)

    flags = (
        click.option(
            "--config", metavar="FILE", type=click.Path(dir_okay=False), help="Settings file (default: trackside.toml)."
        ),
        click.option(
            "--metrics-url", metavar="URL", help="URL of a metric server: Prometheus, VictoriaMetrics, Mimir or Thanos."
        ),
        click.option("--logs-url", metavar="KIND=URL", help=f"Log server. KIND: {_kinds_text(LOGS)}."),
        click.option(
            "--slurm", metavar="MODE",
            help=f"How to query Slurm: auto, commands, off, or the URL of slurmrestd (default: {slurm_default}).",
        ),
        *([click.option("--archive", metavar="URL", help=archive_help)] if archive_help else []),
        click.option(
            "--cluster", "clusters", metavar="NAME", multiple=True,
            help="Slurm cluster to query, if there are several; repeatable.",
        ),
    )  # fmt: skip
    for flag in reversed(flags):
        flag(wrapper)
    return wrapper


def site_of(options: Mapping[str, Any], more: Mapping[str, object] | None = None) -> Site:
    """The site's settings; command-line options override the file. Prints warnings on stderr. Raises ConfigError for
    invalid settings.

    ``more``: further settings from a command's own options, by dotted name.
    """
    from trackside.site.config import load  # imports the HTTP client

    flags: dict[str, object] = {**(more or {}), "metadata.url": options.get("archive")}
    if (metrics := options.get("metrics_url")) is not None:
        kind, url = _kind_of(metrics, METRICS, "--metrics-url")
        flags |= {"metrics.kind": kind or DEFAULT_METRICS, "metrics.url": url}
    if (logs := options.get("logs_url")) is not None:
        kind, url = _kind_of(logs, LOGS, "--logs-url")
        if kind is None:
            fail(f"--logs-url {logs!r}: KIND is missing; write KIND=URL, such as loki=http://logs:3100")
        flags |= {"logs.kind": kind, "logs.url": url}
    if (slurm := options.get("slurm")) is not None:
        if ":" not in slurm and slurm not in ("auto", "commands", "off"):
            fail(f"--slurm {slurm!r}: use auto, commands, off, or the URL of slurmrestd")
        flags |= {"slurm.url": slurm, "slurm.mode": "rest"} if ":" in slurm else {"slurm.mode": slurm}
    if clusters := options.get("clusters"):
        flags["slurm.clusters"] = list(clusters)
    site = load(options.get("config"), flags)
    for warning in site.warnings:
        click.echo(replace_unsafe(f"trackside: {warning}"), err=True)
    return site


def _kind_of(text: str, package: str, flag: str) -> tuple[str | None, str]:
    """``KIND=URL`` split into (kind, URL); the kind is None for a URL alone. Exits for an unknown kind."""
    kind, equals, url = text.partition("=")
    if not equals or "/" in kind:
        return None, text
    if kind not in kinds(package):
        fail(f"{flag}: unknown kind {kind!r}{nearest(kind.lower(), kinds(package))}")
    return kind, url


@click.group(invoke_without_command=True)
@partial(
    site_flags, slurm_default="auto; with a store, off unless set",
    archive_help="Show the settings with this verdict archive: sqlite:///FILE or postgresql://...",
)  # fmt: skip
@click.pass_context
def config(context: click.Context, site: Mapping[str, Any]) -> None:
    """Show the settings in effect and the source of each; secrets are hidden.

    'trackside config init' writes a file with all sections to start from.
    """
    from trackside.site.config import dump  # imports the HTTP client

    if context.invoked_subcommand is None:
        click.echo(replace_unsafe(dump(site_of(site))))


@config.command(short_help="Write a settings file to start from.")
@click.argument("file", default="trackside.toml", type=click.Path(dir_okay=False))
def init(file: str) -> None:
    """Write a settings FILE to start from (default ./trackside.toml), with each section as a comment.

    Does not overwrite a file. Trackside reads ./trackside.toml, ~/.config/trackside/trackside.toml and
    /etc/trackside/trackside.toml, the first that exists.
    """
    text = (files("trackside.site") / "template.toml").read_bytes()
    try:
        with open(file, "xb", opener=partial(os.open, mode=0o640)) as new_file:
            new_file.write(text)
    except FileExistsError:
        fail(f"{file} exists: give another name, or remove it first")
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}", EXIT_OUTPUT)
    click.echo(f"{file}: remove the '#' before what you need; 'trackside config --config {file}' checks it")


@click.command()
@partial(
    site_flags, slurm_default="off unless [slurm] is in the settings",
    archive_help="Record verdicts in this archive: sqlite:///FILE or postgresql://... (default: verdicts.db in the "
    "store).",
)  # fmt: skip
@click.option("--store", metavar="DIR", type=click.Path(), help="Folder of the store; created if it does not exist.")
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on (default 127.0.0.1:9480).")
@click.option(
    "--allow-open", is_flag=True, default=None, help="Allow other machines to connect without a token."
)  # fmt: skip
def serve(site: Mapping[str, Any], store: str | None, listen: str | None, allow_open: bool | None) -> None:
    """Receive metrics and logs into a store, and serve verdicts over HTTP.

    Accepts Prometheus remote write, OTLP/HTTP and Loki push from any sender (docs/receiver.md). The OpenAPI description
    of the HTTP API is at /api/v1/openapi.json (docs/http-api.md). When it diagnoses a job, it uses its store, and also
    queries the servers of --metrics-url and --logs-url, and Slurm if --slurm is given or [slurm] is in the settings.
    """
    flags = {"store.path": store, "serve.listen": listen, "serve.allow_open": allow_open}
    settings = site_of(site, flags)
    options = settings.serve
    if not options.store:
        fail("give --store DIR, or set store.path in trackside.toml")
    try:
        from trackside.serve.app import serve as run  # the extra "serve"
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: {install_command('serve')}")
    try:
        run(options, settings)
    except ValueError as error:
        fail(str(error))
