"""Labels of nodes by pins."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import check_repo
from lodefs.chunkstore.protocol.cache_control import PinView
from lodefs.kubernetes import PREFIX, changes, label_key, labels

# k8s.io/apimachinery: validation of qualified names
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")


def pin(repo: str, commit: str, until_s: int = 10, *, is_complete: bool = True) -> PinView:
    return PinView(
        id=f"{repo}-{commit}",
        repo=repo,
        commit=commit * 64,
        path="",
        what="",
        pinned_until_s=until_s,
        size_bytes=1,
        cache_files=1,
        is_complete=is_complete,
    )


@given(st.text("ab/._-", min_size=1, max_size=120))
def test_every_repository_has_a_valid_key(repo: str) -> None:
    """Whatever a repository is called, its label is one that Kubernetes takes."""
    try:
        check_repo(repo)
    except InvalidInput:
        return
    key = label_key(repo)
    assert key.startswith(PREFIX)
    assert NAME.match(key.removeprefix(PREFIX))


def test_long_names_stay_apart() -> None:
    """Two repositories that differ only past what fits have two labels."""
    long = "team/" + "x" * 80
    assert label_key(long + "a") != label_key(long + "b")


def test_the_longest_pin_counts() -> None:
    """Of two commits the label names the one that stays for longer; what is not complete, none."""
    found = labels([pin("a/b", "1", 50), pin("a/b", "2", 20), pin("c", "3", is_complete=False)])
    assert found == {f"{PREFIX}a.b": "1" * 12}


def test_only_own_labels_change() -> None:
    """A patch sets what is new, removes what is not pinned any more, and leaves other labels."""
    present = {f"{PREFIX}a": "1", f"{PREFIX}b": "1", "kubernetes.io/os": "linux"}
    wanted = {f"{PREFIX}a": "1", f"{PREFIX}c": "2"}
    assert changes(present, wanted) == {f"{PREFIX}b": None, f"{PREFIX}c": "2"}
    assert changes(wanted, wanted) == {}
