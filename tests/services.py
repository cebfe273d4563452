"""Real servers for tests, each on a free loopback port with its data in a temporary folder.

Session fixtures, one server of each kind (per pytest-xdist worker): ``victoria``, ``prometheus``, ``postgres``.
Fixtures that return a function to start a server with options: ``vmagent``, ``rotel``. Context managers for a server
that a test may stop, freeze or kill (``server.process``): ``victoria_metrics``, ``prometheus_server``, ``vm_agent``,
``rotel_agent``, ``postgresql``.

A program that is not installed skips the test; with ``CI=true`` it fails the test.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import urllib3

HOST = "127.0.0.1"
READY_S = 30.0
"""How long a server may take to be ready."""
END_S = 15.0
"""How long a server may take to end after a signal."""
RUNNING: list[Server] = []
"""Running servers, whose logs are added to failure reports."""
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=5, read=60))


@dataclass(eq=False)
class Server:
    """A running server: ``port`` is where it listens, ``log`` the file with its output."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    folder: Path
    log: Path

    @property
    def url(self) -> str:
        """Its address over HTTP."""
        return f"http://{HOST}:{self.port}"

    def ask(self, method: str, path: str, **options: Any) -> bytes:
        """The body of one request's response; AssertionError with the server's message if the status is an error."""
        answer = _http.request(method, self.url + path, **options)
        assert answer.status < 300, f"{self.name}: {method} {path}: {answer.status} {answer.data[:500]!r}"
        return answer.data

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])

    def end(self, stop_signal: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal, and kill it if it does not end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)  # a test may have frozen it
            self.process.send_signal(stop_signal)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


class Victoria(Server):
    """VictoriaMetrics, single node."""

    def load(self, text: str | bytes) -> None:
        """Load samples in Prometheus text with times in ms; they can be queried at once."""
        self.ask("POST", "/api/v1/import/prometheus", body=text)
        self.flush()

    def flush(self) -> None:
        """Show the newest samples to queries."""
        self.ask("GET", "/internal/force_flush")

    def clear(self) -> None:
        """Delete all series."""
        self.ask("POST", "/api/v1/admin/tsdb/delete_series", fields={"match[]": '{__name__!=""}'})
        self.ask("GET", "/internal/resetRollupResultCache")


class Prometheus(Server):
    """Prometheus with its remote-write receiver and its admin API open."""


class Postgres(Server):
    """PostgreSQL, whose user ``trackside`` needs no password."""

    _names = count(1)

    @property
    def url(self) -> str:
        """Its first database, as SQLAlchemy writes it."""
        return self._address("postgres")

    def database(self) -> str:
        """The address of a new empty database."""
        import psycopg

        name = f"test{next(self._names)}"
        with psycopg.connect(host=HOST, port=self.port, user="trackside", dbname="postgres", autocommit=True) as link:
            link.execute(f"CREATE DATABASE {name}")
        return self._address(name)

    def _address(self, database: str) -> str:
        return f"postgresql+psycopg://trackside@{HOST}:{self.port}/{database}"


@dataclass(eq=False)
class Rotel(Server):
    """Rotel, an OpenTelemetry collector: ``url`` takes OTLP over HTTP, ``grpc_port`` over gRPC."""

    grpc_port: int = field(default=0, kw_only=True)


def missing(program: str, package: str) -> None:
    """Skip the test, or fail it in CI."""
    text = f"{program} is not installed: install the package {package} (tools/services installs all that tests start)"
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


def program(name: str, package: str) -> str:
    """The path of a program of a Debian package; skips or fails the test if it is not installed."""
    path = shutil.which(name)
    if path is None:
        missing(name, f"{package} (apt-get install {package})")
    return str(path)


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def answers(path: str) -> Callable[[Server], bool]:
    """Ready once a page answers 200."""

    def ready(server: Server) -> bool:
        try:
            return _http.request("GET", server.url + path).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    return ready


def listens(server: Server) -> bool:
    """Ready once its port takes connections."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, server.port)) == 0


@contextmanager
def running(
    kind: type[Server],
    name: str,
    folder: Path,
    port: int,
    command: Sequence[str],
    ready: Callable[[Server], bool],
    **options: Any,
) -> Iterator[Any]:
    """A server while the block runs. RuntimeError if it is not ready in time; its log is added to any error."""
    extra = {key: options.pop(key) for key in ("grpc_port",) if key in options}
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, **options)
    server = kind(name, process, port, folder, log, **extra)
    RUNNING.append(server)
    try:
        wait_until(lambda: process.poll() is not None or ready(server), f"{name} to be ready")
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}")
        yield server
    except Exception as error:
        error.add_note(f"end of the log of {name}:\n{server.tail()}")  # it has ended when the failure is shown
        raise
    finally:
        RUNNING.remove(server)
        server.end(signal.SIGINT if kind is Postgres else signal.SIGTERM)


def wait_until(condition: Callable[[], bool], what: str, within_s: float = READY_S) -> None:
    """Wait until a condition holds. RuntimeError at the deadline."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {within_s:g} s for {what}")
        time.sleep(0.02)


@contextmanager
def victoria_metrics(folder: Path, *options: str) -> Iterator[Victoria]:
    """A VictoriaMetrics. After ``flush()`` it returns newly written samples at once."""
    path, port = program("victoria-metrics", "victoria-metrics"), free_port()
    command = [path, f"-storageDataPath={folder / 'data'}", f"-httpListenAddr={HOST}:{port}", "-retentionPeriod=100y",
               "-loggerLevel=WARN", "-search.latencyOffset=0s", "-search.maxPointsPerTimeseries=200000", *options]  # fmt: skip
    with running(Victoria, "victoria-metrics", folder, port, command, answers("/health")) as server:
        yield server


@contextmanager
def prometheus_server(folder: Path, *options: str, config: str = "", openmetrics: str = "") -> Iterator[Prometheus]:
    """A Prometheus: ``config`` in YAML; it starts with the samples of ``openmetrics``.

    Old samples cannot be written into a running one. OpenMetrics text has times in seconds and ends with ``# EOF``.
    """
    path, port = program("prometheus", "prometheus"), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(config or "global: {}\n")
    if openmetrics:
        make_blocks(folder, openmetrics)
    command = [path, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
               "--storage.tsdb.retention.time=100y", f"--web.listen-address={HOST}:{port}",
               "--web.enable-remote-write-receiver", "--web.enable-admin-api", "--log.level=warn", *options]  # fmt: skip
    with running(Prometheus, "prometheus", folder, port, command, answers("/-/ready")) as server:
        yield server


def make_blocks(folder: Path, openmetrics: str) -> None:
    """Create Prometheus blocks in ``folder/data`` from OpenMetrics text."""
    text = folder / "samples.om"
    text.write_text(openmetrics)
    command = [program("promtool", "prometheus"), "tsdb", "create-blocks-from", "openmetrics", str(text),
               str(folder / "data")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"promtool: {done.stderr[-2000:]}"
    text.unlink()


@contextmanager
def vm_agent(folder: Path, send_to: str, *options: str, scrape: str = "") -> Iterator[Server]:
    """A vmagent that forwards to ``send_to`` what is pushed to it and what it scrapes (``scrape``: a promscrape.config)."""
    path, port = program("vmagent", "victoria-metrics"), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command = [path, f"-httpListenAddr={HOST}:{port}", f"-remoteWrite.url={send_to}", "-remoteWrite.flushInterval=200ms",
               f"-remoteWrite.tmpDataPath={folder / 'queue'}", *options]  # fmt: skip
    if scrape:
        (folder / "scrape.yml").write_text(scrape)
        command.append(f"-promscrape.config={folder / 'scrape.yml'}")
    with running(Server, "vmagent", folder, port, command, answers("/health")) as server:
        yield server


@contextmanager
def rotel_agent(folder: Path, *options: str) -> Iterator[Rotel]:
    """A collector with ``options`` such as ``--otlp-exporter-endpoint=URL --otlp-exporter-protocol=http``."""
    try:
        from rotel.agent import Agent  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        missing("rotel-agent", "rotel (from the Python package index)")
    port, grpc_port = free_port(), free_port()
    command = [str(Agent.agent_path), "start", f"--otlp-http-endpoint={HOST}:{port}",
               f"--otlp-grpc-endpoint={HOST}:{grpc_port}", *options]  # fmt: skip
    with running(Rotel, "rotel", folder, port, command, listens, grpc_port=grpc_port) as server:
        yield server


@contextmanager
def postgresql(folder: Path) -> Iterator[Postgres]:
    """A PostgreSQL, run by an unprivileged user if the tests run as root, which it refuses."""
    initdb, serve = postgres_program("initdb"), postgres_program("postgres")
    as_user: dict[str, Any] = {}
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as data:
        if os.geteuid() == 0:
            account = unprivileged()
            os.chown(data, account.pw_uid, account.pw_gid)
            as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        options: dict[str, Any] = {"cwd": data, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}, **as_user}
        done = subprocess.run([initdb, "--no-sync", "--auth=trust", "--username=trackside", "--encoding=UTF8", f"{data}/db"],
                              capture_output=True, text=True, timeout=60, check=False, **options)  # fmt: skip
        assert done.returncode == 0, f"initdb: {done.stdout}{done.stderr}"
        command = [serve, "-D", f"{data}/db", "-h", HOST, "-p", str(port), "-c", "fsync=off", "-c", "max_connections=50",
                   "-c", "unix_socket_directories="]  # fmt: skip
        with running(Postgres, "postgres", folder, port, command, takes_queries, **options) as server:
            yield server


def takes_queries(server: Server) -> bool:
    """Ready once a connection succeeds: PostgreSQL listens before it serves."""
    import psycopg

    try:
        psycopg.connect(host=HOST, port=server.port, user="trackside", dbname="postgres", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def postgres_program(name: str) -> str:
    """The path of a server program, which Debian keeps outside PATH in a folder per version."""
    paths = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    return str(paths[-1]) if paths else program(name, "postgresql")


def unprivileged() -> pwd.struct_passwd:
    """The user that runs a server which refuses root."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("no user postgres or nobody to run PostgreSQL as")


@pytest.fixture(scope="session")
def victoria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victoria]:
    """The session's VictoriaMetrics."""
    with victoria_metrics(tmp_path_factory.mktemp("victoria")) as server:
        yield server


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The session's Prometheus; remote write accepts samples of the last hours, in order."""
    with prometheus_server(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """The session's PostgreSQL: ``postgres.database()`` is the address of a new database."""
    with postgresql(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def vmagent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts vmagents, as :func:`vm_agent` after the folder; they end with the test."""
    with ExitStack() as open_:
        yield lambda *options, **named: open_.enter_context(
            vm_agent(tmp_path_factory.mktemp("vmagent"), *options, **named)
        )


@pytest.fixture
def rotel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Rotel]]:
    """Starts collectors, as :func:`rotel_agent` after the folder; they end with the test."""
    with ExitStack() as open_:
        yield lambda *options: open_.enter_context(rotel_agent(tmp_path_factory.mktemp("rotel"), *options))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Add the logs of the running servers to the report of a failure."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        report.sections += [(f"end of the log of {server.name}", server.tail()) for server in RUNNING]
