"""For tests of the command line: runs it in this process, on a store in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.pack_locations import locations_of
from lodefs.settings.session import Session


@dataclass(frozen=True)
class CommandResult:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value that it wrote."""
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """The JSON values that it wrote, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class MemorySession(Session):
    """A session whose store is in memory, whatever its URL."""

    def __init__(self, environment: Mapping[str, str], objects: ObjectStore) -> None:
        super().__init__(environment)
        self._memory = locations_of(objects)

    def objects(self, url: str) -> ObjectStore:
        """The one store that there is."""
        return self._memory


Lodefs = Callable[..., CommandResult]  # of arguments; keywords are the environment
