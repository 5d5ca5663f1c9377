"""Purge: removes bytes from all versions at once, without a grace time.

It rewrites the packs that hold the bytes without them, as compaction does. The index of each pack
says why they are gone (docs/decisions/0047).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from urllib.parse import quote_from_bytes, unquote_to_bytes

from lodefs.chunkstore.errors import (
    UNREADABLE,
    Changed,
    Corrupt,
    InvalidInput,
    NotFound,
    UnknownFormat,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import DeadChunks
from lodefs.chunkstore.format.names import ChunkId, CommitId, PackId, Spec, parse_id
from lodefs.chunkstore.format.pack import PURGED, PackIndex
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.journal.existing_commit import is_living
from lodefs.chunkstore.journal.heartbeat import Heartbeat
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.journal.named_packs import add_named
from lodefs.chunkstore.journal.purges import Purges, purged_only_in
from lodefs.chunkstore.journal.ref_write import RefWrite
from lodefs.chunkstore.maintenance.compact import drop_all
from lodefs.chunkstore.maintenance.inventory import PackList, Repositories
from lodefs.chunkstore.maintenance.late_writes import drop_purged
from lodefs.chunkstore.maintenance.moved_packs import (
    doubles_with,
    drop_doubles,
    drop_remains,
    find_remains,
    sweep_moved,
)
from lodefs.chunkstore.maintenance.writers import WriterCheck, newest_of
from lodefs.chunkstore.objects.pack_locations import locations_of
from lodefs.chunkstore.repo.entry_set import stored
from lodefs.chunkstore.repo.history import find_in
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.repo.tree_walk import Place, join, walk_trees
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.system.rate import Rate

WORKERS = 16
PACKS_AT_ONCE = 4  # rewritten at once; each is in memory meanwhile
SHARED_SHOWN_MAX = 20

Chunks = dict[PackId, int]  # bits of chunk numbers, by pack


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a store. All commits of writers up to the journal's ``newest`` entry were put
    before it, except those of the ``waiting`` ones. ``moves`` is that of PackLocations, since packs
    that a repair had overlooked may have been found later."""

    newest: int
    waiting: frozenset[int]
    moves: int


@dataclass(slots=True)
class PurgePlan:
    """The plan of a purge. ``targets`` are the repositories and paths to purge. ``versions`` are
    commits that lead there. ``shared`` are other paths ("REPO:PATH") that need some of these
    chunks. ``unreadable`` are packs with a damaged index, which may hold the bytes, too.
    ``in_place`` are objects ("SOURCE:KEY") in somebody's bucket that have some of them, too.
    ``damaged`` are unreadable commits to which no branch or tag leads: their own contents are not
    examined."""

    what: str
    targets: tuple[tuple[str, bytes], ...] = ()
    seen: Moment | None = None  # when ``shared`` was determined
    chunks: list[ChunkId] = field(default_factory=list)
    packs: Chunks = field(default_factory=dict)
    size_bytes: int = 0  # of the existing chunks, at each place
    versions: int = 0
    shared: list[str] = field(default_factory=list)
    unreadable: list[PackId] = field(default_factory=list)
    in_place: list[str] = field(default_factory=list)
    damaged: list[CommitId] = field(default_factory=list)


@dataclass(slots=True)
class PurgeResult:
    """The result of a purge. ``left`` are damaged packs that still hold such bytes, or may.
    ``shared`` are other paths that came to need the bytes while the purge began. ``writers`` is the
    number of writers that began before it and had not ended: they may put the bytes into another
    pack."""

    packs: int = 0
    size_bytes: int = 0
    left: list[PackId] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    writers: int = 0


def plan_path(store: Store, repo: str, path: bytes, progress: Progress | None = None) -> PurgePlan:
    """Plans the purge of a file, or of all files below a directory, from all versions of a
    repository. Raises: NotFound if no version has it; Corrupt; what the store raises."""
    progress = progress or Progress()
    path = path.strip(b"/")
    if not path:
        raise InvalidInput("name a file or a directory; lodefs rm deletes a repository")
    plan = PurgePlan(f"{repo}:{quote_from_bytes(path)}", ((repo, path),))
    named: Chunks = {}
    with ThreadPoolExecutor(WORKERS, "lodefs-purge") as executor:
        plan.seen = _moment(store, executor)
        progress.phase = f"looking for {plan.what}"
        for commit_id in _commits(store, repo):
            try:
                files = _files_at(store, repo, commit_id, path, executor)
            except (Corrupt, UnknownFormat):
                if is_living(store, repo, commit_id):
                    raise
                plan.damaged.append(commit_id)
                continue
            if files is not None:
                plan.versions += 1
                add_named(named, files)
        if not plan.versions:
            raise NotFound(f"no version of {repo} has {path.decode(errors='replace')!r}")
        ids = {chunk for pack in named for chunk in _ids(store.packs.index(pack), named[pack])}
        _complete(store, plan, ids, executor, progress, named)
    return plan


def plan_chunk(store: Store, chunk: ChunkId, progress: Progress | None = None) -> PurgePlan:
    """Plans the purge of one chunk, wherever it is. Raises: NotFound if no pack has it, and no
    composite still has it from a deleted pack."""
    progress = progress or Progress()
    plan = PurgePlan("")
    with ThreadPoolExecutor(WORKERS, "lodefs-purge") as executor:
        plan.seen = _moment(store, executor)
        _complete(store, plan, {chunk}, executor, progress)
        is_there = plan.packs or find_remains(locations_of(store.objects), {chunk}, executor)
    if not is_there:
        raise NotFound(f"no pack of {store.url} has a chunk {chunk.hex()}")
    return plan


def plan_from(store: Store, source: Store, progress: Progress | None = None) -> PurgePlan:
    """Plans the purge of what another store has purged and this one has not: the same bytes, for
    the same paths. Raises: Corrupt; what the stores raise."""
    progress = progress or Progress()
    purges = purged_only_in(source.objects, store.objects)
    whats = (one.what.partition(":") for one in purges if one.what)
    plan = PurgePlan("", tuple((repo, unquote_to_bytes(path)) for repo, _, path in whats))
    with ThreadPoolExecutor(WORKERS, "lodefs-purge") as executor:
        plan.seen = _moment(store, executor)
        ids = {chunk for one in purges for chunk in one.chunks}
        _complete(store, plan, ids, executor, progress)
    return plan


def check_shared(shared: Collection[str]) -> None:
    """Raises: InvalidInput, which names other paths that need the bytes, if there are any."""
    if shared:
        names = sorted(shared)
        more = len(names) - SHARED_SHOWN_MAX
        shown = ", ".join(names[:SHARED_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        raise InvalidInput(
            f"other files need some of these bytes, and would be purged, too: {shown}. To purge "
            "them, add --also-shared"
        )


def purge(
    store: Store,
    plan: PurgePlan,
    clock: Callable[[], float] = time.time,
    progress: Progress | None = None,
    *,
    also_shared: bool = False,
) -> PurgeResult:
    """Carries out a plan. After an interruption it may be repeated with a new plan.

    The purge's document is put first, so that no push stores the bytes again. It is put once more
    at the end, since nodes that have dropped the bytes may have read them again. Raises:
    InvalidInput if other files came to need the bytes since the plan, unless ``also_shared``; what
    the store raises.
    """
    progress = progress or Progress()
    store.ensure_writable()
    # Writers that begin later add no chunks to packs until it has ended
    place = RefWrite(store, clock)
    own = place.begin().number
    heartbeat = Heartbeat(place.beat)
    heartbeat.start()
    try:
        return _purge(store, plan, own, clock, progress, also_shared=also_shared)
    finally:
        heartbeat.stop()
        place.close()


def _purge(
    store: Store,
    plan: PurgePlan,
    own: int,
    clock: Callable[[], float],
    progress: Progress,
    *,
    also_shared: bool,
) -> PurgeResult:
    """Does what purge does. ``own`` is the number of its place in the journal, the first of two."""
    result = PurgeResult()
    with ThreadPoolExecutor(WORKERS, "lodefs-purge") as executor:
        known = set(plan.shared)
        plan = _up_to_date(store, plan, own, executor, progress)
        if not also_shared:
            check_shared(set(plan.shared) - known)
        purges = Purges(store.objects)
        purges.append(plan.chunks, plan.what, int(clock()))
        write = RefWrite(store, clock)
        newest = write.begin().number  # writers that begin later know the purge
        write.close()
        result.writers = _begun_before(store, newest, own, executor)
        known = set(plan.shared)
        plan = _up_to_date(store, plan, own, executor, progress)
        result.shared = sorted(set(plan.shared) - known)
    progress.phase = f"rewriting {len(plan.packs)} packs"
    result.left += plan.unreadable
    with ThreadPoolExecutor(PACKS_AT_ONCE, "lodefs-purge") as executor:
        dead = [DeadChunks(*one) for one in sorted(plan.packs.items())]
        rate = Rate(None)
        objects = locations_of(store.objects)
        drop_doubles(objects, executor)  # readers do not use such objects
        for size_bytes in drop_all(objects, dead, PURGED, executor, rate):
            result.packs += size_bytes > 0
            result.size_bytes += size_bytes
        objects.tables.fence()  # a merge that has read them can no longer put them anywhere
        drop_purged(objects, plan.packs, executor, rate)
        sweep_moved(objects, executor)  # a merge that died may have left them
        result.left += drop_remains(objects, set(plan.chunks), executor, rate)
        for index in executor.map(lambda one: _index(store, one.pack), dead):
            if isinstance(index, PackIndex):
                if _stored(index, plan.packs[index.pack_id]):
                    result.left.append(index.pack_id)
            elif index is not None:
                result.left.append(index)
        result.left += doubles_with(objects, set(plan.chunks), executor)
        purges.append(plan.chunks, plan.what, int(clock()))
    return result


def plan_again(store: Store, progress: Progress | None = None) -> PurgePlan:
    """Plans the purge of bytes of earlier purges that are there again. A writer that began before
    the purge, or a compaction that was suspended, may have put them."""
    progress = progress or Progress()
    plan = PurgePlan("")
    ids = set(Purges(store.objects).chunks())
    with ThreadPoolExecutor(WORKERS, "lodefs-purge") as executor:
        _find_places(store, plan, ids, executor, progress)
        plan.packs = {
            pack: bits
            for pack, bits in plan.packs.items()
            if isinstance(index := _index(store, pack), PackIndex) and _stored(index, bits)
        }
        objects = locations_of(store.objects)
        for pack, bits in doubles_with(objects, ids, executor).items():
            plan.packs[pack] = plan.packs.get(pack, 0) | bits
        found = {c for p in plan.packs for c in _ids(_known(store, p), plan.packs[p])}
        for one in find_remains(objects, ids, executor):
            if one.index is not None:
                bits = sum(1 << n for n in range(len(one.index)) if one.index.chunk_id(n) in ids)
                plan.packs[one.pack] = plan.packs.get(one.pack, 0) | bits
                found |= set(_ids(one.index, bits))
    plan.chunks = sorted(found)
    return plan


def _complete(
    store: Store,
    plan: PurgePlan,
    ids: set[ChunkId],
    executor: Executor,
    progress: Progress,
    named: Iterable[PackId] = (),
) -> None:
    """Finds all places of the chunks and all paths that need them. ``named`` is that of
    ``_find_places``."""
    plan.chunks = sorted(ids)
    _find_places(store, plan, ids, executor, progress, named)
    found = executor.map(lambda one: _objects_in_place(store, *one), plan.packs.items())
    plan.in_place = sorted(set().union(*found))
    progress.phase = "looking for other files that need it"
    for repo, path in _users(store, _unpurged(store, plan.packs, executor), executor):
        own = (at for one, at in plan.targets if one == repo)
        if not any((path + b"/").startswith(at + b"/") for at in own):
            plan.shared.append(f"{repo}:{quote_from_bytes(path)}")
    plan.shared = sorted(set(plan.shared))


def _objects_in_place(store: Store, pack_id: PackId, chunks: int) -> set[str]:
    """Returns the objects of sources in which chunks (bits of their numbers) of a pack lie."""
    try:
        virtual = store.packs.virtual(pack_id)
    except (*UNREADABLE, Changed):
        virtual = None
    if virtual is None:
        return set()
    numbers = {run.object for run in virtual.runs if chunks & virtual.bits(run)}
    found = (virtual.objects[number] for number in numbers)
    return {f"{one.source}:{one.key}" for one in found}


def _up_to_date(
    store: Store, plan: PurgePlan, own: int, executor: Executor, progress: Progress
) -> PurgePlan:
    """Returns a current plan for the same chunks: the packs that hold them now and the paths that
    need them now. If the journal has only one more entry, the purge's, and no pack was moved, that
    is the given plan. ``own`` is the number of the purge's place in the journal."""
    if plan.seen is None:
        return plan
    now = _moment(store, executor)
    now = replace(now, waiting=now.waiting - {own})
    if now == replace(plan.seen, newest=plan.seen.newest + 1):
        return replace(plan, seen=now)
    again = PurgePlan(plan.what, plan.targets, now, versions=plan.versions)
    _complete(store, again, set(plan.chunks), executor, progress, plan.packs)
    return again


def _moment(store: Store, executor: Executor) -> Moment:
    moves = locations_of(store.objects).moves()
    journal = StoreJournal(store.objects)
    newest, tombstoning = newest_of(journal)
    found = WriterCheck(store, journal, executor).look(journal.ledger(), newest, tombstoning)
    return Moment(newest, frozenset(found.waiting), moves)


def _begun_before(store: Store, number: int, own: int, executor: Executor) -> int:
    """Counts the writers other than ``own`` that began before an entry and have not ended. Call it
    before packs are listed, so that the list has the packs of writers that have ended."""
    journal = StoreJournal(store.objects)
    ledger, (_, tombstoning) = journal.ledger(), newest_of(journal)
    waiting = WriterCheck(store, journal, executor).look(ledger, number, tombstoning).waiting
    return sum(writer.intent is None for n, writer in waiting.items() if n != own)


def _find_places(
    store: Store,
    plan: PurgePlan,
    ids: set[ChunkId],
    executor: Executor,
    progress: Progress,
    named: Iterable[PackId] = (),
) -> None:
    """Finds all places of chunks. It reads the index of each pack, even those of dead pushes, and
    of packs that versions have ``named``, which a list may lack. It starts again if packs are
    moved, since a list may then lack them."""
    progress.phase = "looking through all packs"
    locations = locations_of(store.objects)
    before, found = -2, locations.moves()
    named = list(named)
    while before != found:
        before = found
        _find_listed(store, plan, ids, executor, named)
        found = locations.moves()


def _find_listed(
    store: Store,
    plan: PurgePlan,
    ids: set[ChunkId],
    executor: Executor,
    named: Sequence[PackId],
) -> None:
    plan.packs, plan.unreadable, plan.size_bytes = {}, [], 0
    with PackList() as packs:
        packs.fill(store.objects)
        everywhere = _with(named, (pack for pack, _ in packs))
        for index in executor.map(lambda pack: _index(store, pack), everywhere):
            if not isinstance(index, PackIndex):
                plan.unreadable += [] if index is None else [index]
                continue
            numbers = [n for n in range(len(index)) if index.chunk_id(n) in ids]
            if numbers:
                plan.packs[index.pack_id] = sum(1 << n for n in numbers)
                plan.size_bytes += sum(index.stored_sizes[n] for n in numbers)


def _with(named: Iterable[PackId], listed: Iterable[PackId]) -> Iterator[PackId]:
    """Yields the packs of the list, then the others."""
    lacking = set(named)
    for pack in listed:
        lacking.discard(pack)
        yield pack
    yield from lacking


def _unpurged(store: Store, places: Chunks, executor: Executor) -> Chunks:
    """Returns the chunks that do not count as purged. Purging the others takes nothing away."""
    found: Chunks = {}
    indexes = executor.map(lambda pack: _index(store, pack), places)
    for (pack, bits), index in zip(places.items(), indexes, strict=True):
        codecs = index.codecs if isinstance(index, PackIndex) else b""
        purged = sum(1 << n for n, codec in enumerate(codecs) if codec == PURGED)
        if bits & ~purged:
            found[pack] = bits & ~purged
    return found


def _users(store: Store, places: Chunks, executor: Executor) -> Iterator[tuple[str, bytes]]:
    """Yields repository and path of each file, in any existing commit, that has one of the chunks.
    Raises: InvalidInput if the list of a directory has one."""
    seen: set[object] = set()  # with the path, since each is reported

    def is_new(place: Place[str]) -> bool:
        count, key = len(seen), (place.root, place.path, *stored(place.entry))
        seen.add(key)
        return len(seen) > count

    for tree in walk_trees(store.packs, _roots(store), executor, is_new):
        repo, path, entry = tree.node
        if _is_hit(entry, places):
            raise InvalidInput(
                f"the list of names in {repo}:{path.decode(errors='replace')}/ has a chunk that "
                "is to be purged: only files can be purged, not lists of names"
            )
        for child in tree.content if tree.error is None else ():
            if child.kind is not Kind.DIRECTORY and _is_hit(child, places):
                yield repo, join(path, child.name)


def _roots(store: Store) -> Iterator[Place[str]]:
    """Yields the roots of all commits that can be read, even if no ref leads to them."""
    repos = Repositories()
    repos.fill(store.objects)
    for repo, commit_id in repos.all_commits():
        with contextlib.suppress(*UNREADABLE):
            yield Place(repo, b"", store.commit(repo, commit_id).root)


def _is_hit(entry: TreeEntry, places: Chunks) -> bool:
    return any(
        places.get(pack, 0) >> first & ((1 << count) - 1)
        for pack, first, count, _ in entry.segments
    )


def _files_at(
    store: Store, repo: str, commit_id: CommitId, path: bytes, executor: Executor
) -> list[TreeEntry] | None:
    """Returns the file at that path, or all files below the directory; None if there is neither."""
    root = store.commit(repo, commit_id).root
    try:
        entry = find_in(store.packs, root, Spec(repo, commit_id.hex(), path))
    except NotFound:
        return None
    if entry.kind is not Kind.DIRECTORY:
        return [entry] if entry.kind is Kind.FILE else []
    trees = walk_trees(store.packs, [Place(None, path, entry)], executor)
    return [child for tree in trees for child in tree.content if child.kind is Kind.FILE]


def _commits(store: Store, repo: str) -> Iterator[CommitId]:
    """Yields all existing commits of a repository, even if no ref leads to them."""
    store.require_repo(repo)
    prefix = keys.commits(repo)
    for info in store.objects.list(prefix):
        try:
            yield CommitId(parse_id(info.key[len(prefix) :]))
        except InvalidInput:
            continue


def _ids(index: PackIndex, bits: int) -> Iterable[ChunkId]:
    return (index.chunk_id(n) for n in range(len(index)) if bits >> n & 1)


def _stored(index: PackIndex, bits: int) -> int:
    """Returns the bytes that chunks of a pack take."""
    return sum(size for n, size in enumerate(index.stored_sizes) if bits >> n & 1)


def _known(store: Store, pack: PackId) -> PackIndex:
    return read_index(store.objects, pack).index


def _index(store: Store, pack: PackId) -> PackIndex | PackId | None:
    """Returns the index of a pack; its id if that cannot be read; None if there is no such pack."""
    try:
        return _known(store, pack)
    except NotFound:
        return None
    except (Corrupt, UnknownFormat, Changed):
        return pack
