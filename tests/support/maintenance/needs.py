"""What the refs of a store in memory need, found without the code that collects."""

from __future__ import annotations

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import decode_commit
from lodefs.chunkstore.format.journal import decode_end
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.refs import Refs
from tests.support.chunkstore.memory_objects import MemoryObjects


class Needs:
    """The keys, and the chunks of packs, that each commit needs. A commit never changes, so they
    are found once: when a ref names it first."""

    def __init__(self, objects: MemoryObjects) -> None:
        self._objects = objects
        self.commits: dict[CommitId, frozenset[str]] = {}
        self._chunks: dict[CommitId, dict[PackId, int]] = {}  # bits of their numbers
        self._indexes: dict[PackId, tuple[bytes, PackIndex]] = {}  # of objects as they are now

    def check(self, when: str) -> None:
        """Raises: AssertionError if a ref leads to something that is not there."""
        for name, needed in self._living().items():
            missing = needed.difference(self._objects.objects)
            assert not missing, f"{when}: {name} lacks {sorted(missing)}"
        for pack, needed_chunks in self._living_chunks().items():
            gone = needed_chunks & self._without_bytes(pack)
            assert not gone, f"{when}: chunks {gone:b} of {pack.hex()} are gone"

    def is_living(self, commit_id: CommitId) -> bool:
        """Whether a ref leads to a commit now."""
        return any(
            key.endswith(commit_id.hex()) for needed in self._living().values() for key in needed
        )

    def is_whole(self, key: str) -> bool:
        """Whether a pack has the bytes of all its chunks."""
        return not self._index(PackId(bytes.fromhex(key[-64:]))).has_gone

    def read_all(self) -> None:
        """Reads all that refs lead to. Raises: AssertionError."""
        self.commits.clear()
        self._chunks.clear()
        self._living()

    def unused_chunks(self, hidden: set[str]) -> set[str]:
        """Packs that hold bytes of chunks that no ref leads to, but those that no list shows."""
        used = self._living_chunks()
        found: set[str] = set()
        for pack, bits in used.items():
            key = keys.pack(pack)
            unused = ((1 << len(self._index(pack))) - 1) & ~bits & ~self._without_bytes(pack)
            if unused and key not in hidden:
                found.add(key)
        return found

    def _living_chunks(self) -> dict[PackId, int]:
        found: dict[PackId, int] = {}
        for needed in self._living().values():
            for key in needed:
                commit = CommitId(bytes.fromhex(key[-64:])) if "/commits/" in key else None
                for pack, bits in self._chunks[commit].items() if commit else ():
                    found[pack] = found.get(pack, 0) | bits
        return found

    def _index(self, pack: PackId) -> PackIndex:
        data = self._objects.objects[keys.pack(pack)]
        known = self._indexes.get(pack)
        if known is None or known[0] is not data:
            known = self._indexes[pack] = data, PackIndex.decode(pack, data)
        return known[1]

    def _without_bytes(self, pack: PackId) -> int:
        """The chunks whose bytes are gone."""
        index = self._index(pack)
        return sum(1 << n for n in range(len(index)) if index.is_gone(n)) if index.has_gone else 0

    def refs(self) -> list[tuple[str, str]]:
        """Kind and name of those that are there."""
        return sorted(self._living())

    def garbage(self, hidden: set[str]) -> set[str]:
        """Packs and commits that no ref leads to, but those that no list shows."""
        used = frozenset[str]().union(*self._living().values())
        return {
            key
            for key in self._objects.objects
            if key.startswith(keys.PACKS) or "/commits/" in key
            if key not in used and key not in hidden
        }

    def kept(self) -> int:
        """Entries of the journal whose garbage is kept."""
        kept = b'"deleted":null'
        fates = [k for k in self._objects.objects if k.startswith("journal/fates/")]
        return sum(kept in self._objects.objects[key] for key in fates)

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

    def _living(self) -> dict[tuple[str, str], frozenset[str]]:
        newest: dict[tuple[str, str, str], int] = {}
        for key in self._objects.objects:
            if (ref := keys.ref_of_entry(key)) is not None:
                newest[ref[:3]] = max(ref[3], newest.get(ref[:3], 0))
        found: dict[tuple[str, str], frozenset[str]] = {}
        for (repo, kind, name), sequence in newest.items():
            entry = Refs(self._objects, repo).entry(kind, name, sequence)
            if entry.commit is not None:
                found[kind, name] = self._of(repo, entry.commit)
        return found

    def _of(self, repo: str, commit_id: CommitId) -> frozenset[str]:
        if commit_id in self.commits:
            return self.commits[commit_id]
        key = keys.commit(repo, commit_id)
        try:
            commit = decode_commit(self._objects.objects[key])
            packs = PackReader(self._objects)
            below = [commit.root, *(entry for _, entry in packs.walk(commit.root))]
            for entry in below:
                if entry.kind is Kind.FILE:
                    for _ in packs.read_file(entry):
                        pass
        except (KeyError, LodefsError) as error:
            raise AssertionError(f"a ref names {key}, which is not whole: {error!r}") from error
        chunks = self._chunks.setdefault(commit_id, {})
        for segment in (segment for entry in below for segment in entry.segments):
            bits = ((1 << segment.count) - 1) << segment.first
            chunks[segment.pack] = chunks.get(segment.pack, 0) | bits
        named = {keys.pack(segment.pack) for entry in below for segment in entry.segments}
        parents = [self._of(repo, parent) for parent in commit.parents]
        self.commits[commit_id] = needed = frozenset({key, *named}).union(*parents)
        return needed
