"""The progress of a planned push: which parts are done, which failed, and which are to be done."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.push_plan import PartFailure, PartResult, PushPlan
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.journal.push_plans import PlanWriter, commit_of, writer_of
from lodefs.chunkstore.push.parts.plan import OpenPlan
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.parallel_map import map_ahead

REQUESTS_MAX = 16  # concurrent requests
_NAMED_MAX = 8  # parts that an error lists


@dataclass(slots=True)
class PlanStatus:
    """The parts of a plan by number. ``unchecked`` are done, but a gc run has given up the plan, or
    a purge ran: doing them again looks whether the store has all of them. ``commit`` is what the
    plan became, if it is finished."""

    plan: PushPlan
    commit: CommitId | None
    done: dict[int, PartResult] = field(default_factory=dict)
    failed: dict[int, PartFailure] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    unchecked: list[int] = field(default_factory=list)

    @property
    def todo(self) -> list[int]:
        """The parts that are to be done, or done again."""
        return sorted([*self.failed, *self.missing, *self.unchecked])

    def require_done(self) -> None:
        """Raises: InvalidInput, which names the parts that are to be done."""
        if not (todo := self.todo):
            return
        name, count = self.plan.name, self.plan.parts
        named = ", ".join(f"{number + 1}/{count}" for number in todo[:_NAMED_MAX])
        more = f" and {len(todo) - _NAMED_MAX:,} more" if len(todo) > _NAMED_MAX else ""
        failures = ""
        if self.failed:
            first = min(self.failed)
            failures = f" (part {first + 1} failed: {self.failed[first].message})"
        raise InvalidInput(
            f"{len(todo):,} of the {count:,} parts of the plan {name} are not done: {named}{more}"
            f"{failures}. Do them with lodefs plan part {name} K/N; nothing was committed"
        )


def read_status(
    store: Store,
    opened: OpenPlan,
    writer: PlanWriter | None = None,
    numbers: Iterable[int] | None = None,
) -> PlanStatus:
    """Reads what the tasks of a plan have left in the store. ``writer`` is its newest one, if the
    caller knows it. ``numbers``: of these parts alone."""
    plan, documents = opened
    wanted = [*(range(plan.parts) if numbers is None else numbers)]
    writer = writer or writer_of(store, documents)
    status = PlanStatus(plan, commit_of(store, writer))
    is_over = writer.end is not None and status.commit is None
    newest_purge = Purges(store.objects).newest(-1)

    def read(number: int) -> PartResult | PartFailure | None:
        return documents.result(number) or documents.failure(number)

    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-plan") as executor:
        for number, found in zip(wanted, map_ahead(executor, read, wanted), strict=True):
            if found is None:
                status.missing.append(number)
            elif isinstance(found, PartFailure):
                status.failed[number] = found
            elif is_over or found.writer != writer.entry or found.purges_seen < newest_purge:
                status.unchecked.append(number)
            else:
                status.done[number] = found
    return status
