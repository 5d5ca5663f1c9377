"""What is agreed on with kernels of different age."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import Unsupported
from lodefs.mount.kernel import fuse_abi
from lodefs.mount.kernel.session import READ_BYTES_MAX, negotiate

ALL = (1 << 63) - 1


def test_new_kernel() -> None:
    """Everything that is of use is taken, and nothing else."""
    out, session = negotiate(fuse_abi.InitIn(7, 45, 131072, ALL))
    assert session.no_open
    assert session.no_opendir
    assert session.resend
    assert session.epochs
    assert out.minor == fuse_abi.VERSION_MINOR
    assert out.max_pages * 4096 == READ_BYTES_MAX
    assert out.flags & fuse_abi.CACHE_SYMLINKS
    assert out.flags & fuse_abi.PARALLEL_DIROPS
    assert not out.flags & fuse_abi.PASSTHROUGH


def test_linux_6_1() -> None:
    """A kernel without RESEND gets none, and its own version is kept to."""
    out, session = negotiate(fuse_abi.InitIn(7, 37, 131072, (1 << 31) - 1))
    assert not session.resend
    assert not session.epochs
    assert session.no_open
    assert out.minor == 37
    assert out.flags < 1 << 32


def test_passthrough_where_it_is_wanted_and_offered() -> None:
    """With it files are opened by us from the beginning; without it nothing is different."""
    out, session = negotiate(fuse_abi.InitIn(7, 45, 131072, ALL), passthrough=True)
    assert out.flags & fuse_abi.PASSTHROUGH
    assert out.max_stack_depth == 1
    assert (session.passthrough, session.no_open) == (True, False)
    old = fuse_abi.InitIn(7, 39, 131072, ALL & ~fuse_abi.PASSTHROUGH)
    assert negotiate(old, passthrough=True) == negotiate(old)
    out, session = negotiate(old)
    assert (out.max_stack_depth, session.passthrough, session.no_open) == (0, False, True)


def test_listings_always_bring_attributes() -> None:
    """The kernel asks for names with attributes, whoever lists: what it knows by name is opened
    without a question, and can be stored ahead."""
    out, _ = negotiate(fuse_abi.InitIn(7, 45, 131072, ALL))
    readdirplus_auto = 1 << 14  # linux/fuse.h: only for programs that ask for attributes
    assert out.flags & fuse_abi.DO_READDIRPLUS
    assert not out.flags & readdirplus_auto


def test_storing_ahead_needs_a_kernel_that_clears_what_lies_behind_a_file() -> None:
    """Linux 6.12 and newer; and one that sends the requests of the dead again."""
    for minor, flags, expected in (
        (41, ALL, True),
        (40, ALL, False),
        (41, ALL & ~fuse_abi.HAS_RESEND, False),
    ):
        _, session = negotiate(fuse_abi.InitIn(7, minor, 131072, flags))
        assert session.stores == expected


def test_no_open_only_where_offered() -> None:
    """A kernel that cannot open files by itself is answered properly."""
    _, session = negotiate(fuse_abi.InitIn(7, 31, 131072, fuse_abi.MAX_PAGES))
    assert not session.no_open
    assert not session.no_opendir


@pytest.mark.parametrize(("major", "minor"), [(7, 30), (6, 40), (8, 0)])
def test_unknown_protocol_is_refused(major: int, minor: int) -> None:
    """A kernel that is too old, or speaks another protocol, is refused with its version named."""
    with pytest.raises(Unsupported, match=rf"{major}\.{minor}"):
        negotiate(fuse_abi.InitIn(major, minor, 0, 0))
