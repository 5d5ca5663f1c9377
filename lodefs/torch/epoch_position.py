"""Which epoch an iteration is of, how far in it one is, and whether a state is of its order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lodefs.chunkstore.errors import InvalidInput


class EpochPosition:
    """Each iteration is an epoch further than the one before, also than one that was left; the
    first, and the one after ``set_epoch`` or ``_go_to``, is where these say.

    ``epoch``: of the iteration that runs or ran last, or of the one that was set.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._yielded = 0  # that were yielded in this epoch
        self._is_begun = False

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch: from its beginning, or from where a state that was
        loaded says, if it is of this epoch and nothing was read since."""
        if self._is_begun or epoch != self.epoch:
            self._go_to(epoch, 0)

    def _begin(self) -> int:
        """An iteration begins: how many samples of its epoch it leaves out."""
        if self._is_begun:
            self.epoch, self._yielded = self.epoch + 1, 0
        self._is_begun = True
        return self._yielded

    def _go_to(self, epoch: int, samples: int) -> None:
        """The next iteration is this epoch, without its first samples."""
        self.epoch, self._yielded, self._is_begun = epoch, samples, False


def check_order(state: Mapping[str, Any], order: Mapping[str, Any]) -> None:
    """``order``: all that an order depends on. Raises: InvalidInput if the state is of another."""
    for name, ours in order.items():
        if state.get(name) != ours:
            raise InvalidInput(
                f"the state is of another order: its {name} is {state.get(name)}, not {ours}"
            )
