"""Pulls of versions of which bytes were purged: refused by name, or without such files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput, Purged
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.pack import PURGED
from lodefs.chunkstore.pull.pull import pull
from lodefs.chunkstore.pull.single_file import pull_file
from lodefs.chunkstore.pull.target import STATE_DIR
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.transfer.pack_copy import fetch_pack, put_pack, without_purged
from tests.chunkstore.pull.test_pull import check
from tests.support.chunkstore.handmade import Files, Handmade, memory_store

ADA = "people/ä.jpg"
LEFT: Files = {b"a": b"a" * 5000, b"people/b": b"b" * 2500, b"z": b""}
FILES: Files = {**LEFT, ADA.encode(): b"".join(b"%d" % n * 1000 for n in range(1, 10))}
OLDER: Files = {**LEFT, ADA.encode(): b"older"}
SPEC = Spec("v/t", "main", b"")


@pytest.fixture
def store() -> Store:
    """``v1`` has another ADA; of what main has, a chunk in the middle is purged."""
    store = memory_store()
    made = Handmade(store)
    made.commit("v/t", OLDER, branch="v1")
    made.commit("v/t", FILES)
    name = ADA.encode()
    pack_id, first, _, _ = made.entry(name, FILES[name]).segments[-1]  # type: ignore[arg-type]
    index, payload = fetch_pack(store.objects, pack_id)
    gone = frozenset([index.chunk_id(first)])
    store.objects.delete(keys.pack(pack_id))
    put_pack(store.objects, *without_purged(index, payload, gone))
    assert PURGED in fetch_pack(store.objects, pack_id)[0].codecs
    return store


def test_the_file_the_version_and_the_way_out_are_named(store: Store, tmp_path: Path) -> None:
    """A pull ends with the path as people read it, the version, and the option that goes on; of
    the single file there is none to go on with."""
    with pytest.raises(
        Purged, match=rf"^v/t(@main)? \(\w{{12}}\): {ADA} was .* pull --skip-purged$"
    ):
        pull(store, SPEC, tmp_path / "d")
    with pytest.raises(Purged, match=f":{ADA} .* was purged") as error:
        pull_file(store, Spec("v/t", "main", ADA.encode()), tmp_path / "one")
    assert "--skip-purged" not in str(error.value)


@pytest.mark.parametrize("was_tried", [True, False])
def test_the_rest_comes_without_it(store: Store, tmp_path: Path, *, was_tried: bool) -> None:
    """``skip_purged`` brings all other files and names this one, also where a pull has ended
    because of it, and again where all has come; then the directory is finished."""
    target = tmp_path / "d"
    if was_tried:
        with pytest.raises(Purged):
            pull(store, SPEC, target)
        assert (target / STATE_DIR).is_dir()
    for is_first in (True, False):
        done = pull(store, SPEC, target, skip_purged=True)
        assert (done.purged, done.files, done.unchanged) == ([ADA.encode()], 3, not is_first)
        assert done.size_bytes == 7500
        check(target, LEFT)
    with pytest.raises(InvalidInput, match=f"{ADA} is missing .* were purged: --skip-purged"):
        pull(store, SPEC, target)
    (target / "a").unlink()
    with pytest.raises(InvalidInput, match=r"a is missing\. Nothing"):
        pull(store, SPEC, target, skip_purged=True)


def test_an_update_leaves_no_older_version_in_its_place(store: Store, tmp_path: Path) -> None:
    """A copy that is brought to a version of which a file was purged does not keep an older one
    under its name; brought back it has that again."""
    target = tmp_path / "d"
    pull(store, Spec("v/t", "v1", b""), target)
    done = pull(store, SPEC, target, skip_purged=True)
    assert (done.purged, done.files) == ([ADA.encode()], 0)
    check(target, LEFT)
    pull(store, Spec("v/t", "v1", b""), target, skip_purged=True)
    check(target, OLDER)
