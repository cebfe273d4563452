"""What commands share that ask a live site, and the commands that show its settings and run the receiver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from trackside.cli.exits import fail
from trackside.show.inert import shown
from trackside.stores.registry import DEFAULT_METRICS, LOGS, METRICS, kinds

if TYPE_CHECKING:
    from trackside.site.config import Site


def _listed(room: str) -> str:
    """The engines of a room, as a sentence has them."""
    *others, last = kinds(room)
    return f"{', '.join(others)} or {last}" if others else last


FLAGS: tuple[Callable[[Any], Any], ...] = (
    click.option("--config", metavar="FILE", type=click.Path(dir_okay=False), help="The site's trackside.toml."),
    click.option(
        "--metrics-url",
        metavar="[KIND=]URL",
        help=f"Prometheus, VictoriaMetrics, Mimir or Thanos. KIND: {_listed(METRICS)} (default {DEFAULT_METRICS}).",
    ),
    click.option("--logs-url", metavar="KIND=URL", help=f"KIND: {_listed(LOGS)}."),
    click.option("--slurm", metavar="HOW", help="auto, commands, off, or the URL of slurmrestd."),
    click.option("--archive", metavar="URL", help="Keep the verdict: sqlite:///FILE or postgresql://..."),
    click.option("--cluster", "clusters", metavar="NAME", multiple=True, help="Of several Slurm clusters."),
)


def site_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags that say where a site keeps things; it gets them as one mapping, ``site``."""

    @wraps(command)
    def taken(**given: Any) -> Any:
        names = ("config", "metrics_url", "logs_url", "slurm", "archive", "clusters")
        site = {name: value for name in names if (value := given.pop(name)) not in (None, ())}
        return command(site=site, **given)

    for flag in reversed(FLAGS):
        flag(taken)
    return taken


def site_of(given: Mapping[str, Any], more: Mapping[str, object] | None = None) -> Site:
    """The site's settings, with the flags over them; warnings go to stderr. Raises ConfigError where they are wrong.

    ``more``: a command's own flags, by the settings that they are.
    """
    from trackside.site.config import load  # the HTTP client comes with it

    flags: dict[str, object] = {**(more or {}), "metadata.url": given.get("archive")}
    if (metrics := given.get("metrics_url")) is not None:
        kind, url = _kind_of(metrics)
        flags |= {"metrics.kind": kind or DEFAULT_METRICS, "metrics.url": url}
    if (logs := given.get("logs_url")) is not None:
        kind, url = _kind_of(logs)
        if kind is None:
            fail(f"--logs-url {logs!r}: write KIND=URL, such as loki=http://logs:3100")
        flags |= {"logs.kind": kind, "logs.url": url}
    if (slurm := given.get("slurm")) is not None:
        if ":" not in slurm and slurm not in ("auto", "commands", "off"):
            fail(f"--slurm {slurm!r}: write auto, commands, off, or the URL of slurmrestd")
        flags |= {"slurm.url": slurm, "slurm.mode": "rest"} if ":" in slurm else {"slurm.mode": slurm}
    if clusters := given.get("clusters"):
        flags["slurm.clusters"] = list(clusters)
    site = load(given.get("config"), flags)
    for warning in site.warnings:
        click.echo(shown(f"trackside: {warning}"), err=True)
    return site


def _kind_of(text: str) -> tuple[str | None, str]:
    """Of ``KIND=URL`` the kind, None where there is a URL alone; and the URL."""
    kind, equals, url = text.partition("=")
    return (None, text) if not equals or "/" in kind else (kind, url)


@click.command()
@site_flags
def config(site: Mapping[str, Any]) -> None:
    """Show the settings in force and where each comes from; secrets are hidden."""
    from trackside.site.config import dump

    click.echo(shown(dump(site_of(site))))


@click.command()
@site_flags
@click.option("--store", metavar="DIR", type=click.Path(), help="The store's folder; made where there is none.")
@click.option("--listen", metavar="HOST:PORT", help="Where; 127.0.0.1:9480 unless set.")
@click.option("--allow-open", is_flag=True, default=None, help="Listen to other machines without asking for tokens.")
def serve(site: Mapping[str, Any], store: str | None, listen: str | None, allow_open: bool | None) -> None:
    """Receive metrics and logs into a store, and answer for its runs over HTTP.

    Prometheus remote write, OTLP/HTTP and Loki push, from whatever sends them (docs/receiver.md); the API's
    description is served at /api/v1/openapi.json (docs/http-api.md).
    """
    flags = {"store.path": store, "serve.listen": listen, "serve.allow_open": allow_open}
    found = site_of(site, flags)
    options = found.serve
    if not options.store:
        fail("give --store DIR, or set store.path in trackside.toml")
    try:
        from trackside.serve.app import serve as run  # the extra "serve"
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: pip install 'trackside[serve]'")
    try:
        run(options, found)
    except ValueError as error:
        fail(str(error))
