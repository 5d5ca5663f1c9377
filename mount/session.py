"""What one connection with the kernel agreed on: the answer to INIT, and the decisions it carries.

All decisions that depend on the kernel's version are made here, once.
"""

from __future__ import annotations

import msgspec

from chunkstore.errors import Unsupported
from mount import abi

READ_BYTES_MAX = 1 << 20
PAGES_MAX = READ_BYTES_MAX // 4096
BACKGROUND_MAX = 128  # requests of read-ahead in flight, all files together
CONGESTION = 96
WRITE_BYTES_MAX = 4096  # nothing is ever written; it also sizes the buffers of requests

WANTED = (
    abi.ASYNC_READ
    | abi.DO_READDIRPLUS
    | abi.NO_OPEN_SUPPORT
    | abi.PARALLEL_DIROPS
    | abi.ABORT_ERROR
    | abi.MAX_PAGES
    | abi.CACHE_SYMLINKS
    | abi.NO_OPENDIR_SUPPORT
    | abi.EXPLICIT_INVAL_DATA
    | abi.INIT_EXT
    | abi.HAS_RESEND
)


class Session(msgspec.Struct, frozen=True):
    """``no_open``: OPEN is answered with ENOSYS, and the kernel opens files by itself from then on.

    Passthrough has to answer the very first OPEN with a handle, so that a mount which is to
    use it must have ``no_open`` false from the beginning. ``resend``: the kernel sends the
    requests of a dead worker again. ``epochs``: it can be told to look every name up anew.
    ``stores``: it may be given bytes that it did not ask for. Kernels before 6.12 may lack the
    change of August 2024 without which the page at a file's end shows what was in memory before.
    ``passthrough``: an answer to OPEN may name a file that the kernel reads by itself;
    ``objection``: why not.
    """

    minor: int
    no_open: bool
    no_opendir: bool
    resend: bool
    epochs: bool
    stores: bool = False
    passthrough: bool = False
    objection: str = ""


def negotiate(offer: abi.InitIn, *, passthrough: bool = False) -> tuple[abi.InitOut, Session]:
    """The answer to INIT. Unsupported for a kernel older than Linux 5.4.

    ``passthrough``: whether this mount may use it.
    """
    if offer.major != abi.VERSION_MAJOR or offer.minor < abi.VERSION_MINOR_MIN:
        raise Unsupported(
            f"the kernel speaks FUSE {offer.major}.{offer.minor}; lodefs needs "
            f"{abi.VERSION_MAJOR}.{abi.VERSION_MINOR_MIN} (Linux 5.4) or newer"
        )
    flags = offer.flags & (WANTED | abi.PASSTHROUGH if passthrough else WANTED)
    minor = min(offer.minor, abi.VERSION_MINOR)
    out = abi.InitOut(
        minor=minor,
        max_readahead=offer.max_readahead,
        flags=flags,
        max_background=BACKGROUND_MAX,
        congestion_threshold=CONGESTION,
        max_write=WRITE_BYTES_MAX,
        max_pages=PAGES_MAX,
        max_stack_depth=1 if flags & abi.PASSTHROUGH else 0,  # the cache must not be stacked itself
    )
    session = Session(
        minor=minor,
        no_open=flags & (abi.NO_OPEN_SUPPORT | abi.PASSTHROUGH) == abi.NO_OPEN_SUPPORT,
        no_opendir=bool(flags & abi.NO_OPENDIR_SUPPORT),
        resend=bool(flags & abi.HAS_RESEND),
        epochs=offer.minor >= abi.EPOCH_MINOR,
        stores=bool(flags & abi.HAS_RESEND) and offer.minor >= abi.STORE_MINOR,
        passthrough=bool(flags & abi.PASSTHROUGH),
    )
    return out, session
