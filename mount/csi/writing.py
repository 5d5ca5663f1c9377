"""Pods' volumes that take changes: who writes on this node, and what becomes of the changes.

``STATE/volumes/KEY.json`` is there while a volume is open (mount.volumes.changes): from its first
publish on until its changes are in a commit, kept, or given up. Whatever ends in between, upkeep
finds it open and unused, and closes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Conflict,
    InUse,
    LodefsError,
    Unavailable,
    told,
)
from lodefs.mount.csi.attributes import Secrets
from lodefs.mount.csi.credentials import Credentials
from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.helper.interface import Source
from lodefs.mount.helper.volume_locks import VolumeLocks
from lodefs.mount.service.interface import POD_CHANGES, MountClaim, MountService, User
from lodefs.mount.volumes.changes import (
    VolumeWriter,
    Words,
    WritableVolume,
    close_due,
    key_of,
)
from lodefs.mount.volumes.openings import Opened, Openings
from lodefs.mount.volumes.volume_files import Damaged, VolumeFiles

COMMITS_MAX = 2  # at once: each takes memory
LOOK_TIMEOUT_S = 2.0  # for the mount service to say who uses what
AGAIN_S = 600.0  # until a commit is tried again that somebody has to do something for
WORDS = Words("Kubernetes volume", "pod")
STATES = ("open", "failing")  # as metrics name them
_log = logging.getLogger("lodefs.csi")


class PodChanges:
    """The volumes of this node that take changes. One call at a time opens or closes a volume; to
    take it from a pod waits for neither."""

    def __init__(
        self,
        service: MountService,
        writer: VolumeWriter,
        files: VolumeFiles[WritableVolume],
        credentials: Credentials,
        *,
        calls: Calls | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.writer = writer
        self._service = service
        self._files = files
        self._credentials = credentials
        self._locks = VolumeLocks()
        self._openings = Openings(service, writer, self._write, _claim, WORDS)
        self._calls = calls or Calls(COMMITS_MAX)
        self._now_s = now_s
        self._failed_s: dict[str, float] = {}
        self._said: dict[str, str] = {}  # what was logged last, so that it is once
        self._records = self._loaded()
        credentials.sweep(self._records.keys())

    def open(
        self,
        user: User,
        wanted: WritableVolume,
        secrets: Secrets,
        label: str,
        timeout_s: float,
    ) -> Opened:
        """Mounts a volume for a pod at a target. ``label``: the pod, as commits name it. Raises:
        the errors of Openings.open and VolumeWriter.branch; AlreadyExists if it is open as
        something else; Conflict while its changes are committed."""
        with self._locks.holding(wanted.name):
            volume = self._records.get(wanted.key)
            if volume and msgspec.structs.replace(volume, commit="", users=()) != wanted:
                raise AlreadyExists(
                    f"volume {wanted.name} is in use as something else, or has changes that are "
                    "not committed yet: end the pods that use it first"
                )
            if self._credentials.keep(wanted.key, secrets.credentials):
                # A reboot may have removed earlier credentials, so that the volume did not open
                self._openings.forget_failure(wanted.key)
            try:
                if volume is None:
                    self.writer.branch(wanted)
                return self._openings.open(volume or wanted, user, label, secrets.token, timeout_s)
            except BaseException:
                if wanted.key not in self._records:  # it is not open, so no upkeep forgets them
                    self._credentials.forget(wanted.key)
                raise

    def check_alone(self, user: User, timeout_s: float) -> None:
        """Raises: InUse if others have a volume open beside its only user, who is then released."""
        held = self._service.holdings(POD_CHANGES, user.volume, timeout_s)
        if sum(one.references for one in held) > 1:
            self._service.release(user, timeout_s)
            raise InUse(
                f"volume {user.volume} is in use by another pod of this node, and its access mode "
                "is for one (ReadWriteOncePod)"
            )

    def look(self, name: str, timeout_s: float) -> tuple[str, str]:
        """Returns the mountpoint of an open volume, "" if it is not open; and its fault, "" if it
        has none."""
        volume = self._records.get(key_of(name))
        if volume is None:
            return "", ""
        held = self._service.holdings(POD_CHANGES, name, timeout_s)
        if any(one.is_dead for one in held):
            return self.writer.place(volume), "its mount has died: start the pods that have it anew"
        failure = self._openings.failure(volume.key)
        why = "" if failure is None else f"earlier changes are in no commit: {failure}"
        return self.writer.place(volume), told(why)

    def by_state(self) -> dict[str, int]:
        """Returns the numbers of open volumes and of those whose last commit failed."""
        keys = list(self._records)
        failing = sum(self._openings.failure(key) is not None for key in keys)
        return dict(zip(STATES, (len(keys) - failing, failing), strict=True))

    def round(self) -> None:
        """Begins to close volumes that nobody uses."""
        records = list(self._records.values())
        if not records:
            return
        try:
            found = self._service.holdings(POD_CHANGES, "", LOOK_TIMEOUT_S)
            references = {one.volume: one.references for one in found}
            for volume in records:
                if self._is_due(volume, references.get(volume.name, 0)):
                    self._calls.begin(("close", volume.key), partial(self._close, volume))
        except Unavailable as error:  # the mount service, or enough is under way
            _log.debug("volumes that nobody uses stay open: %s", error)

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits for commits that are under way. Returns False if some still are."""
        return self._calls.wait_idle(timeout_s)

    def _is_due(self, volume: WritableVolume, references: int) -> bool:
        failure = self._openings.failure(volume.key)
        if self._now_s() - self._failed_s.get(volume.key, self._now_s()) >= AGAIN_S:
            failure = None
        return close_due(volume, references, failure)

    def _close(self, volume: WritableVolume) -> None:
        try:
            self._close_unused(volume)
        except Conflict as error:  # a call for it is under way
            _log.debug("volume %s stays open: %s", volume.name, error)
        except LodefsError as error:
            self._failed_s[volume.key] = self._now_s()
            place = self.writer.place(volume)
            line = f"changes of volume {volume.name} are in no commit, and stay in {place}: {error}"
            if self._said.get(volume.key) != line:
                _log.warning("%s", told(line), extra={"volume": volume.name})
            self._said[volume.key] = line

    def _close_unused(self, volume: WritableVolume) -> None:
        with self._locks.holding(volume.name):
            now = self._records.get(volume.key)
            done = None if now is None else self._openings.close_unused(now, POD_CHANGES)
        if done is not None and done.commit:
            told_ = (volume.name, volume.source.repo, volume.branch, done.commit)
            extra = {"volume": volume.name}
            _log.info("changes of volume %s are in %s@%s: %s", *told_, extra=extra)

    def _write(self, after: WritableVolume) -> None:
        """An open volume's state is on the disk; of one that is closed there is none."""
        if after.users:
            if after != self._records.get(after.key):
                self._files.write(after)
                self._records[after.key] = after
            return
        self._files.remove(after.key)
        self._records.pop(after.key, None)
        self._failed_s.pop(after.key, None)
        self._said.pop(after.key, None)
        self._credentials.forget(after.key)

    def _loaded(self) -> dict[str, WritableVolume]:
        found = {}
        for record in self._files.load():
            if isinstance(record, Damaged):
                _log.error(
                    "the state of volume %s is damaged, and put aside: %s; `lodefs mounts "
                    "--uncommitted` lists its changes, if it has any",
                    *(record.name or record.key, record.why),
                )
                self._files.set_aside(record.key)
            else:
                found[record.key] = record
        return found


def _claim(source: Source, commit: str) -> MountClaim:
    """Returns the claim to the snapshot below a writable mount."""
    return MountClaim(source=source, rev=commit)
