"""The agreement of one connection with the kernel: the answer to INIT, and the decisions in it.

All decisions that depend on the kernel's version are made once, here.
"""

from __future__ import annotations

import msgspec

from lodefs.chunkstore.errors import Unsupported
from lodefs.mount.kernel import features, fuse_abi
from lodefs.mount.kernel.features import Feature

READ_BYTES_MAX = 1 << 20
PAGES_MAX = READ_BYTES_MAX // 4096
BACKGROUND_MAX = 128  # requests of read-ahead in flight, all files together
CONGESTION = 96
WRITE_BYTES_MAX = 4096  # nothing is ever written; this also sizes request buffers

WANTED = (
    fuse_abi.ASYNC_READ
    | fuse_abi.DO_READDIRPLUS
    | fuse_abi.NO_OPEN_SUPPORT
    | fuse_abi.PARALLEL_DIROPS
    | fuse_abi.ABORT_ERROR
    | fuse_abi.MAX_PAGES
    | fuse_abi.CACHE_SYMLINKS
    | fuse_abi.NO_OPENDIR_SUPPORT
    | fuse_abi.EXPLICIT_INVAL_DATA
    | fuse_abi.INIT_EXT
    | fuse_abi.HAS_RESEND
)


class Session(msgspec.Struct, frozen=True):
    """``no_open``: OPEN is answered with ENOSYS, and the kernel then opens files by itself.

    Passthrough must answer the very first OPEN with a handle, so a mount that may use it has
    ``no_open`` false from the beginning. ``resend``: the kernel sends the requests of a dead worker
    again. ``epochs``: the kernel can be told to look every name up again. ``stores``: the kernel
    accepts bytes that it did not ask for. Kernels before 6.12 may lack the change of August 2024,
    without which the page at a file's end shows earlier content of memory. ``passthrough``: an
    answer to OPEN may name a file that the kernel reads by itself; ``objection``: why not.
    """

    minor: int
    no_open: bool
    no_opendir: bool
    resend: bool
    epochs: bool
    stores: bool = False
    passthrough: bool = False
    objection: str = ""


def negotiate(
    offer: fuse_abi.InitIn, *, passthrough: bool = False, without: frozenset[Feature] = frozenset()
) -> tuple[fuse_abi.InitOut, Session]:
    """Returns the answer to INIT. Raises: Unsupported for a kernel older than Linux 5.4.

    ``passthrough``: whether this mount may use it. ``without``: features not to use.
    """
    if offer.major != fuse_abi.VERSION_MAJOR or offer.minor < fuse_abi.VERSION_MINOR_MIN:
        raise Unsupported(
            f"the kernel speaks FUSE {offer.major}.{offer.minor}; lodefs needs "
            f"{fuse_abi.VERSION_MAJOR}.{fuse_abi.VERSION_MINOR_MIN} (Linux 5.4) or newer"
        )
    offer = features.reduced(offer, without)
    flags = offer.flags & (WANTED | fuse_abi.PASSTHROUGH if passthrough else WANTED)
    minor = min(offer.minor, fuse_abi.VERSION_MINOR)
    out = fuse_abi.InitOut(
        minor=minor,
        max_readahead=offer.max_readahead,
        flags=flags,
        max_background=BACKGROUND_MAX,
        congestion_threshold=CONGESTION,
        max_write=WRITE_BYTES_MAX,
        max_pages=PAGES_MAX,
        max_stack_depth=1
        if flags & fuse_abi.PASSTHROUGH
        else 0,  # the cache must not be a stacked file system
    )
    session = Session(
        minor=minor,
        no_open=flags & (fuse_abi.NO_OPEN_SUPPORT | fuse_abi.PASSTHROUGH)
        == fuse_abi.NO_OPEN_SUPPORT,
        no_opendir=bool(flags & fuse_abi.NO_OPENDIR_SUPPORT),
        resend=bool(flags & fuse_abi.HAS_RESEND),
        epochs=offer.minor >= fuse_abi.EPOCH_MINOR,
        stores=bool(flags & fuse_abi.HAS_RESEND) and offer.minor >= fuse_abi.STORE_MINOR,
        passthrough=bool(flags & fuse_abi.PASSTHROUGH),
    )
    return out, session
