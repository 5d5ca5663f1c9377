"""One example of every byte format, as the format's own code makes it.

``tests/golden/`` holds what these gave when a format was fixed. ``python -m
tests.support.chunkstore.golden DIR`` writes the files that are not there; it never changes one.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from blake3 import blake3

from lodefs.chunkstore.format import journal, keys, push_plan
from lodefs.chunkstore.format.bundle import COMMIT, PACK, BundleHead
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.commit import Commit, Large, encode_commit
from lodefs.chunkstore.format.composite import (
    CompositeName,
    CompositePlace,
    CompositeTable,
    PurgeScanState,
    encode_looked,
    encode_table,
    encode_tail,
)
from lodefs.chunkstore.format.compression import RAW, ZSTD
from lodefs.chunkstore.format.hook_list import encode_hook_list
from lodefs.chunkstore.format.index_shard import encode_hooks, encode_shard, hooks_of
from lodefs.chunkstore.format.names import (
    ChunkId,
    CommitId,
    Digest,
    PackId,
    digest_of,
)
from lodefs.chunkstore.format.pack import DROPPED, PURGED
from lodefs.chunkstore.format.repo_settings import (
    Deletion,
    Renaming,
    RepoSettings,
    Retention,
    encode_expired,
)
from lodefs.chunkstore.format.repo_settings import encode_settings as encode_repo_settings
from lodefs.chunkstore.format.tree import (
    EMPTY_DIGEST,
    SAME_PACK,
    Kind,
    Segment,
    TreeEntry,
    encode_tree,
    symlink,
)
from lodefs.chunkstore.format.virtual_pack import PlacedRun, SourceObject, VirtualPack
from lodefs.chunkstore.journal.purges import Purge, encode_purge
from lodefs.chunkstore.journal.removed_shards import encode_removed_shards
from lodefs.chunkstore.repair.scrub import ScrubLedger, encode_scrub_ledger
from lodefs.chunkstore.repo.refs import BRANCHES, Refs
from lodefs.chunkstore.repo.store import Settings, encode_settings
from lodefs.chunkstore.transfer.bundle_file import BundleWriter
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.packs import FinishedPack, PackBuilder

GOLDEN = Path(__file__).parents[2] / "golden"

TEXT = b"All work and no play makes Jack a dull boy.\n" * 20
# zstd's own output may change with its version; what it gave once must stay readable
TEXT_FRAME = bytes.fromhex(
    "28b52ffd0000ad0100c402416c6c20776f726b20616e64206e6f20706c6179206d616b6573204a61636b20612064"
    "756c6c20626f792e0a01000cfa2a5506"
)
REMOVED_SHARDS = {"18a1b2c3d4e5f607-01234567", "18a1b2c3d4e5f608-89abcdef"}
PACK_CHUNKS = (b"one", TEXT, bytes(range(256)))
OTHER_PACK = PackId(bytes(range(32)))


def pack() -> FinishedPack:
    """A pack of three chunks, one of them a zstd frame."""
    builder = PackBuilder()
    for raw in PACK_CHUNKS:
        codec, stored = (ZSTD, TEXT_FRAME) if raw is TEXT else (RAW, raw)
        builder.add(ChunkId(digest_of(raw)), codec, stored, len(raw))
    return builder.finish()


def thin_pack() -> bytes:
    """The same pack without the bytes of its first chunk, which was dropped, and of its last one,
    which was purged."""
    index = pack().index.without(0b001, DROPPED).without(0b100, PURGED)
    return TEXT_FRAME + index.encode()


def virtual_pack() -> VirtualPack:
    """The same pack, of which the first chunk, which was purged, and the last one lie in objects of
    two sources; one of them keeps versions."""
    objects = [
        SourceObject("archive", "a/Zürich.bin", 2**40, '"d41d8cd98f00b204-2"', "3HL4kqtJlcpXroDT"),
        SourceObject("field-7", "b", 256, '"0123456789abcdef"', ""),
    ]
    runs = [PlacedRun(0, 1, 0, 2**39), PlacedRun(2, 1, 1, 0)]
    return VirtualPack(pack().index.without(0b001, PURGED), objects, runs)


def tree() -> list[TreeEntry]:
    """A directory of every kind of entry, with awkward names."""
    digest = Digest(bytes(range(32, 64)))
    one = (Segment(OTHER_PACK, 0, 1, 3),)
    three = (Segment(OTHER_PACK, 41, 3, 5),)
    many = (Segment(OTHER_PACK, 1, 40, 2**40 - 9), Segment(SAME_PACK, 7, 1, 9))
    subtree = (Segment(SAME_PACK, 300, 2, 90_000),)
    return [
        TreeEntry(b"\n", Kind.FILE, digest=EMPTY_DIGEST),
        TreeEntry(b"a", Kind.FILE, executable=True, size_bytes=3, digest=digest, segments=one),
        TreeEntry(b"b", Kind.FILE, size_bytes=2**40, digest=digest, segments=many),
        TreeEntry(b"c", Kind.DIRECTORY, size_bytes=90_000, digest=digest, segments=subtree),
        symlink(b"d", b"../over there"),
        TreeEntry(b"\xff not UTF-8", Kind.FILE, size_bytes=5, digest=digest, segments=three),
    ]


def commit() -> Commit:
    """A commit with a parent and text beyond ASCII."""
    root = TreeEntry(
        name=b"",
        kind=Kind.DIRECTORY,
        size_bytes=77,
        digest=Digest(bytes(range(64, 96))),
        segments=(Segment(OTHER_PACK, 5, 1, 70), Segment(OTHER_PACK, 2, 1, 7)),
    )
    parents = (CommitId(bytes(range(96, 128))),)
    text = ("Ada Lövelace", 1_700_000_000, "first\nlight")
    return Commit(root, parents, *text, 10, 3, 12_345, large=Large(2, 9_876))


def commit_with_metadata() -> Commit:
    """The same with metadata."""
    return replace(commit(), metadata=(("license", "CC-BY 4.0"), ("source", "crawl 7 = Zürich")))


def ref() -> bytes:
    """The second entry of a branch."""
    objects = MemoryObjects()
    refs = Refs(objects, "vision/flickr30k", clock=lambda: 1_700_000_000.9)
    for sequence in (None, 0):
        refs.advance(BRANCHES, "main", CommitId(bytes(range(96, 128))), expected_sequence=sequence)
    return objects.objects[keys.ref_entry("vision/flickr30k", BRANCHES, "main", 1)]


def settings() -> Settings:
    """What store.json says."""
    return Settings("000102030405060708090a0b0c0d0e0f", ChunkingParams())


def garbage() -> journal.Garbage:
    """A pack, and a commit of a repository."""
    return journal.Garbage((OTHER_PACK,), (("vision/flickr30k", CommitId(bytes(range(96, 128)))),))


def garbage_chunks() -> journal.Garbage:
    """Chunks 0 and 9 of a pack."""
    return journal.Garbage(chunks=(journal.DeadChunks(OTHER_PACK, 0b10_0000_0001),))


def journal_entry() -> journal.JournalEntry:
    """An entry that tombstones."""
    token = "000102030405060708090a0b0c0d0e0f"
    return journal.JournalEntry(7, 3, 1_700_000_000, token, garbage())


def purge() -> Purge:
    """Two chunks of a file."""
    chunks = ChunkId(bytes(range(32))), ChunkId(bytes(range(32, 64)))
    return Purge(3, 1_700_000_000, "vision/flickr30k:images/a%20b.jpg", chunks)


def journal_end() -> journal.End:
    """A writer that is about to move a branch."""
    ref = journal.RefName("vision/flickr30k", BRANCHES, "main")
    return journal.End(6, journal.Intent(ref, 1, CommitId(bytes(range(96, 128)))))


def ledger() -> journal.Ledger:
    """What a gc run knew, with a writer that it waits for."""
    refs = {journal.RefName("vision/flickr30k", BRANCHES, "main"): 1}
    return journal.Ledger(6, refs, {6: journal.LastHeartbeat(2, 1_700_000_000)})


def cut_inputs() -> dict[str, bytes]:
    """What is cut for the golden vectors: random bytes, zeros, text."""
    text = "".join(f"line {n} of a text, {n * n % 977}\n" for n in range(60_000))
    return {
        "random": blake3(b"lodefs").digest(length=3_000_000),
        "zeros": bytes(1_000_000),
        "text": text.encode(),
        "short": b"short",
    }


def cuts() -> str:
    """The ends of the chunks of cut_inputs, one input in a line."""
    lines = [
        f"{name} {' '.join(map(str, cut(data, ChunkingParams())))}\n"
        for name, data in cut_inputs().items()
    ]
    return "".join(lines)


def repo_settings() -> RepoSettings:
    """All that can be set for a repository."""
    return RepoSettings(
        sequence=3,
        time_s=1_700_000_000,
        deletion=Deletion(1_700_000_000, "jane", ((BRANCHES, "main"), ("tags", "v1.0"))),
        retention=Retention(10, keep_tagged=True, keep_within_s=90 * 86_400),
        may_lack_history=True,
        quota_size_bytes=2 * 10**12,
    )


def repo_settings_names() -> RepoSettings:
    """The same of a repository that had another name, and is getting yet another."""
    deletion = repo_settings().deletion
    assert deletion is not None
    gone = replace(deletion, renaming=Renaming("vision/flickr", 1_800_000_000))
    return replace(repo_settings(), deletion=gone, former_names=("vision/f30k",))


def bundle_head() -> BundleHead:
    """The head of a bundle of one commit that builds on another."""
    since = CommitId(bytes(range(64, 96)))
    ref = journal.RefName("vision/flickr30k", "tags", "v1.0")
    commits = (CommitId(digest_of((GOLDEN / "commit").read_bytes())),)
    expired = (CommitId(bytes(range(96, 128))),)
    return BundleHead(ref, since, commits, 1, 1_700_000_000, expired)


def bundle() -> bytes:
    """A bundle of the golden pack and commit."""
    file = BytesIO()
    writer = BundleWriter(file, bundle_head())
    writer.add(PACK, pack().pack_id, *pack().buffers)
    writer.add(COMMIT, (GOLDEN / "commit").read_bytes())
    writer.end()
    return file.getvalue()


def scrub_ledger() -> ScrubLedger:
    """A scrub in the middle of its third round."""
    damaged = (PackId(bytes(range(9, 41))),)
    return ScrubLedger(OTHER_PACK, 2, 1_700_000_000, 1_690_000_000, 17, 1 << 30, damaged)


def plan() -> push_plan.PushPlan:
    """A plan of a directory whose name is no text, for a branch with a commit."""
    return push_plan.PushPlan(
        name="crawl-7",
        lodefs="0.1.0",
        source=b"/data/\xffcrawl",
        repo="vision/flickr30k",
        branch="main",
        head=CommitId(bytes(range(96, 128))),
        author="Ada Lövelace",
        message="seventh crawl",
        metadata=(("license", "CC-BY 4.0"),),
        parts=3,
        files=100_001,
        directories=17,
        size_bytes=2**40,
    )


def plan_in_place() -> push_plan.PushPlan:
    """A plan of an import in place."""
    there = push_plan.PlannedInPlace("field-7", "flickr30k/", 1 << 20)
    return replace(plan(), source=b"s3://their-bucket/field-7/flickr30k", in_place=there)


def plan_part() -> push_plan.PlannedPart:
    """The second part of it: the end of one directory, and an empty one."""
    names, modes = [b"a", b"link", b"\xff"], bytes((1, 2, 0))
    times_ns = [1_700_000_000_000_000_000, -1, 0]
    some = push_plan.PlannedDirectory(b"images", names, modes, [2**40, 5, 0], times_ns, times_ns)
    empty = push_plan.PlannedDirectory(b"images/\xff", [], b"", [], [], [])
    return push_plan.PlannedPart(1, [some, empty])


def plan_piece() -> push_plan.PlannedPart:
    """A part of a plan that has a piece of a large file."""
    file = push_plan.PlannedDirectory(b"images", [b"large"], b"\0", [2**40], [1], [2])
    piece = push_plan.PlannedPiece(2**33, 2**34, is_digest=False)
    return push_plan.PlannedPart(1, [file], piece)


def plan_result() -> push_plan.PartResult:
    """What it has stored, without one file."""
    return push_plan.PartResult(
        number=1,
        writer=6,
        purges_seen=-1,
        root=commit().root,
        files=1,
        symlinks=1,
        size_bytes=2**40,
        large=Large(1, 2**40),
        files_read=1,
        new_bytes=2**39,
        stored_bytes=2**38,
        skipped=[(b"images/\xff", "images/\\xff cannot be read")],
        skipped_files=1,
    )


def plan_piece_result() -> push_plan.PartResult:
    """What it has stored of that file."""
    piece = push_plan.FilePiece(b"images/large", 2**33 + 5, None)
    none = Large(0, 0)
    return replace(plan_result(), files=0, symlinks=0, size_bytes=0, large=none, piece=piece)


def hook_list() -> bytes:
    """The hooks of two shards, of which the second one has no packs."""
    shards = [("00f1", encode_hooks([hooks_of(pack().index)])), ("00f2", encode_hooks([]))]
    return encode_hook_list(shards)


COMPOSITE = CompositeName(6, "00112233445566ff")


def composite_places() -> dict[PackId, CompositePlace]:
    """The golden pack, whole, before what is left of it under another id."""
    whole, thin = b"".join(pack().buffers), thin_pack()
    return {
        pack().pack_id: CompositePlace(COMPOSITE, 0, len(whole)),
        OTHER_PACK: CompositePlace(COMPOSITE, len(whole), len(thin)),
    }


def composite() -> bytes:
    """A composite with both."""
    tail = encode_tail(COMPOSITE, [*composite_places().items()])
    return b"".join([*pack().buffers, thin_pack(), tail])


def composite_table() -> CompositeTable:
    """The table after the one that first named that composite."""
    other = {PackId(bytes(32)): CompositePlace(CompositeName(7, "f" * 16), 1 << 33, 77)}
    return CompositeTable(7, {**composite_places(), **other})


def examples() -> dict[str, bytes]:
    """File name in ``tests/golden`` and the bytes that belong there."""
    return {
        "pack": b"".join(pack().buffers),
        "pack-2": thin_pack(),
        "pack-virtual": TEXT_FRAME + virtual_pack().encode_tail(),
        "shard-2": encode_shard([pack().index]),
        "tree": encode_tree(tree()),
        "commit-2": encode_commit(commit()),
        "commit-3": encode_commit(commit_with_metadata()),
        "ref": ref(),
        "store-2-new.json": encode_settings(settings()),
        "composite": composite(),
        "composite-mark": encode_tail(CompositeName(256, COMPOSITE.token), []),
        "composites-looked": encode_looked(PurgeScanState(3, {COMPOSITE: 17})),
        "composite-table": encode_table(composite_table()),
        "composite-table-restored": encode_table(replace(composite_table(), is_restored=True)),
        "composite-table-superseded": encode_table(CompositeTable(6, is_superseded=True)),
        "journal-entry": journal.encode_entry(journal_entry()),
        "journal-entry-2": journal.encode_entry(
            replace(journal_entry(), tombstoned=garbage_chunks())
        ),
        "journal-fate-2": journal.encode_outcome(journal.DeletionOutcome(7, garbage_chunks())),
        "journal-end": journal.encode_end(journal_end()),
        "journal-beat": journal.encode_beat(6, 2),
        "journal-fate": journal.encode_outcome(journal.DeletionOutcome(7, garbage())),
        "journal-done": journal.encode_done(7),
        "journal-ledger": journal.encode_ledger(ledger()),
        "expired": encode_expired("vision/flickr30k", CommitId(bytes(range(32))), 1_700_000_000),
        "repo-settings": encode_repo_settings("vision/flickr30k", repo_settings()),
        "repo-settings-2": encode_repo_settings("vision/flickr30k", repo_settings_names()),
        "purge": encode_purge(purge()),
        "cuts": cuts().encode(),
        "bundle": bundle(),
        "scrub-ledger": encode_scrub_ledger(scrub_ledger()),
        "hook-list": hook_list(),
        "push-plan": push_plan.encode_plan(plan()),
        "push-plan-2": push_plan.encode_plan(plan_in_place()),
        "push-part": push_plan.encode_part(plan_part()),
        "push-result": push_plan.encode_result(plan_result()),
        "push-part-2": push_plan.encode_part(plan_piece()),
        "push-result-2": push_plan.encode_result(plan_piece_result()),
        "push-failure": push_plan.encode_failure(push_plan.PartFailure(1, "no answer", "node-7")),
        "push-writer": push_plan.encode_writer(1, 6),
        "removed-shards": encode_removed_shards(REMOVED_SHARDS),
    }


def main(directory: Path) -> None:
    """Writes the examples that ``directory`` does not have."""
    for name, data in examples().items():
        if not (directory / name).exists():
            (directory / name).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
