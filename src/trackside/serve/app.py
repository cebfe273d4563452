"""``trackside serve``: the receiver and the API of one store as one application, in one process."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from trackside.serve import api, problems
from trackside.serve.connections import Connection, raise_file_limit
from trackside.serve.diagnoser import Diagnoser
from trackside.serve.handlers import Handlers
from trackside.serve.limits import Tokens, load_tokens
from trackside.serve.line_file_reader import StoreLineFileReader
from trackside.serve.protocols.series_key import labels_of
from trackside.serve.receive import Receiver, decoder
from trackside.serve.web_pages import PageCheck
from trackside.settings.price import NO_PRICE
from trackside.site.config import Site
from trackside.stores.embedded.layout import ARCHIVE_NAME
from trackside.stores.metadata.archive import Archive
from trackside.stores.metadata.errors import ArchiveError
from trackside.stores.receiver.intake import Intake
from trackside.stores.receiver.lag import lags
from trackside.stores.receiver.options import ServeOptions
from trackside.stores.receiver.refresh import answer_refreshes
from trackside.stores.receiver.write_ahead import MAX_FRAME_BYTES

LOG = logging.getLogger("trackside.receiver")
BACKLOG = 2048
DAY_S = 86400.0
FLUSH_S = 30.0
"""Maximum wait of a query until accepted data is written."""
STOP_S = 20
"""Time limit for requests in progress once the process is asked to stop."""


def serve(options: ServeOptions, site: Site | None = None) -> None:
    """Receive and answer until SIGTERM or SIGINT; then write the accepted data, and return.

    ``site``: further sources to query about a job, besides the store.

    Raises ValueError for inconsistent options and an unusable address, StoreBusy and StoreError.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    LOG.setLevel(logging.INFO)
    write, read = load_tokens(options)
    raise_file_limit()
    with ExitStack() as stack:
        bound = stack.enter_context(_bound_socket(options))
        # the limits may have been higher when these bodies were accepted
        replay_decoder = decoder(replace(options.limits, decoded_bytes=MAX_FRAME_BYTES))
        intake = Intake(options.store, replay_decoder, labels_of, options.limits, options.keeping, StoreLineFileReader)
        stack.callback(intake.close)
        read_all = partial(lags, intake, FLUSH_S)
        stack.enter_context(answer_refreshes(options.store, read_all))
        archive = Archive.open(options.metadata or _default_metadata(options.store), lazy=bool(options.metadata))
        stack.callback(archive.close)
        price = NO_PRICE if site is None else site.price
        handlers = Handlers(archive, Diagnoser(options.store, read_all, site), price=price)
        stack.callback(handlers.close)  # else all queued work would run before the process ends
        routes = api.routes(handlers, lambda request: read.admit(request.headers.get("authorization", "")))
        prune = partial(_prune_daily, archive, options.keeping.verdict_days)
        app = application(intake, write, read, routes, prune, options.hosts)
        server = uvicorn.Server(_config(app, options))
        for number in (signal.SIGTERM, signal.SIGINT):
            # uvicorn raises the signal again when it is done; that must not end the process.
            stack.callback(signal.signal, number, signal.signal(number, server.handle_exit))
        bound.listen(BACKLOG)  # from now on no connection is refused, although the first may wait a moment
        LOG.info("listening on %s, store %s", _url(bound, options), options.store)
        server.run(sockets=[bound])
    if intake.last_error:
        LOG.warning(
            "stopped; accepted data are in the write-ahead log, to be read at the next start: %s", intake.last_error
        )
    else:
        LOG.info("stopped; all accepted data is in the store")


def _config(app: ASGIApp, options: ServeOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=options.certificate or None,
        ssl_keyfile=options.key or None,
    )


def _url(bound: socket.socket, options: ServeOptions) -> str:
    host, port = bound.getsockname()[:2]
    return f"{'https' if options.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def application(
    intake: Intake,
    write: Tokens,
    read: Tokens,
    extra_routes: Sequence[BaseRoute] = (),
    background: Callable[[], Coroutine[Any, Any, None]] | None = None,
    hosts: Collection[str] = (),
) -> ASGIApp:
    """The receiver's routes and ``extra_routes``, which do their own authorization. ``background``: a task that runs as
    long as the application. ``hosts``: names by which the server is reached."""
    receiver = Receiver(intake, write, read)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = None if background is None else asyncio.create_task(background())
        yield
        if task is not None:
            task.cancel()
        receiver.stopping = True
        await asyncio.to_thread(receiver.close)

    handlers: Mapping[Any, Any] = {404: problems.not_found, 405: problems.not_found}
    routes = [*receiver.routes(), *extra_routes]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return PageCheck(app, hosts, checks_host=not (write and read))


async def _prune_daily(archive: Archive, days: float | None) -> None:
    """Delete old verdicts, once a day."""
    while days is not None:
        try:
            deleted = await asyncio.to_thread(archive.prune, time.time() - days * DAY_S)
        except ArchiveError as error:
            LOG.warning("old verdicts cannot be deleted now: %s", error)
        else:
            LOG.info("%d verdicts older than %g days deleted", deleted, days)
        await asyncio.sleep(DAY_S)


def _default_metadata(store: str) -> str:
    """The default location of runs and verdicts."""
    return f"sqlite:///{Path(store).absolute() / ARCHIVE_NAME}"


def _bound_socket(options: ServeOptions) -> socket.socket:
    """A socket bound to the address. Raises ValueError if that fails."""
    host, port = options.address
    bound: socket.socket | None = None
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, number)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise ValueError(f"serve: cannot listen on {options.listen}: {error.strerror or error}") from error
    return bound
