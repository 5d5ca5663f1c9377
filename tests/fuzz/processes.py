"""The stores as one process has them, which dies, or whose requests fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lodefs.chunkstore.errors import Denied, Unavailable
from lodefs.chunkstore.objects.interface import ObjectStore
from tests.fuzz.commands import Fail, Fault, Kill, Refuse
from tests.support.chunkstore.faulty_store import FaultyObjects, Rule, fail, fail_after
from tests.support.maintenance.baton import Killed


class Death(Rule):
    """The process dies at a write; nothing that it does afterwards reaches the store."""

    def __init__(self, kill: Kill) -> None:
        super().__init__(self._die)
        self._kill = kill
        self._writes = 0
        self._is_dead = False

    def applies(self, operation: str, key: str) -> bool:
        self._writes += operation in ("put", "delete")
        return self._is_dead or self._writes == self._kill.write

    def _die(self, perform: Callable[[], Any]) -> Any:
        if not self._is_dead:
            self._is_dead = True
            if self._kill.after:
                perform()
        raise Killed


def rules_of(fault: Fault) -> list[Rule]:
    """What is wrong with the requests of one process, to all stores together."""
    match fault:
        case Kill():
            return [Death(fault)]
        case Fail(request, times, answered):
            error = Unavailable("the request or its answer was lost")
            effect = fail_after(error) if answered else fail(error)
            return [Rule(effect, first=request, times=times)]
        case Refuse():
            return [Rule(fail(Denied("nothing may be deleted")), "delete")]
        case _:
            return []


def of_process(objects: ObjectStore, rules: list[Rule]) -> ObjectStore:
    """A store as the process with these rules has it."""
    return FaultyObjects(objects, rules) if rules else objects
