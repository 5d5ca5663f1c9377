"""Imports commits of Git when they are asked for, each in a process of its own.

The process runs as the proxy's user, and git below it without trust (chunkstore/push/git).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lodefs.chunkstore import python_process
from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound, Unavailable, UnderWay
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.foreign import git
from lodefs.chunkstore.format.foreign.git_url import url_of_repo
from lodefs.chunkstore.format.names import parse_revision
from lodefs.chunkstore.protocol.orders.git_orders import GitOrder, GitOutcome
from lodefs.chunkstore.protocol.orders.store_place import StorePlace
from lodefs.chunkstore.protocol.wire import error_of
from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.runtime.shared_tasks import SharedTasks
from lodefs.proxy.runtime.store_process import StoreProcess

log = logging.getLogger("lodefs.git")

IMPORTS_MAX = 2  # at once
WAITING_MAX = 64  # imports, with those
IMPORT_S_MAX = 2 * 3600.0
WAIT_S = 0.4  # how long a client waits before it is told to ask again; Docker has 0.9 s
RETRY_AFTER_S = 1.0
FAILURES_MAX, FAILURE_S = 256, 30.0  # how long a failure is told again, as each attempt costs much
LINE_BYTES_MAX = 1 << 16
_COMMAND = python_process.command("lodefs.chunkstore.push.git.git_fetch")


@dataclass(frozen=True, slots=True)
class GitSettings:
    """What may be imported, and how. ``allowed`` are URLs as git_url.check_allowed returns them;
    ``lfs_repos`` are repositories whose objects of Git LFS every import may use, besides its own.
    ``directory`` is that in which the process keeps commits of Git."""

    allowed: Sequence[str]
    lfs_repos: Sequence[str]
    credentials_file: Path | None
    size_bytes_max: int
    place: StorePlace
    directory: Path


class GitProcesses:
    """Implements proxy.node.GitImports. For use on the event loop only."""

    def __init__(
        self, settings: GitSettings, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock_s = clock_s
        self._running: SharedTasks[GitOrder, str] = SharedTasks()
        self._tasks: set[asyncio.Task[object]] = set()
        self._places = asyncio.Semaphore(IMPORTS_MAX)
        self._failures: Lru[GitOrder, tuple[float, LodefsError]] = Lru(FAILURES_MAX)

    async def imported(self, repo: str, rev: str) -> str:
        order = self._order(repo, rev)
        until_s, failure = self._failures.get(order) or (0.0, None)
        if failure is not None and self._clock_s() < until_s:
            raise failure
        if order not in self._running and len(self._tasks) >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} imports from Git are under way: try again later")
        try:
            async with asyncio.timeout(WAIT_S):
                commit = await self._running.run(order, lambda: self._import(order))
        except TimeoutError:
            raise UnderWay(
                f"{order.url} is being imported from Git: try again", retry_after_s=RETRY_AFTER_S
            ) from None
        return git.revision_of(commit)

    async def close(self) -> None:
        """Ends the imports."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _order(self, repo: str, rev: str) -> GitOrder:
        """Raises: NotFound for what is not to be imported."""
        settings = self._settings
        name, steps = parse_revision(rev)
        named = None if steps else git.name_in(name)
        url = url_of_repo(repo, settings.allowed)
        if url is None or named is None:
            raise NotFound(
                f"this node does not import {repo}@{rev}: it imports commits, branches and tags of "
                "the Git repositories that its settings name"
            )
        own = (repo, repo.removesuffix(".git"))  # the LFS server has the name without its end
        return GitOrder(
            url=url,
            rev=named,
            repo=repo,
            lfs_repos=tuple(dict.fromkeys((*own, *settings.lfs_repos))),
            directory=str(settings.directory / "repositories"),
            size_bytes_max=settings.size_bytes_max,
            credentials_file=str(settings.credentials_file) if settings.credentials_file else None,
        )

    async def _import(self, order: GitOrder) -> str:
        """Returns the id of Git, and remembers a failure for a while."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        log.info("importing %s@%s as %s", order.url, order.rev, order.repo)
        try:
            async with self._places, asyncio.timeout(IMPORT_S_MAX):
                outcome = await self._run(order)
            if outcome.failure is not None:
                raise error_of(outcome.failure)
        except (TimeoutError, OSError, ValueError, InvalidInput, EOFError) as problem:
            why = str(problem) if isinstance(problem, LodefsError) else repr(problem)
            error: LodefsError = Unavailable(f"{order.url} cannot be imported: {why}")
            raise self._failed(order, error) from problem
        except LodefsError as error:
            raise self._failed(order, error) from None
        log.info("imported %s@%s: %s", order.url, order.rev, outcome.git_commit)
        return outcome.git_commit

    async def _run(self, order: GitOrder) -> GitOutcome:
        """Runs the process. Raises: EOFError if it ends without an outcome; OSError, ValueError."""
        async with StoreProcess(_COMMAND, self._settings.place, LINE_BYTES_MAX) as process:
            await process.tell(order)
            if not (line := await process.line()):
                raise EOFError(f"its process ended with exit code {await process.end()}")
            return from_json(line, GitOutcome)

    def _failed(self, order: GitOrder, error: LodefsError) -> LodefsError:
        log.warning("%s@%s was not imported: %s", order.url, order.rev, error)
        self._failures.put(order, (self._clock_s() + FAILURE_S, error))
        return error
