"""Thread pools for long tasks, with a bounded queue and a bounded wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class QueueFull(Exception):
    """All threads are busy and the queue is full."""


class Slow(Exception):
    """The task was not done in time; it continues."""


class Workers:
    """A pool of ``threads`` with a queue of ``waiting`` tasks; a caller waits at most ``within_s`` seconds.

    A thread cannot be stopped: a task that takes longer occupies its place until it ends, so the limits hold.
    """

    def __init__(self, name: str, threads: int, waiting: int, within_s: float) -> None:
        self.within_s = within_s
        self._max_tasks = threads + waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"trackside-{name}")
        self._running: dict[Hashable, asyncio.Future[Any]] = {}

    async def run(self, work: Callable[[], T], key: Hashable = None) -> T:
        """The result of the task, or its exception. Tasks with the same ``key`` run once: later callers join the first.

        Raises QueueFull or Slow.
        """
        future = self._running.get(key) if key is not None else None
        if future is None:
            if len(self._running) >= self._max_tasks:
                raise QueueFull
            future = asyncio.get_running_loop().run_in_executor(self._pool, work)
            task_key: Hashable = object() if key is None else key
            self._running[task_key] = future
            future.add_done_callback(lambda done: self._ended(task_key, done))
        try:
            return await asyncio.wait_for(asyncio.shield(future), self.within_s)
        except TimeoutError:
            if future.done():  # the task itself raised TimeoutError
                raise
            raise Slow from None

    def _ended(self, task_key: Hashable, done: asyncio.Future[Any]) -> None:
        del self._running[task_key]
        if not done.cancelled() and done.exception() is not None:
            log.debug(
                "failed: %s", done.exception()
            )  # the caller gets the exception; if none waits, only the log has it

    def close(self) -> None:
        """Accept no more tasks; running ones end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)
