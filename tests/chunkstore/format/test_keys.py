"""Keys of a store."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CommitId, PackId

PACK = PackId(bytes(range(32)))


def test_layout() -> None:
    """Objects lie where docs/format.md says."""
    name = PACK.hex()
    assert keys.STORE == "store.json"
    assert keys.pack(PACK) == f"packs/00/{name}"
    assert keys.shard("abc") == "index/abc"
    assert keys.commit("a/b", CommitId(PACK)) == f"repos/a/b/commits/{name}"
    assert keys.ref_entry("a/b", "tags", "v1", 0) == "repos/a/b/refs/tags/v1/9999999999"
    assert keys.ref_entry("a/b", "tags", "v1", 12) == "repos/a/b/refs/tags/v1/9999999987"
    assert keys.probe("x") == "probe/x"


@given(st.integers(0, keys.SEQUENCE_MAX - 1))
def test_the_newest_sorts_first(sequence: int) -> None:
    """A later entry of a ref has the smaller key, of the characters that every store takes."""
    older = keys.ref_entry("repo", "branches", "main", sequence)
    newer = keys.ref_entry("repo", "branches", "main", sequence + 1)
    assert newer < older
    assert len(newer) == len(older)
    assert re.fullmatch(r"[A-Za-z0-9/._-]+", newer)
