"""The bytes of every format, pinned: what was written once stays readable, and is written again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO

import pytest
from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, LodefsError, Purged, UnknownFormat
from lodefs.chunkstore.format import push_plan, repo_settings
from lodefs.chunkstore.format.bundle import COMMIT, PACK
from lodefs.chunkstore.format.commit import decode_commit
from lodefs.chunkstore.format.composite import (
    CompositeName,
    PurgeScanState,
    decode_looked,
    decode_table,
    decode_tail,
)
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.hook_list import decode_hook_list
from lodefs.chunkstore.format.index_shard import (
    decode_hooks,
    decode_shard,
    hooks_of,
    hooks_size_bytes,
)
from lodefs.chunkstore.format.journal import (
    DeletionOutcome,
    decode_beat,
    decode_end,
    decode_entry,
    decode_ledger,
    decode_outcome,
)
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import TRAILER_SIZE_BYTES, PackIndex, unpack
from lodefs.chunkstore.format.tree import decode_tree
from lodefs.chunkstore.format.virtual_pack import OWN, Piece, VirtualPack
from lodefs.chunkstore.journal.purges import decode_purge
from lodefs.chunkstore.journal.removed_shards import decode_removed_shards
from lodefs.chunkstore.repair.scrub import decode_scrub_ledger
from lodefs.chunkstore.repo.store import decode_settings
from lodefs.chunkstore.transfer.bundle_file import BundleReader
from tests.support.chunkstore import golden

EXAMPLES = golden.examples()


def read(name: str) -> bytes:
    return (golden.GOLDEN / name).read_bytes()


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"cuts"}))
def test_writes_the_same_bytes(name: str) -> None:
    """Encoding the example gives the golden file. If not: a new format version is needed."""
    assert EXAMPLES[name] == read(name)


def test_cuts_are_pinned() -> None:
    """FastCDC cuts where it always did. If not, the fastcdc package changed its cuts: stay with
    the version before it, or every file that is pushed again is stored again."""
    assert EXAMPLES["cuts"] == read("cuts"), "the fastcdc package cuts differently than before"


def test_no_example_is_missing() -> None:
    """Every golden file has its example, and the other way round."""
    assert {path.name for path in golden.GOLDEN.iterdir()} >= set(EXAMPLES)


def test_reads_a_golden_pack() -> None:
    """Index and chunks come out of the golden pack."""
    data = read("pack")
    index = PackIndex.decode(golden.pack().pack_id, data)
    places = index.places(0, len(index))
    stored = [data[place.offset : place.offset + place.stored_size_bytes] for place in places]
    raws = [unpack(place, part) for place, part in zip(places, stored, strict=True)]
    assert raws == list(golden.PACK_CHUNKS)


def test_reads_a_golden_virtual_pack() -> None:
    """Objects, runs and pieces come out of the golden virtual pack, whose id is that of the
    ordinary one."""
    found = VirtualPack.decode(golden.pack().pack_id, read("pack-virtual"))
    made = golden.virtual_pack()
    assert (found.objects, found.runs) == (made.objects, made.runs)
    own = Piece(len(golden.TEXT_FRAME), OWN, 0)
    assert found.pieces == [own, Piece(256, 1, 0)]
    with pytest.raises(Purged):
        found.index.check_there(0, 1)


def test_reads_a_golden_pack_without_some_chunks() -> None:
    """What is left of a pack comes out of the golden one, whose id is that of the whole pack; the
    others are named as dropped and purged."""
    data, whole = read("pack-2"), golden.pack()
    index = PackIndex.decode(whole.pack_id, data)
    assert index.live_runs(0, 3) == [(1, 1)]
    assert unpack(index.place(1), data[: index.offsets[2]]) == golden.PACK_CHUNKS[1]
    with pytest.raises(Corrupt, match="gc"):
        index.check_there(0, 2)
    with pytest.raises(Purged, match="purged"):
        index.check_there(1, 2)
    with pytest.raises(Corrupt, match="codec"):
        unpack(index.place(0), b"")


def test_a_pack_of_version_1_has_all_of_its_chunks() -> None:
    """The codecs of chunks that are gone are damage in a pack of version 1."""
    data = bytearray(read("pack-2"))
    at = len(data) - TRAILER_SIZE_BYTES + 8
    data[at] = 1
    begin = golden.thin_pack().index(golden.pack().index.ids)
    data[-32:] = blake3(data[begin:-32]).digest()
    with pytest.raises(Corrupt, match="codec"):
        PackIndex.decode(golden.pack().pack_id, data)


def test_reads_a_golden_shard() -> None:
    """The golden shards list the chunks of the golden pack, and the newer one its hooks."""
    index = golden.pack().index
    for name in ("shard", "shard-2"):
        assert decode_shard(read(name)) == [(index.pack_id, index.ids, index.raw_sizes)]
    assert hooks_size_bytes(read("shard")) is None
    data = read("shard-2")
    assert decode_hooks(data[: hooks_size_bytes(data)]) == [hooks_of(index)]
    assert decode_hook_list(read("hook-list"), "x") == [("00f1", [hooks_of(index)]), ("00f2", [])]


def test_reads_a_golden_bundle() -> None:
    """Head, pack and commit come out of the golden bundle; one of a later version is told."""
    data = read("bundle")
    reader = BundleReader(BytesIO(data), "it")
    assert reader.head == golden.bundle_head()
    pack_record, commit_record = reader.records()
    assert pack_record == (PACK, golden.pack().pack_id + read("pack"))
    assert commit_record == (COMMIT, read("commit"))
    with pytest.raises(UnknownFormat, match="a newer lodefs"):
        BundleReader(BytesIO(data[:8] + b"\2" + data[9:]), "it")


def test_reads_golden_documents() -> None:
    """Tree, commit, ref and store.json say what their examples say."""
    assert decode_tree(read("tree"), PackId(bytes(32))) == golden.tree()
    assert decode_commit(read("commit-2")) == golden.commit()
    assert decode_commit(read("commit-3")) == golden.commit_with_metadata()
    assert decode_scrub_ledger(read("scrub-ledger"), "it") == golden.scrub_ledger()
    assert decode_removed_shards(read("removed-shards"), "it") == golden.REMOVED_SHARDS
    for name in ("store-2-new.json", "store-2.json", "store-3.json"):
        assert decode_settings(read(name)) == golden.settings()
    assert unseal("ref", {1: dict}, read("ref"), "ref") == {
        "repo": "vision/flickr30k",
        "kind": "branches",
        "name": "main",
        "sequence": 1,
        "commit": golden.commit().parents[0].hex(),
        "time_s": 1_700_000_000,
    }


@pytest.mark.parametrize(
    ("name", "reader"), [("commit", decode_commit), ("store.json", decode_settings)]
)
def test_versions_from_before_the_first_release_are_refused(
    name: str, reader: Callable[[bytes], object]
) -> None:
    """The error has the version, and what to do; nobody waits for a newer lodefs."""
    with pytest.raises(UnknownFormat, match=r"version 1.*: push the data into a new store"):
        reader(read(name))


def test_reads_a_golden_journal() -> None:
    """The documents of the journal say what their examples say."""
    assert JOURNAL["journal-entry"](read("journal-entry")) == golden.journal_entry()
    chunks = golden.garbage_chunks()
    thin = replace(golden.journal_entry(), tombstoned=chunks)
    assert JOURNAL["journal-entry-2"](read("journal-entry-2")) == thin
    assert JOURNAL["journal-fate-2"](read("journal-fate-2")) == DeletionOutcome(7, chunks)
    assert JOURNAL["journal-end"](read("journal-end")) == golden.journal_end()
    assert JOURNAL["journal-beat"](read("journal-beat")) == 2
    assert JOURNAL["journal-fate"](read("journal-fate")) == DeletionOutcome(7, golden.garbage())
    assert JOURNAL["journal-ledger"](read("journal-ledger")) == golden.ledger()


@pytest.mark.parametrize("name", ["journal-entry", "journal-end", "journal-beat", "journal-fate"])
def test_a_document_of_another_entry_is_refused(name: str) -> None:
    """A document of the journal that lies under another number counts as damaged."""
    decode = {
        "journal-entry": decode_entry,
        "journal-end": decode_end,
        "journal-beat": decode_beat,
        "journal-fate": decode_outcome,
    }[name]
    with pytest.raises(Corrupt, match="belongs to entry"):
        decode(read(name), 99, name)


JOURNAL: dict[str, Callable[[bytes], object]] = {
    "journal-entry": lambda data: decode_entry(data, 7, "it"),
    "journal-entry-2": lambda data: decode_entry(data, 7, "it"),
    "journal-fate-2": lambda data: decode_outcome(data, 7, "it"),
    "journal-end": lambda data: decode_end(data, 6, "it"),
    "journal-beat": lambda data: decode_beat(data, 6, "it"),
    "journal-fate": lambda data: decode_outcome(data, 7, "it"),
    "journal-done": lambda data: unseal("journal-done", {1: dict}, data, "it"),
    "journal-ledger": lambda data: decode_ledger(data, "it"),
}


def _repo_settings(data: bytes, repo: str = "vision/flickr30k", sequence: int = 3) -> object:
    return repo_settings.decode_settings(data, repo, sequence, "it")


def test_reads_golden_settings_of_a_repository() -> None:
    """They say what their example says, and are of no other repository or number."""
    assert _repo_settings(read("repo-settings")) == golden.repo_settings()
    assert _repo_settings(read("repo-settings-2")) == golden.repo_settings_names()
    for repo, sequence in (("vision/other", 3), ("vision/flickr30k", 4)):
        with pytest.raises(Corrupt, match="belongs to vision/flickr30k, number 3"):
            _repo_settings(read("repo-settings"), repo, sequence)


def test_reads_a_golden_purge() -> None:
    """It says what its example says, and is no other purge."""
    assert decode_purge(read("purge"), 3, "it") == golden.purge()
    with pytest.raises(Corrupt, match="is purge 3"):
        decode_purge(read("purge"), 4, "it")


def test_reads_golden_looks_at_composites() -> None:
    """Which composites were looked at, after which purge; no other name is taken for one."""
    assert decode_looked(read("composites-looked"), "it") == PurgeScanState(
        3, {golden.COMPOSITE: 17}
    )
    other = seal("composites-looked", 1, {"purge": 3, "unused": {"6-00": 17}})
    with pytest.raises(Corrupt, match="is not a composite"):
        decode_looked(other, "it")


def test_reads_a_golden_composite_and_its_table() -> None:
    """Both say where the packs lie, and these come out; no other table or composite is taken for
    it."""
    data, places = read("composite"), golden.composite_places()
    assert decode_tail(data, golden.COMPOSITE, "it") == places
    place = places[golden.pack().pack_id]
    assert data[place.offset : place.offset + place.size_bytes] == read("pack")
    assert decode_table(read("composite-table"), 7) == golden.composite_table()
    assert decode_tail(read("composite-mark"), MARK, "it") == {}
    assert decode_table(read("composite-table-superseded"), 6).is_superseded
    assert decode_table(read("composite-table-restored"), 7).is_restored
    with pytest.raises(Corrupt, match="is not the table 8"):
        decode_table(read("composite-table"), 8)
    with pytest.raises(Corrupt, match="another composite"):
        decode_tail(data, CompositeName(7, golden.COMPOSITE.token), "it")


MARK = CompositeName(256, golden.COMPOSITE.token)
READERS: dict[str, Callable[[bytes], object]] = {
    "pack": lambda data: PackIndex.decode(golden.pack().pack_id, data),
    "pack-2": lambda data: PackIndex.decode(golden.pack().pack_id, data),
    "purge": lambda data: decode_purge(data, 3, "it"),
    "shard": decode_shard,
    "shard-2": decode_shard,
    "commit-2": decode_commit,
    "commit-3": decode_commit,
    "ref": lambda data: unseal("ref", {1: dict}, data, "ref"),
    "store-2-new.json": decode_settings,
    "store-2.json": decode_settings,
    "store-3.json": decode_settings,
    "composite": lambda data: decode_tail(data, golden.COMPOSITE, "it"),
    "composite-mark": lambda data: decode_tail(data, MARK, "it"),
    "composites-looked": lambda data: decode_looked(data, "it"),
    "composite-table": lambda data: decode_table(data, 7),
    "composite-table-restored": lambda data: decode_table(data, 7),
    "composite-table-superseded": lambda data: decode_table(data, 6),
    **JOURNAL,
    "repo-settings": _repo_settings,
    "repo-settings-2": _repo_settings,
}
# unpack checks these
PAYLOAD_BYTES = {
    "pack": golden.pack().index.offsets[-1],
    "pack-2": len(golden.TEXT_FRAME),
    "composite": sum(place.size_bytes for place in golden.composite_places().values()),
}


@pytest.mark.parametrize("name", READERS)
def test_any_flipped_bit_is_noticed(name: str) -> None:
    """No bit of an index, trailer, shard, commit, ref or store.json changes unseen; nor is what has
    one taken for that of a newer lodefs, which nobody repairs."""
    good = read(name)
    READERS[name](good)
    for bit in range(8 * PAYLOAD_BYTES.get(name, 0), 8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            READERS[name](bytes(bad))


def _read_tree(data: bytes) -> object:
    return decode_tree(data, PackId(bytes(32)))


@pytest.mark.parametrize("name", [*READERS, "tree"])
def test_any_cut_is_noticed(name: str) -> None:
    """No end of a format can be missing unseen."""
    good = read(name)
    reader: Callable[[bytes], object] = READERS.get(name, _read_tree)
    for size in range(len(good)):
        with pytest.raises(LodefsError):
            reader(good[:size])


def test_reads_a_golden_plan() -> None:
    """The plan of a push, a part, its result, its failure and the writer come out."""
    assert push_plan.decode_plan(read("push-plan"), "crawl-7", "x") == golden.plan()
    assert push_plan.decode_plan(read("push-plan-2"), "crawl-7", "x") == golden.plan_in_place()
    assert push_plan.decode_part(read("push-part"), 1, "x") == golden.plan_part()
    assert push_plan.decode_result(read("push-result"), 1, "x") == golden.plan_result()
    assert push_plan.decode_part(read("push-part-2"), 1, "x") == golden.plan_piece()
    assert push_plan.decode_result(read("push-result-2"), 1, "x") == golden.plan_piece_result()
    failure = push_plan.PartFailure(1, "no answer", "node-7")
    assert push_plan.decode_failure(read("push-failure"), 1, "x") == failure
    assert push_plan.decode_writer(read("push-writer"), 1, "x") == 6
