"""What the refs of a store in memory need, found without the code that collects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container

from lodefs.chunkstore.errors import LodefsError, Purged
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit, decode_commit
from lodefs.chunkstore.format.composite import (
    COMPOSITES,
    TABLES,
    TAIL_HEAD_SIZE_BYTES,
    CompositeTable,
    decode_table,
    table_number,
)
from lodefs.chunkstore.format.journal import RefName, decode_end, decode_outcome
from lodefs.chunkstore.format.names import ChunkId, CommitId, PackId
from lodefs.chunkstore.format.pack import GONE, PURGED, PackIndex, is_virtual
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.format.virtual_pack import VirtualPack
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.refs import Refs
from lodefs.chunkstore.repo.repo_settings import SettingsLog
from lodefs.chunkstore.repo.retention import retained
from tests.support.chunkstore.memory_objects import MemoryObjects


class Needs:
    """The keys, and the chunks of packs, that each commit needs. A commit never changes, so they
    are found once: when a ref leads to it first."""

    def __init__(self, objects: MemoryObjects) -> None:
        self._objects = objects
        self.commits: dict[CommitId, frozenset[str]] = {}
        self._past: dict[CommitId, Commit] = {}
        self._chunks: dict[CommitId, dict[PackId, int]] = {}  # bits of their numbers
        self._purges = 0
        self._purged: set[ChunkId] = set()
        self._indexes: dict[PackId, tuple[bytes, PackIndex]] = {}  # of objects as they are now
        self._inside: tuple[bytes, dict[str, bytes]] = b"", {}

    def check(self, when: str) -> None:
        """Raises: AssertionError if a ref leads to something that is not there, and that no
        retention policy has deleted."""
        found: set[CommitId] = set()
        for (repo, kind, name), head in self._heads().items():
            for commit_id in self._reached(repo, head):
                missing = {key for key in self._of(repo, commit_id) if not self._is_there(key)}
                assert not missing, f"{when}: {kind}/{name} lacks {sorted(missing)}"
                found.add(commit_id)
        for pack, needed_chunks in self._chunks_of(found).items():
            gone = needed_chunks & self._without_bytes(pack)
            if gone:
                gone &= ~self._numbers(pack, self.purged(), lambda codec: codec == PURGED)
            assert not gone, f"{when}: chunks {gone:b} of {pack.hex()} are gone"

    def purged(self) -> set[ChunkId]:
        """All that purges wanted to be gone."""
        count = sum(key.startswith(keys.PURGES) for key in self._objects.objects)
        if count != self._purges:
            found = Purges(self._objects).after(-1)
            self._purges, self._purged = count, {chunk for one in found for chunk in one.chunks}
        return self._purged

    def holding(self, chunks: Collection[ChunkId], hidden: Container[str] = ()) -> set[str]:
        """Packs that have bytes of those chunks, but those that no list shows."""
        there = {*self._objects.objects, *self._in_composites()}
        found = [key for key in there if key.startswith(keys.PACKS)]
        return {
            key
            for key in found
            if key not in hidden
            and self._numbers(_pack_of(key), chunks, lambda codec: codec not in GONE)
        }

    def _numbers(
        self, pack: PackId, chunks: Collection[ChunkId], is_meant: Callable[[int], bool]
    ) -> int:
        """Which of a pack's chunks are among those, and have such a codec, by bits."""
        index = self._index(pack)
        numbers = (n for n in range(len(index)) if is_meant(index.codecs[n]))
        return sum(1 << n for n in numbers if index.chunk_id(n) in chunks)

    def is_living(self, commit_id: CommitId) -> bool:
        """Whether a ref leads to a commit now."""
        heads = self._heads()
        return any(commit_id in self._reached(ref.repo, head) for ref, head in heads.items())

    def is_whole(self, key: str) -> bool:
        """Whether a pack has the bytes of all its chunks."""
        return not self._index(_pack_of(key)).has_gone

    def read_all(self) -> None:
        """Reads all that refs lead to. Raises: AssertionError."""
        self.commits.clear()
        self._chunks.clear()
        for ref, head in self._heads().items():
            self._reached(ref.repo, head)

    def unused_chunks(self, hidden: set[str], now_s: int) -> set[str]:
        """Packs that hold bytes of chunks that no ref leads to, or no retention policy keeps, but
        those that no list shows."""
        found: set[str] = set()
        for pack, bits in self._chunks_of({at for _, at in self._kept(now_s)}).items():
            key = keys.pack(pack)
            unused = ((1 << len(self._index(pack))) - 1) & ~bits & ~self._without_bytes(pack)
            if unused and key not in hidden:
                found.add(key)
        return found

    def _chunks_of(self, commits: set[CommitId]) -> dict[PackId, int]:
        found: dict[PackId, int] = {}
        for commit in commits:
            for pack, bits in self._chunks[commit].items():
                found[pack] = found.get(pack, 0) | bits
        return found

    def _index(self, pack: PackId) -> PackIndex:
        data = self._pack(keys.pack(pack))
        known = self._indexes.get(pack)
        if known is None or known[0] is not data:
            decode = VirtualPack.decode if is_virtual(data) else PackIndex.decode
            found = decode(pack, data)
            index = found.index if isinstance(found, VirtualPack) else found
            known = self._indexes[pack] = data, index
        return known[1]

    def _without_bytes(self, pack: PackId) -> int:
        """The chunks whose bytes are gone."""
        index = self._index(pack)
        return sum(1 << n for n in range(len(index)) if index.is_gone(n)) if index.has_gone else 0

    def refs(self) -> list[tuple[str, str]]:
        """Kind and name of those that are there."""
        return sorted((ref.kind, ref.name) for ref in self._heads())

    def garbage(self, hidden: set[str], now_s: int) -> set[str]:
        """Packs and commits that no ref leads to, or no retention policy keeps, but those that no
        list shows."""
        used = frozenset[str]().union(*(self._of(*one) for one in self._kept(now_s)))
        inside = self._in_composites()
        doubles = {key for key in inside if key in self._objects.objects and key not in hidden}
        return (
            doubles
            | self._loose_composites(hidden)
            | {
                key
                for key in (*self._objects.objects, *inside)
                if key.startswith(keys.PACKS) or "/commits/" in key
                if key not in used and key not in hidden
            }
        )

    def _is_there(self, key: str) -> bool:
        return key in self._objects.objects or key in self._in_composites()

    def _pack(self, key: str) -> bytes:
        """A pack's object as readers see it: its own, if that is whole or in no composite."""
        own = self._objects.objects.get(key)
        if own is not None and own[-56:-54] == b"\1\0":
            return own
        inside = self._in_composites().get(key)
        found = own if inside is None else inside
        assert found is not None, key
        return found

    def _newest_table(self) -> tuple[str, CompositeTable]:
        key = min((k for k in self._objects.objects if k.startswith(TABLES)), default="")
        number = table_number(key)
        if not key:
            return "", CompositeTable(-1)
        return key, decode_table(self._objects.objects[key], number)

    def _in_composites(self) -> dict[str, bytes]:
        """The packs that the newest table names, and whose composite is there, by their keys."""
        key, table = self._newest_table()
        data = self._objects.objects.get(key, b"")
        if self._inside[0] != data:
            self._inside = data, {}
        found = self._inside[1]
        there: dict[str, bytes] = {}
        for pack, (composite, offset, size) in table.places.items():
            whole = self._objects.objects.get(composite.key)
            if whole is not None:
                name = keys.pack(pack)
                there[name] = found.setdefault(name, whole[offset : offset + size])
        return there

    def _loose_composites(self, hidden: set[str]) -> set[str]:
        """Composites that the newest table does not name, but for marks, which have no packs."""
        named = {place.composite.key for place in self._newest_table()[1].places.values()}
        composites = {
            key
            for key, data in self._objects.objects.items()
            if key.startswith(COMPOSITES) and len(data) > TAIL_HEAD_SIZE_BYTES
        }
        return composites - named - hidden

    def kept(self) -> int:
        """Entries of the journal whose garbage is kept."""
        kept = b'"deleted":null'
        outcomes = [k for k in self._objects.objects if k.startswith("journal/fates/")]
        return sum(kept in self._objects.objects[key] for key in outcomes)

    def dangling_intents(self) -> bool:
        """Whether a writer has said what it would write, and has not written it."""
        for key, data in self._objects.objects.items():
            if key.startswith("journal/ends/"):
                number = keys.SEQUENCE_MAX - int(key.rpartition("/")[2])
                intent = decode_end(data, number, key).intent
                if (
                    intent
                    and keys.ref_entry(*intent.ref, intent.sequence) not in self._objects.objects
                ):
                    return True
        return False

    def _kept(self, now_s: int) -> set[tuple[str, CommitId]]:
        """Commits that refs lead to and retention policies keep, with their repositories."""
        found: set[tuple[str, CommitId]] = set()
        heads = self._heads()
        for repo in {ref.repo for ref in heads}:
            own = [(ref, head) for ref, head in heads.items() if ref.repo == repo]
            past = {at: self._past[at] for _, head in own for at in self._reached(repo, head)}
            policy = SettingsLog(self._objects, repo).newest().retention
            kept = set(past) if policy is None else retained(past, own, policy, now_s)
            found |= {(repo, at) for at in kept}
        return found

    def _heads(self) -> dict[RefName, CommitId]:
        newest: dict[RefName, int] = {}
        for key in self._objects.objects:
            if (ref := keys.ref_of_entry(key)) is not None:
                name = RefName(*ref[:3])
                newest[name] = max(ref[3], newest.get(name, 0))
        found: dict[RefName, CommitId] = {}
        for name, sequence in newest.items():
            entry = Refs(self._objects, name.repo).entry(name.kind, name.name, sequence)
            if entry.commit is not None:
                found[name] = entry.commit
        return found

    def _reached(self, repo: str, head: CommitId) -> list[CommitId]:
        """A commit and all before it. Only one that a ref names itself may not have expired."""
        found: list[CommitId] = []
        waiting = [head]
        while waiting:
            at = waiting.pop()
            if at in found or (at != head and self._has_expired(repo, at)):
                continue
            found.append(at)
            self._of(repo, at)
            waiting += self._past[at].parents
        return found

    def _has_expired(self, repo: str, commit_id: CommitId) -> bool:
        """Whether a commit has its word, and is gone or was deleted: then it may be there again."""
        if keys.expired(repo, commit_id.hex()) not in self._objects.objects:
            return False
        is_gone = keys.commit(repo, commit_id) not in self._objects.objects
        return is_gone or (repo, commit_id) in self._deleted()

    def _deleted(self) -> set[tuple[str, CommitId]]:
        """Commits that outcomes have deleted."""
        found: set[tuple[str, CommitId]] = set()
        for key, data in self._objects.objects.items():
            if key.startswith("journal/fates/"):
                outcome = decode_outcome(data, keys.SEQUENCE_MAX - int(key.rpartition("/")[2]), key)
                found |= set(outcome.deleted.commits) if outcome.deleted is not None else set()
        return found

    def _read(self, packs: PackReader, entry: TreeEntry) -> None:
        """Reads a file; of one that was purged what is left."""
        try:
            deque(packs.read_file(entry), 0)
        except Purged:
            for pack, first, count, _ in entry.segments:
                gone = self._numbers(pack, self.purged(), lambda codec: codec == PURGED)
                for n in range(first, first + count):
                    if not gone >> n & 1:
                        deque(packs.read(pack, n, 1), 0)

    def _of(self, repo: str, commit_id: CommitId) -> frozenset[str]:
        if commit_id in self.commits:
            return self.commits[commit_id]
        key = keys.commit(repo, commit_id)
        try:
            commit = decode_commit(self._objects.objects[key])
            packs = PackReader(PackLocations(self._objects))
            below = [commit.root, *(entry for _, entry in packs.walk(commit.root))]
            for entry in below:
                if entry.kind is Kind.FILE:
                    self._read(packs, entry)
        except (KeyError, LodefsError) as error:
            raise AssertionError(f"a ref leads to {key}, which is not whole: {error!r}") from error
        chunks = self._chunks.setdefault(commit_id, {})
        for segment in (segment for entry in below for segment in entry.segments):
            bits = ((1 << segment.count) - 1) << segment.first
            chunks[segment.pack] = chunks.get(segment.pack, 0) | bits
        named = {keys.pack(segment.pack) for entry in below for segment in entry.segments}
        self._past[commit_id] = commit
        self.commits[commit_id] = needed = frozenset({key, *named})
        return needed


def _pack_of(key: str) -> PackId:
    return PackId(bytes.fromhex(key[-64:]))
