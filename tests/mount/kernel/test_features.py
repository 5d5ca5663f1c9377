"""What kernels lack, and doing as if this one lacked it."""

from __future__ import annotations

import msgspec
import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.kernel import features, fuse_abi
from lodefs.mount.kernel.features import Feature
from lodefs.mount.kernel.session import negotiate
from tests.support.mount.kernels import DISTINCT, KERNELS, OLD

NEWEST = fuse_abi.InitIn(7, 45, 131072, (1 << 63) - 1)


def test_names() -> None:
    """Names are separated by commas; blanks and emptiness mean nothing."""
    assert features.parse("") == frozenset()
    assert features.parse("resend, passthrough,,") == {Feature.RESEND, Feature.PASSTHROUGH}


def test_unknown_names_are_refused() -> None:
    """A name that is unknown is named, and so are all that there are."""
    with pytest.raises(InvalidInput, match=r"'resent'.*resend, passthrough, notify_store"):
        features.parse("resend,resent")


@pytest.mark.parametrize("feature", Feature)
def test_nothing_else_is_left_out(feature: Feature) -> None:
    """Without a feature a mount lacks that one, and those alone that need it or came later."""
    _, all_of_it = negotiate(NEWEST, passthrough=True)
    _, session = negotiate(NEWEST, passthrough=True, without=frozenset({feature}))
    lost = {
        name
        for name in ("resend", "passthrough", "stores", "epochs")
        if getattr(all_of_it, name) and not getattr(session, name)
    }
    assert (
        lost
        == {
            Feature.RESEND: {"resend", "stores"},
            Feature.PASSTHROUGH: {"passthrough"},
            Feature.NOTIFY_STORE: {"stores", "epochs"},
            Feature.INC_EPOCH: {"epochs"},
            Feature.INIT_EXT: {"resend", "passthrough", "stores"},
        }[feature]
    )
    assert session.no_opendir


@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize("passthrough", [False, True])
def test_a_kernel_is_what_it_lacks(name: str, passthrough: bool) -> None:
    """With what an older kernel lacks left out, a newer one agrees on the same as the older."""
    kernel = KERNELS[name]
    old, old_session = negotiate(
        fuse_abi.InitIn(7, kernel.minor, 131072, kernel.flags), passthrough=passthrough
    )
    new, new_session = negotiate(NEWEST, passthrough=passthrough, without=kernel.without)
    assert (old.flags, old.max_stack_depth) == (new.flags, new.max_stack_depth)
    assert msgspec.structs.replace(old_session, minor=0) == msgspec.structs.replace(
        new_session, minor=0
    )


def test_real_mounts_are_made_of_each_kind() -> None:
    """Each kernel lacks the same as one of those that mounts are tested with."""
    assert {KERNELS[name].without for name in OLD} == {KERNELS[name].without for name in DISTINCT}
