"""Thread pools for long tasks, with a bounded queue and a bounded wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
LOG = logging.getLogger(__name__)


class WorkersBusy(Exception):
    """All threads are busy and the queue is full."""


class TaskTimeout(Exception):
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

        Raises WorkersBusy or TaskTimeout.
        """
        future = self._running.get(key) if key is not None else None
        if future is None:
            if len(self._running) >= self._max_tasks:
                raise WorkersBusy
            future = asyncio.get_running_loop().run_in_executor(self._pool, work)
            task_key: Hashable = object() if key is None else key
            self._running[task_key] = future
            future.add_done_callback(lambda task: self._forget_task(task_key, task))
        try:
            return await asyncio.wait_for(asyncio.shield(future), self.within_s)
        except TimeoutError:
            if future.done():  # the task itself raised TimeoutError
                raise
            raise TaskTimeout from None

    def _forget_task(self, task_key: Hashable, future: asyncio.Future[Any]) -> None:
        del self._running[task_key]
        if not future.cancelled() and future.exception() is not None:  # if no caller waits, only the log shows it
            LOG.debug("failed: %s", future.exception())

    def close(self) -> None:
        """Accept no more tasks; running tasks continue to their end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
