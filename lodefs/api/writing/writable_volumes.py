"""Volumes that take changes: writable mounts with their places in their driver's state.

::

    STATE/writable/KEY    where the volume of that key is mounted, while containers have it
    STATE/changes/KEY     its place (mount.writable.upper_place)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from lodefs.api.refs import Refs
from lodefs.api.writing import commit_ends, writable_for_others
from lodefs.api.writing.writable import unmount_writable
from lodefs.chunkstore.errors import AlreadyExists, Denied, InvalidInput, NotFound
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, Spec
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.mount.helper import state_files
from lodefs.mount.options import MountOptions
from lodefs.mount.volumes.changes import Base, Closed, WritableVolume
from lodefs.mount.volumes.options import DISCARD
from lodefs.mount.writable import lower_mount, writable_mount
from lodefs.mount.writable.upper_place import Record, UpperPlace
from lodefs.proxies.own_proxy import node_proxy
from lodefs.settings.session import Session

OpenSession = Callable[[WritableVolume], AbstractContextManager[Session]]
"""The settings with the credentials that a volume's changes are committed with. Denied."""


class WritableVolumes:
    """See mount.volumes.changes.VolumeWriter. ``service``: the socket of the mount service, which
    mounts the snapshots below. ``open_session`` None: the credentials of ``session`` commit all
    changes."""

    def __init__(
        self,
        session: Session,
        state: Path,
        service: Path,
        open_session: OpenSession | None = None,
    ) -> None:
        self._session = session
        self._open_session = open_session or (lambda _volume: nullcontext(session))
        self._state = Path(os.path.realpath(state))  # the kernel lists mounts by real paths
        self._service = str(service)

    def branch(self, volume: WritableVolume) -> str:
        """See VolumeWriter."""
        with self._open_session(volume) as session:
            return _ensured_branch(session, volume.source.repo, volume.branch)

    def base(self, volume: WritableVolume) -> Base:
        """See VolumeWriter."""
        try:
            record = self._begun(volume)
        except OSError as error:
            raise state_files.translated(error, self._place(volume).directory) from error
        return Base(lower_mount.source_of(record.options), record.commit)

    def place(self, volume: WritableVolume) -> str:
        """See VolumeWriter."""
        return str(self._state / "writable" / volume.key)

    def mount(self, volume: WritableVolume, token: str | None) -> str:
        """See VolumeWriter."""
        wanted, place = self._record(volume, volume.commit), self._place(volume)
        with self._open_session(volume) as session:
            writable_for_others.mount(session, place, wanted, token)
        return self.place(volume)

    def close(self, volume: WritableVolume, message: str) -> Closed:
        """See VolumeWriter."""
        place, at = self._place(volume), self.place(volume)
        result = None
        with self._session_if_any(volume) as session:
            discards = volume.commits == DISCARD
            kept = writable_for_others.close(session, place, at, discards=discards)
        if kept and message:
            with self._open_session(volume) as session:
                result = writable_for_others.commit(session, place, at, message=message)
                kept = writable_for_others.close(session, place, at, discards=True)
        if not kept:
            with suppress(OSError):  # an empty directory is harmless
                os.rmdir(at)
        if result is None:
            return Closed("", kept)
        return Closed(result.commit, kept, writable_for_others.left_out(result.skipped))

    @contextmanager
    def _session_if_any(self, volume: WritableVolume) -> Iterator[Session]:
        """Returns the volume's credentials, or none if they are gone: a volume that nobody has
        changed needs none to be closed."""
        with ExitStack() as stack:
            session = self._session
            with suppress(Denied):
                session = stack.enter_context(self._open_session(volume))
            yield session

    def _begun(self, volume: WritableVolume) -> Record:
        """Returns the record of a volume's place; without changes, one at the newest commit of its
        branch. Raises: NotFound, Denied, Unavailable."""
        place, repo = self._place(volume), volume.source.repo
        former = place.read()
        if former is not None and former.noted is not None:
            with place.locked(), self._open_session(volume) as session:
                former = commit_ends.settled(session, place, former)
        if former is not None and (
            writable_mount.mounted_on(former) or place.has_changes(former.generation)
        ):
            return former
        if former is not None:  # for a commit that was made by hand
            writable_mount.check_unused(place, former)
            writable_for_others.remember(self._session, former.mountpoint, place)
            with self._session_if_any(volume) as session:
                unmount_writable(session, former.mountpoint, keep=True)
        with self._open_session(volume) as session:
            head = session.store.refs(repo).head(BRANCHES, volume.branch)
        if head is None:
            raise NotFound(
                f"{repo} has no branch {volume.branch} any more: `lodefs undelete` brings it back"
            )
        return self._record(volume, head.hex())

    def _record(self, volume: WritableVolume, commit: str) -> Record:
        source, branch = volume.source, volume.branch
        options = MountOptions(
            repo=source.repo,
            rev=branch,
            path=source.path,
            mountpoint=self.place(volume),
            proxy=node_proxy(self._session),
            uid=os.getuid() if source.uid is None else source.uid,
            gid=os.getgid() if source.gid is None else source.gid,
            mode=writable_mount.writable_mode(source.mode),
        )
        return Record(options=options, branch=branch, commit=commit, service=self._service)

    def _place(self, volume: WritableVolume) -> UpperPlace:
        return UpperPlace(self._state / "changes" / volume.key)


def _ensured_branch(session: Session, repo: str, branch: str) -> str:
    """As VolumeWriter.branch."""
    from lodefs.chunkstore.repo.store import probe  # imports all of the formats

    store = session.store
    store.require_repo(repo)
    probe(store.objects)  # each time: credentials change while the driver runs
    if store.refs(repo).head(TAGS, branch) is not None:
        raise InvalidInput(f"{branch} is a tag of {repo}, which no commit moves")
    if (head := store.refs(repo).head(BRANCHES, branch)) is None:
        with suppress(AlreadyExists):  # somebody has made it just now
            Refs(BRANCHES)(Spec(repo, DEFAULT_BRANCH), branch, session=session)
        head = store.refs(repo).head(BRANCHES, branch)
    return "" if head is None else head.hex()
