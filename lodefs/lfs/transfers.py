"""What the agent does with an object: which server is asked, and how often."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lodefs.chunkstore.errors import Conflict, Corrupt, LodefsError, Unavailable
from lodefs.chunkstore.format.foreign.lfs import Action
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.chunkstore.system.retry_policy import RetryPolicy
from lodefs.lfs.agent import Event, Moved
from lodefs.lfs.fetching import fetch
from lodefs.lfs.sending import Sender
from lodefs.lfs.server import LfsServer, Place, place_of

T = TypeVar("T")
NODE_PREFIX = "/lfs/"


class ServerTransfers:
    """Implements agent.Transfers. ``socket`` is that of the node's proxy, "" if there is none."""

    def __init__(self, socket: str, folder: Path, policy: RetryPolicy | None = None) -> None:
        self._node = LfsServer(Place("unix", path=socket)) if socket else None
        self._folder = folder
        self._policy = policy or RetryPolicy()
        self._servers: dict[Place, LfsServer] = {}

    def upload(self, event: Event, action: Action, moved: Moved) -> None:
        sender = Sender(self._server(action), action)
        try:
            self._repeat(lambda: sender.send(event, moved))
        except Conflict:  # chunks have gone since the server was asked for them
            self._repeat(lambda: sender.send_whole(event, moved))
        except OSError as error:
            raise kind_of(error)(f"{event.path} cannot be read: {error.strerror}") from error

    def download(self, event: Event, action: Action, moved: Moved) -> Path:
        _, target = place_of(action.href)
        # A foreign server chooses the target, and could have this user ask the node for more
        if self._node is not None and target.startswith(NODE_PREFIX):
            try:
                return fetch(self._node, target, {}, event, self._folder, moved)
            except LodefsError:  # it may be a node of another store, or not let this user read
                self._node = None
        server = self._server(action)
        headers = action.header
        return self._repeat(lambda: fetch(server, target, headers, event, self._folder, moved))

    def _server(self, action: Action) -> LfsServer:
        place, _ = place_of(action.href)
        return self._servers.setdefault(place, LfsServer(place))

    def _repeat(self, attempt: Callable[[], T]) -> T:
        began_s, failed = time.monotonic(), 0
        while True:
            try:
                return attempt()
            except (Unavailable, Corrupt) as error:
                failed += 1
                known = error if isinstance(error, Unavailable) else Unavailable(str(error))
                elapsed_s = time.monotonic() - began_s
                pause_s = self._policy.pause_after(known, failed, elapsed_s, random.random())
                if pause_s is None:
                    raise
                time.sleep(pause_s)
