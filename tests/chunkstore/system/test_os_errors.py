"""What errnos of a local file system mean."""

from __future__ import annotations

import errno

import pytest

from lodefs.chunkstore.errors import Denied, LodefsError, NoSpace, Unavailable
from lodefs.chunkstore.system.os_errors import kind_of


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EFBIG, NoSpace),
        (errno.EACCES, Denied),
        (errno.EPERM, Denied),
        (errno.EROFS, Denied),
        (errno.EIO, Unavailable),
        (None, Unavailable),
    ],
)
def test_kinds(code: int | None, kind: type[LodefsError]) -> None:
    """Full, forbidden, and what may be tried again are told apart."""
    assert kind_of(OSError(code, "it failed") if code else OSError("it failed")) is kind
