"""What a node shows of branches while its store is away: nothing older than what it showed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.objects.mirrored import Mirrored
from lodefs.proxy.read.last_seen import LastSeen, known_store, store_or_error
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.handmade import Handmade, memory_store
from tests.support.chunkstore.memory_key_values import MemoryKeyValues
from tests.support.chunkstore.memory_objects import MemoryObjects

DEAD = Unavailable("nobody answers")


@dataclass
class Site:
    """A store, a mirror of it, and a node, which has seen something of them."""

    maker: Handmade = field(default_factory=lambda: Handmade(memory_store()))
    kv: MemoryKeyValues = field(default_factory=MemoryKeyValues)
    pushes: int = 0

    def __post_init__(self) -> None:
        self.first = FaultyObjects(self.maker.store.objects)
        self.mirror = MemoryObjects("memory:mirror")
        self.start()

    def start(self) -> None:
        """The node starts anew."""
        objects = Mirrored([self.first, self.mirror], start=lambda _: None)
        self.seen = LastSeen(known_store(store_or_error(objects), objects, self.kv), self.kv)

    def push(self, branch: str = "main") -> CommitId:
        """One more commit."""
        self.pushes += 1
        return self.maker.commit("r", {b"f": b"x"}, branch=branch, message=str(self.pushes))

    def copy(self) -> None:
        """The mirror is fetched up to date."""
        source = self.maker.store.objects
        assert isinstance(source, MemoryObjects)
        self.mirror.objects = dict(source.objects)

    def look(self, branch: str = "main") -> CommitId:
        """What the node shows; it remembers what the store says."""
        commit, is_last = self.seen.resolve("r", branch)
        if is_last:
            self.seen.note("r", branch, commit.hex(), self.maker.store.commit("r", commit).time_s)
        return commit


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_branch_never_goes_back(site: Site) -> None:
    """What was seen is shown on while a mirror, which is behind, stands in; also after a
    restart."""
    old = site.push()
    site.copy()
    new = site.push()
    assert site.look() == new
    site.first.add(fail(DEAD))
    assert site.look() == new
    site.start()
    assert site.look() == new
    assert site.seen.newer("r", "main", old) == new
    site.first.forget()
    newest = site.push()
    site.start()
    assert site.look() == newest


def test_a_mirror_that_went_on_is_believed(site: Site) -> None:
    """One that has what was seen, and more after it, is no step back; nor is what this node has
    never seen."""
    site.push()
    other = site.push("other")
    site.look()
    for _ in range(3):
        newest = site.push()
    site.copy()
    site.first.add(fail(DEAD))
    assert site.look() == newest
    assert site.look("other") == other


def test_what_a_mirror_lacks_is_known_if_it_was_seen(site: Site) -> None:
    """A branch that was made after the last copy is shown if this node has seen it; another one is
    not known to be missing."""
    site.push()
    site.copy()
    made = site.push("made")
    site.push("unseen")
    assert site.look("made") == made
    site.first.add(fail(DEAD))
    assert site.look("made") == made
    with pytest.raises(Unavailable):
        site.look("unseen")


def test_commits_are_not_remembered_by_their_beginnings(site: Site) -> None:
    """Only names are: there is one row for a branch, and that of the store's settings."""
    commit = site.push()
    for rev in ("main", commit.hex(), commit.hex()[:8]):
        assert site.look(rev) == commit
    assert len(site.kv.rows) == 2


def test_what_lies_before_a_branch_follows_it(site: Site) -> None:
    """main~1 is before what is shown as main, also while a mirror that is behind stands in, and has
    no row of its own."""
    first, second = site.push(), site.push()
    site.copy()
    third = site.push()
    assert (site.look(), site.look("main~1")) == (third, second)
    assert len(site.kv.rows) == 2
    site.first.add(fail(DEAD))
    with pytest.raises(Unavailable):  # the mirror lacks the commit of main
        site.look("main~1")
    site.start()
    assert site.look(f"{second.hex()}~1") == first


@pytest.mark.parametrize("error", [DEAD, Denied("403"), NotFound("not mounted")])
def test_a_node_starts_without_its_store(error: LodefsError) -> None:
    """A store that this node has opened before need not answer at its next start; one that it has
    not, must."""
    objects, kv = FaultyObjects(memory_store().objects), MemoryKeyValues()
    objects.add(fail(error))
    with pytest.raises(type(error)):
        known_store(store_or_error(objects), objects, kv)
    objects.forget()
    opened = known_store(store_or_error(objects), objects, kv)
    objects.add(fail(error))
    assert known_store(store_or_error(objects), objects, kv).settings == opened.settings
