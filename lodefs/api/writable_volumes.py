"""Docker volumes that take changes: writable mounts with their places in the plugin's state.

::

    STATE/writable/KEY    where the volume of that key is mounted, while containers have it
    STATE/changes/KEY     its place (mount.writable.upper_place)
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from lodefs.api import commit_ends, writable_for_others
from lodefs.api.refs import Refs
from lodefs.api.writable import unmount_writable
from lodefs.chunkstore.errors import AlreadyExists, InvalidInput, NotFound
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, Spec
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.mount.docker.volume import Volume
from lodefs.mount.docker.writing import Base, Closed
from lodefs.mount.helper import state_files
from lodefs.mount.options import MountOptions
from lodefs.mount.writable import lower_mount, writable_mount
from lodefs.mount.writable.upper_place import Record, UpperPlace
from lodefs.proxies.own_proxy import node_proxy
from lodefs.settings.session import Session


class WritableVolumes:
    """See mount.docker.writing.VolumeWriter. ``service``: the socket of the mount service, which
    mounts the snapshots below."""

    def __init__(self, session: Session, state: Path, service: Path) -> None:
        self._session = session
        self._state = Path(os.path.realpath(state))  # the kernel lists mounts by real paths
        self._service = str(service)

    def branch(self, repo: str, branch: str) -> str:
        """See VolumeWriter."""
        from lodefs.chunkstore.repo.store import probe  # imports all of the formats

        store = self._session.store
        store.require_repo(repo)
        probe(
            store.objects
        )  # checked each time, since credentials may change while the plugin runs
        if store.refs(repo).head(TAGS, branch) is not None:
            raise InvalidInput(f"{branch} is a tag of {repo}, which no commit moves")
        if (head := store.refs(repo).head(BRANCHES, branch)) is None:
            with suppress(AlreadyExists):  # another process has just created it
                Refs(BRANCHES)(Spec(repo, DEFAULT_BRANCH), branch, session=self._session)
            head = store.refs(repo).head(BRANCHES, branch)
        return "" if head is None else head.hex()

    def base(self, volume: Volume) -> Base:
        """See VolumeWriter."""
        try:
            record = self._begun(volume)
        except OSError as error:
            raise state_files.translated(error, self._place(volume).directory) from error
        return Base(lower_mount.source_of(record.options), record.commit)

    def place(self, volume: Volume) -> str:
        """See VolumeWriter."""
        return str(self._state / "writable" / volume.key)

    def mount(self, volume: Volume, token: str | None) -> str:
        """See VolumeWriter."""
        wanted = self._record(volume, volume.commit)
        writable_for_others.mount(self._session, self._place(volume), wanted, token)
        return self.place(volume)

    def close(self, volume: Volume, message: str) -> Closed:
        """See VolumeWriter."""
        result, kept = writable_for_others.close(
            self._session,
            self._place(volume),
            self.place(volume),
            keeps=not message,
            message=message,
        )
        if not kept:
            with suppress(OSError):  # an empty directory is harmless
                os.rmdir(self.place(volume))
        return Closed("" if result is None else result.commit, kept)

    def _begun(self, volume: Volume) -> Record:
        """The record of a volume's place; without changes, one at the newest commit of its branch.
        Raises: NotFound, Unavailable."""
        place, options = self._place(volume), volume.options
        former = place.read()
        if former is not None and former.noted is not None:
            with place.locked():
                former = commit_ends.settled(self._session, place, former)
        if former is not None and (
            writable_mount.mounted_on(former) or place.has_changes(former.generation)
        ):
            return former
        if former is not None:  # for a commit that was made by hand
            writable_mount.check_unused(place, former)
            writable_for_others.remember(self._session, former.mountpoint, place)
            unmount_writable(self._session, former.mountpoint, keep=True)
        head = self._session.store.refs(options.source.repo).head(BRANCHES, options.rev)
        if head is None:
            raise NotFound(
                f"{options.source.repo} has no branch {options.rev} any more: `lodefs undelete` "
                "brings it back"
            )
        return self._record(volume, head.hex())

    def _record(self, volume: Volume, commit: str) -> Record:
        source = volume.options.source
        options = MountOptions(
            repo=source.repo,
            rev=volume.options.rev,
            path=source.path,
            mountpoint=self.place(volume),
            proxy=node_proxy(self._session),
            uid=os.getuid() if source.uid is None else source.uid,
            gid=os.getgid() if source.gid is None else source.gid,
            mode=writable_mount.writable_mode(source.mode),
        )
        branch = volume.options.rev
        return Record(options=options, branch=branch, commit=commit, service=self._service)

    def _place(self, volume: Volume) -> UpperPlace:
        return UpperPlace(self._state / "changes" / volume.key)
