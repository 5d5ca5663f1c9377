"""Answers dockerd's requests about volumes in time, whatever the mount service does.

A Mount ID is a user of the mount service, which mounts, counts and repairs (mount.service). This
module knows what a volume is: its name, its options, its commit. Mounts of a volume run in
parallel. A change of a volume needs it exclusively, so that no container gets a mount of a volume
that is being removed, or moved to another commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Corrupt,
    DeadlineExceeded,
    InUse,
    InvalidInput,
    LodefsError,
    NotFound,
    Unavailable,
    told,
)
from lodefs.mount.docker import writing
from lodefs.mount.docker.options import Options, SplitUrl, parse_options
from lodefs.mount.docker.volume import Volume, about, check_mount_id, check_name, created
from lodefs.mount.docker.volume_files import Damaged, Record, Records
from lodefs.mount.helper.deadline_calls import Calls, LateError
from lodefs.mount.helper.interface import ResolvedCommit, Source
from lodefs.mount.helper.volume_locks import VolumeLocks
from lodefs.mount.service.interface import DOCKER, Holding, MountClaim, MountService, User
from lodefs.mount.volumes.changes import Closed, VolumeWriter, WritableVolume, key_of
from lodefs.mount.volumes.openings import WORK_TIMEOUT_S, Openings

ANSWER_TIMEOUT_S = 0.9
FIRST_TRY, WHY_TRY = 0.75, 0.15  # shares of the caller's time
LOOK_TIMEOUT_S = 0.1  # for the service to list mounts; after this the last known state is shown
REMOVE_STALE_S = 5.0  # an older Mount that nobody shows does not prevent a removal
_STORE_IS_SLOW = "the store is slow or out of reach"
_BUSY = "the plugin, or the disk of its state directory, is busy"
_log = logging.getLogger("lodefs.docker")

T = TypeVar("T")
ReadToken = Callable[[Source], str | None]
"""The token that a volume's options refer to. Raises: InvalidInput."""


class Shown(msgspec.Struct, frozen=True):
    """A volume as it is now, and what it holds of the mount service. ``failure``: why its changes
    are not committed yet."""

    record: Record
    held: Holding
    failure: str = ""


class Volumes:
    """The volumes of this node. Every method may be called by any thread, and returns, or raises
    one of errors.py's classes, within ``answer_timeout_s``."""

    def __init__(
        self,
        records: Records,
        service: MountService,
        calls: Calls,
        *,
        split_url: SplitUrl,
        read_token: ReadToken,
        now_s: Callable[[], float] = time.time,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        writer: VolumeWriter | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``writer`` None: no volume is writable. ``on_change`` is called when upkeep may have
        work."""
        self._files = records
        self._service = service
        self._calls = calls
        self._split_url = split_url
        self._read_token = read_token
        self._now_s = now_s
        self._answer_timeout_s = answer_timeout_s
        self._openings = None if writer is None else self.openings_of(writer)
        self._on_change = on_change
        self._locks = VolumeLocks()
        self._records: dict[str, Record] = {}
        self._held: dict[str, Holding] = {}  # as last seen
        for record in records.load():
            self._records[record.key] = record
            if isinstance(record, Damaged):
                name = record.name or record.key
                _log.error("volume %s: %s", name, record.why, extra=about(name))

    def create(self, name: str, given: Mapping[str, str]) -> None:
        """Creates a volume, unless the same one exists.

        Raises: InvalidInput (name, options, path), NotFound (repository, revision), Denied,
        AlreadyExists (with other options), Unavailable.
        """
        key = key_of(check_name(name))
        call = ("create", name, frozenset(given.items()))
        self._answer(
            call, f"creating volume {name!r}", partial(self._create, key, name, dict(given))
        )
        self._on_change()

    def remove(self, name: str) -> None:
        """Removes a volume without users. Raises: NotFound, InUse, Unavailable."""
        key = key_of(check_name(name))
        work = partial(self._remove, key, name)
        self._answer(("remove", name), f"removing volume {name!r}", lambda _say: work())
        self._on_change()

    def mount(self, name: str, mount_id: str) -> str:
        """Mounts a volume on the directory that is returned, until ``unmount`` was called as often
        with the same ID. Raises: NotFound, Corrupt, InvalidInput, Denied, Unavailable."""
        key = key_of(check_name(name))
        user = User(name, check_mount_id(mount_id), driver=DOCKER)
        return self._answer(
            ("mount", name, object()),  # each call counts
            f"mounting volume {name!r}",
            partial(self._mount, key, user),
            lambda _place: self._service.release(user, WORK_TIMEOUT_S),
        )

    def unheard(self, name: str, mount_id: str) -> None:
        """Undoes, in the background, a ``mount`` whose caller went before it had the answer."""
        user = User(name, mount_id, driver=DOCKER)
        work = partial(self._service.release, user, WORK_TIMEOUT_S)
        try:
            self._calls.begin(("take back", name, object()), work)
        except Unavailable as error:
            _log.warning(
                "a mount of %s stays recorded for a while: %s", name, error, extra=about(name)
            )

    def unmount(self, name: str, mount_id: str) -> None:
        """Takes a mount back, if the ID has one. Raises: NotFound, Corrupt, Unavailable."""
        key = key_of(check_name(name))
        user = User(name, check_mount_id(mount_id), driver=DOCKER)

        def work(_say: Callable[[str], None]) -> None:
            self._service.release(user, WORK_TIMEOUT_S)
            self._volume(key, name)

        self._answer(("unmount", name, object()), f"unmounting volume {name!r}", work)
        if is_writable(self._records.get(key)):
            self._on_change()

    def path(self, name: str) -> str:
        """Returns the path of a volume's mount; "" without one. Raises: NotFound."""
        return self.get(name).held.place

    def get(self, name: str) -> Shown:
        """Returns a volume with all that is known of it. Raises: NotFound."""
        record = self._records.get(key_of(check_name(name)))
        if record is None:
            raise no_such(name)
        return self._shown(record, self.holdings(name))

    def list(self) -> list[Shown]:
        """Returns all volumes with a known name."""
        held = self.holdings()
        named = [record for record in self.records() if record.name]
        found = [self._shown(record, held) for record in named]
        return sorted(found, key=lambda shown: shown.record.name)

    def records(self) -> tuple[Record, ...]:
        """Returns all volumes, damaged ones included."""
        return tuple(self._records.values())

    def holdings(self, name: str = "") -> dict[str, Holding]:
        """Returns the state of all volumes, or of one, by name. If the mount service does not
        answer at once, it is the state last seen."""

        def look() -> None:
            looked = self._service.holdings(DOCKER, name, LOOK_TIMEOUT_S)
            found = {one.volume: with_traffic(one, self._held.get(one.volume)) for one in looked}
            if name:
                found = {**self._held, name: found.get(name, Holding(name))}
            self._held = found

        try:
            self._calls.run(("look", name), look, LOOK_TIMEOUT_S)
        except LodefsError as error:
            _log.debug("cannot list mounts: %s", error)
        return self._held

    def failure(self, volume: Volume) -> LodefsError | None:
        """Returns the error of the last commit of its changes since this process was started; None
        if it did not fail."""
        return self._openings.failure(volume.key) if self._openings is not None else None

    def close_unused(self, name: str) -> str:
        """Commits or keeps, as the volume says, what its containers have changed, if none of them
        is left. Returns the commit, "" without one. Raises what VolumeWriter.close raises; the
        volume then shows the failure."""
        key = key_of(name)
        with self.using(key, alone=True):
            volume = writing.writable(self._volume(key, name))
            done = self._opening().close_unused(volume, DOCKER)
            return "" if done is None else done.commit

    def using(self, key: str, *, alone: bool = False) -> AbstractContextManager[None]:
        """During the block nobody changes a volume and, if ``alone``, nobody mounts it. Raises:
        Conflict if another call has it for long."""
        return self._locks.holding(key, alone=alone, timeout_s=WORK_TIMEOUT_S)

    def write(self, volume: Volume) -> None:
        """Writes a volume's new record to disk, then to memory. The caller holds the volume
        exclusively. Raises: NoSpace, Denied, Unavailable."""
        if volume != self._records.get(volume.key):
            self._files.write(volume)
            self._records[volume.key] = volume

    def resolve(self, source: Source, rev: str, timeout_s: float) -> ResolvedCommit:
        """Returns the commit that a revision names now. Raises: the errors of MountService.resolve;
        InvalidInput (token)."""
        return self._service.resolve(wanted_of(source, rev), self._read_token(source), timeout_s)

    def acquire(self, user: User, volume: Volume, pin_s: int | None, timeout_s: float) -> str:
        """Mounts the volume for a user, or keeps its data. See MountService.acquire."""
        source = volume.options.source
        wanted, token = wanted_of(source, volume.commit, pin_s), self._read_token(source)
        return self._service.acquire(user, wanted, token, timeout_s).place

    def _answer(
        self,
        call: tuple[object, ...],
        what: str,
        work: Callable[[Callable[[str], None]], T],
        late: Callable[[T], None] = lambda _result: None,
    ) -> T:
        """Runs ``work``, which calls its argument with what it waits for, if that takes long."""
        said: list[str] = []
        try:
            return self._calls.run(call, partial(work, said.append), self._answer_timeout_s, late)
        except LateError as error:
            raise DeadlineExceeded(f"{what} ({said[-1] if said else _BUSY}): {error}") from error
        except Unavailable as error:
            raise type(error)(f"{what}: {error}") from error

    def _in_time(
        self,
        work: Callable[[float], T],
        volume: tuple[Source, str],
        say: Callable[[str], None],
    ) -> T:
        """Tries within the caller's time, so that errors reach the caller. If that is only too
        slow, continues in the background with more time."""
        try:
            return work(FIRST_TRY * self._answer_timeout_s)
        except DeadlineExceeded as error:
            say(str(error))
            with suppress(DeadlineExceeded):  # but not the error of a missing proxy
                self.resolve(*volume, WHY_TRY * self._answer_timeout_s)
            return work(WORK_TIMEOUT_S)

    def _create(
        self, key: str, name: str, given: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        options = parse_options(given, self._split_url)  # a URL may need a request to its store
        with self.using(key, alone=True):
            if key in self._records:
                if self._volume(key, name).options != options:
                    raise AlreadyExists(
                        f"there is a volume {name!r} with other options: remove it first, or "
                        "choose another name"
                    )
                return
            asked = options.source, self._revision(name, options, say)
            found = self._in_time(partial(self.resolve, *asked), asked, say)
            self.write(created(name, options, found, self._now_s()))
        told = (name, options.source.repo, found.commit)
        _log.info("created volume %s: %s@%s", *told, extra=about(name))

    def _mount(self, key: str, user: User, say: Callable[[str], None]) -> str:
        if is_writable(self._records.get(key)):
            return self._mount_writable(key, user, say)
        with self.using(key):
            volume = self._volume(key, user.volume)
            acquire = partial(self.acquire, user, volume, None)
            return self._in_time(acquire, (volume.options.source, volume.commit), say)

    def _mount_writable(self, key: str, user: User, say: Callable[[str], None]) -> str:
        """Mounts one after the other, since containers share the mount."""
        say("its changes are being committed, or another container mounts it")
        with self.using(key, alone=True):
            openings = self._opening()
            say(_STORE_IS_SLOW)
            volume = self._volume(key, user.volume)
            token = self._read_token(volume.options.source)
            return openings.open(writing.writable(volume), user, user.target, token).place

    def _revision(self, name: str, options: Options, say: Callable[[str], None]) -> str:
        """Returns the revision of a new volume. A branch to write to is created, and must be
        writable."""
        if options.commits is msgspec.UNSET:
            return options.rev
        say(_STORE_IS_SLOW)
        return self._opening().writer.branch(writing.asked(name, options))

    def openings_of(self, writer: VolumeWriter) -> Openings:
        """Returns an object that opens and closes volumes that take changes, by a writer."""
        return Openings(self._service, writer, self._write, wanted_of, writing.WORDS)

    def _opening(self) -> Openings:
        if self._openings is None:
            raise InvalidInput(
                "write=true needs the node's mount service, but this plugin mounts by itself: "
                "start it with --mounter SOCKET, as its unit does; a managed plugin of Docker "
                "cannot take changes: install lodefs as a service of the host"
            )
        return self._openings

    def _write(self, after: WritableVolume) -> None:
        """The caller has the volume for itself."""
        self.write(writing.changed(self._volume(after.key, after.name), after))

    def _shown(self, record: Record, held: Mapping[str, Holding]) -> Shown:
        one = held.get(record.name, Holding(record.name))
        if isinstance(record, Damaged) or not is_writable(record) or self._openings is None:
            return Shown(record, one)
        place = self._openings.writer.place(writing.writable(record)) if one.place else ""
        failure = self.failure(record)
        shown = msgspec.structs.replace(one, place=place)
        return Shown(record, shown, "" if failure is None else told(str(failure)))

    def _remove(self, key: str, name: str) -> None:
        with self.using(key, alone=True):
            record = self._records.get(key)
            if record is None:
                raise no_such(name)
            if count := self._service.forget(DOCKER, name, REMOVE_STALE_S, WORK_TIMEOUT_S):
                state = "damaged, and in use" if isinstance(record, Damaged) else "in use"
                raise InUse(
                    f"volume {name!r} is {state} ({count} mount{'s' if count > 1 else ''}): remove "
                    f"its containers first (`docker ps -a --filter volume={name}`); if there are "
                    "none, try again in a minute, or disable and enable a managed plugin"
                )
            if not isinstance(record, Damaged) and self._closed(record).kept:
                place = self._opening().writer.place(writing.writable(record))
                raise InUse(
                    f"volume {name!r} has changes that are in no commit: `lodefs commit {place}` "
                    f"commits them, `lodefs unmount --discard {place}` discards them"
                )
            if isinstance(record, Damaged):
                self._files.set_aside(key)
            else:
                self._files.remove(key)
            del self._records[key]
        _log.info("removed volume %s", name, extra=about(name))

    def _closed(self, volume: Volume) -> Closed:
        """Closes a volume's changes, if it takes any. Returns their commit, and whether they are
        kept."""
        if not is_writable(volume):
            return Closed("", kept=False)
        return self._opening().close(writing.writable(volume))

    def _volume(self, key: str, name: str) -> Volume:
        """Returns the volume with that name. Raises: NotFound; Corrupt if its file is damaged;
        InUse."""
        record = self._records.get(key)
        if record is None:
            raise no_such(name)
        if isinstance(record, Damaged):
            raise Corrupt(
                f"the state of volume {name!r} is damaged: {record.why}. `docker volume rm` moves "
                f"it aside (volumes/{record.key}.damaged); then create the volume again"
            )
        if record.name != name:
            raise InUse(
                f"the files of {name!r} would have the names of those of volume {record.name!r}"
            )
        return record


def is_writable(record: Record | None) -> bool:
    """Whether a volume is writable. Pure."""
    return isinstance(record, Volume) and record.options.commits is not msgspec.UNSET


def wanted_of(source: Source, rev: str, pin_s: int | None = None) -> MountClaim:
    """Returns a volume's request to the mount service. It may name any store, since everyone who
    may use dockerd is as good as root."""
    plain = msgspec.structs.replace(source, token_file="", token_env="")
    return MountClaim(source=plain, rev=rev, pin_s=pin_s, any_store=True)


def with_traffic(now: Holding, last: Holding | None) -> Holding:
    """Returns the state of a volume now. A mount that does not report its reads in time keeps the
    counts that were seen ``last``."""
    if now.traffic is not None or now.is_dead or last is None or last.place != now.place:
        return now
    return msgspec.structs.replace(now, traffic=last.traffic)


def no_such(name: str) -> NotFound:
    """Returns the error that there is no volume of that name."""
    return NotFound(f"there is no volume {name!r}")
