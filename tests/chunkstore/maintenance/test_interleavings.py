"""Orders of requests that only chance would bring about: who stands still, and where."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Conflict, NotFound
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.push.changes.branch_commits import EMPTY, CommitJob
from lodefs.chunkstore.push.changes.change import Put
from lodefs.chunkstore.push.changes.commit_changes import base_of
from lodefs.chunkstore.push.changes.staging import Staging
from lodefs.chunkstore.push.committer import Committer, head_of
from lodefs.chunkstore.repo.store import Store
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World, finish, go_on_to


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with one_at_a_time():
        yield World(tmp_path)


def test_a_writer_that_is_about_to_put_its_ref(world: World) -> None:
    """A push that has said what it will write, and whose last put takes a day, is given its
    bytes: its commit counts as in use."""
    source = world.source("source", a=b"a" * 9000)
    push = world.actor("push", lambda store: world.push(source, store=store))
    go_on_to(push, "put index/")
    world.collect()  # tombstones what the push has sent
    go_on_to(push, "put repos/r/refs/")
    world.hours += 25
    world.beat(push)
    assert world.collect().deleted.packs == 0
    finish(push)
    assert push.error is None
    world.needs.check("at the end")
    world.collect_all()
    world.needs.check("after more gc runs")
    assert world.needs.refs() == [("branches", "main")]


def test_a_writer_that_is_silent_for_long_is_given_up(world: World) -> None:
    """A push that stands still before its end, from one gc run to another after the grace time,
    is refused then, with nothing lost; its repetition goes through."""
    source = world.source("source", a=b"a" * 9000)
    push = world.actor("push", lambda store: world.push(source, store=store))
    go_on_to(push, "put repos/r/commits/")
    assert world.collect().writers == 1
    world.hours += 25
    assert world.collect().dead_writers == 1
    finish(push)
    assert isinstance(push.error, Conflict)
    assert "repeat" in str(push.error)
    world.push(source)
    world.needs.check("after the repetition")
    world.collect_all()
    assert world.garbage() == set()
    world.needs.check("at the end")


def test_a_ledger_that_is_too_large(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more refs than it holds dead writers are given up all the same, and garbage goes."""
    monkeypatch.setattr("lodefs.chunkstore.format.journal.LEDGER_SIZE_BYTES_MAX", 800)
    source = world.source("source", a=b"a" * 9000)
    for n in range(9):
        world.push(source, f"branch-with-a-long-name-{n}" * 4)
    push = world.actor("push", lambda store: world.push(source, "dead", "two", store=store))
    go_on_to(push, "put repos/r/commits/")
    push.kill(after_request=False)
    assert world.collect().writers == 1
    assert StoreJournal(world.memory).ledger().refs == {}
    world.hours += 25
    assert world.collect().dead_writers == 1
    world.delete("branch-with-a-long-name-0" * 4)
    world.collect_all()
    assert world.garbage() == set()
    world.needs.check("at the end")


def test_a_writer_that_says_it_is_alive_is_waited_for(world: World) -> None:
    """A push whose beats go on is never given up, however long it takes."""
    source = world.source("source", a=b"a" * 9000)
    push = world.actor("push", lambda store: world.push(source, store=store))
    go_on_to(push, "put repos/r/commits/")
    for _ in range(4):
        world.beat(push)
        result = world.collect()
        assert (result.dead_writers, result.writers, result.deleted.packs) == (0, 1, 0)
        world.hours += 25
    finish(push)
    assert push.error is None
    world.needs.check("at the end")


def test_a_transaction_of_a_process_that_died(world: World) -> None:
    """What it had staged, contents and directories, is garbage, which goes."""
    world.push(world.source("source", a=b"a" * 9000))
    before = world.packs()

    def act(store: Store) -> None:
        session = world.session(store=store)
        with session.once():
            area = Staging(session, base_of(session, None, head_of(session)))
            area.put((b"b",), b"b" * 9000)
            area.store_root()
            area.commit(CommitJob())

    program = world.actor("program", act)
    go_on_to(program, "put repos/r/commits/")
    program.kill(after_request=False)
    assert len(world.packs()) >= len(before) + 2
    world.collect()
    world.hours += 25
    world.collect_all()
    assert world.packs() == before
    assert world.garbage() == set()
    world.needs.check("at the end")


def test_what_a_fork_has_put_waits_for_the_transaction(world: World) -> None:
    """Packs of a fork that has ended are nobody's to delete, as long as the transaction that it
    is of says that it is alive; its commit has them. A fork that is never merged is garbage."""
    session = world.session()
    with session.once():
        area = Staging(session, EMPTY)
        session.begin()
        roots = []
        for name in (b"a", b"b"):
            other = world.session("two")
            with other.once():
                fork = Staging(other, EMPTY)
                fork.put((name,), name * 9000)
                roots.append(fork.store_root())
                Committer(other).publish()
        for _ in range(3):
            assert world.collect().deleted.packs == 0
            world.hours += 25
            session.write.beat()
        assert roots[0] is not None
        area.take(None, roots[0], CommitJob())
        area.commit(CommitJob(check_all=True))
    world.needs.check("after the commit")
    world.collect_all()
    world.collect_all()
    assert world.garbage() == set()
    world.needs.check("at the end")


def test_a_writer_that_died_with_an_intent(world: World) -> None:
    """What it was about to write counts as in use until its place in the ref's log is taken; a
    request of it that comes late changes nothing."""
    first = world.push(world.source("first", a=b"1" * 9000))
    push = world.actor(
        "push", lambda store: world.push(world.source("other", b=b"2" * 9000), store=store)
    )
    go_on_to(push, "put repos/r/refs/")
    for _ in range(2):
        world.collect()
        world.hours += 25
    assert len(world.packs()) == 4
    world.collect_all()
    finish(push)
    assert isinstance(push.error, Conflict)
    head = world.store.refs(REPO).read("branches", "main")
    assert head.commit is not None
    assert head.commit.hex() == first.commit
    world.collect_all()
    assert world.garbage() == set()
    world.needs.check("at the end")


def test_a_collection_that_deletes_late(world: World) -> None:
    """A gc run that stands still before its deletes, while another carries them out, may delete
    the same packs hours later: no push puts anything under their ids again."""
    source = world.source("source", a=b"a" * 9000, b=b"b" * 200)
    world.push(source)
    world.delete()
    world.collect()
    world.hours += 25
    late = world.actor("late", lambda store: world.collect(store=store))
    go_on_to(late, "delete packs/")
    world.collect()
    assert world.packs() == set()
    result = world.push(source)
    assert result.lost_packs > 0
    world.needs.check("after the push")
    finish(late)
    world.needs.check("after the late deletes")
    world.collect_all()
    world.needs.check("at the end")
    assert len(world.packs()) == 2


def test_a_push_saves_what_is_tombstoned(world: World) -> None:
    """A push of the same content, by another machine too, between being tombstoned and deleted:
    nothing is sent again, and nothing is deleted."""
    source = world.source("source", a=b"a" * 9000)
    world.push(source)
    packs = world.packs()
    world.delete()
    assert world.collect().tombstoned.packs == len(packs)
    for machine in ("one", "two"):
        world.push(source, machine, machine=machine)
    world.hours += 25
    assert world.collect().deleted.packs == 0
    assert world.packs() == packs
    world.needs.check("at the end")


def test_a_tombstoned_commit_can_be_got_back_until_it_is_deleted(world: World) -> None:
    """A branch at a commit that is tombstoned saves it, with its parent and their data; once it is
    deleted, the branch is refused with a clear error."""
    source = world.source("source", a=b"a" * 9000)
    world.push(source)
    world.push(world.source("source", b=b"b" * 9000))
    commit = world.delete()
    world.collect()
    world.point("back", commit)
    world.hours += 25
    assert world.collect().deleted.commits == 0
    world.needs.check("after the branch came back")
    world.delete("back")
    world.collect()
    late = world.actor("late", lambda store: world.point("late", commit, store=store))
    world.hours += 25
    assert world.collect().deleted.commits == 2
    finish(late)
    assert isinstance(late.error, NotFound)
    assert "gc" in str(late.error)
    assert world.needs.refs() == []


def test_changes_of_a_commit_that_is_tombstoned(world: World) -> None:
    """Changes to a new branch, of a commit that no ref leads to, save that and all before it from a
    collection that has marked already; once it is deleted they are refused."""
    world.push(world.source("source", a=b"a" * 9000))
    world.push(world.source("source", a=b"b" * 9000))
    base = world.delete()
    world.collect()
    world.hours += 25
    late = world.actor("late", lambda store: world.collect(store=store))
    go_on_to(late, "put journal/fates/")
    assert world.change("new", base, Put("c", b"c" * 9000)).created_branch
    finish(late)
    world.needs.check("after the gc run")
    world.delete("new")
    world.collect_all()
    with pytest.raises(NotFound):
        world.change("new", base, Put("c", b"c" * 9000))
    assert world.needs.refs() == []


def test_a_commit_that_was_deleted_is_not_made_again(world: World) -> None:
    """A push that would make the very commit that a gc run has deleted makes another one."""
    source = world.source("source", a=b"a" * 9000)
    world.push(source, "kept")
    deleted = world.push(source, "main").commit
    world.source("source", b=b"b")  # so that the next push has something to commit
    world.hours = 0
    kept = world.delete("kept")
    world.delete("main")
    world.point("still", kept)  # the packs stay
    assert deleted == kept.hex()  # the same time, the same tree: one commit for both branches
    world.delete("still")
    world.collect_all()
    world.hours = 0
    (source / "b").unlink()
    assert world.push(source).commit != deleted
    world.needs.check("at the end")


def test_a_tag_of_what_a_collection_deletes_meanwhile(tmp_path: Path) -> None:
    """A commit that was tombstoned while its push was under way, and whose branch is deleted and
    collected while somebody tags it: wherever the tag stands then, it is whole or refused."""
    standing = 0
    has_ended = False
    while not has_ended:
        with one_at_a_time():
            world = World(tmp_path / str(standing))
            source = world.source("source", a=b"a" * 9000)
            push = world.actor("push", partial(_push, world, source))
            go_on_to(push, "put journal/ends/")
            world.collect()
            finish(push)
            commit = world.store.refs(REPO).read("branches", "dev").commit
            assert commit is not None
            world.hours += 25
            tag = world.actor("tag", partial(_tag, world, commit))
            for _ in range(standing):
                if not tag.has_ended:
                    tag.step()
            has_ended = tag.has_ended
            world.delete("dev")
            world.collect()
            if not tag.has_ended:
                finish(tag)
            assert tag.error is None or isinstance(tag.error, NotFound)
            world.needs.check(f"before request {standing}")
        standing += 1
    assert standing > 10


def _push(world: World, source: Path, store: Store) -> None:
    world.push(source, "dev", store=store)


def _tag(world: World, commit: CommitId, store: Store) -> None:
    ref = RefName(REPO, "tags", "v1")
    point_ref(store, ref, commit, expected_sequence=None, clock=world.clock)


def test_two_pushes_of_one_machine(world: World) -> None:
    """One that began before a gc run goes on with the index that another has brought up to
    date since: nothing is read again, and both commits are whole."""
    world.push(world.source("old", q=b"z" * 9000), "old")
    world.delete("old")
    source = world.source("first", a=b"a" * 9000)
    first = world.actor("first", lambda store: world.push(source, "first", store=store))
    go_on_to(first, "put packs/")
    first.step()
    assert world.collect().tombstoned.packs > 0
    world.push(world.source("second", b=b"b" * 9000), "second")
    finish(first)
    assert first.error is None
    assert not list(tmp_index(world).glob("*.broken"))
    world.needs.check("at the end")


def tmp_index(world: World) -> Path:
    """Where the push index of the machine "one" lies."""
    return world._directory / "one"
