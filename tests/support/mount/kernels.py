"""What the kernels of distributions that users have offer to a mount, for tests on a newer one.

Tests leave out what they lack (mount.kernel.features). What is left is the same for some of them,
which ``tests/mount/kernel/test_features.py`` proves, so that real mounts are made for one of each.
"""

from __future__ import annotations

from typing import NamedTuple

from lodefs.mount.kernel import fuse_abi
from lodefs.mount.kernel.features import Feature

_NEW = frozenset({Feature.RESEND, Feature.PASSTHROUGH, Feature.NOTIFY_STORE, Feature.INC_EPOCH})
_FLAGS_5_14 = (1 << 30) - 1  # up to SETXATTR_EXT
_FLAGS_6_1 = _FLAGS_5_14 | fuse_abi.INIT_EXT | 0x3 << 32  # and SECURITY_CTX, HAS_INODE_DAX
_FLAGS_6_8 = _FLAGS_6_1 | 0x1F << 32  # and up to DIRECT_IO_ALLOW_MMAP


class Kernel(NamedTuple):
    """``without``: what it lacks. ``minor`` and ``flags``: of its FUSE_INIT, as that of Linus
    Torvalds' tree with this version says."""

    without: frozenset[Feature]
    minor: int = 0
    flags: int = 0


THIS_ONE = Kernel(frozenset())
KERNELS = {
    "this one": THIS_ONE,
    "rhel9-5.14": Kernel(_NEW | {Feature.INIT_EXT}, 34, _FLAGS_5_14),
    "ubuntu-5.15": Kernel(_NEW | {Feature.INIT_EXT}, 34, _FLAGS_5_14),
    "debian12-6.1": Kernel(_NEW, 37, _FLAGS_6_1),
    "ubuntu-6.8": Kernel(_NEW, 39, _FLAGS_6_8),
}
OLD = [name for name, kernel in KERNELS.items() if kernel.minor]
DISTINCT = ["rhel9-5.14", "debian12-6.1"]
