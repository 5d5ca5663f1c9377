"""The bytes of the FUSE kernel protocol (linux/fuse.h, version 7.x): layouts and numbers.

No input or output, no decisions. Integers are in the machine's own byte order, as the kernel writes
them.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from lodefs.chunkstore.types import Buffer

VERSION_MAJOR = 7
VERSION_MINOR = 44  # the newest version that this file follows; the older of both sides counts
VERSION_MINOR_MIN = 31  # Linux 5.4
UNIQUE_RESEND = 1 << 63  # in a unique: the request was sent before (FUSE_UNIQUE_RESEND)
INTERRUPT_BIT = 1  # in a unique: an interrupt of the request without this bit
FOREVER_S = 1 << 32  # validity of entries and attributes; the kernel clamps it

# flags of INIT; those of 32 and more travel in flags2
ASYNC_READ = 1 << 0
DO_READDIRPLUS = 1 << 13
NO_OPEN_SUPPORT = 1 << 17
PARALLEL_DIROPS = 1 << 18
ABORT_ERROR = 1 << 21
MAX_PAGES = 1 << 22
CACHE_SYMLINKS = 1 << 23
NO_OPENDIR_SUPPORT = 1 << 24
EXPLICIT_INVAL_DATA = 1 << 25
INIT_EXT = 1 << 30
PASSTHROUGH = 1 << 37
HAS_RESEND = 1 << 39
FLAGS2 = 0xFFFFFFFF << 32  # all of these

# flags of an answer to OPEN and OPENDIR
FOPEN_KEEP_CACHE = 1 << 1
FOPEN_CACHE_DIR = 1 << 3
FOPEN_NOFLUSH = 1 << 5
FOPEN_PASSTHROUGH = 1 << 7

# notifications: an answer with unique 0, and the code instead of the error
NOTIFY_STORE = 4
NOTIFY_RESEND = 7  # since 7.40, Linux 6.9
NOTIFY_INC_EPOCH = 8  # since 7.44, Linux 6.16
EPOCH_MINOR = 44
STORE_MINOR = 41  # Linux 6.12

# ioctls of the device
IOC_CLONE = 0x8004E500
IOC_BACKING_OPEN = 0x4010E501
IOC_BACKING_CLOSE = 0x4004E502


class Opcode(IntEnum):
    """enum fuse_opcode."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    TMPFILE = 51
    STATX = 52


UNANSWERED = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT})

IN_HEADER = struct.Struct("=IIQQIIIHH")  # len opcode unique nodeid uid gid pid extlen padding
IN_HEADER_FRONT = struct.Struct("=IIQQ")  # len opcode unique nodeid: what each request needs
IN_HEADER_PID, IN_HEADER_PID_OFFSET = struct.Struct("=I"), 32
OUT_HEADER = struct.Struct("=IiQ")  # len error unique
INIT_IN = struct.Struct("=IIII")  # major minor max_readahead flags; then flags2, 11 unused
INIT_IN_FLAGS2 = struct.Struct("=I")
INIT_OUT = struct.Struct("=IIIIHHIIHHIIH22x")
ATTR = struct.Struct("=6Q10I")
ENTRY_OUT = struct.Struct("=QQQQII6Q10I")
ATTR_OUT = struct.Struct("=QII6Q10I")
OPEN_OUT = struct.Struct("=QIi")  # fh open_flags backing_id
RELEASE_IN = struct.Struct("=Q")  # fh; the rest does not matter to readers
BACKING_MAP = struct.Struct("=iIQ")  # fd flags padding
READ_IN = struct.Struct("=QQI")  # fh offset size; the rest does not matter to readers
XATTR_IN = struct.Struct("=II")  # size padding
INTERRUPT_IN = struct.Struct("=Q")  # unique of the request
STATFS_OUT = struct.Struct("=5Q4I24x")
STORE_OUT = struct.Struct("=QQII")  # nodeid offset size padding
DIRENT = struct.Struct("=QQII")  # ino off namelen type
_DIRENTPLUS = struct.Struct("=QQQQII6Q10IQQII")

IN_HEADER_BYTES = IN_HEADER.size
OUT_HEADER_BYTES = OUT_HEADER.size
REQUEST_BYTES_MIN = 8192  # FUSE_MIN_READ_BUFFER: the device refuses smaller reads


class Attributes(NamedTuple):
    """The fields of struct fuse_attr that a file system without changes needs."""

    node: int  # the number by which the kernel's requests name it
    ino: int  # the number that stat shows
    size_bytes: int
    blocks: int  # of 512 bytes
    time_s: int  # of access, change and modification
    mode: int  # kind and permissions
    nlink: int
    uid: int
    gid: int
    block_bytes: int  # st_blksize


class Statistics(NamedTuple):
    """The fields of struct fuse_kstatfs for a full file system."""

    blocks: int
    files: int
    block_bytes: int
    name_bytes_max: int


class InitIn(NamedTuple):
    """The kernel's offer. ``flags`` holds flags2 in its upper half."""

    major: int
    minor: int
    max_readahead: int
    flags: int


class InitOut(NamedTuple):
    """The accepted part of the offer. ``flags`` holds flags2 in its upper half."""

    minor: int
    max_readahead: int
    flags: int
    max_background: int
    congestion_threshold: int
    max_write: int
    max_pages: int
    max_stack_depth: int


def decode_init(body: Buffer) -> InitIn:
    """struct fuse_init_in of any version; flags2 counts only with INIT_EXT."""
    major, minor, max_readahead, flags = INIT_IN.unpack_from(body)
    if flags & INIT_EXT and len(body) >= INIT_IN.size + INIT_IN_FLAGS2.size:
        flags |= INIT_IN_FLAGS2.unpack_from(body, INIT_IN.size)[0] << 32
    return InitIn(major, minor, max_readahead, flags)


def encode_init(out: InitOut) -> bytes:
    """struct fuse_init_out, 64 bytes."""
    return INIT_OUT.pack(
        VERSION_MAJOR,
        out.minor,
        out.max_readahead,
        out.flags & 0xFFFFFFFF,
        out.max_background,
        out.congestion_threshold,
        out.max_write,
        1,  # time_gran, ns
        out.max_pages,
        0,  # map_alignment
        out.flags >> 32,
        out.max_stack_depth,
        0,  # request_timeout: the worker enforces deadlines
    )


def encode_entry(a: Attributes) -> bytes:
    """struct fuse_entry_out: an entry and its attributes, valid forever. 128 bytes."""
    node, ino, size, blocks, time_s, mode, nlink, uid, gid, block = a
    return ENTRY_OUT.pack(
        node, 0, FOREVER_S, FOREVER_S, 0, 0,
        ino, size, blocks, time_s, time_s, time_s, 0, 0, 0, mode, nlink, uid, gid, 0, block, 0,
    )  # fmt: skip


NO_ENTRY = ENTRY_OUT.pack(0, 0, FOREVER_S, *[0] * 19)  # "there is no such name", valid forever


def encode_attributes(a: Attributes) -> bytes:
    """struct fuse_attr_out, valid forever. 104 bytes."""
    _, ino, size, blocks, time_s, mode, nlink, uid, gid, block = a
    return ATTR_OUT.pack(
        FOREVER_S, 0, 0,
        ino, size, blocks, time_s, time_s, time_s, 0, 0, 0, mode, nlink, uid, gid, 0, block, 0,
    )  # fmt: skip


def encode_statfs(s: Statistics) -> bytes:
    """struct fuse_statfs_out, with nothing free. 80 bytes."""
    return STATFS_OUT.pack(
        s.blocks, 0, 0, s.files, 0, s.block_bytes, s.name_bytes_max, s.block_bytes, 0
    )


def encode_open(flags: int, handle: int = 0, backing: int = 0) -> bytes:
    """struct fuse_open_out. 16 bytes."""
    return OPEN_OUT.pack(handle, flags, backing)


def dirent(ino: int, cookie: int, mode: int, name: bytes) -> bytes:
    """struct fuse_dirent, padded to 8 bytes. ``cookie``: the position after it."""
    size = len(name)
    return b"%b%b%b" % (
        DIRENT.pack(ino, cookie, size, mode >> 12),
        name,
        bytes(-size & 7),
    )


def direntplus(a: Attributes, cookie: int, name: bytes) -> bytes:
    """struct fuse_direntplus, padded to 8 bytes: an entry with its attributes, valid forever."""
    node, ino, size, blocks, time_s, mode, nlink, uid, gid, block = a
    length = len(name)
    return b"%b%b%b" % (
        _DIRENTPLUS.pack(
            node, 0, FOREVER_S, FOREVER_S, 0, 0,
            ino, size, blocks, time_s, time_s, time_s, 0, 0, 0, mode, nlink, uid, gid, 0, block, 0,
            ino, cookie, length, mode >> 12,
        ),
        name,
        bytes(-length & 7),
    )  # fmt: skip


def direntplus_bare(ino: int, cookie: int, mode: int, name: bytes) -> bytes:
    """Returns a direntplus for '.' and '..': its node is 0, so that the kernel takes no
    reference."""
    return bytes(ENTRY_OUT.size) + dirent(ino, cookie, mode, name)


def decode_name(body: Buffer) -> bytes:
    """Returns a name that ends with NUL, the body of LOOKUP."""
    return bytes(body).partition(b"\0")[0]


def decode_interrupt(body: Buffer) -> int:
    """struct fuse_interrupt_in: the unique number of the interrupted request."""
    unique: int = INTERRUPT_IN.unpack_from(body)[0]
    return unique


def failure(unique: int, code: int) -> bytes:
    """Returns the answer to a request that failed with an errno."""
    return OUT_HEADER.pack(OUT_HEADER_BYTES, -code, unique)


def notification(code: int, body_bytes: int = 0) -> bytes:
    """Returns the header of a message to the kernel that is no answer; a body of this many bytes
    follows."""
    return OUT_HEADER.pack(OUT_HEADER_BYTES + body_bytes, code, 0)


def store(node: int, first: int, size_bytes: int) -> bytes:
    """Returns the header and struct fuse_notify_store_out before ``size_bytes`` of a file that the
    kernel is to keep. 40 bytes."""
    header = notification(NOTIFY_STORE, STORE_OUT.size + size_bytes)
    return header + STORE_OUT.pack(node, first, size_bytes, 0)
