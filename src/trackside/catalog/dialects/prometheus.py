"""Scrape metrics of Prometheus and compatible scrapers. Here ``job`` is the name of the scrape configuration."""

from __future__ import annotations

from trackside.catalog.dialect import Dialect, ForeignMetric
from trackside.catalog.labels import MACHINE_LABELS, Label

DIALECT = Dialect(
    id="prometheus",
    title="Prometheus",
    names={
        "up": ForeignMetric("scrape_up"),
        "scrape_duration_seconds": ForeignMetric("scrape_seconds"),
        "scrape_samples_scraped": ForeignMetric("scrape_samples"),
    },
    labels={**MACHINE_LABELS, "job": Label("target")},
    # About the exporter's own process and its client library.
    unneeded=("go_", "process_", "promhttp_", "python_"),
)
