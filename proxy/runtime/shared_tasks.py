"""Single flight for coroutines: one task for all concurrent callers that want the same result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedTasks(Generic[K, T]):
    """Tasks in progress, by key. For one event loop."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[T]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._tasks

    async def run(self, key: K, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Returns the result of the task for a key, and starts it unless it is in progress.
        Cancelling a caller does not cancel the task. Raises what the task raises."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(start())
            task.add_done_callback(lambda ended: self._forget(key, ended))
        return await asyncio.shield(task)

    def _forget(self, key: K, task: asyncio.Task[T]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved, even if no caller waits
