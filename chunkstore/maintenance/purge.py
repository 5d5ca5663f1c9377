"""Purge: bytes that have to be gone from all versions at once, without a grace time.

The packs that hold them are written again without them, as a compaction does it; their indexes say
why (docs/decisions/0047).
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
from lodefs.chunkstore.maintenance.compact import Rate, drop_all
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

WORKERS = 16
PACKS_AT_ONCE = 4  # written again; each is in memory meanwhile
SHARED_SHOWN_MAX = 20

Chunks = dict[PackId, int]  # of packs, by the bits of their numbers


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a store, before which all commits were put that came from writers up to the
    journal's ``newest`` entry, but for those that are ``waiting``; ``moves``: as of PackLocations,
    as packs that a repair had overlooked may have been found since."""

    newest: int
    waiting: frozenset[int]
    moves: int


@dataclass(slots=True)
class PurgePlan:
    """What a purge would remove. ``targets``: repositories and paths that it is meant for;
    ``versions``: commits that lead there; ``shared``: other paths ("REPO:PATH") that need some of
    these chunks; ``unreadable``: packs with a damaged index, which may hold the bytes too;
    ``damaged``: commits that cannot be read, and that no branch or tag leads to: what they alone
    lead to is not looked at."""

    what: str
    targets: tuple[tuple[str, bytes], ...] = ()
    seen: Moment | None = None  # when ``shared`` was looked for
    chunks: list[ChunkId] = field(default_factory=list)
    packs: Chunks = field(default_factory=dict)
    size_bytes: int = 0  # of the chunks that are there, each place
    versions: int = 0
    shared: list[str] = field(default_factory=list)
    unreadable: list[PackId] = field(default_factory=list)
    damaged: list[CommitId] = field(default_factory=list)


@dataclass(slots=True)
class PurgeResult:
    """What a purge did. ``left``: packs that hold such bytes still, or may, since they are damaged;
    ``shared``: other paths that came to need the bytes while it began; ``writers``: that had begun
    before and had not ended then: they may have put them into another pack, or yet do."""

    packs: int = 0
    size_bytes: int = 0
    left: list[PackId] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    writers: int = 0


def plan_path(store: Store, repo: str, path: bytes, progress: Progress | None = None) -> PurgePlan:
    """What it takes to purge a file, or all files below a directory, from all versions of a
    repository. Raises: NotFound if no version has it; Corrupt; what the store raises."""
    progress = progress or Progress()
    path = path.strip(b"/")
    if not path:
        raise InvalidInput("name a file or a directory: to delete a repository, see lodefs rm")
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
    """What it takes to purge one chunk, wherever it is. Raises: NotFound if no pack has it, nor an
    object of merged ones from which its pack was deleted."""
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
    """What it takes to purge what another store has purged, and this one has not: the same bytes,
    and for the same paths. Raises: Corrupt; what the stores raise."""
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
    """Raises: InvalidInput that names other paths which need bytes that are to be purged."""
    if shared:
        names = sorted(shared)
        more = len(names) - SHARED_SHOWN_MAX
        shown = ", ".join(names[:SHARED_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        raise InvalidInput(
            f"other files need some of these bytes, and would be purged too: {shown}. If that is "
            "wanted, say --also-shared"
        )


def purge(
    store: Store,
    plan: PurgePlan,
    clock: Callable[[], float] = time.time,
    progress: Progress | None = None,
    *,
    also_shared: bool = False,
) -> PurgeResult:
    """Removes what was planned. It may be repeated after an interruption, with a new plan.

    The purge is put first, so that no push stores the bytes again, and once more at the end: nodes
    that have dropped them may have read them again meanwhile. Raises: InvalidInput if other files
    came to need the bytes since the plan, unless ``also_shared``; what the store does.
    """
    progress = progress or Progress()
    store.ensure_writable()
    place = RefWrite(store, clock)  # who begins after it adds no chunks to packs until it has ended
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
    """As of purge. ``own``: the number of its place in the journal, the first of two entries."""
    result = PurgeResult()
    with ThreadPoolExecutor(WORKERS, "lodefs-purge") as executor:
        known = set(plan.shared)
        plan = _up_to_date(store, plan, own, executor, progress)
        if not also_shared:
            check_shared(set(plan.shared) - known)
        purges = Purges(store.objects)
        purges.append(plan.chunks, plan.what, int(clock()))
        write = RefWrite(store, clock)
        newest = write.begin().number  # who begins after it knows the purge
        write.close()
        result.writers = _begun_before(store, newest, own, executor)
        known = set(plan.shared)
        plan = _up_to_date(store, plan, own, executor, progress)
        result.shared = sorted(set(plan.shared) - known)
    progress.phase = f"writing {len(plan.packs)} packs again"
    result.left += plan.unreadable
    with ThreadPoolExecutor(PACKS_AT_ONCE, "lodefs-purge") as executor:
        dead = [DeadChunks(*one) for one in sorted(plan.packs.items())]
        rate = Rate(None)
        objects = locations_of(store.objects)
        drop_doubles(objects, executor)  # no reader sees what such an object has and lacks
        for size_bytes in drop_all(objects, dead, PURGED, executor, rate):
            result.packs += size_bytes > 0
            result.size_bytes += size_bytes
        objects.tables.fence()  # a merge that has read them before puts them nowhere from now on
        drop_purged(objects, plan.packs, executor, rate)
        sweep_moved(objects, executor)  # a merge that died may have left them somewhere
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
    """What of all earlier purges is there again: a writer that had begun before one of them, or a
    compaction that stood still, may have put it there."""
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
    """All places of the chunks, and who else needs them. ``named``: as of ``_find_places``."""
    plan.chunks = sorted(ids)
    _find_places(store, plan, ids, executor, progress, named)
    progress.phase = "looking for who else needs it"
    for repo, path in _users(store, _unpurged(store, plan.packs, executor), executor):
        own = (at for one, at in plan.targets if one == repo)
        if not any((path + b"/").startswith(at + b"/") for at in own):
            plan.shared.append(f"{repo}:{quote_from_bytes(path)}")
    plan.shared = sorted(set(plan.shared))


def _up_to_date(
    store: Store, plan: PurgePlan, own: int, executor: Executor, progress: Progress
) -> PurgePlan:
    """A plan for the same chunks: which packs hold them now, and which paths need them now. If the
    journal has only one entry more, which is the purge's, and no pack was moved, it is the plan
    that was given. ``own``: the number of the purge's place in the journal."""
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
    """How many other writers than ``own`` began before an entry and have not ended. Looked at
    before packs are listed: what a writer that has ended by then has put is found."""
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
    """All places of chunks: reads the index of each pack, those of dead pushes too; and of the
    packs that versions have ``named``, which a list may lack. Again while packs are moved: a list
    may then lack them."""
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
    """Those of the list, then the others."""
    lacking = set(named)
    for pack in listed:
        lacking.discard(pack)
        yield pack
    yield from lacking


def _unpurged(store: Store, places: Chunks, executor: Executor) -> Chunks:
    """Those of the chunks that do not count as purged: of the others nobody loses anything."""
    found: Chunks = {}
    indexes = executor.map(lambda pack: _index(store, pack), places)
    for (pack, bits), index in zip(places.items(), indexes, strict=True):
        codecs = index.codecs if isinstance(index, PackIndex) else b""
        purged = sum(1 << n for n, codec in enumerate(codecs) if codec == PURGED)
        if bits & ~purged:
            found[pack] = bits & ~purged
    return found


def _users(store: Store, places: Chunks, executor: Executor) -> Iterator[tuple[str, bytes]]:
    """Repository and path of each file, in any commit that is there, that has one of the chunks.
    Raises: Unsupported-like InvalidInput if a directory's own list has."""
    seen: set[object] = set()  # with the path: each is asked for

    def is_new(place: Place[str]) -> bool:
        count, key = len(seen), (place.root, place.path, *stored(place.entry))
        seen.add(key)
        return len(seen) > count

    for tree in walk_trees(store.packs, _roots(store), executor, is_new):
        repo, path, entry = tree.node
        if _is_hit(entry, places):
            raise InvalidInput(
                f"a list of names ({repo}:{path.decode(errors='replace')}/) has a chunk that "
                "is to be purged: what is in directories cannot be purged, only files"
            )
        for child in tree.content if tree.error is None else ():
            if child.kind is not Kind.DIRECTORY and _is_hit(child, places):
                yield repo, join(path, child.name)


def _roots(store: Store) -> Iterator[Place[str]]:
    """Those of all commits that can be read, also such that no ref leads to."""
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
    """The file of that path, or all files below the directory; None if there is neither."""
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
    """All commits of a repository that are there, also those that no ref leads to."""
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
    """The bytes that chunks of a pack take."""
    return sum(size for n, size in enumerate(index.stored_sizes) if bits >> n & 1)


def _known(store: Store, pack: PackId) -> PackIndex:
    return read_index(store.objects, pack).index


def _index(store: Store, pack: PackId) -> PackIndex | PackId | None:
    """The index of a pack; its id if that cannot be read; None if there is no such pack."""
    try:
        return _known(store, pack)
    except NotFound:
        return None
    except (Corrupt, UnknownFormat, Changed):
        return pack
