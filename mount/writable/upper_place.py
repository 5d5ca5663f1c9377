"""Upper places: the changes of writable mounts on disk, and the records that describe them.

::

    PLACE/record.json   what is mounted where, as JSON with a version
    PLACE/upper-N/      the changes to the commit of generation N; a commit begins N + 1
    PLACE/work-N/       what overlayfs needs beside it
    PLACE/lower-N/      the snapshot, unless the node's mount service has it mounted
    PLACE/restore-N     what a restore is putting into the mount, by its path there
    PLACE/reserve/      room for a commit where changes have filled the disk: bytes and inodes
    PLACE/lock          one command at a time

A state directory has a place for each mountpoint, or a symlink to it if it lies elsewhere
(``--upper``). So the mountpoint is enough to find the place, mounted or not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import (
    Corrupt,
    Denied,
    InUse,
    InvalidInput,
    NoSpace,
    UnknownFormat,
)
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.chunkstore.system.safe_open import closing, keeps_names, make_own, remove_tree
from lodefs.mount.helper import state_files
from lodefs.mount.helper.volume_locks import VolumeLocks
from lodefs.mount.kernel import namespaces, overlay
from lodefs.mount.options import MountOptions

VERSION = 1
RECORD_BYTES_MAX = 64 * 1024
# More than a record, the directories of a generation and those of a test need
RESERVE_BYTES, RESERVE_INODES = 32 * 1024, 12
OF_ROOT = Path("/var/lib/lodefs/writable")
ID_BYTES = 8
WHOSE = "a writable mount that another command works on (try again when that has ended)"
_in_this_process = VolumeLocks()  # file locks only exclude other processes


class NotedCommit(msgspec.Struct, frozen=True):
    """A commit (64 hex digits) that a branch may already lead to."""

    commit: str
    repo: str
    branch: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a writable mount. ``options``: of its lower mount, without a token.
    ``branch``: where its commit goes; "" if a tag or a commit was mounted. ``commit``: the base of
    its changes, which lie in ``upper-GENERATION``. ``service``: the socket of the mount service
    that may have mounted the snapshot; "": none. ``noted``: a commit, made or about to be, of all
    the changes there; nothing can have been written since. ``tag``: the tag that keeps ``commit``
    in the store; "": none."""

    version: int = VERSION
    options: MountOptions
    branch: str
    commit: str
    generation: int = 0
    service: str = ""
    noted: NotedCommit | None = None
    tag: str = ""

    @property
    def repo(self) -> str:
        """The repository."""
        return self.options.repo

    @property
    def path(self) -> bytes:
        """The mounted directory of the repository; b"" for its root."""
        return self.options.path

    @property
    def mountpoint(self) -> str:
        """Its mountpoint: an absolute path without symlinks."""
        return self.options.mountpoint


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class UpperPlace:
    """One upper place, which may not exist yet."""

    def __init__(self, directory: Path) -> None:
        """``directory``: absolute; only its owner can change what the path leads to."""
        self.directory = directory

    def __repr__(self) -> str:
        return f"UpperPlace({str(self.directory)!r})"

    def upper(self, generation: int) -> Path:
        """Returns the directory with the changes of a generation, as overlayfs writes them."""
        return self.directory / f"upper-{generation}"

    def work(self, generation: int) -> Path:
        """Returns the directory that overlayfs needs besides its upper directory."""
        return self.directory / f"work-{generation}"

    def lower(self, generation: int) -> Path:
        """Returns the mountpoint of the place's own mount of a snapshot."""
        return self.directory / f"lower-{generation}"

    def restoring(self, generation: int) -> bytes:
        """Returns the path in the mount at which an interrupted restore has put a file that belongs
        elsewhere; b"": none. Raises: OSError."""
        try:
            return state_files.read_whole(self._restore(generation), RECORD_BYTES_MAX)
        except FileNotFoundError:
            return b""

    def note_restoring(self, generation: int, path: bytes) -> None:
        """Records that a restore puts a file at a path, or (b"") ended. Raises: NoSpace, Denied,
        Unavailable."""
        state_files.write_whole(self._restore(generation), path)

    def _restore(self, generation: int) -> Path:
        return self.directory / f"restore-{generation}"

    @property
    def _record(self) -> Path:
        return self.directory / "record.json"

    @property
    def _reserve(self) -> Path:
        return self.directory / "reserve"

    @property
    def _lock_file(self) -> Path:
        return self.directory / "lock"

    def read(self) -> Record | None:
        """Returns the record; None if nothing was mounted, or all of it was removed. Raises:
        Corrupt, UnknownFormat; OSError."""
        try:
            data = state_files.read_whole(self._record, RECORD_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            version = from_json(data, _Versioned).version
            if version != VERSION:
                raise UnknownFormat(
                    f"{self._record} has version {version}, and this lodefs knows {VERSION}: use "
                    "the lodefs that made it"
                )
            return from_json(data, Record)
        except InvalidInput as error:
            raise Corrupt(
                f"{self._record} cannot be read: {error}; the changes lie in "
                f"{self.directory}/upper-*"
            ) from error

    def write(self, record: Record) -> None:
        """Replaces the record; it is on disk when this returns. Raises: NoSpace, Denied,
        Unavailable; the old record then stays."""
        options = msgspec.structs.replace(record.options, token=None)
        record = msgspec.structs.replace(record, options=options)
        state_files.write_whole(self._record, msgspec.json.encode(record))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Reserves the place for one command. Creates it if it is missing, and removes it at the
        end if it has no record. Raises: InUse (another process), Conflict (another thread);
        NoSpace, Denied, InvalidInput, Unavailable."""
        with _in_this_process.holding(str(self.directory)):
            fd = self._lock()
            try:
                yield
            finally:
                if not self._record.exists():
                    with suppress(OSError):  # the next command there continues
                        self.remove()
                os.close(fd)

    def _lock(self) -> int:
        try:
            _check_ours(self.directory)
            make_own(self.directory)
            fd = state_files.lock(self._lock_file, WHOSE)
            if not os.path.samestat(os.fstat(fd), self._lock_file.stat()):
                os.close(fd)
                raise InUse(f"{self.directory} was just removed; try again")
            return fd
        except OSError as error:
            raise state_files.translated(error, self.directory) from error

    def generations(self) -> list[int]:
        """Returns the generations that have, or had, changes. Raises: OSError."""
        found = (name.removeprefix("upper-") for name in os.listdir(self.directory))
        return sorted(int(number) for number in found if number.isdecimal())

    def has_changes(self, generation: int) -> bool:
        """Whether the upper directory of a generation has entries. Raises: OSError."""
        try:
            with os.scandir(self.upper(generation)) as entries:
                return next(entries, None) is not None
        except FileNotFoundError:
            return False

    def make(self, generation: int, uid: int, gid: int, mode: int) -> None:
        """Creates the missing directories of a generation. The root of the mount then belongs to
        ``uid`` and ``gid``, with the permissions ``mode``. Raises: OSError."""
        for directory in (self.work(generation), self.lower(generation)):
            directory.mkdir(mode=0o700, exist_ok=True)
        upper = self.upper(generation)
        with suppress(FileExistsError):  # their content may have changed since
            upper.mkdir(mode=0o700)
            os.chown(upper, uid, gid)
            upper.chmod(mode)

    def reserve(self) -> None:
        """Reserves room for a commit, as far as the disk has any."""
        with suppress(OSError):
            self._reserve.mkdir(mode=0o700, exist_ok=True)
            for number in range(1, RESERVE_INODES):
                (self._reserve / str(number)).touch(mode=0o600)
            with closing(os.open(self._reserve / "1", os.O_WRONLY | os.O_NOFOLLOW)) as fd:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)

    def use_reserve(self) -> None:
        """Frees that room for a commit."""
        try:
            remove_tree(self._reserve)
        except NotADirectoryError:  # an earlier lodefs reserved bytes alone
            self._reserve.unlink()
        except FileNotFoundError:
            pass

    def is_in_use(self, generation: int) -> bool:
        """Whether an overlay uses the changes of a generation, mounted or not. On a full disk the
        test takes its room from the reserve. Raises: OSError."""
        if not self.work(generation).is_dir():
            return False
        try:
            return self._is_in_use(generation)
        except OSError as error:
            if kind_of(error) is not NoSpace:
                raise
        self.use_reserve()
        try:
            return self._is_in_use(generation)
        finally:
            self.reserve()

    def _is_in_use(self, generation: int) -> bool:
        with ExitStack() as stack:
            lower, upper = (
                stack.enter_context(TemporaryDirectory(prefix="try-", dir=self.directory))
                for _ in range(2)
            )
            ask = partial(overlay.is_in_use, self.work(generation), Path(lower), Path(upper))
            return ask() if namespaces.may_mount() else namespaces.asked_in_new(ask)

    def drop(self, generation: int) -> None:
        """Removes the changes of a generation. Raises: OSError."""
        with suppress(FileNotFoundError):  # the kernel creates it so that a user cannot list it
            (self.work(generation) / "work").chmod(0o700)
        for directory in (self.upper(generation), self.work(generation)):
            with suppress(FileNotFoundError):
                remove_tree(directory)
        with suppress(FileNotFoundError):
            self.lower(generation).rmdir()
        self._restore(generation).unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes the whole place, the record first. Raises: OSError."""
        self._record.unlink(missing_ok=True)
        for generation in self.generations():
            self.drop(generation)
        self.use_reserve()
        self._lock_file.unlink(missing_ok=True)
        with suppress(OSError):  # other files are there
            self.directory.rmdir()


def state_directory(environ: Mapping[str, str]) -> Path:
    """Returns the directory with this user's places, or symlinks to them."""
    if os.geteuid() == 0 and namespaces.in_first_user_namespace():
        return OF_ROOT
    state = environ.get("XDG_STATE_HOME") or f"{environ.get('HOME') or '/'}/.local/state"
    return Path(os.path.realpath(state)) / "lodefs/writable"


def default_place(state: Path, mountpoint: str) -> UpperPlace:
    """Returns the place for a mountpoint (absolute, without symlinks) that is mounted without
    --upper."""
    return UpperPlace(state / id_of(mountpoint))


def id_of(mountpoint: str) -> str:
    """Returns the name of a mountpoint in the state directory."""
    return blake3(os.fsencode(mountpoint)).hexdigest(length=ID_BYTES)


def find(state: Path, mountpoint: str) -> UpperPlace | None:
    """Returns the place whose record names a mountpoint; None without one. Raises: Corrupt,
    UnknownFormat; Denied, for root, if others may change what lies there; OSError."""
    place = _followed(default_place(state, mountpoint).directory)
    _check_ours(place.directory)
    record = place.read()
    return place if record is not None and record.mountpoint == mountpoint else None


def remember(state: Path, mountpoint: str, place: UpperPlace) -> None:
    """Makes a mountpoint lead to its place, wherever that lies. Raises: NoSpace, Denied,
    Unavailable."""
    name = default_place(state, mountpoint).directory
    if name == place.directory or name.is_symlink():
        return
    try:
        state_files.make_private(state)
        if name.is_dir():  # left by a refused mount
            UpperPlace(name).remove()
        name.symlink_to(place.directory)
    except OSError as error:
        raise state_files.translated(error, name) from error


def forget(state: Path, mountpoint: str) -> None:
    """Removes the link of a mountpoint to its place. Raises: Denied, Unavailable."""
    name = default_place(state, mountpoint).directory
    try:
        if name.is_symlink():
            name.unlink()
    except OSError as error:
        raise state_files.translated(error, name) from error


def all_places(state: Path) -> list[UpperPlace]:
    """Returns the places of a state directory; for root, those that only root can change. Raises:
    OSError."""
    found = []
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(state)):
            place = _followed(state / name)
            with suppress(Denied):
                _check_ours(place.directory)
                found.append(place)
    return found


def _check_ours(directory: Path) -> None:
    """Raises Denied for root of the machine, if a directory exists and others may change what the
    path leads to: anybody may create names in a /tmp that a reboot has emptied."""
    is_root = os.geteuid() == 0 and namespaces.in_first_user_namespace()
    if is_root and os.path.lexists(directory) and not keeps_names(str(directory)):
        raise Denied(
            f"{directory} does not belong to root alone, and others may have put files there: "
            "remove "
            "it, and name a directory of root's by --upper, such as /var/lib/lodefs/writable/NAME"
        )


def _followed(directory: Path) -> UpperPlace:
    """Returns the place that a name in the state directory leads to."""
    return UpperPlace(Path(os.readlink(directory)) if directory.is_symlink() else directory)
