"""Which epoch an iteration is of, and how far in it one is."""

from __future__ import annotations


class EpochPosition:
    """Each iteration is an epoch further than the one before, also than one that was left; the
    first, and the one after ``set_epoch`` or ``go_to``, is where these say."""

    def __init__(self) -> None:
        self.epoch = 0
        self.samples = 0  # that were yielded in this epoch
        self._is_begun = False

    def begin(self) -> int:
        """An iteration begins: how many samples of its epoch it leaves out."""
        if self._is_begun:
            self.epoch, self.samples = self.epoch + 1, 0
        self._is_begun = True
        return self.samples

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch: from its beginning, or from where ``go_to`` says, if
        that is of this epoch and nothing was read since."""
        if self._is_begun or epoch != self.epoch:
            self.go_to(epoch, 0)

    def go_to(self, epoch: int, samples: int) -> None:
        """The next iteration is this epoch, without its first samples."""
        self.epoch, self.samples, self._is_begun = epoch, samples, False
