"""Docker volumes that take changes: writable mounts whose places lie in the plugin's state.

::

    STATE/writable/KEY    where the volume of that key is mounted, while containers have it
    STATE/changes/KEY     its place (mount.writable.upper_place)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from lodefs.api import base_tags, commit_ends
from lodefs.api.refs import Refs
from lodefs.api.writable import unmount_writable
from lodefs.api.writable_changes import commit_and_unmount
from lodefs.chunkstore.errors import AlreadyExists, InUse, InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, Spec
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.mount.docker.volume import Volume
from lodefs.mount.docker.writing import Base, Closed
from lodefs.mount.helper import state_files
from lodefs.mount.kernel import mount_syscalls
from lodefs.mount.options import MountOptions
from lodefs.mount.writable import lower_mount, upper_checks, upper_place, writable_mount
from lodefs.mount.writable.upper_place import Record, UpperPlace
from lodefs.proxies.own_proxy import node_proxy
from lodefs.settings.session import Session


class WritableVolumes:
    """See mount.docker.writing.VolumeWriter. ``service``: the socket of the mount service, which
    has what is below the mounts."""

    def __init__(self, session: Session, state: Path, service: Path) -> None:
        self._session = session
        self._state = Path(os.path.realpath(state))  # the kernel lists mounts so
        self._service = str(service)

    def branch(self, repo: str, branch: str) -> str:
        """See VolumeWriter."""
        from lodefs.chunkstore.repo.store import probe  # imports all of the formats

        store = self._session.store
        store.require_repo(repo)
        probe(store.objects)  # each time: credentials change while the plugin runs
        if store.refs(repo).head(TAGS, branch) is not None:
            raise InvalidInput(f"{branch} is a tag of {repo}, which no commit moves")
        if (head := store.refs(repo).head(BRANCHES, branch)) is None:
            with suppress(AlreadyExists):  # somebody has made it just now
                Refs(BRANCHES)(Spec(repo, DEFAULT_BRANCH), branch, session=self._session)
            head = store.refs(repo).head(BRANCHES, branch)
        return "" if head is None else head.hex()

    def base(self, volume: Volume) -> Base:
        """See VolumeWriter."""
        with _translated(self._place(volume)):
            record = self._begun(volume)
        return Base(lower_mount.source_of(record.options), record.commit)

    def place(self, volume: Volume) -> str:
        """See VolumeWriter."""
        return str(self._state / "writable" / volume.key)

    def mount(self, volume: Volume, token: str | None) -> str:
        """See VolumeWriter."""
        place, at = self._place(volume), self.place(volume)
        with _translated(place), place.locked():
            wanted = place.read() or self._record(volume, volume.commit)
            if writable_mount.is_living(wanted):
                return at
            if writable_mount.mounted_on(wanted) is None:
                state_files.make_private(Path(at))
            upper_checks.check_file_system(place.directory)
            tag = base_tags.name_for(self._session, place, wanted)
            wanted = msgspec.structs.replace(wanted, tag=tag)
            record = writable_mount.mount(place, wanted, token, self._no_mounter)
            base_tags.put(self._session, record)
            self._remember(at, place)
        return at

    def close(self, volume: Volume, message: str) -> Closed:
        """See VolumeWriter."""
        place = self._place(volume)
        with _translated(place):
            done = self._closed(place, self.place(volume), message)
        if not done.kept:
            with suppress(OSError):  # it harms nobody
                os.rmdir(self.place(volume))
        return done

    def _closed(self, place: UpperPlace, at: str, message: str) -> Closed:
        if (record := place.read()) is None:
            return Closed("", kept=False)
        self._remember(at, place)
        _detach(record)
        writable_mount.check_unused(place, record)
        unmount_writable(self._session, at, keep=True)
        if place.read() is None:
            return Closed("", kept=False)
        if not message:
            return Closed("", kept=True)
        result, _ = commit_and_unmount(at, message=message, session=self._session, workers=0)
        return Closed(result.commit, kept=False)

    def _begun(self, volume: Volume) -> Record:
        """The record of a volume's place; one at the newest commit of its branch where there are no
        changes. NotFound, Unavailable."""
        place, options = self._place(volume), volume.options
        former = place.read()
        if former is not None and former.noted is not None:
            with place.locked():
                former = commit_ends.settled(self._session, place, former)
        if former is not None and (
            writable_mount.mounted_on(former) or place.has_changes(former.generation)
        ):
            return former
        if former is not None:  # of a commit that somebody made by hand
            writable_mount.check_unused(place, former)
            self._remember(former.mountpoint, place)
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

    def _remember(self, at: str, place: UpperPlace) -> None:
        """Have `lodefs commit` and its like find the place."""
        state = upper_place.state_directory(self._session.environment)
        upper_place.remember(state, at, place)

    def _no_mounter(self, _options: MountOptions) -> object:
        """Containers are counted by the mount service, which sees them above its own mounts."""
        raise Unavailable(
            f"the mount service at {self._service} did not mount what is below the volume: see "
            "`systemctl status lodefs-mounter`, and try again"
        )


def _detach(record: Record) -> None:
    """Take the mount off its place here; containers may have it elsewhere. InUse."""
    while writable_mount.mounted_on(record) is not None:
        try:
            mount_syscalls.detach(record.mountpoint, lazy=False)
        except BlockingIOError as error:
            raise InUse(f"{record.mountpoint}: a process of this machine has it open") from error


@contextmanager
def _translated(place: UpperPlace) -> Iterator[None]:
    """Errors of the disk as those of errors.py."""
    try:
        yield
    except OSError as error:
        raise state_files.translated(error, place.directory) from error
