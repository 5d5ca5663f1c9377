"""The builder of lying commits: what it makes is valid but for the lie."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.repo.pack_reader import read_index
from tests.adversary.hostile_repo import Claims, FileClaim, TreeClaim, lying_commit
from tests.support.chunkstore.handmade import memory_store

HONEST = {b"a": b"honest" * 30_000, b"d/b": b"more", b"d/e/c": b"deep"}


def test_a_lie_has_the_honest_digest_and_other_bytes() -> None:
    """A root that lies has the digest of the honest one, and readers who check get Corrupt."""
    store = memory_store()
    honest = store.commit("r", lying_commit(store, "r", HONEST, {}))
    claims: Claims = {b"a": FileClaim(b"hostil" * 30_000), b"d": TreeClaim({b"b": b"other"})}
    lying = store.commit("x", lying_commit(store, "x", HONEST, claims))
    assert lying.root.digest == honest.root.digest
    assert lying.root.segments != honest.root.segments
    file, directory = store.packs.read_tree(lying.root)
    with pytest.raises(Corrupt):
        b"".join(store.packs.read_file(file))
    with pytest.raises(Corrupt):
        store.packs.read_tree(directory)
    for segment in (*file.segments, *directory.segments):
        read_index(store.objects, segment.pack).index.check_run(*segment[1:])


def test_a_stretched_file_has_the_honest_size() -> None:
    """Its segments claim sizes that the pack's index does not confirm."""
    store = memory_store()
    claims: Claims = {b"a": FileClaim(b"short", stretched=True)}
    lying = store.commit("x", lying_commit(store, "x", HONEST, claims))
    file = store.packs.read_tree(lying.root)[0]
    assert file.size_bytes == len(HONEST[b"a"])
    with pytest.raises(Corrupt):
        b"".join(store.packs.read_file(file))
