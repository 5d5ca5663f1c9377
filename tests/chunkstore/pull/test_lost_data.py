"""Pulls of versions of which data is lost or damaged: all else is copied, and that is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.pull.pull import Incomplete, pull
from lodefs.chunkstore.pull.target import STATE_DIR
from lodefs.chunkstore.push.remote import remote_files
from lodefs.chunkstore.repo.history import find
from lodefs.chunkstore.repo.store import Store, open_store
from tests.chunkstore.pull.test_pull import FILES, Counting, check, counting_store
from tests.support.chunkstore.handmade import Files, Handmade, Program
from tests.support.chunkstore.in_place_world import InPlaceWorld


def spoil(store: Store, objects: Counting, segment: Segment) -> None:
    """Changes a bit of the first chunk of a segment."""
    key = keys.pack(segment.pack)
    data = bytearray(objects.objects[key])
    data[store.packs.index(segment.pack).offsets[segment.first]] ^= 1
    objects.objects[key] = bytes(data)


def test_all_but_what_is_lost(tmp_path: Path) -> None:
    """Files with wrong or lost chunks, and directories, are named by one error; the others come,
    and none is a half. Once the store is repaired, a pull brings only what is missing."""
    store, objects = counting_store()
    before, entries = dict(objects.objects), dict(store.packs.walk(find(store, Spec("r"))))
    wrong = entries[b"a.txt"].segments[0]
    gone = {one.pack for one in entries[b"bin/large"].segments} - {wrong.pack}
    for pack in gone:
        del objects.objects[keys.pack(pack)]
    spoil(store, objects, wrong)
    spoil(store, objects, entries[b"nothing"].segments[0])
    needs_lost = {
        path for path, one in entries.items() if gone & {each.pack for each in one.segments}
    }
    assert b"bin/large" in needs_lost
    with pytest.raises(Incomplete, match="All else was copied") as caught:
        pull(open_store(objects), Spec("r"), tmp_path / "t")
    result = caught.value.result
    assert result.lost.keys() == needs_lost | {b"a.txt", b"nothing/"}
    come = FILES.keys() - result.lost.keys() - {b"nothing/in/here"}
    left: Files = {path: FILES[path] for path in come} | {b"nothing": None, b"bin": None}
    assert result.files == sum(isinstance(one, bytes | Program) for one in left.values())
    (tmp_path / "t" / STATE_DIR).rename(tmp_path / "state")
    check(tmp_path / "t", left)
    (tmp_path / "state").rename(tmp_path / "t" / STATE_DIR)
    objects.objects = before
    again = pull(open_store(objects), Spec("r"), tmp_path / "t")
    assert again.fetched_bytes < sum(entries[path].size_bytes for path in needs_lost)
    check(tmp_path / "t", FILES)


def test_an_update_keeps_the_older_version_of_what_is_lost(tmp_path: Path) -> None:
    """The rest is updated, and a repetition completes the copy."""
    store, objects = counting_store()
    first = store.resolve("r", "main")
    pull(store, Spec("r"), tmp_path / "t")
    changed: Files = {**FILES, b"a.txt": b"other\n", b"new": b"new"}
    Handmade(store).commit("r", changed)
    before = dict(objects.objects)
    spoil(store, objects, find(open_store(objects), Spec("r", path=b"a.txt")).segments[0])
    for _ in range(2):
        with pytest.raises(Incomplete, match=r"a\.txt"):
            pull(open_store(objects), Spec("r"), tmp_path / "t", since=first)
        assert (tmp_path / "t" / "a.txt").read_bytes() == b"hello\n"
        assert (tmp_path / "t" / "new").read_bytes() == b"new"
    objects.objects = before
    pull(open_store(objects), Spec("r"), tmp_path / "t", since=first)
    check(tmp_path / "t", changed)


def test_a_lost_object_names_the_files_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were read together with it lie in other objects, and are copied."""
    world = InPlaceWorld(tmp_path)
    monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: world.remote)
    contents = {key: world.put(key) for key in ("kept", "lost", "other")}
    world.imported()
    world.source.delete("lost")
    with pytest.raises(Corrupt, match=r": lost: .*is gone") as caught:
        pull(open_store(world.objects()), Spec("r"), tmp_path / "t")
    assert "kept" not in str(caught.value).replace("kept it", "")
    assert not (tmp_path / "t" / "lost").exists()
    for key in ("kept", "other"):
        assert (tmp_path / "t" / key).read_bytes() == contents[key]
    world.source.put("lost", contents["lost"])
    result = pull(open_store(world.objects()), Spec("r"), tmp_path / "t")
    assert result.fetched_bytes == len(contents["lost"])
    check(tmp_path / "t", {key.encode(): data for key, data in contents.items()})
