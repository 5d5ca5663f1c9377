"""Tracks the epoch of an iteration and the position in it, and checks the order of a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lodefs.chunkstore.errors import InvalidInput


class EpochPosition:
    """Each iteration is the epoch after the previous one, even if that was left early. The first
    iteration, and the one after ``set_epoch`` or ``_go_to``, is the epoch that these name.

    ``epoch``: that of the running or the last iteration, or the one that was set.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._yielded = 0  # samples yielded in this epoch
        self._is_begun = False

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration this epoch, from its beginning; or from the position of a loaded
        state, if that is of this epoch and nothing was read since."""
        if self._is_begun or epoch != self.epoch:
            self._go_to(epoch, 0)

    def _begin(self) -> int:
        """Begins an iteration, and returns how many samples of its epoch it skips."""
        if self._is_begun:
            self.epoch, self._yielded = self.epoch + 1, 0
        self._is_begun = True
        return self._yielded

    def _go_to(self, epoch: int, samples: int) -> None:
        """Makes the next iteration this epoch, without its first samples."""
        self.epoch, self._yielded, self._is_begun = epoch, samples, False


def check_order(state: Mapping[str, Any], order: Mapping[str, Any]) -> None:
    """Compares all that an order depends on. Raises: InvalidInput if the state is of another
    order."""
    for name, ours in order.items():
        if state.get(name) != ours:
            raise InvalidInput(
                f"the state is of another order: its {name} is {state.get(name)}, not {ours}"
            )
