"""What Prometheus and its like say of their scrapes. Here ``job`` is the name of the scrape configuration."""

from __future__ import annotations

from trackside.catalog.dialect import Dialect, Foreign
from trackside.catalog.labels import PLACE, Label

DIALECT = Dialect(
    id="prometheus",
    title="Prometheus",
    names={
        "up": Foreign("scrape_up"),
        "scrape_duration_seconds": Foreign("scrape_seconds"),
        "scrape_samples_scraped": Foreign("scrape_samples"),
    },
    labels={**PLACE, "job": Label("target")},
    # Of the exporter's own process, and of the client library in it.
    unneeded=("go_", "process_", "promhttp_", "python_"),
)
