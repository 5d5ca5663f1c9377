"""What kernels may lack, and how to do as if this one lacked it.

Versions are those of Linus Torvalds' tree; vendors take over features without the version, so that
only the kernel's offer at INIT counts (mount.kernel.session), and a feature that is left out here.
"""

from __future__ import annotations

from enum import StrEnum

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.kernel import fuse_abi

VARIABLE = "LODEFS_FUSE_WITHOUT"  # of the environment, read by the command line


class Feature(StrEnum):
    """By the names that operators use."""

    RESEND = "resend"  # requests of a dead worker are sent again: Linux 6.9
    PASSTHROUGH = "passthrough"  # the kernel reads a file of the cache by itself: Linux 6.9
    NOTIFY_STORE = "notify_store"  # bytes that nobody asked for are taken: used from Linux 6.12 on
    INC_EPOCH = "inc_epoch"  # all names are looked up anew: Linux 6.16
    INIT_EXT = "init_ext"  # more than 32 flags, so that the others can be had: Linux 5.17


_FLAGS = {
    Feature.RESEND: fuse_abi.HAS_RESEND,
    Feature.PASSTHROUGH: fuse_abi.PASSTHROUGH,
    Feature.INIT_EXT: fuse_abi.INIT_EXT | fuse_abi.FLAGS2,
}
_SINCE_MINOR = {Feature.NOTIFY_STORE: fuse_abi.STORE_MINOR, Feature.INC_EPOCH: fuse_abi.EPOCH_MINOR}


def parse(text: str) -> frozenset[Feature]:
    """Names, with commas between them. InvalidInput for one that is unknown."""
    names = {name.strip() for name in text.split(",")} - {""}
    unknown = sorted(names - set(Feature))
    if unknown:
        raise InvalidInput(
            f"{unknown[0]!r} is no feature of the kernel that can be left out: {', '.join(Feature)}"
        )
    return frozenset(map(Feature, names))


def reduced(offer: fuse_abi.InitIn, without: frozenset[Feature]) -> fuse_abi.InitIn:
    """The offer of a kernel that lacks these. What came by a version rather than a flag is left
    out with all later versions."""
    flags, minor = offer.flags, offer.minor
    for feature in without:
        flags &= ~_FLAGS.get(feature, 0)
        minor = min(minor, _SINCE_MINOR.get(feature, minor + 1) - 1)
    return offer._replace(minor=minor, flags=flags)
