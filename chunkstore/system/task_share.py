"""The share of one task of several that divide work between them without talking to each other."""

from __future__ import annotations

import re
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput

_SHARE = re.compile(r"(\d{1,9})/(\d{1,9})\Z")
_BITS = 64  # of an id that decide


class TaskShare(NamedTuple):
    """Task ``task`` of ``tasks``, counted from 1. Ids are hashes, so ranges of equal width have
    nearly as many of them each."""

    task: int
    tasks: int

    def has(self, object_id: bytes) -> bool:
        """Whether an id is in the share: each is in that of exactly one task."""
        prefix = int.from_bytes(object_id[: _BITS // 8])
        return prefix * self.tasks >> _BITS == self.task - 1

    @property
    def first_prefix(self) -> bytes:
        """The smallest first eight bytes of an id of the share."""
        return (-((1 - self.task << _BITS) // self.tasks)).to_bytes(_BITS // 8)

    def __str__(self) -> str:
        return f"{self.task}/{self.tasks}"


def parse_task_share(text: str) -> TaskShare:
    """Parses K/N. 0/N is N/N, so that indexes from 0 to N - 1 name all shares, too. Raises:
    InvalidInput."""
    match = _SHARE.match(text)
    task, tasks = (int(match[1]), int(match[2])) if match else (0, 0)
    if not tasks or task > tasks:
        raise InvalidInput(
            f"{text!r} is not a share of the tasks: 3/32 is the third of 32, and 0/32 the last"
        )
    return TaskShare(task or tasks, tasks)
