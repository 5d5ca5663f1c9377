"""The work for volumes between dockerd's requests: it commits their changes, follows their
branches, keeps their data, and gives mounts of older plugins to the mount service.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from lodefs.chunkstore.errors import LodefsError
from lodefs.mount.docker.volume import (
    Volume,
    about,
    follow_due,
    look_failed,
    looked,
    pin_s,
)
from lodefs.mount.docker.volumes import Volumes, is_writable
from lodefs.mount.docker.writing import writable
from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.service.interface import DOCKER, Holding, MountService, User
from lodefs.mount.volumes.changes import close_due
from lodefs.mount.volumes.openings import WORK_TIMEOUT_S

_log = logging.getLogger("lodefs.docker")


class Upkeep:
    """The upkeep of volumes, a round every few seconds."""

    def __init__(
        self,
        volumes: Volumes,
        service: MountService,
        calls: Calls,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._volumes = volumes
        self._service = service
        self._calls = calls
        self._now_s = now_s
        self._said: dict[object, str] = {}  # the last line logged, so that it is not repeated

    def round(self) -> None:
        """Begins whatever must be done."""
        held = self._volumes.holdings()
        records = self._volumes.records()
        for volume in records:
            if isinstance(volume, Volume):
                one = held.get(volume.name, Holding(volume.name))
                for what in self._due(volume, one):
                    self._calls.begin((what, volume.key), partial(self._do, what, volume))
        for name in {one.volume for one in held.values() if one.kept_commit}.difference(
            record.name for record in records
        ):
            self._calls.begin(("unpin", name), partial(self._let_go, name))

    def _due(self, volume: Volume, held: Holding) -> list[Callable[[Volume], None]]:
        due: list[Callable[[Volume], None]] = []
        failure = self._volumes.failure(volume)
        if is_writable(volume) and close_due(writable(volume), held.references, failure):
            due.append(self._close)
        if not held.references and follow_due(volume, self._now_s()):
            due.append(self._follow)
        if held.kept_commit != volume.commit and pin_s(volume, self._now_s()) is not None:
            due.append(self._pin)
        return due

    def _do(self, what: Callable[[Volume], None], volume: Volume) -> None:
        line = ""
        try:
            what(volume)
        except LodefsError as error:
            line = f"volume {volume.name}: {error}"
            if self._said.get((what, volume.key)) != line:
                _log.warning("%s", line, extra=about(volume.name))
        self._said[what, volume.key] = line

    def _follow(self, volume: Volume) -> None:
        """Follows the branch. Resolves it while others may use the volume, so none waits."""
        failure: LodefsError | None = None
        options = volume.options
        try:
            found = self._volumes.resolve(options.source, options.rev, WORK_TIMEOUT_S)
            after = looked(volume, found, self._now_s())
        except LodefsError as error:
            failure = error
            after = look_failed(volume, str(error), self._now_s())
        with self._volumes.using(volume.key, alone=True):
            held = self._service.holdings(DOCKER, volume.name, WORK_TIMEOUT_S)
            if volume not in self._volumes.records() or any(one.references for one in held):
                return
            self._volumes.write(after)
        if failure is not None:
            raise failure
        if after.commit != volume.commit:
            _log.info("volume %s moved to %s", volume.name, after.commit, extra=about(volume.name))
            self._let_go(volume.name)

    def _close(self, volume: Volume) -> None:
        """Commits what its containers have changed."""
        commit = self._volumes.close_unused(volume.name)
        if commit:
            told = (volume.name, volume.options.rev, commit)
            _log.info("committed changes of volume %s to %s: %s", *told, extra=about(volume.name))

    def _pin(self, volume: Volume) -> None:
        """Keeps its data, and no longer the data of another commit."""
        self._let_go(volume.name)
        with self._volumes.using(volume.key):
            if volume in self._volumes.records():
                wanted_s = pin_s(volume, self._now_s())
                self._volumes.acquire(_keeper(volume.name), volume, wanted_s, WORK_TIMEOUT_S)

    def _let_go(self, name: str) -> None:
        self._service.release(_keeper(name), WORK_TIMEOUT_S)


def _keeper(name: str) -> User:
    """Returns the user that keeps a volume's data."""
    return User(name, "", driver=DOCKER)
