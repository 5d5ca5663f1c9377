"""A push in parts: the commit of a plain push, in any order and with any end of its tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    SourceChanged,
    TooManyRemovals,
    Unavailable,
    UnknownFormat,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.journal import End
from lodefs.chunkstore.format.push_plan import PushPlan
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.journal.push_plans import PushPlans
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.push.changes.overlay import ChangedDirectory
from lodefs.chunkstore.push.limits import AllowRemovals, allow_all
from lodefs.chunkstore.push.parts import plan as plan_module
from lodefs.chunkstore.push.parts.finish import TREES_AHEAD, finish_plan, joined
from lodefs.chunkstore.push.parts.part_row import do_part
from lodefs.chunkstore.push.parts.part_scan import PartLimits
from lodefs.chunkstore.push.parts.plan import discard_plan, make_plan, open_plan
from lodefs.chunkstore.push.parts.plan_status import PlanStatus, read_status
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import create_store, open_store
from tests.support.chunkstore.directories import awkward, in_commit, in_directory, write_files
from tests.support.chunkstore.faulty_store import BLOCK_TIMEOUT_S, FaultyObjects, fail
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import World

FEW = PartLimits(files=3, size_bytes=200_000)
REPO = "r"


class Site:
    """Machines that share a source and a store in memory."""

    def __init__(self, tmp_path: Path) -> None:
        self.memory = MemoryObjects()
        self.objects = FaultyObjects(self.memory)
        self.store = create_store(self.objects)
        self.source = tmp_path / "source"
        self.source.mkdir()
        self._tmp_path = tmp_path

    def options(self, machine: str = "one", allow: AllowRemovals = allow_all) -> PushOptions:
        index_dir = self._tmp_path / machine
        return PushOptions("a message", "an author", 0, index_dir, workers=0, allow_removals=allow)

    def plan(self, name: str = "p", limits: PartLimits = FEW) -> PushPlan:
        return make_plan(
            self.store, name, self.source, REPO, "main", self.options(), limits=limits
        ).plan

    def do(self, *numbers: int, machine: str = "one", skip_unreadable: bool = False) -> None:
        options = replace(self.options(machine), skip_unreadable=skip_unreadable)
        for number in numbers:
            do_part(self.store, "p", number, options)

    def finish(self, **more: object) -> PushResult:
        return finish_plan(self.store, "p", self.options(), **more)  # type: ignore[arg-type]

    def status(self) -> PlanStatus:
        return read_status(self.store, open_plan(self.store, "p"))

    def pushed(self, branch: str) -> Commit:
        """The commit of a plain push of the source by another machine."""
        push(self.store, self.source, REPO, branch, self.options("plain"))
        return self.store.commit(REPO, self.store.resolve(REPO, branch))

    def assert_pushed(self, result: PushResult) -> None:
        """The commit has what the source has, as a plain push stores it, and the store is sound."""
        assert in_commit(self.store, REPO, result.commit) == in_directory(self.source)
        ours = self.store.commit(REPO, self.store.resolve(REPO, "main"))
        theirs = self.pushed("plain")
        assert ours.root.digest == theirs.root.digest
        same = ("files", "directories", "size_bytes", "large")
        assert [getattr(ours, one) for one in same] == [getattr(theirs, one) for one in same]
        assert verify(self.store, None, data=True).problems == []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _some_files(root: Path) -> None:
    """Directories that end within parts, a large file, equal files, an empty directory."""
    random = Random(7)
    files = {f"a/{n:02d}": random.randbytes(900) for n in range(8)}
    files |= {f"a/b/c/{n}": random.randbytes(50) for n in range(5)}
    files |= {"large": random.randbytes(700_000), "z/same": b"s" * 5000, "a/same": b"s" * 5000}
    write_files(root, files)
    (root / "e" / "empty").mkdir(parents=True)


def test_parts_in_any_order_and_again_give_the_commit_of_a_plain_push(site: Site) -> None:
    """Two machines do the parts in a random order, some of them twice."""
    _some_files(site.source)
    plan = site.plan()
    assert plan.parts > 5
    order = [*range(plan.parts), *range(0, plan.parts, 2)]
    Random(3).shuffle(order)
    for number in order:
        site.do(number, machine=f"machine {number % 2}")
    result = site.finish()
    assert (result.files, result.created_branch, result.unchanged) == (plan.files, True, False)
    site.assert_pushed(result)


def test_everything_awkward_comes_back(site: Site) -> None:
    """Names in any bytes, links of all kinds, empty things and holes are in the commit."""
    awkward(site.source)
    site.do(*range(site.plan().parts))
    site.assert_pushed(site.finish())


def test_an_empty_source_is_one_part(site: Site) -> None:
    """It becomes a commit without files."""
    assert site.plan().parts == 1
    site.do(0)
    assert site.finish().files == 0


def test_a_part_that_is_done_reads_and_sends_nothing(site: Site) -> None:
    """A machine that repeats a part finds the result of another one."""
    _some_files(site.source)
    site.plan()
    site.do(0)
    site.objects.forget()
    site.do(0, machine="two")
    assert site.objects.count("put", "packs/") == 0
    assert site.objects.count("get", keys.plan("p", 0, "parts/")) == 0


def test_what_two_tasks_store_at_once_is_twice_in_the_store(site: Site) -> None:
    """Neither finds the other's chunks before its index shard is there. The commit is right, gc
    runs that merge and rewrite packs keep both copies, and a later push uses one of them. (Packs
    with the same list of chunks are one pack.)"""
    random = Random(1)
    same = random.randbytes(400_000)
    write_files(site.source, {name: random.randbytes(30_000) + same for name in "ab"})
    assert site.plan(limits=PartLimits(files=1, size_bytes=500_000)).parts == 2

    def meanwhile(perform: Callable[[], Any]) -> Any:
        site.do(1, machine="two")
        return perform()

    site.objects.add(meanwhile, "put", keys.INDEX, times=1)
    site.do(0, machine="one")
    site.assert_pushed(site.finish())
    options = CollectOptions(0, workers=1, min_used=1.0, merge_below_bytes=1 << 20)
    for _ in range(3):
        store = open_store(PackLocations(site.objects))
        collect(store, options)
    stored = [info.size_bytes for info in site.objects.list("composites/")]
    assert 1.5 * len(same) < sum(stored) < 2.5 * len(same)
    result = push(store, site.source, REPO, "later", site.options("three"))
    assert (result.new_bytes, verify(store, None, data=True).problems) == (0, [])


def test_parts_of_a_plan_are_put_side_by_side(site: Site) -> None:
    """There may be 20,000, and a store takes its time for each."""
    is_next_put = Event()

    def wait_for_next(perform: Callable[[], Any]) -> Any:
        assert is_next_put.wait(BLOCK_TIMEOUT_S)
        return perform()

    def tell(perform: Callable[[], Any]) -> Any:
        is_next_put.set()
        return perform()

    _some_files(site.source)
    site.objects.add(wait_for_next, "put", keys.plan_part("p", 0, "parts", 0))
    site.objects.add(tell, "put", keys.plan_part("p", 0, "parts", 1))
    assert site.plan().parts > 5
    assert is_next_put.is_set()


class _Lazy(Executor):
    """Does a call when somebody wants its result; ``most`` are the calls that waited at once."""

    most = waiting = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.waiting += 1
        self.most = max(self.most, self.waiting)

        def result(timeout: float | None = None) -> Any:
            self.waiting -= 1
            return fn(*args, **kwargs)

        future: Future[Any] = Future()
        future.result = result  # type: ignore[method-assign]
        return future


def test_directories_of_several_parts_are_read_side_by_side(site: Site) -> None:
    """There may be one for each of 20,000 parts, and a store takes its time for each."""
    write_files(site.source, {f"{n}/{m}": bytes([n, m]) for n in range(9) for m in range(4)})
    site.do(*range(site.plan(limits=PartLimits(files=3)).parts))
    roots = [one.root for _, one in sorted(site.status().done.items())]
    executor = _Lazy()
    root = joined(site.store.packs, roots, {}, executor)
    assert isinstance(root, ChangedDirectory)
    children = root.read_children()
    assert len(children) == 9
    for child in children.values():
        assert isinstance(child, ChangedDirectory) and len(child.read_children()) == 4
        assert child.children == {}  # it holds nothing when it is stored
    assert 2 * 8 <= executor.most <= TREES_AHEAD  # together they may not fit into memory


def test_finish_names_the_parts_that_are_to_be_done(site: Site) -> None:
    """It commits nothing; the status tells done, failed and missing parts apart."""
    _some_files(site.source)
    plan = site.plan()
    site.objects.add(fail(Unavailable("no answer")), "put", "packs/", times=1)
    with pytest.raises(Unavailable):
        site.do(1)
    site.do(0)
    status = site.status()
    assert (sorted(status.done), sorted(status.failed)) == ([0], [1])
    assert status.missing == list(range(2, plan.parts))
    assert status.failed[1].message == "no answer"
    with pytest.raises(InvalidInput, match=f"2/{plan.parts}, 3/{plan.parts}.*no answer"):
        site.finish()
    site.do(*status.todo)
    site.assert_pushed(site.finish())


def test_a_look_at_one_part_reads_one_result(site: Site) -> None:
    """An executor that was silent is asked for each part that it does, of perhaps 23,500."""
    _some_files(site.source)
    site.plan()
    site.do(2)
    site.objects.forget()
    opened = open_plan(site.store, "p")
    todo = [read_status(site.store, opened, numbers=[number]).todo for number in (2, 3)]
    assert todo == [[], [3]]
    assert site.objects.count("get", keys.plan("p", 0, "results/")) == 2


def test_the_writer_of_a_plan_is_asked_for_once(site: Site) -> None:
    """By the status and by finish: one after the first that is not there, and the first's end."""
    _some_files(site.source)
    site.do(*range(site.plan().parts))
    for step in (site.status, site.finish):
        site.objects.forget()
        step()
        assert site.objects.count("get", keys.plan("p", 0, "writers/")) == 1
        assert site.objects.count("get", "journal/ends/") == 1


class _Killed(BaseException):
    """The process is gone: no handler of errors sees it."""


def _die(perform: Callable[[], Any]) -> Any:
    raise _Killed


def _push_in_parts(site: Site) -> PushResult:
    """What people do: each step again until it is done, from another machine."""
    try:
        plan = open_plan(site.store, "p").plan
    except NotFound:
        with suppress(NotFound):
            discard_plan(site.store, "p")
        plan = site.plan()
    site.do(*range(plan.parts), machine="two")
    return site.finish()


def test_a_kill_before_any_put_loses_nothing(tmp_path: Path) -> None:
    """From that put on, the process changes nothing any more; others go on to one commit."""
    number, is_over = 0, False
    while not is_over:
        number += 1
        (tmp_path / str(number)).mkdir()
        site = Site(tmp_path / str(number))
        write_files(site.source, {f"d/{n}": bytes([n]) * 900 for n in range(5)})
        for operation, first in (("put", number), ("delete", 1)):
            site.objects.add(_die, operation, first=first)
        try:
            result, is_over = _push_in_parts(site), True
        except _Killed:
            site.objects.forget()
            result = _push_in_parts(site)
        assert in_commit(site.store, REPO, result.commit) == in_directory(site.source)
        assert len(list(site.store.refs(REPO).history("branches", "main"))) == 1
    assert number > 15


def test_a_plan_gives_its_commit_once_more(site: Site) -> None:
    """A finish that is repeated, by another coordinator or after a crash, makes no second
    commit."""
    _some_files(site.source)
    site.do(*range(site.plan().parts))
    first = site.finish()
    again = site.finish()
    assert (again.commit, again.files) == (first.commit, first.files)
    assert (again.changes, again.created_branch) == (first.changes, True)
    site.do(0)
    history = list(site.store.refs(REPO).history("branches", "main"))
    assert len(history) == 1


def test_a_source_that_has_changed_is_named(site: Site) -> None:
    """The part fails and the others go on; without the file, the part can be done."""
    _some_files(site.source)
    plan = site.plan()
    changed = site.source / "a" / "b" / "c" / "1"
    changed.write_bytes(b"later")
    os.utime(changed, ns=(1, 1))
    for number in range(plan.parts):
        with suppress(SourceChanged):
            site.do(number)
    (number, failure), *others = site.status().failed.items()
    assert others == [] and site.status().missing == []
    assert "a/b/c/1 has changed since the plan was made" in failure.message
    site.do(number, skip_unreadable=True)
    result = site.finish()
    assert [one.path for one in result.skipped] == [b"a/b/c/1"]
    assert result.files == plan.files - 1
    changed.unlink()
    assert in_commit(site.store, REPO, result.commit) == in_directory(site.source)


def test_a_branch_that_has_moved_is_not_overwritten(site: Site) -> None:
    """Finish says where it was and is, and follows the new head when it is named."""
    _some_files(site.source)
    site.do(*range(site.plan().parts))
    push(site.store, site.source, REPO, "main", site.options("other"))
    head = site.store.resolve(REPO, "main")
    (site.source / "more").write_bytes(b"m")
    other = push(site.store, site.source, REPO, "main", site.options("other"))
    (site.source / "more").unlink()
    with pytest.raises(Conflict, match=f"was empty, and is {other.commit[:12]}.*--onto"):
        site.finish()
    with pytest.raises(Conflict, match=f"was {head.hex()[:12]}"):
        site.finish(onto=head)
    result = site.finish(onto=site.store.resolve(REPO, "main"))
    assert result.changes is not None and result.changes.removed_files == 1
    site.assert_pushed(result)


def test_the_same_content_is_no_new_commit(site: Site) -> None:
    """A plan of what the branch has already leaves it as it is."""
    _some_files(site.source)
    push(site.store, site.source, REPO, "main", site.options("other"))
    site.do(*range(site.plan().parts))
    result = site.finish()
    assert (result.unchanged, result.commit) == (True, site.store.resolve(REPO, "main").hex())


def test_finish_refuses_to_remove_most_of_a_branch(site: Site) -> None:
    """As a push does, unless that is allowed."""
    _some_files(site.source)
    push(site.store, site.source, REPO, "main", site.options("other"))
    (site.source / "a").rename(site.source / "moved")
    site.do(*range(site.plan().parts))
    refusing = site.options(allow=lambda _: False)
    with pytest.raises(TooManyRemovals):
        finish_plan(site.store, "p", refusing)
    site.assert_pushed(site.finish())


def test_another_version_of_lodefs_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions are named."""
    site.plan()
    monkeypatch.setattr(plan_module, "installed_version", lambda: "99.1")
    with pytest.raises(
        UnknownFormat, match=r"lodefs \S+ has made the plan p, and this is lodefs 99"
    ):
        site.do(0)


def test_names_and_numbers_are_checked(site: Site) -> None:
    """A name that is taken, no name, no plan, and a part that the plan does not have."""
    site.plan()
    with pytest.raises(AlreadyExists, match="lodefs plan discard p"):
        site.plan()
    with pytest.raises(InvalidInput, match="is not a plan's name"):
        site.plan("../p")
    with pytest.raises(NotFound, match="no plan q"):
        do_part(site.store, "q", 0, site.options())
    with pytest.raises(InvalidInput, match="no part 1: it has 1"):
        site.do(1)


def test_a_signed_url_is_not_written_into_the_store(site: Site) -> None:
    """Its query may be a secret, which the message does not repeat either."""
    url = "https://example.org/data?X-Amz-Signature=abc"
    with pytest.raises(InvalidInput, match="may be a signature") as caught:
        make_plan(site.store, "p", url, REPO, "main", site.options())
    assert "abc" not in str(caught.value)
    assert list(site.objects.list("plans/")) == []


def test_a_plan_that_fails_leaves_nothing(site: Site) -> None:
    """The name is free again, and so it is after discard."""
    _some_files(site.source)
    parts = keys.plan("p", 0, "parts/")
    site.objects.add(fail(Unavailable("no answer")), "put", parts, first=2, times=1)
    with pytest.raises(Unavailable):
        site.plan()
    assert list(site.objects.list("plans/")) == []
    site.plan()
    discard_plan(site.store, "p")
    assert list(site.objects.list("plans/")) == []
    site.plan()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with one_at_a_time():
        yield World(tmp_path)


def _plan_in(world: World) -> tuple[PushOptions, PushPlan]:
    source, options = world.source("s"), world.session().options
    _some_files(source)
    return options, make_plan(world.store, "p", source, REPO, "main", options, limits=FEW).plan


def test_gc_runs_keep_what_a_plan_has_stored(world: World) -> None:
    """Days of gc runs delete nothing of it, as long as some task shows that it is alive."""
    options, plan = _plan_in(world)
    for number in range(plan.parts):
        do_part(world.store, "p", number, options)
        assert world.collect().deleted.packs == 0
        world.hours += 20
    result = finish_plan(world.store, "p", options)
    assert in_commit(world.store, REPO, result.commit) == in_directory(world.source("s"))
    world.collect_all()
    assert verify(world.store, data=True).problems == []
    assert world.garbage() == set()
    assert list(world.store.objects.list("plans/")) == []


def test_gc_removes_a_plan_that_was_abandoned(world: World) -> None:
    """After the grace time without a task, it removes documents and data, and says so."""
    options, _ = _plan_in(world)
    do_part(world.store, "p", 0, options)
    world.collect()
    world.hours += 25
    assert world.collect(dry_run=True).plans == 1
    assert (world.collect().plans, list(world.store.objects.list("plans/"))) == (1, [])
    world.collect_all()
    assert list(world.store.objects.list("packs/")) == []
    with pytest.raises(NotFound, match="no plan p"):
        do_part(world.store, "p", 1, options)


def test_a_writer_that_was_given_up_costs_a_look_and_no_data(world: World) -> None:
    """Parts that were done for it are looked at again, and not read or sent again."""
    options, plan = _plan_in(world)
    for number in range(plan.parts):
        do_part(world.store, "p", number, options)
    _, writer = PushPlans(world.store.objects).find("p").writer()
    StoreJournal(world.store.objects).put_end(End(writer, None))
    with pytest.raises(InvalidInput, match=f"{plan.parts} of the {plan.parts} parts"):
        finish_plan(world.store, "p", options)
    world.objects.forget()
    for number in range(plan.parts):
        do_part(world.store, "p", number, options)
    assert world.objects.count("put", "packs/") == 0
    result = finish_plan(world.store, "p", options)
    assert in_commit(world.store, REPO, result.commit) == in_directory(world.source("s"))


def test_data_that_a_gc_run_has_deleted_is_stored_again(world: World) -> None:
    """A plan whose writer was given up finds which parts have lost their data, and does these
    again."""
    options, plan = _plan_in(world)
    for number in range(plan.parts):
        do_part(world.store, "p", number, options)
    _, writer = PushPlans(world.store.objects).find("p").writer()
    kept = dict(world.memory.objects)
    StoreJournal(world.store.objects).put_end(End(writer, None))
    world.collect_all()  # with the documents
    assert not any(key.startswith("packs/") for key in world.memory.objects)
    world.memory.objects |= {key: kept[key] for key in kept if key.startswith("plans/")}
    for number in range(plan.parts):
        do_part(world.store, "p", number, options)
    result = finish_plan(world.store, "p", options)
    assert in_commit(world.store, REPO, result.commit) == in_directory(world.source("s"))
    assert verify(world.store, data=True).problems == []
