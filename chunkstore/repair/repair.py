"""Repair: lists what a store has lost or damaged, with the versions concerned, and restores it.

What the store itself knows is repaired first: its journal, refs and index shards. Commits, trees
and data come from sources that have the bytes. docs/decisions/0046 says which source repairs what.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from lodefs.chunkstore.errors import (
    UNREADABLE,
    Corrupt,
    Expired,
    NotFound,
    SourceUnknown,
    UnknownFormat,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import ChunkId, CommitId, PackId, Spec
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.journal.named_packs import add_named
from lodefs.chunkstore.maintenance.late_writes import drop_purged
from lodefs.chunkstore.maintenance.moved_packs import purged_in_places, restore_locations
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.objects.pack_locations import locations_of
from lodefs.chunkstore.repair.journal_repair import JournalRepair
from lodefs.chunkstore.repair.pack_repair import repair_packs
from lodefs.chunkstore.repair.packs import PackDamage, examine, key_of
from lodefs.chunkstore.repair.purge_repair import (
    known_purged,
    listed_purges,
    purge_problems,
    repair_purges,
)
from lodefs.chunkstore.repair.ref_repair import RefDamage, ref_damages, repair_refs
from lodefs.chunkstore.repair.shards import repair_index
from lodefs.chunkstore.repair.sources.source import RepairSource, Root
from lodefs.chunkstore.repo.entry_set import EntrySet
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.repo_settings import SettingsLog
from lodefs.chunkstore.repo.store import SIZE_BYTES_MAX as SETTINGS_SIZE_BYTES_MAX
from lodefs.chunkstore.repo.store import (
    Settings,
    Store,
    decode_settings,
    encode_settings,
)
from lodefs.chunkstore.repo.tree_walk import Place, join, walk_trees
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.system.rate import Rate

WORKERS = 8
TOGETHER_MAX = 4096  # trees that are examined together
NAMED_MAX = 8  # versions and paths that are listed for one object


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """The options of a repair. ``data`` also reads every byte."""

    data: bool = False
    dry_run: bool = False
    workers: int = WORKERS
    clock: Callable[[], float] = time.time


@dataclass(slots=True)
class Finding:
    """One lost or damaged object. ``concerns`` lists what needs it (REPO@COMMIT:PATH).
    ``repaired_from`` is None if no source has it."""

    key: str
    what: str
    concerns: list[str] = field(default_factory=list)
    repaired_from: str | None = None
    lacks: str | None = None  # for a pack: the chunks that no source has, and files that need them


@dataclass(slots=True)
class RepairResult:
    """Counts of the examined objects, and all findings. ``unchecked`` has a line for each source
    of bytes in place that the settings do not name."""

    findings: list[Finding] = field(default_factory=list)
    commits: int = 0
    packs: int = 0
    notes: list[str] = field(default_factory=list)  # the sources' notes about the search
    unchecked: list[str] = field(default_factory=list)

    @property
    def left(self) -> list[Finding]:
        """The findings that were not repaired."""
        return [finding for finding in self.findings if finding.repaired_from is None]


def repair(
    objects: ObjectStore,
    sources: Sequence[RepairSource],
    options: RepairOptions,
    progress: Progress | None = None,
) -> RepairResult:
    """Examines everything that the store's branches and tags lead to, and repairs what it can.

    Raises: NotFound if there is no store at all; UnknownFormat if a newer lodefs has written its
    settings, journal, refs or purges, since only that can repair them; Unavailable, Denied. It can
    be repeated.
    """
    with ThreadPoolExecutor(options.workers, "lodefs-repair") as executor:
        return _Repair(objects, sources, options, progress or Progress(), executor).run()


_Directory = Place[tuple[str, CommitId]]  # below the root of a commit


def _where(place: _Directory) -> str:
    """Returns the place as text."""
    repo, commit_id = place.root
    return str(Spec(repo, commit_id.hex()[:12], place.path))


def _packs_of(places: Iterable[_Directory]) -> list[PackId]:
    """Returns the packs that hold the trees."""
    return list(dict.fromkeys(one.pack for place in places for one in place.entry.segments))


class _Repair:
    """One repair."""

    def __init__(
        self,
        objects: ObjectStore,
        sources: Sequence[RepairSource],
        options: RepairOptions,
        progress: Progress,
        executor: Executor,
    ) -> None:
        self._objects = locations_of(objects)
        self._sources = sources
        self._options = options
        self._progress = progress
        self._executor = executor
        self._reader = PackReader(self._objects)
        self._store = Store(self._objects, Settings("", ChunkingParams()))
        self._result = RepairResult()
        self._packs: dict[PackId, PackDamage | None] = {}  # named packs; None: no known damage
        self._examined: set[PackId] = set()
        self._chunks: dict[PackId, int] = {}  # named chunks: bits of their numbers
        self._is_table_restored = False
        self._is_known = True  # False if something unreadable may name more
        self._concerns: dict[PackId, list[str]] = defaultdict(list)
        self._lacking: dict[PackId, list[str]] = defaultdict(list)  # files without a source
        self._commits: dict[tuple[str, CommitId], Commit] = {}
        self._repairs = 0  # number of repaired packs
        self._unknown: dict[str, PackId] = {}  # by error: the first pack that was not checked
        # The value of _repairs when a pack was last searched for
        self._tried: dict[PackId, int] = {}

    def run(self) -> RepairResult:
        """Repairs locations, settings, journal, refs, commits with their trees and packs,
        shards."""
        options, result = self._options, self._result
        self._progress.phase = "checking store.json"
        self._locations()
        self._settings()
        self._purges()
        self._progress.phase = "checking the journal"
        journal = JournalRepair(self._objects, dry_run=options.dry_run, clock=options.clock)
        journal.look()
        self._progress.phase = "checking branches and tags"
        refs, damages = ref_damages(self._objects, journal.intents, journal.refs, self._sources)
        if not options.dry_run:
            repair_refs(self._objects, damages)
        for damage in damages:
            source = damage.source if damage.is_found else None
            result.findings.append(Finding(damage.key, damage.what, [str(damage)], source))
        self._repo_settings({ref.repo for ref in refs})
        self._history([*self._heads(refs, damages)], journal.deleted)
        self._trees()
        self._data()
        self._unknown_sources()
        for pack_id, pack in self._packs.items():
            if pack is not None:
                concerns = self._concerns[pack_id]
                lacks = _lacks(pack, self._lacking[pack_id])
                finding = Finding(key_of(pack), pack.what, concerns, pack.repaired_from, lacks)
                result.findings.append(finding)
        result.packs = len(self._packs)
        journal.repair(self._chunks if self._is_known else None, self._commits, refs)
        for key, what in sorted(journal.problems.items()):
            is_told = self._is_known or not key.startswith("journal/fates/")
            source = "what is left of it" if is_told else None
            result.findings.append(Finding(key, what, ["the journal"], source))
        self._shards()
        result.notes += [note for source in self._sources for note in source.notes]
        return result

    def _locations(self) -> None:
        """Repairs the locations of packs: without them, all merged packs seem to be lost."""
        dry_run = self._options.dry_run
        lost = restore_locations(self._objects, self._executor, self._purged, dry_run=dry_run)
        self._is_table_restored = lost is not None
        if lost is not None:
            key, what, source = lost
            self._result.findings.append(Finding(key, what, ["where small packs lie"], source))

    def _purged(self) -> set[ChunkId]:
        """Returns all known purged chunks, as far as lost locations and damaged purges allow."""
        purged = known_purged(self._objects)
        if purge_problems(listed_purges(self._objects)):
            purged |= purged_in_places(self._objects, self._executor)
        return purged

    def _settings(self) -> None:
        try:
            decode_settings(read_whole(self._objects, keys.STORE, SETTINGS_SIZE_BYTES_MAX).data)
            return
        except NotFound as error:
            what = "lost"
            if next(iter(self._objects.list(keys.REPOS, limit=1)), None) is None:
                raise NotFound(f"{self._objects.url} is not a lodefs store ({error})") from error
        except Corrupt as error:
            what = f"damaged: {error}"
        found = ((source.settings(), source.url) for source in self._sources)
        known, url = next((one for one in found if one[0]), (None, "the defaults"))
        # with a new id, since what machines recorded about the store may not be true any more
        settings = Settings(os.urandom(16).hex(), known.chunking if known else ChunkingParams())
        if not self._options.dry_run:
            self._objects.put(keys.STORE, [encode_settings(settings)])
        self._result.findings.append(Finding(keys.STORE, what, ["the store"], url))

    def _purges(self) -> None:
        """Repairs purges before packs are rewritten, since a lost purge could bring its bytes
        back."""
        purges = listed_purges(self._objects)
        problems = purge_problems(purges)
        is_all_known = not problems or not self._is_table_restored
        if not self._options.dry_run:
            for number in repair_purges(self._objects, purges, self._options.clock):
                del problems[keys.purge(number)]
            if not is_all_known:  # when the table was rebuilt
                packs = self._objects.tables.newest().places
                drop_purged(self._objects, packs, self._executor, Rate(None))
        for key, what in problems.items():
            finding = Finding(key, what, ["what was purged"], "what packs say was purged")
            self._result.findings.append(finding)

    def _repo_settings(self, repos: set[str]) -> None:
        """Replaces damaged settings of a repository by empty ones, whose only content is that
        history may be gone. A user must set them again."""
        for repo in sorted(repos):
            log = SettingsLog(self._objects, repo, self._options.clock)
            for info in list(self._objects.list(keys.settings(repo))):
                sequence = keys.settings_sequence(info.key)
                try:
                    if sequence >= 0:
                        log.entry(sequence)
                except Corrupt as error:
                    if not self._options.dry_run:
                        log.restore(sequence)
                    concerns = [f"retention and quota of {repo}: set them again"]
                    finding = Finding(info.key, f"damaged: {error}", concerns, "no settings")
                    self._result.findings.append(finding)

    def _heads(
        self, refs: dict[RefName, int], damages: Sequence[RefDamage]
    ) -> Iterator[tuple[str, CommitId]]:
        broken = {(damage.ref, damage.sequence): damage for damage in damages}
        for ref, sequence in refs.items():
            damage = broken.get((ref, sequence))
            if damage is not None:
                commit = damage.commit
            else:
                commit = self._store.refs(ref.repo).entry(ref.kind, ref.name, sequence).commit
            if commit is not None:
                yield ref.repo, commit

    def _history(
        self, heads: Sequence[tuple[str, CommitId]], deleted: Collection[tuple[str, CommitId]]
    ) -> None:
        """Repairs all commits that ``heads`` lead to. Gc runs have deleted those in ``deleted``."""
        waiting, seen = [*heads], set[tuple[str, CommitId]]()
        deleted = set(deleted).difference(heads)
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            commit = self._commit(*at, is_deleted=at in deleted)
            if commit is not None:
                self._commits[at] = commit
                self._result.commits += 1
                waiting += [(at[0], parent) for parent in commit.parents]
                self._progress.phase = f"checking {at[0]}@{at[1].hex()[:12]}"

    def _commit(self, repo: str, commit_id: CommitId, *, is_deleted: bool) -> Commit | None:
        try:
            return self._store.commit(repo, commit_id)
        except Expired:
            return None
        except NotFound:
            if is_deleted:
                self._expire(repo, commit_id)
                return None
            what = "lost"
        except (Corrupt, UnknownFormat) as error:
            what = f"damaged: {error}"
        concerns = [f"{repo}@{commit_id.hex()[:12]}"]
        finding = Finding(keys.commit(repo, commit_id), what, concerns)
        self._result.findings.append(finding)
        for source in self._sources:
            commit = source.commit(repo, commit_id)
            if commit is not None:
                if not self._options.dry_run:
                    self._store.put_commit(repo, commit)
                finding.repaired_from = source.url
                return commit
        self._is_known = False
        return None

    def _expire(self, repo: str, commit_id: CommitId) -> None:
        """Restores the marker of a commit that a policy has expired."""
        if not self._options.dry_run:
            self._store.put_expired(repo, commit_id, int(self._options.clock()))
        key, concerns = keys.expired(repo, commit_id.hex()), [f"{repo}@{commit_id.hex()[:12]}"]
        self._result.findings.append(Finding(key, "lost", concerns, "the journal"))

    def _trees(self) -> None:
        """Collects the named packs of all commits. It repairs packs of trees on the way, so that it
        can read what is below. It repairs many at once, since a source searches all of its data
        each time."""
        self._progress.phase = "checking trees"
        waiting = [Place(at, b"", commit.root) for at, commit in self._commits.items()][::-1]
        add_named(self._chunks, [place.entry for place in waiting])
        with EntrySet() as seen:
            while waiting:
                some = waiting[: -TOGETHER_MAX - 1 : -1]
                del waiting[-TOGETHER_MAX:]
                self._examine(some)
                new = [place for place in some if seen.add(place.entry)]
                unread = [place for place in new if not self._read(place, waiting)]
                self._examine_bytes(unread)
                self._note_all(some)
                for place in unread:
                    if not self._read(place, waiting):
                        self._is_known = False

    def _read(self, place: _Directory, waiting: list[_Directory]) -> bool:
        """Collects what a tree leads to; its subdirectories go to ``waiting``. Returns False if it
        cannot be read."""
        try:
            children = self._reader.read_tree(place.entry)
        except UNREADABLE:
            return False
        add_named(self._chunks, children)
        for child in children:
            if child.kind is Kind.DIRECTORY:
                path = join(place.path, child.name)
                waiting.append(place._replace(path=path, entry=child))
                continue
            for segment in child.segments:
                self._packs.setdefault(segment.pack, None)
        return True

    def _examine(self, places: Sequence[_Directory]) -> None:
        """Examines the packs that hold trees, and repairs them."""
        new = [pack_id for pack_id in _packs_of(places) if pack_id not in self._examined]
        self._examined.update(new)
        self._packs |= dict.fromkeys(new)
        self._repair_bad(new, data=self._options.data)

    def _examine_bytes(self, places: Sequence[_Directory]) -> None:
        """Repairs packs that have a sound index and unreadable trees, after reading all of their
        bytes."""
        known = self._packs
        fine = [
            one
            for one in _packs_of(places)
            if (damage := known.get(one)) is None or damage.repaired_from
        ]
        self._repair_bad(fine, data=True)

    def _repair_bad(self, packs: Sequence[PackId], *, data: bool) -> None:
        found = self._executor.map(partial(self._damage, data=data), packs)
        bad = [damage for damage in found if damage is not None]
        if bad:
            self._packs |= {damage.pack_id: damage for damage in bad}
            self._repair_all(bad)
            self._reader = PackReader(self._objects)  # a new one, without the old caches

    def _damage(self, pack_id: PackId, *, data: bool) -> PackDamage | None:
        look = partial(examine, self._objects, pack_id, named=self._chunks.get(pack_id, 0))
        try:
            return look(data=data)
        except SourceUnknown as error:
            self._unknown.setdefault(str(error), pack_id)
            return look(data=data, in_place=False)

    def _note_all(self, places: Sequence[_Directory]) -> None:
        for place in places:
            for pack_id in _packs_of([place]):
                if self._packs[pack_id] is not None:
                    _note(self._concerns[pack_id], _where(place))

    def _repair_all(self, damages: Sequence[PackDamage]) -> None:
        repair_packs(
            self._objects,
            damages,
            self._sources,
            self._executor,
            dry_run=self._options.dry_run,
            named=self._chunks,
            roots=lambda: [Root(*at, commit.root) for at, commit in self._commits.items()],
        )
        self._repairs += sum(damage.repaired_from is not None for damage in damages)
        self._tried |= dict.fromkeys((damage.pack_id for damage in damages), self._repairs)

    def _data(self) -> None:
        """Examines all packs of files concurrently, then lists the files in the bad ones."""
        self._progress.phase = "checking packs"
        packs = [pack_id for pack_id in self._packs if pack_id not in self._examined]
        data = self._options.data
        for damage in self._executor.map(partial(self._damage, data=data), packs):
            self._progress.files_done += 1
            if damage is not None:
                self._packs[damage.pack_id] = damage
        bad = [damage for damage in self._packs.values() if damage and not damage.repaired_from]
        self._name(bad, self._concerns)
        self._progress.phase = "searching for lost data"
        self._repair_all(
            [damage for damage in bad if self._tried.get(damage.pack_id) != self._repairs]
        )
        left = [damage for damage in bad if damage.absent and damage.repaired_from is None]
        self._name([replace(damage, good=~damage.absent) for damage in left], self._lacking)

    def _unknown_sources(self) -> None:
        """Adds a line for each source that the settings do not name."""
        packs = self._unknown.values()
        names: dict[PackId, list[str]] = defaultdict(list)
        self._name([PackDamage(pack_id, is_lost=False, what="") for pack_id in packs], names)
        for error, pack_id in self._unknown.items():
            first = names[pack_id][0] if names[pack_id] else keys.pack(pack_id)
            line = f"{first}, and all else that lies there, was not checked: {error}"
            self._result.unchecked.append(line)

    def _name(self, bad: Sequence[PackDamage], names: dict[PackId, list[str]]) -> None:
        """Adds the files that need a missing chunk of the bad packs."""
        damages = {damage.pack_id: damage for damage in bad}
        roots = (Place(at, b"", commit.root) for at, commit in self._commits.items() if damages)
        with EntrySet() as seen:
            for tree in walk_trees(
                PackReader(self._objects), roots, self._executor, lambda one: seen.add(one.entry)
            ):
                for child in tree.content if tree.error is None else ():
                    for segment in child.segments:
                        damage = damages.get(segment.pack)
                        if damage is not None and damage.lacks(segment.first, segment.count):
                            path = join(tree.node.path, child.name)
                            _note(names[segment.pack], _where(tree.node._replace(path=path)))

    def _shards(self) -> None:
        self._progress.phase = "checking index shards"

        def keeps(pack_id: PackId) -> bool:
            """Whether to keep a pack in shards. A lost tree may name any pack, and a later source
            may have both."""
            return not self._is_known or pack_id in self._packs

        dry_run = self._options.dry_run
        in_part = {pack for pack, damage in self._packs.items() if damage and damage.is_partial}
        found = repair_index(
            self._objects,
            self._executor,
            self._progress,
            keeps=keeps,
            in_part=in_part,
            dry_run=dry_run,
        )
        for what, names in (
            ("damaged", found.damaged),
            ("names packs that are gone or not whole", found.outdated),
        ):
            for key in names:
                finding = Finding(key, what, ["what pushes find to use again"], "the packs")
                self._result.findings.append(finding)
        if found.listed and not found.damaged:
            what = f"no shard lists {len(found.listed)} packs"
            concerns = ["what pushes find to use again"]
            self._result.findings.append(Finding(keys.INDEX, what, concerns, "the packs"))


def _note(names: list[str], where: str) -> None:
    if where not in names and len(names) < NAMED_MAX:
        names.append(where)


def _lacks(pack: PackDamage, files: Sequence[str]) -> str | None:
    if not pack.absent or pack.repaired_from is not None:
        return None
    named = f", of {', '.join(files)}" if files else ""
    return f"{pack.absent.bit_count()} of its {pack.absent_of} chunks{named}"
