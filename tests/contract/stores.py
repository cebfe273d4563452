"""The same samples in every store that can hold them: the files themselves, the embedded store, and real servers.

A store here is a context manager that is given files in Prometheus text and gives what opens its curves, each time
anew; a server is one that gives how it is asked. Another kind is one more function and one more entry of ``ENGINES``,
which has all that are registered.
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
from trackside.stores.metric_store import MetricOptions, RunScope, open_metrics
from trackside.stores.registry import DEFAULT_METRICS


@dataclass(frozen=True, slots=True)
class StoreContents:
    """What a store is to hold. ``beside``: text that only servers hold, which is not the run's."""

    files: Sequence[Path]
    scope: RunScope = field(default_factory=RunScope)
    beside: str = ""
    match: str = ""
    relabel: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Label as the exporter calls it -> as the site does, and as we do."""

    @property
    def text(self) -> str:
        """All of it in Prometheus text, as the site's scrapers would have labeled it."""
        text = "".join(path.read_text("utf-8") for path in self.files) + self.beside
        for exporter_label, (site_label, _) in self.relabel.items():
            text = re.sub(rf"(?<=[{{,]){exporter_label}=", f"{site_label}=", text)
        return text

    def options(self, url: str, kind: str = DEFAULT_METRICS) -> MetricOptions:
        """How a server is asked for it."""
        labels = dict(self.relabel.values())
        match = (self.match,) if self.match else ()
        return MetricOptions(kind=kind, endpoint=HttpOptions(url=url), match=match, labels=labels)


BackendContext = Iterator[Callable[[], MetricBackend]]
StoreFactory = Callable[[StoreContents, Path], AbstractContextManager[Callable[[], MetricBackend]]]
ServerFactory = Callable[[StoreContents, Path], AbstractContextManager[MetricOptions]]


@contextmanager
def in_memory(contents: StoreContents, folder: Path) -> BackendContext:
    """As ``trackside diagnose FILES`` holds them."""
    backend = load(contents.files).metric_backend
    assert backend is not None
    yield lambda: backend


@contextmanager
def in_duckdb(contents: StoreContents, folder: Path) -> BackendContext:
    """As ``trackside ingest FILES`` keeps them."""
    ingest(contents.files, folder / "store")
    with Snapshot.open(folder / "store") as snapshot:
        yield lambda: DuckBackend(snapshot)


@contextmanager
def victoria_metrics(contents: StoreContents, folder: Path) -> Iterator[MetricOptions]:
    """A server for these samples alone: one starts in less time than another forgets."""
    with services.victoria_metrics(folder) as server:
        server.load(contents.text)
        yield contents.options(server.url)


@contextmanager
def prometheus(contents: StoreContents, folder: Path) -> Iterator[MetricOptions]:
    """A server that starts with these samples in its blocks: a running one takes none that are old."""
    with services.prometheus_server(folder, openmetrics=openmetrics(contents.text)) as server:
        yield contents.options(server.url)


@contextmanager
def in_server(start_server: ServerFactory, contents: StoreContents, folder: Path) -> BackendContext:
    """MetricBackend of a server, closed before it ends."""
    with start_server(contents, folder) as options, ExitStack() as stack:

        def open_backend() -> MetricBackend:
            backend = open_metrics(options, contents.scope)
            stack.callback(backend.close)
            return backend

        yield open_backend


ENGINES: dict[str, dict[str, ServerFactory]] = {
    "prometheus": {"victoria-metrics": victoria_metrics, "prometheus": prometheus},
}
"""Kind of metric store -> the servers that it is held to the others with."""
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
    """Prometheus text as OpenMetrics: times in seconds, and an end. Types are left out: each metric's are its own."""
    return _TIME.sub(r" \1.\2", _COMMENT.sub("", text)) + "# EOF\n"
