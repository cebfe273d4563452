"""Threads for what may take long: so many at once, so many waiting, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class Busy(Exception):
    """All threads are taken, and enough is waiting."""


class Slow(Exception):
    """It was not done in time; it goes on all the same."""


class Workers:
    """``threads`` at once and ``waiting`` more; whoever asks waits ``within_s`` seconds at most.

    A thread can't be stopped: what takes longer keeps its place until it ends, so that there are never more.
    """

    def __init__(self, name: str, threads: int, waiting: int, within_s: float) -> None:
        self.within_s = within_s
        self._most = threads + waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"trackside-{name}")
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}

    async def run(self, work: Callable[[], T], key: Hashable = None) -> T:
        """What the work returns or raises. Of the same ``key`` one runs at a time: who asks meanwhile gets its answer.

        Raises Busy or Slow.
        """
        future = self._under_way.get(key) if key is not None else None
        if future is None:
            if len(self._under_way) >= self._most:
                raise Busy
            future = asyncio.get_running_loop().run_in_executor(self._pool, work)
            place: Hashable = object() if key is None else key
            self._under_way[place] = future
            future.add_done_callback(lambda done: self._ended(place, done))
        try:
            return await asyncio.wait_for(asyncio.shield(future), self.within_s)
        except TimeoutError:
            if future.done():  # it was the work's own
                raise
            raise Slow from None

    def _ended(self, place: Hashable, done: asyncio.Future[Any]) -> None:
        del self._under_way[place]
        if not done.cancelled() and done.exception() is not None:
            log.debug("failed: %s", done.exception())  # told to whoever waits; where nobody does, only here

    def close(self) -> None:
        """Take no more; what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
