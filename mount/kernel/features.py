"""Features that kernels may lack, and a way to behave as if this one lacked them.

Versions are those of Linus Torvalds' tree. Vendors backport features without the version, so only
the kernel's offer at INIT counts (mount.kernel.session), and the features that are left out here.
"""

from __future__ import annotations

from enum import StrEnum

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.kernel import fuse_abi

VARIABLE = "LODEFS_FUSE_WITHOUT"  # an environment variable, read by the command line


class Feature(StrEnum):
    """The features, by the names that operators use."""

    RESEND = "resend"  # requests of a dead worker are sent again: Linux 6.9
    PASSTHROUGH = "passthrough"  # the kernel reads a file of the cache by itself: Linux 6.9
    NOTIFY_STORE = "notify_store"  # unrequested bytes are accepted: used from Linux 6.12 on
    INC_EPOCH = "inc_epoch"  # all names are looked up again: Linux 6.16
    INIT_EXT = "init_ext"  # more than 32 flags, which the others need: Linux 5.17


_FLAGS = {
    Feature.RESEND: fuse_abi.HAS_RESEND,
    Feature.PASSTHROUGH: fuse_abi.PASSTHROUGH,
    Feature.INIT_EXT: fuse_abi.INIT_EXT | fuse_abi.FLAGS2,
}
_SINCE_MINOR = {Feature.NOTIFY_STORE: fuse_abi.STORE_MINOR, Feature.INC_EPOCH: fuse_abi.EPOCH_MINOR}


def parse(text: str) -> frozenset[Feature]:
    """Parses names with commas between them. Raises: InvalidInput for an unknown one."""
    names = {name.strip() for name in text.split(",")} - {""}
    unknown = sorted(names - set(Feature))
    if unknown:
        raise InvalidInput(
            f"{unknown[0]!r} is not a feature of the kernel that can be left out; these are: "
            f"{', '.join(Feature)}"
        )
    return frozenset(map(Feature, names))


def reduced(offer: fuse_abi.InitIn, without: frozenset[Feature]) -> fuse_abi.InitIn:
    """Returns the offer of a kernel that lacks these features. A feature that came with a version
    rather than a flag is left out together with all later versions."""
    flags, minor = offer.flags, offer.minor
    for feature in without:
        flags &= ~_FLAGS.get(feature, 0)
        minor = min(minor, _SINCE_MINOR.get(feature, minor + 1) - 1)
    return offer._replace(minor=minor, flags=flags)
