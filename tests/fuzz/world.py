"""Some stores and machines, and how each command is carried out: as the command line does it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from fractions import Fraction
from io import BytesIO
from itertools import count
from pathlib import Path
from random import Random
from unittest import mock

from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.journal.deletion import (
    delete_repo,
    deleted_ref_of,
    ref_of,
    undelete_ref,
    undelete_repo,
)
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.maintenance.adopt import adopt
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.maintenance.purge import plan_again, plan_path, purge
from lodefs.chunkstore.maintenance.tree_groups import GroupNames, read_group
from lodefs.chunkstore.objects.in_place.virtual_packs import VirtualPacks
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.mirrored import Mirrored
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.push.changes.change import Change as OneChange
from lodefs.chunkstore.push.changes.change import CopyFrom, Put, Remove
from lodefs.chunkstore.push.changes.change import Rename as OneRename
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.changes.merge_branch import merge_branch
from lodefs.chunkstore.push.changes.revert_commit import revert_commit
from lodefs.chunkstore.push.in_place import InPlace
from lodefs.chunkstore.push.pack_writer import Placement
from lodefs.chunkstore.push.parts.finish import finish_plan
from lodefs.chunkstore.push.parts.part_row import Outcome as PartOutcome
from lodefs.chunkstore.push.parts.part_row import do_parts
from lodefs.chunkstore.push.parts.part_scan import PartLimits
from lodefs.chunkstore.push.parts.plan import discard_plan, make_plan, open_plan
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.push.remote import remote_files
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repair.scrub import ScrubOptions, scrub
from lodefs.chunkstore.repair.shards import repair_index
from lodefs.chunkstore.repair.sources.local_sources import DirectorySource
from lodefs.chunkstore.repair.sources.proxy_source import ProxySource
from lodefs.chunkstore.repair.sources.source import RepairSource, StoreSource, listed_packs
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.transfer.bundle import create_bundle, standing, unpack_bundle
from lodefs.chunkstore.transfer.bundle_file import BundleReader, check_bundle
from lodefs.chunkstore.transfer.copy import CopyOptions, copy
from lodefs.chunkstore.transfer.fork import fork
from lodefs.chunkstore.transfer.rename import RenameOptions, rename
from tests.fuzz import commands as say
from tests.fuzz.processes import of_process, rules_of
from tests.fuzz.reading import StoredProxy, read_commit
from tests.support.chunkstore.faulty_store import Rule
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.memory_server_copy import MemoryServerCopy
from tests.support.chunkstore.memory_source import MemorySource, SourceFiles, sources_of
from tests.support.maintenance.baton import Actor, ActorObjects, Faults, InlineExecutor, Killed

CHUNKING = ChunkingParams(128, 512, 2048)
PACKS = (3000, 6000, 12_000)  # sizes of those of files
PACK_MEMORY = 1 << 16
COPY_BELOW_BYTES = 1000  # smaller objects of buckets are copied
PARTS = PartLimits(files=2, size_bytes=20_000)
HOUR_S = 3600
POLICIES = (
    None,
    Retention(keep_last=1),
    Retention(keep_last=2),
    Retention(keep_tagged=True),
)


@dataclass(frozen=True)
class Outcome:
    """How a command ended: ``error`` of one that was refused or failed; ``result``: what it says
    that it did; None of one whose process died."""

    result: object = None
    error: LodefsError | None = None
    was_killed: bool = False


@dataclass(frozen=True)
class Material:
    """Contents of files, and directories that have some of them."""

    root: Path
    blobs: tuple[bytes, ...]
    sources: tuple[dict[bytes, bytes], ...]


def make_material(root: Path) -> Material:
    """The same each time. Blobs have one or several chunks; some share chunks with others."""
    random = Random(1)
    blobs = [random.randbytes(size) for size in (40, 300, 900, 2500, 4000, 9000, 20_000, 600)]
    blobs += [blobs[5][:6000] + random.randbytes(1500), blobs[6][4000:] + b"end", b"", b"x" * 5000]
    assert len(blobs) == say.BLOBS
    sources: list[dict[bytes, bytes]] = []
    for number in range(say.SOURCES):
        names = random.sample(say.PATHS, random.randint(2, len(say.PATHS)))
        files = {name.encode(): random.choice(blobs) for name in names}
        sources.append(files)
        for name, data in files.items():
            path = root / f"source{number}" / name.decode()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return Material(root, tuple(blobs), tuple(sources))


class Hand:
    """Somebody at a machine, in one process."""

    def __init__(self, world: World, machine: int, give: Callable[[int], ObjectStore]) -> None:
        self._world = world
        self._machine = machine
        self._give = give

    def objects(self, number: int) -> ObjectStore:
        """A store's objects, as all commands see them."""
        return self._world.located(self._give(number))

    def store(self, number: int) -> Store:
        """A store, opened anew."""
        return open_store(self.objects(number))

    def clock(self) -> float:
        """What the machine takes for the time."""
        return self._world.now_s + self._world.wrong_hours[self._machine] * HOUR_S

    def options(self, *, check: bool = False) -> PushOptions:
        """Those of a push."""
        return PushOptions(
            message="",
            author="",
            time_s=int(self.clock()),
            index_dir=self._world.directory / f"machine{self._machine}",
            workers=0,
            clock_ns=lambda: time.time_ns() + HOUR_S * 10**9,
            clock=self.clock,
            check_packs=check,
        )


class World:
    """The stores, the machines, and the time."""

    def __init__(self, directory: Path, material: Material, stores: list[MemoryObjects]) -> None:
        self.directory = directory
        self.material = material
        self.stores = stores
        self.now_s = 1_800_000_000.0
        self.wrong_hours = [0.0] * say.MACHINES
        self.buckets = [MemorySource(f"bucket{n}", has_versions=n > 0) for n in range(say.BUCKETS)]
        for bucket, files in zip(self.buckets, material.sources, strict=False):
            for path, data in files.items():
                bucket.put(path.decode(), data)
        for objects in stores:
            create_store(objects, CHUNKING)

    def located(self, objects: ObjectStore) -> PackLocations:
        """A store as all commands see it."""
        return PackLocations(VirtualPacks(objects, sources_of(*self.buckets)))

    def contents(self, bucket: int) -> dict[bytes, bytes]:
        """What a bucket has now."""
        return _contents(self.buckets[bucket])

    def foreign_reads(self) -> int:
        """How many ranges were read in all buckets."""
        return sum(len(bucket.reads) for bucket in self.buckets)

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """URLs lead to the buckets."""

        files = {f"memory://{bucket.name}": SourceFiles(bucket) for bucket in self.buckets}
        for url, one in files.items():
            one.url = one.location = url
        with mock.patch.dict(remote_files.SCHEMES, {"memory": files.__getitem__}):
            yield

    def hand(self, machine: int, rules: list[Rule]) -> Hand:
        """A process of its own, with what is wrong with its requests."""
        return Hand(self, machine, lambda number: of_process(self.stores[number], rules))

    def perform(self, command: say.Command) -> list[tuple[say.Command, Outcome]]:
        """Carries a command out; of two at once both."""
        self.now_s += 60
        match command:
            case say.Wait(hours):
                self.now_s += hours * HOUR_S
            case say.SetClock(machine, hours):
                self.wrong_hours[machine] = hours
            case say.Damage():
                self._damage(command)
            case say.ChangeObject(bucket, path, blob):
                source = self.buckets[bucket]
                if blob is not None:
                    source.put(path, self.material.blobs[blob])
                else:
                    source.delete(path)
            case say.Both():
                return self._both(command)
            case _:
                hand = self.hand(command.machine, rules_of(command.fault))
                return [(command, _ended(lambda: carry_out(self, hand, command)))]
        return [(command, Outcome())]

    def _both(self, command: say.Both) -> list[tuple[say.Command, Outcome]]:
        random = Random(command.order)
        actors: list[Actor] = []
        outcomes: dict[int, Outcome] = {}
        for number, one in enumerate((command.one, command.other)):

            def act(actor: Actor, number: int = number, one: say.Single = one) -> None:
                rules, faults = rules_of(one.fault), Faults(Random(0))

                def give(store: int) -> ObjectStore:
                    objects = of_process(self.stores[store], rules)
                    return ActorObjects(objects, actor, faults, lambda *_: None)

                hand = Hand(self, one.machine, give)
                outcomes[number] = _ended(lambda: carry_out(self, hand, one))

            actors.append(Actor(type(one).__name__, act))
        while living := [actor for actor in actors if not actor.has_ended]:
            actor = random.choice(living)
            for _ in range(random.choice((1, 1, 2, 5, 30))):
                if not actor.has_ended:
                    actor.step()
        for actor in actors:
            if actor.failure is not None:
                raise actor.failure
        return [(command.one, outcomes[0]), (command.other, outcomes[1])]

    def _damage(self, command: say.Damage) -> None:
        objects = self.stores[command.store]
        there = sorted(key for key in objects.objects if key.startswith(command.prefix))
        there = [key for key in there if key != keys.STORE]
        if not there:
            return
        key = there[int(command.pick * len(there))]
        data = objects.objects[key]
        at = int(command.at * len(data))
        match command.how:
            case "lose":
                objects.delete(key)
            case "cut":
                objects.put(key, [data[:at]])
            case "empty":
                objects.put(key, [b""])
            case "flip" if data:
                objects.put(key, [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]])


def _ended(act: Callable[[], object]) -> Outcome:
    try:
        return Outcome(result=act())
    except LodefsError as error:
        return Outcome(error=error)
    except Killed:
        return Outcome(was_killed=True)


def carry_out(world: World, hand: Hand, command: say.Single) -> object:
    """One command; gives its result. Raises what it does."""
    match command:
        case say.Push():
            source = world.material.root / f"source{command.source}"
            options = hand.options(check=command.check)
            return push(hand.store(command.store), source, command.repo, command.branch, options)
        case say.Import() | say.Adopt():
            return _in_place(world, hand, command)
        case say.Change() | say.CopyPath():
            return _change(world, hand, command)
        case say.Merge() | say.Revert():
            return _bring(hand, command)
        case say.Point() | say.Delete() | say.Undelete() | say.Retain() | say.Fork() | say.Rename():
            return _set_refs(hand, command)
        case say.Collect() | say.Purge():
            return _remove(hand, command)
        case say.Copy():
            return _copy(world, hand, command)
        case say.Bundle():
            return _bundle(hand, command)
        case say.Repair():
            return _repair(world, hand, command)
        case say.Scrub() | say.ReadMirrored():
            return _read(hand, command)
        case say.PlanCreate() | say.PlanPart() | say.PlanFinish() | say.PlanDiscard():
            return _in_parts(world, hand, command)


def without_buckets(objects: ObjectStore) -> PackLocations:
    """A store as all commands see it once the buckets are empty."""
    empty = (MemorySource(f"bucket{n}") for n in range(say.BUCKETS))
    return PackLocations(VirtualPacks(objects, sources_of(*empty)))


def _contents(bucket: MemorySource) -> dict[bytes, bytes]:
    """What a bucket has now."""
    there = bucket.current.items()
    return {key.encode(): bucket.versions[key, version] for key, version in there}


def _in_place(world: World, hand: Hand, command: say.Import | say.Adopt) -> object:
    store = hand.store(command.store)
    if isinstance(command, say.Adopt):
        return adopt(store, None if command.rev is None else Spec(command.repo, command.rev))
    name = world.buckets[command.bucket].name
    options = replace(hand.options(), in_place=InPlace(name, "", COPY_BELOW_BYTES))
    return push(store, f"memory://{name}", command.repo, command.branch, options)


def _in_parts(
    world: World,
    hand: Hand,
    command: say.PlanCreate | say.PlanPart | say.PlanFinish | say.PlanDiscard,
) -> object:
    store, options, name = hand.store(command.store), hand.options(), f"plan{command.plan}"
    match command:
        case say.PlanCreate():
            number, repo, branch = say.PLANS[command.plan]
            source = world.material.root / f"source{number}"
            return make_plan(store, name, source, repo, branch, options, limits=PARTS)
        case say.PlanPart(pick=pick):
            parts = open_plan(store, name).plan.parts
            numbers = range(parts) if pick is None else [int(pick * parts)]
            found: list[PartOutcome] = []
            do_parts(store, name, numbers, options, lambda _, outcome: found.append(outcome))
            for outcome in found:
                if isinstance(outcome, LodefsError):
                    raise outcome
            return found
        case say.PlanFinish():
            return finish_plan(store, name, options)
        case say.PlanDiscard():
            return discard_plan(store, name)


def _change(world: World, hand: Hand, command: say.Change | say.CopyPath) -> object:
    if isinstance(command, say.CopyPath):
        return _copy_path(hand, command)
    changes: list[OneChange] = []
    for path, blob in command.files:
        changes.append(Remove(path) if blob is None else Put(path, world.material.blobs[blob]))
    store, options = hand.store(command.store), hand.options()
    return commit_changes(store, command.repo, command.branch, changes, options)


def _copy_path(hand: Hand, command: say.CopyPath) -> object:
    """As lodefs cp and mv do it."""
    store, path, to = hand.store(command.store), command.path.encode(), command.to.encode()
    spec, commit_id = store.locate(Spec(command.source, command.rev, path))
    copied = CopyFrom(Spec(spec.repo, commit_id.hex(), path), to)
    if not command.move:
        return commit_changes(store, command.repo, command.branch, [copied], hand.options())
    store.refs(spec.repo).read(BRANCHES, spec.rev)
    if (spec.repo, spec.rev) == (command.repo, command.branch):
        renamed = OneRename(path, to)
        return commit_changes(store, spec.repo, spec.rev, [renamed], hand.options())
    commit_changes(store, command.repo, command.branch, [copied], hand.options())
    return commit_changes(
        store, spec.repo, spec.rev, [Remove(path)], hand.options(), base=commit_id
    )


def _bring(hand: Hand, command: say.Merge | say.Revert) -> object:
    store, repo, branch = hand.store(command.store), command.repo, command.branch
    if isinstance(command, say.Revert):
        at = _picked(store, repo, command.pick)
        parent = 1 if len(store.commit(repo, at).parents) > 1 else None
        return revert_commit(store, repo, branch, at, hand.options(), parent=parent)
    other = store.resolve(repo, command.other)
    choices: dict[tuple[bytes, ...], bool] = {(): False}
    return merge_branch(store, repo, branch, other, hand.options(), choices=choices)


def _set_refs(
    hand: Hand,
    command: say.Point | say.Delete | say.Undelete | say.Retain | say.Fork | say.Rename,
) -> object:
    store, repo = hand.store(command.store), command.repo
    match command:
        case say.Point(pick=pick, name=name):
            kind = TAGS if name in say.TAGS else BRANCHES
            return _point(store, hand, RefName(repo, kind, name), pick)
        case say.Fork(pick=pick, new=new):
            return fork(store, repo, _picked(store, repo, pick), new, hand.clock)
        case say.Rename(new=new, ended=ended):
            names = RenameOptions("me", 0 if ended else 1 << 40, hand.clock)
            return rename(store, repo, new, names)
        case say.Delete(name=None):
            return delete_repo(store, repo, "me", hand.clock)
        case say.Delete(name=str(name)):
            store.require_repo(repo)
            ref, entry = ref_of(store, repo, name)
            sequence = entry.sequence
            return store.refs(repo).advance(ref.kind, ref.name, None, expected_sequence=sequence)
        case say.Undelete(name=None):
            return undelete_repo(store, repo, hand.clock)
        case say.Undelete(name=str(name)):
            return undelete_ref(store, deleted_ref_of(store, repo, name), hand.clock)
        case say.Retain():
            policy, quota = POLICIES[command.policy], say.QUOTAS[command.quota]
            store.require_repo(repo)
            return store.settings_log(repo, hand.clock).change(
                lambda now: replace(
                    now,
                    retention=policy,
                    may_lack_history=now.may_lack_history or policy is not None,
                    quota_size_bytes=quota,
                )
            )
    raise AssertionError(command)


def _picked(store: Store, repo: str, pick: float) -> CommitId:
    """Any commit of a repository, whatever leads to it."""
    there = sorted(info.key for info in store.objects.list(keys.commits(repo)))
    if not there:
        raise NotFound("no commit yet")
    commit_id = CommitId(bytes.fromhex(there[int(pick * len(there))].rpartition("/")[2]))
    store.commit(repo, commit_id)
    return commit_id


def _point(store: Store, hand: Hand, ref: RefName, pick: float) -> object:
    commit_id = _picked(store, ref.repo, pick)
    latest = store.refs(ref.repo).latest(ref.kind, ref.name)
    if latest is not None and latest.commit is not None:
        raise NotFound("it is there already")
    store.check_new_ref(*ref)
    store.ensure_writable()
    sequence = None if latest is None else latest.sequence
    return point_ref(store, ref, commit_id, expected_sequence=sequence, clock=hand.clock)


def _remove(hand: Hand, command: say.Collect | say.Purge) -> object:
    store = hand.store(command.store)
    if isinstance(command, say.Collect):

        def read(groups: Iterable[Sequence[TreeEntry]]) -> Iterator[GroupNames]:
            return (read_group(store.packs, group, 1) for group in groups)

        options = CollectOptions(
            clock=hand.clock,
            workers=1,
            min_used=command.min_used,
            merge_below_bytes=command.merge_below,
            read_groups=read if command.merge_below is None else None,  # as tasks elsewhere
        )
        return collect(store, options)
    if command.pick is None:
        plan = plan_again(store)
    else:
        plan = plan_path(store, command.repo, say.path_of(command.pick).encode())
    return plan, purge(store, plan, hand.clock, also_shared=True) if plan.packs else None


def _copy(world: World, hand: Hand, command: say.Copy) -> object:
    options = CopyOptions(workers=1, step_size_bytes=3000, clock=hand.clock)
    server = None
    if command.by_server:
        server = MemoryServerCopy(world.stores[command.source], world.stores[command.store])
    source, destination = hand.store(command.source), hand.store(command.store)
    return copy(source, destination, [command.repo], command.rev, options, server=server)


def _bundle(hand: Hand, command: say.Bundle) -> object:
    source, destination = hand.store(command.source), hand.store(command.store)
    since = None
    if command.since:
        for kind in (BRANCHES, TAGS):
            latest = destination.refs(command.repo).latest(kind, command.rev)
            if latest is not None and latest.commit is not None:
                since = latest.commit.hex()
                break
    file = BytesIO()
    create_bundle(source, command.repo, command.rev, since, file, clock=hand.clock)
    file.seek(0)
    size_bytes = check_bundle(file, "the bundle").size_bytes
    file.seek(0)
    reader = BundleReader(file, "the bundle")
    now = standing(reader, destination)
    return unpack_bundle(reader, destination, now, size_bytes=size_bytes, clock=hand.clock)


def _repair(world: World, hand: Hand, command: say.Repair) -> object:
    objects = hand.objects(command.store)
    if command.index:
        executor: Executor = InlineExecutor()
        return repair_index(open_store(objects).objects, executor, Progress())
    sources = [_source(world, hand, objects, name) for name in command.sources]
    options = RepairOptions(data=command.data, workers=1, clock=hand.clock)
    return repair(objects, sources, options)


def _source(world: World, hand: Hand, own: ObjectStore, name: str) -> RepairSource:
    kind, _, number = name.partition(":")
    if kind == "store":
        return StoreSource(hand.objects(int(number)))
    if kind == "proxy":
        return ProxySource(name, StoredProxy(hand.store(int(number))))
    directory = world.material.root / f"source{number}"
    return DirectorySource(directory, CHUNKING, lambda: listed_packs(own))


def _read(hand: Hand, command: say.Scrub | say.ReadMirrored) -> object:
    """All commits that the refs lead to, with one mirror; of a scrub packs."""
    if isinstance(command, say.Scrub):
        options = ScrubOptions(Fraction(1, command.parts), workers=1, clock=hand.clock)
        return scrub(hand.objects(command.store), options)
    both = [hand.objects(command.store), hand.objects(command.mirror)]
    store = open_store(Mirrored(both, start=lambda call: call()))
    found = {}
    for repo in list(store.repos()):
        refs = store.refs(repo)
        for kind in (BRANCHES, TAGS):
            for _, entry in refs.living(kind):
                assert entry.commit is not None
                found[repo, entry.commit] = read_commit(store, (repo, entry.commit))
    return found


@contextlib.contextmanager
def one_process(seed: int) -> Iterator[None]:
    """Random bytes come from the seed, small packs are made, and time_ns counts."""
    counted = count(10**18)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(Placement.__init__, "__defaults__", (PACKS,)))
        stack.enter_context(
            mock.patch("lodefs.chunkstore.push.pack_writer._BODY_SIZE_BYTES", PACK_MEMORY)
        )
        stack.enter_context(mock.patch("os.urandom", Random(seed).randbytes))
        stack.enter_context(mock.patch("time.time_ns", counted.__next__))
        yield
