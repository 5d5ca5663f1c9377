"""Opens volumes that take changes for their users, and closes those that nobody uses any more.

What is open is written down before it may be written to; the mount service counts its users.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from lodefs.chunkstore.errors import LodefsError
from lodefs.mount.helper.interface import Source
from lodefs.mount.service.interface import MountClaim, MountHandle, MountService, User
from lodefs.mount.volumes import changes
from lodefs.mount.volumes.changes import Closed, VolumeWriter, Words, WritableVolume

WORK_TIMEOUT_S = 30.0  # of the mount service
_log = logging.getLogger("lodefs.volumes")


class Opened(NamedTuple):
    """The mountpoint of a volume for its user, and the snapshot below."""

    place: str
    below: MountHandle


class Openings:
    """The open volumes of one driver. The caller of each method has the volume for itself."""

    def __init__(
        self,
        service: MountService,
        writer: VolumeWriter,
        write: Callable[[WritableVolume], None],
        claim: Callable[[Source, str], MountClaim],
        words: Words,
    ) -> None:
        """``write`` puts a volume's state on disk. ``claim``: what the mount service is asked for,
        of a source and a commit."""
        self.writer = writer
        self._service = service
        self._write = write
        self._claim = claim
        self._words = words
        self._failures: dict[str, LodefsError] = {}  # of the last commits, by key

    def failure(self, key: str) -> LodefsError | None:
        """Returns the error of the last commit of a volume's changes since this process was
        started; None if it did not fail."""
        return self._failures.get(key)

    def forget_failure(self, key: str) -> None:
        """Lets the changes of a volume be committed again: the cause of its failure may be gone."""
        self._failures.pop(key, None)

    def open(
        self,
        volume: WritableVolume,
        user: User,
        label: str,
        token: str | None,
        timeout_s: float = WORK_TIMEOUT_S,
    ) -> Opened:
        """Mounts a volume for a user, whom messages call ``label``. Raises: the errors of
        MountService.acquire, and of VolumeWriter.base and mount."""
        source, commit = self.writer.base(volume)
        if label not in volume.users:
            self.forget_failure(volume.key)
        volume = changes.opened(volume, commit, label)
        self._write(volume)  # before it may be written to
        held = self._service.acquire(user, self._claim(source, commit), token, timeout_s)
        try:
            return Opened(self.writer.mount(volume, token), held)
        except BaseException:
            if user.is_counted or held.is_new:
                self._service.release(user, WORK_TIMEOUT_S)
            raise

    def close(self, volume: WritableVolume) -> Closed:
        """Commits the changes that the users of a volume have made, keeps them, or gives them up,
        as the volume says. Nobody uses it. Raises: the errors of VolumeWriter.close, which
        ``failure`` then returns."""
        try:
            done = self.writer.close(volume, changes.message(volume, self._words))
        except LodefsError as error:
            self._failures[volume.key] = error
            raise
        self.forget_failure(volume.key)
        self._write(changes.closed(volume, done.commit))
        if done.left_out:
            _log.warning("the commit of volume %s leaves out: %s", volume.name, done.left_out)
        return done

    def close_unused(self, volume: WritableVolume, driver: str) -> Closed | None:
        """Closes a volume if none of its users is left; else returns None."""
        held = self._service.holdings(driver, volume.name, WORK_TIMEOUT_S)
        return None if any(one.references for one in held) else self.close(volume)
