"""Opens, makes and removes files at paths of which other users may change a part.

No function follows a symlink anywhere, most by openat2(2), from Linux 5.6 on. They work with
descriptors, so that what was checked is what is used. ``open_below`` accepts paths of any length.
``rooted`` returns a path without symlinks that can be opened in this way.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lodefs.chunkstore.errors import Denied
from lodefs.chunkstore.system import libc

PATH_BYTES_MAX = 4095  # PATH_MAX of Linux, without its NUL
# For a directory that is not read: no file system's server is asked
PLACE = os.O_PATH | os.O_DIRECTORY
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_STEP = PLACE | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # does not wait for a FIFO
_OPENAT2, _AT_FDCWD = 437, -100  # on every architecture
_TREE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_MAX = 40  # as in the kernel
DEPTH_MAX = 100  # directories that are open at once while a tree is removed
_OTHERS_WRITE = 0o022
_NO_XDEV, _NO_SYMLINKS, _BENEATH = 1, 4, 8  # linux/openat2.h


def open_below(root_fd: int, path: bytes, flags: int) -> int:
    """Opens ``path`` below ``root_fd``, in which no name may be a symlink. A path that is too long
    for the kernel is opened in steps. Returns a descriptor. Raises: OSError, as ``open_within``
    does."""
    flags |= os.O_NOFOLLOW
    resolve = _NO_SYMLINKS | _BENEATH
    base_fd = root_fd
    try:
        while len(path) > PATH_BYTES_MAX:
            cut = path.rindex(b"/", 0, PATH_BYTES_MAX + 1)
            step_fd = _opened(base_fd, path[:cut], _STEP, 0, resolve)
            if base_fd != root_fd:
                os.close(base_fd)
            base_fd, path = step_fd, path[cut + 1 :]
        return _opened(base_fd, path, flags, 0, resolve)
    finally:
        if base_fd != root_fd:
            os.close(base_fd)


def open_plain(path: str, flags: int, mode: int = 0) -> int:
    """Opens an absolute path without symlinks. Returns a descriptor. Raises: OSError, with ELOOP if
    a name is a symlink (before Linux 5.6, ENOTDIR)."""
    if not os.path.isabs(path):
        raise OSError(errno.EINVAL, "the path is relative", path)
    return _opened(_AT_FDCWD, path, flags, mode, _NO_SYMLINKS)


def open_within(dir_fd: int, path: str, flags: int, mode: int = 0) -> int:
    """Opens a path that does not lead out of a directory. Returns a descriptor. Raises: OSError,
    with EXDEV if the path leaves the directory; what ``open_plain`` raises."""
    return _opened(dir_fd, path, flags, mode, _NO_SYMLINKS | _BENEATH)


def rooted(path: str) -> str:
    """Returns an absolute path with its symlinks resolved. It resolves only symlinks that nobody
    but root can have made: they lie in directories in which only root makes names, and not in a
    FUSE file system. Missing names, and names below a file, are kept as they are.

    Raises: OSError, with ELOOP if somebody else may lead the path elsewhere.
    """
    todo, here, links = path.split("/")[::-1], "/", 0
    fd = os.open("/", _STEP)
    try:
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            target = _link(fd, name)
            if target is None:
                below_fd = _step(fd, name)
                if below_fd is None:
                    return os.path.normpath(os.path.join(here, name, *reversed(todo)))
                here = os.path.dirname(here) if name == ".." else os.path.join(here, name)
            else:
                links += 1
                if links > _LINKS_MAX or not _is_roots(fd):
                    place = os.path.join(here, name)
                    raise OSError(errno.ELOOP, "others than root can change the symlink", place)
                todo += target.split("/")[::-1]
                if not target.startswith("/"):
                    continue
                below_fd, here = os.open("/", _STEP), "/"
            os.close(fd)
            fd = below_fd
        return here
    finally:
        os.close(fd)


def _link(dir_fd: int, name: str) -> str | None:
    """Returns the target of a symlink; None if it is not one."""
    try:
        return os.readlink(name, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _step(dir_fd: int, name: str) -> int | None:
    """Opens a directory. Returns a descriptor; None if there is no directory."""
    try:
        return os.open(name, _STEP, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_roots(dir_fd: int, *, sticky: bool = False) -> bool:
    """Whether only root makes names there. Owners and modes in a FUSE file system do not count,
    since any user, or the pusher of a dataset, may have set them. ``sticky`` also allows
    directories in which others may make names, but move only their own."""
    found = os.fstat(dir_fd)
    is_shared = found.st_mode & _OTHERS_WRITE and not (sticky and found.st_mode & stat.S_ISVTX)
    if found.st_uid != 0 or is_shared:
        return False
    return libc.file_system_of(dir_fd) != libc.FUSE


def keeps_names(directory: str) -> bool:
    """Whether what root makes in a directory keeps its name: the directory and all above it belong
    to root, and others may make no names there, or move only their own (the sticky bit)."""
    try:
        place = rooted(directory)
        for one in (place, *map(str, Path(place).parents)):
            with closing(os.open(one, _STEP)) as fd:
                if not _is_roots(fd, sticky=True):
                    return False
    except OSError:
        return False
    return os.path.isabs(directory)


def open_regular(dir_fd: int, path: str, *, writable: bool = False) -> int:
    """Opens a regular file below a directory, at a path of names without ``..``, on every kernel.
    Returns a descriptor. Raises: OSError if a name is a symlink; FileNotFoundError for what is no
    regular file."""
    *parents, name = path.split("/")
    with ExitStack() as opened:
        for parent in parents:
            dir_fd = opened.enter_context(closing(os.open(parent, _STEP, dir_fd=dir_fd)))
        fd = os.open(name, _READ | (os.O_RDWR if writable else 0), dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "it is not a regular file", path)
    return fd


def open_in_mount(dir_fd: int, name: str, flags: int) -> int:
    """Opens one name in a directory, in that directory's own file system: it asks nothing of one
    that somebody mounted there. It works on every kernel. Raises: OSError, with EXDEV for such a
    mount."""
    try:
        return _opened(dir_fd, name, flags, 0, _NO_XDEV | _NO_SYMLINKS | _BENEATH)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    with closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)) as fd:
        if _mount_of(fd) != _mount_of(dir_fd):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
        return os.dup(fd) if flags & os.O_PATH else os.open(f"/proc/self/fd/{fd}", flags)


def _mount_of(fd: int) -> bytes:
    """Returns the line that names the mount of an open file (proc_pid_fdinfo(5)). The kernel knows
    it without asking the file system."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:
        return next(line for line in lines if line.startswith(b"mnt_id:"))


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """Yields a descriptor and closes it at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def make_within(dir_fd: int, path: str, mode: int = 0o755) -> int:
    """Makes a directory below another one, and its missing parents. Returns a descriptor
    (``PLACE``). Raises: OSError, also for names that are not directories."""
    fd = open_within(dir_fd, ".", PLACE)
    for name in filter(None, path.split("/")):
        with closing(fd):
            with suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=fd)
            fd = open_within(fd, name, PLACE)
    return fd


def make_own(path: Path) -> None:
    """Makes a directory for this user alone, and its missing parents, whatever the umask is. An
    existing one must belong to this user, and is closed to others. Symlinks of this user are
    followed. Raises: Denied if it belongs to another user; OSError."""
    for one in (*reversed(path.parents), path):
        if not one.exists():
            with suppress(FileExistsError):
                one.mkdir(0o700)
    link = path.lstat()
    with closing(os.open(path, PLACE | os.O_CLOEXEC)) as fd:
        found = os.fstat(fd)
        for uid in (link.st_uid, found.st_uid):
            if uid != os.geteuid():
                raise Denied(
                    f"{path} belongs to user {uid}, who could change its contents: run this as "
                    "that user, or choose another place with HOME or XDG_CACHE_HOME"
                )
        if found.st_mode & _OTHERS:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)


def remove_within(dir_fd: int, name: str) -> None:
    """Removes a directory and the directories in it, if it exists. It visits each once, so that
    nobody can keep it busy by making new ones. Raises: OSError if it has anything but directories,
    or one is a mountpoint (EBUSY)."""
    left, seen = [name], set[str]()
    while left:
        try:
            _remove(dir_fd, left[-1])
            left.pop()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or left[-1] in seen:
                raise
            seen.add(left[-1])
            left += [f"{left[-1]}/{below}" for below in _names(dir_fd, left[-1])]


def remove_tree(path: str | Path, dir_fd: int | None = None) -> None:
    """Removes a directory (a name in ``dir_fd``, if given) with everything in it, at any depth:
    what lies deeper than DEPTH_MAX is moved up first, so that neither descriptors nor Python's
    stack run out. Raises: OSError, also if another process changes the tree meanwhile."""
    with closing(os.open(path, _TREE, dir_fd=dir_fd)) as fd:
        while _emptied(fd, fd, 0):
            pass
    os.rmdir(path, dir_fd=dir_fd)


def _emptied(dir_fd: int, top_fd: int, depth: int) -> bool:
    """Removes what is in a directory, except directories that are too deep, which it moves to the
    top. Returns whether there were any."""
    with os.scandir(dir_fd) as entries:
        found = [(one.name, one.is_dir(follow_symlinks=False)) for one in entries]
    is_moved = False
    for name, is_directory in found:
        if not is_directory:
            os.unlink(name, dir_fd=dir_fd)
        elif depth >= DEPTH_MAX and _is_moved(dir_fd, name, top_fd):
            is_moved = True
        else:
            with closing(os.open(name, _TREE, dir_fd=dir_fd)) as fd:
                is_moved |= _emptied(fd, top_fd, depth + 1)
            os.rmdir(name, dir_fd=dir_fd)
    return is_moved


def _is_moved(dir_fd: int, name: str, top_fd: int) -> bool:
    """Moves a directory to the top of its tree. Returns False if its file system cannot (EXDEV: an
    overlay in a user namespace, and a directory of what is below it)."""
    try:
        os.rename(name, uuid.uuid4().hex, src_dir_fd=dir_fd, dst_dir_fd=top_fd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _remove(dir_fd: int, path: str) -> None:
    parent, _, name = path.rpartition("/")
    with suppress(FileNotFoundError), closing(open_within(dir_fd, parent or ".", PLACE)) as fd:
        os.rmdir(name, dir_fd=fd)


def _names(dir_fd: int, path: str) -> list[str]:
    with closing(open_within(dir_fd, path, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        return os.listdir(fd)


def _opened(dir_fd: int, path: str | bytes, flags: int, mode: int, resolve: int) -> int:
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, "a path with NUL", path)
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)  # struct open_how
    try:
        return libc.call("syscall", _OPENAT2, dir_fd, name, how, len(how))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise OSError(error.errno, error.strerror, path) from None  # adds the kind and the path
    return _opened_in_steps(dir_fd, os.fsdecode(path), flags, mode, resolve)


def _opened_in_steps(dir_fd: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """Does the same before Linux 5.6."""
    *folders, name = [name for name in path.split("/") if name] or ["."]
    if resolve & _BENEATH and (os.path.isabs(path) or ".." in (*folders, name)):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    fd = os.open("/", _STEP) if os.path.isabs(path) else os.open(".", _STEP, dir_fd=dir_fd)
    try:
        for folder in folders:
            below_fd = os.open(folder, _STEP, dir_fd=fd)
            os.close(fd)
            fd = below_fd
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=fd)
    finally:
        os.close(fd)
