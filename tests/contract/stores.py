"""The same samples in every store that can hold them: the files themselves, the embedded store, and real servers.

A store factory is a context manager that loads files in Prometheus text and returns a function that opens a new
backend; a server factory returns the options to query it. A further kind of metric store is one more function and one
more entry of ``ENGINES``, which must name all registered kinds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests import services
from trackside.http.options import HttpOptions
from trackside.ingest import ingest
from trackside.session.paths import load
from trackside.stores.embedded.duck import DuckBackend
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.metric_backend import MetricBackend
from trackside.stores.metric_server import MetricOptions, RunScope, open_metrics
from trackside.stores.registry import DEFAULT_METRICS


@dataclass(frozen=True, slots=True)
class StoreContents:
    """What a store holds. ``unrelated``: text that only servers hold and that is not the run's."""

    files: Sequence[Path]
    scope: RunScope = field(default_factory=RunScope)
    unrelated: str = ""
    match: str = ""
    relabel: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The exporter's name of a label -> (the site's name, Trackside's name)."""

    @property
    def text(self) -> str:
        """Everything in Prometheus text, with the labels of the site."""
        text = "".join(path.read_text("utf-8") for path in self.files) + self.unrelated
        for exporter_label, (site_label, _) in self.relabel.items():
            text = re.sub(rf"(?<=[{{,]){exporter_label}=", f"{site_label}=", text)
        return text

    def options(self, url: str, kind: str = DEFAULT_METRICS) -> MetricOptions:
        """The options to query it from a server."""
        labels = dict(self.relabel.values())
        match = (self.match,) if self.match else ()
        return MetricOptions(kind=kind, endpoint=HttpOptions(url=url), match=match, labels=labels)


BackendContext = Iterator[Callable[[], MetricBackend]]
StoreFactory = Callable[[StoreContents, Path], AbstractContextManager[Callable[[], MetricBackend]]]
ServerFactory = Callable[[StoreContents, Path], AbstractContextManager[MetricOptions]]


@contextmanager
def in_memory(contents: StoreContents, folder: Path) -> BackendContext:
    """The backend of ``trackside diagnose FILES``."""
    backend = load(contents.files).metric_backend
    assert backend is not None
    yield lambda: backend


@contextmanager
def in_duckdb(contents: StoreContents, folder: Path) -> BackendContext:
    """The backend of ``trackside ingest FILES``."""
    ingest(contents.files, folder / "store")
    with Snapshot.open(folder / "store") as snapshot:
        yield lambda: DuckBackend(snapshot)


@contextmanager
def victoria_metrics(contents: StoreContents, folder: Path) -> Iterator[MetricOptions]:
    """A server for these samples only: starting one is faster than deleting series."""
    with services.victoria_metrics(folder) as server:
        server.load(contents.text)
        yield contents.options(server.url)


@contextmanager
def prometheus(contents: StoreContents, folder: Path) -> Iterator[MetricOptions]:
    """A server that starts with these samples in its blocks: a running one refuses old samples."""
    with services.prometheus_server(folder, openmetrics=openmetrics(contents.text)) as server:
        yield contents.options(server.url)


@contextmanager
def in_server(start_server: ServerFactory, contents: StoreContents, folder: Path) -> BackendContext:
    """The backend of a server; closed before the server ends."""
    with start_server(contents, folder) as options, ExitStack() as stack:

        def open_backend() -> MetricBackend:
            backend = open_metrics(options, contents.scope)
            stack.callback(backend.close)
            return backend

        yield open_backend


ENGINES: dict[str, dict[str, ServerFactory]] = {
    "prometheus": {"victoria-metrics": victoria_metrics, "prometheus": prometheus},
}
"""Kind of metric store -> the servers to compare it with."""
SERVERS: dict[str, ServerFactory] = {
    name: start_server for servers in ENGINES.values() for name, start_server in servers.items()
}
STORES: dict[str, StoreFactory] = {
    "memory": in_memory,
    "duckdb": in_duckdb,
    **{name: partial(in_server, start_server) for name, start_server in SERVERS.items()},
}

_TIME = re.compile(r" (\d+)(\d{3})$", re.MULTILINE)
_COMMENT = re.compile(r"^#.*\n", re.MULTILINE)


def openmetrics(text: str) -> str:
    """Prometheus text as OpenMetrics: times in seconds, an end marker, no types."""
    return _TIME.sub(r" \1.\2", _COMMENT.sub("", text)) + "# EOF\n"
