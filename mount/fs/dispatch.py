"""Turns a message of the kernel into its answer. The only errno table is here."""

from __future__ import annotations

import errno
from collections.abc import Callable

from lodefs.chunkstore.errors import (
    Denied,
    InvalidInput,
    LodefsError,
    NotADirectory,
    NotFound,
    Unsupported,
)
from lodefs.chunkstore.format.names import NAME_BYTES_MAX
from lodefs.chunkstore.protocol.figures.mount_counts import Operation
from lodefs.chunkstore.types import Buffer
from lodefs.mount.fs.filesystem import LARGE, FileSystem
from lodefs.mount.kernel import fuse_abi
from lodefs.mount.kernel.fuse_abi import Opcode
from lodefs.mount.kernel.session import Session

Answer = tuple[bytes, Buffer]  # header, body

# No FLUSH on close, since nothing is ever written. KEEP_CACHE is refused together with PASSTHROUGH.
_CACHED = fuse_abi.FOPEN_KEEP_CACHE | fuse_abi.FOPEN_NOFLUSH
_PASSTHROUGH = fuse_abi.FOPEN_PASSTHROUGH | fuse_abi.FOPEN_NOFLUSH

# The first class that matches counts. Everything else (Unavailable, DeadlineExceeded, Corrupt,
# UnknownFormat, NoSpace, a bug of lodefs) is EIO: the bytes cannot be had now.
ERRNO: tuple[tuple[type[LodefsError], int], ...] = (
    (NotADirectory, errno.ENOTDIR),
    (NotFound, errno.ENOENT),
    (Denied, errno.EACCES),
    (InvalidInput, errno.EINVAL),
    (Unsupported, errno.EOPNOTSUPP),
)

READ_ONLY = frozenset(
    {
        Opcode.SETATTR, Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.UNLINK, Opcode.RMDIR,
        Opcode.RENAME, Opcode.RENAME2, Opcode.LINK, Opcode.WRITE, Opcode.SETXATTR,
        Opcode.REMOVEXATTR, Opcode.CREATE, Opcode.TMPFILE, Opcode.FALLOCATE,
        Opcode.COPY_FILE_RANGE,
    }
)  # fmt: skip


_OPERATIONS = {
    Opcode.LOOKUP: Operation.LOOKUP,
    Opcode.GETATTR: Operation.GETATTR,
    Opcode.OPEN: Operation.OPEN,
    Opcode.READ: Operation.READ,
    Opcode.RELEASE: Operation.RELEASE,
    Opcode.READDIR: Operation.LIST,
    Opcode.READDIRPLUS: Operation.LIST,
}
OPERATION_OF = {opcode.value: operation.value for opcode, operation in _OPERATIONS.items()}
_OTHER = Operation.OTHER.value


class RefusedError(Exception):
    """An errno that is a normal answer and not a failure."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class SlowError(Exception):
    """The answer would take long, and the caller must not block."""


def errno_of(error: LodefsError) -> int:
    """Returns the errno of an error; EIO for errors that may be gone at a retry."""
    return next((code for kind, code in ERRNO if isinstance(error, kind)), errno.EIO)


class Dispatcher:
    """Answers messages of one connection. ``on_failure(what, error)`` is called for every EIO and
    ESTALE, ``on_interrupt`` with the unique numbers of interrupted requests."""

    def __init__(
        self,
        filesystem: FileSystem,
        session: Session,
        on_failure: Callable[[str, Exception], None],
        on_interrupt: Callable[[int], None] = lambda _unique: None,
    ) -> None:
        self._fs = filesystem
        self._session = session
        self._on_failure = on_failure
        self._unique = 0
        self.operation = _OTHER  # the Operation of the last request
        self.has_failed = False  # whether the last request was answered with EIO or ESTALE
        self._on_interrupt = on_interrupt
        self._handlers: dict[int, Callable[[int, memoryview], Buffer]] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.READLINK: self._readlink,
            Opcode.OPEN: self._open,
            Opcode.READ: self._read,
            Opcode.STATFS: self._statfs,
            Opcode.RELEASE: self._release,
            Opcode.GETXATTR: self._getxattr,
            Opcode.LISTXATTR: self._listxattr,
            Opcode.OPENDIR: self._opendir,
            Opcode.READDIR: self._readdir,
            Opcode.READDIRPLUS: self._readdirplus,
            Opcode.RELEASEDIR: _nothing,
            Opcode.DESTROY: _nothing,
        }

    def answer(self, message: memoryview) -> Answer | None:
        """Returns header and body to write, valid until the next call; None: nothing to write.

        Raises: SlowError, if the file system's reader does.
        """
        _, opcode, unique, node = fuse_abi.IN_HEADER_FRONT.unpack_from(message)
        handler = self._handlers.get(opcode)
        self.operation = OPERATION_OF.get(opcode, _OTHER)
        self.has_failed = False
        if handler is None:
            if opcode == Opcode.INTERRUPT:
                self._on_interrupt(fuse_abi.decode_interrupt(message[fuse_abi.IN_HEADER_BYTES :]))
            if opcode in fuse_abi.UNANSWERED:
                return None
            return _failure(unique, errno.EROFS if opcode in READ_ONLY else errno.ENOSYS)
        self._unique = unique
        try:
            body = handler(node, message[fuse_abi.IN_HEADER_BYTES :])
        except RefusedError as refused:
            return _failure(unique, refused.code)
        except LodefsError as error:
            return _failure(unique, self._code(opcode, node, error))
        except SlowError:
            raise
        except Exception as error:  # noqa: BLE001 - a reader must not wait for ever
            self._fail(_what(opcode, node), error)
            return _failure(unique, errno.EIO)
        return fuse_abi.OUT_HEADER.pack(fuse_abi.OUT_HEADER_BYTES + len(body), 0, unique), body

    def _code(self, opcode: int, node: int, error: LodefsError) -> int:
        code = errno_of(error)
        if code == errno.ENOENT and opcode != Opcode.LOOKUP:
            # The kernel holds a node that the proxy does not know: it must look the name up
            # again.
            code = errno.ESTALE
        if code in (errno.EIO, errno.ESTALE):
            self._fail(_what(opcode, node), error)
        return code

    def _fail(self, what: str, error: Exception) -> None:
        self.has_failed = True
        self._on_failure(what, error)

    def _lookup(self, node: int, body: memoryview) -> Buffer:
        name = fuse_abi.decode_name(body)
        if len(name) > NAME_BYTES_MAX:
            raise RefusedError(errno.ENAMETOOLONG)
        try:
            return fuse_abi.encode_entry(self._fs.lookup(node, name))
        except NotADirectory:
            raise
        except NotFound:
            return fuse_abi.NO_ENTRY

    def _getattr(self, node: int, _: memoryview) -> Buffer:
        return fuse_abi.encode_attributes(self._fs.getattr(node))

    def _readlink(self, node: int, _: memoryview) -> Buffer:
        return self._fs.readlink(node)

    def _open(self, node: int, _: memoryview) -> Buffer:
        if self._session.no_open:
            raise RefusedError(errno.ENOSYS)
        opened = self._fs.open(node, self._unique & ~fuse_abi.UNIQUE_RESEND)
        if opened is None:
            raise RefusedError(errno.ENOSYS)
        return fuse_abi.encode_open(_PASSTHROUGH if opened.backing else _CACHED, *opened)

    def _release(self, _node: int, body: memoryview) -> Buffer:
        (handle,) = fuse_abi.RELEASE_IN.unpack_from(body)
        self._fs.release(handle)
        return b""

    def _opendir(self, _node: int, _: memoryview) -> Buffer:
        if self._session.no_opendir:
            raise RefusedError(errno.ENOSYS)
        return fuse_abi.encode_open(fuse_abi.FOPEN_KEEP_CACHE | fuse_abi.FOPEN_CACHE_DIR)

    def _read(self, node: int, body: memoryview) -> Buffer:
        _, first, size = fuse_abi.READ_IN.unpack_from(body)
        return self._fs.read(node, first, size)

    def _statfs(self, _node: int, _: memoryview) -> Buffer:
        return fuse_abi.encode_statfs(self._fs.statfs())

    def _getxattr(self, node: int, body: memoryview) -> Buffer:
        size, _ = fuse_abi.XATTR_IN.unpack_from(body)
        value = self._fs.getxattr(node, fuse_abi.decode_name(body[fuse_abi.XATTR_IN.size :]))
        if value is None:
            raise RefusedError(errno.ENODATA)
        return _sized(value, size)

    def _listxattr(self, node: int, body: memoryview) -> Buffer:
        size, _ = fuse_abi.XATTR_IN.unpack_from(body)
        return _sized(b"".join(name + b"\0" for name in self._fs.listxattr(node)), size)

    def _readdir(self, node: int, body: memoryview) -> Buffer:
        _, cookie, size = fuse_abi.READ_IN.unpack_from(body)
        out = bytearray()
        for entry in self._fs.readdir(node, cookie):
            encoded = fuse_abi.dirent(entry.ino, entry.cookie, entry.mode, entry.name)
            if len(out) + len(encoded) > size:
                break
            out += encoded
        return out

    def _readdirplus(self, node: int, body: memoryview) -> Buffer:
        _, cookie, size = fuse_abi.READ_IN.unpack_from(body)
        attributes = self._fs.attributes
        out = bytearray()
        for after, name, ino, mode, entry in self._fs.readdir(node, cookie):
            if entry is None:
                encoded = fuse_abi.direntplus_bare(ino, after, mode, name)
            else:
                encoded = fuse_abi.direntplus(attributes(entry), after, name)
            if len(out) + len(encoded) > size:
                break
            out += encoded
        return out


def _failure(unique: int, code: int) -> Answer:
    return fuse_abi.failure(unique, code), b""


def _nothing(_node: int, _: memoryview) -> Buffer:
    return b""


def _sized(value: bytes, room_bytes: int) -> Buffer:
    """Returns an extended attribute, if the caller's buffer can hold it; without a buffer, its
    size."""
    if room_bytes == 0:
        return fuse_abi.XATTR_IN.pack(len(value), 0)
    if len(value) > room_bytes:
        raise RefusedError(errno.ERANGE)
    return value


def _what(opcode: int, node: int) -> str:
    node &= ~LARGE
    try:
        return f"{Opcode(opcode).name} of inode {node}"
    except ValueError:
        return f"request {opcode} of inode {node}"
